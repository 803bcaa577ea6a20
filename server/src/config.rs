//! Configuration: the file, the command line, and `CONFIG GET`, `SET` and `REWRITE`.
//!
//! All of them read one table of directives (`directives.rs`). A [`Config`] holds a value for every row, and
//! the same values once more as typed [`Settings`] for the directives that Braid acts on, so that a reader on
//! a hot path touches a plain field. It is a value: the server shares one in an `Arc`, and `CONFIG SET`
//! changes a clone, lets the parts of the server take what changed (a new port, say), and puts the clone in
//! the old one's place if all of them could.
//!
//! Nothing here reads the clock or opens sockets. Files are read, and directories looked at, when a
//! configuration is loaded or `dir` is set.

mod configuration;
mod directive;
mod directives;
mod file;
mod launch;
mod rewrite;
mod settings;
mod value;
mod words;

pub use self::configuration::{Asker, Config, ConfigError, Glob, is_sensitive};
pub use self::directive::{Directive, Flags, Meaning};
pub use self::directives::{REDIS_VERSION, Settings, directives};
pub use self::file::FatalConfigError;
pub use self::launch::{AofOrder, AofWork, Host, Launch, launch};
pub use self::rewrite::Appended;
pub use self::settings::{
    Access, AclPubsubDefault, Amount, AppendFsync, AuthClients, AuthClientsUser, BindAddress, BindHost,
    KeyspaceEvents, LogLevel, MaxmemoryPolicy, OutputLimit, OutputLimits, RenamedCommand, SavePoint,
    ShutdownOptions, Supervised, SyslogFacility, UserLine,
};
pub use self::value::{Kind, Reason, Value, memory, short_decimal};
pub use self::words::{quote, split};
