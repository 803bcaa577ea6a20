//! The timing of commands, and the sizes of requests and replies.
//!
//! The slow log and the latency monitor use them.
//!
//! Reading the clock twice takes as long as a third of a GET. So commands that are short by nature are timed
//! together, with their batch or node, whose time is taken anyway. Administrative commands, and all commands
//! on heavy-work threads, are timed alone ([`is_timed_alone`]). So are scripts once they have run for a
//! while. A common time is compared with the threshold once. If it exceeds the threshold, times taken alone
//! are subtracted. The rest is attributed to the command with the most expected work.
//!
//! With a threshold below 5 ms that would blame one command for the work of many. In this case
//! [`Server::attention`] is raised, every command runs as a unit of its own, and each is timed alone.
//!
//! [`Server::attention`]: crate::shared::server::Server::attention

use std::sync::atomic::Ordering;

use crate::{
    catalog::{Flags, Words},
    client::{
        record::ClientRecord,
        session::{Queue, Session, SessionRequest, TimeAccounting},
    },
    clock::Instant,
    command::{Registered, Run, Work},
    config::Settings,
    observe::secrets::shown,
    run::command_lookup,
    shared::{server::Server, thread_state::ThreadState},
    telemetry::{
        command_log::{LogOf, Noted},
        latency_monitor::{COMMAND, FAST_COMMAND, Sample},
    },
};

/// A piece of work whose time is taken.
#[derive(Clone, Copy)]
pub struct Span {
    began: Instant,
    /// The part of the thread's time that was accounted for when this work began.
    accounted_nanos: u64,
}

/// The duration of a piece of work.
#[derive(Clone, Copy)]
pub struct Taken {
    /// The whole duration.
    pub nanos: u64,
    /// The part that no piece of it has accounted for.
    pub rest_nanos: u64,
}

impl Span {
    /// Begins.
    pub fn begin(thread: &ThreadState) -> Self {
        Self { began: Instant::now(), accounted_nanos: thread.accounted_nanos.get() }
    }

    /// Ends, and accounts for the time.
    pub fn end(self, thread: &ThreadState) -> Taken {
        let nanos = self.began.elapsed().as_nanos() as u64;
        let parts = thread.accounted_nanos.replace(self.accounted_nanos + nanos) - self.accounted_nanos;
        Taken { nanos, rest_nanos: nanos.saturating_sub(parts) }
    }
}

/// Whether a command is timed by itself where it runs.
#[inline]
pub fn is_timed_alone(command: &Registered, thread: &ThreadState) -> bool {
    match command.spec.run {
        // Its commands are timed alone, or EXEC's time stands for them.
        Run::Queue => false,
        Run::Session(_) | Run::Own(_) | Run::Everything(_) | Run::Barrier(_) if !command.has(Flags::FAST) => {
            true
        }
        _ => times_each(thread) || !thread.serves_sockets(),
    }
}

/// Whether each command is timed alone.
#[inline]
pub fn times_each(thread: &ThreadState) -> bool {
    thread.stats().thresholds.times_each.load(Ordering::Relaxed)
}

/// Whether a time exceeds the threshold of the slow log or of the latency monitor.
#[inline]
pub fn is_long(nanos: u64, thread: &ThreadState) -> bool {
    let thresholds = &thread.stats().thresholds;
    nanos >= thresholds.slow_nanos.load(Ordering::Relaxed)
        || nanos >= thresholds.latency_nanos.load(Ordering::Relaxed)
}

/// The total size of requests that may take long, whatever they ask for.
const LONG_REQUESTS_BYTES: usize = 64 * 1024;

/// Whether commands that are not timed alone may take long together.
///
/// Only then is reading the clock worthwhile.
pub fn may_be_long(mut commands: impl Iterator<Item = &'static Registered>, n_bytes: usize) -> bool {
    n_bytes >= LONG_REQUESTS_BYTES || commands.any(is_long_by_nature)
}

/// Whether the command's work may be large although the command is short.
fn is_long_by_nature(command: &Registered) -> bool {
    matches!(command.spec.work, Work::Grows { .. } | Work::Carries { .. })
}

/// A command that is timed alone.
pub struct Timer {
    span: Span,
    /// Whether an earlier command has asked for its client to be held back.
    is_resting: bool,
}

impl Timer {
    /// Begins the time of a command, if it is timed alone.
    #[inline]
    pub fn begin(command: &Registered, session: &Session, thread: &ThreadState) -> Option<Self> {
        is_timed_alone(command, thread)
            .then(|| Self { span: Span::begin(thread), is_resting: rests(session).is_some() })
    }

    /// Returns the duration of the command that has just run, in nanoseconds.
    pub fn end(self, session: &Session, thread: &ThreadState) -> u64 {
        let nanos = self.span.end(thread).nanos;
        // DEBUG SLEEP does not occupy its thread: its time is still to come.
        let rest_millis = rests(session).filter(|_| !self.is_resting).unwrap_or(0);
        nanos.saturating_add(rest_millis.saturating_mul(1_000_000))
    }
}

/// The time for which a command holds its client back as its own work.
fn rests(session: &Session) -> Option<u64> {
    match session.request.get() {
        Some(SessionRequest::Sleep { millis, counts: TimeAccounting::AsWork }) => Some(millis),
        _ => None,
    }
}

/// Attributes the rest of a time to one of the commands that were timed together.
///
/// Of those that are not timed alone, it is the one with the most expected work. A single command that has
/// accounted for part of the time itself is logged already.
#[cold]
pub fn note_longest<'w>(
    mut commands: impl Iterator<Item = (&'static Registered, Words<'w>)>,
    client: &ClientRecord,
    taken: Taken,
    thread: &ThreadState,
) {
    let Taken { nanos, rest_nanos } = taken;
    let (first, second) = (commands.next(), commands.next());
    if rest_nanos < nanos && second.is_none() {
        return;
    }
    let commands = first.into_iter().chain(second).chain(commands);
    let together = commands.filter(|(command, _)| !is_timed_alone(command, thread) && !command.runs_queue());
    let longest = together.max_by_key(|(command, words)| (is_long_by_nature(command), words.request_bytes()));
    if let Some((command, words)) = longest {
        note_long(command, client, words, rest_nanos, thread);
    }
}

/// Records the duration of a transaction.
///
/// Only its commands that are timed alone have accounted for their time.
pub fn end_of_queue(
    span: Span,
    command: &Registered,
    queue: &Queue,
    session: &Session,
    thread: &ThreadState,
) {
    let taken = span.end(thread);
    if taken.rest_nanos >= thread.stats().thresholds.together_nanos.load(Ordering::Relaxed) {
        note_longest(command_lookup::queued(queue), &session.record, taken, thread);
    }
    let nanos = taken.nanos;
    if is_long(nanos, thread) {
        // As in Redis, the latency monitor counts it as a command, and the slow log does not.
        note_latency(command, nanos, thread);
    }
}

/// Records a command that took long.
#[cold]
pub fn note_long(
    command: &Registered,
    client: &ClientRecord,
    words: Words<'_>,
    nanos: u64,
    thread: &ThreadState,
) {
    note(Long::new(command, client, words, nanos, thread), thread);
}

/// A command that took long, recorded at once or when it is certain to count.
pub struct Long {
    event: &'static str,
    nanos: u64,
    logged: Option<Noted>,
}

impl Long {
    /// Creates the record of a command.
    pub fn new(
        command: &Registered,
        client: &ClientRecord,
        words: Words<'_>,
        nanos: u64,
        thread: &ThreadState,
    ) -> Self {
        let is_slow = nanos >= thread.stats().thresholds.slow_nanos.load(Ordering::Relaxed);
        let is_logged = is_slow && !command.has(Flags::SKIP_SLOWLOG);
        let logged = is_logged.then(|| noted(command, client, words, nanos / 1000, thread.server()));
        Self { event: event_of(command), nanos, logged }
    }
}

/// Records a command that took long.
pub fn note(long: Long, thread: &ThreadState) {
    if let Some(noted) = long.logged {
        let stats = thread.stats();
        stats.slow_commands.add(1);
        stats.slow_micros.add(noted.amount);
        stats.slow_micros_max.raise_to(noted.amount);
        add(LogOf::Slow, noted, thread);
    }
    note_event(long.event, long.nanos, thread);
}

fn note_latency(command: &Registered, nanos: u64, thread: &ThreadState) {
    note_event(event_of(command), nanos, thread);
}

fn event_of(command: &Registered) -> &'static str {
    if command.has(Flags::FAST) { FAST_COMMAND } else { COMMAND }
}

/// Returns the start of a possible event for the latency monitor, if that is on.
pub fn event_begins(thread: &ThreadState) -> Option<Instant> {
    let is_on = thread.stats().thresholds.latency_nanos.load(Ordering::Relaxed) != u64::MAX;
    is_on.then(Instant::now)
}

/// Records the duration of an event that began at a time.
pub fn event_ends(event: &'static str, began: Option<Instant>, thread: &ThreadState) {
    if let Some(began) = began {
        note_event(event, began.elapsed().as_nanos() as u64, thread);
    }
}

/// Records an event of a duration, if that exceeds the latency monitor's threshold.
pub fn note_event(event: &'static str, nanos: u64, thread: &ThreadState) {
    if nanos >= thread.stats().thresholds.latency_nanos.load(Ordering::Relaxed) {
        let server = thread.server();
        let sample = Sample { unix_seconds: unix_seconds(server), millis: nanos / 1_000_000 };
        server.latency_monitor.add(event, sample);
    }
}

/// Records a command whose request or reply is large. The reply has `reply_bytes` bytes.
#[inline]
pub fn note_sizes(
    command: &Registered,
    client: &ClientRecord,
    words: Words<'_>,
    reply_bytes: usize,
    thread: &ThreadState,
) {
    let thresholds = &thread.stats().thresholds;
    if words.most_bytes() + reply_bytes >= thresholds.either_bytes.load(Ordering::Relaxed) {
        note_large(command, client, words, reply_bytes, thread);
    }
}

#[cold]
fn note_large(
    command: &Registered,
    client: &ClientRecord,
    words: Words<'_>,
    reply_bytes: usize,
    thread: &ThreadState,
) {
    if command.has(Flags::SKIP_SLOWLOG) {
        return;
    }
    let thresholds = &thread.stats().thresholds;
    for (log, bytes, threshold) in [
        (LogOf::LargeRequests, words.request_bytes(), &thresholds.request_bytes),
        (LogOf::LargeReplies, reply_bytes, &thresholds.reply_bytes),
    ] {
        if bytes >= threshold.load(Ordering::Relaxed) {
            add(log, noted(command, client, words, bytes as u64, thread.server()), thread);
        }
    }
}

fn add(log: LogOf, noted: Noted, thread: &ThreadState) {
    let server = thread.server();
    let config = server.config.load();
    let max_len = match log {
        LogOf::Slow => config.slowlog_max_len,
        LogOf::LargeRequests => config.commandlog_large_request_max_len,
        LogOf::LargeReplies => config.commandlog_large_reply_max_len,
    };
    server.command_log.add(log, thread.index, max_len, noted);
}

fn noted(
    command: &Registered,
    client: &ClientRecord,
    words: Words<'_>,
    amount: u64,
    server: &Server,
) -> Noted {
    let n_names = 1 + usize::from(command.parent.is_some());
    Noted {
        unix_seconds: unix_seconds(server),
        amount,
        words: cut(words.len(), shown(command.spec.flags, n_names, words), &server.config.load()),
        peer: client.peer.to_string(),
        name: client.said().name,
    }
}

fn unix_seconds(server: &Server) -> u64 {
    server.clock.unix_micros() / 1_000_000
}

/// Returns the part of a command that is logged.
fn cut<'a>(n_words: usize, words: impl Iterator<Item = &'a [u8]>, config: &Settings) -> Vec<Box<[u8]>> {
    let (n_words_max, word_bytes_max) = (config.slowlog_entry_max_argc, config.slowlog_entry_max_string_len);
    let n_kept = if n_words > n_words_max { n_words_max - 1 } else { n_words };
    let cut_word = |word: &[u8]| match word.len().checked_sub(word_bytes_max) {
        Some(n_more @ 1..) => {
            let more = format!("... ({n_more} more bytes)");
            [&word[..word_bytes_max], more.as_bytes()].concat().into()
        }
        _ => word.into(),
    };
    let mut kept: Vec<Box<[u8]>> = words.take(n_kept).map(cut_word).collect();
    if n_kept < n_words {
        kept.push(format!("... ({} more arguments)", n_words - n_kept).into_bytes().into());
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(words: &[&str]) -> Vec<String> {
        let limits =
            Settings { slowlog_entry_max_argc: 32, slowlog_entry_max_string_len: 128, ..Settings::default() };
        let cut = cut(words.len(), words.iter().map(|word| word.as_bytes()), &limits);
        cut.iter().map(|word| String::from_utf8(word.to_vec()).unwrap()).collect()
    }

    #[test]
    fn long_commands_are_cut_as_in_redis() {
        assert_eq!(logged(&["a"; 32]).len(), 32);
        let cut = logged(&["a"; 34]);
        assert_eq!((cut.len(), cut[31].as_str()), (32, "... (3 more arguments)"));
        assert_eq!(logged(&[&"x".repeat(128)])[0].len(), 128);
        assert_eq!(logged(&[&"x".repeat(130)])[0], format!("{}... (2 more bytes)", "x".repeat(128)));
    }
}
