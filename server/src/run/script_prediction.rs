//! Predictions about a script before it runs: its keys, and whether it will take long.

use std::sync::Arc;

use braid_script::{analysis::TooMany, shebang};
use smallvec::SmallVec;

use crate::{
    catalog::{Args, CommandError, Flags, Words},
    command::{self, Registered, Run, ScriptIn, TABLE},
    scripting::{
        running_scripts::Program,
        scripts::{Known, Script, ScriptOrigin},
    },
    shared::server::Server,
};

/// The arguments of EVAL and similar commands, taken apart.
#[derive(Clone, Copy)]
pub struct EvalArguments<'p> {
    /// The text, the digest, or the function's name.
    pub named: &'p [u8],
    /// The declared keys.
    pub keys: &'p [&'p [u8]],
    /// The arguments after the keys.
    pub argv: &'p [&'p [u8]],
}

/// Space for a few keys and arguments.
pub type PartsRoom<'w> = SmallVec<[&'w [u8]; 12]>;

impl<'p> EvalArguments<'p> {
    /// Takes the arguments apart.
    ///
    /// # Errors
    /// If the number of keys is not valid.
    pub fn read<'w: 'p>(
        mut args: Args<'w>,
        from: ScriptIn,
        room: &'p mut PartsRoom<'w>,
    ) -> Result<Self, CommandError> {
        let named = args.next()?;
        let n_keys = args.int().map_err(|error| match from {
            ScriptIn::Function => CommandError::text("ERR Bad number of keys provided"),
            ScriptIn::Text | ScriptIn::Digest => error,
        })?;
        if n_keys > args.remaining() as i64 {
            return Err(CommandError::text("ERR Number of keys can't be greater than number of args"));
        }
        let n_keys = usize::try_from(n_keys)
            .map_err(|_| CommandError::text("ERR Number of keys can't be negative"))?;
        room.extend(args.rest());
        let (keys, argv) = room.split_at(n_keys);
        Ok(EvalArguments { named, keys, argv })
    }
}

/// Calls `look` with the known program that a command runs.
///
/// It is found by its text, its digest or its function's name.
fn look_at<R>(server: &Server, from: ScriptIn, named: &[u8], look: impl FnOnce(Option<&Program>) -> R) -> R {
    match from {
        ScriptIn::Text | ScriptIn::Digest => {
            look(script(&server.scripts.known(), from, named).map(|script| &script.program))
        }
        ScriptIn::Function => {
            look(server.functions.known().function(named).map(|(_, function)| &function.program))
        }
    }
}

/// Returns the script with EVAL's text or EVALSHA's digest.
pub fn script<'k>(known: &'k Known, from: ScriptIn, named: &[u8]) -> Option<&'k Arc<Script>> {
    if from == ScriptIn::Text { known.by_source(named) } else { known.by_sha(named) }
}

/// The expectations about a run.
#[derive(Clone, Copy, Default)]
pub struct Expected {
    /// Whether it is long, as [`is_long`] says.
    pub is_long: bool,
    /// Whether it needs the lane.
    pub wants_lane: bool,
}

/// Calls `each` with the predictable keys of a script besides its declared ones.
///
/// Returns the other expectations about it.
pub fn predict(server: &Server, from: ScriptIn, words: Words<'_>, each: &mut dyn FnMut(&[u8])) -> Expected {
    look_at(server, from, words.get(1), |program| {
        let mut is_incomplete = false;
        if let Some(program) = program
            && program.is_predictable()
            && program.analysis.n_templates() > 0
            && let args = Args::new(words, server.keyspace.router(), None)
            && let Ok(parts) = EvalArguments::read(args, from, &mut PartsRoom::new())
        {
            // Wrong arguments lead to no key. If there are too many keys, the others are met when the script
            // runs.
            let complete: Result<(), TooMany> = program.analysis.keys(parts.keys, parts.argv, each);
            is_incomplete = complete.is_err();
        }
        Expected {
            is_long: expects_long(from, program),
            wants_lane: is_incomplete || program.is_some_and(|program| program.wants_lane()),
        }
    })
}

/// Returns a command's flags. The flags in a script's first line replace those of its command.
#[inline]
pub fn flags(server: &Server, command: &Registered, words: Words<'_>) -> Flags {
    match command.spec.run {
        Run::Script(from) => flags_of_script(server, command, from, words),
        _ => command.spec.flags,
    }
}

#[cold]
fn flags_of_script(server: &Server, command: &Registered, from: ScriptIn, words: Words<'_>) -> Flags {
    let (is_known, said) = look_at(server, from, words.get(1), |program| match program {
        Some(program) => (true, program.flags),
        None if from == ScriptIn::Text => (true, shebang::script(words.get(1)).ok().flatten()),
        None => (false, None),
    });
    let Some(said) = said else {
        // As in Redis, a script does not run on stale data unless it says that it may.
        return if is_known { command.spec.flags.without(Flags::STALE) } else { command.spec.flags };
    };
    let may = |flag| said.contains(flag);
    let of_command = Flags::STALE.and(Flags::DENYOOM).and(Flags::WRITE).and(Flags::MAY_REPLICATE);
    let mut flags = command.spec.flags.without(of_command);
    if !may(shebang::Flags::NO_WRITES) {
        flags = flags.and(Flags::WRITE);
    }
    if !may(shebang::Flags::NO_WRITES) && !may(shebang::Flags::ALLOW_OOM) {
        flags = flags.and(Flags::DENYOOM);
    }
    if may(shebang::Flags::ALLOW_STALE) { flags.and(Flags::STALE) } else { flags }
}

/// Whether a command runs a script whose text does not show all keys for certain.
pub fn reaches_anywhere(server: &Server, command: &Registered, words: Words<'_>) -> bool {
    let Run::Script(from) = command.spec.run else { return false };
    look_at(server, from, words.get(1), |program| program.is_none_or(|program| !program.is_certain()))
        || predict(server, from, words, &mut |_| {}).wants_lane
}

/// Whether a command runs a script that is expected to be long.
///
/// Its last run was long, or it has not run yet.
///
/// A script that has written cannot be moved, and reading a new text may take long, too.
pub fn is_long(server: &Server, command: &Registered, words: Words<'_>) -> bool {
    let Run::Script(from) = command.spec.run else { return false };
    look_at(server, from, words.get(1), |program| expects_long(from, program))
}

fn expects_long(from: ScriptIn, program: Option<&Program>) -> bool {
    match program {
        Some(program) => program.expects_long().unwrap_or(true),
        None => from == ScriptIn::Text,
    }
}

/// Compiles a new text before its shards are held. A text that does not compile is refused when it runs.
pub fn prepare(server: &Server, command: &Registered, words: Words<'_>) {
    if matches!(command.spec.run, Run::Script(ScriptIn::Text))
        && server.scripts.known().by_source(words.get(1)).is_none()
    {
        let _refused_later = command::learn_script(server, &TABLE, words.get(1), ScriptOrigin::Evaluated);
    }
}
