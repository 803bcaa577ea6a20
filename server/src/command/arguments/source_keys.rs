//! Source keys: the values that a command combines, which it can read wherever they live.

use braid_storage::{
    entry::{EntryBox, EntryRef, time::Millis},
    error::StorageError,
};
use smallvec::SmallVec;

use super::each_key::for_each_key;
use crate::{catalog::CommandError, command::Call};

/// The role of a key in a command that combines values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::command) enum KeyRole {
    /// The command reads it.
    Source,
    /// The command stores its result there.
    Destination,
}

/// The values of the source keys. A missing key is a source, too.
///
/// The command drops them before it writes the destination, which may be one of them.
pub(in crate::command) struct Sources {
    entries: SmallVec<[Option<EntryBox>; 4]>,
    now: Millis,
}

impl Sources {
    /// Shares the values of the source keys among `keys`. These are all keys of the command, in order.
    ///
    /// # Errors
    /// The error of `check` for the first value that is no source.
    pub(in crate::command) fn share<'k>(
        call: &mut Call<'_, '_>,
        keys: impl Iterator<Item = (&'k [u8], KeyRole)>,
        check: fn(Option<EntryRef<'_>>, Millis) -> Result<(), StorageError>,
    ) -> Result<Self, CommandError> {
        let mut sources = Sources { entries: SmallVec::new(), now: call.now };
        let mut outcome = Ok(());
        for_each_key(call, keys, |shard, key, role| {
            if role == KeyRole::Source && outcome.is_ok() {
                let entry = shard.read(key);
                outcome = check(entry, sources.now);
                sources.entries.push(entry.map(EntryRef::share));
            }
        });
        outcome?;
        Ok(sources)
    }

    /// Returns the values, converted by `of`, which succeeds because `share` has checked them.
    pub(in crate::command) fn views<'s, T>(
        &'s self,
        of: fn(Option<EntryRef<'s>>, Millis) -> Result<T, StorageError>,
    ) -> SmallVec<[T; 4]> {
        let entries = self.entries.iter().map(|entry| entry.as_ref().map(EntryBox::as_ref));
        entries.map(|entry| of(entry, self.now).expect("every source was checked")).collect()
    }
}
