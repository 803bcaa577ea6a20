//! Serves the nodes that wait for keys, when the unit that wrote them ends.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use braid_storage::{
    entry::{db::Db, key::Key, time::Millis},
    keyspace::shard::Shard,
    observers::ledger::Change,
    sync::{
        coordinator::{Held, Job as _},
        executor::Node,
    },
    table::hash::ShardId,
};

use smallvec::SmallVec;

use crate::{
    client::{
        node::{Job, Parked, Task},
        waits::Cause,
    },
    observe,
    run::logging,
    shared::thread_state::ThreadState,
};

/// A key that waiting nodes must check.
pub struct ReadyKey {
    /// The key's database.
    pub db: Db,
    /// The key itself.
    pub bytes: Box<[u8]>,
}

/// The work of serving one node, in looked-at elements.
const SERVED_WORK: usize = 32;

/// Serves nodes that wait for written keys, in the order of the writes.
///
/// The shards are held, and the unit that wrote has ended. Returns how much work that was, in looked-at
/// elements.
pub fn serve_ready(held: &mut Held<'_, Job>, thread: &mut ThreadState, now: Millis) -> usize {
    let mut ready = VecDeque::new();
    tell_observers(held, thread, &mut ready);
    let mut work = 0;
    while let Some(key) = ready.pop_front() {
        work += serve_key(&key, held, thread, now, &mut ready);
    }
    work
}

/// Serves the line of a key, as far as the key has elements for it. Returns how much work that was.
fn serve_key(
    ready: &ReadyKey,
    held: &mut Held<'_, Job>,
    thread: &mut ThreadState,
    now: Millis,
    further: &mut VecDeque<ReadyKey>,
) -> usize {
    let routed = thread.server().keyspace.router().route(&ready.bytes);
    let key = Key { bytes: &ready.bytes, routed };
    let shard = held.shard(routed.shard);
    shard.begin(ready.db, now);
    let mut turns = shard.waiters_turns(&key);
    let mut work = turns.n_looks;
    loop {
        let shard = held.shard(routed.shard);
        shard.begin(ready.db, now);
        let Some(waiter) = shard.next_waiter(&key, &mut turns) else { return work };
        let parked = Arc::downcast::<Parked>(waiter).expect("only parked commands wait");
        if let Some(node) = parked.claim() {
            let written = shards_written_by(&parked, held, thread);
            work += SERVED_WORK;
            serve(node, parked, held, thread, now);
            logging::log_unit(thread);
            let mut changes = thread.changes.take();
            written.iter().for_each(|&id| held.shard(id).take_changes(&mut changes));
            put_in_order(&mut changes);
            tell_of(changes, thread, further);
        }
    }
}

/// The held shards that a served command may change.
///
/// With these a holder that serves many nodes need not check all shards for each.
fn shards_written_by(parked: &Parked, held: &Held<'_, Job>, thread: &ThreadState) -> SmallVec<[ShardId; 6]> {
    match parked.wait.cause {
        Cause::Nothing => {
            let router = thread.server().keyspace.router();
            let destination = parked.wait.destination.iter().map(|key| router.route(key).shard);
            let all = parked.keys().map(|key| key.routed.shard).chain(destination);
            all.filter(|&shard| held.has(shard)).collect()
        }
        // Any command may have waited for a pin.
        Cause::Pinned => held.ids().into(),
    }
}

/// Runs a command that has waited. If it needs a shard that is not held, it runs again later.
fn serve(
    mut node: Box<Node<Job>>,
    parked: Arc<Parked>,
    held: &mut Held<'_, Job>,
    thread: &mut ThreadState,
    now: Millis,
) {
    let left_all = parked.leave_lines(held, now);
    if parked.can_run_with(&node.job, held, thread.server()) {
        node.job.now = now;
        let before = thread.ticket.get();
        let (ticket, ()) = thread.ticket_of(|thread| {
            let ran = catch_unwind(AssertUnwindSafe(|| node.job.run_served(held, thread)));
            if let Err(panic) = ran {
                Job::caught(held, &panic);
                node.job.panicked(thread);
            }
            logging::log_unit(thread);
        });
        // The element that served it must not be lost when its reply is not.
        node.job.ticket = node.job.ticket.max(ticket).max(before);
    }
    node.job.task = if left_all { Task::Withdraw(parked) } else { Task::MustWithdraw(parked) };
    thread.send_home(node.job.session.origin.thread, node);
}

/// Takes the changes of the held shards and tells the observers in their order.
///
/// Adds the keys that waiting nodes must check.
pub fn tell_observers(held: &mut Held<'_, Job>, thread: &ThreadState, ready: &mut VecDeque<ReadyKey>) {
    logging::log_unit(thread);
    let changes = take_in_order(held, thread, Shard::take_changes);
    tell_of(changes, thread, ready);
}

/// Tells the observers of changes, and adds the keys that waiting nodes must check.
fn tell_of(mut changes: Vec<Change>, thread: &ThreadState, ready: &mut VecDeque<ReadyKey>) {
    if !changes.is_empty() {
        let n_told = changes.partition_point(|change| change.is_told);
        observe::tell(&changes[n_told..], thread);
        let waking = changes.drain(..).filter(|change| change.wakes);
        ready.extend(waking.filter_map(|change| Some(ReadyKey { db: change.db, bytes: change.key? })));
    }
    thread.keep_room(changes);
}

/// Tells the observers of a continuing unit's changes so far. Waiting nodes are served when it ends.
///
/// Observers of this moment are told, before the unit's later messages.
#[cold]
pub fn tell_observers_so_far(held: &mut Held<'_, Job>, thread: &ThreadState) {
    let changes = take_in_order(held, thread, Shard::take_untold);
    observe::tell(&changes, thread);
    thread.keep_room(changes);
}

/// Takes changes from the held shards, in the order in which they were made. Changes already told to
/// observers come first.
fn take_in_order(
    held: &mut Held<'_, Job>,
    thread: &ThreadState,
    take: impl Fn(&mut Shard, &mut Vec<Change>),
) -> Vec<Change> {
    let mut changes = thread.changes.take();
    held.each_shard(|shard| take(shard, &mut changes));
    if held.ids().len() > 1 {
        put_in_order(&mut changes);
    }
    changes
}

fn put_in_order(changes: &mut [Change]) {
    changes.sort_unstable_by_key(|change| (!change.is_told, change.order));
}
