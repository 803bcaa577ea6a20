//! Commands: their families with the rows, and the table of all rows.
//!
//! Some modules are shared by handlers.

mod admin;
mod arguments;
mod call;
mod connections;
mod families;
mod help;
mod log_rewrite;
mod reports;
mod table;
mod work;

use std::sync::{LazyLock, OnceLock};

use braid_protocol::request::{Parse, RequestParser};
use braid_storage::entry::db::Db;

use crate::{access::User, catalog::Words, config::RenamedCommand};
use table::renames::CalledNames;

pub(crate) use admin::changing_role::end_waits;
pub(crate) use admin::replication::name_of as name_of_replica;
pub(crate) use admin::{
    config_command::turns_log_on,
    saving::{NOT_LOGGED, write_synced},
};
pub use call::{Call, GaveUp, ShardAccess};
pub use connections::acl::users_at_start;
pub(crate) use connections::acl::{
    count_denial, entry_of, error_in_script, error_in_transaction, note_denial, note_refused_certificate,
};
pub(crate) use connections::client::{ROLE_CHANGED, UNBLOCKED, describe as describe_client};
pub(crate) use connections::handshake::rest_after;
pub(crate) use families::libraries::{add_libraries, replace_libraries};
pub(crate) use families::pubsub::{is_confined, joins_or_leaves_events, leave_channel, subscribed_routes};
pub(crate) use families::scripting::{BUSY_FUNCTION, BUSY_SCRIPT, learn_script};
pub(crate) use families::transactions::{
    forget_own_watches, forget_own_watches_in_parts, unwatch_keys, watched_routes,
};
pub use table::spec::{BeginSweep, CommandSpec, Log, LogAs, PART_KEYS, Run, ScriptIn};
pub use table::{CommandTable, Found, Registered};
pub use work::{Estimate, Look, Method, Work};

/// The rows of each family, which form the whole command table.
const FAMILIES: &[&[CommandSpec]] = &[
    families::strings::COMMANDS,
    families::increx::COMMANDS,
    families::bitmaps::COMMANDS,
    families::hyperloglog::COMMANDS,
    families::sets::COMMANDS,
    families::lists::COMMANDS,
    families::lmovem::COMMANDS,
    families::hashes::COMMANDS,
    families::field_expiry::COMMANDS,
    families::sorted_sets::COMMANDS,
    families::geo::COMMANDS,
    families::streams::COMMANDS,
    families::sort::COMMANDS,
    families::keys::COMMANDS,
    families::dump::COMMANDS,
    families::transactions::COMMANDS,
    families::scripting::COMMANDS,
    families::libraries::COMMANDS,
    families::pubsub::COMMANDS,
    connections::handshake::COMMANDS,
    connections::client::COMMANDS,
    connections::acl::COMMANDS,
    admin::COMMANDS,
    reports::slowlog::COMMANDS,
    reports::latency_reports::COMMANDS,
    reports::memory_reports::COMMANDS,
    reports::hotkeys::COMMANDS,
    families::stubs::COMMANDS,
    table::introspection::COMMANDS,
];

/// Whether a user may run a command, given as one line.
pub(crate) fn may_run(user: &User, line: &str) -> bool {
    let mut line = format!("{line}\r\n").into_bytes();
    let mut ranges = Vec::new();
    let parsed = RequestParser::default().parse(&mut line, &mut ranges);
    assert!(matches!(parsed, Ok(Parse::Request { .. })), "it is a line of plain words");
    let words = Words::new(&line, &ranges);
    match TABLE.find(words) {
        Found::Command(command) => user.check(&command.asked(words, Db(0))).is_ok(),
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
    let names = table::renames::called_names(own, renamed)?;
    let known = CALLED.get_or_init(|| names.clone());
    if *known == names { Ok(()) } else { Err("commands are renamed only once".to_owned()) }
}

/// The table, built once. Handlers reach it by their [`Call`], because the table contains the handlers.
pub static TABLE: LazyLock<CommandTable> =
    LazyLock::new(|| CommandTable::build(FAMILIES, CALLED.get().cloned().unwrap_or_default()));
