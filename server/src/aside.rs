//! Work on large values, done without holding their shards.
//!
//! A handler that finds out that it has much to do says so before it begins ([`expect_work`](braid_storage::ValueRef::expect_work)), and nothing of it has
//! happened then. A heavy-work thread takes the holds once more, only to [pin](Shard::pin) the values (they are shared, not
//! copied) and lets go. It runs the handler on a shard *aside*, which has nothing but the shared values in it, takes the holds a
//! second time to store what the handler has written there, and unpins.
//!
//! **Why this is still one step.** While a key is pinned, every command that writes it waits ([`wait_for_unpinning`]), so what
//! was read is what is there when the result is stored. FLUSHALL, SWAPDB and the passing of a deadline do not wait; so before a
//! result is stored it is looked whether all that was read is still there, and if not, the work is done again. A command that only
//! reads takes its effect when it pins.
//!
//! **Why writers do not starve.** Who has to wait for a pinned key stands in its line, and whoever would pin the key after
//! that stands behind.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use braid_storage::{
    Shard,
    coordinator::{Held, Job as _, Route, Weight},
    entry::EntryBox,
    executor::Node,
    shard::WatchedKey,
    time::Millis,
};

use crate::{
    blocking::{self, Awaited, Wait, WaitedKey},
    command::{Call, Flags, KeyUse, Registered, Words},
    dispatch::{self, Needs},
    io::ThreadState,
    job::{Job, Task},
    server::Server,
    session::Session,
    tracking, warning,
};

/// A command's values, and the shard where it works on them.
pub struct Aside {
    shard: Shard,
    keys: Vec<PinnedKey>,
}

struct PinnedKey {
    key: WatchedKey,
    used: KeyUse,
    /// What was there when it was pinned.
    shared: Option<EntryBox>,
}

impl PinnedKey {
    fn is_read(&self) -> bool {
        !matches!(self.used, KeyUse::Overwrite | KeyUse::Insert | KeyUse::Delete)
    }

    fn is_written(&self) -> bool {
        !matches!(self.used, KeyUse::Read | KeyUse::Look)
    }
}

/// Sends the next command of a job aside: gives the route on which its values are pinned.
pub fn send(job: &mut Job, server: &Server) -> Route {
    job.task = Task::Pin;
    Route::new(next_needs(job, server).shards(server)).with_weight(Weight::Heavy)
}

fn next_needs(job: &Job, server: &Server) -> Needs {
    let mut needs = Needs::default();
    let (command, words) = job.next_command();
    needs.add(server, &job.session, command, words);
    needs
}

/// Whether all that a job's next command needs is held.
pub fn has_needs(job: &Job, held: &Held<'_, Job>, server: &Server) -> bool {
    next_needs(job, server).shards(server).iter().all(|&shard| held.has(shard))
}

/// Pins the values of a job's next command, or has it wait for its turn.
pub fn pin(job: &mut Job, held: &mut Held<'_, Job>, thread: &mut ThreadState) {
    let server = thread.server();
    let time = dispatch::time_under_hold(held, job.now, &job.session);
    let (command, words) = job.next_command();
    let db = job.session.db;
    let mut keys: Vec<PinnedKey> = Vec::new();
    command.spec.keys.positions(
        words.len(),
        |at| words.get(at),
        |at, used| {
            let bytes = words.get(at);
            let key = WatchedKey { db, bytes: bytes.into(), routed: server.keyspace.router().route(bytes) };
            keys.push(PinnedKey { key, used, shared: None });
        },
    );
    let contested = |pinned: &PinnedKey, held: &mut Held<'_, Job>| {
        let shard = held.shard(pinned.key.routed.shard);
        shard.is_pinned(&pinned.key.bytes)
            && (pinned.is_written() || blocking::is_awaited_unpinned(shard, &pinned.key.bytes))
    };
    if let Some(pinned) = keys.iter().find(|pinned| contested(pinned, held)) {
        let key = pinned.key.clone();
        job.task = Task::Commands;
        return wait_for_unpinning(job, key, held, time);
    }
    let mut aside = Aside { shard: server.keyspace.shard_aside(), keys };
    for pinned in &mut aside.keys {
        let shard = held.shard(pinned.key.routed.shard);
        shard.begin(db, time);
        pinned.shared = shard.pin(&pinned.key.key());
        aside.shard.begin(db, time);
        if let Some(shared) = &pinned.shared {
            aside.shard.put(&pinned.key.key(), shared.as_ref().share());
        }
    }
    if job.session.tracking.as_ref().is_some_and(|tracking| tracking.remembers())
        && command.has(Flags::READONLY)
    {
        // Until they are unpinned the values stay what they are, so this may come before they are read.
        let reader = tracking::reader(job.session.origin.thread, job.session.record.id);
        tracking::remember(server, held, reader, command, words);
    }
    job.now = time;
    job.task = Task::Aside(Box::new(aside));
}

/// Does the work of a job that has pinned its values; then it is to be submitted, to unpin them.
pub fn work(node: &mut Node<Job>, thread: &mut ThreadState) {
    let server = thread.server();
    let Task::Aside(mut aside) = std::mem::take(&mut node.job.task) else {
        unreachable!("only work aside is put aside")
    };
    aside.shard.start();
    aside.shard.lift_limit();
    let job = &mut node.job;
    job.n_replied_bytes = job.reply.len();
    let ran = catch_unwind(AssertUnwindSafe(|| run(job, &mut aside.shard, thread)));
    Job::leave(&mut aside.shard, thread);
    if ran.is_err() {
        // Nobody else sees that shard, so it may be as torn as it likes.
        warning!("A command panicked while it worked aside; its client gets an error");
        node.job.panicked(thread);
        node.job.n_run -= 1;
        aside.keys.iter_mut().for_each(|pinned| pinned.used = KeyUse::Look);
    }
    let shards = aside.keys.iter().map(|pinned| pinned.key.routed.shard).collect();
    node.job.task = Task::Unpin(aside);
    node.job.now = server.clock.now();
    node.set_route(Route::new(shards));
}

fn run(job: &mut Job, shard: &mut Shard, thread: &ThreadState) {
    let Job { session, bytes, ranges, commands, n_run, reply, now, .. } = job;
    let (delegated, words) = Job::command_at(bytes, ranges, commands, *n_run);
    let mut call = Call { aside: Some(shard), ..Call::of_session(thread.server(), session, *now, thread) };
    let began = Instant::now();
    dispatch::answer(&mut call, delegated.command, words, delegated.routed, reply, thread);
    thread.stats().took(delegated.command, began.elapsed().as_nanos() as u64, 1);
}

/// Stores what a command has written aside, unpins its values, and serves who waits for either.
pub fn unpin(job: &mut Job, held: &mut Held<'_, Job>, thread: &mut ThreadState) {
    let Task::Unpin(mut aside) = std::mem::take(&mut job.task) else {
        unreachable!("the task has just been seen")
    };
    job.task = Task::Commands;
    let time = dispatch::time_under_hold(held, job.now, &job.session);
    tracking::set_author(held, job.session.record.id);
    let stores = aside.shard.is_torn() && aside.keys.iter().any(PinnedKey::is_written);
    let is_valid = !stores || aside.keys.iter().all(|pinned| pinned.is_unchanged(held, time));
    for pinned in &mut aside.keys {
        let key = pinned.key.key();
        let shard = held.shard(key.routed.shard);
        shard.begin(pinned.key.db, time);
        aside.shard.begin(pinned.key.db, time);
        let result = aside.shard.take(&key);
        match (result, stores && is_valid && pinned.is_written()) {
            (Some(result), true) => shard.put_as_used(&key, result),
            (Some(result), false) => braid_storage::release(result),
            (None, true) => {
                shard.remove(&key);
            }
            (None, false) => {}
        }
        // A value that is shared no longer is changed where it is.
        if let Some(shared) = pinned.shared.take() {
            braid_storage::release(shared);
        }
        shard.unpin(&pinned.key.bytes);
    }
    if is_valid {
        job.n_run = if job.session.is_over_limit { job.commands.len() } else { job.n_run + 1 };
    } else {
        job.reply.truncate(job.n_replied_bytes);
    }
    thread.spent.push(aside);
    blocking::serve_ready(held, thread, time);
}

impl PinnedKey {
    /// Whether what was read is still there.
    fn is_unchanged(&self, held: &mut Held<'_, Job>, now: Millis) -> bool {
        let shard = held.shard(self.key.routed.shard);
        shard.begin(self.key.db, now);
        let entry = shard.peek(&self.key.key());
        !self.is_read()
            || match (&self.shared, entry) {
                (None, None) => true,
                (Some(shared), Some(entry)) => shared.as_ref().has_value_of(entry),
                _ => false,
            }
    }
}

/// A key that a command is about to write although it is pinned.
pub fn pinned_key(
    server: &Server,
    session: &Session,
    command: &Registered,
    words: Words<'_>,
    held: &mut Held<'_, Job>,
) -> Option<WatchedKey> {
    let written = blocking::written_keys(session, command, words).into_iter().map(|bytes| {
        let routed = server.keyspace.router().route(&bytes);
        WatchedKey { db: session.db, bytes, routed }
    });
    written.into_iter().find(|key| held.shard(key.routed.shard).is_pinned(&key.bytes))
}

/// Has a job wait until nobody pins a key any more.
pub fn wait_for_unpinning(job: &mut Job, key: WatchedKey, held: &mut Held<'_, Job>, now: Millis) {
    let awaited = Awaited::Test(Box::new(|shard, key| !shard.is_pinned(key.bytes)));
    blocking::park(job, Wait::for_unpinning(WaitedKey { key, awaited }), held, now);
}
