//! Commands on sets.

use braid_protocol::{number, reply::Reply};
use braid_storage::{
    entry::{EntryRef, key::Key, time::Millis},
    error::StorageError,
    keyspace::shard::Shard,
    observers::event::Event,
    table::Position,
    types::set::{Element, Operation, SetBuilder, SetRef, SetType},
};

use super::keys::parse_cursor;
use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, KeySpec, KeyUse, Keys, KeysAt, MembersAt, Outcome},
    command::{
        Call, CommandSpec, Log, Run, Work,
        arguments::{
            collection_args::{ScanOptions, write_element, write_samples, write_scanned},
            source_keys::{KeyRole, Sources},
        },
        log_rewrite, work,
    },
    random::random,
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "sadd",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::ADD,
        members: MembersAt::ALL,
        run: Run::Shard(sadd),
        since: "1.0.0",
        group: Group::Set,
        syntax: "key member [member ...]",
        summary: "Adds members to a set; a missing one counts as empty.",
        complexity: "O(N) where N is the number of members given",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "srem",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::REMOVE,
        members: MembersAt::ALL,
        run: Run::Shard(srem),
        since: "1.0.0",
        group: Group::Set,
        syntax: "key member [member ...]",
        summary: "Removes members from a set; the last one takes the key with it.",
        complexity: "O(N) where N is the number of members given",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "sismember",
        arity: Arity::Exactly(3),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::LOOK,
        members: MembersAt::ONE,
        run: Run::Shard(sismember),
        since: "1.0.0",
        group: Group::Set,
        syntax: "key member",
        summary: "Says whether something is a member of a set.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "smismember",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        members: MembersAt::ALL,
        run: Run::Shard(smismember),
        since: "6.2.0",
        group: Group::Set,
        syntax: "key member [member ...]",
        summary: "Says of several things which of them are members of a set.",
        complexity: "O(N) where N is the number of things asked for",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "smembers",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(smembers),
        work: Work::pinned(work::whole),
        since: "1.0.0",
        group: Group::Set,
        syntax: "key",
        summary: "Returns all members of a set.",
        complexity: "O(N) where N is the number of members",
        tips: &["nondeterministic_output_order"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "scard",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::LOOK,
        run: Run::Shard(scard),
        since: "1.0.0",
        group: Group::Set,
        syntax: "key",
        summary: "Returns the number of members of a set.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "smove",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: FROM_ONE_TO_ANOTHER,
        run: Run::Transaction(smove),
        since: "1.0.0",
        group: Group::Set,
        syntax: "source destination member",
        summary: "Moves a member from one set to another.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "spop",
        arity: Arity::AtLeast(2),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::READ_AND_DELETE,
        log: Log::Given,
        members: Some(MembersAt::Draw),
        run: Run::Shard(spop),
        work: Work::held(work::taken),
        since: "1.0.0",
        group: Group::Set,
        syntax: "key [count]",
        summary: "Removes members of a set that are chosen at random, and gives them.",
        complexity: "O(1), or O(N) with a count, where N is the count",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "srandmember",
        arity: Arity::AtLeast(2),
        flags: Flags::READONLY,
        keys: Keys::READ,
        members: Some(MembersAt::Draw),
        run: Run::Shard(srandmember),
        work: Work::pinned(work::drawn),
        since: "1.0.0",
        group: Group::Set,
        syntax: "key [count]",
        summary: "Returns members of a set that are chosen at random; with a negative count a member may come again.",
        complexity: "O(1), or O(N) with a count, where N is its absolute value",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "sinter",
        arity: Arity::AtLeast(2),
        flags: Flags::READONLY,
        keys: Keys(&Keys::all(KeyUse::Read)),
        run: Run::Transaction(sinter),
        work: Work::pinned(work::least_of_keys),
        since: "1.0.0",
        group: Group::Set,
        syntax: "key [key ...]",
        summary: "Returns the members that all of several sets have.",
        complexity: "O(N*M) where N is the size of the smallest set and M the number of sets",
        tips: &["nondeterministic_output_order"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "sintercard",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY.and(Flags::MOVABLE_KEYS),
        keys: COUNTED,
        run: Run::Transaction(sintercard),
        work: Work::pinned(work::least_of_counted_keys),
        since: "7.0.0",
        group: Group::Set,
        syntax: "numkeys key [key ...] [LIMIT limit]",
        summary: "Counts the members that all of several sets have, up to a limit.",
        complexity: "O(N*M) where N is the size of the smallest set and M the number of sets",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "sunioncard",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY.and(Flags::MOVABLE_KEYS),
        keys: COUNTED,
        run: Run::Transaction(sunioncard),
        work: Work::pinned(work::counted_keys),
        since: "8.10.0",
        group: Group::Set,
        syntax: "numkeys key [key ...] [APPROX] [LIMIT limit]",
        summary: "Counts the members that any of several sets has, up to a limit.",
        complexity: "O(N) where N is the number of members of all sets",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "sdiffcard",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY.and(Flags::MOVABLE_KEYS),
        keys: COUNTED,
        run: Run::Transaction(sdiffcard),
        work: Work::pinned(work::counted_keys),
        since: "8.10.0",
        group: Group::Set,
        syntax: "numkeys key [key ...] [LIMIT limit]",
        summary: "Counts the members of the first set that no other set has, up to a limit.",
        complexity: "O(N) where N is the number of members of all sets",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "sinterstore",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: OVERWRITTEN_FROM_OTHERS,
        run: Run::Transaction(sinterstore),
        work: Work::pinned(work::least_of_sources),
        since: "1.0.0",
        group: Group::Set,
        syntax: "destination key [key ...]",
        summary: "Stores the members that all of several sets have.",
        complexity: "O(N*M) where N is the size of the smallest set and M the number of sets",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "sunion",
        arity: Arity::AtLeast(2),
        flags: Flags::READONLY,
        keys: Keys(&Keys::all(KeyUse::Read)),
        run: Run::Transaction(sunion),
        work: Work::pinned(work::all_keys),
        since: "1.0.0",
        group: Group::Set,
        syntax: "key [key ...]",
        summary: "Returns the members that any of several sets has.",
        complexity: "O(N) where N is the number of members of all sets",
        tips: &["nondeterministic_output_order"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "sunionstore",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: OVERWRITTEN_FROM_OTHERS,
        run: Run::Transaction(sunionstore),
        work: Work::pinned(work::all_sources),
        since: "1.0.0",
        group: Group::Set,
        syntax: "destination key [key ...]",
        summary: "Stores the members that any of several sets has.",
        complexity: "O(N) where N is the number of members of all sets",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "sdiff",
        arity: Arity::AtLeast(2),
        flags: Flags::READONLY,
        keys: Keys(&Keys::all(KeyUse::Read)),
        run: Run::Transaction(sdiff),
        work: Work::pinned(work::all_keys),
        since: "1.0.0",
        group: Group::Set,
        syntax: "key [key ...]",
        summary: "Returns the members that the first of several sets has and no other.",
        complexity: "O(N) where N is the number of members of all sets",
        tips: &["nondeterministic_output_order"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "sdiffstore",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: OVERWRITTEN_FROM_OTHERS,
        run: Run::Transaction(sdiffstore),
        work: Work::pinned(work::all_sources),
        since: "1.0.0",
        group: Group::Set,
        syntax: "destination key [key ...]",
        summary: "Stores the members that the first of several sets has and no other.",
        complexity: "O(N) where N is the number of members of all sets",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "sscan",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(sscan),
        work: Work::pinned(work::scanned),
        since: "2.8.0",
        group: Group::Set,
        syntax: "key cursor [MATCH pattern] [COUNT count]",
        summary: "Goes through the members of a set, some at a time.",
        complexity: "O(1) for a call, O(N) for all of them, where N is the number of members",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
];

const FROM_ONE_TO_ANOTHER: Keys = Keys(&[
    KeySpec { at: KeysAt::Range { first: 1, last: 1, step: 1 }, used: KeyUse::ReadAndDelete },
    KeySpec { at: KeysAt::Range { first: 2, last: 2, step: 1 }, used: KeyUse::Add },
]);
const OTHERS: KeySpec = KeySpec { at: KeysAt::Range { first: 2, last: -1, step: 1 }, used: KeyUse::Read };
const OVERWRITTEN_FROM_OTHERS: Keys =
    Keys(&[KeySpec { at: KeysAt::Range { first: 1, last: 1, step: 1 }, used: KeyUse::Overwrite }, OTHERS]);
const COUNTED: Keys = Keys(&[KeySpec { at: KeysAt::Counted { count: 1, step: 1 }, used: KeyUse::Read }]);

fn sadd(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let first = args.peek().ok_or(CommandError::Syntax)?;
    let mut set = shard.value_or_create::<SetType>(&key, Event::SAdd)?;
    set.make_ready_for(first, args.remaining());
    let n_added = args.rest().filter(|member| set.insert(member)).count();
    reply.integer(n_added as i64);
    Ok(())
}

fn srem(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let n_removed = match shard.value_mut::<SetType>(&key, Event::SRem)? {
        Some(mut set) => args.rest().filter(|member| set.remove(member)).count(),
        None => 0,
    };
    reply.integer(n_removed as i64);
    Ok(())
}

fn sismember(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let set = shard.value::<SetType>(&key)?;
    reply.integer(is_member(set, args.next()?) as i64);
    Ok(())
}

fn smismember(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let set = shard.value::<SetType>(&key)?;
    reply.array(args.remaining());
    args.rest().for_each(|member| reply.integer(is_member(set, member) as i64));
    Ok(())
}

fn is_member(set: Option<SetRef<'_>>, member: &[u8]) -> bool {
    set.is_some_and(|set| set.contains(Element::Text(member)))
}

fn smembers(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let Some(set) = shard.value::<SetType>(&key)? else {
        reply.set(0);
        return Ok(());
    };
    write_members(set, reply);
    Ok(())
}

fn scard(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    reply.integer(shard.value::<SetType>(&key)?.map_or(0, SetRef::len) as i64);
    Ok(())
}

fn smove(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (from, to, member) = (args.key()?, args.key()?, args.next()?);
    let now = call.now;
    let Some(source) = call.shard_of(&from).peek(&from) else {
        reply.integer(0);
        return Ok(());
    };
    let was_there = is_member(Some(SetRef::of(source, now)?), member);
    // Both sets are checked before either is changed.
    call.shard_of(&to).peek(&to).map(|destination| SetRef::of(destination, now)).transpose()?;
    if was_there && from.bytes != to.bytes {
        if let Some(mut set) = call.shard_of(&from).value_mut::<SetType>(&from, Event::SRem)? {
            set.remove(member);
        }
        let mut set = call.shard_of(&to).value_or_create::<SetType>(&to, Event::SAdd)?;
        set.make_ready_for(member, 1);
        set.insert(member);
    }
    reply.integer(was_there as i64);
    Ok(())
}

fn spop(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    if !args.is_empty() {
        return spop_many(shard, &key, args, reply);
    }
    let (db, is_logged, mut taken) = (shard.db(), shard.is_logged(), Vec::new());
    match shard.value_mut::<SetType>(&key, Event::SPop)? {
        Some(mut set) => set.pop(random(), |member| {
            write_element(member, reply);
            if is_logged {
                taken.push(member.to_vec());
            }
        }),
        None => reply.null(),
    }
    log_rewrite::taken_members(db, &key, &taken);
    Ok(())
}

fn spop_many(shard: &mut Shard, key: &Key<'_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let count = args.next()?;
    args.finish()?;
    let count = number::parse_i64(count).and_then(|count| usize::try_from(count).ok());
    let count = count.ok_or(CommandError::text("ERR value is out of range, must be positive"))?;
    let (db, is_logged, mut taken) = (shard.db(), shard.is_logged(), Vec::new());
    let Some(mut set) = shard.value_mut::<SetType>(key, Event::SPop)? else {
        reply.set(0);
        return Ok(());
    };
    let n_members = set.as_ref().len();
    if count >= n_members {
        write_members(set.as_ref(), reply);
        drop(set);
        // Redis counts and replies here as it does for SUNION.
        shard.look(key);
        if shard.remove(key, Event::SPop) {
            shard.count_further(n_members - 1);
            shard.follow_up(key, Event::Del);
        }
        shard.log(&[b"DEL", key.bytes]);
        return Ok(());
    }
    reply.set(count);
    if count > 0 {
        set.pop_many(count, &mut random, &mut |member| {
            write_element(member, reply);
            if is_logged {
                taken.push(member.to_vec());
            }
        });
    }
    log_rewrite::taken_members(db, key, &taken);
    Ok(())
}

fn srandmember(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    if args.is_empty() {
        match shard.value::<SetType>(&key)?.and_then(|set| set.sample(random())) {
            Some(member) => write_element(member, reply),
            None => reply.null(),
        }
        return Ok(());
    }
    let given = args.next()?;
    args.finish()?;
    let count = number::parse_i64(given).ok_or(CommandError::NotInteger)?;
    if count == i64::MIN {
        return Err(CommandError::text(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ));
    }
    let Some(set) = shard.value::<SetType>(&key)? else {
        reply.array(0);
        return Ok(());
    };
    if count < 0 {
        let n = count.unsigned_abs();
        let mut samples = set.samples(random);
        let write = |reply: &mut Reply<'_>| {
            samples.by_ref().take(1).for_each(|member| write_element(member, reply));
        };
        return write_samples(n, reply, |reply| reply.array(n as usize), write);
    }
    let n = set.len().min(count as usize);
    reply.array(n);
    set.choose(n, &mut random, &mut |member| write_element(member, reply));
    Ok(())
}

fn write_members(set: SetRef<'_>, reply: &mut Reply<'_>) {
    reply.set(set.len());
    set.iter().for_each(|member| write_element(member, reply));
}

fn sinter(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    combine(call, args, Operation::Intersection, reply)
}

fn sunion(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    combine(call, args, Operation::Union, reply)
}

fn sdiff(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    combine(call, args, Operation::Difference, reply)
}

fn combine(call: &mut Call<'_, '_>, args: Args<'_>, operation: Operation, reply: &mut Reply<'_>) -> Outcome {
    let sources = Sources::share(call, args.rest().map(|key| (key, KeyRole::Source)), check_source)?;
    write_combined(&sources.views(source_set), operation, reply);
    Ok(())
}

fn write_combined(sets: &[Option<SetRef<'_>>], operation: Operation, reply: &mut Reply<'_>) {
    let (members, mut n) = (reply.set_later(), 0);
    operation.for_each(sets, &mut |member| {
        write_element(member, reply);
        n += 1;
    });
    reply.close(members, n);
}

fn sinterstore(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    combine_and_store(call, args, (Operation::Intersection, Event::SInterStore), reply)
}

fn sunionstore(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    combine_and_store(call, args, (Operation::Union, Event::SUnionStore), reply)
}

fn sdiffstore(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    combine_and_store(call, args, (Operation::Difference, Event::SDiffStore), reply)
}

/// Stores a combination of sets. A destination that is also a source is written after it was read.
fn combine_and_store(
    call: &mut Call<'_, '_>,
    mut args: Args<'_>,
    (operation, event): (Operation, Event),
    reply: &mut Reply<'_>,
) -> Outcome {
    let destination = args.key()?;
    let keys = std::iter::once((destination.bytes, KeyRole::Destination))
        .chain(args.rest().map(|key| (key, KeyRole::Source)));
    let sources = Sources::share(call, keys, check_source)?;
    let keyspace = &call.server.keyspace;
    let result = SetBuilder::new(destination.bytes, keyspace.thresholds(), keyspace.router().hasher());
    let result = operation.store(&sources.views(source_set), result);
    drop(sources);
    let shard = call.shard_of(&destination);
    let n = match result {
        Some(entry) => {
            let n = SetRef::of(entry.as_ref(), shard.now())?.len();
            shard.put(&destination, entry, event);
            n
        }
        None => {
            shard.remove(&destination, Event::Del);
            0
        }
    };
    reply.integer(n as i64);
    Ok(())
}

fn sintercard(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    count(call, args, Operation::Intersection, reply)
}

/// Runs SUNIONCARD. With APPROX it counts exactly, too: it keeps no copies of the members.
fn sunioncard(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    count(call, args, Operation::Union, reply)
}

fn sdiffcard(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    count(call, args, Operation::Difference, reply)
}

/// Counts the members of a combination of sets.
fn count(
    call: &mut Call<'_, '_>,
    mut args: Args<'_>,
    operation: Operation,
    reply: &mut Reply<'_>,
) -> Outcome {
    let n_keys = number::parse_i64(args.next()?).filter(|&n| n > 0);
    let n_keys = n_keys.ok_or(CommandError::text("ERR numkeys should be greater than 0"))? as usize;
    if n_keys > args.remaining() {
        return Err(CommandError::text("ERR Number of keys can't be greater than number of args"));
    }
    let keys = args.rest().take(n_keys);
    for _ in 0..n_keys {
        args.next()?;
    }
    let mut limit = 0;
    while !args.is_empty() {
        if operation == Operation::Union && args.tag("APPROX") {
            continue;
        }
        if args.remaining() < 2 || !args.tag("LIMIT") {
            return Err(CommandError::Syntax);
        }
        let given = number::parse_i64(args.next()?).and_then(|limit| usize::try_from(limit).ok());
        limit = given.ok_or(CommandError::text("ERR LIMIT can't be negative"))?;
    }
    let sources = Sources::share(call, keys.map(|key| (key, KeyRole::Source)), check_source)?;
    // 0 sets no limit.
    let limit = if limit == 0 { usize::MAX } else { limit };
    reply.integer(operation.count(&sources.views(source_set), limit) as i64);
    Ok(())
}

/// Returns a source of a command as a set, if the key exists.
fn source_set(entry: Option<EntryRef<'_>>, now: Millis) -> Result<Option<SetRef<'_>>, StorageError> {
    entry.map(|entry| SetRef::of(entry, now)).transpose()
}

fn check_source(entry: Option<EntryRef<'_>>, now: Millis) -> Result<(), StorageError> {
    source_set(entry, now).map(drop)
}

fn sscan(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let cursor = parse_cursor(args.next()?).ok_or(CommandError::text("ERR invalid cursor"))?;
    let Some(set) = shard.value::<SetType>(&key)? else {
        write_scanned(None, 0, &[], reply);
        return Ok(());
    };
    scan(set, cursor, &ScanOptions::read(args)?, reply);
    Ok(())
}

/// Writes the next cursor and then the members from a cursor onwards.
fn scan(set: SetRef<'_>, cursor: u64, options: &ScanOptions<'_>, reply: &mut Reply<'_>) {
    let (mut found, mut n) = (Vec::new(), 0);
    let mut members = Reply::new(&mut found, reply.version());
    // An invalid cursor means the start.
    let from = Position::decode(cursor).unwrap_or_default();
    let next = set.scan(from, options.count(), &mut |member| {
        if options.wants(member) {
            write_element(member, &mut members);
            n += 1;
        }
    });
    write_scanned(next, n, &found, reply);
}
