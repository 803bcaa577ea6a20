//! `-I`: connections that are opened and then stay silent.

use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use socket2::Socket;

use crate::address::Address;
use crate::error::{BenchError, Doing};

/// The time between two displays of their number.
const TURN: Duration = Duration::from_millis(250);

/// Opens the connections and holds them until the server closes one.
///
/// It reports their number now and then. Nothing is sent, not even the password.
///
/// # Errors
/// When a connection cannot be opened, and when one is closed; it does not return otherwise.
pub(super) fn hold(
    address: &Address,
    n_connections: usize,
    tell: &mut dyn FnMut(usize) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let mut poll = Poll::new().doing("create a poll")?;
    let mut connections = Vec::new();
    for index in 0..n_connections {
        let socket = address.connect(None).doing(format!("connect to {address}"))?;
        socket.set_nonblocking(true).doing("set O_NONBLOCK")?;
        poll.registry()
            .register(&mut SourceFd(&socket.as_raw_fd()), Token(index), Interest::READABLE)
            .doing("register a connection")?;
        connections.push(socket);
    }
    let mut events = Events::with_capacity(1024);
    loop {
        tell(connections.len())?;
        match poll.poll(&mut events, Some(TURN)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            polled => polled.doing("poll")?,
        }
        for event in &events {
            drain(&mut connections[event.token().0]).doing("hold a connection")?;
        }
    }
}

/// Discards unrequested output of a server.
fn drain(socket: &mut Socket) -> io::Result<()> {
    let mut buffer = [0; 1024];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "Server closed the connection"));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn connections_are_held_until_the_server_closes_one() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback can be listened on");
        let address = listener.local_addr().expect("it listens").into();
        let mut n_told = Vec::new();
        let (told, is_told) = std::sync::mpsc::channel();
        let serving = thread::spawn(move || {
            let mut held: Vec<_> =
                (0..3).map(|_| listener.accept().expect("three connections are opened").0).collect();
            is_told.recv().expect("their number is told once all are open");
            held[0].write_all(b"-ERR go away\r\n").expect("it is open");
            drop(held.pop());
            held
        });
        let error = hold(&address, 3, &mut |n_open| {
            n_told.push(n_open);
            let _ = told.send(());
            Ok(())
        });
        let error = error.expect_err("one was closed").to_string();
        assert!(error.contains("Server closed the connection"), "{error}");
        assert!(n_told.iter().all(|&n_open| n_open == 3) && !n_told.is_empty(), "{n_told:?}");
        assert_eq!(serving.join().expect("the server does not panic").len(), 2);
    }
}
