//! The host of a run: the caller of the engine, which runs the script's commands.
//!
//! Lua's functions live as long as their state, the host only as long as one run. So the engine lends the
//! host through a scoped thread-local: [`lend`] puts it there for one run, and [`ask`] takes it for one
//! question. The place is empty while the host answers, so a host may run another engine.

use braid_protocol::{Resp, Words};
use scoped_tls_hkt::scoped_thread_local;

use crate::outcome::Stop;

/// The interface by which a script runs commands. The server implements it.
pub trait Host {
    /// Runs one command for `redis.call` or `redis.pcall` and appends its reply.
    ///
    /// The reply has the version `resp`. An error is written as `-CODE text\r\n`.
    ///
    /// # Errors
    ///
    /// An error ends the run at once, whatever the script does.
    fn call(&mut self, words: Words<'_>, resp: Resp, reply: &mut Vec<u8>) -> Result<(), Stop>;

    /// Writes a line of `redis.log`.
    fn log(&mut self, level: LogLevel, message: &[u8]);

    /// Returns for `redis.acl_check_cmd` whether the user may run the command.
    ///
    /// # Errors
    ///
    /// If there is no such command.
    fn acl_check(&mut self, words: Words<'_>) -> Result<bool, UnknownCommand>;

    /// Sets the copies that `redis.set_repl` wants written: bit 0 the AOF, bit 1 the replicas.
    fn set_replication(&mut self, flags: u8);

    /// Answers whether the run may continue.
    ///
    /// The engine asks every [`INSTRUCTIONS_PER_INTERRUPT`] instructions. Functions that work long without
    /// instructions ask too.
    ///
    /// # Errors
    ///
    /// An error ends the run at once, whatever the script does.
    fn interrupt(&mut self) -> Result<(), Stop>;
}

/// The number of Lua's instructions between two calls of [`Host::interrupt`].
pub const INSTRUCTIONS_PER_INTERRUPT: u32 = 10_000;

/// The levels of `redis.log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// The level `redis.LOG_DEBUG`.
    Debug,
    /// The level `redis.LOG_VERBOSE`.
    Verbose,
    /// The level `redis.LOG_NOTICE`.
    Notice,
    /// The level `redis.LOG_WARNING`.
    Warning,
}

/// The answer to `redis.acl_check_cmd` about a command that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownCommand;

scoped_thread_local!(static mut HOST: for<'a> &'a mut (dyn Host + 'a));

/// Lends `host` to Lua's functions while `run` runs.
pub(crate) fn lend<R>(host: &mut dyn Host, run: impl FnOnce() -> R) -> R {
    HOST.set(host, run)
}

/// Asks the host that is lent.
pub(crate) fn ask<R>(question: impl FnOnce(&mut dyn Host) -> R) -> R {
    HOST.with(question)
}
