//! Commands on keys of any type, and on whole databases.

use braid_protocol::{number, reply::Reply};
use braid_storage::{
    entry::{
        EntryRef,
        db::Db,
        key::Key,
        lru::{self, AccessPolicy},
        time::Deadline,
    },
    glob,
    keyspace::shard::Shard,
    observers::event::Event,
    table::Cursor,
    types::kinds::{encoding_name, type_name},
};

use crate::{
    catalog::{
        Args, Arity, Categories, CommandError, Databases, Flags, Group, KeySpec, KeyUse, Keys, KeysAt,
        Outcome, Words, shown,
    },
    client::sweep::{Seek, Sweep},
    command::{
        Call, CommandSpec, Log, Run, Work,
        arguments::{
            each_key::for_each_key,
            expire_options::{CountedFrom, TimeUnit, absolute_millis, future_deadline},
        },
        help::help,
        log_rewrite, work,
    },
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "del",
        arity: Arity::AtLeast(2),
        flags: Flags::WRITE,
        keys: Keys(&Keys::all(KeyUse::Delete)),
        run: Run::Transaction(del),
        since: "1.0.0",
        group: Group::Generic,
        syntax: "key [key ...]",
        summary: "Deletes keys.",
        complexity: "O(N) where N is the number of keys",
        tips: &["request_policy:multi_shard", "response_policy:agg_sum"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "unlink",
        arity: Arity::AtLeast(2),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys(&Keys::all(KeyUse::Delete)),
        run: Run::Transaction(del),
        since: "4.0.0",
        group: Group::Generic,
        syntax: "key [key ...]",
        summary: "Deletes keys. Large values are always freed in the background, so this is DEL.",
        complexity: "O(N) where N is the number of keys",
        tips: &["request_policy:multi_shard", "response_policy:agg_sum"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "exists",
        arity: Arity::AtLeast(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys(&Keys::all(KeyUse::Look)),
        run: Run::Transaction(exists),
        since: "1.0.0",
        group: Group::Generic,
        syntax: "key [key ...]",
        summary: "Counts how many of the keys exist; one that is named twice counts twice.",
        complexity: "O(N) where N is the number of keys",
        tips: &["request_policy:multi_shard", "response_policy:agg_sum"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "touch",
        arity: Arity::AtLeast(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys(&Keys::all(KeyUse::Look)),
        run: Run::Transaction(touch),
        since: "3.2.1",
        group: Group::Generic,
        syntax: "key [key ...]",
        summary: "Notes that keys were used, and counts those that exist.",
        complexity: "O(N) where N is the number of keys",
        tips: &["request_policy:multi_shard", "response_policy:agg_sum"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "type",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::LOOK,
        run: Run::Shard(type_of),
        since: "1.0.0",
        group: Group::Generic,
        syntax: "key",
        summary: "Returns the type of a key's value.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "expire",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::UPDATE,
        log: Log::As(log_rewrite::deadlines),
        run: Run::Shard(expire),
        since: "1.0.0",
        group: Group::Generic,
        syntax: "key seconds [NX | XX | GT | LT]",
        summary: "Sets a key's time to live, in seconds.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "pexpire",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::UPDATE,
        log: Log::As(log_rewrite::deadlines),
        run: Run::Shard(pexpire),
        since: "2.6.0",
        group: Group::Generic,
        syntax: "key milliseconds [NX | XX | GT | LT]",
        summary: "Sets a key's time to live, in milliseconds.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "expireat",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::UPDATE,
        log: Log::As(log_rewrite::deadlines),
        run: Run::Shard(expireat),
        since: "1.2.0",
        group: Group::Generic,
        syntax: "key unix-time-seconds [NX | XX | GT | LT]",
        summary: "Has a key expire at a time given in seconds.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "pexpireat",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::UPDATE,
        log: Log::As(log_rewrite::deadlines),
        run: Run::Shard(pexpireat),
        since: "2.6.0",
        group: Group::Generic,
        syntax: "key unix-time-milliseconds [NX | XX | GT | LT]",
        summary: "Has a key expire at a time given in milliseconds.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "ttl",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        run: Run::Shard(ttl),
        since: "1.0.0",
        group: Group::Generic,
        syntax: "key",
        summary: "Returns how many seconds a key has left; -1 if it does not expire, -2 if there is none.",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "pttl",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        run: Run::Shard(pttl),
        since: "2.6.0",
        group: Group::Generic,
        syntax: "key",
        summary: "Returns how many milliseconds a key has left; -1 if it does not expire, -2 if there is none.",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "expiretime",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        run: Run::Shard(expiretime),
        since: "7.0.0",
        group: Group::Generic,
        syntax: "key",
        summary: "Returns when a key expires, in seconds; -1 if it does not, -2 if there is none.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "pexpiretime",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        run: Run::Shard(pexpiretime),
        since: "7.0.0",
        group: Group::Generic,
        syntax: "key",
        summary: "Returns when a key expires, in milliseconds; -1 if it does not, -2 if there is none.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "persist",
        arity: Arity::Exactly(2),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::UPDATE,
        run: Run::Shard(persist),
        since: "2.2.0",
        group: Group::Generic,
        syntax: "key",
        summary: "Has a key live on.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "rename",
        arity: Arity::Exactly(3),
        flags: Flags::WRITE,
        keys: Keys(&[source(KeyUse::ReadAndDelete), destination(KeyUse::Overwrite)]),
        run: Run::Transaction(rename),
        work: Work::Carries { estimate: work::whole },
        since: "1.0.0",
        group: Group::Generic,
        syntax: "key newkey",
        summary: "Renames a key, over any other that has the new name.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "renamenx",
        arity: Arity::Exactly(3),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys(&[source(KeyUse::ReadAndDelete), destination(KeyUse::Insert)]),
        run: Run::Transaction(renamenx),
        work: Work::Carries { estimate: work::whole },
        since: "1.0.0",
        group: Group::Generic,
        syntax: "key newkey",
        summary: "Renames a key unless another has the new name.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "copy",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::OTHER_DATABASES),
        keys: Keys(&[source(KeyUse::Read), destination(KeyUse::Overwrite)]),
        run: Run::Transaction(copy),
        work: Work::pinned(work::copied),
        databases: Databases::AfterDb(3),
        database_of: Some(database_of_copied),
        since: "6.2.0",
        group: Group::Generic,
        syntax: "source destination [DB destination-db] [REPLACE]",
        summary: "Copies a key with its expiry.",
        complexity: "O(N) where N is the size of the value",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "move",
        arity: Arity::Exactly(3),
        flags: Flags::WRITE.and(Flags::FAST).and(Flags::OTHER_DATABASES),
        keys: Keys::UPDATE_AND_READ,
        run: Run::Transaction(move_to),
        work: Work::Carries { estimate: work::whole },
        since: "1.0.0",
        group: Group::Generic,
        syntax: "key db",
        summary: "Moves a key to another database unless that has one of the name.",
        databases: Databases::Words(&[2]),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "keys",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY.and(Flags::DANGEROUS),
        run: Run::EachShard { begin: keys, step: Sweep::step },
        since: "1.0.0",
        group: Group::Generic,
        syntax: "pattern",
        summary: "Lists the keys that match a glob.",
        complexity: "O(N) where N is the number of keys in the database",
        tips: &["request_policy:all_shards", "nondeterministic_output_order"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "scan",
        arity: Arity::AtLeast(2),
        flags: Flags::READONLY,
        run: Run::EachShard { begin: scan, step: Sweep::step },
        since: "2.8.0",
        group: Group::Generic,
        syntax: "cursor [MATCH pattern] [COUNT count] [TYPE type]",
        summary: "Lists some keys, and where to go on.",
        complexity: "O(N) where N is COUNT",
        tips: &["nondeterministic_output", "request_policy:special", "response_policy:special"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "randomkey",
        arity: Arity::Exactly(1),
        flags: Flags::READONLY,
        run: Run::EachShard { begin: randomkey, step: Sweep::step },
        since: "1.0.0",
        group: Group::Generic,
        summary: "Returns some key of the database.",
        complexity: "O(N) where N is the number of shards",
        tips: &["request_policy:all_shards", "response_policy:special", "nondeterministic_output"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "dbsize",
        arity: Arity::Exactly(1),
        flags: Flags::READONLY.and(Flags::FAST).and(Flags::WHOLE_KEYSPACE),
        run: Run::Session(dbsize),
        since: "1.0.0",
        group: Group::Server,
        categories: Some(Categories::KEYSPACE),
        summary: "Returns the number of keys in the database.",
        complexity: "O(N) where N is the number of shards",
        tips: &["request_policy:all_shards", "response_policy:agg_sum"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "object",
        arity: Arity::AtLeast(2),
        since: "2.2.3",
        group: Group::Generic,
        syntax: "<ENCODING | FREQ | HELP | IDLETIME | REFCOUNT>",
        summary: "Returns how a key's value is stored and used.",
        subcommands: OBJECT,
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "flushdb",
        arity: Arity::AtLeast(1),
        flags: Flags::WRITE.and(Flags::DANGEROUS),
        run: Run::Everything(flushdb),
        log: Log::Always,
        since: "1.0.0",
        group: Group::Server,
        syntax: "[ASYNC | SYNC]",
        summary: "Deletes all keys of the database; they are freed in the background either way.",
        complexity: "O(N) where N is the number of shards",
        tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "flushall",
        arity: Arity::AtLeast(1),
        flags: Flags::WRITE.and(Flags::DANGEROUS),
        run: Run::Everything(flushall),
        log: Log::Always,
        since: "1.0.0",
        group: Group::Server,
        syntax: "[ASYNC | SYNC]",
        summary: "Deletes all keys of all databases; they are freed in the background either way.",
        complexity: "O(N) where N is the number of shards times that of databases",
        tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
        databases: Databases::All,
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "swapdb",
        arity: Arity::Exactly(3),
        flags: Flags::WRITE.and(Flags::FAST).and(Flags::DANGEROUS).and(Flags::OTHER_DATABASES),
        run: Run::Everything(swapdb),
        work: Work::Carries { estimate: work::everything },
        since: "4.0.0",
        group: Group::Server,
        syntax: "index1 index2",
        summary: "Exchanges two databases, also for those who have one of them selected.",
        complexity: "O(N) where N is the number of shards, and of watched keys",
        databases: Databases::Words(&[1, 2]),
        ..CommandSpec::ROW
    },
];

const OBJECT: &[CommandSpec] = &[
    CommandSpec {
        name: "encoding",
        arity: Arity::Exactly(3),
        flags: Flags::READONLY,
        keys: SECOND_LOOKED_AT,
        run: Run::Transaction(object_encoding),
        since: "2.2.3",
        group: Group::Generic,
        syntax: "key",
        summary: "Names the way in which a key's value is stored.",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "freq",
        arity: Arity::Exactly(3),
        flags: Flags::READONLY,
        keys: SECOND_LOOKED_AT,
        run: Run::Transaction(object_freq),
        since: "4.0.0",
        group: Group::Generic,
        syntax: "key",
        summary: "Returns how often a key is used, as a logarithm.",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        run: Run::Session(object_help),
        since: "6.2.0",
        group: Group::Generic,
        summary: "Lists the subcommands.",
        ..CommandSpec::HELP
    },
    CommandSpec {
        name: "idletime",
        arity: Arity::Exactly(3),
        flags: Flags::READONLY,
        keys: SECOND_LOOKED_AT,
        run: Run::Transaction(object_idletime),
        since: "2.2.3",
        group: Group::Generic,
        syntax: "key",
        summary: "Returns for how many seconds a key has not been used.",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "refcount",
        arity: Arity::Exactly(3),
        flags: Flags::READONLY,
        keys: SECOND_LOOKED_AT,
        run: Run::Transaction(object_refcount),
        since: "2.2.3",
        group: Group::Generic,
        syntax: "key",
        summary: "Returns 1 for a key that exists: values are not shared.",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
];

/// The key after a subcommand.
const SECOND_LOOKED_AT: Keys =
    Keys(&[KeySpec { at: KeysAt::Range { first: 2, last: 2, step: 1 }, used: KeyUse::Look }]);

const fn source(used: KeyUse) -> KeySpec {
    KeySpec { at: KeysAt::Range { first: 1, last: 1, step: 1 }, used }
}

const fn destination(used: KeyUse) -> KeySpec {
    KeySpec { at: KeysAt::Range { first: 2, last: 2, step: 1 }, used }
}

fn del(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    count_keys(call, args, reply, |shard, key| shard.remove(key, Event::Del))
}

fn exists(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    count_keys(call, args, reply, |shard, key| shard.look(key).is_some())
}

/// Touches keys, which counts as a use even after CLIENT NO-TOUCH.
fn touch(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    count_keys(call, args, reply, |shard, key| shard.touch(key))
}

/// Replies with the number of keys for which `counts` returns true.
fn count_keys(
    call: &mut Call<'_, '_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
    counts: impl Fn(&mut Shard, &Key<'_>) -> bool,
) -> Outcome {
    let mut n = 0;
    for_each_key(call, args.rest().map(|key| (key, ())), |shard, key, ()| n += counts(shard, key) as i64);
    reply.integer(n);
    Ok(())
}

fn type_of(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    reply.simple(shard.look(&key).map_or("none", |entry| type_name(entry.kind())));
    Ok(())
}

fn expire(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    set_expiry(shard, args, reply, TimeUnit::Seconds, CountedFrom::Now, "expire")
}

fn pexpire(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    set_expiry(shard, args, reply, TimeUnit::Millis, CountedFrom::Now, "pexpire")
}

fn expireat(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    set_expiry(shard, args, reply, TimeUnit::Seconds, CountedFrom::Epoch, "expireat")
}

fn pexpireat(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    set_expiry(shard, args, reply, TimeUnit::Millis, CountedFrom::Epoch, "pexpireat")
}

fn set_expiry(
    shard: &mut Shard,
    mut args: Args<'_>,
    reply: &mut Reply<'_>,
    unit: TimeUnit,
    from: CountedFrom,
    name: &'static str,
) -> Outcome {
    let key = args.key()?;
    let time = args.next()?;
    // Errors of options come before errors of the time.
    let condition = ExpiryCondition::read(args)?;
    let now = shard.now();
    let value = number::parse_i64(time).ok_or(CommandError::NotInteger)?;
    let millis = absolute_millis(value, unit, from, now).ok_or(CommandError::InvalidExpire(name))?;
    let allowed = shard.peek(&key).is_some_and(|entry| condition.allows(entry.deadline(), millis));
    if allowed {
        match future_deadline(millis, now) {
            Some(deadline) => shard.set_deadline(&key, Some(deadline), Event::Expire),
            None => shard.remove(&key, Event::Del),
        };
    }
    reply.integer(allowed as i64);
    Ok(())
}

/// The condition of EXPIRE and related commands on the key's present expiry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpiryCondition {
    /// NX: the key has no expiry.
    absent: bool,
    /// XX: the key has an expiry.
    present: bool,
    /// GT: the new expiry is later.
    later: bool,
    /// LT: the new expiry is earlier.
    earlier: bool,
}

impl ExpiryCondition {
    fn read(mut args: Args<'_>) -> Result<Self, CommandError> {
        let mut condition = ExpiryCondition::default();
        while let Some(option) = args.peek() {
            let ExpiryCondition { absent, present, later, earlier } = &mut condition;
            let options = [("NX", absent), ("XX", present), ("GT", later), ("LT", earlier)];
            let Some((_, wanted)) = options.into_iter().find(|(tag, _)| args.tag(tag)) else {
                let option = shown(option);
                return Err(CommandError::owned(format!("ERR Unsupported option {option}")));
            };
            *wanted = true;
        }
        let ExpiryCondition { absent, present, later, earlier } = condition;
        if absent && (present || later || earlier) {
            return Err(CommandError::text(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if later && earlier {
            return Err(CommandError::text("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(condition)
    }

    /// Takes the next argument if it is NX, XX, GT or LT.
    pub(super) fn take_one(args: &mut Args<'_>) -> Self {
        let absent = args.tag("NX");
        let present = !absent && args.tag("XX");
        let later = !absent && !present && args.tag("GT");
        let earlier = !absent && !present && !later && args.tag("LT");
        Self { absent, present, later, earlier }
    }

    /// Whether an expiry at `millis` may replace the current one. A key without expiry counts as everlasting.
    pub(in crate::command) fn allows(self, current: Option<Deadline>, millis: i64) -> bool {
        let current = current.map(|deadline| deadline.0.0 as i64);
        (!self.absent || current.is_none())
            && (!self.present || current.is_some())
            && (!self.later || current.is_some_and(|current| millis > current))
            && (!self.earlier || current.is_none_or(|current| millis < current))
    }
}

fn ttl(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    tell_expiry(shard, args, reply, |deadline, now| to_seconds(deadline.saturating_sub(now)))
}

fn pttl(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    tell_expiry(shard, args, reply, |deadline, now| deadline.saturating_sub(now))
}

fn expiretime(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    tell_expiry(shard, args, reply, |deadline, _| to_seconds(deadline))
}

fn pexpiretime(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    tell_expiry(shard, args, reply, |deadline, _| deadline)
}

/// Replies with the result of `tell` for a key's deadline and the time.
///
/// Both are in milliseconds.
fn tell_expiry(
    shard: &mut Shard,
    mut args: Args<'_>,
    reply: &mut Reply<'_>,
    tell: fn(u64, u64) -> u64,
) -> Outcome {
    let key = args.key()?;
    let now = shard.now();
    reply.integer(match shard.look(&key).map(|entry| entry.deadline()) {
        None => -2,
        Some(None) => -1,
        Some(Some(deadline)) => tell(deadline.0.0, now.0) as i64,
    });
    Ok(())
}

/// Rounds to the nearest second.
fn to_seconds(millis: u64) -> u64 {
    (millis + 500) / 1000
}

fn persist(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let expires = shard.peek(&key).is_some_and(|entry| entry.has_deadline());
    if expires {
        shard.set_deadline(&key, None, Event::Persist);
    }
    reply.integer(expires as i64);
    Ok(())
}

fn rename(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    rename_if(call, args, |_| true)?;
    reply.ok();
    Ok(())
}

fn renamenx(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let renamed = rename_if(call, args, |is_free| is_free)?;
    reply.integer(renamed as i64);
    Ok(())
}

/// Renames a key if `may` returns true. Its argument is whether the new name is free.
///
/// Returns whether the key was renamed.
fn rename_if(
    call: &mut Call<'_, '_>,
    mut args: Args<'_>,
    may: fn(bool) -> bool,
) -> Result<bool, CommandError> {
    let (old, new) = (args.key()?, args.key()?);
    if call.shard_of(&old).peek(&old).is_none() {
        return Err(CommandError::NoSuchKey);
    }
    let is_free = call.shard_of(&new).peek(&new).is_none();
    if !may(is_free) {
        return Ok(false);
    }
    if old.bytes != new.bytes {
        // In Redis the new name counts as new even if another key had it, because that key is deleted first.
        call.shard_of(&new).announce_new(&new);
        let entry =
            call.shard_of(&old).take(&old, Event::RenameFrom).expect("the key was there a moment ago");
        call.shard_of(&new).put_announced(&new, entry.with_key(new.bytes), Event::RenameTo);
    }
    Ok(true)
}

fn copy(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (from, to) = (args.key()?, args.key()?);
    let from_db = call.session.db;
    let (mut to_db, mut replace) = (from_db, false);
    while !args.is_empty() {
        if args.tag("REPLACE") {
            replace = true;
        } else if args.tag("DB") {
            to_db = db(call, args.int()?)?;
        } else {
            return Err(CommandError::Syntax);
        }
    }
    if from_db == to_db && from.bytes == to.bytes {
        return Err(SAME_OBJECT);
    }
    let is_there = call.shard_in(&from, from_db).read(&from).is_some();
    let may = is_there && (replace || call.shard_in(&to, to_db).peek(&to).is_none());
    let copy = if may { call.shard_in(&from, from_db).copy(&from, to.bytes) } else { None };
    reply.integer(copy.is_some() as i64);
    if let Some(copy) = copy {
        let shard = call.shard_in(&to, to_db);
        shard.announce_new(&to);
        shard.put_announced(&to, copy, Event::CopyTo);
    }
    Ok(())
}

/// Returns the database of COPY's source or destination, unless it is the selected one.
fn database_of_copied(words: Words<'_>, at: usize) -> Option<Db> {
    let options = (3..words.len()).find(|&option| words.get(option).eq_ignore_ascii_case(b"DB"));
    let number = options.filter(|option| at == 2 && option + 1 < words.len());
    number
        .and_then(|option| number::parse_i64(words.get(option + 1)))
        .and_then(|db| db.try_into().ok())
        .map(Db)
}

fn move_to(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let from_db = call.session.db;
    let to_db = db(call, args.int()?)?;
    if from_db == to_db {
        return Err(SAME_OBJECT);
    }
    let is_free = call.shard_in(&key, to_db).peek(&key).is_none();
    let moves = is_free && call.shard_in(&key, from_db).peek(&key).is_some();
    reply.integer(moves as i64);
    if moves {
        call.shard_in(&key, to_db).announce_new(&key);
        let entry = call.shard_in(&key, from_db).take(&key, Event::MoveFrom);
        let entry = entry.expect("the key was there a moment ago");
        call.shard_in(&key, to_db).put_announced(&key, entry, Event::MoveTo);
    }
    Ok(())
}

const SAME_OBJECT: CommandError = CommandError::text("ERR source and destination objects are the same");

/// Returns the database with a number. As in Redis, numbers of more than 32 bits have an error of their own.
fn db(call: &Call<'_, '_>, number: i64) -> Result<Db, CommandError> {
    if i32::try_from(number).is_err() {
        return Err(CommandError::text(
            "ERR value is out of range, value must between -2147483648 and 2147483647",
        ));
    }
    match u32::try_from(number) {
        Ok(index) if (index as usize) < call.server.keyspace.n_dbs() => Ok(Db(index)),
        _ => Err(CommandError::DbIndex),
    }
}

fn keys(call: &mut Call<'_, '_>, mut args: Args<'_>) -> Result<Sweep, CommandError> {
    let pattern = pattern(args.next()?);
    Ok(Sweep::new(call.session.db, call.session.resp, Some(Cursor::default()), Seek::Keys { pattern }))
}

fn scan(call: &mut Call<'_, '_>, mut args: Args<'_>) -> Result<Sweep, CommandError> {
    let cursor = parse_cursor(args.next()?).ok_or(CommandError::text("ERR invalid cursor"))?;
    let (mut matching, mut count, mut kind) = (None, 10, None);
    while !args.is_empty() {
        if args.tag("COUNT") {
            count = u64::try_from(args.int()?).ok().filter(|&n| n > 0).ok_or(CommandError::Syntax)?;
        } else if args.tag("MATCH") {
            matching = pattern(args.next()?);
        } else if args.tag("TYPE") {
            kind = Some(args.next()?.to_ascii_lowercase());
        } else {
            return Err(CommandError::Syntax);
        }
    }
    // An invalid cursor is past the end.
    let at = Cursor::decode(cursor, call.server.keyspace.router());
    Ok(Sweep::new(call.session.db, call.session.resp, at, Seek::scan(matching, count, kind)))
}

/// Returns a glob that names must match, or `None` if it matches all.
pub(in crate::command) fn pattern(glob: &[u8]) -> Option<Vec<u8>> {
    (!glob::matches_everything(glob)).then(|| glob.to_vec())
}

/// Reads a cursor as Redis 7.4 does.
///
/// That is C's `strtoull`, which accepts leading spaces, a plus and leading zeros. An empty text and negative
/// numbers are invalid.
pub(super) fn parse_cursor(text: &[u8]) -> Option<u64> {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'\x0b';
    let text = &text[text.iter().take_while(|byte| is_space(byte)).count()..];
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let cursor = digits.iter().try_fold(0u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| (byte - b'0') as u64)?;
        value.checked_mul(10)?.checked_add(digit)
    })?;
    (cursor == 0 || !is_negative).then_some(cursor)
}

fn randomkey(call: &mut Call<'_, '_>, _: Args<'_>) -> Result<Sweep, CommandError> {
    Ok(Sweep::new(call.session.db, call.session.resp, Some(Cursor::default()), Seek::Random { n_tries: 0 }))
}

fn dbsize(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let durability = &call.server.durability;
    if durability.aof.holds_back_reads() {
        // The reply must not count keys that a crash could undo.
        call.thread.await_ticket(durability.last_ticket());
    }
    reply.integer(call.server.keyspace.n_keys(call.session.db) as i64);
    Ok(())
}

fn object_encoding(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    match call.shard_of(&key).look_quietly(&key) {
        Some(entry) => reply.bulk(encoding_name(entry).as_bytes()),
        None => reply.null(),
    }
    Ok(())
}

fn object_freq(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let access = call.server.keyspace.access();
    let shard = call.shard_of(&key);
    let now = shard.now();
    match shard.look_quietly(&key) {
        None => reply.null(),
        Some(_) if !matches!(access.policy(), AccessPolicy::Lfu { .. }) => {
            return Err(CommandError::text(
                "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
                 switching between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
        Some(entry) => reply.integer(access.frequency(entry, now) as i64),
    }
    Ok(())
}

fn object_idletime(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let policy = call.server.keyspace.access().policy();
    let shard = call.shard_of(&key);
    let now = shard.now();
    match shard.look_quietly(&key) {
        None => reply.null(),
        Some(entry) if !matches!(policy, AccessPolicy::Lfu { .. }) => {
            reply.integer(lru::idle_seconds(entry, now) as i64);
        }
        Some(_) => {
            return Err(CommandError::text(
                "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching \
                 between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
    }
    Ok(())
}

fn object_refcount(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let shares = call.server.config.load().shares_integers();
    match call.shard_of(&key).look_quietly(&key) {
        Some(entry) if shares && is_small_integer(entry) => reply.integer(SHARED),
        Some(_) => reply.integer(1),
        None => reply.null(),
    }
    Ok(())
}

/// The reference count that Redis reports for shared integers.
const SHARED: i64 = i32::MAX as i64;

/// Whether Redis would share one object for this value between all keys.
fn is_small_integer(entry: EntryRef<'_>) -> bool {
    let value = || number::parse_i64(entry.bytes()?);
    encoding_name(entry) == "int" && value().is_some_and(|value| (0..10_000).contains(&value))
}

fn object_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(
        reply,
        "OBJECT",
        &[
            "ENCODING <key>",
            "    Return the kind of internal representation used in order to store the value",
            "    associated with a <key>.",
            "FREQ <key>",
            "    Return the access frequency index of the <key>. The returned integer is",
            "    proportional to the logarithm of the recent access frequency of the key.",
            "IDLETIME <key>",
            "    Return the idle time of the <key>, that is the approximated number of",
            "    seconds elapsed since the last access to the key.",
            "REFCOUNT <key>",
            "    Return the number of references of the value associated with the specified",
            "    <key>.",
        ],
    )
}

fn flushdb(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    read_flush_mode(args)?;
    let db = call.session.db;
    call.each_shard(db, Shard::flush);
    crate::command::connections::tracking::tell_of_flush(call);
    reply.ok();
    Ok(())
}

fn flushall(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    read_flush_mode(args)?;
    call.each_shard(call.session.db, Shard::flush_all);
    crate::command::connections::tracking::tell_of_flush(call);
    if !crate::command::admin::saving::save_flushed(call) {
        reply.ok();
    }
    Ok(())
}

/// Reads ASYNC or SYNC, which have the same effect.
///
/// Tables are always detached at once and freed in the background.
fn read_flush_mode(mut args: Args<'_>) -> Outcome {
    let _ = args.tag("ASYNC") || args.tag("SYNC");
    args.finish()
}

fn swapdb(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let first = db_number(args.next()?).ok_or(CommandError::text("ERR invalid first DB index"))?;
    let second = db_number(args.next()?).ok_or(CommandError::text("ERR invalid second DB index"))?;
    let (first, second) = (db(call, first)?, db(call, second)?);
    if first != second {
        call.each_shard(call.session.db, |shard| shard.swap(first, second));
    }
    reply.ok();
    Ok(())
}

/// Reads a 32-bit number.
fn db_number(text: &[u8]) -> Option<i64> {
    number::parse_i64(text).filter(|&number| i32::try_from(number).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_as_redis_reads_them() {
        for (text, cursor) in [
            ("", None),
            ("0", Some(0)),
            ("007", Some(7)),
            ("+7", Some(7)),
            ("-1", None),
            ("-18446744073709551615", None),
            ("-0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-", None),
            (" 1", Some(1)),
            (" ", None),
            ("1 ", None),
            ("1x", None),
        ] {
            assert_eq!(parse_cursor(text.as_bytes()), cursor, "{text:?}");
        }
    }

    #[test]
    fn a_key_without_expiry_lives_for_ever() {
        let only = |later, earlier| ExpiryCondition { later, earlier, ..Default::default() };
        let current = Some(Deadline::at(100));
        assert!(!only(true, false).allows(None, 1));
        assert!(only(false, true).allows(None, i64::MAX));
        assert!(only(true, false).allows(current, 101) && !only(true, false).allows(current, 100));
        assert!(only(false, true).allows(current, -5) && !only(false, true).allows(current, 100));
    }

    #[test]
    fn times_to_live_are_rounded_to_the_nearest_second() {
        assert_eq!([0, 499, 500, 1499, 1500].map(to_seconds), [0, 0, 1, 1, 2]);
    }
}
