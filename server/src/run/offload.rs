//! Work on large values, offloaded to heavy-work threads and done without holding the values' shards.
//!
//! A command's expected work is known before it begins ([`Work`](crate::command::Work)). If it is large, a
//! heavy-work thread takes the holds once more, only to [pin](Shard::pin) the values. They are shared, not
//! copied, and the thread releases the shards. It runs the handler on a *separate* shard that contains only
//! the shared values. Then it takes the holds a second time, stores the handler's results, and unpins.
//!
//! **Why this is still one step.** While a key is pinned, every command that writes it waits
//! ([`blocking::wait_for_unpinning`]). So the values that were read are still there when the result is
//! stored. FLUSHALL, SWAPDB and the passing of a deadline do not wait. Therefore the code checks before it
//! stores a result whether all read values are still there. If not, the work is done again. A command that
//! only reads takes effect when it pins. A store is a [unit](super::unit) and passes its gates: nothing is
//! stored after CLIENT PAUSE has answered, and nothing of a killed client.
//!
//! **Why writers do not starve.** A command that must wait for a pinned key stands in its line. A later
//! command that would pin the key stands after it.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering,
};

use braid_storage::{
    entry::{EntryBox, db::Db, key::WatchedKey, time::Millis},
    keyspace::shard::Shard,
    memory::reclaim,
    observers::{
        event::Event,
        ledger::{Change, Effect, MISSES},
        record::{self, Record},
    },
    sync::{
        coordinator::{Held, Job as _, Panic, Route, Weight},
        executor::Node,
    },
};

use crate::{
    catalog::{Denial, Flags, KeyUse, Words},
    client::node::{Job, Offload, PinnedKey, Task},
    clock::Instant,
    command::{Call, Registered, ShardAccess, TABLE},
    observe::{events, hearers, invalidations},
    run::{
        blocking, command_lookup,
        finish::{self, FinishedCommand, Times},
        gates::{self, Closed},
        route::{self, Needs},
        step, unit,
    },
    shared::{server::Server, thread_state::ThreadState},
    telemetry::split::Phase,
    warning,
};

/// Offloads the next command of a job. Returns the route on which its values are pinned.
pub fn send(job: &mut Job, server: &Server) -> Route {
    job.task = Task::Pin;
    Route::new(Needs::of_next(job, server).shards(server)).with_weight(Weight::Heavy)
}

/// Offloads a job whose next command is very long. Returns the route on which it begins.
pub fn send_long_request(job: &mut Job, server: &Server) -> Route {
    let (command, words) = command_lookup::next(job);
    if route::is_heavy(server, &job.session, command, words) {
        // The request is long because of many words, not because of one.
        let route = job.route(server);
        job.task = Task::Commands;
        return route;
    }
    let (mut n_keys, mut is_put) = (0, true);
    command.spec.keys.positions(
        words.len(),
        |at| words.get(at),
        |_, used| {
            n_keys += 1;
            is_put &= matches!(used, KeyUse::Overwrite | KeyUse::OverwriteOrSwap);
        },
    );
    if is_put && words.len() == 1 + 2 * n_keys {
        // The command consists of keys and their new values, whatever they hold now. Its work needs no hold.
        return send(job, server);
    }
    job.task = Task::Commands;
    // The route is found when the request has been prepared.
    Route::default().with_weight(Weight::Heavy)
}

/// Pins the values of a job's next command, or makes it wait for its turn.
pub fn pin(job: &mut Job, held: &mut Held<'_, Job>, thread: &mut ThreadState) {
    let server = thread.server();
    job.task = Task::Commands;
    match gate(job, server) {
        Err(Closed::Killed) => return job.n_run = job.commands.len(),
        // Its thread keeps it until the pause ends, or submits it again to be refused.
        Err(Closed::Paused | Closed::Loading | Closed::ReadOnly) => return,
        Err(Closed::Denied(denial)) => return answer_denied(job, denial, thread),
        Ok(()) => {}
    }
    let time = gates::start(held, job.now, &job.session, thread.server());
    let (command, words) = command_lookup::next(job);
    let keys = keys_to_pin(command, words, job.session.db, server);
    let contested = |pinned: &PinnedKey, held: &mut Held<'_, Job>| {
        let PinnedKey { key, .. } = pinned;
        let shard = held.shard(key.routed.shard);
        let is_awaited = || shard.is_awaited_unpinned(key.db, &key.bytes);
        shard.is_pinned(key.db, &key.bytes) && (pinned.is_written || is_awaited())
    };
    if let Some(pinned) = keys.iter().find(|pinned| contested(pinned, held)) {
        let wait = blocking::wait_for_unpinning(pinned.key.clone());
        return blocking::park(job, wait, held);
    }
    let mut offload = Offload {
        shard: server.keyspace.shard_apart(),
        keys,
        changes: Vec::new(),
        record: Record::default(),
        worked_nanos: 0,
        replies: job.session.replies,
    };
    let mut n_pinned = 0;
    let ran = catch_unwind(AssertUnwindSafe(|| {
        for pinned in &mut offload.keys {
            let shard = held.shard(pinned.key.routed.shard);
            shard.begin(pinned.key.db, time);
            n_pinned += 1;
            pinned.shared = shard.pin(&pinned.key.key());
            if server.debug.panics_while_pinning.swap(false, Ordering::Relaxed) {
                panic!("DEBUG PANIC-WHILE-PINNING");
            }
            offload.shard.begin(pinned.key.db, time);
            if let Some(shared) = &pinned.shared {
                offload.shard.put(&pinned.key.key(), shared.as_ref().share(), Event::Made);
            }
        }
    }));
    if let Err(panic) = ran {
        return end_after_panic(job, &panic, &offload.keys[..n_pinned], held, thread);
    }
    if command.has(Flags::READONLY) {
        // The command takes effect here.
        finish::show(command.spec.flags, words, &job.session, thread);
        if job.session.tracking.as_ref().is_some_and(|tracking| tracking.remembers()) {
            // The values do not change until they are unpinned, so this may precede the reads.
            invalidations::remember(server, held, &job.session, command.spec.keys, words);
        }
    }
    job.now = time;
    job.task = Task::Offloaded(Box::new(offload));
}

/// Returns the keys of a command, each once, with its uses of them.
fn keys_to_pin(command: &Registered, words: Words<'_>, db: Db, server: &Server) -> Vec<PinnedKey> {
    let mut keys: Vec<PinnedKey> = Vec::new();
    let mut at_of: HashMap<(Db, &[u8]), usize> = HashMap::new();
    // SWAPDB may exchange the destination's database and leave the source's.
    let is_all_read = command.has(Flags::OTHER_DATABASES);
    command.spec.keys.positions(
        words.len(),
        |at| words.get(at),
        |at, used| {
            let bytes = words.get(at);
            let db = command.spec.database_of.and_then(|database_of| database_of(words, at)).unwrap_or(db);
            // A key that is named twice has one result.
            let at = *at_of.entry((db, bytes)).or_insert_with(|| {
                let routed = server.keyspace.router().route(bytes);
                keys.push(PinnedKey::new(WatchedKey { db, bytes: bytes.into(), routed }));
                keys.len() - 1
            });
            keys[at].add_use(used);
            keys[at].is_read |= is_all_read;
        },
    );
    keys
}

/// Passes a job's next command through the gates.
fn gate(job: &mut Job, server: &Server) -> Result<(), Closed> {
    let Job { session, requests, commands, n_run, .. } = job;
    gates::gate(server, session, command_lookup::row(commands[*n_run].command), requests.get(*n_run))
}

/// Replies to a job's next command that its user has lost the right to it.
#[cold]
fn answer_denied(job: &mut Job, denial: Denial, thread: &ThreadState) {
    let Job { session, requests, commands, n_run, reply, .. } = job;
    let command = command_lookup::row(commands[*n_run].command);
    step::refuse_denied(command, denial, requests.get(*n_run), session, reply, thread);
    job.count();
    job.n_run += 1;
}

/// Does the work of a job that has pinned its values. The caller then submits the job, to unpin them.
pub fn work(node: &mut Node<Job>, thread: &mut ThreadState) {
    let server = thread.server();
    let Task::Offloaded(mut offload) = std::mem::take(&mut node.job.task) else {
        unreachable!("only offloaded work is kept for later")
    };
    offload.shard.start();
    offload.shard.lift_limit();
    offload.shard.hear_all(hearers::TRANSFER, true);
    offload.shard.hear_all(record::LOG, server.durability.is_recording());
    offload.shard.hear_all(MISSES, events::hears_misses(server));
    let job = &mut node.job;
    job.n_replied_bytes = job.reply.len();
    job.pass(Phase::Shards);
    let ran = catch_unwind(AssertUnwindSafe(|| run(job, &mut offload.shard, thread)));
    job.pass(Phase::Run);
    offload.worked_nanos = ran.as_ref().map_or(0, |nanos| *nanos);
    offload.shard.take_changes(&mut offload.changes);
    offload.record = record::take();
    Job::leave(&mut offload.shard, thread);
    if ran.is_err() {
        // No other thread sees that shard, so it may be torn.
        warning!("A command panicked while it was offloaded; its client gets an error");
        let n_counted = node.job.session.n_commands;
        node.job.panicked(thread);
        node.job.session.n_commands = n_counted;
        node.job.n_run -= 1;
        offload.keys.iter_mut().for_each(|pinned| pinned.is_written = false);
    }
    let shards = offload.keys.iter().map(|pinned| pinned.key.routed.shard).collect();
    node.job.task = Task::Unpin(offload);
    node.job.now = server.clock.now();
    node.set_route(Route::new(shards));
}

/// Runs the command, and returns how long that took, in nanoseconds.
fn run(job: &mut Job, shard: &mut Shard, thread: &ThreadState) -> u64 {
    let Job { session, requests, commands, n_run, was_counted, reply, now, .. } = job;
    let delegated = commands[*n_run];
    let mut call = Call {
        access: ShardAccess::Detached(shard),
        ..Call::of_session(&TABLE, thread.server(), session, *now, thread)
    };
    let began = Instant::now();
    requests.prepare_handover();
    requests.handing_over(*n_run, |words| {
        step::answer(
            &mut call,
            command_lookup::row(delegated.command),
            words,
            delegated.routed,
            reply,
            thread,
        );
    });
    if std::mem::replace(was_counted, true) {
        thread.stats().ran_in_vain(delegated.command);
    }
    thread.stats().offloaded.add(1);
    let nanos = began.elapsed().as_nanos() as u64;
    thread.stats().took(delegated.command, nanos, 1);
    nanos
}

/// Stores a command's results as a unit and unpins its values.
///
/// Then it serves the nodes that wait for either.
///
/// Returns the route over more shards, if serving needs them.
pub fn unpin(job: &mut Job, held: &mut Held<'_, Job>, thread: &mut ThreadState) -> Option<Route> {
    let Task::Unpin(mut offload) = std::mem::replace(&mut job.task, Task::Commands) else {
        unreachable!("the task has just been seen")
    };
    let mut n_unpinned = 0;
    let ended = catch_unwind(AssertUnwindSafe(|| conclude(job, &mut offload, &mut n_unpinned, held, thread)));
    match ended {
        Ok(Some(route)) => {
            job.task = Task::Unpin(offload);
            return Some(route);
        }
        Ok(None) => {
            thread.spent.push(offload);
            unit::end(held, thread, job.now);
        }
        Err(panic) => {
            // CLIENT REPLY SKIP applies to the error, too.
            job.session.replies = offload.replies;
            job.was_counted = false;
            end_after_panic(job, &panic, &offload.keys[n_unpinned..], held, thread);
            thread.spent.push(offload);
        }
    }
    None
}

/// Ends a unit that has panicked while it pinned or unpinned keys.
///
/// Unless it has begun to store a result, its client receives the error and the keys are unpinned. Otherwise
/// the commands that wait to write them would wait for ever.
fn end_after_panic(
    job: &mut Job,
    panic: &Panic,
    still_pinned: &[PinnedKey],
    held: &mut Held<'_, Job>,
    thread: &mut ThreadState,
) {
    // This precedes the serving of waiting nodes: their writes must not be taken for writes of this unit.
    Job::caught(held, panic);
    let time = gates::start(held, job.now, &job.session, thread.server());
    for PinnedKey { key, .. } in still_pinned {
        let shard = held.shard(key.routed.shard);
        shard.begin(key.db, time);
        shard.unpin(&key.bytes);
    }
    job.panicked(thread);
    unit::end(held, thread, time);
}

/// Does [`unpin`] without the end of the unit. `n_unpinned` counts the finished keys.
fn conclude(
    job: &mut Job,
    offload: &mut Offload,
    n_unpinned: &mut usize,
    held: &mut Held<'_, Job>,
    thread: &mut ThreadState,
) -> Option<Route> {
    let server = thread.server();
    let (command, words) = command_lookup::next(job);
    let writes = offload.keys.iter().any(|pinned| pinned.is_written);
    let stores = writes && offload.shard.is_torn();
    if stores && let Some(route) = blocking::further_shards(server, &job.session, command, words, held) {
        return Some(route);
    }
    let time = gates::start(held, job.now, &job.session, thread.server());
    if server.debug.panics_while_unpinning.swap(false, Ordering::Relaxed) {
        panic!("DEBUG PANIC-WHILE-UNPINNING");
    }
    invalidations::set_author(held, job.session.record.id);
    let gate = if writes { gate(job, server) } else { Ok(()) };
    let (command, words) = command_lookup::next(job);
    // The log may have been turned on since the work was done without a record.
    let is_recorded = offload.shard.is_logged() == server.durability.is_recording();
    let is_valid = gate.is_ok()
        && (!stores || is_recorded && offload.keys.iter().all(|pinned| pinned.is_unchanged(held, time)));
    if is_valid {
        tell_misses(&offload.changes, held, server);
    }
    for pinned in &mut offload.keys {
        let key = pinned.key.key();
        let shard = held.shard(key.routed.shard);
        shard.begin(pinned.key.db, time);
        offload.shard.begin(pinned.key.db, time);
        let result = offload.shard.take(&key, Event::Made);
        if stores && is_valid && pinned.is_written {
            store(shard, &pinned.key, result, &offload.changes);
        } else if let Some(result) = result {
            reclaim::release(result);
        }
        // From now on a value that is no longer shared is changed in place.
        if let Some(shared) = pinned.shared.take() {
            reclaim::release(shared);
        }
        shard.unpin(&pinned.key.bytes);
        *n_unpinned += 1;
    }
    if stores && is_valid && offload.shard.is_logged() {
        record::with(|record| record.append(std::mem::take(&mut offload.record)));
    }
    if is_valid {
        let reply_bytes = job.reply.len() - job.n_replied_bytes;
        // A command that only reads was shown when its values were pinned.
        let was_shown = command.has(Flags::READONLY);
        let ran = FinishedCommand { command, words, session: &job.session, reply_bytes, was_shown };
        finish::tell(&ran, Times { alone: Some(offload.worked_nanos), ..Times::default() }, thread);
    }
    job.now = time;
    if !is_valid {
        // It runs again, once a pause has ended. A killed client's command does not.
        job.reply.truncate(job.n_replied_bytes);
        job.session.replies = offload.replies;
    }
    if let Err(Closed::Denied(denial)) = gate {
        job.was_counted = false;
        answer_denied(job, denial, thread);
    } else if matches!(gate, Err(Closed::Killed)) || job.session.is_over_limit {
        job.n_run = job.commands.len();
    } else if is_valid {
        job.count();
        job.n_run += 1;
        job.was_counted = false;
    }
    None
}

/// Announces look-ups that have found nothing.
fn tell_misses(changes: &[Change], held: &mut Held<'_, Job>, server: &Server) {
    for change in changes.iter().filter(|change| change.event == Event::KeyMiss) {
        let bytes = change.key.as_deref().expect("it is a key that was missed");
        let shard = held.shard(server.keyspace.router().route(bytes).shard);
        shard.tell_miss(change.db, bytes);
    }
}

/// Stores the result of a command under a key, with the events of its changes.
fn store(shard: &mut Shard, watched: &WatchedKey, result: Option<EntryBox>, changes: &[Change]) {
    let key = &watched.key();
    let is_of_key = |change: &&Change| change.db == watched.db && change.key.as_deref() == Some(key.bytes);
    let of_key = changes.iter().filter(is_of_key);
    // For some commands a key is new although it replaces another.
    if of_key.clone().any(|change| change.event == Event::New) && shard.peek(key).is_some() {
        shard.announce_new(key);
    }
    // Storing the result announces that it overwrites another value.
    let is_told = |change: &&Change| {
        !matches!(change.event, Event::New | Event::KeyMiss | Event::Overwritten | Event::TypeChanged)
    };
    let done = of_key.filter(|change| change.effect != Effect::None).filter(is_told);
    let mut events = done.map(|change| change.event);
    let is_stored = match (result, events.next()) {
        (Some(result), Some(event)) => {
            shard.put_as_used(key, result, event);
            true
        }
        // The value has not changed.
        (Some(result), None) => {
            reclaim::release(result);
            false
        }
        // The key may have returned in the meantime, by SWAPDB.
        (None, event) => shard.remove(key, event.unwrap_or(Event::Del)),
    };
    if is_stored {
        events.for_each(|event| shard.follow_up(key, event));
    }
}

impl PinnedKey {
    /// Whether the value that was read is still there.
    fn is_unchanged(&self, held: &mut Held<'_, Job>, now: Millis) -> bool {
        let shard = held.shard(self.key.routed.shard);
        shard.begin(self.key.db, now);
        let entry = shard.peek(&self.key.key());
        !self.is_read
            || match (&self.shared, entry) {
                (None, None) => true,
                (Some(shared), Some(entry)) => shared.as_ref().has_value_of(entry),
                _ => false,
            }
    }
}
