//! The engine: one Lua state, the scripts compiled in it, and their runs.

use std::fmt;
use std::rc::Rc;

use braid_protocol::{Reply, Resp};
use mlua::{Function, HookTriggers, Lua, Table, Value, VmState};

use crate::api::{self, Version};
use crate::convert::{Fields, Writer};
use crate::errors::{self, Failure};
use crate::functions::{self, FunctionSpec, LoadError, Registered};
use crate::host::{self, Host, INSTRUCTIONS_PER_HOOK, Run, Stop};
use crate::library::Checkpoint;
use crate::random::Random;
use crate::sandbox::{self, Sandbox, World};
use crate::shebang;

/// After so many runs the collector is pushed on.
const RUNS_PER_COLLECTION: u32 = 50;

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What runs in it.
    pub flavour: Flavour,
    /// The most bytes that its state may use; 0 for no limit.
    pub memory_limit: usize,
    /// Where `math.random` starts; nothing for the state in which redis-server starts. States of several threads that start alike
    /// give the same numbers.
    pub seed: Option<i32>,
    /// The release that scripts are told.
    pub version: Version,
}

/// What runs in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// EVAL's scripts.
    Scripts,
    /// The functions of libraries.
    Functions,
}

/// A compiled script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    index: u32,
    /// Tells a script from an earlier one in the same place.
    generation: u32,
}

/// Why a source is no script.
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

/// How a run ended whose reply is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The reply is what the script returned, and no error.
    Value,
    /// The reply is an error.
    Error {
        /// Whether a command has failed with it, so that it has been counted already.
        is_counted: bool,
    },
}

/// One Lua state with its scripts. It belongs to the thread that made it.
pub struct Engine {
    lua: Lua,
    run: Rc<Run>,
    sandbox: Sandbox,
    fields: Fields,
    scripts: Vec<Slot>,
    free: Vec<u32>,
    n_runs: u32,
}

struct Slot {
    generation: u32,
    script: Option<Script>,
}

struct Script {
    function: Function,
    /// What errors call it: a script's digest, a function's name.
    name: String,
    /// Which tables of arguments it can reach.
    reach: Reach,
}

/// Which tables of arguments a script can reach. One that it cannot is not made: that is a fifth of the shortest run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    keys: bool,
    argv: bool,
}

impl Reach {
    const BOTH: Reach = Reach { keys: true, argv: true };

    /// A global is reached by its name, through `_G`, or by code that the script makes.
    fn of(source: &[u8]) -> Self {
        let mentions = |name: &[u8]| memchr::memmem::find(source, name).is_some();
        let any = mentions(b"_G") || mentions(b"load");
        Reach { keys: any || mentions(b"KEYS"), argv: any || mentions(b"ARGV") }
    }
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
        let loading = functions::loading_table(&lua, &run, &settings.version)?;
        let sandbox = sandbox::build(&lua, &run, redis, loading)?;
        let hooked = Rc::clone(&run);
        let triggers = HookTriggers::new().every_nth_instruction(INSTRUCTIONS_PER_HOOK);
        lua.set_global_hook(triggers, move |lua, _| {
            if hooked.pace.is_due() {
                hooked.interrupt().inspect_err(|_| errors::note_end(lua, &hooked))?;
            }
            Ok(VmState::Continue)
        })?;
        let fields = Fields::new(&lua)?;
        run.memory_limit.set(settings.memory_limit);
        run.random.set(settings.seed.map_or_else(Random::default, Random::seeded));
        Ok(Engine { lua, run, sandbox, fields, scripts: Vec::new(), free: Vec::new(), n_runs: 0 })
    }

    /// Compiles a script. `name` is what errors call it: its digest.
    ///
    /// # Errors
    ///
    /// If the source is no Lua.
    pub fn compile(&mut self, source: &[u8], name: &str) -> Result<Handle, CompileError> {
        let function = self
            .limited(|engine| sandbox::chunk(&engine.lua, shebang::body(source), b"@user_script"))
            .map_err(|error| CompileError { complaint: sandbox::syntax(&error) })?;
        Ok(self.keep(Script { function, name: name.to_owned(), reach: Reach::of(source) }))
    }

    fn keep(&mut self, script: Script) -> Handle {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.scripts[index as usize];
            slot.script = Some(script);
            return Handle { index, generation: slot.generation };
        }
        let index = u32::try_from(self.scripts.len()).expect("fewer scripts than memory");
        self.scripts.push(Slot { generation: 0, script: Some(script) });
        Handle { index, generation: 0 }
    }

    /// Frees a script. Its handle is unknown from then on.
    pub fn forget(&mut self, handle: Handle) {
        let Some(slot) = self.scripts.get_mut(handle.index as usize) else { return };
        if slot.generation == handle.generation && slot.script.take().is_some() {
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(handle.index);
        }
    }

    /// Runs a script and writes its reply: what it returns, or its error.
    ///
    /// # Errors
    ///
    /// What the host ended the run with, but for [`Stop::Killed`], which is an error reply. The reply and `math.random` are as they were.
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
        self.run_in(Self::script_trampoline, handle, keys, argv, host, reply)
    }

    /// Calls a function of a library and writes its reply, as [`Engine::run`] does.
    ///
    /// # Errors
    ///
    /// What the host ended the run with. The reply and `math.random` are as they were.
    ///
    /// # Panics
    ///
    /// If the handle is unknown, and if the host panics.
    pub fn call_function(
        &mut self,
        handle: Handle,
        keys: &[&[u8]],
        argv: &[&[u8]],
        host: &mut dyn Host,
        reply: &mut Reply<'_>,
    ) -> Result<Ended, Stop> {
        self.run_in(Self::function_trampoline, handle, keys, argv, host, reply)
    }

    fn script_trampoline(&self) -> &Function {
        &self.sandbox.run
    }

    fn function_trampoline(&self) -> &Function {
        &self.sandbox.call
    }

    fn run_in(
        &mut self,
        trampoline: fn(&Self) -> &Function,
        handle: Handle,
        keys: &[&[u8]],
        argv: &[&[u8]],
        host: &mut dyn Host,
        reply: &mut Reply<'_>,
    ) -> Result<Ended, Stop> {
        self.start();
        let (start, random) = (reply.written_bytes(), self.run.random.get());
        let ended = host::lend(host, || self.run_with_host(trampoline(self), handle, keys, argv, reply));
        self.finish();
        let Err(stop) = ended else { return ended };
        reply.truncate(start);
        self.run.random.set(random);
        let at = self.run.ended_at.take().unwrap_or_default();
        if stop != Stop::Killed {
            return Err(stop);
        }
        let name = &self.script(handle).name;
        let text = "ERR Script killed by user with SCRIPT KILL...";
        reply.error(format!("{text} script: {name}, on {}:{}.", at.source, at.line));
        Ok(Ended::Error { is_counted: false })
    }

    /// Loads a library: runs its code once and answers the functions that it has registered. The name in the first line is for
    /// [`crate::shebang::library`] to read.
    ///
    /// # Errors
    ///
    /// If the code is no Lua, fails, registers nothing or is ended by the host. Nothing is kept then.
    pub fn load_library(&mut self, code: &[u8], host: &mut dyn Host) -> Result<Vec<FunctionSpec>, LoadError> {
        self.start();
        let function = self
            .limited(|engine| sandbox::chunk(&engine.lua, shebang::body(code), b"@user_function"))
            .map_err(|error| LoadError::Compile(sandbox::syntax(&error)))?;
        self.run.registered.replace(Some(Vec::new()));
        let result = host::lend(host, || {
            let _shown = Loading::new(&self.sandbox);
            self.limited(|engine| {
                engine.sandbox.call.call::<(bool, Value)>((&function, Value::Nil, Value::Nil))
            })
        });
        let registered = self.run.registered.take().unwrap_or_default();
        self.finish();
        self.loaded(result)?;
        if registered.is_empty() {
            return Err(LoadError::Empty);
        }
        Ok(registered.into_iter().map(|function| self.keep_function(function)).collect())
    }

    fn loaded(&self, result: mlua::Result<(bool, Value)>) -> Result<(), LoadError> {
        if let Some(stop) = self.run.stop.get() {
            return Err(LoadError::Stopped(stop));
        }
        let error = match result {
            Ok((true, _)) => return Ok(()),
            Ok((false, error)) => error,
            Err(error) => Value::Error(Box::new(error)),
        };
        let position = self.run.position.take();
        let failure = errors::failure(&self.lua, &error, position.as_ref()).map_err(LoadError::Stopped)?;
        Err(LoadError::Run(failure.text))
    }

    fn keep_function(&mut self, function: Registered) -> FunctionSpec {
        let Registered { name, callback, flags, description } = function;
        let handle = self.keep(Script { function: callback, name: name.clone(), reach: Reach::BOTH });
        FunctionSpec { name, handle, flags, description }
    }

    fn start(&mut self) {
        self.run.stop.set(None);
        self.run.pace.begin();
        self.run.is_asking.set(false);
        self.run.resp.set(Resp::V2);
    }

    /// As Redis does, the collector is pushed on now and then, so that short runs do not leave all its work to a long one.
    fn finish(&mut self) {
        self.n_runs += 1;
        if self.n_runs.is_multiple_of(RUNS_PER_COLLECTION) {
            let _ = self.lua.gc_step();
        }
        self.make_room();
    }

    /// 5.1 does not collect when memory runs out: what is left of a run must not make the next one fail.
    fn make_room(&self) {
        let limit = self.run.memory_limit.get();
        if limit != 0 && self.used_bytes() > limit / 2 {
            let _ = self.lua.gc_collect();
        }
    }

    fn run_with_host(
        &self,
        trampoline: &Function,
        handle: Handle,
        keys: &[&[u8]],
        argv: &[&[u8]],
        reply: &mut Reply<'_>,
    ) -> Result<Ended, Stop> {
        let script = self.script(handle);
        let result = self.call(trampoline, script, keys, argv);
        if let Some(stop) = self.run.stop.get() {
            return Err(stop);
        }
        let written =
            result.and_then(
                |(is_done, value)| if is_done { self.write(&value, reply).map(Ok) } else { Ok(Err(value)) },
            );
        match written {
            Ok(Ok(ended)) => Ok(ended),
            Ok(Err(error)) => self.fail(script, &error, reply),
            Err(error) => self.fail(script, &Value::Error(Box::new(error)), reply),
        }
    }

    fn script(&self, handle: Handle) -> &Script {
        let slot = &self.scripts[handle.index as usize];
        assert_eq!(slot.generation, handle.generation, "the script was forgotten");
        slot.script.as_ref().expect("a slot of this generation is filled")
    }

    fn call(
        &self,
        run: &Function,
        script: &Script,
        keys: &[&[u8]],
        argv: &[&[u8]],
    ) -> mlua::Result<(bool, Value)> {
        let keys = script.reach.keys.then(|| self.strings(keys)).transpose()?;
        let argv = script.reach.argv.then(|| self.strings(argv)).transpose()?;
        self.limited(|_| run.call((&script.function, keys, argv)))
    }

    fn strings(&self, texts: &[&[u8]]) -> mlua::Result<Table> {
        self.lua.create_sequence_from(texts.iter().map(|&text| mlua::LuaString::wrap(text)))
    }

    /// Runs `work` within the memory limit. Rust's own work needs none: it would pay for it at every value.
    fn limited<R>(&self, work: impl FnOnce(&Self) -> R) -> R {
        let _limited = Limited::new(&self.lua, self.run.memory_limit.get());
        work(self)
    }

    fn write(&self, value: &Value, reply: &mut Reply<'_>) -> mlua::Result<Ended> {
        let mut writer =
            Writer { fields: &self.fields, reply, script: self.run.resp.get(), is_counted: false };
        let is_error = writer.value(value)?;
        let is_counted = writer.is_counted;
        Ok(if is_error { Ended::Error { is_counted } } else { Ended::Value })
    }

    fn fail(&self, script: &Script, error: &Value, reply: &mut Reply<'_>) -> Result<Ended, Stop> {
        let position = self.run.position.take();
        let Failure { mut text, is_counted } = errors::failure(&self.lua, error, position.as_ref())?;
        if let Some(at) = position {
            text.extend_from_slice(
                format!(" script: {}, on {}:{}.", script.name, at.source, at.line).as_bytes(),
            );
        }
        reply.error(text);
        Ok(Ended::Error { is_counted })
    }

    /// The bytes that the state uses.
    pub fn used_bytes(&self) -> usize {
        self.lua.used_memory()
    }
}

/// Shows the world of libraries that load until it is dropped.
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

/// Has a library's long loop ask the host whether to go on.
fn go_on(lua: &Lua, _: u32) -> mlua::Result<()> {
    lua.app_data_ref::<Rc<Run>>().map_or(Ok(()), |run| run.interrupt())
}

/// Holds the state to its memory limit until it is dropped.
struct Limited<'a>(&'a Lua);

impl<'a> Limited<'a> {
    fn new(lua: &'a Lua, bytes: usize) -> Self {
        if bytes != 0 {
            let _ = lua.set_memory_limit(bytes);
        }
        Limited(lua)
    }
}

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        let _ = self.0.set_memory_limit(0);
    }
}
