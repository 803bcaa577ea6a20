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

/// The history that the data has now.
#[derive(Clone, Debug)]
pub struct Lineage {
    id: ReplicationId,
}

impl Default for Lineage {
    fn default() -> Self {
        Self { id: ReplicationId::random() }
    }
}

impl Lineage {
    /// The present ID.
    pub fn id(&self) -> ReplicationId {
        self.id
    }

    /// Begins a history with which no replica may go on: writes have happened that are in no stream.
    pub fn begin_anew(&mut self) {
        self.id = ReplicationId::random();
    }

    /// The place at which a replica wants to go on; none if its data is not of this history.
    ///
    /// It has everything before `offset`, which counts from 1 as in PSYNC.
    pub fn place(&self, asked: &[u8], offset: i64) -> Option<Lsn> {
        let offset = u64::try_from(offset).ok()?;
        if self.id.is(asked) { offset.checked_sub(1).map(Lsn) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_goes_on_in_its_own_history_only() {
        let mut lineage = Lineage::default();
        let first = lineage.id();
        let place = |lineage: &Lineage, offset| lineage.place(first.as_str().as_bytes(), offset);
        assert_eq!(place(&lineage, 31), Some(Lsn(30)));
        assert_eq!(lineage.place(first.as_str().to_uppercase().as_bytes(), 1), Some(Lsn(0)));
        assert_eq!(lineage.place(b"?", -1), None);
        assert_eq!(lineage.place(ReplicationId::NONE.as_str().as_bytes(), 31), None);
        for too_early in [0, -1, i64::MIN] {
            assert_eq!(place(&lineage, too_early), None);
        }
        lineage.begin_anew();
        assert_ne!(lineage.id(), first);
        assert_eq!(place(&lineage, 31), None);
    }
}
