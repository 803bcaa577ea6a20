//! EVAL, related commands and SCRIPT. [`crate::run::script`] describes how a script runs.

use std::sync::Arc;

use braid_protocol::reply::Reply;
use braid_script::{analysis, shebang};

use crate::{
    catalog::{Args, Arity, Categories, CommandError, Flags, Group, KeySpec, KeyUse, Keys, KeysAt, Outcome},
    command::{
        Call, CommandSpec, Run, ScriptIn,
        help::help,
        table::{CommandTable, script_key_specs::Rows},
    },
    scripting::{
        running_scripts::{Program, RunningScript},
        scripts::{self, Script, ScriptOrigin},
    },
    shared::server::Server,
};

/// Returns the keys that a script declares. The second argument is their number.
pub(super) const fn declared(used: KeyUse) -> [KeySpec; 1] {
    [KeySpec { at: KeysAt::Counted { count: 2, step: 1 }, used }]
}

/// Base of commands that run a script.
pub(super) const RUNS: CommandSpec = CommandSpec {
    arity: Arity::AtLeast(3),
    flags: Flags::NOSCRIPT
        .and(Flags::STALE)
        .and(Flags::SKIP_MONITOR)
        .and(Flags::NO_MANDATORY_KEYS)
        .and(Flags::MOVABLE_KEYS)
        .and(Flags::MAY_REPLICATE),
    group: Group::Scripting,
    complexity: "Depends on the script that is executed.",
    ..CommandSpec::ROW
};
/// Base of commands that run a read-only script.
pub(super) const READS: CommandSpec = CommandSpec {
    flags: Flags::READONLY
        .and(Flags::NOSCRIPT)
        .and(Flags::STALE)
        .and(Flags::SKIP_MONITOR)
        .and(Flags::NO_MANDATORY_KEYS)
        .and(Flags::MOVABLE_KEYS),
    ..RUNS
};
const OF_SCRIPT: CommandSpec = CommandSpec {
    flags: Flags::NOSCRIPT,
    since: "2.6.0",
    group: Group::Scripting,
    categories: Some(Categories::SCRIPTING),
    ..CommandSpec::ROW
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "eval",
        keys: Keys(&declared(KeyUse::AssumedUpdate)),
        run: Run::Script(ScriptIn::Text),
        since: "2.6.0",
        syntax: "script numkeys [key [key ...]] [arg [arg ...]]",
        summary: "Runs a Lua script.",
        ..RUNS
    },
    CommandSpec {
        name: "eval_ro",
        keys: Keys(&declared(KeyUse::AssumedRead)),
        run: Run::Script(ScriptIn::Text),
        since: "7.0.0",
        syntax: "script numkeys [key [key ...]] [arg [arg ...]]",
        summary: "Runs a Lua script that only reads.",
        ..READS
    },
    CommandSpec {
        name: "evalsha",
        keys: Keys(&declared(KeyUse::UpdateAndRead)),
        run: Run::Script(ScriptIn::Digest),
        since: "2.6.0",
        syntax: "sha1 numkeys [key [key ...]] [arg [arg ...]]",
        summary: "Runs a known Lua script by its digest.",
        ..RUNS
    },
    CommandSpec {
        name: "evalsha_ro",
        keys: Keys(&declared(KeyUse::Read)),
        run: Run::Script(ScriptIn::Digest),
        since: "7.0.0",
        syntax: "sha1 numkeys [key [key ...]] [arg [arg ...]]",
        summary: "Runs a known Lua script that only reads by its digest.",
        ..READS
    },
    CommandSpec {
        name: "script",
        arity: Arity::AtLeast(2),
        since: "2.6.0",
        group: Group::Scripting,
        syntax: "<EXISTS | FLUSH | HELP | KILL | LOAD | SHOW>",
        summary: "Loads, looks for and ends scripts.",
        complexity: "Depends on subcommand.",
        subcommands: SCRIPT,
        ..CommandSpec::ROW
    },
];

const SCRIPT: &[CommandSpec] = &[
    CommandSpec {
        name: "debug",
        arity: Arity::Exactly(3),
        run: Run::Session(script_debug),
        since: "3.2.0",
        syntax: "<YES | SYNC | NO>",
        summary: "Is refused: scripts run on many threads, which a debugger would stop.",
        ..OF_SCRIPT
    },
    CommandSpec {
        name: "exists",
        arity: Arity::AtLeast(3),
        run: Run::Session(script_exists),
        syntax: "sha1 [sha1 ...]",
        summary: "Says which scripts are known.",
        complexity: "O(N) with N being the number of scripts to check.",
        tips: &["request_policy:all_shards", "response_policy:agg_logical_and"],
        ..OF_SCRIPT
    },
    CommandSpec {
        name: "flush",
        arity: Arity::AtLeast(2),
        run: Run::Session(script_flush),
        syntax: "[ASYNC | SYNC]",
        summary: "Forgets all scripts.",
        complexity: "O(N) with N being the number of scripts in cache",
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        ..OF_SCRIPT
    },
    CommandSpec {
        run: Run::Session(script_help),
        since: "5.0.0",
        summary: "Lists the subcommands.",
        group: Group::Scripting,
        categories: Some(Categories::SCRIPTING),
        ..CommandSpec::HELP
    },
    CommandSpec {
        name: "kill",
        arity: Arity::Exactly(2),
        flags: Flags::NOSCRIPT.and(Flags::ALLOW_BUSY),
        run: Run::Session(script_kill),
        summary: "Ends scripts that run for too long and have not written.",
        tips: &["request_policy:all_shards", "response_policy:one_succeeded"],
        ..OF_SCRIPT
    },
    CommandSpec {
        name: "load",
        arity: Arity::Exactly(3),
        flags: Flags::NOSCRIPT.and(Flags::STALE),
        run: Run::Session(script_load),
        syntax: "script",
        summary: "Makes a script known for EVALSHA.",
        complexity: "O(N) with N being the length in bytes of the script body.",
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        ..OF_SCRIPT
    },
    CommandSpec {
        name: "show",
        arity: Arity::Exactly(3),
        flags: Flags::NOSCRIPT.and(Flags::STALE),
        run: Run::Session(script_show),
        since: "valkey 8.0.0",
        syntax: "sha1",
        summary: "Returns the text of a known script.",
        ..OF_SCRIPT
    },
];

fn script_debug(_: &mut Call<'_, '_>, _: Args<'_>, _: &mut Reply<'_>) -> Outcome {
    Err(CommandError::text(
        "ERR SCRIPT DEBUG is not supported: scripts run on many threads, which a debugger would stop",
    ))
}

fn script_exists(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let known = call.scripts();
    reply.array(args.remaining());
    args.rest().for_each(|sha| reply.integer(known.by_sha(sha).is_some().into()));
    Ok(())
}

fn script_flush(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if args.remaining() > 1 || !args.is_empty() && !args.tag("SYNC") && !args.tag("ASYNC") {
        return Err(CommandError::text("ERR SCRIPT FLUSH only support SYNC|ASYNC option"));
    }
    call.server.scripts.flush();
    call.renew_definitions();
    reply.ok();
    Ok(())
}

fn script_kill(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    kill(call, false)?;
    reply.ok();
    Ok(())
}

/// Returns the scripts and functions that have run for longer than `busy-reply-threshold`.
pub(in crate::command) fn busy_programs(call: &Call<'_, '_>) -> Vec<&'static RunningScript> {
    let now = call.server.clock.uptime_millis();
    let Some(threshold) = call.server.config.load().busy_reply_threshold else { return Vec::new() };
    let is_busy = |program: &&RunningScript| {
        program.runs_for(now).is_some_and(|millis| u128::from(millis) >= threshold.as_millis())
    };
    call.thread.server().threads.iter().map(|peer| &peer.program).filter(is_busy).collect()
}

/// Kills the scripts, or the functions, that have run for longer than `busy-reply-threshold`.
pub(super) fn kill(call: &Call<'_, '_>, functions: bool) -> Outcome {
    let busy = busy_programs(call);
    let wanted = || busy.iter().filter(|program| program.is_function() == functions);
    if wanted().next().is_none() {
        return Err(match functions {
            _ if busy.is_empty() => not_busy(),
            true => CommandError::text(BUSY_SCRIPT),
            false => CommandError::text(BUSY_FUNCTION),
        });
    }
    // Each of them is told, even after a refusal.
    if wanted().fold(false, |any, program| program.kill() | any) { Ok(()) } else { Err(unkillable()) }
}

/// The error for clients that need the keys of a long-running script.
pub(crate) const BUSY_SCRIPT: &str =
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
/// The error for clients that need the keys of a long-running function.
pub(crate) const BUSY_FUNCTION: &str =
    "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.";

fn not_busy() -> CommandError {
    CommandError::text("NOTBUSY No scripts in execution right now.")
}

fn unkillable() -> CommandError {
    CommandError::text(
        "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the \
         script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
    )
}

/// Makes a script known, if it compiles.
///
/// # Errors
/// If it does not compile.
pub(crate) fn learn_script(
    server: &Server,
    table: &'static CommandTable,
    source: &[u8],
    origin: ScriptOrigin,
) -> Result<Arc<Script>, CommandError> {
    let flags = shebang::script(source).map_err(|error| CommandError::owned(format!("ERR {error}")))?;
    let checked = scripts::with_thread_scripts(|own| own.check(source));
    checked.map_err(|error| CommandError::owned(error.to_string()))?;
    let make = || Program::new(flags, analysis::analyse(source, &Rows(table)));
    Ok(server.scripts.add(source, make, origin, server.clock.uptime_millis()))
}

fn script_load(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let script = learn_script(call.server, call.table, args.next()?, ScriptOrigin::Loaded)?;
    call.learn(&script);
    reply.bulk(&script.sha);
    Ok(())
}

fn script_show(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    match call.scripts().by_sha(args.next()?) {
        Some(script) => reply.bulk(&script.source),
        None => return Err(CommandError::text("NOSCRIPT No matching script. Please use EVAL.")),
    }
    Ok(())
}

fn script_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(
        reply,
        "SCRIPT",
        &[
            "DEBUG (YES|SYNC|NO)",
            "    Is refused: scripts run on many threads.",
            "EXISTS <sha1> [<sha1> ...]",
            "    Say which of the scripts are known.",
            "FLUSH [ASYNC|SYNC]",
            "    Forget all scripts.",
            "KILL",
            "    End scripts that run for too long, unless they have written.",
            "LOAD <script>",
            "    Make a script known without running it.",
            "SHOW <sha1>",
            "    Return the text of a script.",
        ],
    )
}
