//! The records of units that DEBUG LOGGED shows.

use std::sync::atomic::{AtomicBool, Ordering};

use braid_storage::{entry::db::Db, observers::record::Record};
use crossbeam_queue::SegQueue;

/// A recorded command and its database.
pub type LoggedCommand = (Db, Vec<Box<[u8]>>);

/// The most units that are kept. Later ones are not.
const UNITS_MAX: usize = 1_000_000;

/// Units and their commands, while DEBUG RECORD-LOG is on.
#[derive(Default)]
pub struct RecordLog {
    is_on: AtomicBool,
    units: SegQueue<Vec<LoggedCommand>>,
}

impl RecordLog {
    /// Whether records are kept.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Begins or ends to keep records, and forgets those so far.
    pub fn turn(&self, on: bool) {
        self.is_on.store(on, Ordering::Relaxed);
        self.take();
    }

    /// The units since the last call. Units that share a shard are in the order in which they ran.
    pub fn take(&self) -> Vec<Vec<LoggedCommand>> {
        std::iter::from_fn(|| self.units.pop()).collect()
    }

    /// Keeps a unit's record, if records are kept.
    pub fn note(&self, record: &Record) {
        if self.is_on() && self.units.len() < UNITS_MAX {
            self.units.push(commands_of(record));
        }
    }
}

fn commands_of(record: &Record) -> Vec<LoggedCommand> {
    let gone = record.gone().map(|gone| {
        let name: &[u8] = if gone.n_words() == 1 { b"DEL" } else { b"HDEL" };
        (gone.db, std::iter::once(name).chain(gone.words()).map(Box::from).collect())
    });
    let commands = record.commands().map(|command| (command.db, command.words().map(Box::from).collect()));
    gone.chain(commands).collect()
}
