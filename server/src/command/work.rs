//! The expected work of a command, estimated before it runs.
//!
//! A row of the table names the growth of its command's work ([`Work`]). A look at the keys under the hold
//! yields an estimate, in elements of about 50 ns each. An I/O thread runs no command whose estimate exceeds
//! [`WORK_MAX`], about 200 µs. Such a command is offloaded to a heavy-work thread ([`Method`]).
//!
//! **EXEC** is estimated as a whole before its first command runs: the estimates of its commands are added.
//! An earlier command may change the keys of a later one. So for each later command whose work grows, the
//! possible output of earlier commands is added once more. That is an upper bound, and a small one unless the
//! transaction moves large values.

use braid_protocol::number::parse_i64;
use braid_storage::{
    entry::{EntryRef, Kind, db::Db, key::Key, time::Millis},
    keyspace::shard::Shard,
    sync::{
        coordinator::Held,
        work::{BYTES_PER_ELEMENT, WORK_MAX, WORK_MAX_BYTES},
    },
    table::hash::ShardId,
    types::{
        hashes::HashRef,
        kinds::n_elements,
        list::{ListEnd, ListRef},
        sorted_set::SortedSetRef,
        stream::{StreamRef, StreamType},
        value::ValueRef,
    },
};

use crate::{catalog::Args, client::node::Job, command::arguments::collection_args::n_bytes};

/// The growth of a command's work with the data.
#[derive(Clone, Copy)]
pub enum Work {
    /// Constant, logarithmic, or proportional to the number of arguments.
    Bounded,
    /// Growing with the values of the keys.
    Grows {
        /// Estimates the work.
        estimate: Estimate,
        /// The way to run the command if its work is too large.
        method: Method,
    },
    /// Growing, but an estimate before every run would cost more than it saves.
    ///
    /// The handler itself refuses before it changes anything ([`Shard::whole_string`]), and then runs on
    /// pinned values. Only EXEC asks for the estimate.
    Refused {
        /// Estimates the work.
        estimate: Estimate,
    },
    /// Constant, but it stores a value that may be much work for later commands.
    Carries {
        /// Estimates the work of the value for later commands of the transaction.
        estimate: Estimate,
    },
    /// Constant, and it selects the database for later commands of the transaction.
    Selects,
}

/// Estimates the work of a command from its arguments and keys. Invalid arguments are no work.
pub type Estimate = fn(&mut Look<'_, '_>, Args<'_>) -> usize;

/// The way to run a command that is too much work for an I/O thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// On values that were shared under the hold, with nothing held: see [`crate::run::offload`].
    Pinned,
    /// On a heavy-work thread that holds the shards.
    ///
    /// This is for changes of a large value in place.
    Held,
}

impl Work {
    /// Declares work that is offloaded and runs on pinned values.
    pub(super) const fn pinned(estimate: Estimate) -> Self {
        Work::Grows { estimate, method: Method::Pinned }
    }

    /// Declares work that is offloaded and runs under the hold.
    pub(super) const fn held(estimate: Estimate) -> Self {
        Work::Grows { estimate, method: Method::Held }
    }
}

/// The shards that an estimate may read.
enum Shards<'a, 'h> {
    One(&'a Shard),
    Held(&'a mut Held<'h, Job>),
}

/// Access to keys under the hold, for estimates.
///
/// It changes no statistics, does not count as a use of the key, and removes no expired key.
pub struct Look<'a, 'h> {
    shards: Shards<'a, 'h>,
    /// The database of the keys.
    pub db: Db,
    now: Millis,
    /// Whether handlers cannot refuse, because they run in the middle of a transaction.
    is_final: bool,
}

impl<'a, 'h> Look<'a, 'h> {
    /// Creates a look at one shard, on which a command has [begun](Shard::begin).
    pub fn at_shard(shard: &'a Shard) -> Self {
        Look { db: shard.db(), now: shard.now(), shards: Shards::One(shard), is_final: false }
    }

    /// Creates a look at all held shards.
    pub fn at_held(held: &'a mut Held<'h, Job>, db: Db, now: Millis) -> Self {
        Look { shards: Shards::Held(held), db, now, is_final: false }
    }

    /// Makes estimates complete, because handlers cannot refuse.
    pub fn be_final(&mut self) {
        self.is_final = true;
    }

    /// Whether estimates must be complete.
    pub(super) fn is_final(&self) -> bool {
        self.is_final
    }

    fn shard(&mut self, id: ShardId) -> Option<&Shard> {
        match &mut self.shards {
            Shards::One(shard) => Some(shard),
            Shards::Held(held) if held.has(id) => Some(held.shard(id)),
            Shards::Held(_) => None,
        }
    }

    fn entry(&mut self, key: &Key<'_>) -> Option<EntryRef<'_>> {
        let db = self.db;
        self.shard(key.routed.shard)?.glance(db, key)
    }

    /// Measures the value of a key, if there is one.
    fn value<R>(&mut self, key: &Key<'_>, measure: impl FnOnce(EntryRef<'_>, Millis) -> R) -> Option<R> {
        let now = self.now;
        self.entry(key).map(|entry| measure(entry, now))
    }

    fn len(&mut self, key: &Key<'_>) -> usize {
        self.value(key, |entry, _| len(entry)).unwrap_or(0)
    }

    fn weight(&mut self, key: &Key<'_>) -> usize {
        self.value(key, |entry, _| weight(entry)).unwrap_or(0)
    }

    pub(super) fn list<R>(&mut self, key: &Key<'_>, measure: impl FnOnce(ListRef<'_>) -> R) -> Option<R> {
        self.value(key, |entry, now| ListRef::of(entry, now).ok().map(measure)).flatten()
    }

    pub(super) fn hash<R>(&mut self, key: &Key<'_>, measure: impl FnOnce(HashRef<'_>) -> R) -> Option<R> {
        self.value(key, |entry, now| HashRef::of(entry, now).ok().map(measure)).flatten()
    }

    pub(super) fn sorted_set<R>(
        &mut self,
        key: &Key<'_>,
        measure: impl FnOnce(SortedSetRef<'_>) -> R,
    ) -> Option<R> {
        self.value(key, |entry, now| SortedSetRef::of(entry, now).ok().map(measure)).flatten()
    }

    pub(super) fn stream<R>(&mut self, key: &Key<'_>, measure: impl FnOnce(StreamRef<'_>) -> R) -> Option<R> {
        self.value(key, |entry, now| ValueRef::<StreamType>::of(entry, now).ok().map(measure)).flatten()
    }
}

/// Returns the number of elements of a value.
///
/// For a string it returns its bytes in elements.
fn len(entry: EntryRef<'_>) -> usize {
    n_elements(entry).unwrap_or_else(|| entry.bytes().map_or(0, <[u8]>::len) / BYTES_PER_ELEMENT)
}

/// Returns the work of reading a whole value.
///
/// That is the number of its elements, or its bytes if the elements are long.
fn weight(entry: EntryRef<'_>) -> usize {
    let len = len(entry);
    if entry.kind() == Kind::String { len } else { len.max(entry.allocated_bytes() / BYTES_PER_ELEMENT) }
}

/// Returns the work of reading `n` elements of a value.
fn share(entry: EntryRef<'_>, n: usize) -> usize {
    let len = len(entry).max(1);
    let n = n.min(len);
    (weight(entry) as u128 * n as u128 / len as u128) as usize
}

/// Estimates work on all held shards, which is always too much.
pub(super) fn everything(_: &mut Look<'_, '_>, _: Args<'_>) -> usize {
    usize::MAX
}

/// Estimates work on the whole value of the first key.
pub(super) fn whole(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    args.key().map_or(0, |key| look.weight(&key))
}

/// Estimates work on the whole value if more than one argument follows the key.
///
/// An option may then need the value.
pub(super) fn whole_with_options(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    if args.remaining() > 2 { whole(look, args) } else { 0 }
}

/// Estimates a copy of the first key's value. A string is shared instead.
pub(super) fn copied(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    look.value(&key, |entry, _| if entry.kind() == Kind::String { 0 } else { weight(entry) }).unwrap_or(0)
}

/// Estimates the conversion of the first key's value to or from another format.
pub(super) fn dumped(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    look.value(&key, |entry, _| weight(entry).max(entry.allocated_bytes() / DUMPED_BYTES_PER_ELEMENT))
        .unwrap_or(0)
}

/// Estimates the conversion of a payload into a value.
pub(super) fn restored(_: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    args.skip(2).peek().map_or(0, <[u8]>::len) / DUMPED_BYTES_PER_ELEMENT
}

/// Bytes that are as much work as one element in a dump.
///
/// This includes the checksum and the compression of texts.
const DUMPED_BYTES_PER_ELEMENT: usize = 64;

/// Returns the work on the values of the next `n` keys together.
fn sum(look: &mut Look<'_, '_>, mut args: Args<'_>, n: usize) -> usize {
    (0..n).map_while(|_| args.key().ok()).map(|key| look.weight(&key)).fold(0, usize::saturating_add)
}

/// Returns the work of an intersection of the next `n` values.
///
/// Each element of the smallest one is looked up in the others.
fn least(look: &mut Look<'_, '_>, mut args: Args<'_>, n: usize) -> usize {
    let least = (0..n).map_while(|_| args.key().ok()).map(|key| look.weight(&key)).min().unwrap_or(0);
    least.saturating_mul(n)
}

/// Estimates work on the values of all keys.
pub(super) fn all_keys(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    sum(look, args, args.remaining())
}

/// Estimates work on the values of all keys except the destination, which comes first.
pub(super) fn all_sources(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    all_keys(look, args.skip(1))
}

/// Estimates the intersection of all keys.
pub(super) fn least_of_keys(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    least(look, args, args.remaining())
}

/// Estimates the intersection of all keys except the destination, which comes first.
pub(super) fn least_of_sources(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    least_of_keys(look, args.skip(1))
}

/// Takes the number of keys, or 0 if fewer arguments follow.
fn n_keys(args: &mut Args<'_>) -> usize {
    let n = args.int().ok().and_then(|n| usize::try_from(n).ok());
    n.filter(|&n| n <= args.remaining()).unwrap_or(0)
}

/// Estimates work on the values of counted keys.
pub(super) fn counted_keys(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let n = n_keys(&mut args);
    sum(look, args, n)
}

/// Estimates work on the values of counted keys after a destination.
pub(super) fn counted_sources(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    counted_keys(look, args.skip(1))
}

/// Estimates the intersection of counted keys.
pub(super) fn least_of_counted_keys(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let n = n_keys(&mut args);
    least(look, args, n)
}

/// Estimates the intersection of counted keys after a destination.
pub(super) fn least_of_counted_sources(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    least_of_counted_keys(look, args.skip(1))
}

/// Returns the work of removing one element from a value.
///
/// The element at an end is known, and so is its length. A random element is assumed to have the average
/// length.
fn one(entry: EntryRef<'_>, now: Millis) -> usize {
    // An element within most values is too short to matter.
    if entry.allocated_bytes() <= WORK_MAX_BYTES {
        return 0;
    }
    let n_bytes = match entry.kind() {
        Kind::List => ListRef::of(entry, now).map_or(0, |list| {
            let ends = [ListEnd::Left, ListEnd::Right].map(|end| list.outermost(end).map_or(0, n_bytes));
            ends[0].max(ends[1])
        }),
        Kind::SortedSet => SortedSetRef::of(entry, now).map_or(0, |set| {
            let mut members = set.iter(0..set.len());
            let ends = [members.next(), members.next_back()];
            ends.into_iter().flatten().map(|scored| n_bytes(scored.member)).max().unwrap_or(0)
        }),
        _ => return share(entry, 1),
    };
    n_bytes / BYTES_PER_ELEMENT
}

/// Returns the work of removing `n` elements from a value.
fn several(entry: EntryRef<'_>, now: Millis, n: usize) -> usize {
    match n {
        0 => 0,
        1 => one(entry, now),
        _ => share(entry, n).max(one(entry, now)),
    }
}

/// Estimates removing elements of the first key's value. Their number is the next argument, or 1.
pub(super) fn taken(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    let n = args.peek().map_or(Some(1), |n| parse_i64(n).and_then(|n| usize::try_from(n).ok()));
    look.value(&key, |entry, now| several(entry, now, n.unwrap_or(0))).unwrap_or(0)
}

/// Estimates moving elements from a list to another. `n_of` returns their number for the list's length.
pub(super) fn moved(look: &mut Look<'_, '_>, key: &Key<'_>, n_of: impl Fn(usize) -> usize) -> usize {
    let n = look.list(key, |list| n_of(list.len())).unwrap_or(0);
    look.value(key, |entry, now| several(entry, now, n)).unwrap_or(0).saturating_mul(2)
}

/// Estimates removing one element of the first key's value.
pub(super) fn one_taken(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    args.key().ok().and_then(|key| look.value(&key, one)).unwrap_or(0)
}

/// Returns the greatest work of removing `count` elements from one of the next `n` keys.
fn longest_taken(look: &mut Look<'_, '_>, mut args: Args<'_>, n: usize, count: usize) -> usize {
    let taken = |key: Key<'_>| look.value(&key, |entry, now| several(entry, now, count)).unwrap_or(0);
    (0..n).map_while(|_| args.key().ok()).map(taken).max().unwrap_or(0)
}

/// Estimates removing one element from one of the keys, which a timeout follows.
pub(super) fn one_taken_from_any_in_time(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    longest_taken(look, args, args.remaining().saturating_sub(1), 1)
}

/// Estimates removing COUNT elements, or one without it, from one of the counted keys.
pub(super) fn taken_from_any(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let n = n_keys(&mut args);
    let mut options = args.skip(n + 1);
    let count = match options.tag("COUNT") {
        true => options.int().ok().and_then(|count| usize::try_from(count).ok()).unwrap_or(0),
        false => 1,
    };
    longest_taken(look, args, n, count)
}

/// Estimates the same as [`taken_from_any`] after a timeout.
pub(super) fn taken_from_any_in_time(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    taken_from_any(look, args.skip(1))
}

/// Estimates random elements. The argument after the key is their number, negative if they may repeat.
pub(super) fn drawn(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    let Some(n) = args.peek() else { return look.value(&key, |entry, _| share(entry, 1)).unwrap_or(0) };
    let Some(n) = parse_i64(n) else { return 0 };
    let count = usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX);
    if n < 0 {
        return if look.entry(&key).is_some() { count } else { 0 };
    }
    // To choose more than a third, all elements are visited.
    let len = look.len(&key);
    let n_visited = if count > len / 3 { len } else { count };
    look.value(&key, |entry, _| share(entry, n_visited)).unwrap_or(0)
}

/// Estimates random fields of a hash, in which expired fields are skipped one by one.
pub(super) fn drawn_fields(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    drawn(look, args).max(expired_fields(look, args))
}

/// Estimates a visit to all fields of a hash with possibly expired fields.
///
/// The estimate is 0 if no field can have expired.
pub(super) fn expired_fields(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    if !look.shard(key.routed.shard).is_some_and(Shard::has_field_deadlines) {
        return 0;
    }
    look.hash(&key, |hash| if hash.has_expired_fields() { hash.n_stored() } else { 0 }).unwrap_or(0)
}

/// Estimates COUNT elements, for HSCAN and similar commands.
pub(super) fn scanned(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    let mut count = 0;
    while let Ok(word) = args.next() {
        if word.eq_ignore_ascii_case(b"count") {
            count = args.peek().and_then(parse_i64).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        }
    }
    if count < WORK_MAX / 8 { 0 } else { look.value(&key, |entry, _| share(entry, count)).unwrap_or(0) }
}

/// Estimates a search of a list. Four comparisons are as much work as a copy of one element.
pub(super) fn searched(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    args.key().map_or(0, |key| look.weight(&key)) / 4
}

/// Returns the work of skipping the pieces of a list up to an index.
pub(super) fn reach(list: ListRef<'_>, index: i64) -> usize {
    if index.unsigned_abs() > 1000 { list.n_parts() / 8 } else { 0 }
}

/// Estimates the way to an index of a list. Indexes near the ends need no look.
pub(super) fn reached(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    match args.peek().and_then(parse_i64) {
        Some(index) if index.unsigned_abs() > 1000 => look.list(&key, |list| reach(list, index)).unwrap_or(0),
        _ => 0,
    }
}

/// Estimates a range of a string's bytes.
pub(super) fn part_of_string(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    let (Ok(start), Ok(end)) = (args.int(), args.int()) else { return 0 };
    if start >= 0 && end >= 0 {
        let n_bytes = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
        if n_bytes < WORK_MAX_BYTES / 8 {
            return n_bytes / BYTES_PER_ELEMENT;
        }
    }
    let len = look.value(&key, |entry, _| entry.bytes().map_or(0, <[u8]>::len)).unwrap_or(0);
    let from_start = |at: i64| if at < 0 { (at + len as i64).max(0) } else { at }.min(len as i64);
    usize::try_from(from_start(end) - from_start(start)).unwrap_or(0) / BYTES_PER_ELEMENT
}

/// Estimates reading all bits of a string.
pub(super) fn bits(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    whole(look, args) / 2
}

/// Estimates a bitwise operation on strings. The first argument names the operation.
pub(super) fn combined_strings(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    all_keys(look, args.skip(2))
}

/// Estimates the comparison of each byte of one string with each byte of another.
pub(super) fn compared_strings(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    /// Pairs of bytes that are as much work as an element.
    const PAIRS_PER_ELEMENT: usize = 4;
    let (Ok(a), Ok(b)) = (args.key(), args.key()) else { return 0 };
    let n_bytes = |look: &mut Look<'_, '_>, key: &Key<'_>| {
        look.value(key, |entry, _| entry.bytes().map_or(0, <[u8]>::len)).unwrap_or(0)
    };
    let (a, b) = (n_bytes(look, &a), n_bytes(look, &b));
    (a.saturating_mul(b) / PAIRS_PER_ELEMENT).max((a + b) / BYTES_PER_ELEMENT)
}

/// Estimates merging HyperLogLogs, if there are several.
pub(super) fn merged(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    /// Bytes that are as much work as one element. A dense HyperLogLog has 16,384 registers.
    const BYTES_PER_ELEMENT: usize = 48;
    if args.remaining() < 2 {
        return 0;
    }
    let mut total = 0usize;
    while let Ok(key) = args.key() {
        let n_bytes = look.value(&key, |entry, _| entry.bytes().map_or(0, <[u8]>::len)).unwrap_or(0);
        total = total.saturating_add(n_bytes.min(1 << 16) / BYTES_PER_ELEMENT);
    }
    total
}

/// Returns the work of a change that may lengthen a string.
///
/// The string becomes at least as long as `wanted` returns for its length.
///
/// New bytes are zeroed. The string is copied if it lacks the room, or if it is pinned.
pub(super) fn lengthened(look: &mut Look<'_, '_>, key: &Key<'_>, wanted: impl Fn(usize) -> usize) -> usize {
    let measured = look.value(key, |entry, _| {
        let len = entry.bytes().map_or(0, <[u8]>::len);
        let wanted = wanted(len).max(len);
        let is_copied = entry.is_blob() && (entry.is_pinned() || wanted > entry.allocated_bytes());
        wanted - len + if is_copied { len } else { 0 }
    });
    measured.unwrap_or_else(|| wanted(0)) / BYTES_PER_ELEMENT
}

/// Estimates sorting the elements of a value.
pub(super) fn sorted(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    whole(look, args).saturating_mul(2)
}
