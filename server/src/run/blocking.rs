//! Commands that wait for keys: BLPOP and its kin.
//!
//! A blocking command that finds nothing says what it waits for
//! ([`Call::wait_for`](crate::command::Call::wait_for)). Its node is [`Parked`]: it stands, as the same
//! reference, in the line of every key it waits for. One thread *claims* it, and that one alone answers the
//! client. It may be claimed by
//! - the holder of a shard, after a command there wrote a key with a line
//!   ([`serve_ready`](super::serve::serve_ready)): the blocked command runs right then, under the hold, so
//!   nobody sees the element before the client that waited for it;
//! - the client's own thread, when the time is up or the client leaves or is killed; and CLIENT UNBLOCK.
//!
//! A command that must not write a [pinned](super::offload) key yet waits in the key's line in the same way.
//!
//! Before a node is claimed the code checks whether the key holds what the command waits for, so that a claim
//! is never given back while a holder elsewhere has passed it over. The places in the lines of keys whose
//! shards are not held are given up afterwards, before the client hears anything ([`Task::Withdraw`]).
//!
//! # Commands that write elsewhere
//!
//! BLMOVE writes to a second key, whose shard the command that serves it may not hold, and may not take
//! either, if it is lower than one that is held. So a command that writes a key with a line finds out *before
//! it runs* which further shards serving needs ([`further_shards`]), and is run again, as a transaction over
//! those, too. The look-out is bounded: a command serves hardly more nodes than it has words. One that does
//! serves the others through their own nodes, which take the shards they lack.
//!
//! # Order
//!
//! Keys are served in the order in which they were written, and the clients of a key first come first served,
//! once the command or the transaction that wrote them is over.

use std::collections::{HashSet, VecDeque};

use braid_protocol::reply::Reply;
use braid_storage::{
    Awaits, Key, ShardId, WatchedKey,
    coordinator::{Held, Route},
    executor::Node,
};
use smallvec::SmallVec;

use crate::{
    catalog::{Flags, Words},
    client::{
        node::{Job, Parked, Task},
        session::Session,
        waits::{Cause, GaveUp, Wait, WaitedKey},
    },
    command::{self, Registered},
    run::{command_lookup, route::Needs},
    shared::server::Server,
    telemetry::stats::ThreadStats,
};

/// Has a job wait, with the shards of the keys it waits for held.
pub fn park(job: &mut Job, mut wait: Wait, held: &mut Held<'_, Job>) {
    job.replace_last_words(std::mem::take(&mut wait.last_words));
    job.task = Task::Wait(Parked::enter(job.session.origin, wait, held, job.now));
}

/// Of how many nodes the destinations are looked up ahead, at the least.
const LOOK_AHEAD: usize = 64;

/// The route over the shards that are held and those that serving needs, should the command write a key that
/// is waited for; `None` if all are held.
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
    // What is moved on to a destination may serve those that wait there.
    while let Some(key) = destinations.pop_front() {
        look(&key, &mut destinations);
    }
    if missing.is_empty() {
        return None;
    }
    missing.extend_from_slice(held.ids());
    Some(Route::new(missing))
}

/// Calls `each` with the keys of a command that may write, a script's being those that it declares; for EXEC
/// with those of all queued commands.
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

/// Whether a command is about to write a large value that a snapshot must be given before.
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
        // A command that is served may not hold its other keys.
        if !must && held.has(routed.shard) {
            must = held.shard(routed.shard).is_large_unsaved(session.db, &Key { bytes, routed });
        }
    });
    must
}

/// A key that a command is about to write although it is pinned.
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
        // A command that is served may not hold its other keys; it does not write them either.
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

/// The wait until nobody pins a key any more.
pub fn wait_for_unpinning(key: WatchedKey) -> Wait {
    Wait::for_unpinning(WaitedKey { key, awaits: Awaits::Unpinning })
}

/// How a wait ends without having been served, and whether it can be.
impl Parked {
    /// Ends the wait of a node that was claimed; its places in the lines are still to be given up.
    pub fn give_up(&self, node: &mut Node<Job>, why: GaveUp, stats: &ThreadStats) {
        let command = command_lookup::next(&node.job).0;
        let counts = &stats.commands[command.id.index()];
        let Job { session, commands, n_run, reply, .. } = &mut node.job;
        let start = reply.len();
        match why {
            GaveUp::TimedOut if self.is_visible() => {
                counts.calls.add(1);
                // Whatever it would have answered, as in Redis.
                Reply::new(reply, session.resp).null_array();
            }
            // A command that only waits until it may write has no answer for a time-out.
            GaveUp::TimedOut | GaveUp::Unblocked => {
                let error = command::UNBLOCKED;
                if command.runs_queue() {
                    // It is run again, to end the transaction and to let go of what is watched.
                    session.exec_refusal = Some(error);
                    return;
                }
                counts.calls.add(1);
                counts.failed.add(1);
                stats.error(&error.wire_text());
                error.write(&mut Reply::new(reply, session.resp));
            }
            GaveUp::Left => {
                session.closing = true;
                *n_run = commands.len();
                return;
            }
        }
        session.drop_unwanted(start, reply);
        *n_run += 1;
        node.job.count();
    }

    /// Whether the command can run with what is held. A blocking command passes over keys that are not.
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
