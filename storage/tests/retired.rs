//! Structure that tables give up is freed although the thread that gave it up does nothing more.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use braid_storage::{
    entry::{
        db::Db,
        key::Key,
        time::{Expiry, Millis},
    },
    keyspace::Keyspace,
    observers::event::Event,
    table::{
        flush_retired,
        hash::{HashTags, KeyHasher, Router},
    },
};

/// Counts the bytes that are allocated.
struct AllocatedCounter;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for AllocatedCounter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: AllocatedCounter = AllocatedCounter;

/// So few keys that a table gives up fewer pieces than a thread gathers before it has others free them.
const N_KEYS: u64 = 300;

/// Gives up structure: a table that grows replaces its segments.
fn grow_a_table(n_keys: u64) -> Keyspace {
    let router = Router::new(KeyHasher::with_key(3, 5), 0, HashTags::Honoured);
    let (keyspace, mut shards) = Keyspace::new(router, 1);
    let shard = &mut shards[0];
    shard.start();
    shard.begin(Db(0), Millis(1));
    for nth in 0..n_keys {
        let bytes = nth.to_string();
        let key = Key { bytes: bytes.as_bytes(), routed: keyspace.router().route(bytes.as_bytes()) };
        shard.put_string(&key, b"value", Expiry::Clear, Event::Set);
    }
    keyspace
}

/// Makes this thread free retired structure, several times: each lets time pass for other readers.
fn flush_again_and_again() {
    (0..1000).for_each(|_| flush_retired());
}

#[test]
fn what_an_idle_thread_gave_up_is_freed_by_others_once_it_has_flushed() {
    // Lasting allocations are made before the count.
    drop(grow_a_table(N_KEYS));
    flush_again_and_again();
    let (grown, has_grown) = mpsc::channel();
    let (flush, may_flush) = mpsc::channel();
    let (flushed, has_flushed) = mpsc::channel();
    let (end, may_end) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            drop(grow_a_table(N_KEYS));
            grown.send(()).expect("the test waits");
            may_flush.recv().expect("the test goes on");
            flush_retired();
            flushed.send(()).expect("the test waits");
            // Now it is idle.
            let _ = may_end.recv();
        });
        has_grown.recv().expect("the thread grows a table");
        flush_again_and_again();
        let before = ALLOCATED.load(Ordering::Relaxed);
        flush.send(()).expect("the thread waits");
        has_flushed.recv().expect("the thread flushes");
        flush_again_and_again();
        let after = ALLOCATED.load(Ordering::Relaxed);
        assert!(after + 1024 <= before, "{before} bytes were allocated before, {after} after");
        drop(end);
    });
}
