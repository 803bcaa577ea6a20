//! Commands on strings.

use std::hint::cold_path;

use braid_protocol::{
    number::{self, LongDouble},
    reply::Reply,
};
use braid_storage::{
    entry::{key::Key, time::Expiry},
    error::StorageError,
    keyspace::shard::Shard,
    observers::event::Event,
    types::string::{STRING_MAX_BYTES, StringOrigin},
};

use super::lcs::{self, Lcs, Match};
use crate::{
    catalog::{Args, Arity, CommandError, Deprecation, Flags, Group, KeySpec, KeyUse, Keys, KeysAt, Outcome},
    command::{
        Call, CommandSpec, Log, Look, Run, Work,
        arguments::{
            condition::{Condition, digest},
            each_key::for_each_key,
            expire_options::{CountedFrom, ExpiryOption, Lifetime, TimeUnit},
        },
        log_rewrite, work,
    },
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "get",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        run: Run::Shard(get),
        work: Work::Refused { estimate: work::whole },
        since: "1.0.0",
        group: Group::String,
        syntax: "key",
        summary: "Returns the value of a string.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "set",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: Keys::OVERWRITE_OR_SWAP,
        log: Log::PlainOr(3, log_rewrite::strings),
        run: Run::Shard(set),
        work: Work::Refused { estimate: work::whole_with_options },
        since: "1.0.0",
        group: Group::String,
        syntax: "key value [NX | XX | IFEQ value | IFNE value | IFDEQ digest | IFDNE digest] [GET] \
                 [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]",
        summary: "Sets a key to a string, whatever it was before.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "getset",
        arity: Arity::Exactly(3),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST).and(Flags::DEPRECATED),
        keys: Keys::UPDATE_AND_READ,
        log: Log::As(log_rewrite::strings),
        run: Run::Shard(getset),
        work: Work::Refused { estimate: work::whole },
        since: "1.0.0",
        group: Group::String,
        syntax: "key value",
        summary: "Sets a key to a string and gives the old one.",
        deprecated: Some(Deprecation { since: "6.2.0", replaced_by: "`SET` with the `GET` argument" }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "setnx",
        arity: Arity::Exactly(3),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::INSERT,
        run: Run::Shard(setnx),
        since: "1.0.0",
        group: Group::String,
        syntax: "key value",
        summary: "Sets a key to a string if the key does not exist.",
        deprecated: Some(Deprecation { since: "2.6.12", replaced_by: "`SET` with the `NX` argument" }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "setex",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: Keys::OVERWRITE,
        log: Log::As(log_rewrite::strings),
        run: Run::Shard(setex),
        since: "2.0.0",
        group: Group::String,
        syntax: "key seconds value",
        summary: "Sets a key to a string that lives for some seconds.",
        deprecated: Some(Deprecation { since: "2.6.12", replaced_by: "`SET` with the `EX` argument" }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "psetex",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: Keys::OVERWRITE,
        log: Log::As(log_rewrite::strings),
        run: Run::Shard(psetex),
        since: "2.6.0",
        group: Group::String,
        syntax: "key milliseconds value",
        summary: "Sets a key to a string that lives for some milliseconds.",
        deprecated: Some(Deprecation { since: "2.6.12", replaced_by: "`SET` with the `PX` argument" }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "mget",
        arity: Arity::AtLeast(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys(&Keys::all(KeyUse::Read)),
        run: Run::Transaction(mget),
        work: Work::Refused { estimate: work::all_keys },
        since: "1.0.0",
        group: Group::String,
        syntax: "key [key ...]",
        summary: "Returns the values of several strings.",
        complexity: "O(N) where N is the number of keys",
        tips: &["request_policy:multi_shard"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "mset",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: PAIRS_OVERWRITTEN,
        run: Run::Transaction(mset),
        since: "1.0.1",
        group: Group::String,
        syntax: "key value [key value ...]",
        summary: "Sets several keys to strings, at once.",
        complexity: "O(N) where N is the number of keys",
        tips: &["request_policy:multi_shard", "response_policy:all_succeeded"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "msetnx",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: PAIRS_INSERTED,
        run: Run::Transaction(msetnx),
        since: "1.0.1",
        group: Group::String,
        syntax: "key value [key value ...]",
        summary: "Sets several keys to strings, at once, if none of them exists.",
        complexity: "O(N) where N is the number of keys",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "msetex",
        arity: Arity::AtLeast(4),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::MOVABLE_KEYS),
        keys: PAIRS_COUNTED,
        log: Log::As(log_rewrite::strings),
        run: Run::Transaction(msetex),
        since: "8.4.0",
        group: Group::String,
        syntax: "numkeys key value [key value ...] [NX | XX] [EX seconds | PX milliseconds | \
                 EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]",
        summary: "Sets several keys to strings, at once, on a condition and with one expiry.",
        complexity: "O(N) where N is the number of keys",
        tips: &["request_policy:multi_shard", "response_policy:all_succeeded"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "append",
        arity: Arity::Exactly(3),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::ADD,
        run: Run::Shard(append),
        work: Work::held(appended),
        since: "2.0.0",
        group: Group::String,
        syntax: "key value",
        summary: "Appends to a string; a missing one counts as empty.",
        complexity: "O(N) where N is the length of what is appended, amortized",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "strlen",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::LOOK,
        run: Run::Shard(strlen),
        since: "2.2.0",
        group: Group::String,
        syntax: "key",
        summary: "Returns the length of a string in bytes.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "incr",
        arity: Arity::Exactly(2),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::UPDATE_AND_READ,
        run: Run::Shard(incr),
        since: "1.0.0",
        group: Group::String,
        syntax: "key",
        summary: "Adds one to the integer that a string spells; a missing one counts as 0.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "decr",
        arity: Arity::Exactly(2),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::UPDATE_AND_READ,
        run: Run::Shard(decr),
        since: "1.0.0",
        group: Group::String,
        syntax: "key",
        summary: "Takes one from the integer that a string spells; a missing one counts as 0.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "incrby",
        arity: Arity::Exactly(3),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::UPDATE_AND_READ,
        run: Run::Shard(incrby),
        since: "1.0.0",
        group: Group::String,
        syntax: "key increment",
        summary: "Adds to the integer that a string spells; a missing one counts as 0.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "decrby",
        arity: Arity::Exactly(3),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::UPDATE_AND_READ,
        run: Run::Shard(decrby),
        since: "1.0.0",
        group: Group::String,
        syntax: "key decrement",
        summary: "Takes from the integer that a string spells; a missing one counts as 0.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "incrbyfloat",
        arity: Arity::Exactly(3),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::UPDATE_AND_READ,
        log: Log::As(log_rewrite::changed_strings),
        run: Run::Shard(incrbyfloat),
        since: "2.6.0",
        group: Group::String,
        syntax: "key increment",
        summary: "Adds to the number that a string spells; a missing one counts as 0.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "getrange",
        arity: Arity::Exactly(4),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(getrange),
        work: Work::pinned(work::part_of_string),
        since: "2.4.0",
        group: Group::String,
        syntax: "key start end",
        summary: "Returns a part of a string; negative positions count from its end.",
        complexity: "O(N) where N is the length of the part",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "substr",
        arity: Arity::Exactly(4),
        flags: Flags::READONLY.and(Flags::DEPRECATED),
        keys: Keys::READ,
        run: Run::Shard(getrange),
        work: Work::pinned(work::part_of_string),
        since: "1.0.0",
        group: Group::String,
        syntax: "key start end",
        summary: "The old name of GETRANGE.",
        complexity: "O(N) where N is the length of the part",
        deprecated: Some(Deprecation { since: "2.0.0", replaced_by: "`GETRANGE`" }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "setrange",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: Keys::UPDATE,
        run: Run::Shard(setrange),
        work: Work::held(written),
        since: "2.2.0",
        group: Group::String,
        syntax: "key offset value",
        summary: "Overwrites a part of a string; what lies between its end and the offset is zeros.",
        complexity: "O(N) where N is the length of the value, and of the zeros",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "getdel",
        arity: Arity::Exactly(2),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::READ_AND_DELETE,
        log: Log::As(log_rewrite::removed_keys),
        run: Run::Shard(getdel),
        work: Work::Refused { estimate: work::whole },
        since: "6.2.0",
        group: Group::String,
        syntax: "key",
        summary: "Returns the value of a string and deletes the key.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "getex",
        arity: Arity::AtLeast(2),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::UPDATE_AND_READ,
        log: Log::As(log_rewrite::deadlines),
        run: Run::Shard(getex),
        work: Work::Refused { estimate: work::whole },
        since: "6.2.0",
        group: Group::String,
        syntax: "key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]",
        summary: "Returns the value of a string and sets or removes its expiry.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "lcs",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY,
        keys: FIRST_TWO_READ,
        run: Run::Transaction(lcs),
        work: Work::pinned(work::compared_strings),
        since: "7.0.0",
        group: Group::String,
        syntax: "key1 key2 [LEN] [IDX] [MINMATCHLEN min-match-len] [WITHMATCHLEN]",
        summary: "Finds the longest common subsequence of two strings.",
        complexity: "O(N*M) where N and M are the lengths of the strings",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "delex",
        arity: Arity::AtLeast(2),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::DELETE,
        log: Log::As(log_rewrite::removed_keys),
        run: Run::Shard(delex),
        work: Work::pinned(work::whole_with_options),
        since: "8.4.0",
        group: Group::String,
        syntax: "key [IFEQ value | IFNE value | IFDEQ digest | IFDNE digest]",
        summary: "Deletes a key on a condition on its value.",
        complexity: "O(1), or O(N) for a digest, where N is the length of the value",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "delifeq",
        arity: Arity::Exactly(3),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::DELETE,
        log: Log::As(log_rewrite::removed_keys),
        run: Run::Shard(delifeq),
        since: "valkey 9.0.0",
        group: Group::String,
        syntax: "key value",
        summary: "Deletes a key if its value is the given string.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "digest",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        run: Run::Shard(digest_of),
        work: Work::pinned(work::whole),
        since: "8.4.0",
        group: Group::String,
        syntax: "key",
        summary: "Returns the XXH3 digest of a string in hexadecimal.",
        complexity: "O(N) where N is the length of the string",
        ..CommandSpec::ROW
    },
];

const PAIRS_OVERWRITTEN: Keys =
    Keys(&[KeySpec { at: KeysAt::Range { first: 1, last: -1, step: 2 }, used: KeyUse::Overwrite }]);
const PAIRS_INSERTED: Keys =
    Keys(&[KeySpec { at: KeysAt::Range { first: 1, last: -1, step: 2 }, used: KeyUse::Insert }]);
const PAIRS_COUNTED: Keys =
    Keys(&[KeySpec { at: KeysAt::Counted { count: 1, step: 2 }, used: KeyUse::Overwrite }]);
const FIRST_TWO_READ: Keys =
    Keys(&[KeySpec { at: KeysAt::Range { first: 1, last: 2, step: 1 }, used: KeyUse::Read }]);

const WOULD_OVERFLOW: CommandError = CommandError::text("ERR increment or decrement would overflow");

fn get(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    bulk_or_null(reply, shard.whole_string(&key)?);
    Ok(())
}

fn set(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let value = args.next()?;
    if !args.is_empty() {
        return set_with_options(shard, &key, value, args, reply);
    }
    shard.put_string(&key, value, Expiry::Clear, Event::Set);
    reply.ok();
    Ok(())
}

/// The options of SET after the value.
#[derive(Default)]
struct SetOptions<'a> {
    condition: Condition<'a>,
    expiry: ExpiryOption<'a>,
    wants_old: bool,
}

impl<'a> SetOptions<'a> {
    fn read(mut args: Args<'a>) -> Result<Self, CommandError> {
        let mut options = SetOptions::default();
        while !args.is_empty() {
            let SetOptions { condition, expiry, wants_old } = &mut options;
            if args.tag("GET") {
                *wants_old = true;
            } else if !(condition.take_presence(&mut args)?
                || condition.take_comparison(&mut args)?
                || expiry.take_time(&mut args)?
                || expiry.take_keep(&mut args)?)
            {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }
}

/// SET with options. With GET the reply is the old value, whether or not the new one is set.
fn set_with_options(
    shard: &mut Shard,
    key: &Key<'_>,
    value: &[u8],
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Outcome {
    let SetOptions { condition, expiry, wants_old } = SetOptions::read(args)?;
    let lifetime = expiry.lifetime(shard.now(), "set")?;
    let met = if wants_old || condition.compares() {
        let old = shard.whole_string(key)?;
        if wants_old {
            bulk_or_null(reply, old);
        }
        condition.holds(old)?
    } else {
        is_met_by_presence(condition, shard, key)
    };
    if met {
        lifetime.put_string(shard, key, value);
    }
    match (wants_old, met) {
        (true, _) => {}
        (false, true) => reply.ok(),
        (false, false) => reply.null(),
    }
    Ok(())
}

/// Whether a condition that does not compare the value is true. The value may have any type.
fn is_met_by_presence(condition: Condition<'_>, shard: &mut Shard, key: &Key<'_>) -> bool {
    match condition {
        Condition::Missing => shard.peek(key).is_none(),
        Condition::Present => shard.peek(key).is_some(),
        _ => true,
    }
}

fn getset(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    bulk_or_null(reply, shard.whole_string(&key)?);
    shard.put_string(&key, args.next()?, Expiry::Clear, Event::Set);
    Ok(())
}

fn setnx(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let is_new = shard.peek(&key).is_none();
    if is_new {
        shard.put_string(&key, args.next()?, Expiry::Clear, Event::Set);
    }
    reply.integer(is_new as i64);
    Ok(())
}

fn setex(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    set_for(shard, args, reply, TimeUnit::Seconds, "setex")
}

fn psetex(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    set_for(shard, args, reply, TimeUnit::Millis, "psetex")
}

fn set_for(
    shard: &mut Shard,
    mut args: Args<'_>,
    reply: &mut Reply<'_>,
    unit: TimeUnit,
    name: &'static str,
) -> Outcome {
    let key = args.key()?;
    let expiry = ExpiryOption::Time { unit, from: CountedFrom::Now, text: args.next()? };
    let lifetime = expiry.lifetime(shard.now(), name)?;
    lifetime.put_string(shard, &key, args.next()?);
    reply.ok();
    Ok(())
}

/// Length above which MGET adds up its values.
///
/// Their sum may be too much to copy under a hold.
const LONG_BYTES: usize = 4096;

fn mget(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let start = reply.written_bytes();
    let mut outcome = Ok(());
    let mut n_looked_up = 0;
    reply.array(args.remaining());
    for_each_key(call, args.rest().map(|key| (key, ())), |shard, key, ()| {
        if reply.is_over_limit() {
            return;
        }
        n_looked_up += 1;
        match shard.whole_string(key) {
            Ok(Some(value)) if value.len() > LONG_BYTES => {
                cold_path();
                reply.bulk(value);
                if outcome.is_ok() {
                    outcome = shard.expect_bytes(reply.written_bytes() - start);
                }
            }
            Ok(value) => bulk_or_null(reply, value),
            Err(StorageError::TooMuch) => outcome = Err(StorageError::TooMuch),
            // Values of other types count as missing.
            Err(_) => reply.null(),
        }
    });
    if outcome.is_err() {
        let looked_up = args.rest().take(n_looked_up).map(|key| (key, ()));
        for_each_key(call, looked_up, |shard, key, ()| shard.take_back_lookup(key));
    }
    Ok(outcome?)
}

fn mset(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if !args.remaining().is_multiple_of(2) {
        return Err(CommandError::Arity("mset"));
    }
    for_each_key(call, pairs(args.rest()), |shard, key, value| {
        shard.put_string(key, value, Expiry::Clear, Event::Set);
    });
    reply.ok();
    Ok(())
}

fn msetnx(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if !args.remaining().is_multiple_of(2) {
        return Err(CommandError::Arity("msetnx"));
    }
    let all_new = n_present(call, pairs(args.rest())) == 0;
    if all_new {
        for_each_key(call, pairs(args.rest()), |shard, key, value| {
            shard.put_string(key, value, Expiry::Clear, Event::Set);
        });
    }
    reply.integer(all_new as i64);
    Ok(())
}

fn msetex(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let n_pairs = args.int().ok().filter(|n| (1..=i32::MAX as i64).contains(n));
    let n_pairs = n_pairs.ok_or(CommandError::text("ERR invalid numkeys value"))? as usize;
    let n_words = n_pairs * 2;
    if args.remaining() < n_words {
        return Err(CommandError::text("ERR wrong number of key-value pairs"));
    }
    let given = args;
    let words = || given.rest().take(n_words);
    for _ in 0..n_words {
        args.next()?;
    }
    let (mut condition, mut expiry) = (Condition::None, ExpiryOption::Unset);
    while !args.is_empty() {
        if !(condition.take_presence(&mut args)?
            || expiry.take_time(&mut args)?
            || expiry.take_keep(&mut args)?)
        {
            return Err(CommandError::Syntax);
        }
    }
    let lifetime = expiry.lifetime(call.now, "msetex")?;
    let met = match condition {
        Condition::Missing => n_present(call, pairs(words())) == 0,
        Condition::Present => n_present(call, pairs(words())) == n_pairs,
        _ => true,
    };
    if met {
        for_each_key(call, pairs(words()), |shard, key, value| lifetime.put_string(shard, key, value));
    }
    reply.integer(met as i64);
    Ok(())
}

/// Returns the number of existing keys.
fn n_present<'k>(call: &mut Call<'_, '_>, pairs: impl Iterator<Item = (&'k [u8], &'k [u8])>) -> usize {
    let mut n = 0;
    for_each_key(call, pairs, |shard, key, _| n += shard.peek(key).is_some() as usize);
    n
}

/// Splits words into pairs of a key and a value.
fn pairs<'k>(words: impl Iterator<Item = &'k [u8]>) -> impl Iterator<Item = (&'k [u8], &'k [u8])> {
    let mut words = words;
    std::iter::from_fn(move || Some((words.next()?, words.next()?)))
}

fn append(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let suffix = args.next()?;
    let len = if let Some(mut string) = shard.string_mut(&key, Event::Append)? {
        check_length(string.bytes().len(), suffix.len())?;
        string.append(suffix);
        string.set_origin(StringOrigin::Edited);
        string.bytes().len()
    } else {
        shard.put_string(&key, suffix, Expiry::Clear, Event::Append);
        suffix.len()
    };
    reply.integer(len as i64);
    Ok(())
}

fn appended(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let (Ok(key), Ok(suffix)) = (args.key(), args.next()) else { return 0 };
    work::lengthened(look, &key, |len| if len == 0 { 0 } else { len + suffix.len() })
}

fn strlen(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    reply.integer(shard.string(&key)?.map_or(0, <[u8]>::len) as i64);
    Ok(())
}

fn incr(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    add(shard, &key, 1, reply)
}

fn decr(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    add(shard, &key, -1, reply)
}

fn incrby(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    add(shard, &key, args.int()?, reply)
}

fn decrby(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    // The least integer has no opposite.
    let increment = args.int()?.checked_neg().ok_or(CommandError::text("ERR decrement would overflow"))?;
    add(shard, &key, increment, reply)
}

/// Adds to the integer in a string, in place. The sum's text is made on the stack.
fn add(shard: &mut Shard, key: &Key<'_>, increment: i64, reply: &mut Reply<'_>) -> Outcome {
    let sum = if let Some(mut string) = shard.string_mut(key, Event::IncrBy)? {
        let value = number::parse_i64(string.bytes()).ok_or(CommandError::NotInteger)?;
        let sum = value.checked_add(increment).ok_or(WOULD_OVERFLOW)?;
        number::format_i64(sum, |text| string.set(text));
        sum
    } else {
        number::format_i64(increment, |text| shard.put_string(key, text, Expiry::Clear, Event::IncrBy));
        increment
    };
    reply.integer(sum);
    Ok(())
}

fn incrbyfloat(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let value = match shard.string_mut(&key, Event::IncrByFloat)? {
        Some(string) => LongDouble::parse(string.bytes()).ok_or(CommandError::NotFloat)?,
        None => LongDouble::ZERO,
    };
    let sum = value + LongDouble::parse(args.next()?).ok_or(CommandError::NotFloat)?;
    if !sum.is_finite() {
        return Err(CommandError::text("ERR increment would produce NaN or Infinity"));
    }
    let mut text = Vec::new();
    sum.write(&mut text);
    let mut string = shard.string_or_create(&key, Event::IncrByFloat)?;
    string.set(&text);
    string.set_origin(StringOrigin::Computed);
    reply.bulk(&text);
    Ok(())
}

fn getrange(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let (start, end) = (args.int()?, args.int()?);
    let value = shard.string(&key)?.unwrap_or_default();
    reply.bulk(part(value, start, end));
    Ok(())
}

/// Returns the bytes from `start` to `end`, inclusive. Negative positions count from the end, -1 being the
/// last byte.
fn part(bytes: &[u8], start: i64, end: i64) -> &[u8] {
    // Positions before the beginning mean the beginning, but not if both are negative and in reverse order.
    if start < 0 && end < 0 && start > end {
        return &[];
    }
    let len = bytes.len() as i64;
    let from_beginning = |at: i64| if at < 0 { (len + at).max(0) } else { at };
    let start = from_beginning(start).min(len);
    let behind = from_beginning(end).min(len - 1) + 1;
    if start < behind { &bytes[start as usize..behind as usize] } else { &[] }
}

fn setrange(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let offset =
        usize::try_from(args.int()?).map_err(|_| CommandError::text("ERR offset is out of range"))?;
    let patch = args.next()?;
    let old_len = shard.string_mut(&key, Event::SetRange)?.map_or(0, |string| string.bytes().len());
    if patch.is_empty() {
        reply.integer(old_len as i64);
        return Ok(());
    }
    check_length(offset, patch.len())?;
    let mut string = shard.string_or_create(&key, Event::SetRange)?;
    string.write_at(offset, patch);
    string.set_origin(StringOrigin::Edited);
    reply.integer(string.bytes().len() as i64);
    Ok(())
}

fn written(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let (Ok(key), Ok(offset), Ok(patch)) = (args.key(), args.int(), args.next()) else { return 0 };
    let end = usize::try_from(offset).unwrap_or(0).saturating_add(patch.len());
    if patch.is_empty() || end > STRING_MAX_BYTES { 0 } else { work::lengthened(look, &key, |_| end) }
}

/// Fails if a string of `len` bytes and `more` is longer than strings may be.
fn check_length(len: usize, more: usize) -> Outcome {
    if len.checked_add(more).is_some_and(|len| len <= STRING_MAX_BYTES) {
        Ok(())
    } else {
        Err(StorageError::TooLong.into())
    }
}

fn getdel(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    bulk_or_null(reply, shard.whole_string(&key)?);
    shard.remove(&key, Event::Del);
    Ok(())
}

fn getex(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let mut expiry = ExpiryOption::Unset;
    while !args.is_empty() {
        if !(expiry.take_time(&mut args)? || expiry.take_persist(&mut args)?) {
            return Err(CommandError::Syntax);
        }
    }
    let now = shard.now();
    let Some(value) = shard.whole_string(&key)? else {
        // A missing key has no expiry to set, so even a wrong one is no error.
        reply.null();
        return Ok(());
    };
    let lifetime = expiry.lifetime(now, "getex")?;
    reply.bulk(value);
    match lifetime {
        Lifetime::Unset | Lifetime::Keep => {}
        Lifetime::Until(deadline) => {
            shard.set_deadline(&key, Some(deadline), Event::Expire);
        }
        Lifetime::Over => {
            shard.remove(&key, Event::Del);
        }
        Lifetime::Persist => {
            if shard.peek(&key).is_some_and(|entry| entry.has_deadline()) {
                shard.set_deadline(&key, None, Event::Persist);
            }
        }
    }
    Ok(())
}

fn lcs(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (first, second) = (args.key()?, args.key()?);
    let not_strings = |_| CommandError::text("ERR The specified keys must contain string values");
    let a = call.shard_of(&first).string(&first).map_err(not_strings)?.unwrap_or_default().to_vec();
    let max_bytes = call.server.config.load().proto_max_bulk_len;
    let b = call.shard_of(&second).string(&second).map_err(not_strings)?.unwrap_or_default();
    let options = LcsOptions::read(args)?;
    if lcs::table_bytes(a.len(), b.len()).is_none_or(|bytes| bytes > max_bytes) {
        return Err(CommandError::text(
            "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
        ));
    }
    let found = Lcs::new(&a, b);
    if options.indexes {
        write_indexes(&found, &options, reply);
    } else if options.length {
        reply.integer(found.len() as i64);
    } else {
        reply.bulk(&found.bytes());
    }
    Ok(())
}

/// The options of LCS after the keys.
#[derive(Default)]
struct LcsOptions {
    length: bool,
    indexes: bool,
    match_lengths: bool,
    match_len_min: usize,
}

impl LcsOptions {
    fn read(mut args: Args<'_>) -> Result<Self, CommandError> {
        let mut options = LcsOptions::default();
        while !args.is_empty() {
            if args.tag("LEN") {
                options.length = true;
            } else if args.tag("IDX") {
                options.indexes = true;
            } else if args.tag("WITHMATCHLEN") {
                options.match_lengths = true;
            } else if args.tag("MINMATCHLEN") {
                options.match_len_min = args.int()?.max(0) as usize;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        if options.length && options.indexes {
            return Err(CommandError::text(
                "ERR If you want both the length and indexes, please just use IDX.",
            ));
        }
        Ok(options)
    }
}

fn write_indexes(found: &Lcs<'_>, options: &LcsOptions, reply: &mut Reply<'_>) {
    reply.map(2);
    reply.bulk(b"matches");
    let matches = reply.array_later();
    let mut n = 0;
    for shared in found.matches().filter(|shared| shared.len() >= options.match_len_min) {
        write_match(shared, options.match_lengths, reply);
        n += 1;
    }
    reply.close(matches, n);
    reply.bulk(b"len");
    reply.integer(found.len() as i64);
}

fn write_match(shared: Match, with_len: bool, reply: &mut Reply<'_>) {
    reply.array(2 + with_len as usize);
    for (first, last) in [shared.in_a, shared.in_b] {
        reply.array(2);
        reply.integer(first as i64);
        reply.integer(last as i64);
    }
    if with_len {
        reply.integer(shared.len() as i64);
    }
}

fn delex(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    if !matches!(args.remaining(), 0 | 2) {
        return Err(CommandError::Arity("delex"));
    }
    if !args.is_empty() && shard.peek(&key).is_some() {
        let value = shard.string(&key).map_err(|_| {
            CommandError::text("ERR Key should be of string type if conditions are specified")
        })?;
        let mut condition = Condition::None;
        if !condition.take_comparison(&mut args)? {
            return Err(CommandError::text("ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE"));
        }
        if !condition.holds(value)? {
            reply.integer(0);
            return Ok(());
        }
    }
    reply.integer(shard.remove(&key, Event::Del) as i64);
    Ok(())
}

fn delifeq(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let equal = shard.string(&key)? == Some(args.next()?);
    reply.integer((equal && shard.remove(&key, Event::Del)) as i64);
    Ok(())
}

fn digest_of(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    match shard.string(&key)? {
        Some(value) => reply.bulk(digest(value).as_bytes()),
        None => reply.null(),
    }
    Ok(())
}

#[inline]
fn bulk_or_null(reply: &mut Reply<'_>, value: Option<&[u8]>) {
    match value {
        Some(value) => reply.bulk(value),
        None => reply.null(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_strings_are_those_of_redis() {
        for (start, end, expected) in [
            (0, 2, "abc"),
            (0, -1, "abcde"),
            (-3, -1, "cde"),
            (-100, 1, "ab"),
            (3, 100, "de"),
            (5, 10, ""),
            (3, 1, ""),
            (-1, -3, ""),
            (-8, -9, ""),
            (-9, -8, "a"),
            (i64::MIN, i64::MAX, "abcde"),
            (i64::MAX, i64::MIN, ""),
        ] {
            assert_eq!(part(b"abcde", start, end), expected.as_bytes(), "{start} {end}");
        }
        assert_eq!(part(b"", 0, -1), b"");
        assert_eq!(part(b"", -1, 0), b"");
    }

    #[test]
    fn lengths_are_bounded_and_do_not_overflow() {
        assert_eq!(check_length(STRING_MAX_BYTES - 1, 1), Ok(()));
        assert_eq!(check_length(STRING_MAX_BYTES, 1), Err(StorageError::TooLong.into()));
        assert_eq!(check_length(i64::MAX as usize, usize::MAX), Err(StorageError::TooLong.into()));
    }
}
