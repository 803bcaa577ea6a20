//! The host: what a script asks for is run by whoever started it.
//!
//! Lua's functions live as long as their state, the host only as long as one run. So the host is lent through a scoped
//! thread-local: [`lend`] puts it there for the length of a run, and [`ask`] takes it for the length of one question. While the host
//! answers, the place is empty, so a host may run another engine.

use std::any::Any;
use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use braid_protocol::{Arg, Resp, Words};
use mlua::Lua;
use scoped_tls_hkt::scoped_thread_local;

use crate::errors;
use crate::functions::Registered;
use crate::random::Random;

/// Runs what a script asks for. The server implements it.
pub trait Host {
    /// Runs one command for `redis.call` or `redis.pcall` and appends its reply in version `resp`; an error as `-CODE text\r\n`.
    ///
    /// # Errors
    ///
    /// An error ends the run at once, whatever the script does.
    fn call(&mut self, words: Words<'_>, resp: Resp, reply: &mut Vec<u8>) -> Result<(), Stop>;

    /// Writes a line of `redis.log`.
    fn log(&mut self, level: LogLevel, message: &[u8]);

    /// Says for `redis.acl_check_cmd` whether the user may run the command.
    ///
    /// # Errors
    ///
    /// If there is no such command.
    fn acl_check(&mut self, words: Words<'_>) -> Result<bool, UnknownCommand>;

    /// Says which copies `redis.set_repl` wants written: bit 0 the log, bit 1 the replicas.
    fn set_replication(&mut self, flags: u8);

    /// Asked every [`INSTRUCTIONS_PER_INTERRUPT`] instructions, and by functions that work long without any.
    ///
    /// # Errors
    ///
    /// An error ends the run at once, whatever the script does.
    fn interrupt(&mut self) -> Result<(), Stop>;
}

/// How many of Lua's instructions run between two questions of [`Host::interrupt`].
pub const INSTRUCTIONS_PER_INTERRUPT: u32 = 10_000;

/// Between two of Lua's hooks. Some of its instructions take milliseconds, those that copy long strings.
pub(crate) const INSTRUCTIONS_PER_HOOK: u32 = INSTRUCTIONS_PER_INTERRUPT / 10;
/// The host is asked as often as functions have worked through so many bytes: that takes some milliseconds.
const BYTES_PER_INTERRUPT: usize = 8 << 20;
/// After so long the host is asked, however few instructions have run.
const TIME_PER_INTERRUPT: Duration = Duration::from_millis(2);

/// How often the host is asked: every [`INSTRUCTIONS_PER_INTERRUPT`], or sooner if those take long.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    n_hooks: Cell<u32>,
    asked_at: Cell<Option<Instant>>,
}

impl Pace {
    /// A run begins.
    pub fn begin(&self) {
        self.asked_at.set(None);
    }

    /// Notes a hook. Returns whether the host is to be asked.
    pub fn is_due(&self) -> bool {
        let n_hooks = self.n_hooks.get() + 1;
        self.n_hooks.set(n_hooks);
        let now = Instant::now();
        let asked_at = self.asked_at.get().unwrap_or(now);
        let is_due = n_hooks.is_multiple_of(INSTRUCTIONS_PER_INTERRUPT / INSTRUCTIONS_PER_HOOK)
            || now - asked_at >= TIME_PER_INTERRUPT;
        if is_due || self.asked_at.get().is_none() {
            self.asked_at.set(Some(now));
        }
        is_due
    }
}

/// Beyond this size the buffers for a command and for its reply are not kept.
const KEPT_BYTES: usize = 64 * 1024;

/// Why the host ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The run needs what it does not hold: it is started again from the beginning.
    GiveUp,
    /// SCRIPT KILL, FUNCTION KILL or SHUTDOWN.
    Killed,
    /// The run took longer than it may, as when a library is loaded.
    TimeOver,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stop::GiveUp => "the run was given up",
            Stop::Killed => "the run was killed",
            Stop::TimeOver => "the run took too long",
        })
    }
}

/// The levels of `redis.log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// `redis.LOG_DEBUG`.
    Debug,
    /// `redis.LOG_VERBOSE`.
    Verbose,
    /// `redis.LOG_NOTICE`.
    Notice,
    /// `redis.LOG_WARNING`.
    Warning,
}

/// `redis.acl_check_cmd` was asked about a command that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownCommand;

/// What Lua's functions and the engine share about the present run.
#[derive(Default)]
pub(crate) struct Run {
    /// Set once the host ends the run. From then on nothing can catch the error, and nothing more is asked of the host.
    pub stop: Cell<Option<Stop>>,
    /// What the host, or what writes the reply, has panicked with. The run has ended then.
    pub panic: Cell<Option<Panic>>,
    /// The version that `redis.setresp` has chosen for replies to the script.
    pub resp: Cell<Resp>,
    /// Where the error was raised that nothing has caught.
    pub position: RefCell<Option<Position>>,
    /// When the host is asked.
    pub pace: Pace,
    /// Where the script was when the host ended the run.
    pub ended_at: Cell<Option<Position>>,
    /// How many bytes functions have worked through since they last asked.
    pub n_bytes: Cell<usize>,
    /// The bytes that the state may use.
    pub memory_limit: Cell<usize>,
    /// The generator of `math.random`.
    pub random: Cell<Random>,
    /// The functions that a library has registered; nothing unless one is loading.
    pub registered: RefCell<Option<Vec<Registered>>>,
    /// Room for the words of a command.
    pub request: RefCell<Request>,
    /// The last command's reply. Its room is kept for the next.
    pub reply: RefCell<Vec<u8>>,
}

/// The words of a command, one behind the other.
#[derive(Default)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    ranges: Vec<Arg>,
}

/// What a panic carries.
pub(crate) type Panic = Box<dyn Any + Send>;

/// A place in a script's source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Position {
    /// The chunk's name, `@user_script` for a script's own text.
    pub source: String,
    /// From 1, or -1 where there is no line.
    pub line: i64,
}

impl Run {
    /// Asks the host, unless the run has ended. Its refusal is remembered, so that the error cannot be caught. A panic of the host ends
    /// the run, too, and goes on when that has left Lua.
    pub fn question<R>(&self, question: impl FnOnce(&mut dyn Host) -> Result<R, Stop>) -> Result<R, Stop> {
        if let Some(stop) = self.stop.get() {
            return Err(stop);
        }
        let answer = catch_unwind(AssertUnwindSafe(|| HOST.with(question))).unwrap_or_else(|panic| {
            self.note_panic(panic);
            Err(Stop::Killed)
        });
        answer.inspect_err(|&stop| self.stop.set(Some(stop)))
    }

    /// The same for a function that mlua calls.
    pub fn ask<R>(&self, question: impl FnOnce(&mut dyn Host) -> Result<R, Stop>) -> mlua::Result<R> {
        self.question(question).map_err(errors::stop)
    }

    /// Ends the run with a panic.
    #[cold]
    pub fn note_panic(&self, panic: Panic) {
        self.panic.set(Some(panic));
        self.stop.set(Some(Stop::Killed));
    }

    /// The buffer for the next reply.
    pub fn emptied_reply(&self) -> RefMut<'_, Vec<u8>> {
        let mut reply = self.reply.borrow_mut();
        reply.clear();
        reply.shrink_to(KEPT_BYTES);
        reply
    }

    /// Whether the run is on its way out.
    pub fn is_ending(&self) -> bool {
        self.stop.get().is_some()
    }

    /// Notes that a function works through so many bytes, and asks the host now and then whether to go on.
    pub fn work_through(&self, n_bytes: usize) -> Result<(), Stop> {
        let n_bytes = self.n_bytes.get().saturating_add(n_bytes);
        let is_due = n_bytes >= BYTES_PER_INTERRUPT;
        self.n_bytes.set(if is_due { 0 } else { n_bytes });
        if is_due { self.question(|host| host.interrupt()) } else { Ok(()) }
    }

    /// Asks the host whether to go on.
    pub fn interrupt(&self) -> mlua::Result<()> {
        self.ask(|host| host.interrupt())
    }

    /// Whether the state has no room for `more_bytes`.
    pub fn is_full(&self, lua: &Lua, more_bytes: usize) -> bool {
        let limit = self.memory_limit.get();
        limit != 0 && lua.used_memory().saturating_add(more_bytes) > limit
    }
}

impl Request {
    /// Adds a word: what `write` adds to the bytes. Returns false if there are 4 GiB.
    pub fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let start = self.bytes.len();
        write(&mut self.bytes);
        let (Ok(start), Ok(len)) = (u32::try_from(start), u32::try_from(self.bytes.len() - start)) else {
            return false;
        };
        self.ranges.push(Arg { start, len });
        true
    }

    /// All words.
    pub fn words(&self) -> Words<'_> {
        Words::new(&self.bytes, &self.ranges)
    }

    /// Forgets them. Most of their room is kept.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.ranges.clear();
        self.ranges.shrink_to(KEPT_BYTES / size_of::<Arg>());
    }
}

scoped_thread_local!(static mut HOST: for<'a> &'a mut (dyn Host + 'a));

/// Lends `host` to Lua's functions while `run` runs.
pub(crate) fn lend<R>(host: &mut dyn Host, run: impl FnOnce() -> R) -> R {
    HOST.set(host, run)
}
