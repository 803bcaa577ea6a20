//! The keys with the most weight in a stream of keys, in bounded memory: the space-saving algorithm
//! (Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and top-k elements in data streams",
//! 2005).
//!
//! A summary has room for [`CAPACITY`] keys. A new key replaces the lightest one of a full summary, and
//! starts with its weight as a debt. So a key with more than `1 / CAPACITY` of the total weight is always in
//! it. Its weight less its debt never exceeds its real weight.

use std::{collections::HashMap, sync::Arc};

/// The number of keys in a summary.
pub const CAPACITY: usize = 1024;

/// The heaviest keys of a stream.
#[derive(Debug, Default)]
pub struct TopKeys {
    /// The entries, in the order of their arrival.
    entries: Vec<TopKey>,
    /// Indices of entries, as a binary heap with the lightest first. None is lighter than the one at half its
    /// position.
    heap: Vec<usize>,
    by_key: HashMap<Arc<[u8]>, usize>,
}

#[derive(Debug)]
struct TopKey {
    key: Arc<[u8]>,
    weight: u64,
    /// The part of the weight that may belong to keys that it has replaced.
    debt: u64,
    /// Its position in the heap.
    at: usize,
}

impl TopKeys {
    /// Adds to the weight of a key.
    pub fn add(&mut self, key: &[u8], weight: u64) {
        let entry = match self.by_key.get(key) {
            Some(&entry) => entry,
            None if self.entries.len() < CAPACITY => self.add_entry(key),
            None => self.replace_lightest(key),
        };
        self.entries[entry].weight += weight;
        self.sink(self.entries[entry].at);
    }

    /// The keys, each with the minimum of its weight.
    pub fn iter(&self) -> impl Iterator<Item = Weighed> {
        self.entries.iter().map(|entry| (Arc::clone(&entry.key), entry.weight - entry.debt))
    }

    fn add_entry(&mut self, key: &[u8]) -> usize {
        let (entry, at) = (self.entries.len(), self.heap.len());
        let key: Arc<[u8]> = key.into();
        self.entries.push(TopKey { key: Arc::clone(&key), weight: 0, debt: 0, at });
        self.heap.push(entry);
        self.by_key.insert(key, entry);
        self.rise(at);
        entry
    }

    fn replace_lightest(&mut self, key: &[u8]) -> usize {
        let entry = self.heap[0];
        let key: Arc<[u8]> = key.into();
        let replaced = &mut self.entries[entry];
        replaced.debt = replaced.weight;
        let before = std::mem::replace(&mut replaced.key, Arc::clone(&key));
        self.by_key.remove(&before);
        self.by_key.insert(key, entry);
        entry
    }

    fn weight_at(&self, at: usize) -> u64 {
        self.entries[self.heap[at]].weight
    }

    /// Moves a new entry without weight to its place.
    fn rise(&mut self, mut at: usize) {
        while at > 0 && self.weight_at(at) < self.weight_at((at - 1) / 2) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    /// Moves an entry that has become heavier to its place.
    fn sink(&mut self, mut at: usize) {
        loop {
            let children = 2 * at + 1..(2 * at + 3).min(self.heap.len());
            let Some(lightest) = children.min_by_key(|&child| self.weight_at(child)) else { return };
            if self.weight_at(at) <= self.weight_at(lightest) {
                return;
            }
            self.swap(at, lightest);
            at = lightest;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for at in [a, b] {
            self.entries[self.heap[at]].at = at;
        }
    }
}

/// A key with its weight.
pub type Weighed = (Arc<[u8]>, u64);

/// Returns the `count` heaviest keys of several streams, heaviest first. Keys without weight are left out.
pub fn heaviest(all: impl Iterator<Item = Weighed>, count: usize) -> Vec<Weighed> {
    let mut weights: HashMap<Arc<[u8]>, u64> = HashMap::new();
    for (key, weight) in all {
        *weights.entry(key).or_default() += weight;
    }
    let mut heaviest: Vec<_> = weights.into_iter().filter(|(_, weight)| *weight > 0).collect();
    heaviest.sort_unstable_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then_with(|| a.cmp(b)));
    heaviest.truncate(count);
    heaviest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> [u8; 8] {
        number.to_be_bytes()
    }

    #[test]
    fn a_heavy_key_is_found_among_very_many() {
        let mut summary = TopKeys::default();
        for number in 0..100_000 {
            summary.add(&key(number), 1 + number % 3);
            if number % 100 == 0 {
                summary.add(b"hot", 100);
            }
        }
        let found = heaviest(summary.iter(), 1);
        let [(hot, weight)] = &found[..] else { panic!("{found:?}") };
        // Its weight before it stayed cannot be told from the weight of other keys.
        assert_eq!(&hot[..], b"hot");
        assert!((90_000..=100_000).contains(weight), "{weight}");
        assert!(summary.entries.len() == CAPACITY && summary.by_key.len() == CAPACITY);
    }

    #[test]
    fn below_its_capacity_it_counts_exactly_and_streams_add_up() {
        let mut summaries = [TopKeys::default(), TopKeys::default()];
        for round in 0..10 {
            for number in 0..CAPACITY as u64 / 2 {
                summaries[round % 2].add(&key(number), number);
            }
        }
        let found = heaviest(summaries.iter().flat_map(TopKeys::iter), usize::MAX);
        let expected = (1..CAPACITY as u64 / 2).rev();
        let expected: Vec<(Arc<[u8]>, u64)> =
            expected.map(|number| (key(number)[..].into(), 10 * number)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn no_weight_is_more_than_what_a_key_had() {
        let (mut summary, mut had) = (TopKeys::default(), HashMap::<u64, u64>::new());
        let mut state = 1u64;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (number, weight) = ((state >> 40) % 5000, (state >> 20) % 7);
            summary.add(&key(number), weight);
            *had.entry(number).or_default() += weight;
            let lightest = summary.heap[0];
            debug_assert!(summary.entries[lightest].at == 0);
        }
        let least = summary.entries.iter().map(|entry| entry.weight).min().unwrap();
        assert_eq!(summary.weight_at(0), least, "the lightest stands first");
        for (key, weight) in summary.iter() {
            let number = u64::from_be_bytes(key[..].try_into().unwrap());
            assert!(weight <= had[&number], "{number}: {weight} of {}", had[&number]);
        }
    }
}
