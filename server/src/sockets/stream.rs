//! The socket of a connection.

use std::{
    io::{self, Read, Write},
    os::fd::{AsRawFd, RawFd},
};

use mio::{
    Interest, Registry, Token,
    event::Source,
    net::{TcpStream, UnixStream},
};

#[cfg(test)]
use super::simulated::SimulatedSocket;
use crate::{
    client::id::Endpoint,
    sockets::tls::{Ciphertext, TlsStream},
};

/// A connected socket.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
    /// TCP with TLS on it.
    Tls(Box<TlsStream>),
    /// No socket of the system's.
    #[cfg(test)]
    Simulated(SimulatedSocket),
}

/// An accepted connection that has no thread yet.
pub struct Accepted {
    /// The socket.
    pub stream: Stream,
    /// The protocol spoken on it.
    pub speaks: Speaks,
    /// The peer's address.
    pub peer: Endpoint,
    /// The server's own address.
    pub local: Endpoint,
}

/// The protocol spoken on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// Plain commands and replies.
    Plain,
    /// TLS, with commands and replies inside.
    Tls,
}

impl Stream {
    /// Chooses whether small packets leave at once. Only TCP has the choice.
    ///
    /// # Errors
    /// The system's.
    pub fn set_nodelay(&self, leave_at_once: bool) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nodelay(leave_at_once),
            Stream::Tls(stream) => stream.socket().set_nodelay(leave_at_once),
            _ => Ok(()),
        }
    }

    /// Reads. A read that does not fill the buffer has emptied the socket, unless [`Stream::has_more`] says
    /// otherwise.
    ///
    /// # Errors
    /// The socket's.
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8], room: &mut Ciphertext) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer, room),
            #[cfg(test)]
            Stream::Simulated(socket) => socket.read(buffer),
        }
    }

    /// Writes. The next write must begin with the bytes that were not taken.
    ///
    /// # Errors
    /// The socket's.
    #[inline]
    pub fn write(&mut self, bytes: &[u8], room: &mut Ciphertext) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes, room),
            #[cfg(test)]
            Stream::Simulated(socket) => socket.write(bytes),
        }
    }

    /// Whether there may be more to read than the socket's events report.
    #[inline]
    pub fn has_more(&self) -> bool {
        matches!(self, Stream::Tls(stream) if stream.has_more())
    }

    /// Whether there are bytes to write that are not replies.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        matches!(self, Stream::Tls(stream) if stream.has_unsent())
    }

    /// Offers the socket waiting bytes that are not replies. Returns whether it has taken all.
    ///
    /// # Errors
    /// The socket's.
    pub fn flush(&mut self) -> io::Result<bool> {
        match self {
            Stream::Tls(stream) => stream.flush(),
            _ => Ok(true),
        }
    }

    /// Tells the peer that nothing more follows, where the protocol has a way.
    pub fn close(&mut self) {
        if let Stream::Tls(stream) = self {
            stream.close();
        }
    }

    /// Makes `registry` report the socket's events as `token`, edge-triggered, in both directions.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(self.source(), token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Makes `registry` stop reporting the socket's events.
    pub fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        registry.deregister(self.source())
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Stream::Tcp(stream) => stream,
            Stream::Unix(stream) => stream,
            Stream::Tls(stream) => stream.socket_mut(),
            #[cfg(test)]
            Stream::Simulated(_) => unreachable!("a simulated queue reports its events"),
        }
    }

    /// The file descriptor, for display.
    pub fn fd(&self) -> RawFd {
        match self {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
            Stream::Tls(stream) => stream.socket().as_raw_fd(),
            #[cfg(test)]
            Stream::Simulated(_) => -1,
        }
    }
}
