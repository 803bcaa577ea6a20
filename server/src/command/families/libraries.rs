//! FCALL and FUNCTION. [`crate::run::script`] describes how a function runs.

use std::{collections::BTreeMap, time::Duration};

use braid_protocol::reply::{Reply, Resp};
use braid_script::{Host, LogLevel, Stop, UnknownCommand, analysis, shebang};
use braid_storage::{
    glob::{Case, glob_match},
    observers::record,
    rdb,
};

use super::scripting::{BUSY_SCRIPT, READS, RUNS, busy_programs, declared, kill};
use crate::{
    catalog::{Args, Arity, Categories, CommandError, Flags, Group, KeyUse, Keys, Outcome, Words},
    clock::Instant,
    command::{
        Call, CommandSpec, CommandTable, GaveUp, Run, ScriptIn, TABLE,
        help::{help, misused},
        table::script_key_specs::Rows,
    },
    scripting::{
        functions::{self, Conflict, Existing, Function, Library},
        running_scripts::{Program, RunningScript},
    },
    shared::server::Server,
    verbose_later, warning_later,
};

/// Longest time in which a library may load.
const LOAD_TIME_MAX: Duration = Duration::from_millis(500);

const OF_FUNCTION: CommandSpec = CommandSpec {
    flags: Flags::NOSCRIPT,
    since: "7.0.0",
    group: Group::Scripting,
    categories: Some(Categories::SCRIPTING),
    ..CommandSpec::ROW
};
/// Base of commands that change the libraries.
const WRITES: CommandSpec = CommandSpec { flags: Flags::NOSCRIPT.and(Flags::WRITE), ..OF_FUNCTION };

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "fcall",
        keys: Keys(&declared(KeyUse::AssumedUpdate)),
        run: Run::Script(ScriptIn::Function),
        since: "7.0.0",
        syntax: "function numkeys [key [key ...]] [arg [arg ...]]",
        summary: "Runs a function.",
        ..RUNS
    },
    CommandSpec {
        name: "fcall_ro",
        keys: Keys(&declared(KeyUse::AssumedRead)),
        run: Run::Script(ScriptIn::Function),
        since: "7.0.0",
        syntax: "function numkeys [key [key ...]] [arg [arg ...]]",
        summary: "Runs a function that only reads.",
        ..READS
    },
    CommandSpec {
        name: "function",
        arity: Arity::AtLeast(2),
        since: "7.0.0",
        group: Group::Scripting,
        syntax: "<DELETE | DUMP | FLUSH | HELP | KILL | LIST | LOAD | RESTORE | STATS>",
        summary: "Loads, lists and deletes libraries of functions.",
        complexity: "Depends on subcommand.",
        subcommands: FUNCTION,
        ..CommandSpec::ROW
    },
];

const FUNCTION: &[CommandSpec] = &[
    CommandSpec {
        name: "delete",
        arity: Arity::Exactly(3),
        run: Run::Session(function_delete),
        syntax: "library-name",
        summary: "Deletes a library and its functions.",
        tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
        ..WRITES
    },
    CommandSpec {
        name: "dump",
        arity: Arity::Exactly(2),
        run: Run::Session(function_dump),
        summary: "Returns all libraries in a form that FUNCTION RESTORE takes.",
        complexity: "O(N) where N is the number of functions",
        ..OF_FUNCTION
    },
    CommandSpec {
        name: "flush",
        arity: Arity::AtLeast(2),
        run: Run::Session(function_flush),
        syntax: "[ASYNC | SYNC]",
        summary: "Deletes all libraries.",
        complexity: "O(N) where N is the number of functions deleted",
        tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
        ..WRITES
    },
    CommandSpec {
        run: Run::Session(function_help),
        summary: "Lists the subcommands.",
        since: "7.0.0",
        group: Group::Scripting,
        categories: Some(Categories::SCRIPTING),
        ..CommandSpec::HELP
    },
    CommandSpec {
        name: "kill",
        arity: Arity::Exactly(2),
        flags: Flags::NOSCRIPT.and(Flags::ALLOW_BUSY),
        run: Run::Session(function_kill),
        summary: "Ends functions that run for too long and have not written.",
        tips: &["request_policy:all_shards", "response_policy:one_succeeded"],
        ..OF_FUNCTION
    },
    CommandSpec {
        name: "list",
        arity: Arity::AtLeast(2),
        run: Run::Session(function_list),
        syntax: "[LIBRARYNAME library-name-pattern] [WITHCODE]",
        summary: "Lists libraries and their functions.",
        complexity: "O(N) where N is the number of functions",
        tips: &["nondeterministic_output_order"],
        ..OF_FUNCTION
    },
    CommandSpec {
        name: "load",
        arity: Arity::AtLeast(3),
        flags: WRITES.flags.and(Flags::DENYOOM),
        run: Run::Session(function_load),
        syntax: "[REPLACE] function-code",
        summary: "Loads a library.",
        complexity: "O(1) (considering compilation time is redundant)",
        tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
        ..WRITES
    },
    CommandSpec {
        name: "restore",
        arity: Arity::AtLeast(3),
        flags: WRITES.flags.and(Flags::DENYOOM),
        run: Run::Session(function_restore),
        syntax: "serialized-value [FLUSH | APPEND | REPLACE]",
        summary: "Loads the libraries that FUNCTION DUMP has returned.",
        complexity: "O(N) where N is the number of functions on the payload",
        tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
        ..WRITES
    },
    CommandSpec {
        name: "stats",
        arity: Arity::Exactly(2),
        flags: Flags::NOSCRIPT.and(Flags::ALLOW_BUSY),
        run: Run::Session(function_stats),
        summary: "Tells which function runs, and how many there are.",
        tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
        ..OF_FUNCTION
    },
];

/// The host of a library that loads: it can only log, for a limited time.
struct LibraryHost {
    began: Instant,
}

impl Host for LibraryHost {
    fn call(&mut self, _: Words<'_>, _: Resp, reply: &mut Vec<u8>) -> Result<(), Stop> {
        reply.extend_from_slice(b"-ERR redis.call is not available while a library loads\r\n");
        Ok(())
    }

    fn log(&mut self, _: LogLevel, message: &[u8]) {
        warning_later!("{}", String::from_utf8_lossy(message));
    }

    fn acl_check(&mut self, _: Words<'_>) -> Result<bool, UnknownCommand> {
        Err(UnknownCommand)
    }

    fn set_replication(&mut self, _: u8) {}

    fn interrupt(&mut self) -> Result<(), Stop> {
        if self.began.elapsed() > LOAD_TIME_MAX { Err(Stop::TimeOver) } else { Ok(()) }
    }
}

/// Replaces all known libraries with those of a file.
///
/// # Errors
/// If one of them cannot be loaded, in words.
pub fn replace_libraries(server: &Server, codes: &[Vec<u8>]) -> Result<(), String> {
    add_libraries(server, codes, Existing::Flush)
}

/// Loads libraries, and treats the existing ones as requested.
///
/// # Errors
/// If one of them cannot be loaded, in words.
pub fn add_libraries(server: &Server, codes: &[Vec<u8>], existing: Existing) -> Result<(), String> {
    let libraries: Result<Vec<Library>, CommandError> =
        codes.iter().map(|code| library_of(&TABLE, code)).collect();
    let added = libraries.and_then(|libraries| server.functions.add(libraries, existing).map_err(taken));
    added.map_err(|error| error.wire_text().to_string())
}

/// Returns a library's name from its first line.
fn name_in(code: &[u8]) -> Result<String, CommandError> {
    shebang::library(code).map_err(|error| CommandError::owned(format!("ERR {error}")))
}

/// Parses a library's text, and loads the library once to learn its functions.
fn library_of(table: &'static CommandTable, code: &[u8]) -> Result<Library, CommandError> {
    let name = name_in(code)?;
    let specs = functions::with_thread_functions(|own| {
        let specs = own.engine.load_library(code, &mut LibraryHost { began: Instant::now() })?;
        // The library is loaded again after it becomes known.
        specs.iter().for_each(|spec| own.engine.forget(spec.handle));
        Ok(specs)
    });
    let specs = specs.map_err(|error: braid_script::LoadError| CommandError::owned(error.to_string()))?;
    let mut analyses = analysis::analyse_library(code, &Rows(table));
    let function = |spec: braid_script::FunctionSpec| {
        let analysis = analyses.remove(spec.name.as_bytes()).unwrap_or_else(analysis::Analysis::unreadable);
        let program = Program::new(Some(spec.flags), analysis);
        (spec.name.clone(), Function { name: spec.name, description: spec.description, program })
    };
    let functions: BTreeMap<String, Function> = specs.into_iter().map(function).collect();
    Ok(Library::new(name, code, functions))
}

fn function_load(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let mut existing = Existing::Keep;
    while args.remaining() > 1 {
        if !args.tag("REPLACE") {
            let option = String::from_utf8_lossy(args.next()?).into_owned();
            return Err(CommandError::owned(format!("ERR Unknown option given: {option}")));
        }
        existing = Existing::Replace;
    }
    let code = args.next()?;
    let name = name_in(code)?;
    // Its code must not run in vain.
    if existing == Existing::Keep && call.functions().has(&name) {
        return Err(taken(Conflict::Library(name)));
    }
    let library = library_of(call.table, code)?;
    changed(call, call.server.functions.add(vec![library], existing))?.map_err(taken)?;
    note_change(call, &[b"LOAD", b"REPLACE", code]);
    reply.bulk(name.as_bytes());
    Ok(())
}

fn taken(conflict: Conflict) -> CommandError {
    CommandError::owned(match conflict {
        Conflict::Library(name) => format!("ERR Library '{name}' already exists"),
        Conflict::Function(name) => format!("ERR Function {name} already exists"),
        Conflict::Ending => "ERR the server is about to end".to_owned(),
    })
}

/// Makes the command run again if it comes too late for the last snapshot. It then waits for that snapshot's
/// result.
fn changed<T>(
    call: &mut Call<'_, '_>,
    change: Result<T, Conflict>,
) -> Result<Result<T, Conflict>, CommandError> {
    if let Err(Conflict::Ending) = change {
        call.gave_up = Some(GaveUp::Ending);
        // No code reads this error.
        return Err(taken(Conflict::Ending));
    }
    Ok(change)
}

/// Records a change of the libraries, and shows it to the rest of a transaction.
///
/// The change affects no key, so no other code records it.
fn note_change(call: &mut Call<'_, '_>, words: &[&[u8]]) {
    call.renew_definitions();
    if call.server.durability.is_recording() {
        record::add(call.session.db, std::iter::once(&b"FUNCTION"[..]).chain(words.iter().copied()));
    }
}

fn function_delete(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let name = args.next()?;
    if changed(call, call.server.functions.delete(name))? != Ok(true) {
        return Err(CommandError::text("ERR Library not found"));
    }
    note_change(call, &[b"DELETE", name]);
    reply.ok();
    Ok(())
}

fn function_flush(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if args.remaining() > 1 {
        return Err(misused("FUNCTION", args));
    }
    if !args.is_empty() && !args.tag("SYNC") && !args.tag("ASYNC") {
        return Err(CommandError::text("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"));
    }
    changed(call, call.server.functions.add(Vec::new(), Existing::Flush))?.map_err(taken)?;
    note_change(call, &[b"FLUSH"]);
    reply.ok();
    Ok(())
}

fn function_kill(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    kill(call, true)?;
    reply.ok();
    Ok(())
}

fn function_list(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (mut pattern, mut with_code) = (None, false);
    while !args.is_empty() {
        if !with_code && args.tag("WITHCODE") {
            with_code = true;
        } else if pattern.is_none() && args.tag("LIBRARYNAME") {
            let named = args.next();
            pattern = Some(named.map_err(|_| CommandError::text("ERR library name argument was not given"))?);
        } else {
            let option = String::from_utf8_lossy(args.next()?).into_owned();
            return Err(CommandError::owned(format!("ERR Unknown argument {option}")));
        }
    }
    let known = call.functions();
    let is_wanted = |library: &&std::sync::Arc<Library>| {
        pattern.is_none_or(|pattern| glob_match(pattern, library.name.as_bytes(), Case::Insensitive))
    };
    let wanted: Vec<_> = known.libraries().filter(is_wanted).collect();
    reply.array(wanted.len());
    wanted.into_iter().for_each(|library| show_library(library, with_code, reply));
    Ok(())
}

fn show_library(library: &Library, with_code: bool, reply: &mut Reply<'_>) {
    reply.map(if with_code { 4 } else { 3 });
    reply.bulk(b"library_name");
    reply.bulk(library.name.as_bytes());
    reply.bulk(b"engine");
    reply.bulk(b"LUA");
    reply.bulk(b"functions");
    reply.array(library.functions.len());
    for function in library.functions.values() {
        reply.map(3);
        reply.bulk(b"name");
        reply.bulk(function.name.as_bytes());
        reply.bulk(b"description");
        match &function.description {
            Some(description) => reply.bulk(description),
            None => reply.null(),
        }
        reply.bulk(b"flags");
        let flags = function.program.flags.unwrap_or_default();
        reply.set(flags.names().count());
        flags.names().for_each(|name| reply.simple(name));
    }
    if with_code {
        reply.bulk(b"library_code");
        reply.bulk(&library.code);
    }
}

fn function_stats(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let known = call.functions();
    let now = call.server.clock.uptime_millis();
    let mut running = call.server.threads.iter().map(|peer| &peer.program);
    let running = running.find(|program| program.is_function() && program.runs_for(now).is_some());
    fail_while_busy(call)?;
    reply.map(2);
    reply.bulk(b"running_script");
    match running.and_then(|program| Some((program.words()?, program.runs_for(now)?))) {
        Some((words, millis)) => {
            reply.map(3);
            reply.bulk(b"name");
            reply.bulk(&words[1]);
            reply.bulk(b"command");
            reply.array(words.len());
            words.iter().for_each(|word| reply.bulk(word));
            reply.bulk(b"duration_ms");
            reply.integer(millis as i64);
        }
        None => reply.null(),
    }
    reply.bulk(b"engines");
    reply.map(1);
    reply.bulk(b"LUA");
    reply.map(2);
    reply.bulk(b"libraries_count");
    reply.integer(known.libraries().len() as i64);
    reply.bulk(b"functions_count");
    reply.integer(known.n_functions() as i64);
    Ok(())
}

/// Fails while a script is busy. As in Redis, no client may then read about functions.
fn fail_while_busy(call: &Call<'_, '_>) -> Outcome {
    let is_script = |program: &&RunningScript| !program.is_function();
    match busy_programs(call).iter().any(is_script) {
        true => Err(CommandError::text(BUSY_SCRIPT)),
        false => Ok(()),
    }
}

fn function_dump(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let known = call.functions();
    reply.bulk(&rdb::dump_libraries(known.libraries().map(|library| &*library.code)));
    Ok(())
}

fn function_restore(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if args.remaining() > 2 {
        return Err(misused("FUNCTION", args));
    }
    let payload = args.next()?;
    let existing = match () {
        () if args.is_empty() || args.tag("APPEND") => Existing::Keep,
        () if args.tag("REPLACE") => Existing::Replace,
        () if args.tag("FLUSH") => Existing::Flush,
        () => {
            return Err(CommandError::text(
                "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
            ));
        }
    };
    let checksums = call.server.payload_checksums();
    let codes = rdb::restore_libraries(payload, checksums).map_err(|malformed| {
        verbose_later!("FUNCTION RESTORE refuses a payload: {malformed} of {}", payload.len());
        CommandError::text(match malformed.flaw.is_of_footer() {
            true => "ERR DUMP payload version or checksum are wrong",
            false => "ERR given type is not a function",
        })
    })?;
    let libraries: Result<Vec<Library>, CommandError> =
        codes.iter().map(|code| library_of(call.table, code)).collect();
    let restored = changed(call, call.server.functions.add(libraries?, existing))?;
    restored.map_err(|conflict| match conflict {
        Conflict::Library(name) => CommandError::owned(format!("ERR Library {name} already exists")),
        function => taken(function),
    })?;
    let policy: &[u8] = if existing == Existing::Flush { b"FLUSH" } else { b"REPLACE" };
    note_change(call, &[b"RESTORE", payload, policy]);
    reply.ok();
    Ok(())
}

fn function_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(
        reply,
        "FUNCTION",
        &[
            "LOAD [REPLACE] <FUNCTION CODE>",
            "    Load a library.",
            "DELETE <LIBRARY NAME>",
            "    Delete a library and its functions.",
            "LIST [LIBRARYNAME PATTERN] [WITHCODE]",
            "    List libraries and their functions.",
            "STATS",
            "    Tell which function runs, and how many there are.",
            "KILL",
            "    End functions that run for too long, unless they have written.",
            "FLUSH [ASYNC|SYNC]",
            "    Delete all libraries.",
            "DUMP",
            "    Return all libraries in a form that RESTORE takes.",
            "RESTORE <PAYLOAD> [FLUSH|APPEND|REPLACE]",
            "    Load the libraries of a dump, in place of all, beside those that are there, or in place of those of the",
            "    same names.",
        ],
    )
}
