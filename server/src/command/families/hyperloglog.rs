//! Commands on HyperLogLogs, which are strings.

use std::fmt::Write;

use braid_protocol::reply::Reply;
use braid_storage::{
    entry::key::Key,
    keyspace::shard::Shard,
    observers::event::Event,
    types::{
        hll::{self, Corrupt, Fault, Hll, HllChange, HllEncoding, Registers},
        string::{StringMut, StringOrigin},
    },
};

use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, KeySpec, KeyUse, Keys, KeysAt, Outcome, shown},
    command::{Call, CommandSpec, Run, Work, arguments::each_key::for_each_key, work},
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "pfadd",
        arity: Arity::AtLeast(2),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::ADD,
        run: Run::Shard(pfadd),
        since: "2.8.9",
        group: Group::HyperLogLog,
        syntax: "key [element [element ...]]",
        summary: "Adds elements to a HyperLogLog; says whether that changed it.",
        complexity: "O(1) for each element",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "pfcount",
        arity: Arity::AtLeast(2),
        flags: Flags::READONLY.and(Flags::MAY_REPLICATE),
        keys: Keys(&Keys::all(KeyUse::ReadAndRestore)),
        run: Run::Transaction(pfcount),
        work: Work::held(work::merged),
        since: "2.8.9",
        group: Group::HyperLogLog,
        syntax: "key [key ...]",
        summary: "Estimates how many distinct elements HyperLogLogs have met together.",
        complexity: "O(1) for one key whose estimate is stored, else O(N) where N is the number of keys",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "pfmerge",
        arity: Arity::AtLeast(2),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: DESTINATION_AND_SOURCES,
        run: Run::Transaction(pfmerge),
        work: Work::pinned(work::merged),
        since: "2.8.9",
        group: Group::HyperLogLog,
        syntax: "destkey [sourcekey [sourcekey ...]]",
        summary: "Adds to a HyperLogLog what others have met.",
        complexity: "O(N) where N is the number of keys",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "pfdebug",
        arity: Arity::Exactly(3),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::ADMIN),
        keys: SECOND,
        run: Run::Transaction(pfdebug),
        since: "2.8.9",
        group: Group::HyperLogLog,
        syntax: "subcommand key",
        summary: "Shows how a HyperLogLog is stored: GETREG, DECODE, ENCODING; or makes it dense: TODENSE.",
        complexity: "O(1)",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "pfselftest",
        arity: Arity::Exactly(1),
        flags: Flags::ADMIN,
        run: Run::Transaction(pfselftest),
        work: Work::held(work::everything),
        since: "2.8.9",
        group: Group::HyperLogLog,
        summary: "Tries whether HyperLogLogs work.",
        complexity: "O(1)",
        ..CommandSpec::ROW
    },
];

const DESTINATION_AND_SOURCES: Keys = Keys(&[
    KeySpec { at: KeysAt::Range { first: 1, last: 1, step: 1 }, used: KeyUse::AddAndRead },
    KeySpec { at: KeysAt::Range { first: 2, last: -1, step: 1 }, used: KeyUse::Read },
]);
const SECOND: Keys =
    Keys(&[KeySpec { at: KeysAt::Range { first: 2, last: 2, step: 1 }, used: KeyUse::ReadAndRestore }]);

const NO_HLL: CommandError = CommandError::text("WRONGTYPE Key is not a valid HyperLogLog string value.");

impl From<Corrupt> for CommandError {
    fn from(Corrupt: Corrupt) -> Self {
        CommandError::text("INVALIDOBJ Corrupted HLL object detected")
    }
}

fn stored(bytes: &[u8]) -> Result<Hll<'_>, CommandError> {
    Hll::new(bytes).ok_or(NO_HLL)
}

fn rewrite(string: &mut StringMut<'_>, bytes: &[u8]) {
    string.set(bytes);
    string.set_origin(StringOrigin::Edited);
}

fn pfadd(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let sparse_max_bytes = shard.thresholds().hll_sparse_max_bytes();
    let key = args.key()?;
    let elements = args.rest();
    let Some(mut string) = shard.string_mut(&key, Event::PfAdd)? else {
        rewrite(&mut shard.string_or_create(&key, Event::PfAdd)?, &hll::of(elements, sparse_max_bytes));
        reply.integer(1);
        return Ok(());
    };
    let change = stored(string.bytes())?.with_elements(elements, sparse_max_bytes)?;
    match &change {
        HllChange::None => {}
        HllChange::Raise(raise) => {
            string.edit(|bytes| raise.apply(bytes));
            string.set_origin(StringOrigin::Edited);
        }
        HllChange::Rewrite(bytes) => rewrite(&mut string, bytes),
    }
    reply.integer((change != HllChange::None).into());
    Ok(())
}

fn pfcount(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let cardinality = if args.remaining() > 1 {
        merge(call, args.rest())?.registers.cardinality()
    } else {
        count_one(call, &args.key()?)?
    };
    reply.integer(cardinality as i64);
    Ok(())
}

/// Returns the cardinality of one key, which is cached in its value.
fn count_one(call: &mut Call<'_, '_>, key: &Key<'_>) -> Result<u64, CommandError> {
    let shard = call.shard_of(key);
    let Some(bytes) = shard.string(key)? else { return Ok(0) };
    let hll = stored(bytes)?;
    if let Some(cardinality) = hll.stored_cardinality() {
        return Ok(cardinality);
    }
    let cardinality = hll.cardinality()?;
    let mut string = shard.string_mut(key, Event::Recounted)?.expect("it was read a moment ago");
    string.edit(|bytes| hll::store_cardinality(bytes, cardinality));
    string.set_origin(StringOrigin::Edited);
    Ok(cardinality)
}

/// The union of several keys.
struct Union {
    registers: Registers,
    /// Dense if any of the keys is.
    encoding: HllEncoding,
}

fn merge<'k>(call: &mut Call<'_, '_>, keys: impl Iterator<Item = &'k [u8]>) -> Result<Union, CommandError> {
    let mut union = Union { registers: Registers::default(), encoding: HllEncoding::Sparse };
    let mut outcome = Ok(());
    for_each_key(call, keys.map(|key| (key, ())), |shard, key, ()| {
        let mut add = || {
            let Some(bytes) = shard.string(key)? else { return Ok(()) };
            let hll = stored(bytes)?;
            if hll.encoding() == HllEncoding::Dense {
                union.encoding = HllEncoding::Dense;
            }
            Ok(union.registers.merge(hll)?)
        };
        if outcome.is_ok() {
            outcome = add();
        }
    });
    outcome.map(|()| union)
}

fn pfmerge(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let sparse_max_bytes = call.server.keyspace.thresholds().hll_sparse_max_bytes();
    let Union { registers, encoding } = merge(call, args.rest())?;
    let key = args.key()?;
    let shard = call.shard_of(&key);
    let merged = match shard.string_mut(&key, Event::PfAdd)? {
        Some(string) => registers.merged_into(Some(stored(string.bytes())?), encoding, sparse_max_bytes)?,
        None => registers.merged_into(None, encoding, sparse_max_bytes)?,
    };
    rewrite(&mut shard.string_or_create(&key, Event::PfAdd)?, &merged);
    reply.ok();
    Ok(())
}

fn pfdebug(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let word = args.next()?;
    let key = args.key()?;
    let Some(mut string) = call.shard_of(&key).string_mut(&key, Event::Recounted)? else {
        return Err(CommandError::text("ERR The specified key does not exist"));
    };
    let hll = stored(string.bytes())?;
    let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    if is("GETREG") {
        let mut registers = Registers::default();
        registers.merge(hll)?;
        make_dense(&mut string)?;
        reply.array(registers.ranks().len());
        registers.ranks().iter().for_each(|rank| reply.integer((*rank).into()));
    } else if is("DECODE") {
        decode(hll, reply)?;
    } else if is("ENCODING") {
        reply.simple(if hll.encoding() == HllEncoding::Dense { "dense" } else { "sparse" });
    } else if is("TODENSE") {
        reply.integer(make_dense(&mut string)?.into());
    } else {
        let word = shown(word);
        return Err(CommandError::owned(format!("ERR Unknown PFDEBUG subcommand '{word}'")));
    }
    Ok(())
}

/// Makes a HyperLogLog dense. Returns whether it was sparse.
fn make_dense(string: &mut StringMut<'_>) -> Result<bool, CommandError> {
    let hll = stored(string.bytes())?;
    if hll.encoding() == HllEncoding::Dense {
        return Ok(false);
    }
    let dense = hll.to_dense()?;
    rewrite(string, &dense);
    Ok(true)
}

/// Replies with the runs of a sparse HyperLogLog as text.
///
/// A run of zeros is `z:` or, if it takes two bytes, `Z:`, with its length. Others are `v:` with rank and
/// length.
fn decode(hll: Hll<'_>, reply: &mut Reply<'_>) -> Outcome {
    if hll.encoding() != HllEncoding::Sparse {
        return Err(CommandError::text("ERR HLL encoding is not sparse"));
    }
    let mut text = String::new();
    for run in hll.runs() {
        let written = match (run.rank, run.n_bytes) {
            (0, 1) => write!(text, "z:{} ", run.len),
            (0, _) => write!(text, "Z:{} ", run.len),
            (rank, _) => write!(text, "v:{rank},{} ", run.len),
        };
        written.expect("a String takes all text");
    }
    reply.bulk(text.trim_end().as_bytes());
    Ok(())
}

fn pfselftest(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    hll::self_test().map_err(|fault| {
        CommandError::owned(match fault {
            Fault::Register { index, stored, found } => {
                format!("TESTFAILED Register {index} should be {stored} but is {found}")
            }
            Fault::Encodings => "TESTFAILED dense/sparse disagree".to_owned(),
            Fault::Estimate { n_elements, error } => {
                format!("TESTFAILED Too big error. card:{n_elements} abserr:{error}")
            }
        })
    })?;
    reply.ok();
    Ok(())
}
