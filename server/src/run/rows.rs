//! From the numbers that sessions and nodes keep to the rows of the command table.

use crate::{
    catalog::{CommandId, Flags, Words},
    client::{
        node::Job,
        session::{Queue, Session},
    },
    command::{Registered, TABLE},
};

/// The row of a number.
#[inline]
pub fn row(id: CommandId) -> &'static Registered {
    TABLE.get(id)
}

/// The commands that wait for EXEC, in order.
pub fn queued(queue: &Queue) -> impl Iterator<Item = (&'static Registered, Words<'_>)> {
    queue.iter().map(|(id, words)| (row(id), words))
}

/// The command of a job that runs next.
pub fn next(job: &Job) -> (&'static Registered, Words<'_>) {
    let (id, words) = job.next_command();
    (row(id), words)
}

/// Whether a command may change keys, or how they are stored, now or by what EXEC would run.
pub fn may_write(session: &Session, command: &Registered) -> bool {
    let writes = |command: &Registered| command.has(Flags::WRITE) || command.has(Flags::MAY_REPLICATE);
    holds_or_queues(session, command, writes)
}

/// Whether a command may touch keys in another database than the selected one, now or by what EXEC would run.
pub fn may_leave_database(session: &Session, command: &Registered) -> bool {
    holds_or_queues(session, command, |command| command.has(Flags::OTHER_DATABASES))
}

/// Whether something holds for a command or, if it runs the queue, for a command of that. EXEC that is to refuse runs none.
fn holds_or_queues(session: &Session, command: &Registered, holds: impl Fn(&Registered) -> bool) -> bool {
    let runs = command.runs_queue() && session.exec_refusal.is_none();
    let queue = session.queue.as_ref().filter(|_| runs);
    holds(command) || queue.is_some_and(|queue| queued(queue).any(|(queued, _)| holds(queued)))
}
