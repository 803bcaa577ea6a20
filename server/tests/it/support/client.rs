//! A client connection, which sends requests and receives replies.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{Shutdown, TcpStream};

use super::{PATIENCE, Reply};

/// The version of the protocol of a connection's replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resp {
    Two,
    Three,
}

impl Resp {
    fn number(self) -> &'static str {
        match self {
            Resp::Two => "2",
            Resp::Three => "3",
        }
    }
}

/// One connection to a server. Its requests may be pipelined: the test sends several, then receives as many
/// replies.
pub struct Client {
    stream: BufReader<TcpStream>,
    resp: Resp,
    id: Option<i64>,
}

impl Client {
    /// Connects to a server of this machine in RESP2. Sends nothing.
    ///
    /// # Panics
    /// When the connection is refused.
    pub fn connect(port: u16) -> Client {
        Client::try_connect(port).unwrap_or_else(|error| panic!("no connection to port {port}: {error}"))
    }

    /// Connects without sending anything.
    ///
    /// # Errors
    /// When the connection is refused.
    pub fn try_connect(port: u16) -> io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client { stream: BufReader::new(stream), resp: Resp::Two, id: None })
    }

    /// Sends HELLO with a protocol version, and stores the connection's id. If the server refuses, as it does
    /// without a password, the connection stays as it was.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn hello(&mut self, resp: Resp) -> io::Result<()> {
        let reply = self.try_command(&["HELLO", resp.number()])?;
        let fields = match reply {
            Reply::Map(pairs) => pairs.into_iter().flat_map(|(name, value)| [name, value]).collect(),
            Reply::Array(items) => items,
            _ => return Ok(()),
        };
        self.resp = resp;
        let id = fields.iter().position(|field| field.text().as_deref() == Some("id"));
        self.id = id.and_then(|at| fields.get(at + 1)?.integer());
        Ok(())
    }

    /// Returns the version of the replies, as far as this client knows.
    pub fn resp(&self) -> Resp {
        self.resp
    }

    /// Notes a change of version by a command of the test.
    pub fn set_resp(&mut self, resp: Resp) {
        self.resp = resp;
    }

    /// Returns the connection's id, once [`Client::hello`] was answered.
    pub fn id(&self) -> Option<i64> {
        self.id
    }

    /// Sends a command and receives its reply.
    ///
    /// # Panics
    /// When the connection breaks or no reply comes in time.
    pub fn command<A: AsRef<[u8]>>(&mut self, argv: &[A]) -> Reply {
        self.send(argv);
        self.receive()
    }

    /// Sends a command. [`Client::receive`] returns its reply.
    ///
    /// # Panics
    /// When the connection breaks.
    pub fn send<A: AsRef<[u8]>>(&mut self, argv: &[A]) {
        self.try_send(argv).unwrap_or_else(|error| panic!("sending: {error}"));
    }

    /// Sends bytes unchanged.
    ///
    /// # Panics
    /// When the connection breaks.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.try_send_raw(bytes).unwrap_or_else(|error| panic!("sending: {error}"));
    }

    /// Receives the next reply or push message.
    ///
    /// # Panics
    /// When the connection breaks or nothing comes in time.
    pub fn receive(&mut self) -> Reply {
        self.try_receive().unwrap_or_else(|error| panic!("receiving: {error}"))
    }

    /// Like [`Client::command`].
    ///
    /// # Errors
    /// When the connection breaks or no reply comes in time.
    pub fn try_command<A: AsRef<[u8]>>(&mut self, argv: &[A]) -> io::Result<Reply> {
        self.try_send(argv)?;
        self.try_receive()
    }

    /// Like [`Client::send`].
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn try_send<A: AsRef<[u8]>>(&mut self, argv: &[A]) -> io::Result<()> {
        let mut request = Vec::new();
        encode(argv, &mut request);
        self.try_send_raw(&request)
    }

    /// Like [`Client::send_raw`].
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn try_send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Like [`Client::receive`].
    ///
    /// # Errors
    /// When the connection breaks or nothing comes in time.
    pub fn try_receive(&mut self) -> io::Result<Reply> {
        Reply::read(&mut self.stream).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => io::Error::new(ErrorKind::TimedOut, "no reply in time"),
            _ => error,
        })
    }

    /// Whether there is input that has not been received.
    ///
    /// # Panics
    /// When the connection is broken.
    pub fn has_reply(&mut self) -> bool {
        let stream = self.stream.get_ref();
        stream.set_nonblocking(true).expect("it is open");
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false).expect("it is open");
        let has_come = match peeked {
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            peeked => peeked.expect("the connection is whole") > 0,
        };
        has_come || !self.stream.buffer().is_empty()
    }

    /// Waits until the server has closed the connection. Returns any bytes that arrive instead.
    ///
    /// # Errors
    /// When the connection stays open beyond the timeout.
    pub fn await_close(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            return match self.stream.fill_buf() {
                Ok([]) => Ok(None),
                Ok(bytes) => Ok(Some(bytes.to_vec())),
                // A server that closes with unread input makes the kernel send a reset.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
                // A machine that was suspended ends waits with a timeout: signal(7).
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
        }
    }

    /// Closes the sending half, so the server reads an end of file.
    pub fn finish_sending(&mut self) {
        // A connection that the peer has already closed cannot be shut down, and need not be.
        let _ = self.stream.get_ref().shutdown(Shutdown::Write);
    }
}

/// Appends a command in its wire format.
pub fn encode<A: AsRef<[u8]>>(argv: &[A], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", argv.len()).as_bytes());
    for arg in argv {
        let arg = arg.as_ref();
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}
