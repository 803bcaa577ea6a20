//! Commands that wait for keys: BLPOP and similar commands.
//!
//! A blocking command that finds nothing names the keys that it waits for
//! ([`Call::wait_for`](crate::command::Call::wait_for)). Its node is [`Parked`]: it stands, as the same
//! reference, in the line of every such key. One thread *claims* it, and only that thread answers the client.
//! It may be claimed by
//! - the holder of a shard, after a command there wrote a key with a line
//!   ([`serve_ready`](super::serve::serve_ready)). The blocked command runs immediately, under the hold, so
//!   no other client sees the element before the waiting client does;
//! - the client's own thread, when the time is up or the client leaves or is killed; and CLIENT UNBLOCK.
//!
//! A command that must not write a [pinned](super::offload) key yet waits in the key's line in the same way.
//!
//! Before a node is claimed the code checks whether the key holds an element for the command. So no claim is
//! ever returned after a holder elsewhere has passed the node over. The places in the lines of keys whose
//! shards are not held are given up afterwards, before the client receives anything ([`Task::Withdraw`]).
//!
//! # Commands that write elsewhere
//!
//! BLMOVE writes to a second key. The serving command may not hold its shard, and may not take it either if
//! it is lower than a held one. So a command that writes a key with a line determines *before it runs* which
//! further shards serving needs ([`further_shards`]). If there are any, it runs again as a transaction that
//! includes them. The look-ahead is bounded: a command serves hardly more nodes than it has words. A command
//! that serves more does so through their own nodes, which take the missing shards.
//!
//! # Order
//!
//! Keys are served in the order of their writes, and the clients of a key first come first served. Serving
//! begins when the command or the transaction that wrote them is over.

use std::collections::{HashSet, VecDeque};

use braid_protocol::reply::Reply;
use braid_storage::{
    entry::key::{Key, WatchedKey},
    observers::waiters::Awaits,
    sync::{
        coordinator::{Held, Route},
        executor::Node,
    },
    table::hash::ShardId,
};
use smallvec::SmallVec;

use crate::{
    catalog::{Flags, Words},
    client::{
        node::{Job, Parked, Task},
        session::Session,
        waits::{Cause, Wait, WaitEnd, WaitedKey},
    },
    command::{self, Registered},
    run::{command_lookup, route::Needs},
    shared::server::Server,
    telemetry::stats::ThreadStats,
};

/// Makes a job wait, with the shards of its keys held.
pub fn park(job: &mut Job, mut wait: Wait, held: &mut Held<'_, Job>) {
    job.replace_last_words(std::mem::take(&mut wait.last_words));
    job.task = Task::Wait(Parked::enter(job.session.origin, wait, held, job.now));
}

/// The minimum of nodes whose destinations are looked up ahead.
const LOOK_AHEAD: usize = 64;

/// Returns the route over the held shards and those that serving needs.
///
/// It is for a command that writes a key with a line.
///
/// Returns `None` if all are held.
pub fn further_shards(
    server: &Server,
    session: &Session,
    command: &Registered,
    words: Words<'_>,
    held: &mut Held<'_, Job>,
) -> Option<Route> {
    let mut missing: SmallVec<[ShardId; 6]> = SmallVec::new();
    let mut destinations: VecDeque<Box<[u8]>> = VecDeque::new();
    let mut known: HashSet<Box<[u8]>> = HashSet::new();
    let n_words = words.len() + session.queue.as_ref().map_or(0, |queue| queue.n_words());
    let mut n_left = n_words.max(LOOK_AHEAD);
    let mut look = |key: &[u8], destinations: &mut VecDeque<Box<[u8]>>| {
        let routed = server.keyspace.router().route(key);
        if !held.has(routed.shard) {
            missing.push(routed.shard);
            return;
        }
        let reaching = held.shard(routed.shard).reaching_waiters(key).take(n_left);
        let named = reaching.filter_map(|waiter| waiter.downcast_ref::<Parked>()?.wait.destination.as_ref());
        for destination in named {
            n_left -= 1;
            if known.insert(destination.clone()) {
                destinations.push_back(destination.clone());
            }
        }
    };
    each_written_key(session, command, words, |key| look(key, &mut destinations));
    // An element that is moved to a destination may serve the nodes that wait there.
    while let Some(key) = destinations.pop_front() {
        look(&key, &mut destinations);
    }
    if missing.is_empty() {
        return None;
    }
    missing.extend_from_slice(held.ids());
    Some(Route::new(missing))
}

/// Calls `each` with the keys of a command that may write.
///
/// A script's keys are those that it declares. For EXEC they are the keys of all queued commands.
pub fn each_written_key(
    session: &Session,
    command: &Registered,
    words: Words<'_>,
    mut each: impl FnMut(&[u8]),
) {
    let mut of = |command: &Registered, words: Words<'_>| {
        if command.has(Flags::WRITE) || command.runs_script() {
            let get = |at| words.get(at);
            command.spec.keys.positions(words.len(), get, |at, _| each(words.get(at)));
        }
    };
    of(command, words);
    if let Some(queue) = session.queue.as_ref().filter(|_| command.runs_queue()) {
        command_lookup::queued(queue).for_each(|(queued, words)| of(queued, words));
    }
}

/// Whether a command will write a large value that a snapshot must receive first.
#[cold]
pub fn must_save_much(
    server: &Server,
    session: &Session,
    command: &Registered,
    words: Words<'_>,
    held: &mut Held<'_, Job>,
) -> bool {
    let mut must = false;
    each_written_key(session, command, words, |bytes| {
        let routed = server.keyspace.router().route(bytes);
        // A served command may not hold its other keys.
        if !must && held.has(routed.shard) {
            must = held.shard(routed.shard).is_large_unsaved(session.db, &Key { bytes, routed });
        }
    });
    must
}

/// Returns a pinned key that a command will write.
pub fn pinned_key(
    server: &Server,
    session: &Session,
    command: &Registered,
    words: Words<'_>,
    held: &mut Held<'_, Job>,
) -> Option<WatchedKey> {
    let in_others = command_lookup::may_leave_database(session, command, words);
    let mut found = None;
    each_written_key(session, command, words, |bytes| {
        if found.is_some() {
            return;
        }
        let routed = server.keyspace.router().route(bytes);
        // A served command may not hold its other keys. It does not write them either.
        if !held.has(routed.shard) {
            return;
        }
        let shard = held.shard(routed.shard);
        let pinned_in = if in_others {
            shard.pinned_in(bytes)
        } else {
            shard.is_pinned(session.db, bytes).then_some(session.db)
        };
        found = pinned_in.map(|db| WatchedKey { db, bytes: bytes.into(), routed });
    });
    found
}

/// Returns the wait until a key is no longer pinned.
pub fn wait_for_unpinning(key: WatchedKey) -> Wait {
    Wait::for_unpinning(WaitedKey { key, awaits: Awaits::Unpinning })
}

/// How a wait ends unserved, and whether it can be served.
impl Parked {
    /// Ends the wait of a claimed node. Its places in the lines remain to be given up.
    pub fn give_up(&self, node: &mut Node<Job>, why: WaitEnd, stats: &ThreadStats) {
        let command = command_lookup::next(&node.job).0;
        let Job { session, commands, n_run, reply, .. } = &mut node.job;
        let start = reply.len();
        match why {
            WaitEnd::TimedOut if self.is_visible() => {
                stats.ran(command.id, false);
                // This is the reply whatever the command would have answered, as in Redis.
                Reply::new(reply, session.resp).null_array();
            }
            // A command that only waits for permission to write has no reply for a timeout.
            WaitEnd::TimedOut | WaitEnd::Unblocked | WaitEnd::RoleChanged => {
                let error = match why {
                    WaitEnd::RoleChanged => command::ROLE_CHANGED,
                    _ => command::UNBLOCKED,
                };
                if command.runs_queue() {
                    // It runs again, to end the transaction and to release its watched keys.
                    session.exec_refusal = Some(error);
                    return;
                }
                stats.ran(command.id, true);
                stats.error(&error.wire_text());
                error.write(&mut Reply::new(reply, session.resp));
                if why == WaitEnd::RoleChanged {
                    // As in Redis, its client must look for another server.
                    session.leave();
                    *n_run = commands.len() - 1;
                }
            }
            // It keeps its deadline, and waits again if it finds nothing.
            WaitEnd::LooksAgain => return,
            WaitEnd::Left => {
                session.closing = true;
                *n_run = commands.len();
                return;
            }
        }
        session.drop_unwanted(start, reply);
        *n_run += 1;
        node.job.count();
    }

    /// Whether the command can run with the held shards. A blocking command passes over keys that are not
    /// held.
    pub fn can_run_with(&self, job: &Job, held: &mut Held<'_, Job>, server: &Server) -> bool {
        match self.wait.cause {
            Cause::Nothing => {
                let destination = self.wait.destination.as_ref();
                destination.is_none_or(|key| held.has(server.keyspace.router().route(key).shard))
            }
            Cause::Pinned => {
                let (command, words) = command_lookup::next(job);
                Needs::of_next(job, server).shards(server).iter().all(|&shard| held.has(shard))
                    && pinned_key(server, &job.session, command, words, held).is_none()
                    && further_shards(server, &job.session, command, words, held).is_none()
            }
        }
    }
}
