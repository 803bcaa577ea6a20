//! The role of this server: REPLICAOF, SLAVEOF and ROLE.

use std::sync::atomic::Ordering;

use braid_protocol::{number, reply::Reply};

use super::{
    replication::role_of_primary,
    row_flags::{ABOUT_SERVER, ANY_TIME, REPLICATING},
};
use crate::{
    catalog::{Args, Arity, CommandError, Deprecation, Flags, Group, Outcome},
    client::{record::SyncWait, waits::WaitEnd},
    command::{Call, CommandSpec, Run, connections::client::describe},
    config::PrimaryAddress,
    notice_later,
    replication::replica::role::LinkState,
    shared::{mail::Mail, server::Server, thread_state::ThreadState},
};

pub(super) const ROLE: CommandSpec = CommandSpec {
    name: "role",
    arity: Arity::Exactly(1),
    flags: ANY_TIME.and(Flags::NOSCRIPT).and(Flags::FAST),
    run: Run::Session(role),
    since: "2.8.12",
    group: Group::Server,
    summary: "Returns the replication role.",
    categories: ABOUT_SERVER,
    ..CommandSpec::ROW
};

pub(super) const REPLICAOF: CommandSpec = CommandSpec {
    name: "replicaof",
    arity: Arity::Exactly(3),
    flags: REPLICATING,
    run: Run::Everything(replica_of),
    since: "5.0.0",
    group: Group::Server,
    syntax: "<host port | NO ONE>",
    summary: "Makes the server a replica of another, or a master.",
    ..CommandSpec::ROW
};

pub(super) const SLAVEOF: CommandSpec = CommandSpec {
    name: "slaveof",
    arity: Arity::Exactly(3),
    flags: REPLICATING.and(Flags::DEPRECATED),
    run: Run::Everything(replica_of),
    since: "1.0.0",
    group: Group::Server,
    syntax: "<host port | NO ONE>",
    summary: "Makes the server a replica of another, or a master.",
    deprecated: Some(Deprecation { since: "5.0.0", replaced_by: "`REPLICAOF`" }),
    ..CommandSpec::ROW
};

fn role(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let replica = &call.server.replica;
    let Some(primary) = replica.primary() else {
        role_of_primary(call, reply);
        return Ok(());
    };
    let state = replica.state();
    reply.array(5);
    reply.bulk(b"slave");
    reply.bulk(&primary.host);
    reply.integer(i64::from(primary.port));
    reply.bulk(state.word().as_bytes());
    reply.integer(if state == LinkState::Connected { replica.applied() } else { -1 });
    Ok(())
}

/// Changes the role with all shards held, so that every command sees either the old role or the new one.
fn replica_of(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (host, port) = (args.next()?, args.next()?);
    if call.server.replication.failover.is_on() {
        return Err(CommandError::text("ERR REPLICAOF not allowed while failing over."));
    }
    let client = describe(&call.session.record, call.table, call.server.clock.uptime_millis());
    let client = client.trim_end();
    if host.eq_ignore_ascii_case(b"no") && port.eq_ignore_ascii_case(b"one") {
        if call.server.replica.is_on() {
            change(call, None);
            call.renew_definitions();
            notice_later!("MASTER MODE enabled (user request from '{client}')");
        }
        reply.ok();
        return Ok(());
    }
    let port = number::parse_i64(port).and_then(|port| u16::try_from(port).ok());
    let port = port.ok_or(CommandError::text("ERR Invalid master port"))?;
    let primary = PrimaryAddress { host: host.to_vec(), port };
    if call.server.replica.primary().is_some_and(|present| *present == primary) {
        notice_later!(
            "REPLICAOF would result into synchronization with the master we are already connected with."
        );
        reply.simple("OK Already connected to specified master");
        return Ok(());
    }
    notice_later!("REPLICAOF {primary} enabled (user request from '{client}')");
    change(call, Some(primary));
    call.renew_definitions();
    end_waits(call.server, call.thread);
    reply.ok();
    Ok(())
}

/// Changes the role. All shards are held.
pub(super) fn change(call: &mut Call<'_, '_>, primary: Option<PrimaryAddress>) {
    let (server, thread) = (call.server, call.thread);
    server.change_primary(primary, call.access.expect_held(), thread);
}

/// Ends the waits of blocked clients: nobody writes their keys here any more, or only the primary does.
pub fn end_waits(server: &Server, thread: &ThreadState) {
    for record in server.clients.all() {
        if let Some(parked) = record.waiting.load_full()
            && parked.is_visible()
            && let Some(mut node) = parked.claim()
        {
            parked.give_up(&mut node, WaitEnd::RoleChanged, thread.stats());
            thread.send_mail(parked.origin.thread, Mail::GaveUp(node, parked));
        } else if record.unblock_sync_wait(SyncWait::RoleChanged) {
            let to = record.thread.load(Ordering::Relaxed);
            thread.send_mail(to, Mail::SyncWaits);
        }
    }
}
