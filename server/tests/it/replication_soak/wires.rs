//! The links between the servers: a small proxy for each direction, which breaks them at any byte.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

/// The time between two looks at a wire's orders.
const LOOK: Duration = Duration::from_millis(5);

/// The orders of one wire, which a test gives, and its threads obey.
#[derive(Default)]
struct Orders {
    /// The beginning of the paths of files for what has passed.
    kept: PathBuf,
    n_kept: AtomicUsize,
    is_over: AtomicBool,
    /// The port of the server at its end. 0 if there is none.
    target: AtomicU16,
    /// Whether no connection may pass.
    is_blocked: AtomicBool,
    /// Whether nothing is read from the server at its end.
    is_stalled: AtomicBool,
    /// The milliseconds that each piece is kept.
    delay: AtomicU64,
    /// The bytes from the server at its end until the wire is cut. Negative: it is not.
    until_cut: AtomicI64,
    /// The number of cuts.
    n_cuts: AtomicUsize,
}

impl Orders {
    fn next_file(&self) -> File {
        let nth = self.n_kept.fetch_add(1, SeqCst);
        File::create(format!("{}-{nth}", self.kept.display())).expect("the scratch space is writable")
    }
}

/// The way of a replica's link to its primary. Replicas are told its port in place of the primary's.
pub struct Wire {
    port: u16,
    orders: Arc<Orders>,
}

impl Wire {
    /// Makes one that leads nowhere. What passes from the primary is kept in files with this path's
    /// beginning.
    pub fn new(kept: PathBuf) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        listener.set_nonblocking(true).expect("it is open");
        let port = listener.local_addr().expect("it listens").port();
        let orders = Arc::new(Orders { kept, until_cut: AtomicI64::new(-1), ..Orders::default() });
        let of_thread = Arc::clone(&orders);
        thread::spawn(move || accept(&listener, &of_thread));
        Wire { port, orders }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Names the server at its end.
    pub fn lead_to(&self, port: u16) {
        self.orders.target.store(port, SeqCst);
    }

    /// Cuts it now.
    pub fn cut(&self) {
        self.orders.n_cuts.fetch_add(1, SeqCst);
    }

    /// Cuts it when some more bytes of the primary have passed.
    pub fn cut_after(&self, n_bytes: usize) {
        self.orders.until_cut.store(n_bytes as i64, SeqCst);
    }

    /// Cuts it, and lets nothing pass until it is opened.
    pub fn block(&self) {
        self.orders.is_blocked.store(true, SeqCst);
        self.cut();
    }

    /// Reads no more of the primary's bytes until it is cut or opened.
    pub fn stall(&self) {
        self.orders.is_stalled.store(true, SeqCst);
    }

    /// Keeps each piece for some time.
    pub fn delay(&self, millis: usize) {
        self.orders.delay.store(millis as u64, SeqCst);
    }

    /// Takes back all orders.
    pub fn open(&self) {
        self.orders.until_cut.store(-1, SeqCst);
        self.orders.delay.store(0, SeqCst);
        self.orders.is_stalled.store(false, SeqCst);
        self.orders.is_blocked.store(false, SeqCst);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.orders.is_over.store(true, SeqCst);
    }
}

fn accept(listener: &TcpListener, orders: &Arc<Orders>) {
    while !orders.is_over.load(SeqCst) {
        match listener.accept() {
            Ok((near, _)) => {
                let n_cuts = orders.n_cuts.load(SeqCst);
                let target = orders.target.load(SeqCst);
                if orders.is_blocked.load(SeqCst) || target == 0 {
                    continue;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                near.set_nonblocking(false).expect("it is open");
                let threads = [(&near, &far, false), (&far, &near, true)].map(|(from, to, is_far)| {
                    let (from, to) = (from.try_clone(), to.try_clone());
                    WirePipe {
                        from: from.expect("a socket can be cloned"),
                        to: to.expect("a socket can be cloned"),
                        orders: Arc::clone(orders),
                        n_cuts,
                        kept: is_far.then(|| orders.next_file()),
                    }
                });
                threads.into_iter().for_each(|pipe| _ = thread::spawn(move || pipe.carry()));
            }
            Err(_) => thread::sleep(LOOK),
        }
    }
}

/// One direction of one connection.
struct WirePipe {
    from: TcpStream,
    to: TcpStream,
    orders: Arc<Orders>,
    n_cuts: usize,
    /// The file for what passes, if that comes from the primary.
    kept: Option<File>,
}

impl WirePipe {
    fn carry(mut self) {
        let _ = self.try_carry();
        // Both fail only if the connection is closed already.
        let _ = self.from.shutdown(Shutdown::Both);
        let _ = self.to.shutdown(Shutdown::Both);
    }

    fn is_cut(&self) -> bool {
        self.orders.is_over.load(SeqCst) || self.orders.n_cuts.load(SeqCst) != self.n_cuts
    }

    fn try_carry(&mut self) -> io::Result<()> {
        self.from.set_read_timeout(Some(LOOK))?;
        self.to.set_write_timeout(Some(LOOK))?;
        let _ = self.to.set_nodelay(true);
        let mut room = vec![0; 16 << 10];
        while !self.is_cut() {
            if self.kept.is_some() && self.orders.is_stalled.load(SeqCst) {
                thread::sleep(LOOK);
                continue;
            }
            let n = match self.from.read(&mut room) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(error) if is_late(&error) => continue,
                Err(error) => return Err(error),
            };
            thread::sleep(Duration::from_millis(self.orders.delay.load(SeqCst)));
            let passes = self.cut_off(n);
            if let Some(kept) = &mut self.kept {
                kept.write_all(&room[..passes])?;
            }
            self.hand_on(&room[..passes])?;
            if passes < n {
                self.orders.n_cuts.fetch_add(1, SeqCst);
            }
        }
        Ok(())
    }

    /// Counts bytes. Returns the number of those that come before a cut.
    fn cut_off(&self, n: usize) -> usize {
        let until_cut = self.orders.until_cut.load(SeqCst);
        if self.kept.is_none() || until_cut < 0 {
            return n;
        }
        let left = until_cut - n as i64;
        self.orders.until_cut.store(if left < 0 { -1 } else { left }, SeqCst);
        if left < 0 { until_cut as usize } else { n }
    }

    fn hand_on(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() && !self.is_cut() {
            match self.to.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => bytes = &bytes[n..],
                Err(error) if is_late(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
