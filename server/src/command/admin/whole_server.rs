//! Commands on the whole server: INFO, TIME, SHUTDOWN and LOLWUT.

use std::f64::consts::TAU;

use braid_protocol::reply::Reply;

use super::{
    row_flags::{ADMIN, ANY_TIME},
    saving::ask_saver,
};
use crate::{
    catalog::{Args, Arity, Categories, CommandError, Flags, Group, Outcome},
    command::{
        Call, CommandSpec, Run,
        families::scripting::{BUSY_FUNCTION, BUSY_SCRIPT, busy_programs},
        reports::info,
    },
    config::ShutdownOptions,
    shared::announced::AnnouncedServer,
    warning,
};

pub(super) const INFO: CommandSpec = CommandSpec {
    name: "info",
    arity: Arity::AtLeast(1),
    flags: ANY_TIME.and(Flags::DANGEROUS).and(Flags::WHOLE_KEYSPACE).and(Flags::ADDS_UP_TABLES),
    run: Run::Session(print_info),
    since: "1.0.0",
    group: Group::Server,
    syntax: "[section [section ...]]",
    summary: "Returns information and statistics about the server.",
    tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
    ..CommandSpec::ROW
};

pub(super) const TIME: CommandSpec = CommandSpec {
    name: "time",
    arity: Arity::Exactly(1),
    flags: ANY_TIME.and(Flags::FAST),
    run: Run::Session(time),
    since: "2.6.0",
    group: Group::Server,
    summary: "Returns the server time.",
    tips: &["nondeterministic_output"],
    ..CommandSpec::ROW
};

pub(super) const LOLWUT: CommandSpec = CommandSpec {
    name: "lolwut",
    arity: Arity::AtLeast(1),
    flags: Flags::READONLY.and(Flags::FAST),
    run: Run::Session(lolwut),
    since: "5.0.0",
    group: Group::Server,
    syntax: "[VERSION version] [columns [rows]]",
    summary: "Displays computer art and the server's version.",
    complexity: "O(N) where N is the number of characters of the picture",
    categories: Some(Categories::NONE),
    ..CommandSpec::ROW
};

pub(super) const SHUTDOWN: CommandSpec = CommandSpec {
    name: "shutdown",
    arity: Arity::AtLeast(1),
    flags: ADMIN.and(Flags::NO_MULTI).and(Flags::ALLOW_BUSY),
    run: Run::Session(shutdown),
    since: "1.0.0",
    group: Group::Server,
    syntax: "[NOSAVE | SAVE] [NOW] [FORCE] [SAFE] [FAILOVER] [ABORT]",
    summary: "Shuts down the server.",
    ..CommandSpec::ROW
};

fn print_info(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let asked: Vec<&[u8]> = args.rest().collect();
    let text = info::text(call.table, call.server, asked.iter().copied());
    reply.verbatim(b"txt", text.as_bytes());
    Ok(())
}

fn time(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let micros = call.server.clock.unix_micros() as i64;
    reply.array(2);
    reply.bulk_integer(micros / 1_000_000);
    reply.bulk_integer(micros % 1_000_000);
    Ok(())
}

/// Cancels a shutdown that waits for its snapshot.
fn abort_shutdown(call: &mut Call<'_, '_>, reply: &mut Reply<'_>) -> Outcome {
    if !call.server.saves.ending.abort() {
        return Err(CommandError::text("ERR No shutdown in progress."));
    }
    call.server.saver().wake_if_asleep();
    reply.ok();
    Ok(())
}

/// Replies only if it does not stop the server.
///
/// SAFE keeps a node from stopping that owns slots of a cluster (Valkey 9). Without a cluster there is none.
fn shutdown(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let [mut save, mut nosave, mut now, mut force, mut abort, mut fails_over] = [false; 6];
    let n_options = args.remaining();
    while !args.is_empty() {
        if args.tag("SAVE") {
            save = true;
        } else if args.tag("NOSAVE") {
            nosave = true;
        } else if args.tag("FORCE") {
            force = true;
        } else if args.tag("ABORT") {
            abort = true;
        } else if args.tag("NOW") {
            now = true;
        } else if args.tag("FAILOVER") {
            fails_over = true;
        } else if !args.tag("SAFE") {
            return Err(CommandError::Syntax);
        }
    }
    if (abort && n_options > 1) || (save && nosave) {
        return Err(CommandError::Syntax);
    }
    if abort {
        return abort_shutdown(call, reply);
    }
    if fails_over {
        return Err(CommandError::text("ERR SHUTDOWN FAILOVER is only supported in cluster mode."));
    }
    if !nosave && let Some(program) = busy_programs(call).first() {
        // The shutdown would wait for a script that may never end.
        return Err(CommandError::text(if program.is_function() { BUSY_FUNCTION } else { BUSY_SCRIPT }));
    }
    warning!("User requested shutdown...");
    if !call.server.may_stop(force) {
        return Err(CommandError::text("ERR Errors trying to SHUTDOWN. Check logs."));
    }
    match call.server.order_at_shutdown(ShutdownOptions { save, nosave, now, force }) {
        Some(order) => ask_saver(call, order),
        None => {
            call.session.closing = true;
            call.server.stop();
            Ok(())
        }
    }
}

fn lolwut(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if args.remaining() >= 2 && args.tag("VERSION") {
        args.int()?;
    }
    // As in Redis, VERSION without a number is ignored.
    args.tag("VERSION");
    let mut size = |default: i64, most: i64| -> Result<usize, CommandError> {
        let n = if args.is_empty() { default } else { args.int()? };
        Ok(n.clamp(1, most) as usize)
    };
    let (columns, rows) = (size(64, 400)?, size(11, 100)?);
    let turns = 2.0 + (call.server.clock.unix_micros() / 1000 % 60) as f64 / 20.0;
    let picture = braid(columns, rows, turns);
    reply.verbatim(b"txt", format!("{picture}\n{}\n", AnnouncedServer::of(&call.config()).lolwut).as_bytes());
    Ok(())
}

/// Draws three strands that wind around each other `turns` times. Nearer ones are drawn heavier, and last.
fn braid(columns: usize, rows: usize, turns: f64) -> String {
    let mut picture = vec![vec![' '; columns]; rows];
    for column in 0..columns {
        let angle = column as f64 / columns as f64 * TAU * turns;
        let mut strands = [0.0, 1.0, 2.0].map(|strand| {
            let phase = angle + strand / 3.0 * TAU;
            (phase.sin(), (2.0 * phase).cos())
        });
        strands.sort_by(|(_, near), (_, other)| near.total_cmp(other));
        for (height, near) in strands {
            let middle = ((height + 1.0) / 2.0 * (rows - 1) as f64).round() as usize;
            let ink = match near {
                0.4.. => '#',
                -0.4.. => 'o',
                _ => '.',
            };
            for line in picture.iter_mut().take(middle + 2).skip(middle.saturating_sub(1)) {
                line[column] = ink;
            }
        }
    }
    let lines = picture.into_iter().map(|line| line.into_iter().collect::<String>());
    lines.map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_braid_fills_its_frame() {
        for (columns, rows) in [(64, 11), (1, 1), (3, 2)] {
            let picture = braid(columns, rows, 2.5);
            assert_eq!(picture.lines().count(), rows);
            assert!(picture.lines().all(|line| line.len() <= columns));
            assert!(picture.contains(['#', 'o', '.']));
        }
    }
}
