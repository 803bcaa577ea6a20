//! From the numbers that sessions and nodes keep to the rows of the command table.

use braid_protocol::number::parse_i64;
use braid_storage::entry::db::Db;

use crate::{
    catalog::{CommandId, Flags, Words},
    client::{
        node::Job,
        session::{Queue, Session},
    },
    command::{Registered, TABLE, Work},
    run::script_prediction,
    shared::server::Server,
};

/// The row with a number.
#[inline]
pub fn row(id: CommandId) -> &'static Registered {
    TABLE.get(id)
}

/// Queues a command for EXEC.
#[inline]
pub fn enqueue(queue: &mut Queue, command: &Registered, words: Words<'_>) {
    queue.push(command.id, words);
    queue.selects = selected(command, words).or(queue.selects);
}

/// The database that a command selects.
#[inline]
pub fn selected(command: &Registered, words: Words<'_>) -> Option<Db> {
    if !matches!(command.spec.work, Work::Selects) {
        return None;
    }
    parse_i64(words.get(1)).and_then(|db| u32::try_from(db).ok()).map(Db)
}

/// The commands that are queued for EXEC, in order.
pub fn queued(queue: &Queue) -> impl Iterator<Item = (&'static Registered, Words<'_>)> {
    queue.iter().map(|(id, words)| (row(id), words))
}

/// The command of a job that runs next.
pub fn next(job: &Job) -> (&'static Registered, Words<'_>) {
    let (id, words) = job.next_command();
    (row(id), words)
}

/// Whether a command may change keys or their encoding, itself or through EXEC's queue.
pub fn may_write(server: &Server, session: &Session, command: &Registered, words: Words<'_>) -> bool {
    let may_write = |flags: Flags| flags.has(Flags::WRITE) || flags.has(Flags::MAY_REPLICATE);
    holds_or_queues(session, command, words, |command, words| {
        may_write(script_prediction::flags(server, command, words))
    })
}

/// Whether a command writes, itself or through the queue that EXEC would run.
///
/// If a script does not declare its flags, each of its commands is checked when it runs.
pub fn writes(server: &Server, session: &Session, command: &Registered, words: Words<'_>) -> bool {
    holds_or_queues(session, command, words, |command, words| {
        script_prediction::flags(server, command, words).has(Flags::WRITE)
    })
}

/// Whether a command must not run on data that may be stale, itself or through EXEC's queue.
pub fn needs_fresh_data(server: &Server, session: &Session, command: &Registered, words: Words<'_>) -> bool {
    holds_or_queues(session, command, words, |command, words| {
        !script_prediction::flags(server, command, words).has(Flags::STALE)
    })
}

/// Whether a command may use keys of other databases, itself or through EXEC's queue.
pub fn may_leave_database(session: &Session, command: &Registered, words: Words<'_>) -> bool {
    holds_or_queues(session, command, words, |command, _| command.has(Flags::OTHER_DATABASES))
}

/// Whether a predicate holds for a command, or for a queued command if it runs the queue.
///
/// An EXEC that will refuse runs none.
fn holds_or_queues(
    session: &Session,
    command: &Registered,
    words: Words<'_>,
    holds: impl Fn(&Registered, Words<'_>) -> bool,
) -> bool {
    let runs = command.runs_queue() && session.exec_refusal.is_none();
    let queue = session.queue.as_ref().filter(|_| runs);
    holds(command, words)
        || queue.is_some_and(|queue| queued(queue).any(|(queued, words)| holds(queued, words)))
}
