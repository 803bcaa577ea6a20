//! The gates that a command passes before it runs or is queued.
//!
//! They are in the order in which users can observe them.

use std::hint::cold_path;

use braid_protocol::number;
use braid_storage::{
    entry::{db::Db, time::Millis},
    sync::coordinator::Held,
};

use crate::{
    catalog::{CommandError, Databases, Denial, Flags, KeyRights, Words, shown},
    client::{node::Job, record::Listens, session::Session},
    command::{self, Found, Registered},
    run::{command_lookup, script_prediction},
    shared::server::Server,
};

/// The decision about an admitted command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It runs now.
    Run,
    /// It waits for EXEC.
    Queue,
    /// It waits for the end of a pause.
    Postpone,
}

/// Passes a command through the gates, in the order in which users can observe them.
pub fn admit(
    server: &Server,
    session: &Session,
    found: &Found,
    words: Words<'_>,
) -> Result<(&'static Registered, Admission), CommandError> {
    let command = known(found, words)?;
    admit_arity(command, words)?;
    admit_protected(command, server, session)?;
    admit_authenticated(command, session)?;
    admit_in_transaction(command, session)?;
    admit_rights(command, words, session)?;
    admit_listener(command, session)?;
    admit_memory(command, words, server, session)?;
    if !server.attention.is_idle(session.rights_as_of) {
        cold_path();
        admit_saved(command, words, server, session)?;
        admit_copied(command, words, server, session)?;
        admit_on_replica(command, words, server, session)?;
        admit_loading(command, server)?;
    }
    // This precedes the pause, after which a postponed command would run. During MULTI, EXEC is the command
    // held back.
    if session.queue.is_some() && !command.has(Flags::IMMEDIATE) {
        return Ok((command, Admission::Queue));
    }
    if !server.attention.is_idle(session.rights_as_of)
        && server
            .holds_back(command.spec.flags, || command_lookup::may_write(server, session, command, words))
    {
        return Ok((command, Admission::Postpone));
    }
    Ok((command, Admission::Run))
}

fn known(found: &Found, words: Words<'_>) -> Result<&'static Registered, CommandError> {
    match found {
        Found::Command(command) => Ok(command),
        Found::Unknown => Err(unknown_command(words)),
        Found::UnknownSubcommand(container) => Err(unknown_subcommand(container, words)),
    }
}

#[cold]
fn unknown_command(words: Words<'_>) -> CommandError {
    let mut beginning = String::new();
    for word in words.iter().skip(1) {
        if beginning.len() >= 128 {
            break;
        }
        beginning.push_str(&format!("'{}' ", shown(&word[..word.len().min(128 - beginning.len())])));
    }
    let name = words.get(0);
    let name = shown(&name[..name.len().min(128)]);
    CommandError::owned(format!("ERR unknown command '{name}', with args beginning with: {beginning}"))
}

#[cold]
fn unknown_subcommand(container: &Registered, words: Words<'_>) -> CommandError {
    let sub = words.get(1);
    let sub = shown(&sub[..sub.len().min(128)]);
    let container = container.spec.name.to_ascii_uppercase();
    CommandError::owned(format!("ERR unknown subcommand '{sub}'. Try {container} HELP."))
}

fn admit_arity(command: &'static Registered, words: Words<'_>) -> Result<(), CommandError> {
    if command.spec.arity.admits(words.len()) { Ok(()) } else { Err(CommandError::Arity(command.full_name)) }
}

/// Admits commands of dangerous features only for clients that the configuration allows.
///
/// The client's user does not matter.
fn admit_protected(command: &Registered, server: &Server, session: &Session) -> Result<(), CommandError> {
    if !command.has_any(Flags::PROTECTED) {
        return Ok(());
    }
    cold_path();
    let config = server.config.load();
    let (access, name) = match command.has(Flags::DEBUGGING) {
        true => (config.enable_debug_command, "debug"),
        false => (config.enable_module_command, "module"),
    };
    if access.admits(session.record.peer.asker()) {
        return Ok(());
    }
    Err(CommandError::owned(format!(
        "ERR {} command not allowed. If the enable-{name}-command option is set to \"local\", you can run it from a local \
         connection, otherwise you need to set this option in the configuration file, and then restart the server.",
        name.to_ascii_uppercase()
    )))
}

fn admit_authenticated(command: &Registered, session: &Session) -> Result<(), CommandError> {
    if session.authenticated || command.has(Flags::NO_AUTH) {
        Ok(())
    } else {
        Err(CommandError::text("NOAUTH Authentication required."))
    }
}

fn admit_in_transaction(command: &Registered, session: &Session) -> Result<(), CommandError> {
    if session.queue.is_some() && command.has(Flags::NO_MULTI) {
        Err(CommandError::text("ERR Command not allowed inside a transaction"))
    } else {
        Ok(())
    }
}

/// Checks a user's rights. This is the only place, except for later actions of a transaction, a script or
/// SORT.
fn admit_rights(command: &Registered, words: Words<'_>, session: &Session) -> Result<(), CommandError> {
    match &session.rights {
        None => Ok(()),
        Some(user) => user.check(&command.asked(words, session.next_db())).map_err(CommandError::Denied),
    }
}

/// Prepares a session for [`admit`] by renewing its rights. Returns false if nothing more of its client runs.
#[inline]
pub fn renew(server: &Server, session: &mut Session) -> bool {
    let mut may_go_on = true;
    if !server.attention.is_idle(session.rights_as_of) {
        cold_path();
        may_go_on = !session.record.is_killed()
            && (server.attention.rights() == session.rights_as_of || server.renew_rights(session));
    }
    session.admitted_as_of = session.rights_as_of;
    may_go_on
}

/// Refuses commands that a subscriber in RESP2, a replica or a monitoring client may not run.
///
/// A subscriber in RESP2 could not tell the reply from a message. A replica may not use keys, and to Redis a
/// monitoring client is one, too.
fn admit_listener(command: &Registered, session: &Session) -> Result<(), CommandError> {
    if command::is_confined(session) && !command.has(Flags::WHILE_SUBSCRIBED) {
        return Err(CommandError::owned(format!(
            "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context",
            command.full_name
        )));
    }
    let is_about_keys =
        || [Flags::READONLY, Flags::WRITE, Flags::MAY_REPLICATE].map(|flag| command.has(flag));
    let listens = [Listens::ToCommands, Listens::ToStream].map(|to| session.record.listens(to));
    if listens.contains(&true) && is_about_keys().contains(&true) {
        return Err(CommandError::text("ERR Replica can't interact with the keyspace"));
    }
    Ok(())
}

/// Whether a command may increase memory use.
fn needs_memory(server: &Server, command: &Registered, words: Words<'_>) -> bool {
    script_prediction::flags(server, command, words).has(Flags::DENYOOM)
}

/// The size of a transaction from which room for its data is made first.
const LARGE_QUEUE_BYTES: usize = 64 << 10;

/// Returns the bytes that EXEC may add, as far as its commands contain them.
///
/// It is 0 for a short queue.
#[inline]
pub fn brought_by_exec(server: &Server, command: &Registered, session: &Session) -> usize {
    let Some(queue) = &session.queue else { return 0 };
    if !command.runs_queue() || queue.refused || queue.n_bytes() < LARGE_QUEUE_BYTES {
        return 0;
    }
    let adding = command_lookup::queued(queue).filter(|&(queued, words)| needs_memory(server, queued, words));
    adding.flat_map(|(_, words)| words.iter()).map(<[u8]>::len).sum()
}

/// Refuses commands when memory is short.
///
/// Queueing is refused, too, because a queue is memory. EXEC is refused if it would run such a command.
fn admit_memory(
    command: &Registered,
    words: Words<'_>,
    server: &Server,
    session: &Session,
) -> Result<(), CommandError> {
    if !server.memory.is_short() {
        return Ok(());
    }
    let denied = needs_memory(server, command, words)
        || match &session.queue {
            Some(queue) if command.runs_queue() => {
                command_lookup::queued(queue).any(|(queued, words)| needs_memory(server, queued, words))
            }
            Some(_) => !command.has(Flags::IMMEDIATE),
            None => false,
        };
    if denied {
        Err(CommandError::text("OOM command not allowed when used memory > 'maxmemory'."))
    } else {
        Ok(())
    }
}

/// The error of a write after a failed snapshot, which might go unnoticed otherwise.
pub const UNSAVED: CommandError = CommandError::text(
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that may modify \
     the data set are disabled, because this instance is configured to report errors during writes if RDB snapshotting fails \
     (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB error.",
);

/// The error of a write while the append-only file cannot be written.
pub const UNLOGGED: CommandError =
    CommandError::text("MISCONF Errors writing to the AOF file: see the server's log");

/// Refuses writes while they cannot be saved. PING is refused, too, because clients and supervisors check it.
fn admit_saved(
    command: &Registered,
    words: Words<'_>,
    server: &Server,
    session: &Session,
) -> Result<(), CommandError> {
    if command.spec.tells_of_failed_saves || command_lookup::writes(server, session, command, words) {
        admit_write(server)?;
    }
    Ok(())
}

/// Refuses writes while their data might not reach the disk.
pub fn admit_write(server: &Server) -> Result<(), CommandError> {
    if server.must_save_first() {
        return Err(UNSAVED);
    }
    if server.durability.aof.has_failed() {
        return Err(UNLOGGED);
    }
    Ok(())
}

/// Refuses writes while too few replicas would get them.
fn admit_copied(
    command: &Registered,
    words: Words<'_>,
    server: &Server,
    session: &Session,
) -> Result<(), CommandError> {
    // A replica has no writes of its own to give away.
    let is_short = server.replication.replicas.is_short() && !server.replica.is_on();
    if is_short && command_lookup::writes(server, session, command, words) {
        return Err(FEW_REPLICAS);
    }
    Ok(())
}

/// The error of a write while too few replicas would get it.
pub const FEW_REPLICAS: CommandError = CommandError::text("NOREPLICAS Not enough good replicas to write.");

/// The error of a write on a replica.
pub const READ_ONLY: CommandError =
    CommandError::text("READONLY You can't write against a read only replica.");

/// The error of a command on a replica without its primary.
pub const CUT_OFF: CommandError =
    CommandError::text("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.");

/// Refuses writes of clients on a replica, and commands on data that may be stale.
fn admit_on_replica(
    command: &Registered,
    words: Words<'_>,
    server: &Server,
    session: &Session,
) -> Result<(), CommandError> {
    if !server.replica.is_on() {
        return Ok(());
    }
    if server.replica.refuses_writes() && command_lookup::writes(server, session, command, words) {
        return Err(READ_ONLY);
    }
    if server.replica.is_cut_off() && command_lookup::needs_fresh_data(server, session, command, words) {
        return Err(CUT_OFF);
    }
    Ok(())
}

/// Refuses a script's command for the role of this server.
pub fn admit_in_script_on_replica(command: &Registered, server: &Server) -> Result<(), CommandError> {
    if is_replaying(server) {
        // The script ran when the server had another role.
        return Ok(());
    }
    if command.has(Flags::WRITE) && server.replica.refuses_writes() {
        return Err(READ_ONLY);
    }
    if !command.has(Flags::STALE) && server.replica.is_cut_off() {
        return Err(CommandError::text("ERR Can not execute the command on a stale replica"));
    }
    Ok(())
}

/// Refuses all commands that need the data set while it is loaded.
fn admit_loading(command: &Registered, server: &Server) -> Result<(), CommandError> {
    if !server.loading.is_on() {
        return Ok(());
    }
    // Looking at a key removes it if its deadline has passed, but a replayed command may have prolonged it.
    let looks_at_keys = server.loading.is_replay() && !command.spec.keys.0.is_empty();
    if command.has(Flags::LOADING) && !looks_at_keys {
        return Ok(());
    }
    Err(LOADING)
}

/// The error of a command that must wait until a data set is loaded.
pub const LOADING: CommandError = CommandError::text("LOADING Redis is loading the dataset in memory");

/// Whether logged commands are being run again at this moment, at time zero.
///
/// No other command may look at keys meanwhile. That would remove keys whose deadline has passed, although a
/// later logged command may have prolonged it.
pub fn is_replaying(server: &Server) -> bool {
    server.loading.is_on() && server.loading.is_replay()
}

/// The reason why a command must not run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Its client is killed, so nothing more of it runs.
    Killed,
    /// CLIENT PAUSE holds it back.
    Paused,
    /// Its user had the right when it was admitted, and has lost it.
    Denied(Denial),
    /// The append-only file is loaded again (DEBUG LOADAOF), which began after the command was admitted.
    Loading,
    /// It writes, and the server has become a replica after the command was admitted.
    ReadOnly,
}

/// The gates that must be checked under the hold.
///
/// A command that kills a client, pauses commands or changes users takes all shards for a moment before it is
/// answered. So a command that runs after the answer sees the change here.
///
/// # Errors
/// If the command must not run now.
pub fn gate(
    server: &Server,
    session: &mut Session,
    command: &Registered,
    words: Words<'_>,
) -> Result<(), Closed> {
    if !server.attention.is_idle(session.rights_as_of) {
        let is_gone = server.attention.rights() != session.rights_as_of && !server.renew_rights(session);
        if is_gone || session.record.is_killed() {
            return Err(Closed::Killed);
        }
        if server
            .holds_back(command.spec.flags, || command_lookup::may_write(server, session, command, words))
        {
            return Err(Closed::Paused);
        }
        if is_replaying(server) && !session.is_between_parts() {
            gate_loading(server, session, command)?;
        }
        if server.replica.refuses_writes()
            && !session.is_between_parts()
            && command_lookup::writes(server, session, command, words)
        {
            if !command.runs_queue() {
                return Err(Closed::ReadOnly);
            }
            session.exec_refusal = Some(READ_ONLY);
        } else if server.replica.is_on() {
            note_own_keys(server, session, command, words);
        }
    }
    // If it were refused now, the command would be left half done.
    if session.admitted_as_of != session.rights_as_of && !session.is_between_parts() {
        gate_rights(session, command, words)?;
    }
    Ok(())
}

/// Notes the keys that a command writes on a writable replica, itself or through EXEC's queue. A script's
/// commands are noted one by one.
#[cold]
fn note_own_keys(server: &Server, session: &Session, command: &Registered, words: Words<'_>) {
    if let Some(queue) = session.queue.as_ref().filter(|_| command.runs_queue()) {
        let mut db = session.db;
        for (queued, words) in command_lookup::queued(queue) {
            db = command_lookup::selected(queued, words).unwrap_or(db);
            note_written_keys(server, db, queued, words);
        }
    }
    note_written_keys(server, session.db, command, words);
}

/// Notes the keys that a command of a client writes, if this server is a replica.
pub fn note_written_keys(server: &Server, db: Db, command: &Registered, words: Words<'_>) {
    if command.has(Flags::WRITE) && server.replica.is_on() {
        let mut keys = Vec::new();
        let spec = command.spec;
        let get = |at| words.get(at);
        spec.keys.positions(words.len(), get, |at, used| {
            // The primary expires keys that are only read, as COPY's source.
            if used.rights(std::iter::empty()).has(KeyRights::WRITE) {
                let database_of = spec.database_of.and_then(|database_of| database_of(words, at));
                keys.push((database_of.unwrap_or(db), words.get(at).into()));
                // MOVE takes its key along to another database.
                keys.extend(named_databases(spec.databases, words).map(|db| (db, words.get(at).into())));
            }
        });
        server.replication.own_keys.add(keys);
    }
}

/// Returns the databases whose numbers are words of a command, if these stand at fixed positions.
fn named_databases(databases: Databases, words: Words<'_>) -> impl Iterator<Item = Db> {
    let places = if let Databases::Words(places) = databases { places } else { &[] };
    let numbers = places.iter().filter(move |&&at| at < words.len());
    let numbers = numbers.filter_map(move |&at| number::parse_i64(words.get(at)));
    numbers.filter_map(|number| number.try_into().ok()).map(Db)
}

/// Checks an admission again that preceded the loading of the append-only file. EXEC must end its
/// transaction.
#[cold]
fn gate_loading(server: &Server, session: &mut Session, command: &Registered) -> Result<(), Closed> {
    if !command.runs_queue() {
        return admit_loading(command, server).map_err(|_| Closed::Loading);
    }
    let mut queued = session.queue.iter().flat_map(command_lookup::queued);
    if queued.any(|(queued, _)| admit_loading(queued, server).is_err()) {
        session.exec_refusal = Some(LOADING);
    }
    Ok(())
}

/// Checks an admission under earlier rights again. EXEC must end its transaction, even if it is denied.
#[cold]
fn gate_rights(session: &mut Session, command: &Registered, words: Words<'_>) -> Result<(), Closed> {
    let Err(CommandError::Denied(denial)) = admit_rights(command, words, session) else { return Ok(()) };
    if command.runs_queue() {
        session.exec_refusal = Some(CommandError::Denied(denial));
        return Ok(());
    }
    Err(Closed::Denied(denial))
}

/// Starts a unit on the held shards, and returns its time.
///
/// It is the latest of the sampled time and the shards' times. Shards that are ahead because the clock was
/// set back do not count.
///
/// `Shard::begin` stores it back for each shard that is used.
pub fn start(held: &mut Held<'_, Job>, sampled: Millis, session: &Session, server: &Server) -> Millis {
    let mut time = sampled;
    held.each_shard(|shard| {
        time = shard.start_at(time, || server.clock.now());
        if session.no_touch {
            shard.leave_untouched();
        }
    });
    time
}

/// Whether a node waits for keys in the held shards, or has pinned some.
pub fn has_lines(held: &mut Held<'_, Job>) -> bool {
    held.any_shard(|shard| shard.has_lines())
}

/// Whether a held shard still has data to save for a snapshot.
pub fn is_saving(held: &mut Held<'_, Job>) -> bool {
    held.any_shard(|shard| shard.is_saving())
}

/// Whether the held shards have observers.
///
/// Those are waiting nodes, nodes with pinned keys, and observers of changes.
pub fn is_observed(held: &mut Held<'_, Job>) -> bool {
    held.any_shard(|shard| shard.has_observers())
}
