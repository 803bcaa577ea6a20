//! One thread changes tables while others prefetch from them, to be run under ThreadSanitizer and
//! AddressSanitizer:
//!
//! ```text
//! RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
//!     cargo +nightly test -p braid-storage --target x86_64-unknown-linux-gnu --test table_stress
//! RUSTFLAGS="-Zsanitizer=address" \
//!     cargo +nightly test -p braid-storage --target x86_64-unknown-linux-gnu --test table_stress
//! ```
//!
//! The standard library is not instrumented then, so ThreadSanitizer does not see the synchronisation of its
//! `Once`, `park` and channels. It also knows no fences, which `Arc` uses. It must report nothing but our own
//! faults, and none of ours may be suppressed. So this file has no libtest, makes the epoch collector (in a
//! `Once`) before it starts threads, and joins each thread by its handle: it does see `pthread_join`.
//! crossbeam-epoch replaces its own fences when it is built for this sanitizer.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use braid_storage::entry::EntryBox;
use braid_storage::entry::time::{Deadline, Millis};
use braid_storage::table::hash::{HashTags, KeyHasher, Place, Router};
use braid_storage::table::{Fill, Known, NumberedTables, Roots, Table, prefetch_behind_roots};

const N_KEYS: usize = 4000;
const N_ROUNDS: usize = if cfg!(debug_assertions) { 12 } else { 40 };

fn key(i: usize) -> Vec<u8> {
    format!("key:{i}").into_bytes()
}

fn prefetch_batch(roots: &Roots, root: usize, places: &[Place]) {
    let root = roots.get(root);
    places.iter().for_each(|_| root.prefetch());
    prefetch_behind_roots(places.len(), |at| (root, places[at]));
}

/// Every way in which structure is made, replaced and given up.
fn change(one: &mut Table, other: &mut Table, round: usize) {
    let router = *one.router();
    for i in 0..N_KEYS {
        let key = key(i);
        let mut entry = EntryBox::string(&key, &[b'v'; 32]);
        if i % 5 == 0 {
            entry.set_deadline(Some(Deadline::at(10)));
        }
        one.insert(entry, router.place(&key));
        if i % 500 == 0 {
            one.swap_contents(other);
            one.swap_contents(other);
        }
    }
    for i in (0..N_KEYS).step_by(7) {
        let key = key(i);
        let mut slot = one.find_mut(&key, router.place(&key)).expect("all are there");
        slot.modify(|entry| entry.set_bytes(&[b'w'; 200]));
    }
    one.check_invariants();
    match round % 3 {
        0 => {
            for i in 0..N_KEYS {
                let key = key(i);
                one.find_mut(&key, router.place(&key)).expect("all are there").remove();
            }
        }
        1 => {
            let mut expired = vec![];
            let mut position = Default::default();
            while let Some(next) =
                one.expire_step(position, Millis(11), 7, &mut expired, &mut Default::default())
            {
                position = next;
            }
            assert!(expired.len() > N_KEYS / 6);
            one.detach().for_each(drop);
        }
        _ => {
            one.swap_contents(other);
            drop(other.detach());
            drop(one.detach());
        }
    }
    assert!(one.is_empty());
}

fn main() {
    drop(crossbeam_epoch::pin());
    prefetchers_read_structure_while_it_changes();
    numbered_tables_are_found_while_they_come_and_go();
    pins_are_read_while_the_entry_changes();
}

fn numbered_tables_are_found_while_they_come_and_go() {
    const N_TABLES: u32 = 40;
    let router = Router::new(KeyHasher::with_key(5, 6), 2, HashTags::Honoured);
    let blank = Roots::new(0, router, Fill::Roomy);
    let known = Known::many(1);
    let (stop, n_found) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let readers = [0, 1].map(|_| {
            let (known, stop, n_found) = (&known[0], &stop, &n_found);
            scope.spawn(move || {
                let places: Vec<_> = (0..32).map(|i| router.place(&key(i))).collect();
                while !stop.load(Relaxed) {
                    let pinned = &crossbeam_epoch::pin();
                    for number in 1..N_TABLES {
                        let root = known.root(number, pinned);
                        prefetch_behind_roots(places.len(), |at| (root, places[at]));
                        n_found.fetch_add(
                            known.counts(number, pinned).map_or(0, |counts| counts.len()),
                            Relaxed,
                        );
                    }
                    known.each(pinned, |number, _, counts| {
                        assert!(number < N_TABLES && counts.len() <= 32);
                    });
                }
            })
        });
        let mut tables = NumberedTables::new(known.clone(), 0, blank.clone());
        for round in 0.. {
            for number in (1..N_TABLES).filter(|number| !(number + round).is_multiple_of(3)) {
                let table = tables.or_make(number, round % 2 == 0);
                for i in 0..32 {
                    table.insert(EntryBox::string(&key(i), b"v"), router.place(&key(i)));
                }
            }
            tables.swap_contents(1, 2, false);
            for number in (1..N_TABLES).filter(|number| !(number + round).is_multiple_of(5)) {
                if let Some(table) = tables.get_mut(number) {
                    drop(table.detach());
                }
            }
            tables.drop_empty();
            let mut taken = tables.take();
            while let Some((_, entries)) = taken.detach_one() {
                drop(entries);
            }
            assert!(tables.is_empty() && tables.get(1).is_none());
            braid_storage::table::flush_retired();
            // On two cores the readers may not have come to run yet.
            if round >= N_ROUNDS as u32 && n_found.load(Relaxed) > 0 {
                break;
            }
        }
        stop.store(true, Relaxed);
        readers.into_iter().for_each(|reader| reader.join().expect("a reader does not panic"));
    });
}

fn prefetchers_read_structure_while_it_changes() {
    let router = Router::new(KeyHasher::with_key(5, 6), 2, HashTags::Honoured);
    let roots = Roots::new(2, router, Fill::Roomy);
    let (stop, n_batches) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let prefetchers = [0, 1, 2].map(|thread| {
            let (roots, stop, n_batches) = (&roots, &stop, &n_batches);
            scope.spawn(move || {
                let places: Vec<_> = (0..2 * N_KEYS).map(|i| roots.router().place(&key(i))).collect();
                let mut at = thread * 1000;
                while !stop.load(Relaxed) {
                    at = (at + 32) % (places.len() - 32);
                    prefetch_batch(roots, at / 32 % 2, &places[at..at + 32]);
                    n_batches.fetch_add(1, Relaxed);
                }
            })
        });
        let (mut one, mut other) = (roots.table(0), roots.table(1));
        for round in 0..N_ROUNDS {
            change(&mut one, &mut other, round);
            if round % 10 == 9 {
                drop(one);
                one = roots.table(0);
            }
            // A holder on another thread: what `&mut` promises, it must see.
            std::thread::scope(|holders| {
                let holder = holders.spawn(|| change(&mut one, &mut other, round + 1));
                holder.join().expect("the holder does not panic");
            });
            braid_storage::table::flush_retired();
        }
        // On two cores the prefetchers may not have come to run yet.
        while n_batches.load(Relaxed) < 1000 {
            std::thread::yield_now();
        }
        stop.store(true, Relaxed);
        for prefetcher in prefetchers {
            prefetcher.join().expect("prefetchers do not panic");
        }
    });
}

fn pins_are_read_while_the_entry_changes() {
    let mut entry = EntryBox::string(b"key", &[0; 3000]);
    std::thread::scope(|scope| {
        let mut readers = vec![];
        for round in 1..100u8 {
            let pinned = entry.as_ref().pin().expect("a long value is a blob");
            let reader = scope.spawn(move || {
                let again = pinned.clone();
                assert!(pinned.iter().all(|&byte| byte == round - 1));
                drop(pinned);
                assert_eq!(again.len(), 3000);
            });
            readers.push(reader);
            if round % 2 == 0 {
                std::thread::yield_now();
            }
            entry.bytes_mut().fill(round);
        }
        readers.into_iter().for_each(|reader| reader.join().expect("readers do not panic"));
    });
}
