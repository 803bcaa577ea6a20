//! FAILOVER: makes a replica the primary, without a lost write.

use braid_protocol::{number, reply::Reply};

use super::changing_role;
use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, Outcome},
    command::{Call, CommandSpec, Run},
    config::PrimaryAddress,
    notice_later,
    replication::{
        failover::{FailoverPlan, FailoverStep},
        replicas::ReplicaState,
    },
};

pub(super) const FAILOVER: CommandSpec = CommandSpec {
    name: "failover",
    arity: Arity::AtLeast(1),
    flags: Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::STALE).and(Flags::ENDS_PAUSES),
    run: Run::Everything(failover),
    since: "6.2.0",
    group: Group::Server,
    syntax: "[TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]",
    summary: "Makes a replica the master, and this server its replica.",
    ..CommandSpec::ROW
};

/// The options of FAILOVER.
#[derive(Default)]
struct FailoverOptions {
    target: Option<PrimaryAddress>,
    millis: Option<u64>,
    is_forced: bool,
}

fn read_options(mut args: Args<'_>) -> Result<FailoverOptions, CommandError> {
    let mut options = FailoverOptions::default();
    while !args.is_empty() {
        if options.millis.is_none() && args.remaining() > 1 && args.tag("TIMEOUT") {
            let millis = u64::try_from(args.int()?).ok().filter(|&millis| millis > 0);
            options.millis =
                Some(millis.ok_or(CommandError::text("ERR FAILOVER timeout must be greater than 0"))?);
        } else if options.target.is_none() && args.remaining() > 2 && args.tag("TO") {
            let host = args.next()?.to_vec();
            let port = number::parse_i64(args.next()?).ok_or(CommandError::NotInteger)?;
            options.target = Some(PrimaryAddress { host, port: u16::try_from(port).unwrap_or_default() });
        } else if !options.is_forced && args.tag("FORCE") {
            options.is_forced = true;
        } else {
            return Err(CommandError::Syntax);
        }
    }
    Ok(options)
}

fn failover(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if args.remaining() == 1 && args.tag("ABORT") {
        return abort(call, reply);
    }
    let options = read_options(args)?;
    let (server, now) = (call.server, call.server.clock.uptime_millis());
    if server.replication.failover.is_on() {
        return Err(CommandError::text("ERR FAILOVER already in progress."));
    }
    if server.replica.is_on() {
        return Err(CommandError::text("ERR FAILOVER is not valid when server is a replica."));
    }
    if server.replication.replicas.all().is_empty() {
        return Err(CommandError::text("ERR FAILOVER requires connected replicas."));
    }
    if options.is_forced && (options.target.is_none() || options.millis.is_none()) {
        return Err(CommandError::text(
            "ERR FAILOVER with force option requires both a timeout and target HOST and IP.",
        ));
    }
    if let Some(target) = &options.target {
        let replica = server
            .replica_at(target)
            .ok_or(CommandError::text("ERR FAILOVER target HOST and PORT is not a replica."))?;
        if replica.state() != ReplicaState::Online {
            return Err(CommandError::text("ERR FAILOVER target replica is not online."));
        }
        notice_later!("FAILOVER requested to {target}.");
    } else {
        notice_later!("FAILOVER requested.");
    }
    // At once, and not with the next PING: a replica may be ready already.
    call.thread.log_for_replicas(&[b"REPLCONF", b"GETACK", b"*"]);
    server.begin_failover(FailoverPlan {
        target: options.target,
        is_forced: options.is_forced,
        deadline: options.millis.map(|millis| now.saturating_add(millis)),
        last: server.durability.last_ticket(),
    });
    reply.ok();
    Ok(())
}

fn abort(call: &mut Call<'_, '_>, reply: &mut Reply<'_>) -> Outcome {
    let (server, thread) = (call.server, call.thread);
    let step = server.replication.failover.step();
    if step == FailoverStep::None {
        return Err(CommandError::text("ERR No failover in progress."));
    }
    server.tell_aborted_failover("Failover manually aborted");
    if step == FailoverStep::InProgress {
        changing_role::change(call, None);
    }
    server.end_failover(thread);
    reply.ok();
    Ok(())
}
