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
}

/// A connection that was accepted and has no thread yet.
pub struct Accepted {
    /// The socket.
    pub stream: Stream,
    /// What is spoken on it.
    pub speaks: Speaks,
    /// The other end.
    pub peer: Endpoint,
    /// Our end.
    pub local: Endpoint,
}

/// What is spoken on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// Commands and replies as they are.
    Plain,
    /// TLS, and those within.
    Tls,
}

impl Stream {
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
        }
    }

    /// Writes. What is not taken must be what the next write begins with.
    ///
    /// # Errors
    /// The socket's.
    #[inline]
    pub fn write(&mut self, bytes: &[u8], room: &mut Ciphertext) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes, room),
        }
    }

    /// Whether there may be more to read than the socket's events tell of.
    #[inline]
    pub fn has_more(&self) -> bool {
        matches!(self, Stream::Tls(stream) if stream.has_more())
    }

    /// Whether there is something to write that is no reply.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        matches!(self, Stream::Tls(stream) if stream.has_unsent())
    }

    /// Offers the socket what is no reply and waits for it; says whether it has taken it.
    ///
    /// # Errors
    /// The socket's.
    pub fn flush(&mut self) -> io::Result<bool> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => Ok(true),
            Stream::Tls(stream) => stream.flush(),
        }
    }

    /// Says, where there is a way to, that nothing more comes.
    pub fn close(&mut self) {
        if let Stream::Tls(stream) = self {
            stream.close();
        }
    }

    /// Has `registry` report the socket's events as `token`, edge-triggered, both ways.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(self.source(), token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Has `registry` report nothing of the socket any more.
    pub fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        registry.deregister(self.source())
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Stream::Tcp(stream) => stream,
            Stream::Unix(stream) => stream,
            Stream::Tls(stream) => stream.socket_mut(),
        }
    }

    /// The file descriptor, for display.
    pub fn fd(&self) -> RawFd {
        match self {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
            Stream::Tls(stream) => stream.socket().as_raw_fd(),
        }
    }
}
