//! CLIENT: connections and their settings.

use std::{
    fmt::Write,
    sync::{Arc, atomic::Ordering},
};

use braid_protocol::{number, reply::Reply};
use braid_storage::entry::time::Millis;

use super::{
    client_filter::{Filter, begins_condition, flags_of},
    handshake::{client_name, printable},
    tracking,
};
use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, Outcome, shown},
    client::{
        footprint::Part,
        id::ClientId,
        record::{ClientRecord, SyncWait},
        session::Replies,
        waits::WaitEnd,
    },
    command::{
        Call, CommandSpec, CommandTable, Run,
        help::{help, misused},
    },
    notify::subscriptions::TopicKind,
    shared::{mail::Mail, pause::PauseScope},
};

const ROW: CommandSpec = CommandSpec {
    flags: Flags::NOSCRIPT.and(Flags::LOADING).and(Flags::STALE),
    group: Group::Connection,
    ..CommandSpec::ROW
};
const ADMIN: CommandSpec = CommandSpec { flags: ROW.flags.and(Flags::ADMIN), ..ROW };

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[CommandSpec {
    name: "client",
    arity: Arity::AtLeast(2),
    flags: Flags::KEEPS_CACHING,
    since: "2.4.0",
    group: Group::Connection,
    summary: "A container for client connection commands.",
    complexity: "Depends on subcommand.",
    subcommands: SUBCOMMANDS,
    ..CommandSpec::ROW
}];

const SUBCOMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "caching",
        arity: Arity::Exactly(3),
        run: Run::Session(tracking::caching),
        since: "6.0.0",
        syntax: "<YES | NO>",
        summary: "Instructs the server whether to track the keys in the next request.",
        ..ROW
    },
    CommandSpec {
        name: "capa",
        arity: Arity::AtLeast(3),
        flags: ROW.flags.and(Flags::ALLOW_BUSY),
        run: Run::Session(claim_capabilities),
        since: "valkey 8.0.0",
        syntax: "capability [capability ...]",
        summary: "Tells the server which capabilities the client has.",
        ..ROW
    },
    CommandSpec {
        name: "getname",
        arity: Arity::Exactly(2),
        run: Run::Session(get_name),
        since: "2.6.9",
        summary: "Returns the name of the connection.",
        ..ROW
    },
    CommandSpec {
        name: "getredir",
        arity: Arity::Exactly(2),
        run: Run::Session(tracking::get_redirection),
        since: "6.0.0",
        summary: "Returns the client ID to which the connection's tracking notifications are redirected.",
        ..ROW
    },
    CommandSpec {
        run: Run::Session(print_help),
        since: "5.0.0",
        group: Group::Connection,
        ..CommandSpec::HELP
    },
    CommandSpec {
        name: "id",
        arity: Arity::Exactly(2),
        run: Run::Session(id),
        since: "5.0.0",
        summary: "Returns the unique client ID of the connection.",
        ..ROW
    },
    CommandSpec {
        name: "import-source",
        arity: Arity::Exactly(3),
        run: Run::Session(import_source),
        since: "valkey 8.1.0",
        syntax: "<ON | OFF>",
        summary: "Marks the connection as a source of imported data. Braid has no import mode, so this fails.",
        ..ROW
    },
    CommandSpec {
        name: "info",
        arity: Arity::Exactly(2),
        run: Run::Session(info),
        since: "6.2.0",
        summary: "Returns information about the connection.",
        tips: &["nondeterministic_output"],
        ..ROW
    },
    CommandSpec {
        name: "kill",
        arity: Arity::AtLeast(3),
        run: Run::Barrier(kill),
        since: "2.4.0",
        syntax: "<ip:port | [ID client-id [client-id ...]] [NOT-ID client-id [client-id ...]] [TYPE <NORMAL | MASTER | PRIMARY | REPLICA | PUBSUB>] [USER username] \
                 [ADDR ip:port] [LADDR ip:port] [IP ip] [NAME name] [LIB-NAME name] [LIB-VER version] [FLAGS letters] \
                 [DB index] [CAPA letters] [IDLE seconds] [MAXAGE seconds] [SKIPME <YES | NO>]>",
        summary: "Terminates open connections.",
        complexity: "O(N) where N is the number of client connections",
        ..ADMIN
    },
    CommandSpec {
        name: "list",
        arity: Arity::AtLeast(2),
        run: Run::Session(list),
        since: "2.4.0",
        syntax: "[ID client-id [client-id ...]] [NOT-ID client-id [client-id ...]] [TYPE <NORMAL | MASTER | PRIMARY | REPLICA | PUBSUB>] [USER username] \
                 [ADDR ip:port] [LADDR ip:port] [IP ip] [NAME name] [LIB-NAME name] [LIB-VER version] [FLAGS letters] \
                 [DB index] [CAPA letters] [IDLE seconds] [MAXAGE seconds] [SKIPME <YES | NO>]",
        summary: "Lists open connections.",
        complexity: "O(N) where N is the number of client connections",
        tips: &["nondeterministic_output"],
        ..ADMIN
    },
    CommandSpec {
        name: "no-evict",
        arity: Arity::Exactly(3),
        run: Run::Session(no_evict),
        since: "7.0.0",
        syntax: "<ON | OFF>",
        summary: "Sets the client eviction mode of the connection.",
        ..ADMIN
    },
    CommandSpec {
        name: "no-touch",
        arity: Arity::Exactly(3),
        run: Run::Session(no_touch),
        since: "7.2.0",
        syntax: "<ON | OFF>",
        summary: "Controls whether commands sent by the client affect the time of keys' last use.",
        ..ROW
    },
    CommandSpec {
        name: "pause",
        arity: Arity::AtLeast(3),
        run: Run::Barrier(pause),
        since: "3.0.0",
        syntax: "timeout [WRITE | ALL]",
        summary: "Suspends commands processing.",
        ..ADMIN
    },
    CommandSpec {
        name: "reply",
        arity: Arity::Exactly(3),
        run: Run::Session(choose_replies),
        since: "3.2.0",
        syntax: "<ON | OFF | SKIP>",
        summary: "Instructs the server whether to reply to commands.",
        ..ROW
    },
    CommandSpec {
        name: "setinfo",
        arity: Arity::Exactly(4),
        run: Run::Session(set_info),
        since: "7.2.0",
        syntax: "<LIB-NAME libname | LIB-VER libver>",
        summary: "Sets information specific to the client or connection.",
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        ..ROW
    },
    CommandSpec {
        name: "setname",
        arity: Arity::Exactly(3),
        run: Run::Session(set_name),
        since: "2.6.9",
        syntax: "connection-name",
        summary: "Sets the connection name.",
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        ..ROW
    },
    CommandSpec {
        name: "tracking",
        arity: Arity::AtLeast(3),
        run: Run::Everything(tracking::track),
        since: "6.0.0",
        syntax: "<ON | OFF> [REDIRECT client-id] [PREFIX prefix [PREFIX prefix ...]] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]",
        summary: "Controls server-assisted client-side caching for the connection.",
        complexity: "O(1). Some options may introduce additional complexity.",
        ..ROW
    },
    CommandSpec {
        name: "trackinginfo",
        arity: Arity::Exactly(2),
        run: Run::Session(tracking::describe),
        since: "6.2.0",
        summary: "Returns information about server-assisted client-side caching for the connection.",
        ..ROW
    },
    CommandSpec {
        name: "unblock",
        arity: Arity::AtLeast(3),
        run: Run::Session(unblock),
        since: "5.0.0",
        syntax: "client-id [TIMEOUT | ERROR]",
        summary: "Unblocks a client blocked by a blocking command from a different connection.",
        complexity: "O(log N) where N is the number of client connections",
        ..ADMIN
    },
    CommandSpec {
        name: "unpause",
        arity: Arity::Exactly(2),
        run: Run::Session(unpause),
        since: "6.2.0",
        summary: "Resumes processing commands from paused clients.",
        complexity: "O(N) where N is the number of paused clients",
        flags: ADMIN.flags.and(Flags::ENDS_PAUSES),
        ..ADMIN
    },
];

const HELP: &[&str] = &[
    "CACHING (YES|NO)",
    "    Take the keys of the next command in, or leave them out, in OPTIN or OPTOUT mode.",
    "CAPA <capability> [<capability> ...]",
    "    Tell the server what this client can do: REDIRECT.",
    "GETNAME",
    "    Return this connection's name.",
    "GETREDIR",
    "    Return the client that invalidation messages are redirected to, or -1.",
    "ID",
    "    Return this connection's ID.",
    "IMPORT-SOURCE (ON|OFF)",
    "    Fail: there is no import mode.",
    "INFO",
    "    Describe this connection.",
    "KILL <ip:port>",
    "    Close the connection from <ip:port>.",
    "KILL <option> <value> [<option> <value> [...]]",
    "    Close the connections that fit all options. The options are those of LIST.",
    "    SKIPME is YES by default.",
    "LIST [<option> <value> [...]]",
    "    Describe all connections, or those that fit all options. NOT- before an option",
    "    negates it, except before IDLE, MAXAGE and SKIPME:",
    "    * ID <client-id> [<client-id> ...]",
    "      The clients' IDs.",
    "    * TYPE (NORMAL|MASTER|PRIMARY|REPLICA|PUBSUB)",
    "      The clients' type.",
    "    * USER <username>",
    "      The user they authenticated as.",
    "    * ADDR (<ip:port>|<unixsocket>:0), LADDR (<ip:port>|<unixsocket>:0), IP <ip>",
    "      Their address, the address they connected to, their address without the port.",
    "    * NAME <name>, LIB-NAME <name>, LIB-VER <version>",
    "      What SETNAME and SETINFO have set.",
    "    * FLAGS <letters>, CAPA <letters>",
    "      All of these flags, or capabilities.",
    "    * DB <index>",
    "      The selected database.",
    "    * IDLE <seconds>, MAXAGE <seconds>",
    "      Silent, or connected, for at least so long.",
    "    * SKIPME (YES|NO)",
    "      Whether to leave this connection out (default: no).",
    "NO-EVICT (ON|OFF)",
    "    Protect this connection when memory for clients is short.",
    "NO-TOUCH (ON|OFF)",
    "    Do not let this connection's commands count as a use of keys.",
    "PAUSE <timeout> [WRITE|ALL]",
    "    Hold back all commands, or those that write, for <timeout> milliseconds.",
    "REPLY (ON|OFF|SKIP)",
    "    Choose which replies are sent to this connection.",
    "SETINFO <option> <value>",
    "    Tell the server about the client library. Options:",
    "    * LIB-NAME: its name.",
    "    * LIB-VER: its version.",
    "SETNAME <name>",
    "    Name this connection.",
    "TRACKING (ON|OFF) [REDIRECT <id>] [BCAST] [PREFIX <prefix> [...]]",
    "         [OPTIN] [OPTOUT] [NOLOOP]",
    "    Tell this connection, or another, of changes of keys that it keeps copies of.",
    "TRACKINGINFO",
    "    Return how this connection is told of changes.",
    "UNBLOCK <clientid> [TIMEOUT|ERROR]",
    "    End the wait of a blocked client.",
    "UNPAUSE",
    "    End a pause.",
];

fn print_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(reply, "CLIENT", HELP)
}

fn id(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    reply.integer(call.session.record.id.0 as i64);
    Ok(())
}

fn info(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    call.session.publish(call.n_in_transaction);
    call.session.publish_footprint();
    let text = describe(&call.session.record, call.table, call.server.clock.uptime_millis());
    reply.verbatim(b"txt", text.as_bytes());
    Ok(())
}

fn list(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let mut ids = args;
    let names_ids_only = args.remaining() >= 2 && ids.tag("ID") && !ids.rest().any(begins_condition);
    let records: Vec<Arc<ClientRecord>> = if names_ids_only {
        // As in Redis, they are listed in this order, and need not be possible.
        let ids: Option<Vec<i64>> = ids.rest().map(number::parse_i64).collect();
        let ids = ids.ok_or(CommandError::text("ERR Invalid client ID"))?;
        ids.into_iter().filter_map(|id| call.server.clients.get(ClientId(id as u64))).collect()
    } else {
        chosen_by(&Filter::parse(args, false, call.server)?, call)
    };
    call.session.publish(call.n_in_transaction);
    call.session.publish_footprint();
    let uptime = call.server.clock.uptime_millis();
    let lines: String = records.iter().map(|record| describe(record, call.table, uptime)).collect();
    reply.verbatim(b"txt", lines.as_bytes());
    Ok(())
}

/// Returns a client's line in CLIENT LIST.
///
/// It has the fields of Redis 7.4, the thread and the totals of Redis 8, and the capabilities of Valkey.
///
/// Fields of missing features are zero. So are those of buffers that the thread owns and not the connection:
/// queries are read and replies are composed in them.
pub(crate) fn describe(client: &ClientRecord, table: &CommandTable, uptime_millis: u64) -> String {
    let (said, user) = (client.said(), client.user.load());
    let read = |since: u64| uptime_millis.saturating_sub(since) / 1000;
    let [input_bytes, room_bytes, argument_bytes, queue_bytes, output_bytes] =
        [Part::Input, Part::InputRoom, Part::Arguments, Part::Queue, Part::Output]
            .map(|part| client.footprint.of(part));
    let mut line = String::with_capacity(400);
    let mut add = |arguments: std::fmt::Arguments<'_>| {
        line.write_fmt(arguments).expect("a string takes whatever is written");
    };
    add(format_args!("id={} addr={} laddr={} fd={}", client.id.0, client.peer, client.local, client.fd));
    add(format_args!(" name={} age={}", said.name, read(client.connected_at)));
    add(format_args!(" idle={} flags={}", read(client.active_at.load(Ordering::Relaxed)), flags_of(client)));
    add(format_args!(" db={}", client.db.load(Ordering::Relaxed)));
    for (name, kind) in ["sub", "psub", "ssub"].iter().zip(TopicKind::ALL) {
        add(format_args!(" {name}={}", client.n_subscribed(kind)));
    }
    add(format_args!(" multi={}", client.queued.load(Ordering::Relaxed)));
    add(format_args!(" watch={}", client.watched.load(Ordering::Relaxed)));
    add(format_args!(" qbuf={input_bytes} qbuf-free={room_bytes} argv-mem={argument_bytes}"));
    add(format_args!(" multi-mem={queue_bytes} rbs=0 rbp=0 obl=0"));
    add(format_args!(" oll={} omem={output_bytes}", client.output_pieces.load(Ordering::Relaxed)));
    add(format_args!(" tot-mem={}", client.footprint.sum()));
    add(format_args!(" events={}", if output_bytes > 0 { "rw" } else { "r" }));
    add(format_args!(" cmd={}", client.last_command().map_or("NULL", |id| table.get(id).full_name)));
    let redirect = tracking::redirection(client);
    let (user, resp) = (String::from_utf8_lossy(&user.name), client.resp.load(Ordering::Relaxed));
    add(format_args!(" user={user} redir={redirect} resp={resp}"));
    add(format_args!(" lib-name={} lib-ver={}", said.lib_name, said.lib_ver));
    // Valkey has this after the flags, where programs that read Redis's line expect the database.
    add(format_args!(" capa={}", if said.handles_redirects { "r" } else { "" }));
    add(format_args!(" io-thread={}", client.thread.load(Ordering::Relaxed)));
    let [bytes_in, bytes_out, n_commands] = client.totals();
    add(format_args!(" tot-net-in={bytes_in} tot-net-out={bytes_out} tot-cmds={n_commands}\n"));
    line
}

fn kill(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if args.remaining() == 1 {
        let addr = args.next()?;
        let found =
            call.server.clients.all().into_iter().find(|client| client.peer.to_string().as_bytes() == addr);
        let client = found.ok_or(CommandError::text("ERR No such client"))?;
        kill_one(call, &client);
        reply.ok();
        return Ok(());
    }
    let victims = chosen_by(&Filter::parse(args, true, call.server)?, call);
    let n_killed = victims.iter().filter(|client| kill_one(call, client)).count();
    reply.integer(n_killed as i64);
    Ok(())
}

/// Returns the clients that a filter admits, in the order of their numbers or of the filter's.
fn chosen_by(filter: &Filter<'_>, call: &Call<'_, '_>) -> Vec<Arc<ClientRecord>> {
    let clients = &call.server.clients;
    let candidates = match filter.ids() {
        Some(ids) => ids.iter().filter_map(|&id| clients.get(id)).collect(),
        None => clients.all(),
    };
    let (me, uptime) = (call.session.record.id, call.server.clock.uptime_millis());
    candidates.into_iter().filter(|client| filter.admits(client, me, uptime)).collect()
}

/// Runs CLIENT CAPA. As in Valkey, unknown capabilities are taken, and no capability is given up again.
fn claim_capabilities(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if args.rest().any(|word| word.eq_ignore_ascii_case(b"redirect")) {
        call.session.record.say(|said| said.handles_redirects = true);
    }
    reply.ok();
    Ok(())
}

/// Runs CLIENT IMPORT-SOURCE. There is no import mode.
fn import_source(_: &mut Call<'_, '_>, _: Args<'_>, _: &mut Reply<'_>) -> Outcome {
    Err(CommandError::text("ERR Server is not in import mode"))
}

/// Closes a client's connection; the client's own one only after the reply.
fn kill_one(call: &mut Call<'_, '_>, client: &ClientRecord) -> bool {
    if client.id == call.session.record.id {
        call.session.leave();
        return true;
    }
    !client.is_killed() && call.server.kill(client.id, call.thread)
}

fn get_name(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let name = call.session.record.said().name;
    if name.is_empty() {
        reply.null()
    } else {
        reply.bulk(name.as_bytes())
    }
    Ok(())
}

fn set_name(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let name = client_name(args.next()?)?;
    call.session.record.say(|said| said.name = name.to_owned());
    reply.ok();
    Ok(())
}

fn set_info(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let option = args.next()?;
    let value = args.next()?;
    let checked = |name: &str| {
        printable(value).ok_or_else(|| {
            CommandError::owned(format!("ERR {name} cannot contain spaces, newlines or special characters."))
        })
    };
    if option.eq_ignore_ascii_case(b"lib-name") {
        let value = checked("lib-name")?;
        call.session.record.say(|said| said.lib_name = value.to_owned());
    } else if option.eq_ignore_ascii_case(b"lib-ver") {
        let value = checked("lib-ver")?;
        call.session.record.say(|said| said.lib_ver = value.to_owned());
    } else {
        let option = shown(option);
        return Err(CommandError::owned(format!("ERR Unrecognized option '{option}'")));
    }
    reply.ok();
    Ok(())
}

/// Sets the reply mode, which already applies to the reply of this command.
fn choose_replies(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let was_off = call.session.replies == Replies::Off;
    let replies = &mut call.session.replies;
    if args.tag("ON") {
        *replies = Replies::On;
        reply.ok();
    } else if args.tag("OFF") {
        *replies = Replies::Off;
    } else if args.tag("SKIP") {
        if *replies != Replies::Off {
            *replies = Replies::SkipNext;
        }
    } else {
        return Err(CommandError::Syntax);
    }
    if was_off != (*replies == Replies::Off) {
        crate::command::families::pubsub::show_commands(call, was_off);
    }
    Ok(())
}

fn no_evict(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let on = on_or_off(&mut args)?;
    call.session.record.no_evict.store(on, Ordering::Relaxed);
    // A client that was protected so far may now be evicted.
    call.server.limit_clients(call.thread);
    reply.ok();
    Ok(())
}

fn no_touch(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let on = on_or_off(&mut args)?;
    call.session.no_touch = on;
    call.session.record.no_touch.store(on, Ordering::Relaxed);
    reply.ok();
    Ok(())
}

fn on_or_off(args: &mut Args<'_>) -> Result<bool, CommandError> {
    let on = args.tag("ON");
    if on || args.tag("OFF") { Ok(on) } else { Err(CommandError::Syntax) }
}

fn pause(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    at_most(2, args)?;
    let timeout = args.next()?;
    let scope = if args.is_empty() || args.tag("ALL") {
        PauseScope::All
    } else if args.tag("WRITE") {
        PauseScope::Writes
    } else {
        return Err(CommandError::text("ERR CLIENT PAUSE mode must be WRITE or ALL"));
    };
    call.server.pause(timeout_millis(timeout, call.now)?, scope);
    reply.ok();
    Ok(())
}

/// Fails if there are more than `n` arguments. As in Redis, the error has a text of its own.
fn at_most(n: usize, args: Args<'_>) -> Outcome {
    if args.remaining() <= n {
        return Ok(());
    }
    Err(misused("CLIENT", args))
}

/// Reads a timeout in milliseconds. It is out of range if its end after `now` exceeds an `i64`.
pub(in crate::command) fn timeout_millis(word: &[u8], now: Millis) -> Result<u64, CommandError> {
    let timeout =
        number::parse_i64(word).ok_or(CommandError::text("ERR timeout is not an integer or out of range"))?;
    if timeout.checked_add_unsigned(now.0).is_none() {
        return Err(CommandError::text("ERR timeout is out of range"));
    }
    u64::try_from(timeout).map_err(|_| CommandError::text("ERR timeout is negative"))
}

fn unpause(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    call.server.unpause(call.thread);
    reply.ok();
    Ok(())
}

/// The error for a client whose wait CLIENT UNBLOCK … ERROR ends.
pub(crate) const UNBLOCKED: CommandError =
    CommandError::text("UNBLOCKED client unblocked via CLIENT UNBLOCK");

/// The error for a client whose wait ends with the server's role. Its connection ends, too.
pub(crate) const ROLE_CHANGED: CommandError = CommandError::text(
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
);

fn unblock(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    at_most(2, args)?;
    let id = args.next()?;
    let why = if args.is_empty() || args.tag("TIMEOUT") {
        WaitEnd::TimedOut
    } else if args.tag("ERROR") {
        WaitEnd::Unblocked
    } else {
        return Err(CommandError::text("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
    };
    let id = number::parse_i64(id).ok_or(CommandError::NotInteger)?;
    let record = u64::try_from(id).ok().and_then(|id| call.server.clients.get(ClientId(id)));
    let waiting = record.as_ref().and_then(|record| record.waiting.load_full());
    let claimed = waiting.and_then(|parked| Some((parked.claim()?, parked)));
    let how = if why == WaitEnd::Unblocked { SyncWait::Fails } else { SyncWait::TimesOut };
    let waits_for_sync = record.filter(|record| claimed.is_none() && record.unblock_sync_wait(how));
    reply.integer((claimed.is_some() || waits_for_sync.is_some()) as i64);
    if let Some(record) = waits_for_sync {
        // A connection with unfinished work stays with its thread.
        call.thread.send_mail(record.thread.load(Ordering::Relaxed), Mail::SyncWaits);
    }
    if let Some((mut node, parked)) = claimed {
        parked.give_up(&mut node, why, call.stats);
        call.thread.send_mail(parked.origin.thread, Mail::GaveUp(node, parked));
    }
    Ok(())
}
