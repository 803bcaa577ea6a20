//! Sets that belong to no shard yet.

use super::{
    Element, HASHTABLE, LISTPACK, Outgrown, SetType, View, become_packed, become_table, insert, intset,
    intset_max_len, members_mut, remove,
};
use crate::{
    entry::EntryBox,
    table::{
        Table,
        hash::{KeyHasher, Router},
    },
    types::{thresholds::Thresholds, value::ValueType},
};

/// A set on its way to a key. It goes through the encodings that Redis's would.
pub struct SetBuilder<'t> {
    entry: EntryBox,
    thresholds: &'t Thresholds,
    hasher: KeyHasher,
}

impl<'t> SetBuilder<'t> {
    /// An empty set of integers. `hasher` is the keyspace's.
    pub fn new(key: &[u8], thresholds: &'t Thresholds, hasher: KeyHasher) -> Self {
        SetBuilder { entry: SetType::empty(key), thresholds, hasher }
    }

    /// An empty packed set.
    pub(super) fn packed(key: &[u8], thresholds: &'t Thresholds, hasher: KeyHasher) -> Self {
        let mut builder = Self::new(key, thresholds, hasher);
        builder.start_packed();
        builder
    }

    /// Makes the empty set packed.
    pub(super) fn start_packed(&mut self) {
        become_packed(&mut self.entry);
    }

    /// Adds a member, unless it is there.
    pub fn insert(&mut self, member: Element<'_>) {
        if let Err(Outgrown) = insert(&mut self.entry, member, self.thresholds) {
            become_table(&mut self.entry, Table::alone(Router::unsharded(self.hasher)));
            members_mut(&mut self.entry).insert(member);
        }
    }

    /// Removes a member, if it is there.
    pub(super) fn remove(&mut self, member: Element<'_>) {
        remove(&mut self.entry, member);
    }

    pub(super) fn is_empty(&self) -> bool {
        SetType::is_empty(self.entry.as_ref())
    }

    /// Stores the members as integers, if all are and if they are few enough.
    pub(super) fn prefer_integers(&mut self) {
        let set = View::of(self.entry.as_ref());
        if matches!(set, View::Integers(_)) || set.len() > intset_max_len(self.thresholds) {
            return;
        }
        let value = |member| match super::canonical(member) {
            Element::Integer(value) => Some(value),
            Element::Text(_) => None,
        };
        let Some(mut values) = set.iter().map(value).collect::<Option<Vec<_>>>() else { return };
        values.sort_unstable();
        self.entry = SetType::empty(self.entry.as_ref().key());
        self.entry.set_bytes(&intset::of_ascending(&values));
    }

    /// The finished entry; `None` if the set is empty.
    pub fn build(self) -> Option<EntryBox> {
        debug_assert!([super::INTSET, LISTPACK, HASHTABLE].contains(&self.entry.as_ref().encoding()));
        (!self.is_empty()).then_some(self.entry)
    }
}
