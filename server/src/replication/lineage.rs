//! The identity of a server's data over time, by which a replica finds out whether it may go on where it was.
//!
//! An ID names one history of writes, and an offset a place in it: the number of bytes of the change stream
//! before. Two servers with the same ID and offset have the same data.
//!
//! A history may have had another ID up to a place. A server takes a new one whenever others might write on
//! with the present one: at a promotion and at each start.

use braid_journal::stream::Lsn;

pub use braid_journal::history::ReplicationId;

use crate::random;

/// The ID that no other server has.
pub fn random_id() -> ReplicationId {
    let digits = (0..3).map(|_| format!("{:016x}", random::random())).collect::<String>();
    ReplicationId::parse(&digits.as_bytes()[..ReplicationId::BYTES]).expect("they are hexadecimal")
}

/// The history that the data has now.
#[derive(Clone, Debug)]
pub struct Lineage {
    id: ReplicationId,
    /// Whether this server has chosen the ID.
    is_own: bool,
    /// The ID before, and the last place that it names.
    second: Option<(ReplicationId, Lsn)>,
}

impl Default for Lineage {
    fn default() -> Self {
        Self { id: random_id(), is_own: true, second: None }
    }
}

impl Lineage {
    /// The present ID.
    pub fn id(&self) -> ReplicationId {
        self.id
    }

    /// The ID before, and the last place that it names.
    pub fn second(&self) -> Option<(ReplicationId, Lsn)> {
        self.second
    }

    /// Begins a history with which no replica may go on: writes have happened that are in no stream.
    pub fn begin_anew(&mut self) {
        *self = Self::default();
    }

    /// Takes over another server's history, with its data.
    pub fn adopt(&mut self, id: ReplicationId) {
        *self = Self { id, is_own: false, second: None };
    }

    /// Goes on with an ID of its own. Whoever knows the history up to `until` by its present ID may go on.
    pub fn branch(&mut self, until: Lsn) {
        *self = Self { id: random_id(), is_own: true, second: Some((self.id, until)) };
    }

    /// Notes that the primary goes on with the history at a place. It knows the history by `asked`, and from
    /// there on by `id`. Returns whether that is news to replicas.
    pub fn go_on(&mut self, asked: ReplicationId, id: ReplicationId, at: Lsn) -> bool {
        if id == self.id {
            return false;
        }
        let second = if id == asked { self.second } else { Some((asked, at)) };
        *self = Self { id, is_own: false, second };
        true
    }

    /// The ID by which another server may know the data at the end of the history.
    ///
    /// It cannot know an ID that this server has chosen and that no write has had yet.
    pub fn id_to_ask_by(&self, end: Lsn) -> ReplicationId {
        match self.second {
            Some((second, until)) if self.is_own && until == end => second,
            _ => self.id,
        }
    }

    /// The place at which a replica wants to go on; none if its data is not of this history.
    ///
    /// It has everything before `offset`, which counts from 1 as in PSYNC.
    pub fn place(&self, asked: &[u8], offset: i64) -> Option<Lsn> {
        let place = Lsn(u64::try_from(offset).ok()?.checked_sub(1)?);
        let is_shared = self.second.is_some_and(|(second, until)| second.is(asked) && place <= until);
        (self.id.is(asked) || is_shared).then_some(place)
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

    #[test]
    fn after_a_branch_the_former_id_names_what_was_before() {
        let mut lineage = Lineage::default();
        let first = lineage.id();
        assert_eq!(lineage.id_to_ask_by(Lsn(30)), first);
        lineage.branch(Lsn(30));
        let place =
            |lineage: &Lineage, id: ReplicationId, offset| lineage.place(id.as_str().as_bytes(), offset);
        assert_eq!(place(&lineage, first, 31), Some(Lsn(30)));
        assert_eq!(place(&lineage, first, 32), None, "the two histories differ from there on");
        assert_eq!(place(&lineage, lineage.id(), 32), Some(Lsn(31)));
        // Nobody knows the new ID before something was written with it.
        assert_eq!(lineage.id_to_ask_by(Lsn(30)), first);
        assert_eq!(lineage.id_to_ask_by(Lsn(31)), lineage.id());
    }

    #[test]
    fn the_primarys_new_id_is_taken_over_and_the_one_before_stays_known() {
        let mut lineage = Lineage::default();
        let (first, second) = (random_id(), random_id());
        lineage.adopt(first);
        assert!(!lineage.go_on(first, first, Lsn(5)));
        assert!(lineage.go_on(first, second, Lsn(7)));
        assert_eq!((lineage.id(), lineage.second()), (second, Some((first, Lsn(7)))));
        assert_eq!(lineage.id_to_ask_by(Lsn(7)), second);
        // A server that is demoted again knows its data by the ID before.
        lineage.branch(Lsn(9));
        assert!(lineage.go_on(second, second, Lsn(9)));
        assert_eq!(lineage.id(), second);
    }
}
