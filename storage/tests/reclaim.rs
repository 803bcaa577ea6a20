//! What is too large to free under a hold is freed in steps, and no step frees much, whatever the type.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use braid_storage::{
    Db, Event, Expiry, HashType, Key, Keyspace, ListEnd, ListType, SetType, Shard, SortedSetType,
    hash::{HashTags, KeyHasher, Router},
    n_garbage, reclaim,
    sorted_set::AddRule,
    stream::{Acknowledgement, Delivery, NewId, StreamId, StreamType},
    time::{Deadline, Millis},
};

/// Elements of each value.
const N: u64 = 20_000;

/// More than a step frees, and far fewer allocations than any of the values has.
const STEP_MAX: usize = 4096;

/// Counts what a thread frees.
struct Counting;

thread_local! {
    static N_FREED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let _ = N_FREED.try_with(|n_freed| n_freed.set(n_freed.get() + 1));
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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

    fn key(&self, bytes: &'static str) -> Key<'static> {
        Key { bytes: bytes.as_bytes(), routed: self.keyspace.router().route(bytes.as_bytes()) }
    }

    /// A value of each type that is no string, under its name.
    fn fill(&mut self) -> Vec<Key<'static>> {
        let texts = || (0..N).map(|n| format!("element {n:>20}").into_bytes());
        let is_known = "nothing else has the name";
        let (list, set) = (self.key("list"), self.key("set"));
        let (hash, sorted, stream) = (self.key("hash"), self.key("sorted"), self.key("stream"));
        let mut guard = self.shard.value_or_create::<ListType>(&list, Event::RPush).expect(is_known);
        for text in texts() {
            guard.push(ListEnd::Right, std::iter::once(&*text));
        }
        drop(guard);
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
        let mut guard = self.shard.value_or_create::<SortedSetType>(&sorted, Event::ZAdd).expect(is_known);
        for (n, text) in texts().enumerate() {
            guard.add(&text, n as f64, AddRule::default());
        }
        drop(guard);
        let mut guard = self.shard.value_or_create::<StreamType>(&stream, Event::XAdd).expect(is_known);
        for n in 1..=N {
            guard
                .add(NewId::Given(StreamId::new(n, 0)), [&b"name"[..], b"value"].into_iter())
                .expect("it is next");
        }
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

fn freed_by(run: impl FnOnce()) -> usize {
    let before = N_FREED.get();
    run();
    N_FREED.get() - before
}

/// Reclaims all there is, and says how much was freed.
fn reclaim_all(what: &str) -> usize {
    let mut n_freed = 0;
    let mut more = true;
    while more {
        let by_step = freed_by(|| more = reclaim());
        assert!(by_step <= STEP_MAX, "{what}: one step has freed {by_step} allocations");
        n_freed += by_step;
    }
    assert_eq!(n_garbage(), 0, "{what} was not freed");
    n_freed
}

/// Large collections used to be freed at a stroke: those that were removed by threads without sockets, whenever these had time for
/// it, and those of a flushed database by whichever thread came first.
#[test]
fn large_values_of_all_types_are_freed_in_steps() {
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
