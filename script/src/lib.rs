//! Lua for Braid: runs scripts and functions, and predicts the keys that a script uses.
//!
//! The crate knows RESP and Lua. It knows nothing of keys, shards, sockets or threads. The caller of a run
//! passes a host, which runs the script's commands.
//!
//! An [`Engine`] is one Lua state with the scripts compiled in it. It belongs to the thread that made it.
//! Scripts and functions have an engine each ([`Flavour`]), because their globals and error texts differ.
//!
//! ```
//! # use braid_protocol::{Reply, Resp, Words};
//! # use braid_script::{Engine, Ended, Flavour, Host, LogLevel, Settings, Stop, UnknownCommand, Version};
//! struct Echo;
//!
//! impl Host for Echo {
//!     fn call(&mut self, words: Words<'_>, resp: Resp, reply: &mut Vec<u8>) -> Result<(), Stop> {
//!         Reply::new(reply, resp).bulk(words.get(1));
//!         Ok(())
//!     }
//! #   fn log(&mut self, _: LogLevel, _: &[u8]) {}
//! #   fn acl_check(&mut self, _: Words<'_>) -> Result<bool, UnknownCommand> { Ok(true) }
//! #   fn set_replication(&mut self, _: u8) {}
//! #   fn interrupt(&mut self) -> Result<(), Stop> { Ok(()) }
//!     // log, acl_check, set_replication, interrupt ...
//! }
//!
//! let version = Version { text: "7.4.0".into(), number: 0x0007_0400 };
//! let settings = Settings { flavour: Flavour::Scripts, memory_limit: 1 << 30, seed: None, version };
//! let mut engine = Engine::new(&settings);
//! let script = engine.compile(b"return redis.call('ECHO', KEYS[1])", "the digest")?;
//! let mut out = Vec::new();
//! let mut reply = Reply::new(&mut out, Resp::V2);
//! assert_eq!(engine.run(script, &[b"key"], &[], &mut Echo, &mut reply), Ok(Ended::Value));
//! assert_eq!(out, b"$3\r\nkey\r\n");
//! # Ok::<(), braid_script::CompileError>(())
//! ```
//!
//! These guarantees always hold:
//! - An error of a script is a reply, worded as in Redis. `Err` is the host's answer, and then nothing has
//!   been written.
//! - Once the host has ended a run, no Lua code can catch that, and the host gets no more questions. A panic
//!   of the host leaves the engine as the same panic. In both cases the engine can be used again.
//! - One run's changes to tables, globals or the collector are invisible to the next.
//!
//! Terms: see `docs/glossary.md`.
#![deny(unsafe_code)]

pub mod analysis;
mod api;
#[expect(unsafe_code, reason = "functions in C that run at each command and each run")]
mod bridge;
mod bytecode;
mod convert;
mod decimal;
mod engine;
mod engine_settings;
mod errors;
mod functions;
mod generator;
mod handles;
mod host;
pub mod library;
#[expect(unsafe_code, reason = "functions in C, in the place of Lua's own")]
mod lua_overrides;
mod lua_value;
mod natives;
mod outcome;
mod pace;
mod raise;
mod random;
mod registration;
mod run_state;
mod sandbox;
pub mod shebang;
#[expect(unsafe_code, reason = "Lua's own stack")]
mod stack;
mod strings;

pub use engine::{CompileError, Engine};
pub use engine_settings::{Flavour, Settings, Version};
pub use functions::{FunctionSpec, LoadError};
pub use handles::Handle;
pub use host::{Host, INSTRUCTIONS_PER_INTERRUPT, LogLevel, UnknownCommand};
pub use outcome::{Ended, Stop};
pub use shebang::Flags;
