//! Where a key lives: its shard, and its place in the shard's table.
//!
//! Keys are chosen by clients, so the hash must withstand clients who choose them to collide. It is
//! **SipHash-1-3** under a 128-bit key drawn at random at start: the function
//! that Redis uses in its reduced form (1-2) and Rust's own `HashMap` in this one. The faster functions
//! (wyhash, rapidhash, FxHash, and ahash without AES) have published seed-independent collisions or make no
//! claim against chosen keys; they would save about 5 ns of the hash of a 16-byte key.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::hint::cold_path;

use crate::table::siphash::SipHash13;

/// How many shards there may be at most, as a power of two.
pub const SHARD_BITS_MAX: u32 = 14;

/// The number of a shard, below the number of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

impl ShardId {
    /// The number as an index into an array of shards.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The keyed hash of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash(pub u64);

/// Which bit of a place is the tag's first, counted from the top.
pub(crate) const TAG_BEGINS_AT: u32 = 19;

/// A key's place in its table: its hash, turned so that the bits that chose the shard come last.
///
/// The top bits are the *position*, by which tables order their entries. Eight bits of it are the *tag*:
/// those behind the [`TAG_BEGINS_AT`] that stand beside an entry's address. So a bucket tells positions to 26
/// bits, and the tag is independent of the bucket as long as a table has no more than 2¹⁹ of them, which is
/// 3.6 million entries; each doubling beyond takes a bit from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub(crate) u64);

impl Place {
    /// The point in hash space at which the key lies.
    #[inline]
    pub(crate) const fn position(self) -> u64 {
        self.0
    }

    /// The byte that stands for the key in its bucket: never 0, which means an empty slot.
    #[inline]
    pub(crate) const fn tag(self) -> u8 {
        let tag = (self.0 >> (64 - TAG_BEGINS_AT - u8::BITS)) as u8;
        tag | (tag == 0) as u8
    }
}

/// A keyed hash function for bytes that clients choose.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyHasher {
    sip: SipHash13,
}

impl KeyHasher {
    /// A hasher with a key that nobody can guess.
    pub fn random() -> Self {
        // The standard library keys its RandomState from the operating system's randomness; two of its
        // hashes are 128 bits that say nothing about each other.
        let random = RandomState::new();
        Self::with_key(random.hash_one(0u64), random.hash_one(1u64))
    }

    /// A hasher with a given key, for tests that must repeat.
    pub fn with_key(key_low: u64, key_high: u64) -> Self {
        KeyHasher { sip: SipHash13::with_key(key_low, key_high) }
    }

    /// Hashes some bytes.
    #[inline(always)]
    pub fn hash(&self, bytes: &[u8]) -> KeyHash {
        KeyHash(self.sip.hash(bytes))
    }
}

/// For maps by names that clients choose.
impl BuildHasher for KeyHasher {
    type Hasher = NameHasher;

    fn build_hasher(&self) -> NameHasher {
        NameHasher { hasher: *self, hash: 0 }
    }
}

/// Hashes a byte string that is written in one piece.
pub struct NameHasher {
    hasher: KeyHasher,
    hash: u64,
}

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.hash = self.hash.rotate_left(32) ^ self.hasher.hash(bytes).0;
    }

    fn write_usize(&mut self, _: usize) {
        // Slices announce their length. The hash has it in it.
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

impl std::fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key is a secret.
        f.write_str("KeyHasher")
    }
}

/// Whether keys with the same `{tag}` meet in one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashTags {
    /// The shard comes from the tag of a key that has one.
    Honoured,
    /// The shard always comes from the whole key: one prefix such as `{bull}:` on all keys would otherwise
    /// use one shard.
    Ignored,
}

/// Where a key lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Routed {
    /// The shard.
    pub shard: ShardId,
    /// The place in the shard's table.
    pub place: Place,
}

/// The map from keys to shards and places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Router {
    hasher: KeyHasher,
    shard_bits: u32,
    hash_tags: HashTags,
}

impl Router {
    /// A router to 2^`shard_bits` shards.
    ///
    /// # Panics
    /// If `shard_bits` is above [`SHARD_BITS_MAX`].
    pub fn new(hasher: KeyHasher, shard_bits: u32, hash_tags: HashTags) -> Self {
        assert!(shard_bits <= SHARD_BITS_MAX, "at most 2^{SHARD_BITS_MAX} shards");
        Router { hasher, shard_bits, hash_tags }
    }

    /// The router for a table that belongs to no shard: the members of a large set or hash.
    pub fn unsharded(hasher: KeyHasher) -> Self {
        Self::new(hasher, 0, HashTags::Ignored)
    }

    /// The number of shards.
    #[inline]
    pub fn n_shards(&self) -> usize {
        1 << self.shard_bits
    }

    /// The number of shards, as a power of two.
    #[inline]
    pub fn shard_bits(&self) -> u32 {
        self.shard_bits
    }

    /// The hash function.
    #[inline]
    pub fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    /// Finds a key's shard and place; one hash, and a second one only for a key with a tag.
    #[inline(always)]
    pub fn route(&self, key: &[u8]) -> Routed {
        let hash = self.hasher.hash(key);
        let of_shard = match self.hash_tags {
            HashTags::Honoured => match hash_tag(key) {
                Some(tag) => self.hash_of_tag(tag),
                None => hash,
            },
            HashTags::Ignored => hash,
        };
        // A shift by 64, for one shard, overflows, so it is made in two steps.
        let shard = (of_shard.0 >> 1) >> (63 - self.shard_bits);
        Routed { shard: ShardId(shard as u16), place: self.turn(hash) }
    }

    /// Apart, because most keys have no tag.
    #[cold]
    fn hash_of_tag(&self, tag: &[u8]) -> KeyHash {
        self.hasher.hash(tag)
    }

    /// Finds a key's place alone.
    #[inline]
    pub fn place(&self, key: &[u8]) -> Place {
        self.turn(self.hasher.hash(key))
    }

    #[inline]
    fn turn(&self, hash: KeyHash) -> Place {
        Place(hash.0.rotate_left(self.shard_bits))
    }
}

/// The part of a key that Redis's hash-tag rule selects: between the first `{` and the next `}`, where that
/// is not empty.
#[inline(always)]
pub fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    if may_have_brace(key) { find_hash_tag(key) } else { None }
}

/// Returns the hash slot of a key: the CRC16 of its tag or of all of it, modulo 16384 (Redis Cluster
/// Specification, "Key distribution model").
pub fn hash_slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key).unwrap_or(key)) % N_HASH_SLOTS
}

/// The number of hash slots of a cluster.
const N_HASH_SLOTS: u16 = 16384;

/// Computes CRC-16/XMODEM: the polynomial 0x1021, from 0, the highest bit first.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(
            crc ^ u16::from(byte) << 8,
            |crc: u16, _| {
                if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 }
            },
        )
    })
}

/// Apart, because most keys have no brace.
#[inline(never)]
fn find_hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = memchr::memchr(b'{', key)?;
    let inside = &key[open + 1..];
    match memchr::memchr(b'}', inside)? {
        0 => None,
        len => Some(&inside[..len]),
    }
}

/// Whether a key may have a `{`: exact up to 32 bytes, where a call of `memchr` would cost more than the
/// search.
#[inline(always)]
fn may_have_brace(key: &[u8]) -> bool {
    // The last words may overlap those before.
    match key.len() {
        0..8 => {
            cold_path();
            key.contains(&b'{')
        }
        8..=16 => is_brace_in(key, 0) | is_brace_in(key, key.len() - 8),
        17..=32 => {
            is_brace_in(key, 0)
                | is_brace_in(key, 8)
                | is_brace_in(key, key.len() - 16)
                | is_brace_in(key, key.len() - 8)
        }
        _ => true,
    }
}

/// Whether one of eight bytes is a `{`.
#[inline(always)]
fn is_brace_in(key: &[u8], from: usize) -> bool {
    const BRACES: u64 = u64::from_ne_bytes([b'{'; 8]);
    const LOW_BITS: u64 = u64::from_ne_bytes([0x7f; 8]);
    let difference = u64::from_ne_bytes(key[from..from + 8].try_into().expect("eight bytes")) ^ BRACES;
    // A byte's high bit stays clear exactly if the byte is 0.
    (((difference & LOW_BITS) + LOW_BITS) | difference | LOW_BITS) != u64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value is that of the Redis Cluster Specification; the slots are Valkey 9.1's.
    #[test]
    fn slots_are_those_of_a_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in [(&b"a"[..], 15495), (b"", 0), (b"x{a}y", 15495), (b"foo", 12182)] {
            assert_eq!(hash_slot(key), slot, "{key:?}");
        }
    }

    #[test]
    fn the_hash_tag_rule_is_that_of_the_cluster_specification() {
        assert_eq!(hash_tag(b"{user1000}.following"), Some(&b"user1000"[..]));
        assert_eq!(hash_tag(b"foo{}{bar}"), None);
        assert_eq!(hash_tag(b"foo{{bar}}zap"), Some(&b"{bar"[..]));
        assert_eq!(hash_tag(b"foo{bar}{zap}"), Some(&b"bar"[..]));
        assert_eq!(hash_tag(b"foo{bar"), None);
        assert_eq!(hash_tag(b"foo}bar{"), None);
        assert_eq!(hash_tag(b""), None);
        for len in 0..40 {
            for at in 0..len {
                let mut key = vec![b'z'; len];
                assert_eq!(hash_tag(&key), None);
                key[at] = b'{';
                assert_eq!(hash_tag(&key), None);
                if at + 2 < len {
                    key[at + 2] = b'}';
                    assert_eq!(hash_tag(&key), Some(&b"z"[..]));
                }
            }
        }
    }

    #[test]
    fn keys_with_one_tag_meet_unless_tags_are_ignored() {
        let hasher = KeyHasher::with_key(1, 2);
        let honoured = Router::new(hasher, 10, HashTags::Honoured);
        let ignored = Router::new(hasher, 10, HashTags::Ignored);
        let shards = |router: &Router| {
            let mut shards: Vec<_> =
                (0..100).map(|i| router.route(format!("{{a}}{i}").as_bytes()).shard).collect();
            shards.sort();
            shards.dedup();
            shards.len()
        };
        assert_eq!(shards(&honoured), 1);
        assert!(shards(&ignored) > 50);
        assert_eq!(honoured.route(b"{a}1").place, ignored.route(b"{a}1").place);
    }

    #[test]
    fn shards_and_positions_are_spread_for_every_number_of_shards() {
        for shard_bits in 0..=SHARD_BITS_MAX {
            let router = Router::new(KeyHasher::with_key(3, 4), shard_bits, HashTags::Honoured);
            let mut low_half = 0;
            for i in 0..1000 {
                let routed = router.route(format!("key:{i}").as_bytes());
                assert!(routed.shard.index() < router.n_shards());
                assert_ne!(routed.place.tag(), 0);
                low_half += (routed.place.position() >> 63 == 0) as usize;
            }
            assert!((400..600).contains(&low_half), "{low_half} of 1000 with {shard_bits} bits");
        }
    }

    #[test]
    fn two_random_hashers_differ() {
        assert_ne!(KeyHasher::random().hash(b"a"), KeyHasher::random().hash(b"a"));
    }
}
