//! The members of a large sorted set as its tree reads them.

use super::order::Ranked;
use crate::{
    entry::{EntryHandle, EntryRef},
    table::Table,
};

/// The table that owns the entries to which a tree has handles: each is a member with its score as the value.
#[derive(Clone, Copy)]
pub(super) struct Members<'t>(&'t Table);

impl<'t> Members<'t> {
    pub(super) fn new(table: &'t Table) -> Self {
        Members(table)
    }

    /// The member and the score that a handle in the tree stands for.
    #[inline]
    pub(super) fn at(self, handle: EntryHandle) -> Ranked<'t> {
        // SAFETY: a tree has handles of entries of its own table only, from when an entry is put into the
        // table until before it is taken out, and in between an entry is never changed in a way that moves it
        // (`Large` sees to both). During 't the table is borrowed, so nothing changes or frees it.
        ranked(unsafe { handle.entry() })
    }

    /// The table.
    pub(super) fn table(self) -> &'t Table {
        self.0
    }
}

/// The member and the score of an entry.
#[inline]
pub(super) fn ranked(entry: EntryRef<'_>) -> Ranked<'_> {
    let score = entry.bytes().and_then(|bytes| bytes.first_chunk());
    let score = f64::from_ne_bytes(*score.expect("a member's value is its score"));
    Ranked { score, member: entry.key() }
}
