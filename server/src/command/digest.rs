//! DEBUG DIGEST and DIGEST-VALUE: fingerprints that are the same for the same data, however it is stored.

use braid_protocol::reply::Reply;
use braid_storage::{
    Db, HashRef, ListRef, Position, SetRef, SortedSetRef,
    entry::{EntryRef, Kind},
    has_expired,
    packed::Element,
    stream::{Group, Stream, StreamId, StreamRef},
    time::Millis,
};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::{Call, admin::debug_args};
use crate::catalog::{Args, CommandError, Outcome};

/// As long as that of Redis, which hashes otherwise: only digests of the same program compare.
const DIGEST_BYTES: usize = 20;

/// A fingerprint, of nothing to begin with.
#[derive(Clone, Copy, Default)]
struct Digest([u8; DIGEST_BYTES]);

impl Digest {
    /// Goes on with `part`, whose place counts.
    fn then(self, part: &[u8]) -> Self {
        let bytes = [&self.0, part].concat();
        let mut digest = Self::default();
        for (seed, part) in digest.0.chunks_mut(16).enumerate() {
            part.copy_from_slice(&xxh3_128_with_seed(&bytes, seed as u64).to_le_bytes()[..part.len()]);
        }
        digest
    }

    fn then_element(self, part: Element<'_>) -> Self {
        part.with_text(|text| self.then(text))
    }

    fn then_number(self, number: u64) -> Self {
        self.then(&number.to_le_bytes())
    }

    fn then_id(self, id: StreamId) -> Self {
        self.then_number(id.ms).then_number(id.seq)
    }

    /// Adds another, whose place does not count.
    fn and(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(byte, other)| *byte ^= other);
        self
    }

    fn write(self, reply: &mut Reply<'_>) {
        reply.simple(&self.0.map(|byte| format!("{byte:02x}")).concat());
    }
}

/// The digest of a value, and of whether it has a deadline.
fn digest_of(entry: EntryRef<'_>, now: Millis) -> Result<Digest, CommandError> {
    let any_order = |parts: &mut dyn Iterator<Item = Digest>| parts.fold(Digest::default(), Digest::and);
    let digest = Digest::default();
    let of_value = match entry.kind() {
        Kind::String => digest.then(entry.bytes().expect("a string is bytes")),
        Kind::List => ListRef::of(entry, now)?.elements_from(0).fold(digest, Digest::then_element),
        Kind::Set => any_order(&mut SetRef::of(entry, now)?.iter().map(|member| digest.then_element(member))),
        Kind::SortedSet => {
            let set = SortedSetRef::of(entry, now)?;
            let digest_of = |scored: braid_storage::sorted_set::Scored<'_>| {
                digest.then_element(scored.member).then_number(scored.score().to_bits())
            };
            any_order(&mut set.iter(0..set.len()).map(digest_of))
        }
        Kind::Hash => {
            let fields = HashRef::of(entry, now)?.iter().map(|field| {
                let digest = digest.then_element(field.name).then_element(field.value);
                if field.deadline.is_some() { digest.then(b"deadline") } else { digest }
            });
            any_order(&mut { fields })
        }
        Kind::Stream => digest_of_stream(StreamRef::of(entry, now)?.stream()),
    };
    let digest = digest.then(crate::client::sweep::type_name(entry.kind()).as_bytes()).then(&of_value.0);
    Ok(if entry.has_deadline() { digest.then(b"deadline") } else { digest })
}

fn digest_of_stream(stream: &Stream) -> Digest {
    let entries = stream.entries();
    let mut digest = Digest::default().then_id(entries.last_id());
    for entry in entries.range(StreamId::MIN, StreamId::MAX) {
        digest = digest.then_id(entry.id());
        for (name, value) in entry.fields() {
            digest = digest.then_element(name).then_element(value);
        }
    }
    stream.groups().map(|(name, group)| digest_of_group(name, group)).fold(digest, Digest::and)
}

fn digest_of_group(name: &[u8], group: &Group) -> Digest {
    let mut digest = Digest::default().then(name).then_id(group.last_delivered_id());
    for pending in group.pending(StreamId::MIN, StreamId::MAX) {
        digest = digest.then_id(pending.id).then(pending.consumer).then_number(pending.n_deliveries);
    }
    group.consumers().map(|consumer| Digest::default().then(consumer.name())).fold(digest, Digest::and)
}

/// The digest of all databases: zeros if there are no keys.
pub(super) fn debug_digest(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(call, args, 0)?;
    let mut digest = Digest::default();
    for index in 0..call.server.keyspace.n_dbs() {
        call.each_shard(Db(index as u16), |shard| {
            let now = shard.now();
            let mut visit = |entry: EntryRef<'_>| {
                if !has_expired(entry, now) {
                    let of_value = digest_of(entry, now).expect("it is of the type that it says");
                    let of_key = Digest::default().then_number(index as u64).then(entry.key());
                    digest = digest.and(of_key.then(&of_value.0));
                }
            };
            shard.scan(Position::START, usize::MAX, &mut visit);
        });
    }
    digest.write(reply);
    Ok(())
}

/// The digest of each key's value: zeros if there is no such key.
pub(super) fn debug_digest_value(
    call: &mut Call<'_, '_>,
    mut args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Outcome {
    debug_args(call, args, args.remaining())?;
    reply.array(args.remaining());
    while !args.is_empty() {
        let key = args.key()?;
        let shard = call.shard_of(&key);
        let now = shard.now();
        let digest = shard.peek(&key).map(|entry| digest_of(entry, now)).transpose()?;
        digest.unwrap_or_default().write(reply);
    }
    Ok(())
}
