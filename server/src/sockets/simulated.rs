//! Sockets and an event queue that a test has in its hands.
//!
//! A socket has two ends: the server's, in a [`Stream`], and the client's. Events are edge-triggered, as
//! those of the system: an event is reported once after something has arrived, or after a full socket has
//! room again. The queue chooses by its seed which of the due events it reports first, so reading and writing
//! interleave in many ways.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use mio::{Events, Poll, Token};

use super::{
    poller::{Ready, WAKER},
    stream::Stream,
};
use crate::random::random_below;

/// The state of a connection between its two ends.
#[derive(Debug)]
struct Pipe {
    to_server: VecDeque<u8>,
    to_client: VecDeque<u8>,
    /// The bytes that may be under way to the client. More are refused, as by a full socket.
    capacity: usize,
    /// Whether the client has sent all that it will send.
    has_ended: bool,
    /// Whether the client has gone without a word, or has closed its socket with replies in it.
    is_reset: bool,
    /// Whether the client has closed its socket. It resets the connection if anything more arrives.
    is_abandoned: bool,
    /// Whether the server has closed its end.
    is_closed: bool,
    /// Whether the server's last write found the socket full.
    wants_room: bool,
    /// Events that have not been reported.
    is_readable: bool,
    is_writable: bool,
    is_read_closed: bool,
}

impl Pipe {
    fn has_events(&self) -> bool {
        self.is_readable || self.is_writable || self.is_read_closed
    }

    fn reset(&mut self) {
        self.is_reset = true;
        self.is_readable = true;
        self.is_writable = true;
        self.is_read_closed = true;
    }
}

/// The server's end.
#[derive(Debug)]
pub struct SimulatedSocket(Arc<Mutex<Pipe>>);

/// The client's end.
#[derive(Debug)]
pub struct ClientEnd(Arc<Mutex<Pipe>>);

fn lock(pipe: &Mutex<Pipe>) -> MutexGuard<'_, Pipe> {
    pipe.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Creates a connection. `capacity` bytes of replies may be under way.
pub fn pair(capacity: usize) -> (SimulatedSocket, ClientEnd) {
    let pipe = Arc::new(Mutex::new(Pipe {
        to_server: VecDeque::new(),
        to_client: VecDeque::new(),
        capacity,
        has_ended: false,
        is_reset: false,
        is_abandoned: false,
        is_closed: false,
        wants_room: false,
        is_readable: false,
        is_writable: false,
        is_read_closed: false,
    }));
    (SimulatedSocket(Arc::clone(&pipe)), ClientEnd(pipe))
}

impl SimulatedSocket {
    /// Reads all that has arrived, as far as it fits.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut pipe = lock(&self.0);
        if pipe.is_reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let n = pipe.to_server.len().min(buffer.len());
        if n == 0 {
            return if pipe.has_ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        for (to, from) in buffer.iter_mut().zip(pipe.to_server.drain(..n)) {
            *to = from;
        }
        Ok(n)
    }

    /// Writes as much as there is room for.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut pipe = lock(&self.0);
        pipe.is_reset |= pipe.is_abandoned;
        if pipe.is_reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let n = bytes.len().min(pipe.capacity.saturating_sub(pipe.to_client.len()));
        pipe.wants_room |= n < bytes.len();
        if n == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        pipe.to_client.extend(&bytes[..n]);
        Ok(n)
    }
}

impl Drop for SimulatedSocket {
    fn drop(&mut self) {
        lock(&self.0).is_closed = true;
    }
}

impl ClientEnd {
    /// Sends bytes.
    pub fn send(&self, bytes: &[u8]) {
        let mut pipe = lock(&self.0);
        pipe.to_server.extend(bytes);
        pipe.is_readable = true;
    }

    /// Receives up to `most` bytes of what has arrived.
    pub fn receive(&self, most: usize) -> Vec<u8> {
        let mut pipe = lock(&self.0);
        let n = pipe.to_client.len().min(most);
        let bytes = pipe.to_client.drain(..n).collect();
        if n > 0 && pipe.wants_room {
            pipe.wants_room = false;
            pipe.is_writable = true;
        }
        bytes
    }

    /// Sends nothing more.
    pub fn end(&self) {
        let mut pipe = lock(&self.0);
        pipe.has_ended = true;
        pipe.is_readable = true;
        pipe.is_read_closed = true;
    }

    /// Leaves without a word: the server's next reading or writing fails.
    pub fn reset(&self) {
        lock(&self.0).reset();
    }

    /// Whether the server has closed its end and everything has been received.
    pub fn is_over(&self) -> bool {
        let pipe = lock(&self.0);
        pipe.is_closed && pipe.to_client.is_empty()
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        self.end();
        let mut pipe = lock(&self.0);
        pipe.is_abandoned = true;
        if !pipe.to_client.is_empty() {
            pipe.reset();
        }
    }
}

/// The event queue of a thread.
pub struct SimulatedPoll {
    /// The thread's own queue, which reports its wake-ups.
    wakes: Poll,
    events: Events,
    is_woken: bool,
    sockets: Mutex<Vec<(Token, Arc<Mutex<Pipe>>)>>,
    /// The events of the last wait.
    ready: Vec<Ready>,
}

impl SimulatedPoll {
    /// Creates a queue without sockets. `wakes` reports the thread's waker.
    pub fn new(wakes: Poll) -> Self {
        Self {
            wakes,
            events: Events::with_capacity(4),
            is_woken: false,
            sockets: Mutex::default(),
            ready: Vec::new(),
        }
    }

    /// Whether the system's queue would return at once.
    pub fn is_due(&mut self) -> bool {
        self.look_for_wakes();
        self.is_woken || self.sockets().iter().any(|(_, pipe)| lock(pipe).has_events())
    }

    fn sockets(&self) -> MutexGuard<'_, Vec<(Token, Arc<Mutex<Pipe>>)>> {
        self.sockets.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn look_for_wakes(&mut self) {
        self.wakes.poll(&mut self.events, Some(Duration::ZERO)).expect("the queue has only a waker");
        self.is_woken |= self.events.iter().any(|event| event.token() == WAKER);
    }

    /// Reports some of the due events, in any order. Others stay due.
    pub fn wait(&mut self) -> io::Result<()> {
        self.look_for_wakes();
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        let none = Ready { token: WAKER, is_readable: true, is_writable: false, is_read_closed: false };
        if std::mem::take(&mut self.is_woken) {
            ready.push(none);
        }
        for (token, pipe) in &*self.sockets() {
            let mut pipe = lock(pipe);
            if !pipe.has_events() || random_below(4) == 0 {
                continue;
            }
            // The system may report room and input together, or one after the other.
            let (reads, writes) = match random_below(4) {
                0 if pipe.is_readable && pipe.is_writable => (true, false),
                1 if pipe.is_readable && pipe.is_writable => (false, true),
                _ => (true, true),
            };
            ready.push(Ready {
                token: *token,
                is_readable: reads && std::mem::take(&mut pipe.is_readable),
                is_writable: writes && std::mem::take(&mut pipe.is_writable),
                is_read_closed: reads && std::mem::take(&mut pipe.is_read_closed),
            });
        }
        for at in (1..ready.len()).rev() {
            ready.swap(at, random_below(at + 1));
        }
        self.ready = ready;
        Ok(())
    }

    /// Returns the event `at` of the last wait.
    pub fn event(&self, at: usize) -> Option<Ready> {
        self.ready.get(at).copied()
    }

    /// Reports the events of a socket from now on, beginning with what is true now.
    pub fn register(&self, stream: &Stream, token: Token) -> io::Result<()> {
        let Stream::Simulated(SimulatedSocket(pipe)) = stream else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut state = lock(pipe);
        let is_over = state.has_ended || state.is_reset;
        state.is_readable = is_over || !state.to_server.is_empty();
        state.is_writable = state.to_client.len() < state.capacity;
        state.is_read_closed = is_over;
        drop(state);
        self.sockets().push((token, Arc::clone(pipe)));
        Ok(())
    }

    /// Reports the events of a socket no longer.
    pub fn deregister(&self, stream: &Stream) -> io::Result<()> {
        if let Stream::Simulated(SimulatedSocket(pipe)) = stream {
            self.sockets().retain(|(_, one)| !Arc::ptr_eq(one, pipe));
        }
        Ok(())
    }

    /// Forgets sockets that the server has closed. Closing deregisters.
    pub fn forget_closed(&self) {
        self.sockets().retain(|(_, pipe)| !lock(pipe).is_closed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_socket_reports_room_once_it_was_asked_for() {
        let (mut server, client) = pair(4);
        assert_eq!(server.write(b"abcdef").unwrap(), 4);
        assert_eq!(server.write(b"ef").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let mut poll = SimulatedPoll::new(Poll::new().unwrap());
        let stream = Stream::Simulated(server);
        poll.register(&stream, Token(3)).unwrap();
        assert!(!poll.is_due(), "nothing can be read or written");
        assert_eq!(client.receive(1), b"a");
        assert!(poll.is_due());
        while poll.event(0).is_none() {
            poll.wait().unwrap();
        }
        assert!(poll.event(0).is_some_and(|event| event.is_writable && event.token == Token(3)));
        assert_eq!(client.receive(9), b"bcd");
        assert!(!poll.is_due(), "no write has failed since");
        drop(stream);
        assert!(client.is_over());
    }

    #[test]
    fn the_end_is_read_after_the_bytes_and_a_reset_before_them() {
        let (mut server, client) = pair(4);
        client.send(b"PING");
        client.end();
        let mut buffer = [0; 9];
        assert_eq!(server.read(&mut buffer).unwrap(), 4);
        assert_eq!(server.read(&mut buffer).unwrap(), 0);
        client.send(b"PING");
        client.reset();
        assert_eq!(server.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
