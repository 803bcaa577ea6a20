use super::*;

const LENGTHS: [usize; 17] =
    [0, 1, 7, 8, 16, 32, 40, 255, 256, 500, 512, 513, 1023, 1024, 1025, 4000, 1 << 20];

fn text(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect()
}

fn deadlines() -> [Option<Deadline>; 2] {
    [None, Some(Deadline::at(0x1234_5678_9abc))]
}

#[test]
fn a_typical_entry_is_56_bytes_and_64_with_a_deadline() {
    let header = EntryBox::header_of(Kind::String, Encoding::default(), None).with_inline_len(32);
    assert_eq!(header.key_offset() + 16 + 32, 56);
    let mut entry = EntryBox::string(&[b'k'; 16], &[b'v'; 32]);
    assert_eq!(entry.as_ref().allocated_bytes(), 64);
    assert_eq!(entry.set_deadline(Some(Deadline::at(7))), Moved::No);
    assert_eq!(entry.as_ref().allocated_bytes(), 64);
    assert_eq!(entry.as_ref().key(), [b'k'; 16]);
    assert_eq!(entry.as_ref().bytes(), Some(&[b'v'; 32][..]));
}

#[test]
fn classes_are_monotonic_and_waste_at_most_a_quarter() {
    let mut last = 0;
    for bytes in 1..300_000 {
        let class = class_bytes(bytes);
        assert!(class >= bytes && class >= last && class.is_multiple_of(16));
        assert!(bytes <= 64 || class - bytes <= bytes / 4, "{bytes} in {class}");
        assert_eq!(class_bytes(class), class);
        last = class;
    }
}

#[test]
fn round_trips_at_all_lengths() {
    for key_len in LENGTHS {
        for value_len in LENGTHS {
            for deadline in deadlines() {
                let (key, value) = (text(key_len, 1), text(value_len, 2));
                let entry = EntryBox::with_bytes(Kind::Hash, Encoding::new(9), &key, &value, deadline);
                let read = entry.as_ref();
                assert_eq!(read.key(), key);
                assert_eq!(read.bytes(), Some(&value[..]));
                assert_eq!(read.deadline(), deadline);
                assert_eq!((read.kind(), read.encoding()), (Kind::Hash, Encoding::new(9)));
                assert_eq!(read.pin().is_some(), value_len > INLINE_MAX);
                let entry = entry.with_key(b"renamed");
                assert_eq!(entry.as_ref().key(), b"renamed");
                assert_eq!(entry.as_ref().bytes(), Some(&value[..]));
                assert_eq!(entry.as_ref().deadline(), deadline);
            }
        }
    }
}

#[test]
fn clock_and_snapshot_bit_leave_the_rest_alone() {
    let entry = EntryBox::string(b"key", b"value");
    let read = entry.as_ref();
    read.set_access_clock(AccessClock::new(0x12ab_cdef));
    read.set_in_snapshot(true);
    assert_eq!(read.access_clock().bits(), 0xab_cdef);
    assert!(read.in_snapshot());
    read.set_in_snapshot(false);
    assert!(!read.in_snapshot());
    assert_eq!((read.key(), read.bytes()), (&b"key"[..], Some(&b"value"[..])));
    assert_eq!(read.access_clock().bits(), 0xab_cdef);
}

#[test]
fn every_change_of_bytes_agrees_with_a_vec() {
    for key_len in [0, 16, 255, 256, 1000] {
        let key = text(key_len, 3);
        for from in LENGTHS {
            for to in LENGTHS {
                for deadline in deadlines() {
                    let make = || {
                        EntryBox::with_bytes(
                            Kind::String,
                            Encoding::default(),
                            &key,
                            &text(from, 4),
                            deadline,
                        )
                    };
                    let check = |entry: &EntryBox, model: &[u8]| {
                        assert_eq!(entry.as_ref().key(), key);
                        assert_eq!(entry.as_ref().bytes(), Some(model), "{from} to {to}");
                        assert_eq!(entry.as_ref().deadline(), deadline);
                    };
                    let mut entry = make();
                    entry.set_bytes(&text(to, 5));
                    check(&entry, &text(to, 5));

                    let (mut entry, mut model) = (make(), text(from, 4));
                    entry.append(&text(to, 6));
                    model.extend(text(to, 6));
                    check(&entry, &model);

                    let (mut entry, mut model) = (make(), text(from, 4));
                    entry.resize(to);
                    model.resize(to, 0);
                    check(&entry, &model);

                    let (mut entry, mut model) = (make(), text(from, 4));
                    entry.write_at(to, b"written");
                    model.resize(model.len().max(to + 7), 0);
                    model[to..to + 7].copy_from_slice(b"written");
                    check(&entry, &model);

                    let (mut entry, model) = (make(), text(from, 4));
                    let clock = AccessClock::new(77);
                    entry.as_ref().set_access_clock(clock);
                    entry.set_deadline(None);
                    assert_eq!(entry.as_ref().deadline(), None);
                    entry.set_deadline(deadline);
                    check(&entry, &model);
                    assert_eq!(entry.as_ref().access_clock(), clock);
                }
            }
        }
    }
}

#[test]
fn overwriting_stays_in_place_exactly_while_the_class_stays() {
    let mut entry = EntryBox::string(&[b'k'; 16], &[b'v'; 32]);
    assert_eq!(entry.set_bytes(&[b'w'; 40]), Moved::No);
    assert_eq!(entry.set_bytes(&[b'w'; 25]), Moved::No);
    assert_eq!(entry.set_bytes(&[b'w'; 24]), Moved::Yes);
    assert_eq!(entry.set_bytes(&[b'w'; 41]), Moved::Yes);
}

#[test]
fn a_pinned_value_stays_as_it_was() {
    let old = text(5000, 7);
    let changes: [fn(&mut EntryBox); 6] = [
        |entry| {
            entry.set_bytes(&[1; 5000]);
        },
        |entry| {
            entry.set_bytes(b"short");
        },
        |entry| {
            entry.append(b"more");
        },
        |entry| {
            entry.resize(3000);
        },
        |entry| {
            entry.write_at(10, b"here");
        },
        |entry| entry.bytes_mut()[0] ^= 1,
    ];
    for change in changes {
        let mut entry = EntryBox::string(b"key", &old);
        assert!(!entry.as_ref().is_pinned());
        let pinned = entry.as_ref().pin().expect("a long value is a blob");
        assert!(entry.as_ref().is_pinned());
        change(&mut entry);
        assert_ne!(entry.as_ref().bytes(), Some(&old[..]));
        assert_eq!(*pinned, old);
        drop(entry);
        assert_eq!(*pinned, old);
    }
}

#[test]
fn pins_are_read_and_dropped_on_other_threads() {
    let mut entry = EntryBox::string(b"key", &[0; 4096]);
    std::thread::scope(|scope| {
        for round in 1..200u8 {
            let pinned = entry.as_ref().pin().expect("a long value is a blob");
            scope.spawn(move || assert!(pinned.iter().all(|&byte| byte == round - 1)));
            entry.bytes_mut().fill(round);
        }
    });
}

#[test]
fn appending_to_a_long_value_rarely_reallocates() {
    let mut entry = EntryBox::string(b"key", &[0; 2000]);
    let (mut sizes, mut last) = (0, 0);
    for _ in 0..100_000 {
        entry.append(b"0123456789");
        let bytes = entry.as_ref().allocated_bytes();
        sizes += (bytes != last) as usize;
        last = bytes;
    }
    assert_eq!(entry.as_ref().bytes().map(<[u8]>::len), Some(1_002_000));
    assert!(sizes < 15, "{sizes} sizes");
}

struct Tally(
    /// Counts the live ones.
    std::sync::Arc<()>,
);

impl Object for Tally {
    fn allocated_bytes(&self) -> usize {
        1000
    }

    fn duplicate(&self) -> Self {
        Tally(self.0.clone())
    }

    fn demolish(self) -> Box<dyn crate::memory::teardown::Rubble> {
        crate::memory::teardown::Pieces::small(std::iter::once(self))
    }
}

#[derive(Debug, PartialEq)]
struct Numbers(Vec<u64>);

impl Object for Numbers {
    fn allocated_bytes(&self) -> usize {
        self.0.capacity() * 8
    }

    fn duplicate(&self) -> Self {
        Numbers(self.0.clone())
    }

    fn demolish(self) -> Box<dyn crate::memory::teardown::Rubble> {
        crate::memory::teardown::Pieces::small(std::iter::once(self))
    }
}

#[test]
fn objects_are_found_by_type_and_dropped_once() {
    let witness = std::sync::Arc::new(());
    let tally = || Tally(witness.clone());
    let mut entry =
        EntryBox::with_object(Kind::List, Encoding::new(2), b"key", tally(), Some(Deadline::at(5)));
    assert!(entry.as_ref().object::<Tally>().is_some());
    assert!(entry.as_ref().object::<Numbers>().is_none());
    assert_eq!(entry.as_ref().bytes(), None);
    assert!(entry.as_ref().allocated_bytes() > 1000);
    entry.set_deadline(None);
    entry.set_object(tally());
    assert_eq!(std::sync::Arc::strong_count(&witness), 2);
    let mut entry = entry.with_key(&[b'k'; 300]);
    assert_eq!(std::sync::Arc::strong_count(&witness), 2);
    entry.set_bytes(b"bytes again");
    assert_eq!(std::sync::Arc::strong_count(&witness), 1);
    assert_eq!(entry.as_ref().bytes(), Some(&b"bytes again"[..]));
    entry.set_object(Numbers(vec![1]));
    entry.object_mut::<Numbers>().expect("it is one").0.push(2);
    assert_eq!(entry.as_ref().object::<Numbers>(), Some(&Numbers(vec![1, 2])));
    entry.set_object(tally());
    drop(entry);
    assert_eq!(std::sync::Arc::strong_count(&witness), 1);
}

#[test]
fn overwriting_in_place_keeps_key_deadline_and_size() {
    for old_len in [0, 1, 31, 32, 33, 40, 100, 1000, 1024] {
        for new_len in [0, 1, 32, 33, 48, 1000, 1024, 1025] {
            let (old, new) = (vec![b'o'; old_len], vec![b'n'; new_len]);
            let deadline = Some(Deadline::at(77));
            let mut entry = EntryBox::with_bytes(Kind::String, Encoding::new(1), b"the key", &old, deadline);
            let bytes = entry.as_ref().allocated_bytes();
            if entry.try_overwrite(Encoding::new(2), &new) {
                assert_eq!(entry.as_ref().bytes(), Some(&new[..]));
                assert_eq!(entry.as_ref().encoding(), Encoding::new(2));
            } else {
                assert_ne!(
                    EntryBox::with_bytes(Kind::String, Encoding::new(1), b"the key", &new, deadline)
                        .as_ref()
                        .allocated_bytes(),
                    bytes
                );
                assert_eq!(entry.as_ref().bytes(), Some(&old[..]));
            }
            assert_eq!(entry.as_ref().allocated_bytes(), bytes);
            assert_eq!((entry.as_ref().key(), entry.as_ref().deadline()), (&b"the key"[..], deadline));
        }
    }
}
