//! Commands on the connection itself, such as AUTH, HELLO and SELECT.

use std::sync::atomic::Ordering;

use braid_protocol::{
    number,
    reply::{Reply, Resp},
};
use braid_storage::entry::db::Db;

use super::{acl, tracking};
use crate::{
    access::DEFAULT_USER,
    catalog::{Args, Arity, CommandError, Databases, Deprecation, Flags, Group, Outcome, Words, shown},
    client::session::{Replies, SessionRequest, TimeAccounting},
    command::{Call, CommandSpec, Run, Work, families::pubsub, forget_own_watches_in_parts, is_confined},
    shared::announced::AnnouncedServer,
};

const ANY_TIME: Flags = Flags::LOADING.and(Flags::STALE).and(Flags::FAST);
const HANDSHAKE: Flags =
    ANY_TIME.and(Flags::NOSCRIPT).and(Flags::NO_AUTH).and(Flags::ALLOW_BUSY).and(Flags::PARSE_STOP);

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "ping",
        arity: Arity::AtLeast(1),
        flags: Flags::FAST.and(Flags::WHILE_SUBSCRIBED),
        tells_of_failed_saves: true,
        run: Run::Session(ping),
        since: "1.0.0",
        group: Group::Connection,
        syntax: "[message]",
        summary: "Returns the server's liveliness response.",
        tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "echo",
        arity: Arity::Exactly(2),
        flags: ANY_TIME,
        run: Run::Session(echo),
        since: "1.0.0",
        group: Group::Connection,
        syntax: "message",
        summary: "Returns the given string.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "select",
        arity: Arity::Exactly(2),
        flags: ANY_TIME.and(Flags::PARSE_STOP).and(Flags::OTHER_DATABASES),
        run: Run::Session(select),
        work: Work::Selects,
        databases: Databases::Words(&[1]),
        since: "1.0.0",
        group: Group::Connection,
        syntax: "index",
        summary: "Changes the selected database.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "auth",
        arity: Arity::AtLeast(2),
        flags: HANDSHAKE.and(Flags::SECRET),
        run: Run::Session(auth),
        since: "1.0.0",
        group: Group::Connection,
        syntax: "[username] password",
        summary: "Authenticates the connection.",
        complexity: "O(N) where N is the number of passwords defined for the user",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hello",
        arity: Arity::AtLeast(1),
        flags: HANDSHAKE.and(Flags::SECRET_AFTER_AUTH),
        run: Run::Session(hello),
        since: "6.0.0",
        group: Group::Connection,
        syntax: "[protover [AUTH username password] [SETNAME clientname]]",
        summary: "Handshakes with the server.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "quit",
        arity: Arity::AtLeast(1),
        flags: HANDSHAKE.and(Flags::IMMEDIATE).and(Flags::DEPRECATED).and(Flags::WHILE_SUBSCRIBED),
        run: Run::Session(quit),
        since: "1.0.0",
        group: Group::Connection,
        summary: "Closes the connection.",
        deprecated: Some(Deprecation { since: "7.2.0", replaced_by: "just closing the connection" }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "reset",
        arity: Arity::Exactly(1),
        flags: HANDSHAKE.and(Flags::IMMEDIATE).and(Flags::WHILE_SUBSCRIBED).and(Flags::LEAVES),
        run: Run::Own(reset),
        since: "6.2.0",
        group: Group::Connection,
        summary: "Resets the connection.",
        ..CommandSpec::ROW
    },
];

fn ping(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if args.remaining() > 1 {
        return Err(CommandError::Arity("ping"));
    }
    if is_confined(call.session) {
        reply.array(2);
        reply.bulk(b"pong");
        reply.bulk(args.peek().unwrap_or_default());
        return Ok(());
    }
    match args.peek() {
        None => reply.simple("PONG"),
        Some(message) => reply.bulk(message),
    }
    Ok(())
}

fn echo(_: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    reply.bulk(args.next()?);
    Ok(())
}

fn select(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let index = args.int()?;
    if i32::try_from(index).is_err() {
        return Err(CommandError::text(
            "ERR value is out of range, value must between -2147483648 and 2147483647",
        ));
    }
    let n_databases = call.server.config.load().databases as i64;
    let db = u32::try_from(index).ok().filter(|_| index < n_databases).ok_or(CommandError::DbIndex)?;
    call.session.db = Db(db);
    reply.ok();
    Ok(())
}

const WRONG_PASSWORD: CommandError =
    CommandError::text("WRONGPASS invalid username-password pair or user is disabled.");

fn auth(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (user, password) = match args.remaining() {
        1 if call.server.accounts.users().default_user().needs_no_password() => {
            return Err(CommandError::text(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            ));
        }
        1 => (DEFAULT_USER, args.next()?),
        2 => (args.next()?, args.next()?),
        _ => return Err(CommandError::Syntax),
    };
    authenticate(call, args.words(), user, password)?;
    reply.ok();
    Ok(())
}

/// Authenticates the session if user and password are correct.
///
/// Otherwise it delays the session, the longer the more often it has failed.
fn authenticate(call: &mut Call<'_, '_>, words: Words<'_>, user: &[u8], password: &[u8]) -> Outcome {
    if call.server.authenticate(call.session, user, password) {
        call.session.failed_auths = 0;
        return Ok(());
    }
    acl::note_failed_auth(call, words, user);
    let session = &mut *call.session;
    session.failed_auths = session.failed_auths.saturating_add(1);
    let millis = rest_after(session.failed_auths);
    if millis > 0 {
        session.ask(SessionRequest::Sleep { millis, counts: TimeAccounting::NotAtAll });
    }
    Err(WRONG_PASSWORD)
}

/// Returns the delay of a connection after `n_failures` in a row, in milliseconds.
///
/// The first few may be typing errors.
pub(crate) fn rest_after(n_failures: u32) -> u64 {
    match n_failures {
        0..=5 => 0,
        n => (50 << (n - 6).min(5)).min(1000),
    }
}

fn hello(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let resp = if args.is_empty() { call.session.resp } else { protocol_version(args.next()?)? };
    let mut credentials = None;
    let mut name = None;
    while let Some(option) = args.peek() {
        if args.remaining() >= 3 && args.tag("AUTH") {
            credentials = Some((args.next()?, args.next()?));
        } else if args.remaining() >= 2 && args.tag("SETNAME") {
            name = Some(client_name(args.next()?)?);
        } else {
            let option = shown(option);
            return Err(CommandError::owned(format!("ERR Syntax error in HELLO option '{option}'")));
        }
    }
    if let Some((user, password)) = credentials {
        authenticate(call, args.words(), user, password)?;
    }
    if !call.session.authenticated {
        return Err(CommandError::text(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> \
             option can be used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        call.session.record.say(|said| said.name = name.to_owned());
    }
    call.session.resp = resp;
    if !call.is_part() {
        call.session.publish_dialect();
    }
    // The reply already uses the new version.
    reply.set_version(resp);
    describe_server(reply, call);
    Ok(())
}

fn protocol_version(word: &[u8]) -> Result<Resp, CommandError> {
    match number::parse_i64(word) {
        Some(2) => Ok(Resp::V2),
        Some(3) => Ok(Resp::V3),
        Some(_) => Err(CommandError::text("NOPROTO unsupported protocol version")),
        None => Err(CommandError::text("ERR Protocol version is not an integer or out of range")),
    }
}

/// The field of HELLO for the directive `availability-zone`.
const ZONE_FIELD: &[u8] = b"availability_zone";

fn describe_server(reply: &mut Reply<'_>, call: &mut Call<'_, '_>) {
    let config = call.config();
    let session = &*call.session;
    let (announced, zone) = (AnnouncedServer::of(&config), config.availability_zone.as_deref());
    reply.map(7 + usize::from(zone.is_some()));
    reply.bulk(b"server");
    reply.bulk(announced.server.as_bytes());
    reply.bulk(b"version");
    reply.bulk(announced.version.as_bytes());
    reply.bulk(b"proto");
    reply.integer(if session.resp == Resp::V3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.integer(session.record.id.0 as i64);
    reply.bulk(b"mode");
    reply.bulk(b"standalone");
    reply.bulk(b"role");
    reply.bulk(b"master");
    reply.bulk(b"modules");
    reply.array(0);
    if let Some(zone) = zone {
        reply.bulk(ZONE_FIELD);
        reply.bulk(zone);
    }
}

/// Checks a client's name, which must not break the lines of CLIENT LIST.
pub(super) fn client_name(name: &[u8]) -> Result<&str, CommandError> {
    printable(name)
        .ok_or(CommandError::text("ERR Client names cannot contain spaces, newlines or special characters."))
}

/// Returns the text if it consists of visible ASCII characters.
pub(super) fn printable(text: &[u8]) -> Option<&str> {
    std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()))
}

fn quit(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    call.session.leave();
    reply.ok();
    Ok(())
}

fn reset(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if !forget_own_watches_in_parts(call) {
        return Ok(());
    }
    pubsub::cease_to_listen(call);
    tracking::stop(call);
    let session = &mut *call.session;
    session.queue = None;
    session.db = Db::default();
    session.resp = Resp::V2;
    session.no_touch = false;
    call.server.become_default_user(session);
    // The reply that CLIENT REPLY SKIP drops is that of RESET.
    if session.replies != Replies::Skipping {
        session.replies = Replies::On;
    }
    session.record.no_evict.store(false, Ordering::Relaxed);
    session.record.no_touch.store(false, Ordering::Relaxed);
    session.record.say(|said| said.name.clear());
    reply.simple("RESET");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guessing_gets_slower_up_to_a_second() {
        assert_eq!(rest_after(5), 0);
        assert_eq!(rest_after(6), 50);
        assert_eq!(rest_after(10), 800);
        assert_eq!(rest_after(11), 1000);
        assert_eq!(rest_after(u32::MAX), 1000);
    }

    #[test]
    fn names_are_visible_ascii() {
        assert_eq!(printable(b"a-b!~"), Some("a-b!~"));
        assert_eq!(printable(b""), Some(""));
        assert_eq!(printable(b"a b"), None);
        assert_eq!(printable(b"a\n"), None);
        assert_eq!(printable("é".as_bytes()), None);
    }
}
