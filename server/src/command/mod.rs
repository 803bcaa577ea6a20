//! Commands: their families with the rows, and the table of all rows.
//!
//! Some modules are shared by handlers.

mod acl_names;
mod call;
mod categories;
mod collection_args;
mod condition;
mod digest;
mod each_key;
mod expire_options;
mod help;
mod info;
mod lcs;
mod log_rewrite;
mod pops;
mod renames;
mod script_key_specs;
mod spec;
mod syntax;
mod table;
mod work;

mod acl;
mod admin;
mod bitmaps;
mod client;
mod dump;
mod field_expiry;
mod geo;
mod handshake;
mod hashes;
mod hotkeys;
mod hyperloglog;
mod introspection;
mod keys;
mod latency_reports;
mod libraries;
mod lists;
mod memory_reports;
mod pubsub;
mod scripting;
mod sets;
mod slowlog;
mod sort;
mod sorted_sets;
mod source_keys;
mod streams;
mod strings;
mod stubs;
mod tracking;
mod transactions;

use std::sync::{LazyLock, OnceLock};

use braid_protocol::request::{Parse, RequestParser};

use crate::{access::User, catalog::Words, config::RenamedCommand};
use renames::CalledNames;

pub use acl::users_at_start;
pub(crate) use acl::{
    count_denial, entry_of, error_in_script, error_in_transaction, note_denial, note_refused_certificate,
};
pub(crate) use admin::{NOT_LOGGED, turns_log_on, write_synced};
pub use call::{Call, GaveUp, ShardAccess};
pub(crate) use client::{UNBLOCKED, describe as describe_client};
pub(crate) use handshake::rest_after;
pub(crate) use libraries::{add_libraries, replace_libraries};
pub(crate) use pubsub::{is_confined, joins_or_leaves_events, leave_channel, subscribed_routes};
pub(crate) use scripting::{BUSY_FUNCTION, BUSY_SCRIPT, learn_script};
pub use spec::{BeginSweep, CommandSpec, Log, LogAs, PART_KEYS, Run, ScriptIn};
pub use table::{CommandTable, Found, Registered};
pub(crate) use transactions::{
    forget_own_watches, forget_own_watches_in_parts, unwatch_keys, watched_routes,
};
pub use work::{Estimate, Look, Method, Work};

/// The rows of each family, which form the whole command table.
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
    acl::COMMANDS,
    admin::COMMANDS,
    slowlog::COMMANDS,
    latency_reports::COMMANDS,
    memory_reports::COMMANDS,
    hotkeys::COMMANDS,
    stubs::COMMANDS,
    introspection::COMMANDS,
];

/// Whether a user may run a command, given as one line.
pub(crate) fn may_run(user: &User, line: &str) -> bool {
    let mut line = format!("{line}\r\n").into_bytes();
    let mut ranges = Vec::new();
    let parsed = RequestParser::default().parse(&mut line, &mut ranges);
    assert!(matches!(parsed, Ok(Parse::Request { .. })), "it is a line of plain words");
    let words = Words::new(&line, &ranges);
    match TABLE.find(words) {
        Found::Command(command) => user.check(&command.asked(words)).is_ok(),
        _ => false,
    }
}

/// The names that clients use. They are set before the table is built.
static CALLED: OnceLock<CalledNames> = OnceLock::new();

/// Sets the names of renamed commands, before the table is built.
///
/// It must be called before any use of the table, and always with the same names.
///
/// # Errors
/// If a command does not exist, or a new name is taken. The error has Redis's words.
pub fn rename(renamed: &[RenamedCommand]) -> Result<(), String> {
    let own = FAMILIES.iter().copied().flatten().map(|spec| spec.name);
    let names = renames::called_names(own, renamed)?;
    let known = CALLED.get_or_init(|| names.clone());
    if *known == names { Ok(()) } else { Err("commands are renamed only once".to_owned()) }
}

/// The table, built once. Handlers reach it by their [`Call`], because the table contains the handlers.
pub static TABLE: LazyLock<CommandTable> =
    LazyLock::new(|| CommandTable::build(FAMILIES, CALLED.get().cloned().unwrap_or_default()));
