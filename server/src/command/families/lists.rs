//! Commands on lists.

use std::ops::{ControlFlow, Range};

use braid_protocol::reply::Reply;
use braid_storage::{
    entry::{Kind, key::Key},
    error::StorageError,
    keyspace::shard::Shard,
    observers::{event::Event, waiters::Awaits},
    sync::work::{BYTES_PER_ELEMENT, WORK_MAX, WORK_MAX_BYTES},
    types::list::{ListEnd, ListMut, ListRef, ListType, Side},
};
use smallvec::SmallVec;

use super::pops::{PopEnd, pop_first, pop_first_or_wait, pop_one_or_wait};
use crate::{
    catalog::{
        ALL_BUT_LAST, Args, Arity, CommandError, Deprecation, Flags, Group, KeySpec, KeyUse, Keys, KeysAt,
        Outcome,
    },
    client::waits::{Nothing, Wait},
    command::{
        Call, CommandSpec, Log, Look, Run, Work,
        arguments::collection_args::{at_least, n_bytes, write_element},
        log_rewrite, work,
    },
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "lpush",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::ADD,
        run: Run::Shard(lpush),
        since: "1.0.0",
        group: Group::List,
        syntax: "key element [element ...]",
        summary: "Adds elements at the left end of a list, which is made if it is missing.",
        complexity: "O(N) where N is the number of elements",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "rpush",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::ADD,
        run: Run::Shard(rpush),
        since: "1.0.0",
        group: Group::List,
        syntax: "key element [element ...]",
        summary: "Adds elements at the right end of a list, which is made if it is missing.",
        complexity: "O(N) where N is the number of elements",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "lpushx",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::ADD,
        run: Run::Shard(lpushx),
        since: "2.2.0",
        group: Group::List,
        syntax: "key element [element ...]",
        summary: "Adds elements at the left end of a list, if it exists.",
        complexity: "O(N) where N is the number of elements",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "rpushx",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::ADD,
        run: Run::Shard(rpushx),
        since: "2.2.0",
        group: Group::List,
        syntax: "key element [element ...]",
        summary: "Adds elements at the right end of a list, if it exists.",
        complexity: "O(N) where N is the number of elements",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "lpop",
        arity: Arity::AtLeast(2),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::READ_AND_DELETE,
        run: Run::Shard(lpop),
        work: Work::held(work::taken),
        since: "1.0.0",
        group: Group::List,
        syntax: "key [count]",
        summary: "Removes the first element of a list, or several, and gives them.",
        complexity: "O(N) where N is the number of elements given",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "rpop",
        arity: Arity::AtLeast(2),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::READ_AND_DELETE,
        run: Run::Shard(rpop),
        work: Work::held(work::taken),
        since: "1.0.0",
        group: Group::List,
        syntax: "key [count]",
        summary: "Removes the last element of a list, or several, and gives them, the last one first.",
        complexity: "O(N) where N is the number of elements given",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "llen",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::LOOK,
        run: Run::Shard(llen),
        since: "1.0.0",
        group: Group::List,
        syntax: "key",
        summary: "Returns the number of elements of a list.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "lrange",
        arity: Arity::Exactly(4),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(lrange),
        work: Work::pinned(ranged),
        since: "1.0.0",
        group: Group::List,
        syntax: "key start stop",
        summary: "Returns the elements of a list from one index to another; negative ones count from the right end.",
        complexity: "O(S+N) where S is the distance of the start from the nearer end, counted in chunks of a large list, \
                     and N is the number of elements given",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "lindex",
        arity: Arity::Exactly(3),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(lindex),
        work: Work::pinned(indexed),
        since: "1.0.0",
        group: Group::List,
        syntax: "key index",
        summary: "Returns the element of a list at an index; a negative one counts from the right end.",
        complexity: "O(N) where N is the distance from the nearer end, counted in chunks of a large list",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "lset",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: Keys::UPDATE,
        run: Run::Shard(lset),
        work: Work::held(work::reached),
        since: "1.0.0",
        group: Group::List,
        syntax: "key index element",
        summary: "Writes another element in place of the one at an index; a negative one counts from the right end.",
        complexity: "O(N) where N is the distance from the nearer end, counted in chunks of a large list",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "linsert",
        arity: Arity::Exactly(5),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: Keys::ADD,
        run: Run::Shard(linsert),
        work: Work::held(work::searched),
        since: "2.2.0",
        group: Group::List,
        syntax: "key <BEFORE | AFTER> pivot element",
        summary: "Adds an element beside the first one of a list that is equal to another.",
        complexity: "O(N) where N is the number of elements up to that one",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "lrem",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE,
        keys: Keys::REMOVE,
        run: Run::Shard(lrem),
        work: Work::held(work::searched),
        since: "1.0.0",
        group: Group::List,
        syntax: "key count element",
        summary: "Removes elements that are equal to one: the first ones, the last ones if the count is negative, or all.",
        complexity: "O(N) where N is the number of elements",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "ltrim",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE,
        keys: Keys::REMOVE,
        run: Run::Shard(ltrim),
        work: Work::held(trimmed),
        since: "1.0.0",
        group: Group::List,
        syntax: "key start stop",
        summary: "Removes all elements of a list but those from one index to another; negative ones count from the right end.",
        complexity: "O(N) where N is the number of chunks that go",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "lpos",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(lpos),
        work: Work::pinned(searched),
        since: "6.0.6",
        group: Group::List,
        syntax: "key element [RANK rank] [COUNT num-matches] [MAXLEN len]",
        summary: "Returns the indexes of the elements of a list that are equal to one.",
        complexity: "O(N) where N is the number of elements compared",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "lmove",
        arity: Arity::Exactly(5),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: FROM_ONE_TO_ANOTHER,
        run: Run::Transaction(lmove),
        work: Work::held(work::one_taken),
        since: "6.2.0",
        group: Group::List,
        syntax: "source destination <LEFT | RIGHT> <LEFT | RIGHT>",
        summary: "Removes an element at an end of a list, adds it at an end of another one, and gives it.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "rpoplpush",
        arity: Arity::Exactly(3),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::DEPRECATED),
        keys: FROM_ONE_TO_ANOTHER,
        run: Run::Transaction(rpoplpush),
        work: Work::held(work::one_taken),
        since: "1.2.0",
        group: Group::List,
        syntax: "source destination",
        summary: "Removes the last element of a list, adds it at the left end of another one, and gives it.",
        deprecated: Some(Deprecation {
            since: "6.2.0",
            replaced_by: "`LMOVE` with the `RIGHT` and `LEFT` arguments",
        }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "lmpop",
        arity: Arity::AtLeast(4),
        flags: Flags::WRITE.and(Flags::MOVABLE_KEYS),
        keys: COUNTED,
        log: Log::Given,
        run: Run::Transaction(pop_first::<ListEnd>),
        work: Work::held(work::taken_from_any),
        since: "7.0.0",
        group: Group::List,
        syntax: "numkeys key [key ...] <LEFT | RIGHT> [COUNT count]",
        summary: "Removes elements at an end of the first of several lists that is not missing, and gives them.",
        complexity: "O(N+M) where N is the number of keys and M is the number of elements given",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "blpop",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::BLOCKING),
        keys: ALL_BUT_LAST,
        log: Log::Given,
        run: Run::Transaction(blpop),
        work: Work::held(work::one_taken_from_any_in_time),
        since: "2.0.0",
        group: Group::List,
        syntax: "key [key ...] timeout",
        summary: "Removes the first element of the first of several lists that is not missing, and gives it; waits for one.",
        complexity: "O(N) where N is the number of keys",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "brpop",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::BLOCKING),
        keys: ALL_BUT_LAST,
        log: Log::Given,
        run: Run::Transaction(brpop),
        work: Work::held(work::one_taken_from_any_in_time),
        since: "2.0.0",
        group: Group::List,
        syntax: "key [key ...] timeout",
        summary: "Removes the last element of the first of several lists that is not missing, and gives it; waits for one.",
        complexity: "O(N) where N is the number of keys",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "blmove",
        arity: Arity::Exactly(6),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::BLOCKING),
        keys: FROM_ONE_TO_ANOTHER,
        log: Log::As(log_rewrite::lmove),
        run: Run::Transaction(blmove),
        work: Work::held(work::one_taken),
        since: "6.2.0",
        group: Group::List,
        syntax: "source destination <LEFT | RIGHT> <LEFT | RIGHT> timeout",
        summary: "Moves an element from an end of a list to an end of another one, and gives it; waits for one.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "brpoplpush",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::BLOCKING).and(Flags::DEPRECATED),
        keys: FROM_ONE_TO_ANOTHER,
        log: Log::As(log_rewrite::rpoplpush),
        run: Run::Transaction(brpoplpush),
        work: Work::held(work::one_taken),
        since: "2.2.0",
        group: Group::List,
        syntax: "source destination timeout",
        summary: "Moves the last element of a list to the left end of another one, and gives it; waits for one.",
        deprecated: Some(Deprecation {
            since: "6.2.0",
            replaced_by: "`BLMOVE` with the `RIGHT` and `LEFT` arguments",
        }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "blmpop",
        arity: Arity::AtLeast(5),
        flags: Flags::WRITE.and(Flags::BLOCKING).and(Flags::MOVABLE_KEYS),
        keys: COUNTED_SECOND,
        log: Log::Given,
        run: Run::Transaction(pop_first_or_wait::<ListEnd>),
        work: Work::held(work::taken_from_any_in_time),
        since: "7.0.0",
        group: Group::List,
        syntax: "timeout numkeys key [key ...] <LEFT | RIGHT> [COUNT count]",
        summary: "Removes elements at an end of the first of several lists that is not missing, and gives them; waits for one.",
        complexity: "O(N+M) where N is the number of keys and M is the number of elements given",
        ..CommandSpec::ROW
    },
];

pub(super) const FROM_ONE_TO_ANOTHER: Keys = Keys(&[
    KeySpec { at: KeysAt::Range { first: 1, last: 1, step: 1 }, used: KeyUse::ReadAndDelete },
    KeySpec { at: KeysAt::Range { first: 2, last: 2, step: 1 }, used: KeyUse::Add },
]);
const COUNTED: Keys =
    Keys(&[KeySpec { at: KeysAt::Counted { count: 1, step: 1 }, used: KeyUse::ReadAndDelete }]);
const COUNTED_SECOND: Keys =
    Keys(&[KeySpec { at: KeysAt::Counted { count: 2, step: 1 }, used: KeyUse::ReadAndDelete }]);

fn lpush(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    push(shard, args, ListEnd::Left, AbsentList::Make, reply)
}

fn rpush(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    push(shard, args, ListEnd::Right, AbsentList::Make, reply)
}

fn lpushx(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    push(shard, args, ListEnd::Left, AbsentList::Leave, reply)
}

fn rpushx(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    push(shard, args, ListEnd::Right, AbsentList::Leave, reply)
}

/// The treatment of a missing list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AbsentList {
    Make,
    Leave,
}

#[inline]
fn push(
    shard: &mut Shard,
    mut args: Args<'_>,
    end: ListEnd,
    missing: AbsentList,
    reply: &mut Reply<'_>,
) -> Outcome {
    let key = args.key()?;
    let len = push_texts(shard, &key, end, missing, args.rest())?;
    reply.integer(len as i64);
    Ok(())
}

/// Returns the event of adding an element at an end.
pub(super) fn push_event(end: ListEnd) -> Event {
    match end {
        ListEnd::Left => Event::LPush,
        ListEnd::Right => Event::RPush,
    }
}

/// Returns the event of removing an element from an end.
pub(super) fn pop_event(end: ListEnd) -> Event {
    match end {
        ListEnd::Left => Event::LPop,
        ListEnd::Right => Event::RPop,
    }
}

/// Adds elements one by one at an end of a list, and returns its length.
#[inline]
pub(super) fn push_texts<'t>(
    shard: &mut Shard,
    key: &Key<'_>,
    end: ListEnd,
    missing: AbsentList,
    texts: impl Iterator<Item = &'t [u8]> + Clone,
) -> Result<usize, StorageError> {
    if let Some(mut list) = shard.value_mut::<ListType>(key, push_event(end))? {
        return Ok(list.push(end, texts));
    }
    match missing {
        AbsentList::Make => Ok(shard.value_or_create::<ListType>(key, push_event(end))?.push(end, texts)),
        AbsentList::Leave => Ok(0),
    }
}

fn lpop(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    pop(shard, args, ListEnd::Left, "lpop", reply)
}

fn rpop(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    pop(shard, args, ListEnd::Right, "rpop", reply)
}

#[inline]
fn pop(
    shard: &mut Shard,
    mut args: Args<'_>,
    end: ListEnd,
    name: &'static str,
    reply: &mut Reply<'_>,
) -> Outcome {
    let key = args.key()?;
    let count = match args.remaining() {
        0 => None,
        1 => Some(at_least(0, &mut args, "ERR value is out of range, must be positive")?),
        _ => return Err(CommandError::Arity(name)),
    };
    match (shard.value_mut::<ListType>(&key, pop_event(end))?, count) {
        (Some(mut list), None) => list.pop(end, 1, |element| write_element(element, reply)),
        (Some(mut list), Some(count)) => pop_array(&mut list, end, count, reply),
        (None, None) => reply.null(),
        (None, Some(_)) => reply.null_array(),
    }
    Ok(())
}

/// Removes up to `count` elements at an end and writes them, outermost first.
fn pop_array(list: &mut ListMut<'_>, end: ListEnd, count: usize, reply: &mut Reply<'_>) {
    let n = list.as_ref().len().min(count);
    reply.array(n);
    list.pop(end, n, |element| write_element(element, reply));
}

fn llen(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    reply.integer(shard.value::<ListType>(&key)?.map_or(0, ListRef::len) as i64);
    Ok(())
}

fn lrange(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let (start, stop) = (args.int()?, args.int()?);
    let max = shard.copied_max_bytes();
    let Some(list) = shard.value::<ListType>(&key)? else {
        reply.array(0);
        return Ok(());
    };
    // A few elements are usually short.
    if list.entry().allocated_bytes() > max {
        let indexes = indexes(start, stop, list.len());
        let elements = list.elements_from(indexes.start).take(indexes.len());
        if elements.map(n_bytes).sum::<usize>() > max {
            return Err(shard.refuse_read().into());
        }
    }
    range(list, start, stop, reply);
    Ok(())
}

fn range(list: ListRef<'_>, start: i64, stop: i64, reply: &mut Reply<'_>) {
    let indexes = indexes(start, stop, list.len());
    reply.array(indexes.len());
    list.elements_from(indexes.start).take(indexes.len()).for_each(|element| write_element(element, reply));
}

fn ranged(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let (Ok(key), Ok(start), Ok(stop)) = (args.key(), args.int(), args.int()) else { return 0 };
    // A few elements near an end are found without a look.
    let is_few = start >= 0 && (0..100).contains(&(stop.saturating_sub(start))) && stop < 1000;
    if is_few && !look.is_final() {
        return 0;
    }
    let n = |list: ListRef<'_>| {
        let indexes = indexes(start, stop, list.len());
        if is_few && list.entry().allocated_bytes() > WORK_MAX_BYTES {
            let elements = list.elements_from(indexes.start).take(indexes.len());
            return elements.map(n_bytes).sum::<usize>() / BYTES_PER_ELEMENT;
        }
        let bytes = list.entry().allocated_bytes() / BYTES_PER_ELEMENT;
        let n_bytes = bytes as u128 * indexes.len() as u128 / list.len().max(1) as u128;
        indexes.len().max(n_bytes as usize) + list.n_parts() / PARTS_PER_ELEMENT
    };
    look.list(&key, n).unwrap_or(0)
}

/// Skipped pieces of a list that are as much work as one element.
const PARTS_PER_ELEMENT: usize = 8;

/// Returns the indexes from `start` to `stop`, inclusive, of a list of `len` elements.
///
/// Negative ones count from its right end.
fn indexes(start: i64, stop: i64, len: usize) -> Range<usize> {
    let len = len as i64;
    let from_left = |index: i64| if index < 0 { index + len } else { index };
    let start = from_left(start).max(0);
    let behind = from_left(stop).min(len - 1) + 1;
    if start < behind { start as usize..behind as usize } else { 0..0 }
}

fn lindex(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let max = shard.copied_max_bytes();
    let Some(list) = shard.value::<ListType>(&key)? else {
        reply.null();
        return Ok(());
    };
    let index = args.int()?;
    if work::reach(list, index) > max / BYTES_PER_ELEMENT {
        return Err(shard.refuse_read().into());
    }
    match list.get(index) {
        Some(element) if n_bytes(element) > max => return Err(shard.refuse_read().into()),
        Some(element) => write_element(element, reply),
        None => reply.null(),
    }
    Ok(())
}

/// Estimates LINDEX: pieces of the list are skipped, and the element is copied.
fn indexed(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let (Ok(key), Ok(index)) = (args.key(), args.int()) else { return 0 };
    let work = |list: ListRef<'_>| {
        let reach = work::reach(list, index);
        // More work is too much anyway, and a small list has no long elements.
        if reach > WORK_MAX || list.entry().allocated_bytes() < WORK_MAX_BYTES / 8 {
            return reach;
        }
        reach + list.get(index).map_or(0, n_bytes) / BYTES_PER_ELEMENT
    };
    look.list(&key, work).unwrap_or(0)
}

fn lset(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let mut list = shard.value_mut::<ListType>(&key, Event::LSet)?.ok_or(CommandError::NoSuchKey)?;
    let index = args.int()?;
    if !list.set(index, args.next()?) {
        return Err(CommandError::text("ERR index out of range"));
    }
    reply.ok();
    Ok(())
}

fn linsert(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let side = if args.tag("BEFORE") {
        Side::Before
    } else if args.tag("AFTER") {
        Side::After
    } else {
        return Err(CommandError::Syntax);
    };
    let (pivot, text) = (args.next()?, args.next()?);
    let len = match shard.value_mut::<ListType>(&key, Event::LInsert)? {
        Some(mut list) => list.insert(side, pivot, text).map_or(-1, |len| len as i64),
        None => 0,
    };
    reply.integer(len);
    Ok(())
}

fn lrem(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let count = args.int()?;
    let text = args.next()?;
    let from = if count < 0 { ListEnd::Right } else { ListEnd::Left };
    let max = if count == 0 { usize::MAX } else { count.unsigned_abs() as usize };
    let n_removed = match shard.value_mut::<ListType>(&key, Event::LRem)? {
        Some(mut list) => list.remove(text, from, max),
        None => 0,
    };
    reply.integer(n_removed as i64);
    Ok(())
}

fn ltrim(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let (start, stop) = (args.int()?, args.int()?);
    if let Some(mut list) = shard.value_mut::<ListType>(&key, Event::LTrim)? {
        let kept = indexes(start, stop, list.as_ref().len());
        list.trim(kept);
    }
    reply.ok();
    Ok(())
}

fn trimmed(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    /// Elements of whole removed pieces that are as much work as one copied element.
    const TRIMMED_PER_ELEMENT: usize = 8;
    let (Ok(key), Ok(start), Ok(stop)) = (args.key(), args.int(), args.int()) else { return 0 };
    let n_removed = |list: ListRef<'_>| list.len() - indexes(start, stop, list.len()).len();
    look.list(&key, n_removed).unwrap_or(0) / TRIMMED_PER_ELEMENT
}

fn searched(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    let n_compared = LposOptions::read(args.skip(2)).map_or(0, |options| options.n_compared);
    work::searched(look, args).min(n_compared)
}

fn lpos(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let text = args.next()?;
    let options = LposOptions::read(args)?;
    let list = shard.value::<ListType>(&key)?;
    match options.count {
        Some(max) => {
            let found = reply.array_later();
            let mut n = 0;
            options.find(list, text, |index| {
                reply.integer(index as i64);
                n += 1;
                if n == max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            reply.close(found, n);
        }
        None => {
            let mut first = None;
            options.find(list, text, |index| {
                first = Some(index);
                ControlFlow::Break(())
            });
            match first {
                Some(index) => reply.integer(index as i64),
                None => reply.null(),
            }
        }
    }
    Ok(())
}

/// The options of LPOS after the element.
struct LposOptions {
    from: ListEnd,
    /// Number of equal elements to skip.
    n_passed: u64,
    /// Greatest number of results, if an array of them is requested.
    count: Option<usize>,
    /// Greatest number of comparisons.
    n_compared: usize,
}

impl LposOptions {
    fn read(mut args: Args<'_>) -> Result<Self, CommandError> {
        let mut options =
            LposOptions { from: ListEnd::Left, n_passed: 0, count: None, n_compared: usize::MAX };
        while !args.is_empty() {
            if args.tag("RANK") {
                let rank = args.int()?;
                if rank == i64::MIN {
                    return Err(RANK_RANGE);
                }
                options.n_passed = rank.unsigned_abs().checked_sub(1).ok_or(RANK_ZERO)?;
                options.from = if rank < 0 { ListEnd::Right } else { ListEnd::Left };
            } else if args.tag("COUNT") {
                options.count =
                    Some(no_limit_if_zero(at_least(0, &mut args, "ERR COUNT can't be negative")?));
            } else if args.tag("MAXLEN") {
                options.n_compared =
                    no_limit_if_zero(at_least(0, &mut args, "ERR MAXLEN can't be negative")?);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }

    /// Calls `found` with the index of each match after the skipped ones.
    ///
    /// It stops when `found` breaks.
    fn find(&self, list: Option<ListRef<'_>>, text: &[u8], mut found: impl FnMut(usize) -> ControlFlow<()>) {
        let Some(list) = list else { return };
        let mut n_before = 0;
        list.find(text, self.from, self.n_compared, |index| {
            n_before += 1;
            if n_before <= self.n_passed { ControlFlow::Continue(()) } else { found(index) }
        });
    }
}

const RANK_ZERO: CommandError = CommandError::text(
    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... \
     or use negative to start from the end of the list",
);
const RANK_RANGE: CommandError = CommandError::text(
    "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
);

fn no_limit_if_zero(n: usize) -> usize {
    if n == 0 { usize::MAX } else { n }
}

fn lmove(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (source, destination) = (args.key()?, args.key()?);
    let (from, to) = (list_end(&mut args)?, list_end(&mut args)?);
    move_and_reply(call, &source, &destination, from, to, reply)
}

fn rpoplpush(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (source, destination) = (args.key()?, args.key()?);
    move_and_reply(call, &source, &destination, ListEnd::Right, ListEnd::Left, reply)
}

fn move_and_reply(
    call: &mut Call<'_, '_>,
    source: &Key<'_>,
    destination: &Key<'_>,
    from: ListEnd,
    to: ListEnd,
    reply: &mut Reply<'_>,
) -> Outcome {
    match move_element(call, source, destination, from, to)? {
        Some(text) => reply.bulk(&text),
        None => reply.null(),
    }
    Ok(())
}

/// The text of an element that is moved between lists.
type ElementText = SmallVec<[u8; 128]>;

/// Moves an element from an end of one list to an end of another.
///
/// The lists may be the same. Returns the element's text, if there is an element.
fn move_element(
    call: &mut Call<'_, '_>,
    source: &Key<'_>,
    destination: &Key<'_>,
    from: ListEnd,
    to: ListEnd,
) -> Result<Option<ElementText>, CommandError> {
    let mut text = ElementText::new();
    if source.bytes == destination.bytes {
        let list = call.shard_of(source).value_mut::<ListType>(source, push_event(to))?;
        let Some(mut list) = list else { return Ok(None) };
        let element = list.as_ref().outermost(from).expect("a list that exists is not empty");
        element.with_text(|bytes| text.extend_from_slice(bytes));
        list.rotate(from, to, &text);
        list.follow_up(pop_event(from));
        return Ok(Some(text));
    }
    // The destination is checked first, because the source's guard must be the only one. If the source is
    // missing, this error is ignored.
    let refused = call.shard_of(destination).value_mut::<ListType>(destination, push_event(to)).err();
    let Some(list) = call.shard_of(source).value_mut::<ListType>(source, pop_event(from))? else {
        return Ok(None);
    };
    if let Some(error) = refused {
        return Err(error.into());
    }
    let element = list.as_ref().outermost(from).expect("a list that exists is not empty");
    element.with_text(|bytes| text.extend_from_slice(bytes));
    drop(list);
    // As in Redis, the element is added before it is removed, which sets the order of the events.
    push_texts(call.shard_of(destination), destination, to, AbsentList::Make, [&text[..]].into_iter())?;
    if let Some(mut list) = call.shard_of(source).value_mut::<ListType>(source, pop_event(from))? {
        list.pop(from, 1, |_| {});
    }
    Ok(Some(text))
}

fn blpop(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    pop_one_or_wait(call, args, ListEnd::Left, reply)
}

fn brpop(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    pop_one_or_wait(call, args, ListEnd::Right, reply)
}

fn blmove(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (source, destination) = (args.key()?, args.key()?);
    let (from, to) = (list_end(&mut args)?, list_end(&mut args)?);
    let timeout = args.timeout(call.now)?;
    blocking_move(call, &source, &destination, (from, to), timeout, reply)
}

fn brpoplpush(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (source, destination) = (args.key()?, args.key()?);
    let timeout = args.timeout(call.now)?;
    blocking_move(call, &source, &destination, (ListEnd::Right, ListEnd::Left), timeout, reply)
}

fn blocking_move(
    call: &mut Call<'_, '_>,
    source: &Key<'_>,
    destination: &Key<'_>,
    (from, to): (ListEnd, ListEnd),
    timeout: Option<u64>,
    reply: &mut Reply<'_>,
) -> Outcome {
    match move_element(call, source, destination, from, to)? {
        Some(text) => reply.bulk(&text),
        None => {
            let awaited = call.waited_key(source, Awaits::Kind(Kind::List));
            let wait = Wait::new(vec![awaited], timeout, Nothing::Null).with_destination(destination.bytes);
            call.wait_for(wait, reply);
        }
    }
    Ok(())
}

impl PopEnd for ListEnd {
    const KIND: Kind = Kind::List;

    fn read(args: &mut Args<'_>) -> Result<Self, CommandError> {
        list_end(args)
    }

    fn command_name(self) -> &'static [u8] {
        match self {
            ListEnd::Left => b"LPOP",
            ListEnd::Right => b"RPOP",
        }
    }

    fn pop_one(self, shard: &mut Shard, key: &Key<'_>, reply: &mut Reply<'_>) -> Result<bool, StorageError> {
        let Some(mut list) = shard.value_mut::<ListType>(key, pop_event(self))? else { return Ok(false) };
        reply.array(2);
        reply.bulk(key.bytes);
        list.pop(self, 1, |element| write_element(element, reply));
        Ok(true)
    }

    fn pop(
        self,
        shard: &mut Shard,
        key: &Key<'_>,
        count: usize,
        reply: &mut Reply<'_>,
    ) -> Result<bool, StorageError> {
        let Some(mut list) = shard.value_mut::<ListType>(key, pop_event(self))? else { return Ok(false) };
        reply.array(2);
        reply.bulk(key.bytes);
        pop_array(&mut list, self, count, reply);
        Ok(true)
    }
}

/// Takes LEFT or RIGHT.
pub(super) fn list_end(args: &mut Args<'_>) -> Result<ListEnd, CommandError> {
    if args.tag("LEFT") {
        Ok(ListEnd::Left)
    } else if args.tag("RIGHT") {
        Ok(ListEnd::Right)
    } else {
        Err(CommandError::Syntax)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_those_of_redis() {
        for (start, stop, expected) in [
            (0, 2, 0..3),
            (0, -1, 0..5),
            (-3, -1, 2..5),
            (-100, 1, 0..2),
            (3, 100, 3..5),
            (5, 10, 0..0),
            (3, 1, 0..0),
            (-1, -3, 0..0),
            (-9, -8, 0..0),
            (0, -6, 0..0),
            (0, -5, 0..1),
            (i64::MIN, i64::MAX, 0..5),
            (i64::MAX, i64::MIN, 0..0),
        ] {
            assert_eq!(indexes(start, stop, 5), expected, "{start} {stop}");
        }
        assert_eq!(indexes(0, -1, 0), 0..0);
    }
}
