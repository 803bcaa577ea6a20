use std::{collections::VecDeque, iter};

use super::*;
use crate::{
    entry::{db::Db, key::Key, time::Millis},
    keyspace::{Keyspace, shard::Shard},
    observers::event::Event,
    table::hash::{HashTags, KeyHasher, Router},
};

/// One list of one shard.
struct Lone {
    keyspace: Keyspace,
    shard: Shard,
}

const NAME: &[u8] = b"list";

impl Lone {
    fn new(setting: i64) -> Self {
        let router = Router::new(KeyHasher::with_key(1, 2), 0, HashTags::Honoured);
        let (keyspace, mut shards) = Keyspace::new(router, 1);
        let mut shard = shards.remove(0);
        shard.begin(Db(0), Millis(1));
        let lone = Self { keyspace, shard };
        lone.set_limit(setting);
        lone
    }

    fn set_limit(&self, setting: i64) {
        self.keyspace.thresholds().list_max_listpack_size.set(setting);
    }

    fn key(&self) -> Key<'static> {
        Key { bytes: NAME, routed: self.keyspace.router().route(NAME) }
    }

    fn list(&mut self) -> ListMut<'_> {
        let key = self.key();
        self.shard.value_or_create(&key, Event::Made).expect("the key holds a list or nothing")
    }

    fn read(&mut self) -> Option<ListRef<'_>> {
        let key = self.key();
        self.shard.value(&key).expect("the key holds a list or nothing")
    }

    fn push(&mut self, end: ListEnd, text: &[u8]) -> usize {
        self.list().push(end, iter::once(text))
    }

    fn encoding(&mut self) -> &'static str {
        self.read().map_or("none", |list| encoding_name(list.entry()))
    }

    fn texts(&mut self) -> Vec<Vec<u8>> {
        self.read().map_or_else(Vec::new, |list| list.elements_from(0).map(Element::to_vec).collect())
    }

    /// How many elements each part has.
    fn parts(&mut self) -> Vec<usize> {
        let list = self.read().expect("there is a list");
        list.parts()
            .map(|part| match part {
                Part::Packed(packed) => packed.len(),
                Part::Plain(_) => 1,
            })
            .collect()
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % below
    }

    fn end(&mut self) -> ListEnd {
        if self.below(2) == 0 { ListEnd::Left } else { ListEnd::Right }
    }

    /// Few texts, so that they are found again, of lengths around every limit.
    fn text(&mut self) -> Vec<u8> {
        const LENGTHS: [usize; 12] = [0, 1, 5, 63, 64, 200, 900, 1500, 4090, 8190, 8193, 70_000];
        match self.below(30) {
            0..12 => self.below(20).to_string().into_bytes(),
            12..15 => (-1_000_000_007 * self.below(5) as i64).to_string().into_bytes(),
            15..18 => b"element".to_vec(),
            nth => vec![b'a' + self.below(2) as u8; LENGTHS[nth - 18]],
        }
    }
}

/// A list beside the deque that it should equal.
struct Pair {
    lone: Lone,
    model: VecDeque<Vec<u8>>,
}

impl Pair {
    fn step(&mut self, random: &mut Random) {
        let (text, end, n) = (random.text(), random.end(), self.model.len());
        match random.below(15) {
            0..4 => {
                let texts: Vec<_> =
                    iter::once(text).chain((0..random.below(4)).map(|_| random.text())).collect();
                let len = self.lone.list().push(end, texts.iter().map(Vec::as_slice));
                texts.into_iter().for_each(|text| self.push(end, text));
                assert_eq!(len, self.model.len());
            }
            4..6 => self.pop(end, random.below(3)),
            6 => self.pop(end, random.below(n + 2) / 2),
            7 => {
                let (start, stop) = (random.below(5).min(n), n.saturating_sub(random.below(5)));
                self.lone.list().trim(start..stop);
                self.model = self.model.range(start..stop.max(start)).cloned().collect();
            }
            8 if n > 0 => {
                let to = random.end();
                let moved = self.pop_model(end).expect("it is not empty");
                let read = self.lone.read().and_then(|list| list.outermost(end)).map(Element::to_vec);
                assert_eq!(read.as_ref(), Some(&moved));
                self.lone.list().rotate(end, to, &moved);
                self.push(to, moved);
            }
            9 | 10 => {
                let index = random.below(2 * n + 2) as i64 - n as i64 - 1;
                let at = if index < 0 { index + n as i64 } else { index };
                let slot = usize::try_from(at).ok().and_then(|at| self.model.get_mut(at));
                assert_eq!(self.lone.list().set(index, &text), slot.is_some(), "{index} of {n}");
                slot.into_iter().for_each(|slot| *slot = text.clone());
            }
            11 | 12 => {
                let pivot = if n > 0 { self.model[random.below(n)].clone() } else { random.text() };
                let side = if end == ListEnd::Left { Side::Before } else { Side::After };
                let at = self.model.iter().position(|text| *text == pivot);
                if let Some(at) = at {
                    self.model.insert(at + (side == Side::After) as usize, text.clone());
                }
                let len = at.map(|_| self.model.len());
                assert_eq!(self.lone.list().insert(side, &pivot, &text), len);
            }
            _ => {
                let max = if random.below(2) == 0 { usize::MAX } else { random.below(3) };
                let n_removed = self.lone.list().remove(&text, end, max);
                assert_eq!(n_removed, self.remove_model(&text, end, max));
            }
        }
    }

    fn push(&mut self, end: ListEnd, text: Vec<u8>) {
        match end {
            ListEnd::Left => self.model.push_front(text),
            ListEnd::Right => self.model.push_back(text),
        }
    }

    fn pop(&mut self, end: ListEnd, n: usize) {
        let mut popped = Vec::new();
        self.lone.list().pop(end, n, |element| popped.push(element.to_vec()));
        let expected: Vec<_> = (0..n).map_while(|_| self.pop_model(end)).collect();
        assert_eq!(popped, expected);
    }

    fn pop_model(&mut self, end: ListEnd) -> Option<Vec<u8>> {
        match end {
            ListEnd::Left => self.model.pop_front(),
            ListEnd::Right => self.model.pop_back(),
        }
    }

    fn remove_model(&mut self, text: &[u8], end: ListEnd, max: usize) -> usize {
        let n = self.model.len();
        for nth in 0..max {
            let at = match end {
                ListEnd::Left => self.model.iter().position(|other| other == text),
                ListEnd::Right => self.model.iter().rposition(|other| other == text),
            };
            let Some(at) = at else { return nth };
            self.model.remove(at);
        }
        n - self.model.len()
    }

    fn check(&mut self, random: &mut Random) {
        let model = &self.model;
        let Some(list) = self.lone.read() else { return assert!(model.is_empty(), "the list has gone") };
        if let ListForm::Chunked(chunks) = ListForm::of(list.entry()) {
            chunks.check_invariants();
        }
        assert!(!list.is_empty(), "a list with nothing in it goes");
        assert_eq!(list.len(), model.len());
        assert!(list.elements_from(0).map(Element::to_vec).eq(model.iter().cloned()));
        assert!(list.elements_from(0).rev().map(Element::to_vec).eq(model.iter().rev().cloned()));
        let index = random.below(model.len());
        assert!(list.elements_from(index).map(Element::to_vec).eq(model.range(index..).cloned()));
        assert_eq!(list.get(index as i64).map(Element::to_vec).as_ref(), model.get(index));
        assert_eq!(
            list.get(index as i64 - model.len() as i64).map(Element::to_vec).as_ref(),
            model.get(index)
        );
        assert_eq!(list.get(model.len() as i64), None);
        assert_eq!(list.get(-1 - model.len() as i64), None);
        let wanted = &model[index];
        let expected: Vec<_> = (0..model.len()).filter(|&at| model[at] == *wanted).collect();
        for end in [ListEnd::Left, ListEnd::Right] {
            let mut found = Vec::new();
            list.find(wanted, end, usize::MAX, |at| {
                found.push(at);
                ControlFlow::Continue(())
            });
            if end == ListEnd::Right {
                found.reverse();
            }
            assert_eq!(found, expected);
        }
    }
}

/// Every operation on every form, with limits that change under way; each text of a limit's class is near it.
#[test]
fn lists_do_what_deques_do() {
    for setting in [-1, -2, -5, 1, 2, 3, 7, 100, 0] {
        let mut random = Random(setting as u64);
        let mut pair = Pair { lone: Lone::new(setting), model: VecDeque::new() };
        let mut seen = [0; 3];
        for step in 0..3000 {
            // Now and then it is another limit; then again the first, so that lists of all ages meet all
            // limits.
            let other = if step % 500 < 400 { setting } else { [-1, 4, -3][step / 500 % 3] };
            pair.lone.set_limit(other);
            if pair.model.len() > 150 {
                pair.pop(ListEnd::Left, 100);
            }
            pair.step(&mut random);
            pair.check(&mut random);
            seen[["none", "listpack", "quicklist"]
                .iter()
                .position(|&name| name == pair.lone.encoding())
                .unwrap()] += 1;
        }
        assert!(seen.iter().all(|&n| n > 0), "{setting} has seen {seen:?}");
    }
}

#[test]
fn a_copy_shares_nothing() {
    for n in [3, 5000] {
        let mut lone = Lone::new(-1);
        (0..n).for_each(|at| _ = lone.push(ListEnd::Right, format!("element {at}").as_bytes()));
        lone.push(ListEnd::Left, &[b'x'; 100_000]);
        let texts = lone.texts();
        let key = lone.key();
        let copy = lone.shard.copy(&key, b"copy").expect("there is a list");
        lone.list().pop(ListEnd::Right, 2, |_| {});
        let copy = ListRef::of(copy.as_ref(), Millis(1)).expect("the copy is a list");
        assert!(copy.elements_from(0).map(Element::to_vec).eq(texts));
        assert_eq!(lone.texts().len(), n - 1);
    }
}

/// The bytes of a small list of one text.
fn packed_bytes(text: &[u8]) -> usize {
    let mut buffer = packed::EMPTY.to_vec();
    packed::push(&mut buffer, text);
    buffer.len()
}

/// A list becomes large by the bare length of what is added, and small again at half of the limit, to the
/// byte.
#[test]
fn bytes_limit_the_forms() {
    for (setting, max) in [(-1, 4096), (-2, 8192), (-3, 16384), (-4, 32768), (-5, 65536), (-100, 65536)] {
        let over_half = (0..max).map(|len| vec![b'x'; len]).find(|text| packed_bytes(text) == max / 2 + 1);
        let over_half = over_half.expect("there is a text of such a length");
        let mut lone = Lone::new(setting);
        lone.push(ListEnd::Right, &over_half);
        let rest = vec![b'y'; max - packed_bytes(&over_half)];
        lone.push(ListEnd::Right, &rest);
        assert_eq!(lone.encoding(), "listpack", "{setting}: by their bare length they fit to the byte");
        lone.list().pop(ListEnd::Right, 1, |_| {});
        lone.push(ListEnd::Right, &[&rest[..], b"y"].concat());
        assert_eq!(lone.encoding(), "quicklist", "{setting}");
        assert_eq!(lone.parts(), [1, 1], "{setting}: the small list is a chunk");
        lone.list().pop(ListEnd::Right, 1, |_| {});
        assert_eq!(lone.encoding(), "quicklist", "{setting}: half and a byte");
        lone.list().set(0, &over_half[1..]);
        assert_eq!(lone.encoding(), "listpack", "{setting}: half");
    }
}

#[test]
fn numbers_of_elements_limit_the_forms() {
    let mut lone = Lone::new(4);
    (0..4).for_each(|_| _ = lone.push(ListEnd::Left, b"a"));
    assert_eq!(lone.encoding(), "listpack");
    lone.push(ListEnd::Left, b"b");
    assert_eq!((lone.encoding(), lone.parts()), ("quicklist", vec![1, 4]));
    lone.list().pop(ListEnd::Right, 3, |_| {});
    assert_eq!((lone.encoding(), lone.parts()), ("quicklist", vec![1, 1]), "few, but in two chunks");
    lone.list().pop(ListEnd::Right, 1, |_| {});
    assert_eq!(lone.encoding(), "listpack");

    for setting in [0, 1] {
        let mut lone = Lone::new(setting);
        lone.push(ListEnd::Left, b"a");
        assert_eq!(lone.encoding(), "listpack");
        lone.push(ListEnd::Left, b"b");
        lone.list().pop(ListEnd::Left, 1, |_| {});
        assert_eq!(lone.encoding(), "quicklist", "one element is more than half of one");
    }
    // There is a limit of bytes as well.
    let mut lone = Lone::new(100);
    lone.push(ListEnd::Left, &[b'x'; 8192 - 7]);
    assert_eq!(lone.encoding(), "listpack");
    lone.push(ListEnd::Left, b"");
    assert_eq!(lone.encoding(), "quicklist");
}

#[test]
fn what_comes_to_nothing_may_make_a_list_large() {
    for setting in [-1, 2] {
        let mut lone = Lone::new(setting);
        lone.push(ListEnd::Right, b"a");
        lone.push(ListEnd::Right, b"b");
        assert_eq!(lone.list().insert(Side::After, b"none", &[b'x'; 5000]), None);
        assert_eq!((lone.encoding(), lone.parts()), ("quicklist", vec![2]));
        assert!(lone.list().set(0, b"c"), "what is written makes it small again if it is little enough");
        assert_eq!(lone.encoding(), if setting == -1 { "listpack" } else { "quicklist" });
    }
    let mut lone = Lone::new(-1);
    lone.push(ListEnd::Right, b"a");
    assert!(!lone.list().set(7, &[b'x'; 5000]));
    assert_eq!(lone.encoding(), "quicklist");
}

#[test]
fn a_long_text_stands_alone() {
    let mut lone = Lone::new(-1);
    let long = [b'x'; 4097];
    ["a", "b", "c", "d"].iter().for_each(|text| _ = lone.push(ListEnd::Right, text.as_bytes()));
    lone.list().set(1, &long);
    assert_eq!(lone.parts(), [1, 1, 2]);
    lone.list().insert(Side::Before, b"d", &long);
    assert_eq!(lone.parts(), [1, 1, 1, 1, 1]);
    lone.list().insert(Side::After, &long, b"e");
    assert_eq!(lone.parts(), [1, 1, 2, 1, 1], "the next chunk takes what a long text does not");
    lone.list().set(-2, b"f");
    assert_eq!(lone.parts(), [1, 1, 2, 2], "and so it does when the long text goes");
    lone.list().remove(&long, ListEnd::Left, usize::MAX);
    assert_eq!(lone.parts(), [1, 2, 2]);
    assert_eq!(lone.texts(), ["a", "e", "c", "f", "d"].map(|text| text.as_bytes().to_vec()));
    lone.list().trim(0..1);
    assert_eq!(lone.encoding(), "listpack");
    lone.list().set(0, &long);
    assert_eq!(lone.encoding(), "quicklist", "a long text is never a small list");
}

#[test]
fn a_full_chunk_is_cut_where_something_is_put_in() {
    let mut lone = Lone::new(4);
    (0..12).for_each(|n| _ = lone.push(ListEnd::Right, n.to_string().as_bytes()));
    assert_eq!(lone.parts(), [4, 4, 4]);
    lone.list().insert(Side::After, b"5", b"x");
    assert_eq!(lone.parts(), [4, 2, 3, 4], "0 to 3, then 4 and 5, then x, 6 and 7, then 8 to 11");
    lone.list().insert(Side::Before, b"8", b"y");
    assert_eq!(lone.parts(), [4, 2, 4, 4], "the chunk before has room");
    lone.list().pop(ListEnd::Left, 3, |_| {});
    assert_eq!(lone.parts(), [1, 2, 4, 4]);
    lone.list().insert(Side::After, b"x", b"z");
    assert_eq!(lone.parts(), [4, 4, 4], "what is around the cut is merged: 3, then 4 and 5, then x");
    let texts = ["3", "4", "5", "x", "z", "6", "7", "y", "8", "9", "10", "11"];
    assert_eq!(lone.texts(), texts.map(|text| text.as_bytes().to_vec()));
}

/// Filled from either end, and whatever is then done to it, a list takes little more than its elements.
#[test]
fn chunks_are_shrunk_when_they_are_full() {
    for end in [ListEnd::Left, ListEnd::Right] {
        for text_bytes in [3, 8, 50, 700] {
            let mut lone = Lone::new(-2);
            (0..20_000).for_each(|_| _ = lone.push(end, &vec![b'x'; text_bytes]));
            let allocated = lone.read().unwrap().entry().allocated_bytes();
            let stored = 20_000 * (packed_bytes(&vec![b'x'; text_bytes]) - packed::EMPTY.len());
            assert!(allocated < stored + stored / 16 + 16 * 1024, "{allocated} bytes for {stored}");
        }
    }
}

#[test]
fn what_is_removed_gives_its_memory_back() {
    let mut lone = Lone::new(-2);
    (0..50_000).for_each(|n| _ = lone.push(ListEnd::Right, [b"even", &b"odd"[..]][n % 2]));
    let allocated = |lone: &mut Lone| lone.read().unwrap().entry().allocated_bytes();
    let before = allocated(&mut lone);
    assert_eq!(lone.list().remove(b"odd", ListEnd::Left, usize::MAX), 25_000);
    assert!(allocated(&mut lone) < before * 3 / 4, "{} of {before}", allocated(&mut lone));
    lone.list().trim(0..5000);
    assert!(allocated(&mut lone) < before / 4);
    lone.list().trim(0..2);
    assert!(allocated(&mut lone) < 100);
    let used = lone.keyspace.used_bytes();
    let key = lone.key();
    lone.shard.remove(&key, Event::Del);
    assert!(lone.keyspace.used_bytes() < used);
}

#[test]
fn only_what_changes_a_list_is_announced() {
    let mut lone = Lone::new(-2);
    let key = lone.key();
    let watched = crate::entry::key::WatchedKey { db: Db(0), bytes: NAME.into(), routed: key.routed };
    let stamp = lone.shard.watch(&key, &std::sync::Arc::default());
    let changed = |lone: &mut Lone, change: &mut dyn FnMut(&mut ListMut<'_>)| {
        let before = lone.shard.watch(&key, &std::sync::Arc::default());
        change(&mut lone.list());
        lone.shard.is_written_since(&watched, before)
    };
    assert!(changed(&mut lone, &mut |list| _ = list.push(ListEnd::Left, [&b"a"[..], b"b"].into_iter())));
    assert!(!changed(&mut lone, &mut |list| _ = list.insert(Side::Before, b"none", b"c")));
    assert!(!changed(&mut lone, &mut |list| _ = list.remove(b"none", ListEnd::Left, 1)));
    assert!(!changed(&mut lone, &mut |list| _ = list.set(2, b"c")));
    assert!(!changed(&mut lone, &mut |list| list.pop(ListEnd::Left, 0, |_| {})));
    assert!(changed(&mut lone, &mut |list| _ = list.set(1, b"a")), "an equal text is one as well");
    assert!(changed(&mut lone, &mut |list| list.trim(0..9)), "and so is trimming to everything");
    assert!(changed(&mut lone, &mut |list| _ = list.remove(b"b", ListEnd::Left, 1)));
    assert!(changed(&mut lone, &mut |list| list.pop(ListEnd::Left, 1, |_| {})), "the list goes");
    assert!(lone.read().is_none());
    assert!(lone.shard.is_written_since(&watched, stamp));
}
