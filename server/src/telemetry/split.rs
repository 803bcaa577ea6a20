//! `latency-split`: the division of a command's time into phases.
//!
//! The time is from when its thread could read it until its reply has left.
//!
//! The input of one read is followed as one, and counted for the family of its first command. It is followed
//! in one place at a time: its connection, or the node in which it is under way.

use crate::{catalog::Group, clock::Instant};

/// A phase of a command's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its thread has other work. Other sockets come first, before it runs and when its node is back.
    Queue,
    /// It waits for shards that others hold, or for a heavy-work thread.
    Shards,
    /// It runs.
    Run,
    /// Its reply waits until the socket has taken all of it.
    Socket,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Phase; 4] = [Phase::Queue, Phase::Shards, Phase::Run, Phase::Socket];

    /// The name of the phase in INFO.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Queue => "queue",
            Phase::Shards => "shards",
            Phase::Run => "run",
            Phase::Socket => "socket",
        }
    }
}

/// The times of followed input.
#[derive(Debug)]
pub struct Split {
    /// The family of the first command, once it is known.
    pub family: Option<Group>,
    nanos: [u64; 4],
    since: Instant,
}

impl Split {
    /// Begins at a moment, with no time recorded.
    pub fn begin(since: Instant) -> Self {
        Self { family: None, nanos: [0; 4], since }
    }

    /// Attributes the time since the last moment to a phase.
    pub fn pass(&mut self, phase: Phase, now: Instant) {
        self.nanos[phase as usize] += now.saturating_duration_since(self.since).as_nanos() as u64;
        self.since = now;
    }

    /// Adds the times of a node that has returned.
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
