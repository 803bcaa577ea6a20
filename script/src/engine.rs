//! The engine: one Lua state, the scripts compiled in it, and their runs.

use std::fmt;
use std::panic::resume_unwind;
use std::rc::Rc;

use braid_protocol::{Reply, Resp};
use mlua::{HookTriggers, Lua, Value, VmState};

use crate::analysis::uses::{self, Use};
use crate::api;
use crate::bridge::{Bridge, Given, InputList, Runnable, Takes};
use crate::convert;
use crate::engine_settings::Settings;
use crate::errors::{self, RunFailure};
use crate::functions::{FunctionSpec, LoadError, Registered};
use crate::generator::Random;
use crate::handles::{Handle, Handles};
use crate::host::{self, Host};
use crate::library::Checkpoint;
use crate::outcome::{Ended, Stop};
use crate::pace::INSTRUCTIONS_PER_HOOK;
use crate::registration;
use crate::run_state::Run;
use crate::sandbox::{self, Sandbox, World};
use crate::shebang;

/// The reason why a source is no script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError {
    /// Lua's complaint: `user_script:1: unexpected symbol near 'x'`.
    pub complaint: String,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ERR Error compiling script (new function): {}", self.complaint)
    }
}

impl std::error::Error for CompileError {}

/// One Lua state with its scripts. It belongs to the thread that made it.
pub struct Engine {
    lua: Lua,
    run: Rc<Run>,
    sandbox: Sandbox,
    bridge: Bridge,
    scripts: Handles<Script>,
    n_runs: u32,
    /// Bytes that the state used after its last collection.
    collected_bytes: usize,
    /// The collector's cycles that remain; 0 if no collection is under way.
    n_cycles_left: u32,
}

/// The growth in bytes after which a state is collected. Lua alone would wait until the state has doubled.
const GROWN_BYTES: usize = 4 << 20;

/// The cycles of one collection.
///
/// The collector may be in the middle of a cycle. Garbage that arises after a cycle's beginning is found by
/// the next one.
const N_CYCLES: u32 = 2;

struct Script {
    runnable: Runnable,
    /// The name in its errors: a script's digest, or a function's name.
    name: String,
    /// The use of its keys and of its arguments.
    ///
    /// A list made for every run would take a fifth of the shortest run.
    uses: [Use; 2],
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("used_bytes", &self.used_bytes()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Makes a state.
    ///
    /// # Panics
    ///
    /// If there is no memory for an empty state.
    pub fn new(settings: &Settings) -> Self {
        Self::try_new(settings).expect("an empty state can be made")
    }

    fn try_new(settings: &Settings) -> mlua::Result<Self> {
        let lua = sandbox::state()?;
        let run = Rc::new(Run::default());
        lua.set_app_data(Rc::clone(&run));
        lua.set_app_data(Checkpoint(go_on));
        let redis = api::table(&lua, &run, &settings.version, settings.flavour)?;
        let loading = registration::loading_table(&lua, &run, &settings.version)?;
        let sandbox = sandbox::build(&lua, &run, redis, loading)?;
        let hooked = Rc::clone(&run);
        let triggers = HookTriggers::new().every_nth_instruction(INSTRUCTIONS_PER_HOOK);
        lua.set_global_hook(triggers, move |lua, _| {
            if hooked.pace.is_due() {
                hooked.interrupt().inspect_err(|_| errors::note_end(lua, &hooked))?;
            }
            Ok(VmState::Continue)
        })?;
        let bridge = Bridge::new(&lua, &run, &sandbox.world, &sandbox.handler)?;
        run.random.set(settings.seed.map_or_else(Random::default, Random::seeded));
        let mut engine = Engine {
            lua,
            run,
            sandbox,
            bridge,
            scripts: Handles::new(),
            n_runs: 0,
            collected_bytes: 0,
            n_cycles_left: 0,
        };
        engine.limit_memory(settings.memory_limit);
        Ok(engine)
    }

    /// Compiles a script. `name` is its name in errors: the digest.
    ///
    /// # Errors
    ///
    /// If the source is not Lua.
    pub fn compile(&mut self, source: &[u8], name: &str) -> Result<Handle, CompileError> {
        let runnable = sandbox::chunk(&self.lua, shebang::body(source), b"@user_script")
            .and_then(|function| {
                self.sandbox.shorten_way_to_globals(&function)?;
                self.bridge.keep(&function, Takes::Globals)
            })
            .map_err(|error| CompileError { complaint: sandbox::syntax(&error) })?;
        let uses = [&b"KEYS"[..], b"ARGV"].map(|name| uses::of_list(source, name));
        Ok(self.scripts.keep(Script { runnable, name: name.to_owned(), uses }))
    }

    /// Frees a script. Its handle is unknown from then on.
    pub fn forget(&mut self, handle: Handle) {
        if let Some(script) = self.scripts.take(handle) {
            self.bridge.forget(script.runnable);
        }
    }

    /// Runs a script, or calls a library's function, and writes its value or its error.
    ///
    /// # Errors
    ///
    /// The reason with which the host ended the run. The reply and `math.random` are then as before the run.
    /// [`Stop::Killed`] is an error reply instead.
    ///
    /// # Panics
    ///
    /// If the handle is unknown, and if the host panics.
    pub fn run(
        &mut self,
        handle: Handle,
        keys: &[&[u8]],
        argv: &[&[u8]],
        host: &mut dyn Host,
        reply: &mut Reply<'_>,
    ) -> Result<Ended, Stop> {
        self.start();
        let (start, random) = (reply.written_bytes(), self.run.random.get());
        let ended = host::lend(host, || self.run_with_host(handle, keys, argv, reply));
        self.finish();
        let Err(stop) = ended else { return ended };
        reply.truncate(start);
        self.run.random.set(random);
        let at = self.run.ended_at.take().unwrap_or_default();
        if stop != Stop::Killed {
            return Err(stop);
        }
        let name = &self.scripts.get(handle).name;
        let text = "ERR Script killed by user with SCRIPT KILL...";
        reply.error(format!("{text} script: {name}, on {}:{}.", at.source, at.line));
        Ok(Ended::Error { is_counted: false })
    }

    /// Loads a library: runs its code once and returns the functions that it has registered.
    ///
    /// [`crate::shebang::library`] reads the library's name from the first line.
    ///
    /// # Errors
    ///
    /// If the code is not Lua, fails, registers nothing or is ended by the host. Nothing is kept then.
    pub fn load_library(&mut self, code: &[u8], host: &mut dyn Host) -> Result<Vec<FunctionSpec>, LoadError> {
        self.start();
        let function = sandbox::chunk(&self.lua, shebang::body(code), b"@user_function")
            .map_err(|error| LoadError::Compile(sandbox::syntax(&error)))?;
        let code = self.bridge.keep(&function, Takes::Arguments);
        let code = code.map_err(|error| LoadError::Compile(sandbox::syntax(&error)))?;
        self.run.registered.replace(Some(Vec::new()));
        let result = host::lend(host, || {
            let _shown = Loading::new(&self.sandbox);
            self.bridge.run(&code, Given { keys: InputList::Nil, argv: InputList::Nil }, None)
        });
        self.bridge.forget(code);
        let registered = self.run.registered.take().unwrap_or_default();
        self.finish();
        self.loaded(result)?;
        if registered.is_empty() {
            return Err(LoadError::Empty);
        }
        registered.into_iter().map(|function| self.keep_function(function)).collect()
    }

    fn loaded(&self, result: Result<Ended, Value>) -> Result<(), LoadError> {
        if let Some(stop) = self.run.stop.get() {
            return Err(LoadError::Stopped(stop));
        }
        let Err(error) = result else { return Ok(()) };
        let position = self.run.position.take();
        let failure = errors::failure(&self.lua, &error, position.as_ref()).map_err(LoadError::Stopped)?;
        Err(LoadError::Run(failure.text))
    }

    fn keep_function(&mut self, function: Registered) -> Result<FunctionSpec, LoadError> {
        let Registered { name, callback, flags, description } = function;
        let runnable = self.bridge.keep(&callback, Takes::Arguments);
        let runnable = runnable.map_err(|error| LoadError::Compile(sandbox::syntax(&error)))?;
        let handle = self.scripts.keep(Script { runnable, name: name.clone(), uses: [Use::Freely; 2] });
        Ok(FunctionSpec { name, handle, flags, description })
    }

    fn start(&mut self) {
        self.run.stop.set(None);
        self.run.pace.begin();
        self.run.resp.set(Resp::V2);
    }

    fn finish(&mut self) {
        self.n_runs = self.n_runs.wrapping_add(1);
        self.make_room();
        drop(self.run.emptied_reply());
        if let Some(panic) = self.run.panic.take() {
            resume_unwind(panic);
        }
    }

    /// Collects everything if more than half of the memory limit is used.
    ///
    /// Lua 5.1 does not collect when memory runs out. Without this, the garbage of one run would make the
    /// next one fail.
    fn make_room(&self) {
        let limit = self.run.memory_limit.get();
        if limit != 0 && self.used_bytes() > limit / 2 {
            let _ = self.lua.gc_collect();
        }
    }

    fn run_with_host(
        &self,
        handle: Handle,
        keys: &[&[u8]],
        argv: &[&[u8]],
        reply: &mut Reply<'_>,
    ) -> Result<Ended, Stop> {
        let (script, start) = (self.scripts.get(handle), reply.written_bytes());
        let list = |uses, texts| match uses {
            Use::Not => InputList::Nil,
            Use::Elements => InputList::Lent(texts),
            Use::Freely => InputList::Fresh(texts),
        };
        let [of_keys, of_argv] = script.uses;
        let given = Given { keys: list(of_keys, keys), argv: list(of_argv, argv) };
        let result = self.bridge.run(&script.runnable, given, Some(&mut *reply));
        match (self.run.stop.get(), result) {
            (Some(stop), _) => Err(stop),
            (None, Ok(ended)) => Ok(ended),
            (None, Err(error)) => {
                // The script may have failed while its value was being written.
                reply.truncate(start);
                self.fail(script, &error, reply)
            }
        }
    }

    fn fail(&self, script: &Script, error: &Value, reply: &mut Reply<'_>) -> Result<Ended, Stop> {
        let position = self.run.position.take();
        let RunFailure { mut text, is_counted } = errors::failure(&self.lua, error, position.as_ref())?;
        if let Some(at) = position {
            text.extend_from_slice(
                format!(" script: {}, on {}:{}.", script.name, at.source, at.line).as_bytes(),
            );
        }
        convert::write_error(reply, &text);
        Ok(Ended::Error { is_counted })
    }

    /// Sets the most bytes that the state may use; 0 for no limit.
    pub fn limit_memory(&mut self, bytes: usize) {
        if self.run.memory_limit.replace(bytes) != bytes {
            // The state's allocator is mlua's, which can be limited.
            let _ = self.lua.set_memory_limit(bytes);
        }
    }

    /// The number of runs of scripts, functions and loading libraries. It wraps around after 2^32.
    pub fn n_runs(&self) -> u32 {
        self.n_runs
    }

    /// Whether the state has grown so much that it must be collected.
    ///
    /// [`collect_some`](Self::collect_some) does that, between runs and with nothing held.
    pub fn owes_collection(&self) -> bool {
        self.n_cycles_left > 0 || self.used_bytes() > self.collected_bytes + GROWN_BYTES
    }

    /// Collects a little. Returns whether there is more to do.
    pub fn collect_some(&mut self) -> bool {
        if self.n_cycles_left == 0 {
            self.n_cycles_left = N_CYCLES;
        }
        // An error ends the cycle as well; only finalizers can raise one, and there are none.
        if self.lua.gc_step().unwrap_or(true) {
            self.n_cycles_left -= 1;
            if self.n_cycles_left == 0 {
                self.collected_bytes = self.used_bytes();
            }
        }
        self.n_cycles_left > 0
    }

    /// The bytes that the state uses.
    pub fn used_bytes(&self) -> usize {
        self.lua.used_memory()
    }
}

/// A guard that shows the world of loading libraries until it is dropped.
struct Loading<'a>(&'a Sandbox);

impl<'a> Loading<'a> {
    fn new(sandbox: &'a Sandbox) -> Self {
        let _ = sandbox.show(World::Loading);
        Loading(sandbox)
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let _ = self.0.show(World::Running);
    }
}

/// Asks the host whether a library's long loop may continue.
fn go_on(lua: &Lua, _: u32) -> mlua::Result<()> {
    lua.app_data_ref::<Rc<Run>>().map_or(Ok(()), |run| run.interrupt())
}
