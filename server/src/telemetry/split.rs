//! Where the time of a command goes, from when its thread could have read it until its reply has left:
//! `latency-split`.
//!
//! What is read at once is followed as one, and put down to the family of its first command. It is followed
//! in one place at a time: its connection, or the node in which it is under way.

use std::time::Instant;

use crate::catalog::Group;

/// What time goes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its thread has other work: sockets that come before it, before it runs and when its node is back.
    Queue,
    /// It waits for shards that others hold, or for a heavy-work thread.
    Shards,
    /// It runs.
    Run,
    /// Its reply waits until the socket has taken all of it.
    Socket,
}

impl Phase {
    /// All of them, in order.
    pub const ALL: [Phase; 4] = [Phase::Queue, Phase::Shards, Phase::Run, Phase::Socket];

    /// As INFO calls it.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Queue => "queue",
            Phase::Shards => "shards",
            Phase::Run => "run",
            Phase::Socket => "socket",
        }
    }
}

/// What is followed.
#[derive(Debug)]
pub struct Split {
    /// The family of the first command, once that is known.
    pub family: Option<Group>,
    nanos: [u64; 4],
    since: Instant,
}

impl Split {
    /// Nothing has happened since a moment.
    pub fn begin(since: Instant) -> Self {
        Self { family: None, nanos: [0; 4], since }
    }

    /// Puts down the time since the last moment.
    pub fn pass(&mut self, phase: Phase, now: Instant) {
        self.nanos[phase as usize] += now.saturating_duration_since(self.since).as_nanos() as u64;
        self.since = now;
    }

    /// Adds what a node was followed for that is back now.
    pub fn take_back(&mut self, mut part: Split, now: Instant) {
        part.pass(Phase::Queue, now);
        self.nanos.iter_mut().zip(part.nanos).for_each(|(nanos, more)| *nanos += more);
        self.since = now;
    }

    /// The time of each phase, in nanoseconds.
    pub fn nanos(&self) -> [u64; 4] {
        self.nanos
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_is_put_down_once() {
        let start = Instant::now();
        let at = |nanos| start + Duration::from_nanos(nanos);
        let mut split = Split::begin(start);
        split.pass(Phase::Queue, at(5));
        split.pass(Phase::Run, at(7));
        let mut part = Split::begin(at(6));
        part.pass(Phase::Shards, at(20));
        part.pass(Phase::Run, at(21));
        split.take_back(part, at(30));
        split.pass(Phase::Socket, at(100));
        assert_eq!(split.nanos(), [5 + 9, 14, 2 + 1, 70]);
    }
}
