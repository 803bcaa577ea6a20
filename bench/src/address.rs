//! Addresses of servers, over TCP or as a Unix socket, and connections to them.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

/// The address at which a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A host's address and a port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Address {
    /// Connects. Over TCP, connecting takes at most `patience`, or as long as the system allows.
    ///
    /// # Errors
    /// When no server listens there.
    pub fn connect(&self, patience: Option<Duration>) -> io::Result<Socket> {
        let socket = self.socket()?;
        match (self, patience) {
            (Self::Tcp(_), Some(patience)) => socket.connect_timeout(&self.encoded()?, patience)?,
            // A connect with a time limit needs a socket that does not block. A full queue would then refuse
            // it.
            _ => socket.connect(&self.encoded()?)?,
        }
        Ok(socket)
    }

    /// Begins to connect a socket that does not block.
    ///
    /// Over TCP, the socket is connected when it becomes writable, and a failure shows then. A Unix socket is
    /// connected or refused at once.
    ///
    /// # Errors
    /// When the system refuses a socket or to connect it.
    pub fn begin_to_connect(&self) -> io::Result<Socket> {
        let socket = self.socket()?;
        match self {
            // A server whose queue is full for a moment refuses a socket that does not block.
            Self::Unix(_) => {
                socket.connect(&self.encoded()?)?;
                socket.set_nonblocking(true)?;
            }
            Self::Tcp(_) => {
                socket.set_nonblocking(true)?;
                match socket.connect(&self.encoded()?) {
                    Err(error) if error.raw_os_error() != Some(IN_PROGRESS) => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(socket)
    }

    /// Whether the server runs on this machine, as far as the address says.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    fn socket(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(address) => {
                let socket = Socket::new(Domain::for_address(*address), Type::STREAM, None)?;
                socket.set_tcp_nodelay(true)?;
                Ok(socket)
            }
            Self::Unix(_) => Socket::new(Domain::UNIX, Type::STREAM, None),
        }
    }

    fn encoded(&self) -> io::Result<SockAddr> {
        match self {
            Self::Tcp(address) => Ok((*address).into()),
            Self::Unix(path) => SockAddr::unix(path),
        }
    }
}

/// The error of a connection that is still being made, which is no failure.
const IN_PROGRESS: i32 = rustix::io::Errno::INPROGRESS.raw_os_error();

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}
