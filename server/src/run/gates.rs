//! The gates that a command passes before it runs or is queued, in the order in which users can observe them.

use std::hint::cold_path;

use braid_storage::{coordinator::Held, time::Millis};

use crate::{
    catalog::{CommandError, Denial, Flags, Words, shown},
    client::{node::Job, record::Listens, session::Session},
    command::{self, Found, Registered},
    run::{command_lookup, script_prediction},
    shared::server::Server,
};

/// What is to become of an admitted command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It runs now.
    Run,
    /// It waits for EXEC.
    Queue,
    /// It waits for the end of a pause.
    Postpone,
}

/// The gates, in the order in which users can observe them.
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
    admit_saved(command, words, server, session)?;
    admit_loading(command, server, session)?;
    // Before the pause, which would have it run when it ends: it is EXEC that is held back.
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

/// Commands of dangerous features are for those whom the configuration allows them, whoever they say they
/// are.
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

/// The one place where it is checked what a user may do, but for what a transaction, a script or SORT does
/// later.
fn admit_rights(command: &Registered, words: Words<'_>, session: &Session) -> Result<(), CommandError> {
    match &session.rights {
        None => Ok(()),
        Some(user) => user.check(&command.asked(words)).map_err(CommandError::Denied),
    }
}

/// Prepares a session for [`admit`]: its rights are those that hold. Returns false if nothing more of its
/// client runs.
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

/// A subscriber in RESP2 could not tell the reply from a message. To Redis, a monitoring client is a replica.
fn admit_listener(command: &Registered, session: &Session) -> Result<(), CommandError> {
    if command::is_confined(session) && !command.has(Flags::WHILE_SUBSCRIBED) {
        return Err(CommandError::owned(format!(
            "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context",
            command.full_name
        )));
    }
    let is_about_keys =
        || [Flags::READONLY, Flags::WRITE, Flags::MAY_REPLICATE].map(|flag| command.has(flag));
    if session.record.listens(Listens::ToCommands) && is_about_keys().contains(&true) {
        return Err(CommandError::text("ERR Replica can't interact with the keyspace"));
    }
    Ok(())
}

/// Whether a command may add to what is in use.
fn needs_memory(server: &Server, command: &Registered, words: Words<'_>) -> bool {
    script_prediction::flags(server, command, words).has(Flags::DENYOOM)
}

/// A transaction of at least so many bytes has room made for what it may add before it runs.
const LARGE_QUEUE_BYTES: usize = 64 << 10;

/// How many bytes EXEC may add to what is in use, as far as its commands bring them; of a short queue, none.
#[inline]
pub fn brought_by_exec(server: &Server, command: &Registered, session: &Session) -> usize {
    let Some(queue) = &session.queue else { return 0 };
    if !command.runs_queue() || queue.refused || queue.n_bytes() < LARGE_QUEUE_BYTES {
        return 0;
    }
    let adding = command_lookup::queued(queue).filter(|&(queued, words)| needs_memory(server, queued, words));
    adding.flat_map(|(_, words)| words.iter()).map(<[u8]>::len).sum()
}

/// When memory is short, queueing is refused, too: a queue is memory. EXEC is if it would run what is.
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

/// What writes are told when the last snapshot has failed and nobody might notice.
pub const UNSAVED: CommandError = CommandError::text(
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that may modify \
     the data set are disabled, because this instance is configured to report errors during writes if RDB snapshotting fails \
     (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB error.",
);

/// What the client of a write is told while the append-only file cannot be written.
pub const UNLOGGED: CommandError =
    CommandError::text("MISCONF Errors writing to the AOF file: see the server's log");

/// PING tells of it, too: clients and supervisors look at that.
#[inline]
fn admit_saved(
    command: &Registered,
    words: Words<'_>,
    server: &Server,
    session: &Session,
) -> Result<(), CommandError> {
    if !server.attention.is_idle(session.rights_as_of) {
        cold_path();
        let is_told =
            command.spec.tells_of_failed_saves || command_lookup::writes(server, session, command, words);
        if is_told {
            admit_write(server)?;
        }
    }
    Ok(())
}

/// Refuses writes while what they would write might not come to the disk.
pub fn admit_write(server: &Server) -> Result<(), CommandError> {
    if server.must_save_first() {
        return Err(UNSAVED);
    }
    if server.durability.aof.has_failed() {
        return Err(UNLOGGED);
    }
    Ok(())
}

/// While a data set is loaded, only what does not need it runs.
#[inline]
fn admit_loading(command: &Registered, server: &Server, session: &Session) -> Result<(), CommandError> {
    if server.attention.is_idle(session.rights_as_of) || !server.loading.is_on() {
        return Ok(());
    }
    cold_path();
    // To look at a key removes it if its time is over, and what is replayed after that may have prolonged it.
    let looks_at_keys = server.loading.is_replay() && !command.spec.keys.0.is_empty();
    if command.has(Flags::LOADING) && !looks_at_keys {
        return Ok(());
    }
    Err(LOADING)
}

/// What a command is told that has to wait until a data set is loaded.
pub const LOADING: CommandError = CommandError::text("LOADING Redis is loading the dataset in memory");

/// Whether commands that were logged are run again just now, at time zero: nobody else may look at keys, as
/// that would remove those whose time is over, and what comes next may have prolonged it.
pub fn is_replaying(server: &Server) -> bool {
    server.loading.is_on() && server.loading.is_replay()
}

/// Why a command must not run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Its client is killed: nothing more of it runs.
    Killed,
    /// CLIENT PAUSE holds it back.
    Paused,
    /// Its user had the right when it was admitted, and has it no more.
    Denied(Denial),
    /// The append-only file is loaded again (DEBUG LOADAOF), which had not begun when it was admitted.
    Loading,
}

/// The gates that must be asked under the hold: whoever kills a client, pauses commands or changes users
/// takes all shards for a moment before that is answered, so what runs after the answer sees it here.
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
    }
    // Refused now, a command would be left half done.
    if session.admitted_as_of != session.rights_as_of && !session.is_between_parts() {
        gate_rights(session, command, words)?;
    }
    Ok(())
}

/// Checks again what was admitted before the append-only file was loaded. EXEC must end its transaction.
#[cold]
fn gate_loading(server: &Server, session: &mut Session, command: &Registered) -> Result<(), Closed> {
    if !command.runs_queue() {
        return admit_loading(command, server, session).map_err(|_| Closed::Loading);
    }
    let mut queued = session.queue.iter().flat_map(command_lookup::queued);
    if queued.any(|(queued, _)| admit_loading(queued, server, session).is_err()) {
        session.exec_refusal = Some(LOADING);
    }
    Ok(())
}

/// Checks again what was admitted as of earlier rights. EXEC must end its transaction, whatever it is denied.
#[cold]
fn gate_rights(session: &mut Session, command: &Registered, words: Words<'_>) -> Result<(), Closed> {
    let Err(CommandError::Denied(denial)) = admit_rights(command, words, session) else { return Ok(()) };
    if command.runs_queue() {
        session.exec_refusal = Some(CommandError::Denied(denial));
        return Ok(());
    }
    Err(Closed::Denied(denial))
}

/// Starts a unit on the shards it holds, and gives its time: the latest of the sample's and the shards', but
/// for those that are ahead because the clock was set back.
///
/// Storing it back is what `Shard::begin` does for each shard that is touched.
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

/// Whether anybody waits for keys in the shards that are held, or has pinned some.
pub fn has_lines(held: &mut Held<'_, Job>) -> bool {
    held.any_shard(|shard| shard.has_lines())
}

/// Whether a held shard has yet to give something to a snapshot.
pub fn is_saving(held: &mut Held<'_, Job>) -> bool {
    held.any_shard(|shard| shard.is_saving())
}

/// Whether anybody waits for keys in the shards that are held, has pinned some, or hears of changes.
pub fn is_observed(held: &mut Held<'_, Job>) -> bool {
    held.any_shard(|shard| shard.has_observers())
}
