//! Snapshots, as a shard gives itself to one. What holds meanwhile is told in `snapshot.rs`.

use std::sync::Arc;

use super::Shard;
use crate::{
    Db, Key, Keyspace, as_commands,
    entry::EntryRef,
    kinds,
    lru::Access,
    rdb::file::{Recency, encode_entry},
    snapshot::{Early, Format, Parts, PinnedPart, SaveStep, Saving},
    time::Millis,
};

/// Values of more elements than this are encoded without the hold.
const LARGE_ELEMENTS: usize = 1024;
/// And so are those of more bytes.
const LARGE_BYTES: usize = 64 << 10;
/// After so many buckets [`Shard::save_some`] asks whether to go on.
const BUCKETS_A_LOOK: usize = 4;

/// How a snapshot is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As Redis's snapshots.
    Snapshot,
    /// As the commands that make what is there.
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

/// How keys have been used, as a snapshot tells it, so that eviction goes on from there.
#[derive(Clone)]
pub struct Uses(Option<Arc<Access>>);

impl Uses {
    /// What the policy in force keeps is told.
    pub fn told(keyspace: &Keyspace) -> Self {
        Uses(Some(keyspace.shared_access()))
    }

    /// It is of no use, as nothing is evicted by it.
    pub fn left_out() -> Self {
        Uses(None)
    }

    /// Adds an entry that is no longer in the keyspace to a snapshot; returns false if all of it has expired.
    pub fn encode(&self, form: Form, out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) -> bool {
        (form.format().encode)(out, entry, self.0.as_deref(), now)
    }
}

impl Shard {
    /// Whether a snapshot is being taken that this shard has yet to give something to.
    #[inline(always)]
    pub fn is_saving(&self) -> bool {
        self.is_saving
    }

    /// Refuses, up to the next [`Shard::start`], to change a large value that must be saved before: that
    /// takes long.
    pub fn refuse_unsaved(&mut self) {
        self.refuses_unsaved = true;
    }

    /// Whether a key of a database holds a value that must be saved before it is changed, and that takes
    /// long.
    pub fn is_large_unsaved(&self, db: Db, key: &Key<'_>) -> bool {
        let entry = self.tables.get(db).and_then(|table| table.find(key.bytes, key.routed.place));
        entry.is_some_and(|entry| self.ledger.is_large_unsaved(db, key.routed.place, entry))
    }

    /// Begins to save all that the shard holds, as it is now. What must be saved before its turn goes to
    /// `early`.
    ///
    /// # Panics
    /// If the shard has not given all to the last snapshot yet.
    pub fn begin_snapshot(&mut self, uses: Uses, form: Form, early: Arc<Early>) {
        assert!(self.ledger.saving.is_none(), "one snapshot is taken at a time");
        self.ledger.saving = Some(Box::new(Saving::new(form.format(), uses.0, early)));
        self.is_saving = true;
        self.ledger.observe();
    }

    /// Goes on to save, through some buckets; adds what that gives. `more` says after each few whether to go
    /// on.
    pub fn save_some(&mut self, to: &mut Parts, mut more: impl FnMut(&Parts) -> bool) -> SaveStep {
        let now = self.now;
        // It stays where it is: whatever panics here, the walk can go on from there to clear the marks.
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

    /// Ends a snapshot where it stands, whatever is still marked.
    pub fn abandon_snapshot(&mut self) {
        self.ledger.saving = None;
        self.is_saving = false;
        self.update_observers();
    }

    /// Has the rest of a snapshot be given to nobody.
    pub fn give_up_snapshot(&mut self) {
        if let Some(saving) = &mut self.ledger.saving {
            saving.give_up();
        }
    }
}
