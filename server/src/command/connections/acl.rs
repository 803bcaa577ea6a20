//! ACL: users and their rights.

use std::{fs, io, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

use braid_journal::disk::read_regular;
use braid_protocol::reply::Reply;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::{
    access::{
        CheckedCommand, Commands, Context, DenialEntry, DeniedRight, Selector, User, Users, has_spaces,
    },
    catalog::{Args, Arity, Categories, CommandError, Denial, Flags, Group, Outcome, Words, shown},
    client::{
        record::{ClientRecord, Identity},
        session::Session,
    },
    command::{
        Call, CommandSpec, CommandTable, Found, Registered, Run, describe_client,
        help::{help, misused},
    },
    config::{AclPubsubDefault, AnnounceAs, Config, UserLine},
    shared::{server::Server, thread_state::ThreadState},
    warning_later,
};

const ROW: CommandSpec = CommandSpec {
    flags: Flags::NOSCRIPT.and(Flags::LOADING).and(Flags::STALE),
    group: Group::Server,
    since: "6.0.0",
    ..CommandSpec::ROW
};
const ADMIN: CommandSpec = CommandSpec { flags: ROW.flags.and(Flags::ADMIN), ..ROW };
const FOR_EACH_USER: &str = "O(N). Where N is the number of configured users.";

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[CommandSpec {
    name: "acl",
    arity: Arity::AtLeast(2),
    since: "6.0.0",
    group: Group::Server,
    summary: "A container for Access List Control commands.",
    complexity: "Depends on subcommand.",
    subcommands: SUBCOMMANDS,
    ..CommandSpec::ROW
}];

const SUBCOMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "cat",
        arity: Arity::AtLeast(2),
        run: Run::Session(list_categories),
        syntax: "[category]",
        summary: "Lists the ACL categories, or the commands inside a category.",
        complexity: "O(1) since the categories and commands are a fixed set.",
        ..ROW
    },
    CommandSpec {
        name: "deluser",
        arity: Arity::AtLeast(3),
        flags: ADMIN.flags.and(Flags::SECRET),
        run: Run::Barrier(delete_users),
        syntax: "username [username ...]",
        summary: "Deletes ACL users, and terminates their connections.",
        complexity: "O(1) amortized time considering the typical user.",
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        ..ADMIN
    },
    CommandSpec {
        name: "dryrun",
        arity: Arity::AtLeast(4),
        run: Run::Session(dry_run),
        since: "7.0.0",
        syntax: "username command [arg [arg ...]]",
        summary: "Simulates the execution of a command by a user, without executing the command.",
        complexity: "O(1).",
        ..ADMIN
    },
    CommandSpec {
        name: "genpass",
        arity: Arity::AtLeast(2),
        run: Run::Session(generate_password),
        syntax: "[bits]",
        summary: "Generates a pseudorandom, secure password that can be used to identify ACL users.",
        ..ROW
    },
    CommandSpec {
        name: "getuser",
        arity: Arity::Exactly(3),
        flags: ADMIN.flags.and(Flags::SECRET),
        run: Run::Session(get_user),
        syntax: "username",
        summary: "Lists the ACL rules of a user.",
        complexity: "O(N). Where N is the number of password, command and pattern rules that the user has.",
        ..ADMIN
    },
    CommandSpec { run: Run::Session(print_help), since: "6.0.0", group: Group::Server, ..CommandSpec::HELP },
    CommandSpec {
        name: "list",
        arity: Arity::Exactly(2),
        run: Run::Session(list),
        summary: "Dumps the effective rules in ACL file format.",
        complexity: FOR_EACH_USER,
        ..ADMIN
    },
    CommandSpec {
        name: "load",
        arity: Arity::Exactly(2),
        flags: ADMIN.flags.and(Flags::USES_FILES),
        run: Run::Barrier(load),
        summary: "Reloads the rules from the configured ACL file.",
        complexity: FOR_EACH_USER,
        ..ADMIN
    },
    CommandSpec {
        name: "log",
        arity: Arity::AtLeast(2),
        run: Run::Session(log),
        syntax: "[count | RESET]",
        summary: "Lists recent security events generated due to ACL rules.",
        complexity: "O(N) with N being the number of entries shown.",
        ..ADMIN
    },
    CommandSpec {
        name: "save",
        arity: Arity::Exactly(2),
        flags: ADMIN.flags.and(Flags::USES_FILES),
        run: Run::Session(save),
        summary: "Saves the effective ACL rules in the configured ACL file.",
        complexity: FOR_EACH_USER,
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        ..ADMIN
    },
    CommandSpec {
        name: "setuser",
        arity: Arity::AtLeast(3),
        flags: ADMIN.flags.and(Flags::SECRET),
        run: Run::Barrier(set_user),
        syntax: "username [rule [rule ...]]",
        summary: "Creates and modifies an ACL user and its rules.",
        complexity: "O(N). Where N is the number of rules provided.",
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        ..ADMIN
    },
    CommandSpec {
        name: "users",
        arity: Arity::Exactly(2),
        run: Run::Session(list_names),
        summary: "Lists all ACL users.",
        complexity: FOR_EACH_USER,
        ..ADMIN
    },
    CommandSpec {
        name: "whoami",
        arity: Arity::Exactly(2),
        run: Run::Session(who_am_i),
        summary: "Returns the authenticated username of the current connection.",
        ..ROW
    },
];

const HELP: &[&str] = &[
    "CAT [<category>]",
    "    Return the categories, or the commands that belong to one.",
    "DELUSER <username> [<username> ...]",
    "    Delete users and close their connections.",
    "DRYRUN <username> <command> [<arg> ...]",
    "    Return whether a user may run a command, without running it.",
    "GENPASS [<bits>]",
    "    Return a random password of so many bits (default: 256).",
    "GETUSER <username>",
    "    Return what a user may do.",
    "LIST",
    "    Return all users as an ACL file has them.",
    "LOAD",
    "    Put the users of the ACL file in the place of those that hold.",
    "LOG [<count>|RESET]",
    "    Return what was denied lately, or forget it.",
    "SAVE",
    "    Write the users to the ACL file.",
    "SETUSER <username> [<rule> ...]",
    "    Make or change a user.",
    "USERS",
    "    Return the names of all users.",
    "WHOAMI",
    "    Return the user of this connection.",
];

fn print_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(reply, "ACL", HELP)
}

fn list_categories(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if args.remaining() > 1 {
        return Err(misused("ACL", args));
    }
    let Some(name) = args.peek() else {
        reply.array(Categories::NAMES.len());
        Categories::NAMES.iter().for_each(|(_, name)| reply.bulk(name.as_bytes()));
        return Ok(());
    };
    let category = Categories::named(args.next()?).ok_or_else(|| {
        let name = shown(&name[..name.len().min(128)]);
        CommandError::owned(format!("ERR Unknown category '{name}'"))
    })?;
    let mut names = Vec::new();
    call.table.each(&mut |ids, categories| {
        if categories.has(category) {
            names.push(call.table.get(ids[0]).full_name);
        }
    });
    reply.array(names.len());
    names.iter().for_each(|name| reply.bulk(name.as_bytes()));
    Ok(())
}

/// Whether new users may use all channels.
fn allows_all_channels(config: &Config) -> bool {
    config.acl_pubsub_default == AclPubsubDefault::Allchannels
}

/// Changes the users, if the client still has the right to.
///
/// Another client's change may have come first.
fn change_users<T>(
    call: &mut Call<'_, '_>,
    words: Words<'_>,
    change: impl FnOnce(&mut Users, &'static CommandTable) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let Call { server, session, table, thread, .. } = call;
    let table = *table;
    let identity = session.record.user.load_full();
    let new_allows_all_channels = allows_all_channels(&server.config.load());
    let db = session.db;
    let changed = server.change_users(session, thread, |users| {
        if let Found::Command(command) = table.find(words) {
            check_still_allowed(users, &identity, &command.asked(words, db))?;
        }
        users.new_allows_all_channels = new_allows_all_channels;
        change(users, table)
    })?;
    if call.is_part() {
        // The rest of the transaction obeys the change. If the user is gone, the client is disconnected
        // afterwards.
        let _: bool = call.server.renew_rights(call.session);
    }
    Ok(changed)
}

fn check_still_allowed(users: &Users, identity: &Identity, asked: &CheckedCommand<'_>) -> Outcome {
    let user = users.get(&identity.name).filter(|user| user.serial() == identity.serial);
    let allowed = user.ok_or(Denial::Command(asked.full_name)).and_then(|user| user.check(asked));
    allowed.map_err(CommandError::Denied)
}

fn set_user(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let words = args.words();
    let name = args.next()?;
    if has_spaces(name) {
        return Err(CommandError::text("ERR Usernames can't contain spaces or null characters"));
    }
    let rules: Vec<&[u8]> = args.rest().collect();
    change_users(call, words, |users, table| {
        users.set(name, &rules, table).map_err(|error| CommandError::owned(format!("ERR {error}")))
    })?;
    reply.ok();
    Ok(())
}

fn delete_users(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if args.rest().any(|name| name == crate::access::DEFAULT_USER) {
        return Err(CommandError::text("ERR The 'default' user cannot be removed"));
    }
    let n_deleted = change_users(call, args.words(), |users, _| {
        Ok(args.rest().filter(|name| users.remove(name).is_some()).count())
    })?;
    reply.integer(n_deleted as i64);
    Ok(())
}

fn get_user(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let users = call.server.accounts.users();
    let Some(user) = users.get(args.next()?) else {
        reply.null();
        return Ok(());
    };
    // Clients of Redis do not know the field.
    let has_databases =
        user.has_database_rules() || call.server.config.load().announce_as == AnnounceAs::Valkey91;
    reply.map(6 + usize::from(has_databases));
    reply.bulk(b"flags");
    let flags = user.flags();
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"passwords");
    reply.array(user.passwords().len());
    user.passwords().iter().for_each(|password| reply.bulk(password.to_string().as_bytes()));
    describe_selector(user.own_selector(), has_databases, reply);
    reply.bulk(b"selectors");
    reply.array(user.added_selectors().len());
    for selector in user.added_selectors() {
        reply.map(3 + usize::from(has_databases));
        describe_selector(selector, has_databases, reply);
    }
    Ok(())
}

/// Writes three fields of a map, and that of databases.
fn describe_selector(selector: &Selector, has_databases: bool, reply: &mut Reply<'_>) {
    let fields = [
        ("commands", selector.describe_commands()),
        ("keys", selector.describe_keys()),
        ("channels", selector.describe_channels()),
    ];
    for (name, rules) in fields {
        reply.bulk(name.as_bytes());
        reply.bulk(&rules);
    }
    if has_databases {
        reply.bulk(b"databases");
        reply.bulk(&match selector.describe_databases() {
            none if none == b"resetdbs" => Vec::new(),
            all if all.is_empty() => b"alldbs".to_vec(),
            some => some,
        });
    }
}

fn list(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let users = call.server.accounts.users();
    reply.array(users.all().len());
    for user in users.all() {
        reply.bulk(&[b"user ", &user.name()[..], b" ", &user.describe()].concat());
    }
    Ok(())
}

fn list_names(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let users = call.server.accounts.users();
    reply.array(users.all().len());
    users.all().for_each(|user| reply.bulk(user.name()));
    Ok(())
}

fn who_am_i(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    reply.bulk(&call.session.record.user.load().name);
    Ok(())
}

fn generate_password(_: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    const MAX_BITS: i64 = 4096;
    if args.remaining() > 1 {
        return Err(misused("ACL", args));
    }
    let n_bits = if args.is_empty() { 256 } else { args.int()? };
    if !(1..=MAX_BITS).contains(&n_bits) {
        return Err(CommandError::owned(format!(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to {MAX_BITS}"
        )));
    }
    let n_digits = (n_bits as usize).div_ceil(4);
    let mut bytes = vec![0; n_digits.div_ceil(2)];
    fill_with_random(&mut bytes)
        .map_err(|error| CommandError::owned(format!("ERR no random bytes: {error}")))?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    reply.bulk(&digits.as_bytes()[..n_digits]);
    Ok(())
}

/// Uses the operating system's generator, because nobody must be able to guess the bytes.
fn fill_with_random(mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = getrandom(&mut *bytes, GetRandomFlags::empty())?;
        bytes = &mut bytes[n..];
    }
    Ok(())
}

fn dry_run(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let users = call.server.accounts.users();
    let name = args.next()?;
    let user = users
        .get(name)
        .ok_or_else(|| CommandError::owned(format!("ERR User '{}' not found", shown(name))))?;
    let words = args.words().from(3);
    let Found::Command(command) = call.table.find(words) else {
        return Err(CommandError::owned(format!("ERR Command '{}' not found", shown(words.get(0)))));
    };
    if !command.spec.arity.admits(words.len()) {
        return Err(CommandError::Arity(command.full_name));
    }
    let Err(denial) = user.check(&command.asked(words, call.session.db)) else {
        reply.ok();
        return Ok(());
    };
    let (reason, what) = named_by(denial, words);
    let verb = if reason == DeniedRight::Command { "run" } else { "access" };
    // As in Redis, where it is a C string.
    let what = what.split(|&byte| byte == 0).next().unwrap_or_default();
    if reason == DeniedRight::Database {
        let before = format!("User {} has no permissions to access database ", shown(name));
        reply.bulk(&[before.as_bytes(), what].concat());
        return Ok(());
    }
    let before = format!("This user has no permissions to {verb} the '");
    reply.bulk(&[before.as_bytes(), what, b"' ", reason.name().as_bytes()].concat());
    Ok(())
}

fn log(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    const SHOWN: usize = 10;
    if args.remaining() > 1 {
        return Err(misused("ACL", args));
    }
    let n_shown = match args.peek() {
        None => SHOWN,
        Some(word) if word.eq_ignore_ascii_case(b"RESET") => {
            call.server.accounts.denials().clear();
            reply.ok();
            return Ok(());
        }
        Some(_) => usize::try_from(args.int()?.max(0)).unwrap_or(usize::MAX),
    };
    let entries: Vec<DenialEntry> = call.server.accounts.denials().iter().take(n_shown).cloned().collect();
    reply.array(entries.len());
    let now = call.server.clock.now();
    for entry in &entries {
        describe_entry(entry, now.0.saturating_sub(entry.updated.0), reply);
    }
    Ok(())
}

fn describe_entry(entry: &DenialEntry, age_millis: u64, reply: &mut Reply<'_>) {
    reply.map(10);
    reply.bulk(b"count");
    reply.integer(entry.count as i64);
    for (name, text) in [
        ("reason", entry.reason.name().as_bytes()),
        ("context", entry.context.name().as_bytes()),
        ("object", &entry.object),
        ("username", &entry.user),
    ] {
        reply.bulk(name.as_bytes());
        reply.bulk(text);
    }
    reply.bulk(b"age-seconds");
    reply.double(age_millis as f64 / 1000.0);
    reply.bulk(b"client-info");
    reply.bulk(entry.client.trim_end().as_bytes());
    for (name, number) in [
        ("entry-id", entry.id),
        ("timestamp-created", entry.created.0),
        ("timestamp-last-updated", entry.updated.0),
    ] {
        reply.bulk(name.as_bytes());
        reply.integer(number as i64);
    }
}

/// Counts a denial of a client's command, and adds it to ACL LOG.
#[cold]
pub(crate) fn note_denial(
    session: &Session,
    denial: Denial,
    words: Words<'_>,
    context: Context,
    table: &CommandTable,
    thread: &ThreadState,
) {
    let entry = entry_of(session, denial, words, context, table, thread.server());
    count_denial(entry.reason, thread);
    thread.server().note_denial(entry);
}

/// Returns the entry of ACL LOG for a denial of a client's command.
#[cold]
pub(crate) fn entry_of(
    session: &Session,
    denial: Denial,
    words: Words<'_>,
    context: Context,
    table: &CommandTable,
    server: &Server,
) -> DenialEntry {
    let (reason, object) = named_by(denial, words);
    let user = session.record.user.load();
    let client = describe_client(&session.record, table, server.clock.uptime_millis());
    DenialEntry::new(reason, context, object, &user.name, client, server.clock.now())
}

/// Returns the denied part of a command's words, with the reason.
fn named_by(denial: Denial, words: Words<'_>) -> (DeniedRight, &[u8]) {
    match denial {
        Denial::Command(name) => (DeniedRight::Command, name.as_bytes()),
        Denial::Key(at) => (DeniedRight::Key, words.get(at)),
        Denial::Channel(at) => (DeniedRight::Channel, words.get(at)),
        Denial::Database(at) => (DeniedRight::Database, words.get(at)),
    }
}

/// Counts a denial for INFO.
pub(crate) fn count_denial(reason: DeniedRight, thread: &ThreadState) {
    let stats = thread.stats();
    match reason {
        DeniedRight::Auth => stats.failed_auths.add(1),
        DeniedRight::Command => stats.denied_commands.add(1),
        DeniedRight::Key => stats.denied_keys.add(1),
        DeniedRight::Channel => stats.denied_channels.add(1),
        DeniedRight::Database => stats.denied_databases.add(1),
        DeniedRight::TlsCert => stats.denied_certificates.add(1),
    }
}

/// Counts a failed authentication, and adds it to ACL LOG.
#[cold]
pub(super) fn note_failed_auth(call: &Call<'_, '_>, words: Words<'_>, user: &[u8]) {
    let server = call.server;
    let context = if call.n_in_transaction.is_some() { Context::Multi } else { Context::Toplevel };
    let client = describe_client(&call.session.record, call.table, server.clock.uptime_millis());
    let entry = DenialEntry::new(DeniedRight::Auth, context, words.get(0), user, client, server.clock.now());
    count_denial(DeniedRight::Auth, call.thread);
    server.note_denial(entry);
}

/// Counts that a client's certificate names no usable user, and adds that to ACL LOG.
///
/// The user does not exist, or is off.
#[cold]
pub(crate) fn note_refused_certificate(
    record: &ClientRecord,
    user: &[u8],
    table: &CommandTable,
    thread: &ThreadState,
) {
    let server = thread.server();
    let client = describe_client(record, table, server.clock.uptime_millis());
    let entry =
        DenialEntry::new(DeniedRight::TlsCert, Context::Toplevel, b"", user, client, server.clock.now());
    count_denial(DeniedRight::TlsCert, thread);
    server.note_denial(entry);
}

/// Returns a script's error for a denial.
pub(crate) fn error_in_script(denial: Denial) -> CommandError {
    CommandError::text(match denial {
        Denial::Command(_) => "ERR The user executing the script can't run this command or subcommand",
        Denial::Key(_) => {
            "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments"
        }
        Denial::Channel(_) => {
            "ERR The user executing the script can't publish to the channel mentioned in the command"
        }
        Denial::Database(_) => "ERR The user executing the script can't access the database of the command",
    })
}

/// Returns a transaction's error for a right that was revoked after the command was queued.
pub(crate) fn error_in_transaction(denial: Denial) -> CommandError {
    let reason = match denial {
        Denial::Command(_) => "no permission to execute the command or subcommand",
        Denial::Key(_) => "no permission to touch the specified keys",
        Denial::Channel(_) => "no permission to access one of the channels used as arguments",
        Denial::Database(_) => "no permission to access the database",
    };
    CommandError::owned(format!(
        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is no \
         longer allowed for the following reason: {reason}"
    ))
}

const NO_FILE: CommandError = CommandError::text(
    "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER command and \
     then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to store users in the Redis \
     configuration.",
);

fn load(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let config = call.server.config.load();
    let path = config.aclfile.as_ref().ok_or(NO_FILE)?;
    // The file is read before the users are locked, because reading may take long.
    let text = read_file(&config.dir, path).map_err(|why| CommandError::owned(format!("ERR {why}")))?;
    change_users(call, args.words(), |users, table| {
        *users = users
            .read(&text, &path.display().to_string(), table)
            .map_err(|why| CommandError::owned(format!("ERR {why}")))?;
        Ok(())
    })?;
    reply.ok();
    Ok(())
}

fn read_file(dir: &Path, path: &Path) -> Result<Vec<u8>, String> {
    read_regular(&dir.join(path)).map_err(|error| {
        let why = error.to_string();
        let why = why.split(" (os error").next().unwrap_or_default();
        format!("Error loading ACLs, opening file '{}': {why}", path.display())
    })
}

fn save(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let config = call.server.config.load();
    let path = config.aclfile.as_ref().ok_or(NO_FILE)?;
    let users = call.server.accounts.users();
    let text = users.to_text();
    let saved = check_readable(&users, &text, call.table).and_then(|()| {
        replace_file(&config.dir.join(path), &text)
            .map_err(|error| format!("Writing ACL file for ACL SAVE: {error}"))
    });
    if let Err(why) = saved {
        warning_later!("{why}");
        return Err(CommandError::text(
            "ERR There was an error trying to save the ACLs. Please check the server logs for more information",
        ));
    }
    reply.ok();
    Ok(())
}

/// Checks that the written text reads back as the present users. A file that cannot be loaded locks all users
/// out.
fn check_readable(users: &Users, text: &[u8], table: &CommandTable) -> Result<(), String> {
    let again = users
        .read(text, "", table)
        .map_err(|why| format!("ACL SAVE would write what cannot be loaded: {why}"))?;
    let differs = users.all().find(|user| again.get(user.name()).is_none_or(|read| !user.is_like(read)));
    match differs {
        None => Ok(()),
        Some(user) => Err(format!("ACL SAVE cannot write the rules of user '{}'", shown(user.name()))),
    }
}

/// Replaces a file atomically.
///
/// Readers, even after a crash, see the whole old or the whole new file. Only the server's own user may read
/// it.
fn replace_file(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = Path::new(&temporary);
    let written = write_secret(temporary, text).and_then(|()| {
        fs::rename(temporary, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    });
    if written.is_err() {
        // A partial file is useless.
        let _ = fs::remove_file(temporary);
    }
    written
}

fn write_secret(path: &Path, text: &[u8]) -> io::Result<()> {
    // A file left by an earlier attempt may be readable by others.
    let _ = fs::remove_file(path);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

/// Returns the users that a configuration declares, in its lines or in its file.
///
/// # Errors
/// The first fault in them, in Redis's words.
pub fn users_at_start(config: &Config, table: &CommandTable) -> Result<Users, String> {
    let mut users = users_without_lines(config, table);
    users.declare(&config.users, table).map_err(|why| why.to_string())?;
    if let Some(path) = &config.aclfile {
        let aborting = |why| format!("Aborting Redis startup because of ACL errors: {why}");
        let text = read_file(&config.dir, path).map_err(aborting)?;
        users = users.read(&text, &path.display().to_string(), table).map_err(aborting)?;
    }
    Ok(users)
}

/// Returns the users without any declaration: the default user, with the configuration's password.
fn users_without_lines(config: &Config, table: &CommandTable) -> Users {
    let mut users = Users::new(allows_all_channels(config), table);
    users.set_default_password(config.requirepass.as_deref(), table);
    users
}

/// Returns the lines that declare the present users, for CONFIG REWRITE.
///
/// There are none if all users are implied, or if a file declares them.
pub(in crate::command) fn user_lines(
    server: &Server,
    config: &Config,
    table: &CommandTable,
) -> Vec<UserLine> {
    let users = server.accounts.users();
    let implied = users_without_lines(config, table);
    let is_implied = |user: &User| implied.get(user.name()).is_some_and(|implied| implied.is_like(user));
    if config.aclfile.is_some() || users.all().all(|user| is_implied(user)) {
        return Vec::new();
    }
    let line = |user: &User| UserLine {
        name: user.name().to_vec(),
        rules: user.describe().split(|&byte| byte == b' ').map(<[u8]>::to_vec).collect(),
    };
    users.all().map(|user| line(user)).collect()
}

/// Whether two lines declare the same user with the same passwords and rights.
pub(in crate::command) fn is_same_user(
    one: &UserLine,
    other: &UserLine,
    config: &Config,
    table: &CommandTable,
) -> bool {
    let declared = |line: &UserLine| {
        let mut users = users_without_lines(config, table);
        users.declare(std::slice::from_ref(line), table).ok()?;
        users.get(&line.name).cloned()
    };
    one.name == other.name
        && declared(one).zip(declared(other)).is_some_and(|(one, other)| one.is_like(&other))
}

/// Whether a client may run a command and read any key besides the command's own.
pub(in crate::command) fn may_read_any_key(
    session: &Session,
    command: &Registered,
    words: Words<'_>,
) -> bool {
    let needed = crate::catalog::KeyRights::READ;
    session
        .rights
        .as_ref()
        .is_none_or(|user| user.allows_with_any_key(&command.asked(words, session.db), needed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_passwords_differ() {
        let [mut one, mut other] = [[0; 32]; 2];
        fill_with_random(&mut one).unwrap();
        fill_with_random(&mut other).unwrap();
        assert_ne!(one, other);
    }
}
