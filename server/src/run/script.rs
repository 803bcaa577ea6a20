//! Scripts: runs a script as most of a unit, and executes its commands.
//!
//! The keys that a script declares, and those that its text predicts, are part of its route. Other keys are
//! discovered while it runs, and each such shard is *tried*. If another thread holds the shard:
//! - A script that has changed nothing is given up. It releases all shards and runs again over the larger
//!   route. Its visible effects so far (statistics, lines of MONITOR and of the log) are kept back in
//!   [`Notes`] until they are certain.
//! - A script that has changed something can only continue. Two such scripts could wait for each other. So a
//!   script with unknown keys takes the lane before its first change, and only the lane's holder waits.
//!
//! Within EXEC a script cannot be given up: a transaction that contains a script with unknown keys has the
//! lane from its beginning.

use std::{sync::atomic::Ordering, time::Duration};

use braid_protocol::reply::{Reply, Resp};
use braid_script::{Ended, Engine, Handle, Host, LoadError, LogLevel, Stop, UnknownCommand, shebang};
use braid_storage::{
    entry::db::Db,
    sync::coordinator::{Held, Route},
    table::hash::{Routed, ShardId},
};
use crossbeam_utils::Backoff;
use smallvec::SmallVec;

use crate::{
    access::{Context, DenialEntry},
    catalog::{Args, CommandError, CommandId, Denial, Flags, Outcome, Words},
    client::{node::Job, session::Session, waits::Waiting},
    clock::Instant,
    command::{self, Call, Found, GaveUp, Look, Registered, Run, ScriptIn, TABLE, Work},
    log,
    observe::invalidations,
    run::{
        blocking,
        budget::Budget,
        finish::{self, Kept},
        gates,
        route::Needs,
        script_prediction::{self, EvalArguments, PartsRoom},
        step,
        timing::{self, Span},
    },
    scripting::{
        functions,
        running_scripts::Program,
        scripts::{self, ScriptOrigin},
    },
    shared::{server::Server, thread_state::ThreadState},
    warning,
};

/// The turns of the engine that a script may have on a thread with sockets.
///
/// A turn takes about 50 µs.
///
/// A script that has changed nothing by then goes to a heavy-work thread.
const SHORT_TURNS: u32 = 2;

/// The number of declared keys with which a key is compared before it is hashed.
const DECLARED_COMPARED: usize = 4;

/// One run in this many has the time of its short commands taken.
///
/// The time stands for all runs.
///
/// Reading the clock for each command would take half as long as the command.
const RUNS_PER_TIMED: u32 = 8;

/// The maximum of visible effects that a run keeps back. More are shown, whether they are certain or not.
const NOTES_MAX_BYTES: usize = 1 << 20;

/// The interval at which a busy script checks for clients that wait for its keys.
const REFUSES_EVERY_MILLIS: u64 = 10;

/// The time for which a script's thread sleeps while it waits for a shard.
const PAUSE: Duration = Duration::from_micros(50);

/// The rights of a script.
#[derive(Clone, Copy)]
struct Rights {
    /// Commands that may write are refused.
    is_read_only: bool,
    /// A shortage of memory refuses nothing.
    may_exceed_memory: bool,
}

/// Runs EVAL or a similar command, with the shards of its declared keys held.
pub fn run(
    call: &mut Call<'_, '_>,
    command: &'static Registered,
    from: ScriptIn,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Outcome {
    let (words, start, thread) = (args.words(), reply.written_bytes(), call.thread);
    let kept_back = thread.keep_back_notifications();
    let ran = begin(call, command, from, args, reply);
    drop(kept_back);
    thread.charge(call.session);
    if ran.is_err() {
        // The script could not begin. A script that begins shows itself, before its commands.
        finish::show(Flags::NONE, words, call.session, call.thread);
    }
    let ran = ran?;
    if let Ok(Ended::Error { is_counted }) = ran {
        count_error(call, command, is_counted, reply.written_since(start));
    }
    Ok(())
}

/// Runs the script, or returns the reason why it cannot begin.
fn begin(
    call: &mut Call<'_, '_>,
    command: &'static Registered,
    from: ScriptIn,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Result<ScriptResult, CommandError> {
    let (words, mut room) = (args.words(), PartsRoom::new());
    let parts = EvalArguments::read(args, from, &mut room)?;
    match from {
        ScriptIn::Text | ScriptIn::Digest => run_script(call, command, from, &parts, words, reply),
        ScriptIn::Function => run_function(call, command, &parts, words, reply),
    }
}

fn run_script(
    call: &mut Call<'_, '_>,
    command: &'static Registered,
    from: ScriptIn,
    parts: &EvalArguments<'_>,
    words: Words<'_>,
    reply: &mut Reply<'_>,
) -> Result<ScriptResult, CommandError> {
    let server = call.server;
    let known = call.scripts();
    let learnt;
    let script = match (script_prediction::script(&known, from, parts.named), from) {
        (Some(script), _) => script,
        (None, ScriptIn::Text) => {
            learnt = command::learn_script(server, &TABLE, parts.named, ScriptOrigin::Evaluated)?;
            call.learn(&learnt);
            &*learnt
        }
        (None, _) => return Err(CommandError::text("NOSCRIPT No matching script. Please use EVAL.")),
    };
    let rights = rights(server, command, &script.program)?;
    script.note_run(server.clock.uptime_millis());
    let mut notes = Notes::default();
    let mut running = ScriptHost::new(call, &mut notes, &script.program, rights, command, words, parts.keys);
    let ran = scripts::with_thread_scripts(|own| {
        let handle = own.compiled(script, &known).map_err(|error| CommandError::owned(error.to_string()))?;
        Ok(running.run_in(&mut own.engine, handle, parts, reply))
    });
    let gave_up = running.end();
    drop(running);
    call.gave_up = gave_up;
    ran
}

fn run_function(
    call: &mut Call<'_, '_>,
    command: &'static Registered,
    parts: &EvalArguments<'_>,
    words: Words<'_>,
    reply: &mut Reply<'_>,
) -> Result<ScriptResult, CommandError> {
    let server = call.server;
    let known = call.functions();
    let (library, function) =
        known.function(parts.named).ok_or(CommandError::text("ERR Function not found"))?;
    let rights = rights(server, command, &function.program)?;
    let mut notes = Notes::default();
    let mut running =
        ScriptHost::new(call, &mut notes, &function.program, rights, command, words, parts.keys);
    running.is_function = true;
    let ran = functions::with_thread_functions(|own| {
        let loaded = own.loaded(library, &function.name, &known, &mut running);
        let handle = match loaded {
            Ok(handle) => handle.ok_or(CommandError::text("ERR Function not found"))?,
            Err(LoadError::Stopped(stop)) => return Ok(Err(stop)),
            Err(error) => return Err(CommandError::owned(error.to_string())),
        };
        Ok(running.run_in(&mut own.engine, handle, parts, reply))
    });
    let gave_up = running.end();
    drop(running);
    call.gave_up = gave_up;
    ran
}

/// The engine's result of a run.
type ScriptResult = Result<Ended, Stop>;

/// Counts a script's error. The error of a command was counted where it failed.
#[cold]
fn count_error(call: &Call<'_, '_>, command: &Registered, is_counted: bool, reply: &[u8]) {
    call.stats.commands[command.id.index()].failed.add(1);
    if !is_counted {
        call.stats.error(&String::from_utf8_lossy(reply.strip_prefix(b"-").unwrap_or(reply)));
    }
}

/// Returns the rights of a script.
///
/// They follow from its first line, if that names flags, and from the command that runs it.
fn rights(server: &Server, command: &Registered, program: &Program) -> Result<Rights, CommandError> {
    let is_read_only = command.has(Flags::READONLY);
    let Some(flags) = program.flags else {
        return Ok(Rights { is_read_only, may_exceed_memory: false });
    };
    let writes_nothing = flags.contains(shebang::Flags::NO_WRITES);
    let may_exceed_memory = flags.contains(shebang::Flags::ALLOW_OOM);
    if is_read_only && !writes_nothing {
        return Err(CommandError::text("ERR Can not execute a script with write flag using *_ro command."));
    }
    if server.memory.is_short() && !may_exceed_memory && !writes_nothing {
        return Err(CommandError::text(
            "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
        ));
    }
    Ok(Rights { is_read_only: writes_nothing, may_exceed_memory })
}

/// A command that has run.
struct Done {
    command: CommandId,
    has_failed: bool,
    /// The duration, if it was measured.
    nanos: u64,
    /// The number of commands for which the measurement stands; 0 if there is none.
    n_timed: u32,
}

/// The visible effects of a run, kept back while it may still be given up.
#[derive(Default)]
struct Notes {
    /// The commands, in order.
    ran: SmallVec<[Done; 8]>,
    /// Effects that most runs do not have, in order.
    others: Vec<Note>,
    /// Their approximate size.
    n_bytes: usize,
}

/// A visible effect of a run apart from its commands.
enum Note {
    /// A command has failed.
    Error(String),
    /// A command was refused.
    Rejected(CommandId),
    /// Data for the observers of commands.
    Observed(Kept),
    /// A right was denied.
    Denied(DenialEntry),
    /// The script has written to the server's log.
    Logged(log::Level, String),
}

impl Notes {
    #[cold]
    fn note(&mut self, note: Note) {
        self.n_bytes += size_of::<Note>();
        self.others.push(note);
    }

    /// Records a denial.
    #[cold]
    fn note_denial(&mut self, call: &Call<'_, '_>, denial: Denial, words: Words<'_>) {
        let entry = command::entry_of(call.session, denial, words, Context::Script, call.table, call.server);
        self.n_bytes += entry.object.len() + entry.client.len();
        self.others.push(Note::Denied(entry));
    }

    fn tell(&mut self, session: &Session, thread: &ThreadState) {
        let stats = thread.stats();
        for &Done { command, has_failed, nanos, n_timed } in &self.ran {
            stats.ran(command, has_failed);
            if n_timed > 0 {
                stats.took(command, nanos, n_timed.into());
            }
        }
        self.ran.clear();
        self.n_bytes = 0;
        if !self.others.is_empty() {
            self.tell_others(session, thread);
        }
    }

    #[cold]
    fn tell_others(&mut self, session: &Session, thread: &ThreadState) {
        for note in self.others.drain(..) {
            match note {
                Note::Error(error) => thread.stats().error(&error),
                Note::Rejected(command) => thread.stats().commands[command.index()].rejected.add(1),
                Note::Observed(kept) => kept.tell(session, thread),
                Note::Denied(entry) => {
                    command::count_denial(entry.reason, thread);
                    thread.server().note_denial(entry);
                }
                Note::Logged(level, message) => log::line_later(level, format_args!("{message}")),
            }
        }
    }
}

/// A running script: the host of its engine.
struct ScriptHost<'r, 'a, 'h> {
    call: &'r mut Call<'a, 'h>,
    program: &'r Program,
    is_function: bool,
    /// The command that runs it, with its words.
    row: &'static Registered,
    words: Words<'r>,
    /// The declared keys, and their places.
    keys: &'r [&'r [u8]],
    routed: &'r [Routed],
    rights: Rights,
    notes: &'r mut Notes,
    has_written: bool,
    /// Whether it has reached a write before which it must take the lane.
    needs_lane: bool,
    gave_up: Option<GaveUp>,
    /// How often the engine has asked whether it may continue.
    n_turns: u32,
    /// Whether the log has been told that the script is slow.
    is_told_slow: bool,
    /// Whether one of its commands was expected to be too long for a thread with sockets.
    met_long_work: bool,
    /// The time of the next check for waiting clients, in milliseconds of the server's uptime.
    refuses_at: u64,
    /// The time measurement, once the script has run for a while.
    span: Option<Span>,
    /// The number of commands for which each measurement stands. It is 0 if the time is not taken.
    n_timed: u32,
    /// The session's database, which the script's own SELECT does not change.
    db: Db,
    waiting: Waiting,
}

impl<'r, 'a, 'h> ScriptHost<'r, 'a, 'h> {
    /// Inlined, because it would be copied into its place otherwise.
    #[inline(always)]
    fn new(
        call: &'r mut Call<'a, 'h>,
        notes: &'r mut Notes,
        program: &'r Program,
        rights: Rights,
        row: &'static Registered,
        words: Words<'r>,
        keys: &'r [&'r [u8]],
    ) -> Self {
        let (db, waiting) = (call.session.db, std::mem::replace(&mut call.waiting, Waiting::MayNot));
        // These are the places of the declared keys. Each command looks up its own keys.
        let routed = std::mem::take(&mut call.routed);
        call.is_fetched = false;
        call.is_in_script = true;
        ScriptHost {
            call,
            program,
            is_function: false,
            row,
            words,
            keys,
            routed,
            rights,
            notes,
            has_written: false,
            needs_lane: false,
            gave_up: None,
            n_turns: 0,
            is_told_slow: false,
            met_long_work: false,
            refuses_at: 0,
            span: None,
            n_timed: 0,
            db,
            waiting,
        }
    }

    fn run_in(
        &mut self,
        engine: &mut Engine,
        handle: Handle,
        parts: &EvalArguments<'_>,
        reply: &mut Reply<'_>,
    ) -> ScriptResult {
        let kept = Kept::of_beginning(self.words, self.call.session, self.call.thread);
        self.notes.others.extend(kept.map(Note::Observed));
        self.n_timed = if engine.n_runs().is_multiple_of(RUNS_PER_TIMED) { RUNS_PER_TIMED } else { 0 };
        let thread = self.call.thread;
        engine.limit_memory(thread.stats().lua_memory_limit.load(Ordering::Relaxed));
        let ran = engine.run(handle, parts.keys, parts.argv, self, reply);
        thread.program().note_lua_bytes(self.is_function, engine.used_bytes() as u64);
        if engine.owes_collection() {
            thread.owes_collection.set(true);
        }
        ran
    }

    /// Ends the run. Shows the effects that are certain now, or returns why the run was given up.
    fn end(&mut self) -> Option<GaveUp> {
        let gave_up = self.gave_up.take();
        if gave_up.is_none() || self.needs_lane {
            self.program.needed_lane(self.needs_lane);
        }
        if gave_up.as_ref().is_none_or(|why| matches!(why, GaveUp::TooLong)) {
            self.program.ran(self.n_turns > SHORT_TURNS || self.met_long_work);
        }
        self.end_span(gave_up.is_some());
        if gave_up.is_none() {
            self.notes.tell(self.call.session, self.call.thread);
        }
        gave_up
    }

    /// Starts to measure the run's time, unless its command is timed alone. For a short run the clock is not
    /// read.
    fn begin_span(&mut self) {
        if self.span.is_none() && !timing::is_timed_alone(self.row, self.call.thread) {
            self.span = Some(Span::begin(self.call.thread));
        }
    }

    /// Records how long the run took.
    fn end_span(&mut self, is_given_up: bool) {
        let Some(span) = self.span.take() else { return };
        let nanos = span.end(self.call.thread).nanos;
        if !is_given_up {
            let kept = Kept::of_end(self.row, self.words, self.call.session, nanos, self.call.thread);
            self.notes.others.extend(kept.map(Note::Observed));
        }
    }

    /// Whether the run can be given up. It must have changed nothing, and be its whole unit.
    fn may_give_up(&self) -> bool {
        !self.has_written && self.call.n_in_transaction.is_none()
    }

    fn give_up(&mut self, why: GaveUp) -> Stop {
        self.gave_up = Some(why);
        Stop::GiveUp
    }

    /// Finds a command that the script may run.
    fn admit(&mut self, words: Words<'_>) -> Result<&'static Registered, CommandError> {
        let Found::Command(command) = TABLE.find(words) else {
            return Err(CommandError::text("ERR Unknown Redis command called from script"));
        };
        match self.admit_command(command, words) {
            Ok(()) => Ok(command),
            Err(error) => {
                self.notes.note(Note::Rejected(command.id));
                Err(error)
            }
        }
    }

    /// Checks whether the script may run a command, in an order that users can observe.
    fn admit_command(&mut self, command: &'static Registered, words: Words<'_>) -> Result<(), CommandError> {
        if !command.spec.arity.admits(words.len()) {
            return Err(CommandError::text("ERR Wrong number of args calling Redis command from script"));
        }
        let is_denied = || !self.call.server.debug.allows_all_in_scripts.load(Ordering::Relaxed);
        let runs_others = matches!(command.spec.run, Run::Script(_) | Run::Queue | Run::Container);
        if runs_others || command.has(Flags::NOSCRIPT) && is_denied() {
            return Err(CommandError::text("ERR This Redis command is not allowed from script"));
        }
        if let Some(user) = &self.call.session.rights
            && let Err(denial) = user.check(&command.asked(words, self.call.session.db))
        {
            self.notes.note_denial(self.call, denial, words);
            return Err(command::error_in_script(denial));
        }
        let writes = command.has(Flags::WRITE);
        if self.rights.is_read_only && (writes || command.has(Flags::MAY_REPLICATE)) {
            return Err(CommandError::text("ERR Write commands are not allowed from read-only scripts."));
        }
        let is_short = || self.call.server.memory.is_short();
        if command.has(Flags::DENYOOM) && !self.has_written && !self.rights.may_exceed_memory && is_short() {
            return Err(CommandError::text("OOM command not allowed when used memory > 'maxmemory'."));
        }
        if writes && !self.has_written {
            gates::admit_write(self.call.server)?;
            if self.call.server.replication.replicas.is_short() && !self.call.server.replica.is_on() {
                return Err(gates::FEW_REPLICAS);
            }
        }
        gates::admit_in_script_on_replica(command, self.call.server)?;
        gates::note_written_keys(self.call.server, self.call.session.db, command, words);
        Ok(())
    }

    /// Takes the shards that a command needs in addition. Returns the place of its first word, if that is a
    /// key.
    fn take_shards(
        &mut self,
        command: &'static Registered,
        words: Words<'_>,
    ) -> Result<Option<Routed>, Refused> {
        if matches!(command.spec.run, Run::Shard(_)) {
            let routed = self.route(words.get(1));
            if !self.take_shard(routed.shard)? {
                return Err(self.give_up_for(&[routed.shard]).into());
            }
            return Ok(Some(routed));
        }
        let mut needs = Needs::default();
        needs.add(self.call.server, self.call.session, command, words);
        let first = needs.keys.first().copied().filter(|_| command.spec.keys.begin_at_first());
        let shards = needs.shards(self.call.server);
        for &id in &shards {
            if !self.take_shard(id)? {
                return Err(self.give_up_for(&shards).into());
            }
        }
        Ok(first)
    }

    /// The place of a key. Declared keys have been looked up already.
    fn route(&self, key: &[u8]) -> Routed {
        let declared = self.keys.iter().zip(self.routed).take(DECLARED_COMPARED);
        match declared.into_iter().find(|(declared, _)| **declared == key) {
            Some((_, routed)) => *routed,
            None => self.call.server.keyspace.router().route(key),
        }
    }

    /// Ends the run because some shards could not be taken.
    #[cold]
    fn give_up_for(&mut self, shards: &[ShardId]) -> Stop {
        let held = held_of(self.call).ids();
        let route = Route::new(shards.iter().chain(held).copied().collect());
        self.give_up(GaveUp::Needs(route))
    }

    /// Takes a shard. Returns false if the run must be given up for it.
    fn take_shard(&mut self, id: ShardId) -> Result<bool, Refused> {
        let may_give_up = self.may_give_up();
        let held = held_of(self.call);
        if held.has(id) {
            return Ok(true);
        }
        if self.program.is_certain() {
            // The text has not shown this key, so the next run does not rely on the prediction.
            self.program.distrust();
        }
        let held = held_of(self.call);
        if !held.try_join(id) {
            if may_give_up && !held.has_lane() {
                return Ok(false);
            }
            if !held.try_lane() {
                return Err(Refused::Error(CommandError::text(
                    "ERR the script reached for a key that its text does not show, while others held it; run it again",
                )));
            }
            if !self.wait_for(id)? {
                return Ok(false);
            }
        }
        let Call { access, session, server, now, .. } = &mut *self.call;
        let held = access.expect_held();
        let shard = held.shard(id);
        shard.start_at(*now, || server.clock.now());
        if session.no_touch {
            shard.leave_untouched();
        }
        if shard.has_observers() {
            shard.set_author(session.record.id.0);
        }
        Ok(true)
    }

    /// Waits for a shard on this thread, as the lane's holder.
    ///
    /// Commands that wait for the script meanwhile are told in time that it is busy. Returns false if the run
    /// must be given up for the shard. In the shard's queue the script is told in time if the holder is busy.
    #[cold]
    fn wait_for(&mut self, id: ShardId) -> Result<bool, Stop> {
        loop {
            let backoff = Backoff::new();
            let began = Instant::now();
            let pause = || {
                if backoff.is_completed() {
                    std::thread::sleep(PAUSE);
                } else {
                    backoff.snooze();
                }
                began.elapsed() < Duration::from_millis(REFUSES_EVERY_MILLIS)
            };
            if held_of(self.call).wait_for(id, pause) {
                return Ok(true);
            }
            self.interrupt()?;
            if self.may_give_up() {
                return Ok(false);
            }
        }
    }

    /// Makes tracking remember the keys that a command has read.
    #[cold]
    fn note_reads(&mut self, command: &Registered, words: Words<'_>) {
        let Call { session, access, server, .. } = &mut *self.call;
        let held = access.expect_held();
        invalidations::note_reads(server, held, session, command.spec.keys, words);
    }

    /// Tells clients that wait for the script's keys that it is busy.
    ///
    /// It does so once the script has run for `busy-reply-threshold`.
    fn refuse_waiting(&mut self, uptime_millis: u64) {
        if uptime_millis < self.refuses_at {
            return;
        }
        let (server, thread) = (self.call.server, self.call.thread);
        let threshold =
            server.config.load().busy_reply_threshold.map(|threshold| threshold.as_millis() as u64);
        let runs_for = thread.program().runs_for(uptime_millis).unwrap_or(0);
        self.refuses_at = uptime_millis + REFUSES_EVERY_MILLIS;
        if threshold.is_none_or(|threshold| runs_for < threshold) {
            return;
        }
        if !std::mem::replace(&mut self.is_told_slow, true) {
            let kill = if self.is_function { "FUNCTION KILL" } else { "SCRIPT KILL" };
            warning!(
                "Slow script detected: still in execution after {runs_for} milliseconds. {kill} ends it, unless it has written"
            );
        }
        let busy = if self.is_function { command::BUSY_FUNCTION } else { command::BUSY_SCRIPT };
        let error = CommandError::text(busy);
        let ended = held_of(self.call).end_waiting(|job| job.refuse(&error, thread));
        // All are woken here, and not when the shards are released, because that may take long.
        for node in ended.home {
            let origin = node.job.session.origin.thread;
            thread.send_home(origin, node);
            server.threads[origin].wake_if_asleep();
        }
        if ended.has_handed_off {
            thread.wake_another();
        }
        if ended.has_heavy {
            server.wake_heavy();
        }
    }

    /// Leaves long work to a heavy-work thread, if the run can be given up.
    fn stop_before_long_work(
        &mut self,
        command: &Registered,
        words: Words<'_>,
        first: Option<Routed>,
    ) -> Result<(), Refused> {
        if !matches!(command.spec.work, Work::Grows { .. }) || self.met_long_work {
            return Ok(());
        }
        let Call { session, access, server, now, .. } = &mut *self.call;
        let held = access.expect_held();
        let mut look = Look::at_held(held, session.db, *now);
        self.met_long_work =
            !Budget::is_short_in_script(&mut look, server.keyspace.router(), command, words, first);
        if self.met_long_work && self.call.thread.serves_sockets() && self.may_give_up() {
            return Err(self.give_up(GaveUp::TooLong).into());
        }
        if self.met_long_work {
            self.begin_span();
        }
        Ok(())
    }

    /// Ensures that a command may write. Its keys must not be pinned, and the script must be able to
    /// continue.
    fn begin_to_write(&mut self, command: &'static Registered, words: Words<'_>) -> Result<(), Refused> {
        if self.has_written {
            return Ok(());
        }
        let may_give_up = self.may_give_up();
        let Call { session, access, server, .. } = &mut *self.call;
        let held = access.expect_held();
        if may_give_up {
            if gates::has_lines(held)
                && let Some(pinned) = blocking::pinned_key(server, session, command, words, held)
            {
                let wait = Box::new(blocking::wait_for_unpinning(pinned));
                return Err(self.give_up(GaveUp::Waits(wait)).into());
            }
            self.needs_lane = !self.program.is_certain();
            if self.needs_lane && !held.try_lane() {
                let route = Route::new(held.ids().into()).through_lane();
                return Err(self.give_up(GaveUp::Needs(route)).into());
            }
        }
        self.has_written = true;
        Ok(())
    }

    /// Runs a command of the script. Its error or refusal is a reply.
    fn run_command(&mut self, words: Words<'_>, resp: Resp, out: &mut Vec<u8>) -> Result<(), Refused> {
        let command = self.admit(words)?;
        let first = self.take_shards(command, words)?;
        self.stop_before_long_work(command, words, first)?;
        if has_effect(command) {
            self.begin_to_write(command, words)?;
        }
        let start = out.len();
        let is_alone = self.met_long_work || timing::times_each(self.call.thread);
        let n_timed = if is_alone { 1 } else { self.n_timed };
        let began = (n_timed > 0).then(Instant::now);
        let mut outcome = step::execute(self.call, command, words, first, &mut Reply::new(out, resp));
        if matches!(&outcome, Err(error) if error.is_too_much()) {
            self.met_long_work = true;
            if self.call.thread.serves_sockets() && self.may_give_up() {
                return Err(self.give_up(GaveUp::TooLong).into());
            }
            out.truncate(start);
            self.call.lift_limits();
            outcome = step::execute(self.call, command, words, first, &mut Reply::new(out, resp));
        }
        if self.call.session.tracking.is_some() && command.has(Flags::READONLY) {
            self.note_reads(command, words);
        }
        let has_failed = outcome.is_err();
        if let Err(error) = outcome {
            out.truncate(start);
            error.write(&mut Reply::new(out, resp));
            let text = error.wire_text().into_owned();
            self.notes.n_bytes += text.len();
            self.notes.others.push(Note::Error(text));
        }
        let nanos = began.map(|began| began.elapsed().as_nanos() as u64);
        if let Some(kept) = Kept::of_part(command, words, self.call.session, nanos, self.call.thread) {
            self.notes.n_bytes += size_of::<Kept>() + kept.n_bytes();
            self.notes.others.push(Note::Observed(kept));
        }
        let nanos = nanos.unwrap_or(0);
        self.notes.ran.push(Done { command: command.id, has_failed, nanos, n_timed });
        self.noted(size_of::<Done>());
        Ok(())
    }

    /// Counts a new note.
    ///
    /// Shows the notes when they are large or when the run cannot be given up any more.
    fn noted(&mut self, n_bytes: usize) {
        self.notes.n_bytes += n_bytes;
        if self.notes.n_bytes >= NOTES_MAX_BYTES || !self.notes.others.is_empty() && !self.may_give_up() {
            self.notes.tell(self.call.session, self.call.thread);
        }
    }
}

/// Undoes the changes of a run to its client's session and its thread, also after a panic.
impl Drop for ScriptHost<'_, '_, '_> {
    fn drop(&mut self) {
        self.call.session.db = self.db;
        self.call.waiting = std::mem::replace(&mut self.waiting, Waiting::MayNot);
        self.call.is_in_script = false;
        if self.n_turns > 0 {
            self.call.thread.program().ended();
        }
    }
}

/// The reason why a command of a script does not run.
enum Refused {
    /// The script receives the error.
    Error(CommandError),
    /// The script ends here.
    Stop(Stop),
}

impl From<CommandError> for Refused {
    fn from(error: CommandError) -> Self {
        Refused::Error(error)
    }
}

impl From<Stop> for Refused {
    fn from(stop: Stop) -> Self {
        Refused::Stop(stop)
    }
}

/// Whether a command has an effect that others can observe.
fn has_effect(command: &Registered) -> bool {
    [Flags::WRITE, Flags::MAY_REPLICATE, Flags::PUBSUB].iter().any(|&flag| command.has(flag))
}

fn held_of<'c, 'h>(call: &'c mut Call<'_, 'h>) -> &'c mut Held<'h, Job> {
    call.access.expect_held()
}

impl Host for ScriptHost<'_, '_, '_> {
    fn call(&mut self, words: Words<'_>, resp: Resp, reply: &mut Vec<u8>) -> Result<(), Stop> {
        let start = reply.len();
        match self.run_command(words, resp, reply) {
            Ok(()) => Ok(()),
            Err(Refused::Stop(stop)) => Err(stop),
            Err(Refused::Error(error)) => {
                reply.truncate(start);
                error.write(&mut Reply::new(reply, resp));
                // It counts as the command's error, and not again as the script's.
                let text = error.wire_text().into_owned();
                let n_bytes = size_of::<Note>() + text.len();
                self.notes.others.push(Note::Error(text));
                self.noted(n_bytes);
                Ok(())
            }
        }
    }

    fn log(&mut self, level: LogLevel, message: &[u8]) {
        let level = match level {
            LogLevel::Debug => log::Level::Debug,
            LogLevel::Verbose => log::Level::Verbose,
            LogLevel::Notice => log::Level::Notice,
            LogLevel::Warning => log::Level::Warning,
        };
        if log::is_shown(level) {
            self.notes.others.push(Note::Logged(level, String::from_utf8_lossy(message).into_owned()));
            self.noted(message.len());
        }
    }

    fn acl_check(&mut self, words: Words<'_>) -> Result<bool, UnknownCommand> {
        let Found::Command(command) = TABLE.find(words) else { return Err(UnknownCommand) };
        let user = self.call.session.rights.as_ref();
        Ok(user.is_none_or(|user| user.check(&command.asked(words, self.call.session.db)).is_ok()))
    }

    fn set_replication(&mut self, _: u8) {}

    fn interrupt(&mut self) -> Result<(), Stop> {
        self.n_turns += 1;
        self.begin_span();
        let uptime_millis = self.call.server.clock.uptime_millis();
        self.call.thread.program().goes_on(
            uptime_millis,
            self.is_function,
            self.has_written,
            self.words.iter(),
        );
        if self.n_turns > SHORT_TURNS && self.call.thread.serves_sockets() && self.may_give_up() {
            return Err(self.give_up(GaveUp::TooLong));
        }
        self.refuse_waiting(uptime_millis);
        // A script continues while the server stops, unless it takes too long. Otherwise half of it would be
        // logged.
        if self.call.thread.program().is_killed() {
            return Err(Stop::Killed);
        }
        Ok(())
    }
}
