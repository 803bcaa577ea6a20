//! Configuration: the file, the command line, and `CONFIG GET`, `SET` and `REWRITE`.
//!
//! All of them read one table of directives (`directives.rs`). A [`Config`] contains a value for every row.
//! The directives that Braid acts on have a second copy as typed [`Settings`], so that hot paths read a plain
//! field.
//!
//! A configuration is a value. The server shares one in an `Arc`. `CONFIG SET` changes a clone and applies
//! the changes to the parts of the server, such as a new port. If all of them succeed, the clone replaces the
//! old configuration.
//!
//! This module does not read the clock or open sockets. It reads files and checks directories when a
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
pub use self::directive::{Directive, DirectiveFlags, Meaning};
pub use self::directives::{REDIS_VERSION, Settings, directives};
pub use self::file::FatalConfigError;
pub use self::launch::{AofOrder, AofWork, ConvertOrder, Host, Launch, launch};
pub use self::rewrite::{Appended, SameUser};
pub use self::settings::{
    Access, AclPubsubDefault, Amount, AnnounceAs, AppendFsync, AuthClients, AuthClientsUser, BindAddress,
    BindHost, DisklessLoad, KeyspaceEvents, LogFormat, LogLevel, LogTimestampFormat, MaxmemoryPolicy,
    OomScoreAdj, OutputLimit, OutputLimits, PrimaryAddress, PropagationErrors, RdbWriteFormat,
    RenamedCommand, SavePoint, ShutdownOptions, Supervised, SyslogFacility, UserLine,
};
pub use self::value::{Kind, Reason, Value, memory, short_decimal};
pub use self::words::{quote, split};
