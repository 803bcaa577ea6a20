//! The unit: everything that takes effect at one moment, with one beginning and one end.
//!
//! ```text
//! begin   gates that must be checked under the hold: killed? paused? still allowed?
//!         the time: the latest of the sample's and the held shards'
//!         on an observed shard: may the keys be written (pins)?
//!         can all nodes be served that the writes may wake?
//!   body  one handler, or EXEC's commands one after the other, each through the same `step`
//! end     observers learn of the unit's changes
//!         then waiting nodes are served: each a unit of its own under the same holds
//! ```
//!
//! A unit that cannot run returns the reason ([`UnitEnd`]) and has changed nothing. If it ran in place, the
//! command continues in its node. A node waits, takes further shards or is offloaded.
//!
//! Most shards are not observed. There `begin` and `end` each test one flag on the shard's hot cache line.
//! Commands on one shard that run in place do these tests once for all such commands of a batch
//! (`run_alike`).

use std::{ops::Range, sync::atomic::Ordering};

use braid_storage::{
    entry::time::Millis,
    observers::record::Mark,
    sync::coordinator::{Held, Route},
    table::hash::Routed,
};

use crate::{
    catalog::{CommandError, Denial, Words},
    client::{
        node::Job,
        record::Listens,
        session::{Session, SessionRequest},
        waits::{Wait, Waiting},
    },
    command::{Call, GaveUp, Look, Method, Registered, ShardAccess, TABLE, Work},
    observe::invalidations,
    run::{
        blocking,
        budget::Budget,
        command_lookup,
        gates::{self, Closed},
        route, serve, step,
        timing::{self, Span, Taken},
    },
    shared::{server::Server, thread_state::ThreadState},
};

/// A command that will run as a unit, or as most of one.
pub struct Unit<'a> {
    /// The command.
    pub command: &'static Registered,
    /// The words of its request.
    pub words: Words<'a>,
    /// The place of its first key, if that is known.
    pub first: Option<Routed>,
    /// The places of all its keys, in order, if they are known; otherwise empty.
    pub routed: &'a [Routed],
    /// Whether the memory of those look-ups was prefetched just now.
    pub is_fetched: bool,
    /// The time of the read. The unit's time is not earlier.
    pub sampled: Millis,
    /// Whether monitoring clients have already been shown the command.
    pub was_shown: bool,
    /// Whether it runs where it was read. If it must wait, its node looks its keys up again.
    pub is_in_place: bool,
    /// Whether it has waited and is served now, at the end of another unit.
    pub is_served: bool,
    /// Whether it is expected to need the lane.
    pub wants_lane: bool,
    /// The work that this thread still does for the client's current input.
    pub budget: &'a Budget,
}

/// The result of a unit.
///
/// Only `Ran` and `BetweenParts` change anything, with one exception: a waiting command may have become a
/// consumer of its group.
pub enum UnitEnd {
    /// It ran, and its reply is written. Or its user has lost the right to it, and that reply is written.
    Ran,
    /// Its client is killed, so nothing more of it runs.
    Killed,
    /// CLIENT PAUSE holds it back.
    Paused,
    /// It waits for keys, or until a key may be written.
    Waits(Box<Wait>),
    /// It needs more shards than are held.
    Needs(Route),
    /// A part of it has taken effect, and it continues with the next part's shards.
    BetweenParts,
    /// It is too much work for this thread, or for a hold.
    TooLong(Method),
}

/// The reason why a unit does not begin.
enum Shut {
    /// It ends with this result.
    Ended(UnitEnd),
    /// The reply is that its user has lost the right to it.
    Denied(Denial),
    /// The reply is an error that concerns the whole server.
    Refused(CommandError),
}

impl From<Closed> for Shut {
    fn from(closed: Closed) -> Self {
        match closed {
            Closed::Killed => Shut::Ended(UnitEnd::Killed),
            Closed::Paused => Shut::Ended(UnitEnd::Paused),
            Closed::Denied(denial) => Shut::Denied(denial),
            Closed::Loading => Shut::Refused(gates::LOADING),
            Closed::ReadOnly => Shut::Refused(gates::READ_ONLY),
        }
    }
}

impl From<GaveUp> for UnitEnd {
    fn from(gave_up: GaveUp) -> Self {
        match gave_up {
            GaveUp::BetweenParts => UnitEnd::BetweenParts,
            GaveUp::Needs(route) => UnitEnd::Needs(route),
            GaveUp::Waits(wait) => UnitEnd::Waits(wait),
            GaveUp::TooLong => UnitEnd::TooLong(Method::Held),
            GaveUp::TooMuch => UnitEnd::TooLong(Method::Pinned),
            GaveUp::Ending => UnitEnd::Paused,
        }
    }
}

/// Runs a command as a unit on held shards, and serves the nodes that it wakes.
///
/// For a served command ([`Unit::is_served`]) the shards of other keys may not be held. The caller tells the
/// observers of its changes and serves the nodes that it wakes.
pub fn run(
    unit: &Unit<'_>,
    session: &mut Session,
    held: &mut Held<'_, Job>,
    out: &mut Vec<u8>,
    thread: &mut ThreadState,
) -> UnitEnd {
    let now = match begin(unit, session, held, thread.server()) {
        Ok(now) => now,
        Err(Shut::Ended(ended)) => return ended,
        Err(Shut::Denied(denial)) => {
            step::refuse_denied(unit.command, denial, unit.words, session, out, thread);
            return UnitEnd::Ran;
        }
        Err(Shut::Refused(error)) => {
            let start = out.len();
            step::refuse(&error, session, out, thread);
            session.drop_unwanted(start, out);
            return UnitEnd::Ran;
        }
    };
    if unit.is_served {
        return body(unit, session, held, now, out, thread);
    }
    if (unit.wants_lane || route::needs_lane(thread.server(), session, unit.command)) && !held.try_lane() {
        return UnitEnd::Needs(Route::new(held.ids().into()).through_lane());
    }
    if gates::is_observed(held)
        && gates::has_lines(held)
        && command_lookup::may_write(thread.server(), session, unit.command, unit.words)
        && let Some(route) =
            blocking::further_shards(thread.server(), session, unit.command, unit.words, held)
    {
        return UnitEnd::Needs(route);
    }
    let ended = body(unit, session, held, now, out, thread);
    // The result does not matter here: keys that expired meanwhile are changes, too.
    unit.budget.charge_for_woken(end(held, thread, now));
    thread.charge(session);
    if session.record.listens(Listens::ToTopics) {
        // An event may be for the client itself. It comes directly after the reply.
        session.ask(SessionRequest::ReadNotifications);
    }
    ended
}

/// Begins a unit: passes the gates under the hold, and returns the unit's time.
fn begin(
    unit: &Unit<'_>,
    session: &mut Session,
    held: &mut Held<'_, Job>,
    server: &Server,
) -> Result<Millis, Shut> {
    let Unit { command, words, .. } = *unit;
    gates::gate(server, session, command, words)?;
    let now = gates::start(held, unit.sampled, session, server);
    if gates::is_observed(held) {
        invalidations::set_author(held, session.record.id);
        if gates::has_lines(held)
            && command_lookup::may_write(server, session, command, words)
            && let Some(pinned) = blocking::pinned_key(server, session, command, words, held)
        {
            return Err(Shut::Ended(UnitEnd::Waits(Box::new(blocking::wait_for_unpinning(pinned)))));
        }
    }
    Ok(now)
}

fn body(
    unit: &Unit<'_>,
    session: &mut Session,
    held: &mut Held<'_, Job>,
    now: Millis,
    out: &mut Vec<u8>,
    thread: &mut ThreadState,
) -> UnitEnd {
    let Unit { command, words, first, routed, is_fetched, was_shown, is_in_place, budget, .. } = *unit;
    if gates::is_saving(held)
        && thread.serves_sockets()
        && blocking::must_save_much(thread.server(), session, command, words, held)
    {
        return UnitEnd::TooLong(Method::Held);
    }
    let mut look = Look::at_held(held, session.db, now);
    let router = thread.server().keyspace.router();
    if !budget.admits(&mut look, router, session.queue.as_ref(), command, words, first) {
        match command.spec.work {
            // Not all keys of a roaming command could be pinned.
            Work::Grows { method: Method::Pinned, .. } if !route::roams(command, words) => {
                return UnitEnd::TooLong(Method::Pinned);
            }
            _ if thread.serves_sockets() => return UnitEnd::TooLong(Method::Held),
            _ => {}
        }
    }
    let mut call = Call {
        access: ShardAccess::Held(held),
        routed,
        is_fetched,
        waiting: Waiting::May,
        was_shown,
        ..Call::of_session(&TABLE, thread.server(), session, now, thread)
    };
    let mark = Mark::here();
    step::answer(&mut call, command, words, first, out, thread);
    if let Some(gave_up) = call.gave_up.take() {
        if !matches!(gave_up, GaveUp::BetweenParts) {
            mark.rewind();
            forget_lookups(held);
        }
        return gave_up.into();
    }
    if let Waiting::Asked(wait) = call.waiting {
        if is_in_place {
            forget_lookups(held);
        }
        return UnitEnd::Waits(wait);
    }
    UnitEnd::Ran
}

/// Ends a unit while its shards are held.
///
/// It tells the observers of the unit's changes, and serves the nodes that it wakes.
///
/// Returns how much work that was.
pub fn end(held: &mut Held<'_, Job>, thread: &mut ThreadState, now: Millis) -> usize {
    if gates::is_observed(held) { serve::serve_ready(held, thread, now) } else { 0 }
}

/// Removes the look-ups of this hold's units from the statistics.
#[cold]
fn forget_lookups(held: &mut Held<'_, Job>) {
    held.each_shard(|shard| {
        shard.take_lookups();
        shard.forget_misses();
    });
}

/// A node's next command, as a unit.
impl Job {
    /// Runs the command that has waited, now that a key holds its data.
    ///
    /// If it cannot run here, its thread submits it again.
    pub(super) fn run_served(&mut self, held: &mut Held<'_, Job>, thread: &mut ThreadState) {
        self.n_replied_bytes = self.reply.len();
        let span = self.is_timed.then(|| Span::begin(thread));
        match self.run_next(true, &Budget::of_batch(), held, thread) {
            UnitEnd::Ran => self.ran(span, thread),
            UnitEnd::Killed => self.n_run = self.commands.len(),
            UnitEnd::Paused
            | UnitEnd::Waits(_)
            | UnitEnd::Needs(_)
            | UnitEnd::BetweenParts
            | UnitEnd::TooLong(_) => {}
        }
    }

    /// Runs the next command as a unit, and returns the result.
    pub(super) fn run_next(
        &mut self,
        is_served: bool,
        budget: &Budget,
        held: &mut Held<'_, Job>,
        thread: &mut ThreadState,
    ) -> UnitEnd {
        let Job { session, requests, commands, routed, n_run, was_shown, reply, now, .. } = self;
        let delegated = commands[*n_run];
        requests.handing_over(*n_run, |words| {
            let unit = Unit {
                command: command_lookup::row(delegated.command),
                words,
                first: delegated.routed,
                routed,
                is_fetched: false,
                sampled: *now,
                was_shown: *was_shown,
                is_in_place: false,
                is_served,
                wants_lane: false,
                budget,
            };
            run(&unit, session, held, reply, thread)
        })
    }

    /// Attributes the time of commands that ran together to one of them, if long.
    ///
    /// Commands that were timed alone are left out.
    pub(super) fn note_together(&self, commands: Range<usize>, taken: Taken, thread: &ThreadState) {
        if taken.rest_nanos >= thread.stats().thresholds.together_nanos.load(Ordering::Relaxed) {
            let commands = self.commands_from(commands.start).take(commands.len());
            let commands = commands.map(|(delegated, words)| (command_lookup::row(delegated.command), words));
            timing::note_longest(commands, &self.session.record, taken, thread);
        }
    }

    /// Counts the command that has just run.
    pub(super) fn ran(&mut self, span: Option<Span>, thread: &ThreadState) {
        if let Some(span) = span {
            let taken = span.end(thread);
            thread.stats().took(self.commands[self.n_run].command, taken.nanos, 1);
            self.note_together(self.n_run..self.n_run + 1, taken, thread);
        }
        if std::mem::take(&mut self.was_counted) {
            thread.stats().ran_in_vain(self.commands[self.n_run].command);
        }
        self.was_shown = false;
        self.n_given_up = 0;
        self.count();
        // A client that is closed without a reply runs nothing more.
        self.n_run = if self.session.is_over_limit { self.commands.len() } else { self.n_run + 1 };
    }
}
