//! The one end of a command, which tells its observers whichever way it ran.
//!
//! An observer of every command is a line of [`tell`] and a file of its own. An observer that must see each
//! command under its hold raises [`Server::attention`](crate::shared::server::Server::attention) meanwhile.
//! Otherwise the commands of a batch run together on the thread's short path, which times and measures them
//! as one. A script's commands come here when it is certain that the script is not given up.

use std::sync::Arc;

use crate::{
    catalog::{Flags, Words},
    client::session::Session,
    command::Registered,
    observe::monitor::{self, Sender},
    run::{
        sampling::{self, Sampled},
        timing::{self, Long, Timer},
    },
    shared::thread_state::ThreadState,
};

/// A command that has run, as its observers see it.
pub struct FinishedCommand<'a> {
    /// The command.
    pub command: &'static Registered,
    /// The words of its request.
    pub words: Words<'a>,
    /// The session of its client.
    pub session: &'a Session,
    /// The length of its reply, in bytes.
    pub reply_bytes: usize,
    /// Whether monitoring clients have been [shown](show) it already.
    pub was_shown: bool,
}

/// The durations of a command alone, in nanoseconds, as far as they were measured.
#[derive(Clone, Copy, Default)]
pub struct Times {
    /// For the slow log and the latency monitor.
    pub alone: Option<u64>,
    /// For HOTKEYS.
    pub sampled: Option<u64>,
}

/// The measurements of a running command.
pub struct Measured {
    timer: Option<Timer>,
    sampled: Option<Sampled>,
}

impl Measured {
    /// Begins, directly before the command.
    #[inline]
    pub fn begin(command: &Registered, session: &Session, thread: &ThreadState) -> Self {
        Self { timer: Timer::begin(command, session, thread), sampled: Sampled::begin(thread) }
    }

    /// Begins for an offloaded command. Its observers are told when its result is stored, except for HOTKEYS.
    pub fn begin_offloaded(thread: &ThreadState) -> Self {
        Self { timer: None, sampled: Sampled::begin(thread) }
    }

    /// Ends the measurements, and the command.
    #[inline]
    pub fn finish(self, ran: &FinishedCommand<'_>, thread: &ThreadState) {
        let times = Times {
            alone: self.timer.map(|timer| timer.end(ran.session, thread)),
            sampled: self.sampled.map(Sampled::end),
        };
        tell(ran, times, thread);
    }

    /// Ends the measurements of an offloaded command.
    pub fn end_offloaded(
        self,
        command: &Registered,
        words: Words<'_>,
        reply_bytes: usize,
        thread: &ThreadState,
    ) {
        if let Some(sampled) = self.sampled {
            sampling::note(command, words, reply_bytes, sampled.end(), thread);
        }
    }
}

/// Tells all observers of a finished command, under its hold if it has one.
#[inline]
pub fn tell(ran: &FinishedCommand<'_>, times: Times, thread: &ThreadState) {
    let &FinishedCommand { command, words, session, reply_bytes, was_shown } = ran;
    if !was_shown {
        show(command.spec.flags, words, session, thread);
    }
    if let Some(nanos) = times.alone.filter(|&nanos| timing::is_long(nanos, thread)) {
        timing::note_long(command, &session.record, words, nanos, thread);
    }
    timing::note_sizes(command, &session.record, words, reply_bytes, thread);
    if let Some(nanos) = times.sampled {
        sampling::note(command, words, reply_bytes, nanos, thread);
    }
}

/// Shows a command to monitoring clients before its end.
///
/// The command takes effect now, begins to wait, or could not begin.
#[inline]
pub fn show(flags: Flags, words: Words<'_>, session: &Session, thread: &ThreadState) {
    monitor::observe(session, flags, words, thread);
}

/// The data for observers of a script or of one of its commands.
///
/// It is told once the script is certain not to be given up.
pub struct Kept {
    line: Option<Arc<[u8]>>,
    long: Option<Long>,
}

impl Kept {
    /// The data about a script that begins.
    #[inline]
    pub fn of_beginning(words: Words<'_>, session: &Session, thread: &ThreadState) -> Option<Self> {
        // Its row says that it is not shown, since that would come after its commands.
        Self::new(monitor::line_for_later(session, Sender::Client, Flags::NONE, words, thread.server()), None)
    }

    /// The data about a script that ends after a duration.
    pub fn of_end(
        command: &Registered,
        words: Words<'_>,
        session: &Session,
        nanos: u64,
        thread: &ThreadState,
    ) -> Option<Self> {
        Self::new(None, Self::long(command, words, session, nanos, thread))
    }

    /// The data about a command of a script. `nanos` is its duration, if that was measured.
    #[inline]
    pub fn of_part(
        command: &Registered,
        words: Words<'_>,
        session: &Session,
        nanos: Option<u64>,
        thread: &ThreadState,
    ) -> Option<Self> {
        let (flags, server) = (command.spec.flags, thread.server());
        let long = nanos.and_then(|nanos| Self::long(command, words, session, nanos, thread));
        Self::new(monitor::line_for_later(session, Sender::Script, flags, words, server), long)
    }

    fn new(line: Option<Arc<[u8]>>, long: Option<Long>) -> Option<Self> {
        (line.is_some() || long.is_some()).then_some(Self { line, long })
    }

    #[inline]
    fn long(
        command: &Registered,
        words: Words<'_>,
        session: &Session,
        nanos: u64,
        thread: &ThreadState,
    ) -> Option<Long> {
        timing::is_long(nanos, thread).then(|| Long::new(command, &session.record, words, nanos, thread))
    }

    /// The memory that it uses apart from itself, in bytes.
    pub fn n_bytes(&self) -> usize {
        self.line.as_ref().map_or(0, |line| line.len())
    }

    /// Tells the observers.
    pub fn tell(self, session: &Session, thread: &ThreadState) {
        if let Some(line) = self.line {
            monitor::send(&line, session, thread);
        }
        if let Some(long) = self.long {
            timing::note(long, thread);
        }
    }
}
