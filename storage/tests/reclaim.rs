//! Values that are too large to free under a hold are freed in steps, and no step frees much, of any type.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::{Mutex, MutexGuard, PoisonError},
};

use braid_storage::{
    entry::{
        db::Db,
        key::Key,
        time::{Deadline, Expiry, Millis},
    },
    keyspace::{Keyspace, shard::Shard},
    memory::reclaim::{n_garbage, n_reclaimed, reclaim, reclaim_large, release, reset_reclaimed},
    observers::event::Event,
    table::hash::{HashTags, KeyHasher, Router},
    types::{
        hashes::HashType,
        list::{ListEnd, ListType},
        set::SetType,
        sorted_set::{AddRule, SortedSetType},
        stream::{Acknowledgement, Delivery, NewId, StreamId, StreamType},
    },
};

/// Elements of each value.
const N: u64 = 20_000;

/// More than a step frees, and far fewer allocations than any of the values has.
const STEP_MAX: usize = 4096;

/// More bytes than a step frees.
const STEP_MAX_BYTES: usize = 6 << 20;

/// The length of a piece that takes too long for a thread with sockets.
const VERY_LONG: usize = 2 << 20;

/// The garbage is the process's: one test at a time.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts the memory that a thread frees.
struct FreedCounter;

thread_local! {
    static N_FREED: Cell<usize> = const { Cell::new(0) };
    static BYTES_FREED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for FreedCounter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let _ = N_FREED.try_with(|n_freed| n_freed.set(n_freed.get() + 1));
        let _ = BYTES_FREED.try_with(|bytes| bytes.set(bytes.get() + layout.size()));
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: FreedCounter = FreedCounter;

struct World {
    keyspace: Keyspace,
    shard: Shard,
}

impl World {
    fn new() -> Self {
        let router = Router::new(KeyHasher::with_key(1, 2), 0, HashTags::Ignored);
        let (keyspace, mut shards) = Keyspace::new(router, 1);
        // Small pieces, so that there are many.
        keyspace.thresholds().list_max_listpack_size.set(2);
        keyspace.thresholds().stream_node_max_entries.set(2);
        let mut shard = shards.pop().expect("one shard");
        shard.begin(Db(0), Millis(1));
        Self { keyspace, shard }
    }

    fn key<'k>(&self, name: &'k (impl AsRef<[u8]> + ?Sized)) -> Key<'k> {
        let bytes = name.as_ref();
        Key { bytes, routed: self.keyspace.router().route(bytes) }
    }

    fn push(&mut self, list: &Key<'_>, texts: impl Iterator<Item = Vec<u8>>) {
        let mut guard =
            self.shard.value_or_create::<ListType>(list, Event::RPush).expect("a list or nothing");
        for text in texts {
            guard.push(ListEnd::Right, std::iter::once(&*text));
        }
    }

    fn add_to_stream(&mut self, stream: &Key<'_>, n: u64, value: &[u8]) {
        let mut guard =
            self.shard.value_or_create::<StreamType>(stream, Event::XAdd).expect("a stream or nothing");
        for n in 1..=n {
            guard
                .add(NewId::Given(StreamId::new(n, 0)), [&b"name"[..], value].into_iter())
                .expect("it is next");
        }
    }

    fn rank(&mut self, sorted: &Key<'_>, members: impl Iterator<Item = Vec<u8>>) {
        let mut guard = self
            .shard
            .value_or_create::<SortedSetType>(sorted, Event::ZAdd)
            .expect("a sorted set or nothing");
        for (n, member) in members.enumerate() {
            guard.add(&member, n as f64, AddRule::default());
        }
    }

    /// A value of each type that is no string, under its name.
    fn fill(&mut self) -> Vec<Key<'static>> {
        let texts = || elements(N);
        let is_known = "nothing else has the name";
        let (list, set) = (self.key("list"), self.key("set"));
        let (hash, sorted, stream) = (self.key("hash"), self.key("sorted"), self.key("stream"));
        self.push(&list, texts());
        let mut guard = self.shard.value_or_create::<SetType>(&set, Event::SAdd).expect(is_known);
        for text in texts() {
            guard.insert(&text);
        }
        drop(guard);
        let mut guard = self.shard.value_or_create::<HashType>(&hash, Event::HSet).expect(is_known);
        guard.admit_deadlines();
        for (n, text) in (10..).zip(texts()) {
            guard.set(&text, b"value", Expiry::At(Deadline::at(n * 1000)));
        }
        drop(guard);
        self.rank(&sorted, texts());
        self.add_to_stream(&stream, N, b"value");
        let mut guard = self.shard.value_or_create::<StreamType>(&stream, Event::XAdd).expect(is_known);
        guard.create_group(b"group", StreamId::MIN, None);
        let delivery = Delivery {
            group: b"group",
            consumer: b"consumer",
            n_max: None,
            acknowledgement: Acknowledgement::Expected,
        };
        assert_eq!(guard.deliver(&delivery, |_| ()), N as usize);
        drop(guard);
        vec![list, set, hash, sorted, stream]
    }
}

fn elements(n: u64) -> impl Iterator<Item = Vec<u8>> {
    (0..n).map(|n| format!("element {n:>20}").into_bytes())
}

fn freed_by(run: impl FnOnce()) -> usize {
    let before = N_FREED.get();
    run();
    N_FREED.get() - before
}

fn bytes_freed_by(run: impl FnOnce()) -> usize {
    let before = BYTES_FREED.get();
    run();
    BYTES_FREED.get() - before
}

/// Frees in steps all that can be, and says how many allocations that were, and how many bytes the longest
/// step has freed.
fn reclaim_steps(what: &str) -> (usize, usize) {
    let (mut n_freed, mut most_bytes) = (0, 0);
    let mut more = true;
    while more {
        let mut by_step = 0;
        let bytes = bytes_freed_by(|| by_step = freed_by(|| more = reclaim()));
        assert!(by_step <= STEP_MAX, "{what}: one step has freed {by_step} allocations");
        assert!(bytes <= STEP_MAX_BYTES, "{what}: one step has freed {bytes} bytes");
        n_freed += by_step;
        most_bytes = most_bytes.max(bytes);
    }
    (n_freed, most_bytes)
}

/// Reclaims all there is, and says how much was freed.
fn reclaim_all(what: &str) -> usize {
    let (n_freed, _) = reclaim_steps(what);
    assert_eq!(n_garbage(), 0, "{what} was not freed");
    n_freed
}

/// Large collections used to be freed at once. Threads without sockets freed removed ones, whenever they had
/// time for it. Those of a flushed database were freed by whichever thread came first.
#[test]
fn large_values_of_all_types_are_freed_in_steps() {
    let _turn = turn();
    let mut world = World::new();
    for key in world.fill() {
        let name = String::from_utf8_lossy(key.bytes).into_owned();
        let by_removal = freed_by(|| assert!(world.shard.remove(&key, Event::Del)));
        assert!(by_removal < 64, "{name}: {by_removal} allocations were freed under the hold");
        let n_freed = reclaim_all(&name);
        assert!(n_freed > 2 * STEP_MAX, "{name} had {n_freed} allocations: too few to tell");
    }
    world.fill();
    let by_flush = freed_by(|| world.shard.flush());
    assert!(by_flush < 64, "{by_flush} allocations were freed under the hold");
    assert!(reclaim_all("the database") > 10 * STEP_MAX);
}

/// Nodes that appeared when an inner node was taken apart used to cancel the freed bytes: nearly all of a
/// tree was one step.
#[test]
fn no_step_frees_much_of_a_very_large_sorted_set() {
    let _turn = turn();
    let mut world = World::new();
    let key = world.key("sorted");
    world.rank(&key, elements(300_000));
    assert!(world.shard.remove(&key, Event::Del));
    let n_freed = reclaim_all("the sorted set");
    assert!(n_freed > 300_000);
}

/// A step used to count pieces alone: 1024 of them, each just short of a mebibyte, were one step.
#[test]
fn a_step_frees_few_pieces_if_they_are_long() {
    const LONG: usize = 500_000;
    const N_LONG: usize = 40;
    let _turn = turn();
    let mut world = World::new();
    let (list, stream) = (world.key("list"), world.key("stream"));
    world.push(&list, (0..N_LONG).map(|_| vec![b'x'; LONG]));
    world.add_to_stream(&stream, N_LONG as u64, &[b'x'; LONG]);
    for key in [list, stream] {
        let name = String::from_utf8_lossy(key.bytes).into_owned();
        assert!(world.shard.remove(&key, Event::Del));
        let freed = bytes_freed_by(|| _ = reclaim_all(&name));
        assert!(freed >= N_LONG * LONG, "{name} had {freed} bytes: too few to tell");
    }
    for n in 0..400 {
        let name = format!("string {n}");
        let key = world.key(&name);
        world.shard.put_string(&key, &[b'x'; 60_000], Expiry::Clear, Event::Set);
    }
    world.shard.flush();
    let freed = bytes_freed_by(|| _ = reclaim_all("the database"));
    assert!(freed >= 400 * 60_000);
}

/// Very long bytes used to be freed by whichever thread came first unless they were the value of a string or
/// an element of a list.
#[test]
fn very_long_pieces_wait_for_a_thread_without_sockets() {
    let _turn = turn();
    let mut world = World::new();
    let long = vec![b'x'; VERY_LONG];
    let short = b"short";
    let names = ["string", "list", "set", "hash name", "hash value", "sorted", "stream", "group", "consumer"];
    let long_names = [[b"1", &*long].concat(), [b"2", &*long].concat()];
    let keys: Vec<Key<'_>> = names.iter().map(|name| world.key(name)).collect();
    let known = "nothing else has the name";
    world.shard.put_string(&keys[0], &long, Expiry::Clear, Event::Set);
    world.push(&keys[1], std::iter::once(long.clone()));
    world.shard.value_or_create::<SetType>(&keys[2], Event::SAdd).expect(known).insert(&long);
    for (key, name, value) in [(&keys[3], &*long, &short[..]), (&keys[4], short, &long)] {
        let mut guard = world.shard.value_or_create::<HashType>(key, Event::HSet).expect(known);
        guard.set(name, value, Expiry::Clear);
    }
    world.rank(&keys[5], std::iter::once(long.clone()));
    world.add_to_stream(&keys[6], 1, &long);
    for (key, group, consumer) in [(&keys[7], &*long, &short[..]), (&keys[8], short, &long)] {
        let mut guard = world.shard.value_or_create::<StreamType>(key, Event::XGroupCreate).expect(known);
        guard.create_group(group, StreamId::MIN, None);
        guard.create_consumer(group, consumer);
    }
    let (long_string, long_list) = (world.key(&long_names[0]), world.key(&long_names[1]));
    world.shard.put_string(&long_string, short, Expiry::Clear, Event::Set);
    world.push(&long_list, elements(N));
    for (key, name) in
        keys.into_iter().zip(names).chain([(long_string, "string's name"), (long_list, "list's name")])
    {
        assert!(world.shard.remove(&key, Event::Del));
        let (_, most_bytes) = reclaim_steps(name);
        assert!(most_bytes < VERY_LONG, "{name}: a step has freed {most_bytes} bytes");
        let by_large = bytes_freed_by(|| assert!(reclaim_large(), "{name}: nothing is left"));
        assert!(by_large >= VERY_LONG, "{name}: {by_large} bytes were left");
        assert_eq!(n_garbage(), 0, "{name} was not freed");
    }
}

/// Only the value was thought of: the name went at once, in the middle of a hold.
#[test]
fn the_long_name_of_a_shared_value_waits_for_a_thread_without_sockets() {
    let _turn = turn();
    let mut world = World::new();
    let name = vec![b'x'; VERY_LONG];
    let key = world.key(&name);
    world.push(&key, elements(N));
    let shared = world.shard.pin(&key).expect("the key holds a list");
    let by_release = bytes_freed_by(|| release(shared));
    assert!(by_release < VERY_LONG, "{by_release} bytes");
    let by_large = bytes_freed_by(|| assert!(reclaim_large(), "nothing is left"));
    assert!(by_large >= VERY_LONG, "{by_large} bytes were left");
    assert_eq!(n_garbage(), 0);
    assert!(world.shard.remove(&key, Event::Del));
    reclaim_steps("the list");
    while reclaim_large() {}
    assert_eq!(n_garbage(), 0);
}

/// Large values of a flushed database used to count as freed when they were set aside, and once more when
/// they were freed.
#[test]
fn a_large_value_of_a_flushed_database_counts_once() {
    let _turn = turn();
    let mut world = World::new();
    let long = vec![b'x'; VERY_LONG];
    for n in 0..10 {
        let name = format!("list {n}");
        let key = world.key(&name);
        world.push(&key, elements(N));
        world.push(&key, std::iter::once(long.clone()));
    }
    let key = world.key("set");
    world.shard.value_or_create::<SetType>(&key, Event::SAdd).expect("a set").insert(&[b'x'; 100_000]);
    reset_reclaimed();
    world.shard.flush();
    reclaim_steps("the database");
    while reclaim_large() {}
    assert_eq!((n_reclaimed(), n_garbage()), (11, 0));
}
