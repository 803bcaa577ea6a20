//! The changes that fill the sink, and those that do not.

use std::sync::Arc;

use super::*;
use crate::{
    entry::key::WatchedKey,
    keyspace::{Keyspace, shard::expiry::ExpiryCursor},
    observers::{
        ledger::{Change, Effect, Hearer},
        read_tracking::Reader,
        waiters::{Awaits, Reach, Ticket},
    },
    table::hash::{HashTags, KeyHasher, Routed},
    types::{
        hashes::HashType,
        list::{ListEnd, ListType},
        set::SetType,
        stream::{NewId, StreamType},
    },
};

struct Fixture {
    keyspace: Keyspace,
    shard: Shard,
}

impl Fixture {
    /// Makes a shard without observers.
    fn unobserved() -> Self {
        let router = Router::new(KeyHasher::with_key(1, 2), 0, HashTags::Ignored);
        let (keyspace, mut shards) = Keyspace::new(router, 2);
        let mut shard = shards.pop().expect("one shard");
        shard.begin(Db(0), Millis(1_000));
        Self { keyspace, shard }
    }

    /// Makes a shard on which a hearer counts all changes.
    fn counted() -> Self {
        let mut bench = Self::unobserved();
        bench.shard.hear_all(Hearer::new(0), true);
        bench
    }

    fn key(&self, bytes: &'static [u8]) -> Key<'static> {
        let routed: Routed = self.keyspace.router().route(bytes);
        Key { bytes, routed }
    }

    fn set(&mut self, bytes: &'static [u8]) {
        let key = self.key(bytes);
        self.shard.put_string(&key, b"value", Expiry::Clear, Event::Set);
    }

    fn set_until(&mut self, bytes: &'static [u8], millis: u64) {
        let key = self.key(bytes);
        self.shard.put_string(&key, b"value", Expiry::At(Deadline::at(millis)), Event::Set);
    }

    fn push(&mut self, bytes: &'static [u8], text: &[u8]) {
        let key = self.key(bytes);
        let mut list = self.shard.value_or_create::<ListType>(&key, Event::RPush).expect("a list");
        list.push(ListEnd::Right, [text].into_iter());
    }

    fn pop(&mut self, bytes: &'static [u8]) {
        let key = self.key(bytes);
        let list = self.shard.value_mut::<ListType>(&key, Event::LPop).expect("a list");
        list.expect("it is there").pop(ListEnd::Left, 1, |_| {});
    }

    fn wait_for(&mut self, db: Db, bytes: &[u8]) {
        let now = self.shard.now();
        self.shard.begin(db, now);
        self.shard.enter_line(bytes, (Awaits::Kind(Kind::List), Reach::Own), Ticket::next(), Arc::new(()));
        self.shard.begin(Db(0), now);
    }

    /// The events, in words.
    fn events(&mut self) -> Vec<String> {
        let changes = taken(&mut self.shard);
        assert!(changes.is_sorted_by_key(|change| change.order));
        let told = |change: Change| {
            let of = change.key.map_or("*".into(), |key| String::from_utf8_lossy(&key).into_owned());
            format!("{} {of}", change.event.name())
        };
        changes.into_iter().map(told).collect()
    }
}

/// The changes on a shard since the last call.
fn taken(shard: &mut Shard) -> Vec<Change> {
    let mut changes = Vec::new();
    shard.take_changes(&mut changes);
    changes
}

#[test]
fn each_write_is_told_once_and_in_order() {
    let mut bench = Fixture::counted();
    bench.set(b"s");
    bench.set(b"s");
    let (s, t) = (bench.key(b"s"), bench.key(b"t"));
    assert!(bench.shard.set_deadline(&s, Some(Deadline::at(9_000)), Event::Expire));
    assert!(bench.shard.set_deadline(&s, None, Event::Persist));
    bench.shard.string_mut(&s, Event::Append).expect("a string").expect("it is there").append(b"x");
    bench.shard.string_or_create(&t, Event::SetRange).expect("a string").write_at(2, b"x");
    let entry = bench.shard.take(&s, Event::RenameFrom).expect("it is there");
    bench.shard.put(&t, entry.with_key(t.bytes), Event::RenameTo);
    assert!(bench.shard.remove(&t, Event::Del));
    assert_eq!(
        bench.events(),
        [
            "new s",
            "set s",
            "overwritten s",
            "set s",
            "expire s",
            "persist s",
            "append s",
            "new t",
            "setrange t",
            "rename_from s",
            "overwritten t",
            "rename_to t",
            "del t"
        ]
    );
    assert!(!bench.shard.has_changes());
}

#[test]
fn nothing_is_told_where_nobody_listens() {
    let mut bench = Fixture::unobserved();
    bench.set(b"s");
    // A watcher needs the stamp only, which moves at once.
    let s = bench.key(b"s");
    let stamp = bench.shard.watch(&s, &std::sync::Arc::default());
    // Others care for other keys, or for the same key of another database.
    bench.wait_for(Db(0), b"other");
    bench.wait_for(Db(1), b"s");
    bench.shard.track(b"another", Reader { listener: 0, number: 1 });
    bench.set(b"s");
    assert!(!bench.shard.has_changes());
    let watched = WatchedKey { db: Db(0), bytes: s.bytes.into(), routed: s.routed };
    assert!(bench.shard.is_written_since(&watched, stamp));
}

#[test]
fn a_guard_that_changes_nothing_tells_nothing() {
    let mut bench = Fixture::counted();
    bench.push(b"l", b"a");
    bench.events();
    let (l, missing) = (bench.key(b"l"), bench.key(b"missing"));
    let mut list = bench.shard.value_mut::<ListType>(&l, Event::LRem).expect("a list").expect("it is there");
    assert_eq!(list.remove(b"b", ListEnd::Left, 9), 0);
    drop(list);
    // It goes again, and nobody has seen it.
    drop(bench.shard.value_or_create::<SetType>(&missing, Event::SAdd).expect("a set"));
    assert!(!bench.shard.remove(&missing, Event::Del));
    assert!(!bench.shard.set_deadline(&missing, None, Event::Persist));
    assert!(bench.shard.value_mut::<SetType>(&l, Event::SAdd).is_err());
    assert!(bench.events().is_empty());
}

#[test]
fn what_is_left_empty_is_deleted_and_told_so() {
    let mut bench = Fixture::counted();
    bench.push(b"l", b"a");
    bench.push(b"l", b"b");
    bench.pop(b"l");
    bench.pop(b"l");
    assert_eq!(bench.events(), ["new l", "rpush l", "rpush l", "lpop l", "lpop l", "del l"]);
}

#[test]
fn a_value_in_place_of_another_is_not_new() {
    let mut bench = Fixture::counted();
    bench.set(b"k");
    let (k, l) = (bench.key(b"k"), bench.key(b"l"));
    for key in [&k, &l] {
        let mut list = bench.shard.replace_value::<ListType>(key, Event::SortStore);
        list.push(ListEnd::Right, [&b"a"[..]].into_iter());
    }
    assert_eq!(
        bench.events(),
        ["new k", "set k", "overwritten k", "type_changed k", "sortstore k", "new l", "sortstore l"]
    );
}

#[test]
fn further_events_follow_quietly() {
    let mut bench = Fixture::counted();
    bench.set_until(b"s", 9_000);
    let (s, x) = (bench.key(b"s"), bench.key(b"x"));
    bench.shard.follow_up(&s, Event::Expire);
    let mut stream = bench.shard.value_or_create::<StreamType>(&x, Event::XAdd).expect("a stream");
    stream.add(NewId::Auto, [&b"f"[..], b"v"].into_iter()).expect("there is room");
    stream.follow_up(Event::XTrim);
    drop(stream);
    let effects: Vec<_> = taken(&mut bench.shard).iter().map(|c| (c.event, c.effect)).collect();
    assert_eq!(
        effects,
        [
            (Event::New, Effect::Quiet),
            (Event::Set, Effect::Modified),
            (Event::Expire, Effect::Quiet),
            (Event::New, Effect::Quiet),
            (Event::XAdd, Effect::Modified),
            (Event::XTrim, Effect::Quiet),
        ]
    );
}

#[test]
fn what_expires_is_told_however_it_goes_and_is_nobodys_command() {
    let mut bench = Fixture::counted();
    bench.shard.set_author(7);
    for key in [b"a", b"b"] {
        bench.set_until(key, 2_000);
    }
    let h = bench.key(b"h");
    let mut hash = bench.shard.value_or_create::<HashType>(&h, Event::HSet).expect("a hash");
    hash.set(b"stays", b"v", Expiry::Clear);
    hash.set(b"goes", b"v", Expiry::At(Deadline::at(2_000)));
    drop(hash);
    bench.events();
    bench.shard.begin(Db(0), Millis(3_000));
    let a = bench.key(b"a");
    assert!(bench.shard.read(&a).is_none());
    assert_eq!(bench.shard.expire_some(&mut ExpiryCursor::default(), Millis(3_000), 99).n_expired, 1);
    assert_eq!(bench.shard.expire_fields(Millis(3_000), 99), 1);
    let changes = taken(&mut bench.shard);
    assert!(changes.iter().all(|change| change.author == 0 && change.effect == Effect::Modified));
    let events: Vec<_> = changes.iter().map(|change| (change.event, change.key.as_deref())).collect();
    let (a, b, h) = (Some(&b"a"[..]), Some(&b"b"[..]), Some(&b"h"[..]));
    assert_eq!(events, [(Event::Expired, a), (Event::Expired, b), (Event::HExpired, h)]);
}

#[test]
fn flushes_and_swaps_are_told_once_a_database_and_wake_those_whose_keys_come_or_go() {
    let mut bench = Fixture::counted();
    bench.set(b"s");
    bench.set(b"t");
    bench.wait_for(Db(1), b"s");
    // There is no such key in either.
    bench.wait_for(Db(1), b"w");
    bench.events();
    bench.shard.swap(Db(0), Db(1));
    assert_eq!(bench.events(), ["swapped *", "swapped *", "swapped s"]);
    bench.shard.begin(Db(1), Millis(1_000));
    bench.shard.flush();
    assert_eq!(bench.events(), ["flushed *", "flushed s"]);
    // There was nothing left to flush.
    bench.shard.flush();
    assert!(bench.events().is_empty());
    // Slots do not look like addresses, so garbage that waits would be a leak to AddressSanitizer.
    while crate::memory::reclaim::reclaim() {}
}

#[test]
fn nodes_that_wait_are_woken_once_and_readers_told_once() {
    let mut bench = Fixture::unobserved();
    bench.wait_for(Db(0), b"l");
    let reader = Reader { listener: 3, number: 9 };
    bench.shard.track(b"s", reader);
    bench.push(b"l", b"a");
    bench.push(b"l", b"b");
    bench.set(b"s");
    bench.set(b"s");
    let changes = taken(&mut bench.shard);
    let wakes: Vec<_> = changes.iter().map(|change| (change.event, change.wakes)).collect();
    assert_eq!(wakes, [(Event::RPush, true), (Event::Set, false)]);
    assert_eq!(changes[1].readers[..], [reader]);
    bench.push(b"l", b"c");
    assert_eq!(bench.events(), ["rpush l"], "they can be woken again");
}

#[test]
fn what_was_told_before_the_end_of_a_unit_is_told_once_and_still_wakes() {
    let mut bench = Fixture::counted();
    bench.wait_for(Db(0), b"l");
    bench.push(b"l", b"a");
    let mut untold = Vec::new();
    let mut events = |bench: &mut Fixture| {
        bench.shard.take_untold(&mut untold);
        untold.drain(..).map(|change| change.event).collect::<Vec<_>>()
    };
    assert_eq!(events(&mut bench), [Event::New, Event::RPush]);
    assert!(events(&mut bench).is_empty());
    bench.push(b"l", b"b");
    assert_eq!(events(&mut bench), [Event::RPush]);
    bench.set(b"s");
    let changes = taken(&mut bench.shard);
    let left: Vec<_> = changes.iter().map(|change| (change.event, change.wakes, change.is_told)).collect();
    let expected = [(Event::RPush, true, true), (Event::New, false, false), (Event::Set, false, false)];
    assert_eq!(left, expected);
}

#[test]
fn a_key_that_is_unpinned_wakes_and_is_no_change() {
    let mut bench = Fixture::unobserved();
    bench.set(b"s");
    let s = bench.key(b"s");
    bench.shard.pin(&s);
    bench.wait_for(Db(0), b"s");
    bench.shard.unpin(b"s");
    let changes = taken(&mut bench.shard);
    assert_eq!(changes.len(), 1);
    let Change { event, effect, wakes, .. } = &changes[0];
    assert_eq!((*event, *effect, *wakes), (Event::Unpinned, Effect::None, true));
}

#[test]
fn a_panicking_guard_tells_nothing() {
    let mut bench = Fixture::counted();
    bench.push(b"l", b"a");
    bench.events();
    let l = bench.key(b"l");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut list = bench.shard.value_mut::<ListType>(&l, Event::RPush).expect("a list").expect("there");
        list.push(ListEnd::Right, [&b"b"[..]].into_iter());
        panic!("on purpose");
    }));
    assert!(panicked.is_err() && bench.events().is_empty());
}
