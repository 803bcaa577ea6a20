//! The source of the events of a thread's sockets.

use std::{io, time::Duration};

use mio::{Events, Poll, Token};

#[cfg(test)]
use super::simulated::SimulatedPoll;
use super::stream::Stream;

/// The token of the thread's own wake-ups.
pub const WAKER: Token = Token(usize::MAX);

/// The number of events that one wait reports at most.
const EVENTS_MAX: usize = 1024;

/// An event of a socket, or a wake-up.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The socket, as it was registered.
    pub token: Token,
    /// Whether there may be something to read.
    pub is_readable: bool,
    /// Whether the socket may take more.
    pub is_writable: bool,
    /// Whether the peer has closed its end, or both ends.
    pub is_read_closed: bool,
}

/// Reports the events of registered sockets, edge-triggered.
pub enum Poller {
    /// The system's event queue.
    System {
        /// The queue.
        poll: Poll,
        /// Space for its events.
        events: Events,
    },
    /// Simulated sockets.
    #[cfg(test)]
    Simulated(SimulatedPoll),
}

impl Poller {
    /// Reports the events of a queue of the system's.
    pub fn new(poll: Poll) -> Self {
        Poller::System { poll, events: Events::with_capacity(EVENTS_MAX) }
    }

    /// Waits for events, at most for a time.
    ///
    /// # Errors
    /// If the system's queue fails.
    #[inline(always)]
    pub fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        match self {
            Poller::System { poll, events } => match poll.poll(events, Some(timeout)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                polled => polled,
            },
            #[cfg(test)]
            Poller::Simulated(poll) => poll.wait(),
        }
    }

    /// Returns the event `at` of the last wait, or `None` after the last one.
    #[inline(always)]
    pub fn event(&self, at: usize) -> Option<Ready> {
        match self {
            Poller::System { events, .. } => events.iter().nth(at).map(|event| Ready {
                token: event.token(),
                is_readable: event.is_readable(),
                is_writable: event.is_writable(),
                is_read_closed: event.is_read_closed(),
            }),
            #[cfg(test)]
            Poller::Simulated(poll) => poll.event(at),
        }
    }

    /// Reports a socket's events as `token`, in both directions.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn register(&self, stream: &mut Stream, token: Token) -> io::Result<()> {
        match self {
            Poller::System { poll, .. } => stream.register(poll.registry(), token),
            #[cfg(test)]
            Poller::Simulated(poll) => poll.register(stream, token),
        }
    }

    /// Reports a socket's events no longer.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn deregister(&self, stream: &mut Stream) -> io::Result<()> {
        match self {
            Poller::System { poll, .. } => stream.deregister(poll.registry()),
            #[cfg(test)]
            Poller::Simulated(poll) => poll.deregister(stream),
        }
    }
}
