//! Where an entry stands in its stream.

/// The identity of an entry, and its place: a time in milliseconds, and a number among the entries of that
/// time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// Milliseconds since the Unix epoch, or whatever who adds the entry says.
    pub ms: u64,
    /// Tells entries of the same millisecond apart.
    pub seq: u64,
}

impl StreamId {
    /// Before every entry: no entry has this one.
    pub const MIN: StreamId = StreamId { ms: 0, seq: 0 };
    /// The last one possible.
    pub const MAX: StreamId = StreamId { ms: u64::MAX, seq: u64::MAX };

    /// The one with these numbers.
    pub const fn new(ms: u64, seq: u64) -> Self {
        StreamId { ms, seq }
    }

    /// The least one that is greater.
    pub fn next(self) -> Option<Self> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(StreamId { ms: self.ms, seq }),
            None => Some(StreamId { ms: self.ms.checked_add(1)?, seq: 0 }),
        }
    }

    /// The greatest one that is less.
    pub fn previous(self) -> Option<Self> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(StreamId { ms: self.ms, seq }),
            None => Some(StreamId { ms: self.ms.checked_sub(1)?, seq: u64::MAX }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_neighbours_up_to_the_ends() {
        let carry = StreamId::new(5, u64::MAX);
        assert_eq!(StreamId::new(5, 7).next(), Some(StreamId::new(5, 8)));
        assert_eq!(carry.next(), Some(StreamId::new(6, 0)));
        assert_eq!(StreamId::new(6, 0).previous(), Some(carry));
        assert_eq!(StreamId::MAX.next(), None);
        assert_eq!(StreamId::MIN.previous(), None);
    }
}
