//! Digests: fingerprints that are the same for the same data, however it is stored.

use std::fmt;

use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::{
    entry::{EntryRef, time::Millis},
    types::{
        hashes::HashRef,
        list::ListRef,
        packed::Element,
        set::SetRef,
        sorted_set::{Scored, SortedSetRef},
        stream::{Group, StreamId, StreamRef},
    },
};

/// As long as that of Redis, which hashes otherwise: only digests of the same program compare.
const DIGEST_BYTES: usize = 20;

/// A fingerprint, of nothing to begin with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest([u8; DIGEST_BYTES]);

impl Digest {
    /// Goes on with `part`, whose place counts.
    pub fn then(self, part: &[u8]) -> Self {
        let bytes = [&self.0, part].concat();
        let mut digest = Self::default();
        for (seed, part) in digest.0.chunks_mut(16).enumerate() {
            part.copy_from_slice(&xxh3_128_with_seed(&bytes, seed as u64).to_le_bytes()[..part.len()]);
        }
        digest
    }

    /// Goes on with another, whose place counts.
    pub fn and_then(self, other: &Self) -> Self {
        self.then(&other.0)
    }

    fn then_element(self, part: Element<'_>) -> Self {
        part.with_text(|text| self.then(text))
    }

    /// Goes on with a number, whose place counts.
    pub fn then_number(self, number: u64) -> Self {
        self.then(&number.to_le_bytes())
    }

    fn then_id(self, id: StreamId) -> Self {
        self.then_number(id.ms).then_number(id.seq)
    }

    /// Adds another, whose place does not count.
    pub fn and(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(byte, other)| *byte ^= other);
        self
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn in_any_order(parts: impl Iterator<Item = Digest>) -> Digest {
    parts.fold(Digest::default(), Digest::and)
}

/// The fingerprint of a string.
pub(crate) fn of_string(entry: EntryRef<'_>, _: Millis) -> Digest {
    Digest::default().then(entry.bytes().expect("a string is bytes"))
}

/// The fingerprint of a list.
pub(crate) fn of_list(entry: EntryRef<'_>, now: Millis) -> Digest {
    ListRef::known(entry, now).elements_from(0).fold(Digest::default(), Digest::then_element)
}

/// The fingerprint of a set.
pub(crate) fn of_set(entry: EntryRef<'_>, now: Millis) -> Digest {
    in_any_order(SetRef::known(entry, now).iter().map(|member| Digest::default().then_element(member)))
}

/// The fingerprint of a sorted set.
pub(crate) fn of_sorted_set(entry: EntryRef<'_>, now: Millis) -> Digest {
    let set = SortedSetRef::known(entry, now);
    let of_member = |scored: Scored<'_>| {
        Digest::default().then_element(scored.member).then_number(scored.score().to_bits())
    };
    in_any_order(set.iter(0..set.len()).map(of_member))
}

/// The fingerprint of a hash: fields have deadlines or not, whenever those are.
pub(crate) fn of_hash(entry: EntryRef<'_>, now: Millis) -> Digest {
    in_any_order(HashRef::known(entry, now).iter().map(|field| {
        let digest = Digest::default().then_element(field.name).then_element(field.value);
        if field.deadline.is_some() { digest.then(b"deadline") } else { digest }
    }))
}

/// The fingerprint of a stream.
pub(crate) fn of_stream(entry: EntryRef<'_>, now: Millis) -> Digest {
    let stream = StreamRef::known(entry, now).stream();
    let entries = stream.entries();
    let mut digest = Digest::default().then_id(entries.last_id());
    for entry in entries.range(StreamId::MIN, StreamId::MAX) {
        digest = digest.then_id(entry.id());
        for (name, value) in entry.fields() {
            digest = digest.then_element(name).then_element(value);
        }
    }
    stream.groups().map(|(name, group)| of_group(name, group)).fold(digest, Digest::and)
}

fn of_group(name: &[u8], group: &Group) -> Digest {
    let mut digest = Digest::default().then(name).then_id(group.last_delivered_id());
    for pending in group.pending(StreamId::MIN, StreamId::MAX) {
        digest = digest.then_id(pending.id).then(pending.consumer).then_number(pending.n_deliveries);
    }
    group.consumers().map(|consumer| Digest::default().then(consumer.name())).fold(digest, Digest::and)
}
