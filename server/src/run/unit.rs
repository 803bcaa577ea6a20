//! The unit: what takes effect at once, with one beginning and one end.
//!
//! ```text
//! begin   gates that must be asked under the hold: killed? paused? then the time: the latest of the sample's and the held shards'
//!         where a held shard is observed: may the keys be written (pins), and can all be served that the writes may wake?
//!   body  one handler, or EXEC's commands one after the other, each through the same `step`
//! end     what the unit changed goes to the observers, then waiting nodes are served: each a unit of its own under the same holds
//! ```
//!
//! A unit that cannot run says why ([`Ended`]) and has changed nothing. In place that means that the command goes on in its node;
//! a node waits, takes further shards or is offloaded.
//!
//! Nobody observes most shards. Then `begin` and `end` are one test each of a flag on the shard's hot line, and commands on one
//! shard that run in place have these tests once for all commands of a batch that go there (`run_group`).

use std::{collections::VecDeque, sync::atomic::Ordering};

use braid_storage::{
    Routed,
    coordinator::{Held, Route},
    time::Millis,
};

use crate::{
    command::{Budget, Call, Look, Method, Registered, Words, Work},
    io::ThreadState,
    monitor, observe,
    run::{
        blocking::{self, ReadyKey, Wait, Waiting},
        node::Job,
        offload, route, step,
    },
    server::Server,
    session::Session,
    tracking,
};

/// A command that is to run as a unit, or as most of one.
pub struct Unit<'a> {
    /// Which.
    pub command: &'static Registered,
    /// Its words.
    pub words: Words<'a>,
    /// Where its first key lives, if that is known.
    pub first: Option<Routed>,
    /// Where all its keys live, in order, if that is known; else empty.
    pub routed: &'a [Routed],
    /// Whether what those look-ups touch was fetched just now.
    pub is_fetched: bool,
    /// The time of the read, which the unit's time does not precede.
    pub sampled: Millis,
    /// Monitoring clients have been shown the command already.
    pub was_shown: bool,
    /// How much work this thread still does of what the client has sent at once.
    pub budget: &'a Budget,
}

/// What became of a unit. In all cases but the first nothing has changed.
pub enum Ended {
    /// It ran, and its reply is written.
    Ran,
    /// Its client is killed: nothing more of it runs.
    Killed,
    /// CLIENT PAUSE holds it back.
    Paused,
    /// It waits for keys, or until a key may be written.
    Waits(Box<Wait>),
    /// It needs more shards than are held.
    Needs(Route),
    /// It is too much work for this thread, or for a hold.
    TooLong(Method),
}

/// Runs a command as a unit, with the shards it needs held, and serves whom it wakes.
pub fn run(
    unit: &Unit<'_>,
    session: &mut Session,
    held: &mut Held<'_, Job>,
    out: &mut Vec<u8>,
    thread: &mut ThreadState,
) -> Ended {
    let now = match begin(unit, session, held, thread.server()) {
        Ok(now) => now,
        Err(ended) => return ended,
    };
    if is_observed(held)
        && session.may_write(unit.command)
        && let Some(route) =
            blocking::further_shards(thread.server(), session, unit.command, unit.words, held)
    {
        return Ended::Needs(route);
    }
    let ended = body(unit, session, held, now, out, thread);
    // Whatever became of it: what has expired under its eyes is a change.
    end(held, thread, now);
    thread.charge(session);
    ended
}

/// Like [`run`], for a command that had waited and is served now, with the shards held that it needs for that: those of its other
/// keys may not be. The caller tells the observers what it changed, and serves in turn whom that wakes.
pub fn run_served(
    unit: &Unit<'_>,
    session: &mut Session,
    held: &mut Held<'_, Job>,
    out: &mut Vec<u8>,
    thread: &mut ThreadState,
) -> Ended {
    let now = match begin(unit, session, held, thread.server()) {
        Ok(now) => now,
        Err(ended) => return ended,
    };
    body(unit, session, held, now, out, thread)
}

/// Begins a unit: asks what must be asked under the hold, and gives the unit's time.
fn begin(
    unit: &Unit<'_>,
    session: &Session,
    held: &mut Held<'_, Job>,
    server: &Server,
) -> Result<Millis, Ended> {
    let Unit { command, words, .. } = *unit;
    gate(server, session, command)?;
    let now = start(held, unit.sampled, session);
    if is_observed(held) {
        tracking::set_author(held, session.record.id);
        if session.may_write(command)
            && let Some(pinned) = offload::pinned_key(server, session, command, words, held)
        {
            return Err(Ended::Waits(Box::new(offload::wait_for_unpinning(pinned))));
        }
    }
    Ok(now)
}

/// The gates that must be asked under the hold: whoever kills a client or pauses commands takes all shards for a moment before
/// that is answered, so what runs after the answer sees it here.
///
/// # Errors
/// If the command must not run now.
pub fn gate(server: &Server, session: &Session, command: &Registered) -> Result<(), Ended> {
    if server.attention.load(Ordering::Relaxed) != 0 {
        if session.record.is_killed() {
            return Err(Ended::Killed);
        }
        if server.holds_back(command, session) {
            return Err(Ended::Paused);
        }
    }
    Ok(())
}

/// Starts a unit on the shards it holds, and gives its time: no shard's time ever goes back.
///
/// Storing it back is what `Shard::begin` does for each shard that is touched.
pub fn start(held: &mut Held<'_, Job>, sampled: Millis, session: &Session) -> Millis {
    let mut time = sampled;
    for index in 0..held.ids().len() {
        let id = held.ids()[index];
        let shard = held.shard(id);
        time = time.max(shard.start());
        if session.no_touch {
            shard.leave_untouched();
        }
    }
    time
}

fn body(
    unit: &Unit<'_>,
    session: &mut Session,
    held: &mut Held<'_, Job>,
    now: Millis,
    out: &mut Vec<u8>,
    thread: &mut ThreadState,
) -> Ended {
    let Unit { command, words, first, routed, is_fetched, was_shown, budget, .. } = *unit;
    let mut look = Look::at_held(held, session.db, now);
    let router = thread.server().keyspace.router();
    if !budget.admits(&mut look, router, session.queue.as_ref(), command, words, first) {
        match command.spec.work {
            // Not all keys of one that roams could be pinned.
            Work::Grows { method: Method::Pinned, .. } if !route::roams(command, words) => {
                return Ended::TooLong(Method::Pinned);
            }
            _ if thread.serves_sockets() => return Ended::TooLong(Method::Held),
            _ => {}
        }
    }
    let mut call = Call {
        held: Some(held),
        routed,
        is_fetched,
        waiting: Waiting::May,
        ..Call::of_session(thread.server(), session, now, thread)
    };
    step::answer(&mut call, command, words, first, out, thread);
    if call.is_too_much {
        return Ended::TooLong(Method::Pinned);
    }
    if let Waiting::Asked(wait) = call.waiting {
        return Ended::Waits(wait);
    }
    if !was_shown {
        monitor::observe(session, command, words, thread);
    }
    Ended::Ran
}

/// Ends a unit, the shards still being held: tells the observers what it changed, and serves whom that wakes.
pub fn end(held: &mut Held<'_, Job>, thread: &mut ThreadState, now: Millis) {
    if is_observed(held) {
        blocking::serve_ready(held, thread, now);
    }
}

/// Takes what has changed in the held shards, tells the observers in the order of the changes, and adds the keys that waiting nodes
/// have to look at.
pub fn tell_observers(held: &mut Held<'_, Job>, thread: &ThreadState, ready: &mut VecDeque<ReadyKey>) {
    let mut changes = Vec::new();
    for index in 0..held.ids().len() {
        let id = held.ids()[index];
        let shard = held.shard(id);
        if shard.has_changes() {
            changes.append(&mut shard.take_changes());
        }
    }
    if changes.is_empty() {
        return;
    }
    changes.sort_unstable_by_key(|change| change.order);
    observe::tell(&changes, thread);
    let waking = changes.into_iter().filter(|change| change.wakes);
    ready.extend(waking.filter_map(|change| Some(ReadyKey { db: change.db, bytes: change.key? })));
}

/// Whether anybody waits for keys in the shards that are held, has pinned some, or hears of changes.
fn is_observed(held: &mut Held<'_, Job>) -> bool {
    (0..held.ids().len()).any(|index| {
        let id = held.ids()[index];
        held.shard(id).has_observers()
    })
}
