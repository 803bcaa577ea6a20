//! A shard's part in a snapshot. `snapshot.rs` states the invariants.

use std::sync::Arc;

use super::Shard;
use crate::{
    entry::{EntryRef, db::Db, key::Key, lru::Access, time::Millis},
    keyspace::Keyspace,
    observers::snapshot::{Early, Format, Parts, PinnedPart, SaveStep, Saving},
    rdb::file::{Recency, encode_entry},
    types::{as_commands, kinds},
};

/// Values of more elements than this are encoded without the hold.
const LARGE_ELEMENTS: usize = 1024;
/// Values of more bytes than this are encoded without the hold.
const LARGE_BYTES: usize = 64 << 10;
/// The number of buckets after which [`Shard::save_some`] asks whether to go on.
const BUCKETS_A_LOOK: usize = 4;

/// The form of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As Redis's snapshots.
    Snapshot,
    /// The commands that recreate the data.
    Commands,
}

impl Form {
    fn format(self) -> &'static Format {
        match self {
            Form::Snapshot => &SNAPSHOT,
            Form::Commands => &COMMANDS,
        }
    }
}

static COMMANDS: Format =
    Format { encode: |out, entry, _, now| as_commands::write_entry(out, entry, now), is_large };

static SNAPSHOT: Format = Format {
    encode: |out, entry, uses, now| {
        encode_entry(out, entry, uses.map(|access| Recency::of(entry, access, now)), now)
    },
    is_large,
};

/// Whether encoding a value takes long.
fn is_large(entry: EntryRef<'_>) -> bool {
    entry.allocated_bytes() > LARGE_BYTES
        || kinds::n_elements(entry).is_some_and(|n_elements| n_elements > LARGE_ELEMENTS)
}

/// The recorded uses of keys that a snapshot contains, so that eviction goes on from there.
#[derive(Clone)]
pub struct Uses(Option<Arc<Access>>);

impl Uses {
    /// Includes the record that the policy in force keeps.
    pub fn told(keyspace: &Keyspace) -> Self {
        Uses(Some(keyspace.shared_access()))
    }

    /// Includes none, as no key is evicted by it.
    pub fn left_out() -> Self {
        Uses(None)
    }

    /// Adds an entry that is no longer in the keyspace to a snapshot; returns false if all of it has expired.
    pub fn encode(&self, form: Form, out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) -> bool {
        (form.format().encode)(out, entry, self.0.as_deref(), now)
    }
}

impl Shard {
    /// Whether a snapshot is under way to which this shard has yet to give something.
    #[inline(always)]
    pub fn is_saving(&self) -> bool {
        self.is_saving
    }

    /// Refuses, up to the next [`Shard::start`], to change a large value that must be saved first, because
    /// that takes long.
    pub fn refuse_unsaved(&mut self) {
        self.refuses_unsaved = true;
    }

    /// Whether a key of a database holds a value that must be saved before a change, and that takes long.
    pub fn is_large_unsaved(&self, db: Db, key: &Key<'_>) -> bool {
        let entry = self.tables.get(db).and_then(|table| table.find(key.bytes, key.routed.place));
        entry.is_some_and(|entry| self.ledger.is_large_unsaved(db, key.routed.place, entry))
    }

    /// Begins to save the present contents of the shard. Values that must be saved before their turn go to
    /// `early`.
    ///
    /// # Panics
    /// If the shard has not finished the last snapshot yet.
    pub fn begin_snapshot(&mut self, uses: Uses, form: Form, early: Arc<Early>) {
        assert!(self.ledger.saving.is_none(), "one snapshot is taken at a time");
        self.ledger.saving = Some(Box::new(Saving::new(form.format(), uses.0, early)));
        self.is_saving = true;
        self.ledger.observe();
    }

    /// Goes on to save, through some buckets, and appends the result. `more` is asked every few buckets
    /// whether to go on.
    pub fn save_some(&mut self, to: &mut Parts, mut more: impl FnMut(&Parts) -> bool) -> SaveStep {
        let now = self.now;
        // It stays where it is, so that after a panic the walk can go on from there to clear the marks.
        let Some(saving) = &mut self.ledger.saving else { return SaveStep::Done };
        // Tables keep their places meanwhile.
        while let Some((db, table)) = self.tables.nth(saving.nth()) {
            let Some((was, passed)) = saving.stands_at(db) else {
                saving.go_on();
                continue;
            };
            let pinned = &mut self.pinned;
            let next = table.scan(passed, BUCKETS_A_LOOK, &mut |entry| {
                saving.pass_entry(was, entry, now, to, |to| {
                    let (pinned_in, shared) = (db, entry.share());
                    pinned.add(db, entry.key());
                    to.pinned.push(PinnedPart { db: was, pinned_in, entry: shared });
                });
            });
            saving.pass(db, next);
            if !more(to) {
                break;
            }
        }
        // Last, so that nothing is added to a chunk.
        saving.take_early(to);
        let is_done = saving.nth() >= self.tables.len();
        if is_done {
            self.ledger.saving = None;
            self.is_saving = false;
            self.tables.drop_empty();
        }
        self.update_observers();
        if is_done { SaveStep::Done } else { SaveStep::More }
    }

    /// Ends a snapshot at once, with entries that are still marked.
    pub fn abandon_snapshot(&mut self) {
        self.ledger.saving = None;
        self.is_saving = false;
        self.update_observers();
    }

    /// Discards the rest of a snapshot.
    pub fn give_up_snapshot(&mut self) {
        if let Some(saving) = &mut self.ledger.saving {
            saving.give_up();
        }
    }
}
