//! The commands of replicas: PSYNC, SYNC and REPLCONF.

use std::sync::{Arc, atomic::Ordering};

use braid_journal::stream::Lsn;
use braid_protocol::{number, reply::Reply};

use super::{
    changing_role,
    row_flags::{ANY_TIME, SAVING},
};
use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, Outcome, shown},
    client::{record::Listens, session::SessionRequest},
    command::{Call, CommandSpec, Run, connections::client::describe},
    config::RdbWriteFormat,
    notice_later,
    replication::{
        replica::role::LinkState,
        replica_link::ReplicaLink,
        replicas::{CopyFilter, Replica, ReplicaState},
    },
    shared::server::Server,
    warning_later,
};

pub(super) const PSYNC: CommandSpec = CommandSpec {
    name: "psync",
    arity: Arity::AtLeast(3),
    flags: SAVING.and(Flags::NO_MULTI).and(Flags::MAKES_LINK),
    run: Run::Everything(partial_sync),
    since: "2.8.0",
    group: Group::Server,
    syntax: "replicationid offset",
    summary: "Makes the connection a replica's: it gets the change stream, after a copy if it needs one.",
    ..CommandSpec::ROW
};

pub(super) const SYNC: CommandSpec = CommandSpec {
    name: "sync",
    arity: Arity::Exactly(1),
    flags: SAVING.and(Flags::NO_MULTI).and(Flags::MAKES_LINK),
    run: Run::Session(|call, _, _| full_sync(call, true)),
    since: "1.0.0",
    group: Group::Server,
    summary: "Makes the connection a replica's: it gets a copy and the change stream.",
    ..CommandSpec::ROW
};

pub(super) const REPLCONF: CommandSpec = CommandSpec {
    name: "replconf",
    arity: Arity::AtLeast(1),
    flags: ANY_TIME.and(Flags::ADMIN).and(Flags::NOSCRIPT).and(Flags::ALLOW_BUSY),
    run: Run::Session(configure),
    since: "3.0.0",
    group: Group::Server,
    summary: "Tells facts about a replica, and how far it is.",
    complexity: "O(1)",
    ..CommandSpec::ROW
};

/// The replica that the client is, from its first command of a replica on.
fn replica_of(call: &mut Call<'_, '_>) -> Arc<Replica> {
    let record = &call.session.record;
    let new = || Arc::new(Replica::new(record.id, record.peer.ip().unwrap_or_default()));
    Arc::clone(call.session.replica.get_or_insert_with(new))
}

/// Makes the connection send what a link has.
fn follow(call: &mut Call<'_, '_>, link: ReplicaLink) {
    let server = call.server;
    link.replica.seen(server.clock.uptime_millis());
    server.replication.replicas.add(Arc::clone(&link.replica));
    call.session.record.set_listens(Listens::ToStream, true);
    call.session.link = Some(Box::new(link));
    call.session.ask(SessionRequest::Follow);
}

/// A replica may not ask twice, nor before it has read its replies.
fn may_follow(call: &Call<'_, '_>) -> Result<bool, CommandError> {
    if call.session.record.listens(Listens::ToStream) {
        // As Redis, which ignores it.
        return Ok(false);
    }
    if call.server.replication.failover.is_on() {
        return Err(CommandError::text("NOMASTERLINK Can't SYNC while failing over"));
    }
    if call.server.replica.is_on() && call.server.replica.state() != LinkState::Connected {
        return Err(CommandError::text("NOMASTERLINK Can't SYNC while not connected with my master"));
    }
    if call.session.record.listens(Listens::ToCommands) || call.session.record.listens(Listens::ToTopics) {
        return Err(CommandError::text("ERR SYNC and PSYNC are invalid with pending output"));
    }
    Ok(true)
}

fn full_sync(call: &mut Call<'_, '_>, is_old: bool) -> Outcome {
    if !may_follow(call)? {
        return Ok(());
    }
    let replica = replica_of(call);
    replica.await_copy(call.server.clock.uptime_millis());
    call.server.replication.n_full.fetch_add(1, Ordering::Relaxed);
    notice_later!("Replica {} asks for synchronization", name_of(&replica));
    let knows = knows_field_deadlines(call, &replica);
    follow(call, ReplicaLink::awaiting_copy(replica, is_old).with_field_deadlines(knows));
    call.server.saver().wake_if_asleep();
    Ok(())
}

fn partial_sync(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if call.session.record.listens(Listens::ToStream) {
        // As Redis, which ignores it.
        return Ok(());
    }
    let id = args.next()?;
    let offset = args.int().inspect_err(|_| {
        let replica = replica_of(call);
        warning_later!("Replica {} asks for synchronization but with a wrong offset", name_of(&replica));
    })?;
    let is_failover = args.tag("FAILOVER");
    args.finish()?;
    if is_failover {
        take_over(call, id)?;
    }
    if !may_follow(call)? {
        return Ok(());
    }
    let server = call.server;
    let place = server.replication.lineage().place(id, offset).filter(|&place| is_kept(server, place));
    let Some(place) = place else {
        if id != b"?" {
            server.replication.n_partial_refused.fetch_add(1, Ordering::Relaxed);
            notice_later!(
                "Partial resynchronization not accepted: offset {} of history {} is not here (any more)",
                offset,
                shown(id)
            );
        }
        return full_sync(call, false);
    };
    let replica = replica_of(call);
    server.replication.n_partial.fetch_add(1, Ordering::Relaxed);
    let answer = match replica.said().takes_new_id {
        true => format!("CONTINUE {}", server.replication.lineage().id().as_str()),
        false => "CONTINUE".to_owned(),
    };
    reply.simple(&answer);
    let n_bytes = server.replication_offset() as i64 + 1 - offset;
    notice_later!(
        "Partial resynchronization request from {} accepted. Sending {n_bytes} bytes of backlog starting from offset {offset}.",
        name_of(&replica)
    );
    let knows = knows_field_deadlines(call, &replica);
    follow(call, ReplicaLink::going_on(replica, place).with_field_deadlines(knows));
    Ok(())
}

/// Whether the history or a spool has all bytes after a place, at about this moment.
fn is_kept(server: &Server, place: Lsn) -> bool {
    let stream = server.durability.aof.stream();
    let end = stream.merged_end().1;
    let is_in_history = stream.history().is_some_and(|(first, _)| (first..=end).contains(&place));
    is_in_history || server.replication.spools.resume(place, stream.n_jumps()).is_some()
}

/// Makes this server the primary, because its primary fails over to it.
fn take_over(call: &mut Call<'_, '_>, id: &[u8]) -> Outcome {
    let server = call.server;
    warning_later!("Failover request received for replid {}.", shown(id));
    if !server.replica.is_on() {
        return Err(CommandError::text("ERR PSYNC FAILOVER can't be sent to a master."));
    }
    if !server.replica.has_history() || !server.replication.lineage().id().is(id) {
        return Err(CommandError::text("ERR PSYNC FAILOVER replid must match my replid."));
    }
    changing_role::change(call, None);
    call.renew_definitions();
    let client = describe(&call.session.record, call.table, server.clock.uptime_millis());
    notice_later!("MASTER MODE enabled (failover request from '{}')", client.trim_end());
    Ok(())
}

/// Whether a replica reads deadlines of fields. Redis does since 7.4, and does not say which version it is:
/// the operator says so by the format of snapshots.
fn knows_field_deadlines(call: &Call<'_, '_>, replica: &Replica) -> bool {
    let said = replica.said();
    let format = call.server.config.load().rdb_write_format;
    said.is_braid
        || said.version.is_some_and(|[major, ..]| major >= 9)
        || matches!(format, RdbWriteFormat::Redis74 | RdbWriteFormat::Valkey9)
}

/// The address of a replica, for the log.
pub(crate) fn name_of(replica: &Replica) -> String {
    replica.name()
}

/// Takes pairs of a name and a value. An acknowledgement has no reply.
fn configure(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if args.remaining() % 2 == 1 {
        return Err(CommandError::Syntax);
    }
    let replica = replica_of(call);
    while !args.is_empty() {
        let name = args.next()?;
        match &name.to_ascii_lowercase()[..] {
            b"listening-port" => {
                let port = args.int()?;
                replica.said().port = u16::try_from(port).unwrap_or_default();
            }
            b"ip-address" => {
                let host = args.next()?;
                if host.len() >= MAX_HOST_BYTES {
                    return Err(CommandError::owned(format!(
                        "ERR REPLCONF ip-address provided by replica instance is too long: {} bytes",
                        host.len()
                    )));
                }
                let host = String::from_utf8_lossy(host).into_owned();
                replica.said().host = Some(host).filter(|host| !host.is_empty());
            }
            b"capa" => match &args.next()?.to_ascii_lowercase()[..] {
                b"eof" => replica.said().takes_marked_end = true,
                b"psync2" => replica.said().takes_new_id = true,
                // Others are abilities that are not used.
                _ => {}
            },
            b"version" => {
                let version = parse_version(args.next()?).ok_or_else(|| {
                    CommandError::text("ERR REPLCONF version must be given as <major>.<minor>.<patch>")
                })?;
                replica.said().version = Some(version);
            }
            b"braid" => {
                args.next()?;
                replica.said().is_braid = true;
            }
            b"rdb-only" => {
                let only = args.int()?;
                if !(0..=1).contains(&only) {
                    return Err(CommandError::text("ERR value is out of range, value must between 0 and 1"));
                }
                replica.said().wants_copy_only = only == 1;
            }
            b"rdb-filter-only" => {
                let wanted = args.next()?;
                replica.said().filter = match &wanted.to_ascii_lowercase()[..] {
                    b"" => CopyFilter::Everything,
                    b"functions" => CopyFilter::Functions,
                    _ => {
                        return Err(CommandError::owned(format!(
                            "ERR Unsupported rdb-filter-only option: {}",
                            shown(wanted)
                        )));
                    }
                };
            }
            b"ack" => return acknowledge(call, &replica, args),
            // Only a master sends it, to its replicas.
            b"getack" => return Ok(()),
            _ => {
                return Err(CommandError::owned(format!(
                    "ERR Unrecognized REPLCONF option: {}",
                    shown(name)
                )));
            }
        }
    }
    reply.ok();
    Ok(())
}

/// The longest host name, as in Redis.
const MAX_HOST_BYTES: usize = 255;

fn acknowledge(call: &Call<'_, '_>, replica: &Replica, mut args: Args<'_>) -> Outcome {
    let offset = |text: &[u8]| number::parse_i64(text).and_then(|offset| u64::try_from(offset).ok());
    let (Some(acked), false) = (offset(args.next()?), replica.state() == ReplicaState::Handshake) else {
        return Ok(());
    };
    let on_disk = match args.tag("FACK") {
        true => offset(args.next()?),
        false => None,
    };
    replica.ack(acked, on_disk, call.server.clock.uptime_millis());
    call.server.note_ack();
    call.server.wake_who_awaits_log();
    Ok(())
}

fn parse_version(text: &[u8]) -> Option<[u32; 3]> {
    let mut parts = std::str::from_utf8(text).ok()?.split('.').map(|part| part.parse().ok());
    let version = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(version)
}

/// Writes the role of a primary: its offset and the replicas that are online.
pub(super) fn role_of_primary(call: &Call<'_, '_>, reply: &mut Reply<'_>) {
    let server = call.server;
    let online: Vec<Arc<Replica>> = server.replication.replicas.all();
    let online = online.iter().filter(|replica| replica.state() == ReplicaState::Online);
    reply.array(3);
    reply.bulk(b"master");
    reply.integer(server.replication_offset() as i64);
    reply.array(online.clone().count());
    for replica in online {
        reply.array(3);
        reply.bulk(replica.host().as_bytes());
        reply.bulk_integer(replica.said().port.into());
        reply.bulk_integer(replica.acked() as i64);
    }
}
