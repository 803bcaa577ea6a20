//! Records of commands on streams: explicit IDs, and the resulting state of groups.

use braid_storage::{
    entry::{db::Db, key::Key},
    observers::record,
    types::stream::{PendingEntry, Stream, StreamId, StreamMut},
};

use crate::{catalog::Args, command::log_rewrite::decimal};

/// The most IDs in a recorded command.
const CHUNK: usize = 64;

/// Writes an ID as a request contains it.
pub(super) fn text(id: StreamId) -> Vec<u8> {
    format!("{}-{}", id.ms, id.seq).into_bytes()
}

/// A consumer of a group, whose entries a record describes.
#[derive(Clone, Copy)]
pub(super) struct Served<'a> {
    pub(super) db: Db,
    pub(super) key: &'a [u8],
    pub(super) group: &'a [u8],
    pub(super) consumer: &'a [u8],
}

/// The changes of a group's entries.
#[derive(Default)]
pub(super) struct Dealt {
    /// Entries that were delivered or claimed.
    pub(super) given: Vec<StreamId>,
    /// Entries that are not pending any more.
    pub(super) released: Vec<StreamId>,
    /// Whether the group's last delivered ID has changed.
    pub(super) has_moved: bool,
}

impl Served<'_> {
    fn add<'w>(&'w self, command: &[&'w [u8]], rest: impl IntoIterator<Item = &'w [u8]>) {
        let words = command.iter().copied().chain([self.key, self.group]);
        record::add(self.db, words.chain(rest));
    }

    /// Records the changes.
    pub(super) fn tell(&self, stream: &Stream, dealt: &Dealt) {
        let Some(group) = stream.group(self.group) else { return };
        let last = text(group.last_delivered_id());
        let pending: Vec<PendingEntry<'_>> =
            dealt.given.iter().filter_map(|&id| group.pending(id, id).next()).collect();
        if pending.is_empty() {
            self.add(&[b"XGROUP", b"CREATECONSUMER"], [self.consumer]);
        }
        let is_alike = |a: &PendingEntry<'_>, b: &PendingEntry<'_>| {
            (a.consumer, a.delivered_at, a.n_deliveries) == (b.consumer, b.delivered_at, b.n_deliveries)
        };
        for chunk in pending.chunk_by(is_alike).flat_map(|alike| alike.chunks(CHUNK)) {
            let ids: Vec<Vec<u8>> = chunk.iter().map(|pending| text(pending.id)).collect();
            let (time, n) = (decimal(chunk[0].delivered_at.0), decimal(chunk[0].n_deliveries));
            let options: [&[u8]; 8] =
                [b"TIME", &time, b"RETRYCOUNT", &n, b"FORCE", b"JUSTID", b"LASTID", &last];
            let rest =
                [chunk[0].consumer, b"0"].into_iter().chain(ids.iter().map(Vec::as_slice)).chain(options);
            self.add(&[b"XCLAIM"], rest);
        }
        for chunk in dealt.released.chunks(CHUNK) {
            let ids: Vec<Vec<u8>> = chunk.iter().copied().map(text).collect();
            self.add(&[b"XACK"], ids.iter().map(Vec::as_slice));
        }
        if dealt.has_moved {
            let n_read = group.n_read().map_or(b"-1".to_vec(), decimal);
            self.add(&[b"XGROUP", b"SETID"], [&last[..], b"ENTRIESREAD", &n_read]);
        }
    }
}

/// Records an added entry with its ID. `fields` are the remaining words of the command.
///
/// The options before the ID are recorded only if they must be repeated.
#[cold]
pub(super) fn added(db: Db, id: StreamId, fields: Args<'_>, keeps_options: bool) {
    let (words, id) = (fields.words(), text(id));
    let id_at = words.len() - fields.remaining() - 1;
    let n_before = if keeps_options { id_at } else { 2 };
    record::add(db, words.iter().take(n_before).chain([&id[..]]).chain(fields.rest()));
}

/// Records that entries were removed from the start of a stream.
///
/// The record contains the exact number that is left.
pub(super) fn trimmed(db: Db, key: &Key<'_>, stream: &StreamMut<'_>) {
    let n_left = decimal(stream.stream().entries().len());
    record::add(db, [&b"XTRIM"[..], key.bytes, b"MAXLEN", b"=", &n_left]);
}
