//! The log: whether changes are recorded, and what becomes of the records.

use std::sync::atomic::{AtomicBool, Ordering};

use braid_storage::{Db, record::Record};
use crossbeam_queue::SegQueue;

/// A command as it was logged, with its database.
pub type LoggedCommand = (Db, Vec<Box<[u8]>>);

/// The log of what units have done.
///
/// It is turned on and off with all shards held, so a unit that holds any finds it on from its beginning to its end, or off.
#[derive(Default)]
pub struct Journal {
    is_on: AtomicBool,
    /// Whether records are kept for DEBUG LOGGED.
    keeps: AtomicBool,
    /// The units that were kept.
    kept: SegQueue<Vec<LoggedCommand>>,
}

/// How many units are kept at the most: what comes after them is not.
const KEPT_MAX: usize = 1_000_000;

impl Journal {
    /// Whether changes are recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Keeps records for DEBUG LOGGED, or does no more. All shards are held, and have begun or ceased to record.
    pub fn keep(&self, keeps: bool) {
        self.keeps.store(keeps, Ordering::Relaxed);
        self.is_on.store(keeps, Ordering::Relaxed);
        self.take_kept();
    }

    /// The units that were kept since the last call. Those that share a shard are in the order in which they ran.
    pub fn take_kept(&self) -> Vec<Vec<LoggedCommand>> {
        std::iter::from_fn(|| self.kept.pop()).collect()
    }

    /// Keeps a unit's record, if it is to.
    pub fn note(&self, record: &Record) {
        if self.keeps.load(Ordering::Relaxed) && self.kept.len() < KEPT_MAX {
            self.kept.push(commands_of(record));
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
