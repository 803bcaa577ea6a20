//! The state of the present run, which the engine shares with Lua's functions.

use std::any::Any;
use std::cell::{Cell, RefCell, RefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use braid_protocol::{Arg, Resp, Words};
use mlua::Lua;

use crate::functions::Registered;
use crate::generator::Random;
use crate::host::{self, Host};
use crate::outcome::Stop;
use crate::pace::Pace;
use crate::raise;

/// The bytes that functions read or write between two questions to the host.
///
/// That is some milliseconds of work.
const BYTES_PER_INTERRUPT: usize = 8 << 20;
/// The capacity that the buffers for a command and for its reply keep between commands.
const KEPT_BYTES: usize = 64 * 1024;

/// The state of the present run, shared by the engine and Lua's functions.
#[derive(Default)]
pub(crate) struct Run {
    /// Set once the host ends the run. From then on nothing can catch the error, and the host gets no more
    /// questions.
    pub stop: Cell<Option<Stop>>,
    /// The panic of the host, or of the code that writes the reply. It ends the run.
    pub panic: Cell<Option<Panic>>,
    /// The version that `redis.setresp` has set for replies to the script.
    pub resp: Cell<Resp>,
    /// The place where the uncaught error was raised.
    pub position: RefCell<Option<Position>>,
    /// The pace of the questions to the host.
    pub pace: Pace,
    /// The script's place when the host ended the run.
    pub ended_at: Cell<Option<Position>>,
    /// The bytes that functions have read or written since they last asked the host.
    pub n_bytes: Cell<usize>,
    /// The bytes that the state may use.
    pub memory_limit: Cell<usize>,
    /// The generator of `math.random`.
    pub random: Cell<Random>,
    /// The functions that the loading library has registered; none unless a library is loading.
    pub registered: RefCell<Option<Vec<Registered>>>,
    /// A buffer for the words of a command.
    pub request: RefCell<Request>,
    /// The last command's reply. The next one uses its buffer.
    pub reply: RefCell<Vec<u8>>,
}

/// The words of a command, one after the other.
#[derive(Default)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    ranges: Vec<Arg>,
}

/// The payload of a panic.
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
    /// Asks the host, unless the run has ended.
    ///
    /// The run remembers a refusal, so that the error cannot be caught. A panic of the host ends the run
    /// too, and continues once the run has left Lua.
    pub fn question<R>(&self, question: impl FnOnce(&mut dyn Host) -> Result<R, Stop>) -> Result<R, Stop> {
        if let Some(stop) = self.stop.get() {
            return Err(stop);
        }
        let answer = catch_unwind(AssertUnwindSafe(|| host::ask(question))).unwrap_or_else(|panic| {
            self.note_panic(panic);
            Err(Stop::Killed)
        });
        answer.inspect_err(|&stop| self.stop.set(Some(stop)))
    }

    /// Asks the host, like [`question`](Self::question), in a function that mlua calls.
    pub fn ask<R>(&self, question: impl FnOnce(&mut dyn Host) -> Result<R, Stop>) -> mlua::Result<R> {
        self.question(question).map_err(raise::stop)
    }

    /// Ends the run with a panic.
    #[cold]
    pub fn note_panic(&self, panic: Panic) {
        self.panic.set(Some(panic));
        self.stop.set(Some(Stop::Killed));
    }

    /// The buffer for the next reply, empty.
    pub fn emptied_reply(&self) -> RefMut<'_, Vec<u8>> {
        let mut reply = self.reply.borrow_mut();
        reply.clear();
        reply.shrink_to(KEPT_BYTES);
        reply
    }

    /// Whether the host has ended the run.
    pub fn is_ending(&self) -> bool {
        self.stop.get().is_some()
    }

    /// Notes that a function reads or writes `n_bytes`.
    ///
    /// It sometimes asks the host whether to continue.
    pub fn work_through(&self, n_bytes: usize) -> Result<(), Stop> {
        let n_bytes = self.n_bytes.get().saturating_add(n_bytes);
        let is_due = n_bytes >= BYTES_PER_INTERRUPT;
        self.n_bytes.set(if is_due { 0 } else { n_bytes });
        if is_due { self.question(|host| host.interrupt()) } else { Ok(()) }
    }

    /// Asks the host whether to continue.
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
    /// Adds a word: the bytes that `write` appends. Returns false once there are 4 GiB.
    pub fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let start = self.bytes.len();
        write(&mut self.bytes);
        let (Ok(start), Ok(len)) = (u32::try_from(start), u32::try_from(self.bytes.len() - start)) else {
            return false;
        };
        self.ranges.push(Arg { start, len });
        true
    }

    /// All words of the command.
    pub fn words(&self) -> Words<'_> {
        Words::new(&self.bytes, &self.ranges)
    }

    /// Removes all words. Buffers up to [`KEPT_BYTES`] keep their capacity.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.ranges.clear();
        self.ranges.shrink_to(KEPT_BYTES / size_of::<Arg>());
    }
}
