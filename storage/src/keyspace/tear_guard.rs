//! A shard's marks of the changes under way.

/// The marks of a shard. The top bit says that a change has begun since
/// [`Shard::start`](crate::keyspace::shard::Shard::start), so a panic now may leave the shard torn. The other
/// bits count the changes of keys, or of elements in them, since the last
/// [`Shard::take_changed`](crate::keyspace::shard::Shard::take_changed). It is one word, as the first cache
/// line has no room for more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks(u32);

impl Marks {
    const TORN: u32 = 1 << 31;

    /// Marks the beginning of a change.
    #[inline(always)]
    pub(crate) fn tear(&mut self) {
        self.0 |= Self::TORN;
    }

    /// Clears the mark: all changes are whole.
    #[inline(always)]
    pub(crate) fn mend(&mut self) {
        self.0 &= !Self::TORN;
    }

    pub(crate) fn is_torn(self) -> bool {
        self.0 & Self::TORN != 0
    }

    /// Counts a change of a key. A hold has nowhere near 2³¹.
    #[inline(always)]
    pub(crate) fn count(&mut self) {
        self.0 += 1;
    }

    /// Counts `n` changes at once, up to 2³¹ - 1 in all.
    #[inline(always)]
    pub(crate) fn count_all(&mut self, n: usize) {
        let n_before = (self.0 & !Self::TORN) as usize;
        let n_changes = n_before.saturating_add(n).min(!Self::TORN as usize);
        self.0 = self.0 & Self::TORN | n_changes as u32;
    }

    /// The changes since the last call.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> u32 {
        let n_changes = self.0 & !Self::TORN;
        self.0 &= Self::TORN;
        n_changes
    }
}
