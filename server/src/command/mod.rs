//! Commands: the families with their rows, the table of all rows, and what a handler may use.

mod call;
mod categories;
mod condition;
mod digest;
mod each_key;
mod expire_options;
mod help;
pub mod info;
mod lcs;
mod members;
mod reaches;
mod spec;
mod syntax;
mod table;
mod work;

mod admin;
mod bitmaps;
mod client;
mod dump;
mod field_expiry;
mod geo;
mod handshake;
mod hashes;
mod hyperloglog;
mod introspection;
mod keys;
mod libraries;
mod lists;
mod pubsub;
mod scripting;
mod sets;
mod sort;
mod sorted_sets;
mod streams;
mod strings;
mod tracking;
mod transactions;

use std::sync::LazyLock;

pub use call::{Call, GaveUp};
pub(crate) use pubsub::{is_confined, joins_or_leaves_events, leave_channel, subscribed_routes};
pub(crate) use scripting::{BUSY_FUNCTION, BUSY_SCRIPT, learn_script};
pub use spec::{BeginSweep, CommandSpec, Run, ScriptIn};
pub use table::{CommandTable, Found, Registered};
pub(crate) use transactions::{forget_own_watches, forget_watches, watched_routes};
pub use work::{Estimate, Look, Method, Work};

/// The families' rows: the whole command table.
const FAMILIES: &[&[CommandSpec]] = &[
    strings::COMMANDS,
    bitmaps::COMMANDS,
    hyperloglog::COMMANDS,
    sets::COMMANDS,
    lists::COMMANDS,
    hashes::COMMANDS,
    field_expiry::COMMANDS,
    sorted_sets::COMMANDS,
    geo::COMMANDS,
    streams::COMMANDS,
    sort::COMMANDS,
    keys::COMMANDS,
    dump::COMMANDS,
    transactions::COMMANDS,
    scripting::COMMANDS,
    libraries::COMMANDS,
    pubsub::COMMANDS,
    handshake::COMMANDS,
    client::COMMANDS,
    admin::COMMANDS,
    introspection::COMMANDS,
];

/// The table, built once. Handlers reach it by their [`Call`]: the table consists of them.
pub static TABLE: LazyLock<CommandTable> = LazyLock::new(|| CommandTable::build(FAMILIES));
