//! Administration: commands on the whole server, its settings, its files and its tests.

pub(crate) mod changing_role;
pub(super) mod config_command;
mod debug;
mod digest;
mod failing_over;
pub(crate) mod replication;
mod row_flags;
pub(super) mod saving;
mod whole_server;

use super::CommandSpec;

/// The rows, in the order in which COMMAND prints them.
pub(super) const COMMANDS: &[CommandSpec] = &[
    whole_server::INFO,
    config_command::CONFIG,
    whole_server::TIME,
    whole_server::LOLWUT,
    whole_server::SHUTDOWN,
    debug::DEBUG,
    saving::WAIT,
    saving::WAITAOF,
    failing_over::FAILOVER,
    changing_role::ROLE,
    saving::LASTSAVE,
    saving::SAVE,
    saving::BGSAVE,
    saving::BGREWRITEAOF,
    replication::PSYNC,
    replication::SYNC,
    replication::REPLCONF,
    changing_role::REPLICAOF,
    changing_role::SLAVEOF,
];
