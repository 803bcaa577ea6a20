//! The identity of a server's data over time, by which a replica finds out whether it may go on where it was.
//!
//! An ID names one history of writes, and an offset a place in it: the number of bytes of the change stream
//! before. Two servers with the same ID and offset have the same data.

use std::fmt;

use braid_journal::stream::Lsn;

use crate::random;

/// The ID of a history: 40 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReplicationId([u8; 40]);

impl ReplicationId {
    /// The ID that no history has.
    pub const NONE: Self = Self([b'0'; 40]);

    /// A new ID.
    pub fn random() -> Self {
        let mut digits = [0; 40];
        let random = (0..3).map(|_| format!("{:016x}", random::random())).collect::<String>();
        digits.copy_from_slice(&random.as_bytes()[..40]);
        Self(digits)
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("they are ASCII")
    }

    /// Whether a replica means this one.
    pub fn is(&self, asked: &[u8]) -> bool {
        self.0.eq_ignore_ascii_case(asked)
    }
}

impl fmt::Debug for ReplicationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The history that the data has now, and the one from which it went on.
#[derive(Clone, Debug)]
pub struct Lineage {
    id: ReplicationId,
    /// The history before, and the first offset that it does not share with this one.
    before: Option<(ReplicationId, u64)>,
    /// The offset at the beginning of the change stream.
    base: u64,
}

impl Default for Lineage {
    fn default() -> Self {
        Self { id: ReplicationId::random(), before: None, base: 0 }
    }
}

impl Lineage {
    /// The present ID.
    pub fn id(&self) -> ReplicationId {
        self.id
    }

    /// The ID of the history before, and the first offset that it does not share; none if there is none.
    pub fn before(&self) -> Option<(ReplicationId, u64)> {
        self.before
    }

    /// The offset of a place in the change stream.
    pub fn offset(&self, lsn: Lsn) -> u64 {
        self.base + lsn.0
    }

    /// Begins a history with which no replica may go on: writes have happened that are in no stream.
    pub fn begin_anew(&mut self) {
        self.id = ReplicationId::random();
        self.before = None;
    }

    /// Begins another history at a place, and remembers the present one: replicas of that may go on.
    pub fn go_on(&mut self, at: Lsn) {
        self.before = Some((self.id, self.offset(at) + 1));
        self.id = ReplicationId::random();
    }

    /// The place at which a replica wants to go on; none if its data is not of this history.
    ///
    /// It has everything before `offset`, which counts from 1 as in PSYNC.
    pub fn place(&self, asked: &[u8], offset: i64) -> Option<Lsn> {
        let offset = u64::try_from(offset).ok()?;
        let shares = self.before.is_some_and(|(id, second)| id.is(asked) && offset <= second);
        if !(self.id.is(asked) || shares) {
            return None;
        }
        offset.checked_sub(1 + self.base).map(Lsn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_goes_on_in_its_history_and_in_the_one_that_followed_it() {
        let mut lineage = Lineage { base: 100, ..Lineage::default() };
        let first = lineage.id();
        assert_eq!(lineage.place(first.as_str().as_bytes(), 131), Some(Lsn(30)));
        assert_eq!(lineage.place(first.as_str().to_uppercase().as_bytes(), 101), Some(Lsn(0)));
        assert_eq!(lineage.place(b"?", -1), None);
        assert_eq!(lineage.place(ReplicationId::NONE.as_str().as_bytes(), 131), None);
        for too_early in [100, 1, 0, -1, i64::MIN] {
            assert_eq!(lineage.place(first.as_str().as_bytes(), too_early), None);
        }

        lineage.go_on(Lsn(50));
        let second = lineage.id();
        assert_ne!(first, second);
        let place = |id: ReplicationId, offset| lineage.place(id.as_str().as_bytes(), offset);
        // It has all bytes up to the end of the first history, and not one more.
        assert_eq!(place(first, 151), Some(Lsn(50)));
        assert_eq!(place(first, 152), None, "it has writes that this server never saw");
        assert_eq!(place(second, 152), Some(Lsn(51)));

        let mut anew = lineage.clone();
        anew.begin_anew();
        assert_eq!(anew.before(), None);
        for id in [first, second] {
            assert_eq!(anew.place(id.as_str().as_bytes(), 151), None);
        }
    }
}
