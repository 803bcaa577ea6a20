//! The counts and histograms of a worker.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

/// Times are kept to three digits, and to 64 ns where they are short.
const FINEST_NANOS: u64 = 100;
/// Longer times count as ten minutes.
const LONGEST_NANOS: u64 = 600_000_000_000;
/// Error texts that are counted separately; later ones count together.
const MAX_ERROR_TEXTS: usize = 20;

/// Makes an empty histogram of nanoseconds. All that are made here can be added to each other.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(FINEST_NANOS, LONGEST_NANOS, 3)
        .expect("the bounds are in order and three digits are allowed")
}

/// The counts of one command.
#[derive(Debug, Clone)]
pub struct CommandRecord {
    /// The command's name in reports.
    pub title: String,
    /// Requests of it that were answered without an error.
    pub n_done: u64,
    /// Requests of `n_done` that were answered within the time that counts.
    pub n_done_in_time: u64,
    /// Replies that were null.
    pub n_nulls: u64,
    /// Requests answered by an error or by a reply with an error in it.
    pub n_errors: u64,
    /// Response times in nanoseconds, errors left out.
    pub response: Histogram<u64>,
}

/// The counts of a load. It covers only requests that were due in the time that counts.
#[derive(Debug, Clone)]
pub struct Record {
    /// The counts of each command.
    pub commands: Vec<CommandRecord>,
    /// Service times in nanoseconds.
    pub service: Histogram<u64>,
    /// The generator's own lateness in nanoseconds.
    pub slip: Histogram<u64>,
    /// Requests sent.
    pub n_sent: u64,
    /// All requests that were answered, including errors and those before the time that counts.
    pub n_answered: u64,
    /// Requests that were due and could not be sent before the end.
    pub n_unsent: u64,
    /// Requests that a broken connection or the end left without an answer.
    pub n_unanswered: u64,
    /// Transactions that had to be repeated because a watched key had changed.
    pub n_conflicts: u64,
    /// Connections opened again.
    pub n_reconnects: u64,
    /// Errors by their text, including those inside other replies.
    pub errors: BTreeMap<String, u64>,
    /// Bytes sent.
    pub n_bytes_sent: u64,
    /// Bytes received.
    pub n_bytes_received: u64,
}

impl Record {
    /// An empty record.
    pub fn new<'a>(titles: impl Iterator<Item = &'a str>) -> Self {
        let command = |title: &str| CommandRecord {
            title: title.to_owned(),
            n_done: 0,
            n_done_in_time: 0,
            n_nulls: 0,
            n_errors: 0,
            response: histogram(),
        };
        Self {
            commands: titles.map(command).collect(),
            service: histogram(),
            slip: histogram(),
            n_sent: 0,
            n_answered: 0,
            n_unsent: 0,
            n_unanswered: 0,
            n_conflicts: 0,
            n_reconnects: 0,
            errors: BTreeMap::new(),
            n_bytes_sent: 0,
            n_bytes_received: 0,
        }
    }

    /// Response times of all commands in nanoseconds.
    pub fn response(&self) -> Histogram<u64> {
        let mut all = histogram();
        self.commands.iter().for_each(|command| add(&mut all, &command.response));
        all
    }

    /// Requests answered without an error.
    pub fn n_done(&self) -> u64 {
        self.commands.iter().map(|command| command.n_done).sum()
    }

    /// Requests that were answered within the time that counts, errors left out.
    pub fn n_done_in_time(&self) -> u64 {
        self.commands.iter().map(|command| command.n_done_in_time).sum()
    }

    /// Requests that an error answered.
    pub fn n_errors(&self) -> u64 {
        self.commands.iter().map(|command| command.n_errors).sum()
    }

    /// Counts an error by its text.
    pub(super) fn note_error(&mut self, text: &[u8]) {
        let text = String::from_utf8_lossy(text).into_owned();
        let text = if self.errors.len() < MAX_ERROR_TEXTS || self.errors.contains_key(&text) {
            text
        } else {
            String::from("others")
        };
        *self.errors.entry(text).or_default() += 1;
    }

    /// Adds the counts of another worker for the same commands.
    pub fn merged(mut self, other: Self) -> Self {
        for (command, theirs) in self.commands.iter_mut().zip(&other.commands) {
            command.n_done += theirs.n_done;
            command.n_done_in_time += theirs.n_done_in_time;
            command.n_nulls += theirs.n_nulls;
            command.n_errors += theirs.n_errors;
            add(&mut command.response, &theirs.response);
        }
        add(&mut self.service, &other.service);
        add(&mut self.slip, &other.slip);
        self.n_sent += other.n_sent;
        self.n_answered += other.n_answered;
        self.n_unsent += other.n_unsent;
        self.n_unanswered += other.n_unanswered;
        self.n_conflicts += other.n_conflicts;
        self.n_reconnects += other.n_reconnects;
        self.n_bytes_sent += other.n_bytes_sent;
        self.n_bytes_received += other.n_bytes_received;
        for (text, n_times) in other.errors {
            *self.errors.entry(text).or_default() += n_times;
        }
        self
    }
}

fn add(to: &mut Histogram<u64>, from: &Histogram<u64>) {
    to.add(from).expect("all histograms have the same bounds");
}
