//! Going through a table by positions, with SCAN's guarantee.
//!
//! A cursor is a point in the space of positions: everything before it has been visited. **Guarantee**: an
//! entry that is in the table from the first call to the last is visited at least once, whatever happens
//! between the calls.
//!
//! *Proof.* A position depends on the key alone, so an entry has the same one as long as it is there. A call
//! from `a` that returns `b` visits every entry whose position is in [a, b). Such an entry's home is one of
//! the buckets that cover [a, b), because homes ascend with positions and `b` is the start of the bucket
//! after the last one. An entry is in its home or further along an unbroken row of overflow bits. The call
//! follows that row past the last bucket, round the segment's end if it must.
//!
//! Entries on the way are judged by their own position, not by the bucket. Those displaced into these buckets
//! from before `a`, or with a position from `b` on, are left out. The next call begins at `b`, so the
//! intervals of all calls cover the space, in whatever buckets, segments and depths each call finds it. The
//! entry's position is in one of them. ∎
//!
//! Within one table an entry is visited exactly once, since the intervals do not overlap and a call looks at
//! each bucket once.
//!
//! A cursor on the wire is below 2⁵³, because scripts see doubles: the shard's number on top, then the
//! position's top bits. Calls stop at the starts of buckets, which are at multiples of 2²⁶ at the least. A
//! bucket's share is 2⁻¹⁰ of a segment, and a segment is at least 2⁻²⁸ of the space. Even with 2¹⁴ shards the
//! cut keeps multiples of 2²⁵, so nothing is lost.

use super::Table;
use super::bucket::{KNOWN_POSITION_BITS, SLOTS};
use crate::entry::EntryRef;
use crate::table::hash::{Place, Router, ShardId};
use crate::table::prefetch;

/// A point in the space of positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub(super) u64);

impl Position {
    /// The start of every walk.
    pub const START: Position = Position(0);

    /// Whether a walk at this position has passed a place.
    #[inline]
    pub(crate) fn has_passed(self, place: Place) -> bool {
        place.position() < self.0
    }

    /// The number by which clients know a position in a table that belongs to no shard: 0 at the start, else
    /// between 0 and 2⁵³.
    pub fn encode(self) -> u64 {
        debug_assert_eq!(self.0 << CURSOR_BITS, 0, "walks stop at multiples of 2^26");
        self.0 >> (64 - CURSOR_BITS)
    }

    /// Reads a number of [`encode`](Self::encode), or any number below 2⁵³ that a client makes up.
    pub fn decode(number: u64) -> Option<Position> {
        (number >> CURSOR_BITS == 0).then_some(Position(number << (64 - CURSOR_BITS)))
    }
}

/// The number of buckets whose entries are fetched before the first is visited.
const FETCHED_BUCKETS: usize = 4;

/// Bits of a cursor on the wire.
const CURSOR_BITS: u32 = 53;

/// The state of a SCAN over all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The present shard; all before are done.
    pub shard: ShardId,
    /// The position in the shard's table.
    pub position: Position,
}

impl Cursor {
    /// The number by which clients know the cursor: 0 at the start, else between 0 and 2⁵³.
    pub fn encode(self, router: &Router) -> u64 {
        let position_bits = CURSOR_BITS - router.shard_bits();
        debug_assert_eq!(self.position.0 << position_bits, 0, "walks stop at multiples of 2^26");
        (self.shard.0 as u64) << position_bits | self.position.0 >> (64 - position_bits)
    }

    /// Reads a number of [`encode`](Self::encode), or any number below 2⁵³ that a client makes up.
    pub fn decode(number: u64, router: &Router) -> Option<Cursor> {
        if number >> CURSOR_BITS != 0 {
            return None;
        }
        let position_bits = CURSOR_BITS - router.shard_bits();
        let shard = ShardId((number >> position_bits) as u16);
        Some(Cursor { shard, position: Position(number << (64 - position_bits)) })
    }

    /// The start of the next shard's table, if there is a next shard.
    pub fn next_shard(self, router: &Router) -> Option<Cursor> {
        let next = self.shard.index() + 1;
        (next < router.n_shards())
            .then_some(Cursor { shard: ShardId(next as u16), position: Position::START })
    }
}

impl Table {
    /// Visits the entries at positions from `from` on, through `max_buckets` buckets (and those into which
    /// they overflow). Returns the position to go on from, or `None` at the end. The module's text states the
    /// guarantee.
    pub fn scan(
        &self,
        from: Position,
        max_buckets: usize,
        visit: &mut dyn FnMut(EntryRef<'_>),
    ) -> Option<Position> {
        let directory = self.root().directory()?;
        let mut from = from.0;
        let mut left = max_buckets.max(1);
        loop {
            let segment = directory.segment(directory.index(from)).segment();
            let first = segment.home(from);
            let last = segment.n_buckets().min(first.saturating_add(left));
            let to = segment.start_of(last, from);
            let is_inside = |position: u64| from <= position && to.is_none_or(|to| position < to);
            // The top of a position is enough to compare it with bounds that have no lower bits.
            let top_is_enough = (from | to.unwrap_or(0)) << KNOWN_POSITION_BITS == 0;
            // Their latencies overlap.
            for at in first..last.min(first + FETCHED_BUCKETS) {
                for content in segment.bucket(at).contents() {
                    let entry = content.word.address();
                    prefetch::for_read(entry);
                    prefetch::for_read(entry.wrapping_add(64));
                }
            }
            let mut at = first;
            for step in 0..segment.n_buckets() {
                let bucket = segment.bucket(at);
                for content in bucket.contents() {
                    // SAFETY: the slot is occupied, and changing the entry takes the table mutably.
                    let entry = unsafe { content.word.entry() };
                    let position = if top_is_enough {
                        content.position_top()
                    } else {
                        self.router().place(entry.key()).position()
                    };
                    if is_inside(position) {
                        visit(entry);
                    }
                }
                if first + step + 1 >= last && !bucket.tags().is_overflowed() {
                    break;
                }
                at = segment.next(at);
            }
            left -= last - first;
            from = to?;
            if left == 0 {
                return Some(Position(from));
            }
        }
    }

    /// Visits entries from a position on, `n_entries` of them or a few buckets more, and fewer only at the
    /// end; otherwise like [`scan`](Self::scan).
    pub fn scan_entries(
        &self,
        from: Position,
        n_entries: usize,
        visit: &mut dyn FnMut(EntryRef<'_>),
    ) -> Option<Position> {
        let (mut from, mut n_visited) = (from, 0);
        loop {
            let n_buckets = (n_entries - n_visited).div_ceil(SLOTS);
            from = self.scan(from, n_buckets, &mut |entry| {
                n_visited += 1;
                visit(entry);
            })?;
            if n_visited >= n_entries {
                return Some(from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::hash::{HashTags, KeyHasher, SHARD_BITS_MAX};

    #[test]
    fn cursors_stay_below_two_to_the_53_and_come_back() {
        for shard_bits in 0..=SHARD_BITS_MAX {
            let router = Router::new(KeyHasher::with_key(1, 2), shard_bits, HashTags::Honoured);
            let shard = ShardId((router.n_shards() - 1) as u16);
            for position in [0, 1 << 26, 0x1234_5678_9c00_0000, u64::MAX << 26] {
                let cursor = Cursor { shard, position: Position(position) };
                let number = cursor.encode(&router);
                assert!(number < 1 << 53);
                assert_eq!(Cursor::decode(number, &router), Some(cursor));
                assert_eq!(cursor.next_shard(&router), None);
            }
            assert_eq!(Cursor::default().encode(&router), 0);
            assert_eq!(Cursor::decode(1 << 53, &router), None);
            assert_eq!(Cursor::decode(u64::MAX, &router), None);
        }
    }

    #[test]
    fn positions_stay_below_two_to_the_53_and_come_back() {
        for position in [0, 1 << 26, 0x1234_5678_9c00_0000, u64::MAX << 26].map(Position) {
            assert!(position.encode() < 1 << 53);
            assert_eq!(Position::decode(position.encode()), Some(position));
        }
        assert_eq!(Position::START.encode(), 0);
        assert_eq!(Position::decode(1 << 53), None);
        assert_eq!(Position::decode(u64::MAX), None);
    }
}
