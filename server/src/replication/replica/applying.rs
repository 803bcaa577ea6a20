//! Runs units of the primary's stream on shards, one after the other.
//!
//! A unit holds all of its shards from its first command to its last, so a client sees all of it or nothing.
//! It runs as the primary: no right, no gate and no limit applies. It finds every key that the primary found,
//! because it runs before all deadlines. An expired key is removed by the primary's own command.

use std::{
    hint,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use braid_protocol::number::parse_i64;
use braid_storage::{
    entry::{db::Db, time::Millis},
    memory::reclaim,
    observers::record,
    sync::coordinator::{Held, Worker, put_in_order},
    table::{flush_retired, hash::ShardId},
};
use smallvec::SmallVec;

use super::units::{self, StreamUnit, UnitContent};
use crate::{
    catalog::{Words, shown},
    client::{id::Origin, node::Job, record::ClientRecord, session::Session},
    command::{Call, Found, Registered, ShardAccess, TABLE},
    config::PropagationErrors,
    observe::invalidations,
    run::{blocking, gates, logging, route::Needs, step, unit},
    shared::{server::Server, thread_state::ThreadState},
    warning, warning_later,
};

/// The attempts to take free shards before the thread waits for them.
const TRIES: u32 = 32;
/// The pause while another thread holds a shard or has the lane.
const BUSY: Duration = Duration::from_micros(20);
/// The pauses after which the caller's own pause has its turn.
const PAUSES: u32 = 1000;

/// The reason why work on shards did not take place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotHeld {
    /// The caller's pause has ended it.
    GivenUp,
    /// It panicked, and has changed nothing.
    Panicked,
}

/// Does work with some shards held, in ascending order. Waits for them if other threads hold them.
///
/// Calls `pause` now and then while it waits, with nothing held. If that returns false, it gives up.
///
/// # Errors
/// If it gives up, or the work panics.
pub fn hold<R>(
    worker: &mut Worker<Job>,
    ids: &[ShardId],
    pause: &mut dyn FnMut() -> bool,
    mut work: impl FnMut(&mut Held<'_, Job>, &mut ThreadState) -> R,
) -> Result<R, NotHeld> {
    loop {
        for _ in 0..TRIES {
            match worker.with_shards(ids, &mut work) {
                Some(done) => return done.map_err(|_| NotHeld::Panicked),
                None => hint::spin_loop(),
            }
        }
        thread::yield_now();
        // Only the holder of the lane may wait while it holds shards.
        let waited = worker.with_shards(&[], |held, thread| {
            let mut n_left = PAUSES;
            let mut rest = || {
                thread::sleep(BUSY);
                n_left -= 1;
                n_left > 0
            };
            let is_held = held.try_lane() && ids.iter().all(|&id| held.wait_for(id, &mut rest));
            is_held.then(|| work(held, thread))
        });
        match waited {
            Some(Ok(Some(done))) => return Ok(done),
            Some(Err(_)) => return Err(NotHeld::Panicked),
            Some(Ok(None)) | None => thread::sleep(BUSY),
        }
        if !pause() {
            return Err(NotHeld::GivenUp);
        }
    }
}

/// Does work with all shards held that replaces their data. It is not logged.
///
/// # Errors
/// If it gives up while it waits.
///
/// # Panics
/// If the work panics: a shard may be torn.
pub fn on_all_shards(
    worker: &mut Worker<Job>,
    pause: &mut dyn FnMut() -> bool,
    mut work: impl FnMut(&mut Held<'_, Job>, &ThreadState) -> bool,
) -> Result<bool, NotHeld> {
    let server = worker.thread.server();
    let all = server.engine.all_shards();
    let done = hold(worker, &all, pause, |held, thread| {
        let now = server.clock.now();
        for &id in all.iter() {
            held.shard(id).start_at(now, || server.clock.now());
            held.shard(id).go_to(Db::default());
        }
        let done = work(held, thread);
        // The log begins anew from the data.
        record::clear();
        unit::end(held, thread, now);
        done
    });
    assert!(done != Err(NotHeld::Panicked), "a shard panicked while its data was replaced: it may be torn");
    worker.thread.send_wakes();
    flush_retired();
    done
}

/// The reason why the stream cannot be applied any further.
#[derive(Debug)]
pub enum NotApplied {
    /// The role has changed, or the server stops.
    GivenUp,
    /// The stream needs something that this server does not have.
    Impossible(String),
}

/// The result of a unit under its holds.
enum UnitAttempt {
    Ran,
    /// It needs these shards, too.
    Needs(SmallVec<[ShardId; 6]>),
    /// A key is pinned, the last snapshot has been cut, or DEBUG LOADAOF loads the data again.
    MustWait,
    /// The role has changed.
    Outdated,
}

/// A part of the stream that is a unit, for the role of a generation.
#[derive(Clone, Copy)]
struct UnitPart<'p> {
    generation: u64,
    bytes: &'p [u8],
    /// The offset of its end.
    end: i64,
}

/// The session as which the primary's commands run.
pub struct Applier {
    session: Session,
    /// Space for replies, which nobody reads but the log of errors.
    out: Vec<u8>,
}

impl Applier {
    /// Creates one for a link. `db` is the database that the stream has selected.
    pub fn new(record: Arc<ClientRecord>, thread: usize, db: Db) -> Self {
        let mut session = Session::new(record, Origin { thread, slot: 0 });
        session.authenticated = true;
        session.db = db;
        Self { session, out: Vec::new() }
    }

    /// The database that the stream has selected.
    pub fn db(&self) -> Db {
        self.session.db
    }

    /// Applies a unit for the role of a generation, and records its end while its shards are held.
    ///
    /// # Errors
    /// If the role changes before it runs, or the stream uses a database that does not exist.
    pub fn apply(
        &mut self,
        unit: &StreamUnit<'_>,
        generation: u64,
        worker: &mut Worker<Job>,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<(), NotApplied> {
        let part = UnitPart { generation, bytes: unit.bytes, end: unit.end };
        match &unit.content {
            UnitContent::Ping | UnitContent::GetAck => {
                self.pass_on(part, false, &worker.thread);
                Ok(())
            }
            UnitContent::One(words) => self.run([*words].into_iter(), part, worker, pause),
            UnitContent::Queue(queue) => self.run(queue.iter_from(0), part, worker, pause),
        }
    }

    /// Hands on a part of the stream that changes nothing.
    fn pass_on(&self, part: UnitPart<'_>, selects: bool, thread: &ThreadState) {
        thread.received.borrow_mut().set(part.bytes, self.session.db);
        logging::log_received(thread, selects);
        thread.server().replica.note_applied(part.end);
    }

    fn run<'w>(
        &mut self,
        all: impl Iterator<Item = Words<'w>>,
        part: UnitPart<'_>,
        worker: &mut Worker<Job>,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<(), NotApplied> {
        let server = worker.thread.server();
        let mut steps: SmallVec<[Step<'w>; 4]> = SmallVec::new();
        let mut needs = Needs::default();
        for words in all {
            let step = self.step_of(words, server)?;
            if let Step::Run(command, words) = step {
                needs.add(server, &self.session, command, words);
            }
            steps.push(step);
        }
        // A snapshot receives values faster than it writes them.
        while server.saves.holds_writes.load(Ordering::Relaxed) {
            thread::sleep(BUSY);
            if !pause() {
                return Err(NotApplied::GivenUp);
            }
        }
        let mut shards = needs.shards(server);
        if !steps.iter().any(|step| matches!(step, Step::Run(..))) {
            // Nothing but a database is selected, which no client sees.
            let mut selects = false;
            for step in &steps {
                if let Step::Select(db) = step {
                    self.session.db = *db;
                    selects = true;
                }
            }
            self.pass_on(part, selects, &worker.thread);
            return Ok(());
        }
        loop {
            let attempt =
                hold(worker, &shards, pause, |held, thread| self.run_held(&steps, part, held, thread));
            worker.thread.send_wakes();
            match attempt {
                Ok(UnitAttempt::Ran) => return Ok(()),
                Ok(UnitAttempt::Needs(more)) => shards = more,
                Ok(UnitAttempt::MustWait) => {
                    thread::sleep(BUSY);
                    if !pause() {
                        return Err(NotApplied::GivenUp);
                    }
                }
                Ok(UnitAttempt::Outdated) | Err(NotHeld::GivenUp) => return Err(NotApplied::GivenUp),
                Err(NotHeld::Panicked) => {
                    if let Some(Step::Run(_, words)) = steps.first() {
                        self.note_error("ERR internal error", *words, server);
                    }
                    self.pass_on(part, false, &worker.thread);
                    return Ok(());
                }
            }
        }
    }

    /// Finds the row of a command.
    fn step_of<'w>(&self, words: Words<'w>, server: &Server) -> Result<Step<'w>, NotApplied> {
        if units::is_idle(words) {
            return Ok(Step::Nothing);
        }
        if units::selects(words) {
            let n_dbs = server.keyspace.n_dbs();
            let number = parse_i64(words.get(1)).and_then(|db| u32::try_from(db).ok());
            return match number.filter(|&db| (db as usize) < n_dbs) {
                Some(db) => Ok(Step::Select(Db(db))),
                None => Err(NotApplied::Impossible(format!(
                    "the primary uses database {}, and there are {n_dbs} databases: set 'databases' to more",
                    shown(words.get(1))
                ))),
            };
        }
        match TABLE.find_logged(words) {
            Found::Command(command) if command.spec.arity.admits(words.len()) => {
                Ok(Step::Run(command, words))
            }
            Found::Command(command) => {
                let error = format!("ERR wrong number of arguments for '{}' command", command.full_name);
                self.note_error(&error, words, server);
                Ok(Step::Nothing)
            }
            Found::Unknown | Found::UnknownSubcommand(_) => {
                self.note_error("ERR unknown command", words, server);
                Ok(Step::Nothing)
            }
        }
    }

    fn run_held(
        &mut self,
        steps: &[Step<'_>],
        part: UnitPart<'_>,
        held: &mut Held<'_, Job>,
        thread: &mut ThreadState,
    ) -> UnitAttempt {
        let server = thread.server();
        // A change of the role takes all shards before it is answered.
        if server.replica.generation() != part.generation {
            return UnitAttempt::Outdated;
        }
        if server.saves.has_last_cut() || server.loading.is_on() {
            return UnitAttempt::MustWait;
        }
        let now = gates::start(held, server.clock.now(), &self.session, server);
        if gates::is_observed(held) {
            invalidations::set_author(held, self.session.record.id);
            if gates::has_lines(held)
                && let Some(waits) = self.look_at_lines(steps, held, server)
            {
                return waits;
            }
        }
        let has_durations =
            steps.iter().any(|step| matches!(step, Step::Run(_, words) if units::says_duration(*words)));
        let at = if has_durations { now } else { Millis(0) };
        held.each_shard(|shard| {
            if !has_durations {
                shard.turn_back_time(now);
            }
            shard.lift_limit();
        });
        for step in steps {
            match *step {
                Step::Run(command, words) => {
                    self.run_one(command, words, at, steps.len(), held, thread);
                }
                Step::Select(db) => self.session.db = db,
                Step::Nothing => {}
            }
        }
        let db = self.session.db;
        held.each_shard(|shard| shard.begin(db, now));
        thread.received.borrow_mut().set(part.bytes, db);
        unit::end(held, thread, now);
        // It may have changed nothing, or nothing that anybody observes.
        logging::log_received(thread, false);
        server.replica.note_applied(part.end);
        thread.charge(&self.session);
        // Its thread serves no socket, so there is nobody to take these.
        self.session.request.set(None);
        self.session.floods.set(0);
        UnitAttempt::Ran
    }

    /// Checks whether a unit must wait for a pinned key, or needs further shards to serve waiting nodes.
    fn look_at_lines(
        &self,
        steps: &[Step<'_>],
        held: &mut Held<'_, Job>,
        server: &Server,
    ) -> Option<UnitAttempt> {
        let mut needed: SmallVec<[ShardId; 6]> = SmallVec::new();
        for step in steps {
            let Step::Run(command, words) = *step else { continue };
            if blocking::pinned_key(server, &self.session, command, words, held).is_some() {
                return Some(UnitAttempt::MustWait);
            }
            if let Some(route) = blocking::further_shards(server, &self.session, command, words, held) {
                needed.extend_from_slice(route.shards());
            }
        }
        if needed.is_empty() {
            return None;
        }
        put_in_order(&mut needed);
        Some(UnitAttempt::Needs(needed))
    }

    fn run_one(
        &mut self,
        command: &'static Registered,
        words: Words<'_>,
        at: Millis,
        n_in_unit: usize,
        held: &mut Held<'_, Job>,
        thread: &ThreadState,
    ) {
        let server = thread.server();
        self.out.clear();
        let of_session = Call::of_session(&TABLE, server, &mut self.session, at, thread);
        // A part of a transaction is neither given up nor does it wait.
        let mut call =
            Call { access: ShardAccess::Held(held), n_in_transaction: Some(n_in_unit), ..of_session };
        step::answer(&mut call, command, words, None, &mut self.out, thread);
        let is_given_up = call.must_run_again();
        self.session.n_commands += 1;
        if is_given_up {
            self.note_error("ERR the command cannot run here", words, server);
        } else if let Some(error) = self.out.strip_prefix(b"-") {
            let error = String::from_utf8_lossy(error).trim_end().to_owned();
            self.note_error(&error, words, server);
        }
    }

    /// Reports an error reply to a command of the primary: the data of the two may differ now.
    fn note_error(&self, error: &str, words: Words<'_>, server: &Server) {
        server.replica.n_unexpected_errors.fetch_add(1, Ordering::Relaxed);
        let command = shown(words.get(0));
        let key = if words.len() > 1 { shown(words.get(1)).into_owned() } else { String::new() };
        let text = format!(
            "== CRITICAL == This replica is sending an error to its master: '{error}' after processing the command \
             '{command}' on the key '{key}'"
        );
        let config = server.config.load();
        // The data of a replica that clients write to differs in any case.
        if config.propagation_error_behavior == PropagationErrors::Ignore || !config.replica_read_only {
            return warning_later!("{text}");
        }
        // The lines are written before the process ends, and the unit takes no effect.
        warning!("{text}");
        warning!(
            "This replica panicked sending an error to its master after processing the command '{command}' \
             (propagation-error-behavior)"
        );
        std::process::abort();
    }

    /// Ends a batch of units: counts its commands, and writes the AOF and the change stream as far as nobody
    /// else does.
    pub fn end_batch(&mut self, worker: &mut Worker<Job>, pause: &mut dyn FnMut() -> bool) {
        self.session.count_commands();
        self.session.publish_state(None);
        worker.thread.renew_budget();
        worker.thread.publish_log();
        let server = worker.thread.server();
        loop {
            worker.thread.send_wakes();
            if server.durability.fills_stream() && server.durability.aof.advance() {
                server.wake_who_awaits_log();
            }
            if !server.durability.is_full() || !pause() {
                break;
            }
            thread::sleep(BUSY);
        }
        while reclaim::has_much_large_garbage() && reclaim::reclaim_large() {}
        flush_retired();
    }
}

/// A step of a unit.
#[derive(Clone, Copy)]
enum Step<'w> {
    /// Run a command.
    Run(&'static Registered, Words<'w>),
    /// Select a database.
    Select(Db),
    /// Do nothing: it is a sign of life, or was refused.
    Nothing,
}
