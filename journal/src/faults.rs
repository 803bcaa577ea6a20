//! Faults of the disk on demand, for tests.
//!
//! Operations fail or wait, as on a full or broken disk.
//!
//! An operation without a fault costs one more read of a word, beside its system call.

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::io::Errno;

use crate::disk::{Disk, DiskFile, DiskRoom, Folder, SpoolDisk, SpoolFile};

/// An operation that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creates a file.
    Create,
    /// Writes to a file. Half of the bytes are written even if it fails.
    Write,
    /// Reserves space.
    Reserve,
    /// Syncs a file.
    Sync,
    /// Renames a file.
    Rename,
    /// Syncs the folder.
    SyncFolder,
    /// Writes a base. That does not go through a [`Disk`]: the writer calls [`Faults::check`].
    Base,
}

impl Operation {
    const NAMED: [(Operation, &str); 7] = [
        (Operation::Create, "create"),
        (Operation::Write, "write"),
        (Operation::Reserve, "reserve"),
        (Operation::Sync, "sync"),
        (Operation::Rename, "rename"),
        (Operation::SyncFolder, "sync-folder"),
        (Operation::Base, "base"),
    ];

    /// The operation of a name, in any case.
    pub fn named(name: &[u8]) -> Option<Self> {
        let mut named = Self::NAMED.iter();
        named.find(|(_, known)| name.eq_ignore_ascii_case(known.as_bytes())).map(|&(operation, _)| operation)
    }
}

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is done.
    None,
    /// It waits until another fault is planned.
    Hold,
    /// It fails with the error of this number.
    Error(i32),
}

impl Fault {
    /// The fault `none` or `hold`, or an error by the system's name, in any case.
    pub fn named(name: &[u8]) -> Option<Self> {
        const NAMED: [(&str, Fault); 6] = [
            ("none", Fault::None),
            ("hold", Fault::Hold),
            ("enospc", Fault::Error(Errno::NOSPC.raw_os_error())),
            ("edquot", Fault::Error(Errno::DQUOT.raw_os_error())),
            ("eio", Fault::Error(Errno::IO.raw_os_error())),
            ("erofs", Fault::Error(Errno::ROFS.raw_os_error())),
        ];
        let mut named = NAMED.iter();
        named.find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes())).map(|&(_, fault)| fault)
    }
}

/// The faults of a disk, by operation.
#[derive(Debug, Default)]
pub struct Faults([Planned; Operation::NAMED.len()]);

#[derive(Debug, Default)]
struct Planned {
    /// The number of an error, or one of the constants below, which no error has.
    fault: AtomicI32,
    /// The number of operations since the fault was planned.
    n_seen: AtomicU64,
    /// The range of operations that fail, counted from 1.
    first: AtomicU64,
    end: AtomicU64,
}

impl Planned {
    const NONE: i32 = 0;
    const HOLD: i32 = -1;
}

impl Faults {
    /// The interval at which a waiting operation checks its fault again.
    const LOOK_EVERY: Duration = Duration::from_millis(1);

    /// Plans a fault for the operations `which`, counted from 1. With [`Fault::Hold`] every operation waits.
    pub fn plan(&self, operation: Operation, fault: Fault, which: Range<u64>) {
        let planned = &self.0[operation as usize];
        planned.n_seen.store(0, Ordering::Relaxed);
        planned.first.store(which.start, Ordering::Relaxed);
        planned.end.store(which.end, Ordering::Relaxed);
        let fault = match fault {
            Fault::None => Planned::NONE,
            Fault::Hold => Planned::HOLD,
            Fault::Error(number) => number,
        };
        planned.fault.store(fault, Ordering::Relaxed);
    }

    /// Waits or fails, if that is planned.
    ///
    /// # Errors
    /// The planned error.
    #[inline]
    pub fn check(&self, operation: Operation) -> io::Result<()> {
        let planned = &self.0[operation as usize];
        if planned.fault.load(Ordering::Relaxed) == Planned::NONE { Ok(()) } else { Self::meet(planned) }
    }

    #[cold]
    fn meet(planned: &Planned) -> io::Result<()> {
        loop {
            match planned.fault.load(Ordering::Relaxed) {
                Planned::NONE => return Ok(()),
                Planned::HOLD => thread::sleep(Self::LOOK_EVERY),
                number => {
                    let nth = planned.n_seen.fetch_add(1, Ordering::Relaxed) + 1;
                    let (first, end) =
                        (planned.first.load(Ordering::Relaxed), planned.end.load(Ordering::Relaxed));
                    let fails = (first..end).contains(&nth);
                    return if fails { Err(io::Error::from_raw_os_error(number)) } else { Ok(()) };
                }
            }
        }
    }
}

/// The folder of a server's AOF.
pub type LogFolder = Faulty<Folder>;

/// A disk, or a file of it, with faults.
#[derive(Clone, Debug)]
pub struct Faulty<T> {
    of: T,
    faults: Arc<Faults>,
}

impl<T> Faulty<T> {
    /// The disk `of`, with these faults.
    pub fn new(of: T, faults: &Arc<Faults>) -> Self {
        Self { of, faults: Arc::clone(faults) }
    }

    fn file<F>(&self, file: F) -> Faulty<F> {
        Faulty::new(file, &self.faults)
    }
}

impl<D: Disk> Disk for Faulty<D> {
    type File = Faulty<D::File>;

    fn read(&self, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.of.read(name)
    }

    fn create(&mut self, name: &[u8]) -> io::Result<Self::File> {
        self.faults.check(Operation::Create)?;
        self.of.create(name).map(|file| self.file(file))
    }

    fn names(&self) -> io::Result<Vec<Vec<u8>>> {
        self.of.names()
    }

    fn open(&mut self, name: &[u8]) -> io::Result<Self::File> {
        self.of.open(name).map(|file| self.file(file))
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> io::Result<()> {
        self.faults.check(Operation::Rename)?;
        self.of.rename(from, to)
    }

    fn remove(&mut self, name: &[u8]) -> io::Result<()> {
        self.of.remove(name)
    }

    fn sync_folder(&mut self) -> io::Result<()> {
        self.faults.check(Operation::SyncFolder)?;
        self.of.sync_folder()
    }
}

impl<F: DiskFile> DiskFile for Faulty<F> {
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.faults.check(Operation::Write).inspect_err(|_| {
            // The result of this write does not matter: the operation has failed.
            let _ = self.of.write_at(&bytes[..bytes.len() / 2], at);
        })?;
        self.of.write_at(bytes, at)
    }

    fn reserve(&self, n_bytes: u64) -> io::Result<()> {
        self.faults.check(Operation::Reserve)?;
        self.of.reserve(n_bytes)
    }

    fn truncate(&self, n_bytes: u64) -> io::Result<()> {
        self.of.truncate(n_bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.check(Operation::Sync)?;
        self.of.sync()
    }

    fn release(&self) {
        self.of.release();
    }
}

impl<D: SpoolDisk> SpoolDisk for Faulty<D> {
    fn create(&mut self) -> io::Result<Arc<dyn SpoolFile>> {
        self.faults.check(Operation::Create)?;
        let file = self.of.create()?;
        Ok(Arc::new(self.file(file)))
    }

    fn room(&self) -> io::Result<DiskRoom> {
        self.of.room()
    }
}

impl SpoolFile for Faulty<Arc<dyn SpoolFile>> {
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.faults.check(Operation::Write)?;
        self.of.write_at(bytes, at)
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.of.read_at(bytes, at)
    }
}
