//! What is known of a script before it runs: which keys it will reach for, and whether it will take long.

use std::sync::Arc;

use braid_script::{
    analysis::TooMany,
    shebang::{self, Flags as ScriptFlags},
};
use smallvec::SmallVec;

use crate::{
    catalog::{Args, CommandError, Flags, Words},
    command::{self, Registered, Run, ScriptIn, TABLE},
    scripting::{
        running_scripts::Program,
        scripts::{Known, Origin, Script},
    },
    shared::server::Server,
};

/// The arguments of EVAL and its kin, taken apart.
#[derive(Clone, Copy)]
pub struct Parts<'p> {
    /// The text, the digest, or the function's name.
    pub named: &'p [u8],
    /// The keys that it declares.
    pub keys: &'p [&'p [u8]],
    /// What follows them.
    pub argv: &'p [&'p [u8]],
}

/// Room for a few keys and what follows them.
pub type PartsRoom<'w> = SmallVec<[&'w [u8]; 12]>;

impl<'p> Parts<'p> {
    /// Takes them apart.
    ///
    /// # Errors
    /// If the number of keys is none.
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
        Ok(Parts { named, keys, argv })
    }
}

/// Calls `look` with what is known of the program that a command runs: its text, or that of the digest or
/// function it names.
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

/// The script that EVAL's text or EVALSHA's digest names.
pub fn script<'k>(known: &'k Known, from: ScriptIn, named: &[u8]) -> Option<&'k Arc<Script>> {
    if from == ScriptIn::Text { known.by_source(named) } else { known.by_sha(named) }
}

/// What is expected of a run.
#[derive(Clone, Copy, Default)]
pub struct Expected {
    /// It is long, as [`is_long`] says.
    pub is_long: bool,
    /// It needs the lane.
    pub wants_lane: bool,
}

/// Calls `each` with the keys that a script will reach for beside those that it declares, as far as they can
/// be predicted. Returns what else is expected of it.
pub fn predict(server: &Server, from: ScriptIn, words: Words<'_>, each: &mut dyn FnMut(&[u8])) -> Expected {
    look_at(server, from, words.get(1), |program| {
        let mut is_incomplete = false;
        if let Some(program) = program
            && program.is_predictable()
            && program.analysis.n_templates() > 0
            && let args = Args::new(words, server.keyspace.router(), None)
            && let Ok(parts) = Parts::read(args, from, &mut PartsRoom::new())
        {
            // Arguments that are wrong reach nowhere; of too many keys the others are met when it runs.
            let complete: Result<(), TooMany> = program.analysis.keys(parts.keys, parts.argv, each);
            is_incomplete = complete.is_err();
        }
        Expected {
            is_long: expects_long(from, program),
            wants_lane: is_incomplete || program.is_some_and(|program| program.wants_lane()),
        }
    })
}

/// A command's properties. A script that says what it does has those that follow from that, in place of its
/// command's.
#[inline]
pub fn flags(server: &Server, command: &Registered, words: Words<'_>) -> Flags {
    match command.spec.run {
        Run::Script(from) => flags_of_script(server, command, from, words),
        _ => command.spec.flags,
    }
}

#[cold]
fn flags_of_script(server: &Server, command: &Registered, from: ScriptIn, words: Words<'_>) -> Flags {
    let said = look_at(server, from, words.get(1), |program| match program {
        Some(program) => program.flags,
        None if from == ScriptIn::Text => shebang::script(words.get(1)).ok().flatten(),
        None => None,
    });
    let Some(said) = said else { return command.spec.flags };
    let may = |flag| said.contains(flag);
    let of_command = Flags::STALE.and(Flags::DENYOOM).and(Flags::WRITE).and(Flags::MAY_REPLICATE);
    let mut flags = command.spec.flags.without(of_command);
    if !may(ScriptFlags::NO_WRITES) {
        flags = flags.and(Flags::WRITE);
    }
    if !may(ScriptFlags::NO_WRITES) && !may(ScriptFlags::ALLOW_OOM) {
        flags = flags.and(Flags::DENYOOM);
    }
    if may(ScriptFlags::ALLOW_STALE) { flags.and(Flags::STALE) } else { flags }
}

/// Whether a command runs a script that may reach for keys which its text does not show for certain.
pub fn reaches_anywhere(server: &Server, command: &Registered, words: Words<'_>) -> bool {
    let Run::Script(from) = command.spec.run else { return false };
    look_at(server, from, words.get(1), |program| program.is_none_or(|program| !program.is_certain()))
        || predict(server, from, words, &mut |_| {}).wants_lane
}

/// Whether a command runs a script that is expected to be long: its last run was, or it has not run yet. A
/// script that has written cannot be moved, and to read a new text may take long, too.
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

/// Makes a text that comes for the first time known, before its shards are held. What does not compile is
/// refused when it is run.
pub fn prepare(server: &Server, command: &Registered, words: Words<'_>) {
    if matches!(command.spec.run, Run::Script(ScriptIn::Text))
        && server.scripts.known().by_source(words.get(1)).is_none()
    {
        let _refused_later = command::learn_script(server, &TABLE, words.get(1), Origin::Evaluated);
    }
}
