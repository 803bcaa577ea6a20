//! How much work a command is expected to be, before it runs.
//!
//! A row of the table says what its command's work grows with ([`Work`]). A look at the keys under the hold
//! gives a figure, in elements of about 50 ns each. A thread that serves sockets runs nothing that is
//! expected to exceed [`WORK_MAX`], some 200 µs: such a command is offloaded to a heavy-work thread
//! ([`Method`]).
//!
//! **EXEC** is judged as a whole, before its first command runs: what its commands are expected to do adds
//! up. An earlier command may change what a later one finds. So whatever earlier commands of the transaction
//! may have made is counted once more for each later command whose work grows. That is an upper bound, and a
//! small one unless the transaction moves large values about.

use braid_protocol::number::parse_i64;
use braid_storage::{
    BYTES_PER_ELEMENT, Db, HashRef, Key, ListEnd, ListRef, Shard, SortedSetRef, WORK_MAX, WORK_MAX_BYTES,
    coordinator::Held,
    entry::{EntryRef, Kind},
    hash::ShardId,
    n_elements,
    stream::{StreamRef, StreamType},
    time::Millis,
};

use crate::{catalog::Args, client::node::Job, command::collection_args::n_bytes};

/// How a command's work depends on data.
#[derive(Clone, Copy)]
pub enum Work {
    /// Constant, logarithmic, or by the number of the command's arguments.
    Bounded,
    /// It grows with what the keys hold.
    Grows {
        /// Tells how much it is.
        estimate: Estimate,
        /// What becomes of the command if it is too much.
        method: Method,
    },
    /// It grows, but a look before every run would cost more than it saves. The handler itself refuses,
    /// before it changes anything ([`Shard::whole_string`]), and is then run on pinned values. Only EXEC asks
    /// for the estimate.
    Refused {
        /// Tells how much it is.
        estimate: Estimate,
    },
    /// It is constant, but puts a value of this much work under another key.
    Carries {
        /// Tells how much work the value is to later commands of the transaction.
        estimate: Estimate,
    },
    /// It is constant, and later commands of the transaction are about the database that it names.
    Selects,
}

/// Tells the expected work of a command from its arguments and its keys. Arguments that are wrong are no
/// work.
pub type Estimate = fn(&mut Look<'_, '_>, Args<'_>) -> usize;

/// How a command that is too much work for a thread that serves sockets runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// On values that were shared under the hold, with nothing held: see [`crate::run::offload`].
    Pinned,
    /// On a heavy-work thread that holds the shards: what changes a large value in place.
    Held,
}

impl Work {
    /// Work that is offloaded onto pinned values.
    pub(super) const fn pinned(estimate: Estimate) -> Self {
        Work::Grows { estimate, method: Method::Pinned }
    }

    /// Work that is offloaded under the hold.
    pub(super) const fn held(estimate: Estimate) -> Self {
        Work::Grows { estimate, method: Method::Held }
    }
}

/// The shards that an estimate may look at.
enum Shards<'a, 'h> {
    One(&'a Shard),
    Held(&'a mut Held<'h, Job>),
}

/// A look at keys under the hold: it counts nothing, is no use of a key, and removes nothing.
pub struct Look<'a, 'h> {
    shards: Shards<'a, 'h>,
    /// The database of the keys.
    pub db: Db,
    now: Millis,
    /// Nothing is left to the handler to refuse: it runs in the middle of a transaction.
    is_final: bool,
}

impl<'a, 'h> Look<'a, 'h> {
    /// A look at one shard, on which a command has [begun](Shard::begin).
    pub fn at_shard(shard: &'a Shard) -> Self {
        Look { db: shard.db(), now: shard.now(), shards: Shards::One(shard), is_final: false }
    }

    /// A look at all shards that are held.
    pub fn at_held(held: &'a mut Held<'h, Job>, db: Db, now: Millis) -> Self {
        Look { shards: Shards::Held(held), db, now, is_final: false }
    }

    /// Has estimates leave nothing to handlers.
    pub fn be_final(&mut self) {
        self.is_final = true;
    }

    /// Whether they must not.
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

    /// A value, to be measured.
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
        self.value(key, |entry, now| braid_storage::ValueRef::<StreamType>::of(entry, now).ok().map(measure))
            .flatten()
    }
}

/// The number of elements of a value; a string is measured by its bytes.
fn len(entry: EntryRef<'_>) -> usize {
    n_elements(entry).unwrap_or_else(|| entry.bytes().map_or(0, <[u8]>::len) / BYTES_PER_ELEMENT)
}

/// How much it is to read a whole value: by its elements, or by its bytes if those are long.
fn weight(entry: EntryRef<'_>) -> usize {
    let len = len(entry);
    if entry.kind() == Kind::String { len } else { len.max(entry.allocated_bytes() / BYTES_PER_ELEMENT) }
}

/// The share of a value's weight that `n` of its elements are.
fn share(entry: EntryRef<'_>, n: usize) -> usize {
    let len = len(entry).max(1);
    let n = n.min(len);
    (weight(entry) as u128 * n as u128 / len as u128) as usize
}

/// Everything that is held, or as good as.
pub(super) fn everything(_: &mut Look<'_, '_>, _: Args<'_>) -> usize {
    usize::MAX
}

/// The first key's whole value.
pub(super) fn whole(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    args.key().map_or(0, |key| look.weight(&key))
}

/// The whole value, if more than one argument follows the key: an option may ask for it.
pub(super) fn whole_with_options(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    if args.remaining() > 2 { whole(look, args) } else { 0 }
}

/// The first key's value is copied, but a string is shared.
pub(super) fn copied(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    look.value(&key, |entry, _| if entry.kind() == Kind::String { 0 } else { weight(entry) }).unwrap_or(0)
}

/// The first key's value is written in another form, or read from it.
pub(super) fn dumped(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    look.value(&key, |entry, _| weight(entry).max(entry.allocated_bytes() / DUMPED_BYTES_PER_ELEMENT))
        .unwrap_or(0)
}

/// A payload becomes a value.
pub(super) fn restored(_: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    args.skip(2).peek().map_or(0, <[u8]>::len) / DUMPED_BYTES_PER_ELEMENT
}

/// So many bytes are as much work as an element, if there is a checksum to be computed and texts to be
/// packed.
const DUMPED_BYTES_PER_ELEMENT: usize = 64;

/// The values of the next `n` keys together.
fn sum(look: &mut Look<'_, '_>, mut args: Args<'_>, n: usize) -> usize {
    (0..n).map_while(|_| args.key().ok()).map(|key| look.weight(&key)).fold(0, usize::saturating_add)
}

/// The smallest value of the next `n` keys, looked for in each of the others.
fn least(look: &mut Look<'_, '_>, mut args: Args<'_>, n: usize) -> usize {
    let least = (0..n).map_while(|_| args.key().ok()).map(|key| look.weight(&key)).min().unwrap_or(0);
    least.saturating_mul(n)
}

/// All keys' values.
pub(super) fn all_keys(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    sum(look, args, args.remaining())
}

/// All keys' values but for the destination's.
pub(super) fn all_sources(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    all_keys(look, args.skip(1))
}

/// What all keys share.
pub(super) fn least_of_keys(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    least(look, args, args.remaining())
}

/// What all keys but the destination share.
pub(super) fn least_of_sources(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    least_of_keys(look, args.skip(1))
}

/// The number of keys that comes next, if there are so many arguments.
fn n_keys(args: &mut Args<'_>) -> usize {
    let n = args.int().ok().and_then(|n| usize::try_from(n).ok());
    n.filter(|&n| n <= args.remaining()).unwrap_or(0)
}

/// The values of as many keys as the first argument says.
pub(super) fn counted_keys(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let n = n_keys(&mut args);
    sum(look, args, n)
}

/// The same behind a destination.
pub(super) fn counted_sources(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    counted_keys(look, args.skip(1))
}

/// What as many keys share as the first argument says.
pub(super) fn least_of_counted_keys(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let n = n_keys(&mut args);
    least(look, args, n)
}

/// The same behind a destination.
pub(super) fn least_of_counted_sources(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    least_of_counted_keys(look, args.skip(1))
}

/// One element that is taken from a value. At an end it is known which one that will be, and it is as long as
/// it is; a random one is as long as the others.
fn one(entry: EntryRef<'_>, now: Millis) -> usize {
    // Most values are shorter than the element would have to be.
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

/// So many elements that are taken from a value.
fn several(entry: EntryRef<'_>, now: Millis, n: usize) -> usize {
    match n {
        0 => 0,
        1 => one(entry, now),
        _ => share(entry, n).max(one(entry, now)),
    }
}

/// As many elements of the first key's value as the argument behind it says, one if there is none.
pub(super) fn taken(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    let n = args.peek().map_or(Some(1), |n| parse_i64(n).and_then(|n| usize::try_from(n).ok()));
    look.value(&key, |entry, now| several(entry, now, n.unwrap_or(0))).unwrap_or(0)
}

/// One element of the first key's value.
pub(super) fn one_taken(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    args.key().ok().and_then(|key| look.value(&key, one)).unwrap_or(0)
}

/// The longest value among the next `n` keys, if `count` elements are taken from one of them.
fn longest_taken(look: &mut Look<'_, '_>, mut args: Args<'_>, n: usize, count: usize) -> usize {
    let taken = |key: Key<'_>| look.value(&key, |entry, now| several(entry, now, count)).unwrap_or(0);
    (0..n).map_while(|_| args.key().ok()).map(taken).max().unwrap_or(0)
}

/// One element of any key, which all arguments are but for the timeout at the end.
pub(super) fn one_taken_from_any_in_time(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    longest_taken(look, args, args.remaining().saturating_sub(1), 1)
}

/// As many elements as COUNT says, one without it, of any of as many keys as the first argument says.
pub(super) fn taken_from_any(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let n = n_keys(&mut args);
    let mut options = args.skip(n + 1);
    let count = match options.tag("COUNT") {
        true => options.int().ok().and_then(|count| usize::try_from(count).ok()).unwrap_or(0),
        false => 1,
    };
    longest_taken(look, args, n, count)
}

/// The same behind a timeout.
pub(super) fn taken_from_any_in_time(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    taken_from_any(look, args.skip(1))
}

/// Random elements: as many as the argument behind the key says, negative if they may come again.
pub(super) fn drawn(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    let Some(n) = args.peek() else { return look.value(&key, |entry, _| share(entry, 1)).unwrap_or(0) };
    let Some(n) = parse_i64(n) else { return 0 };
    let count = usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX);
    if n < 0 {
        return if look.entry(&key).is_some() { count } else { 0 };
    }
    // To choose many, all are passed over.
    let len = look.len(&key);
    let n_visited = if count > len / 3 { len } else { count };
    look.value(&key, |entry, _| share(entry, n_visited)).unwrap_or(0)
}

/// The same of a hash, where fields that have expired are passed over one by one.
pub(super) fn drawn_fields(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    drawn(look, args).max(expired_fields(look, args))
}

/// The fields of a hash, if some of them may have expired.
pub(super) fn expired_fields(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    if !look.shard(key.routed.shard).is_some_and(Shard::has_field_deadlines) {
        return 0;
    }
    look.hash(&key, |hash| if hash.has_expired_fields() { hash.n_stored() } else { 0 }).unwrap_or(0)
}

/// As many elements as COUNT says, in HSCAN and its kin.
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

/// Elements of a list are compared one after the other. Four are as much work as one that is copied.
pub(super) fn searched(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    args.key().map_or(0, |key| look.weight(&key)) / 4
}

/// How much it is to pass over the pieces of a list to an index.
pub(super) fn reach(list: ListRef<'_>, index: i64) -> usize {
    if index.unsigned_abs() > 1000 { list.n_parts() / 8 } else { 0 }
}

/// The pieces of a list are passed over, to an index. Near its ends no look is needed.
pub(super) fn reached(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    match args.peek().and_then(parse_i64) {
        Some(index) if index.unsigned_abs() > 1000 => look.list(&key, |list| reach(list, index)).unwrap_or(0),
        _ => 0,
    }
}

/// The bytes of a string from a start to an end.
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

/// The bits of a string are passed over.
pub(super) fn bits(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    whole(look, args) / 2
}

/// Strings are combined bit by bit; the first argument says how.
pub(super) fn combined_strings(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    all_keys(look, args.skip(2))
}

/// Each byte of a string is compared with each of another one.
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

/// HyperLogLogs are merged, if there are several.
pub(super) fn merged(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    /// A dense one has 16,384 registers.
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

/// A string is changed so that it is at least as long as `wanted` says, which is told its length. What is new
/// is zeroed. The string is copied if it has no room for that, or if somebody else has it, too.
pub(super) fn lengthened(look: &mut Look<'_, '_>, key: &Key<'_>, wanted: impl Fn(usize) -> usize) -> usize {
    let measured = look.value(key, |entry, _| {
        let len = entry.bytes().map_or(0, <[u8]>::len);
        let wanted = wanted(len).max(len);
        let is_copied = entry.is_blob() && (entry.is_pinned() || wanted > entry.allocated_bytes());
        wanted - len + if is_copied { len } else { 0 }
    });
    measured.unwrap_or_else(|| wanted(0)) / BYTES_PER_ELEMENT
}

/// The elements of a value are sorted.
pub(super) fn sorted(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    whole(look, args).saturating_mul(2)
}
