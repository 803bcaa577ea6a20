//! Early values: those saved before their turn, on their way to the file.

use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use crossbeam_queue::SegQueue;

use super::Encoded;

/// Bytes of a chunk's memory. Each shard fills one.
const CHUNK_BYTES: usize = 4 << 10;
/// The size from which a chunk is full: mostly the next entry fits in, and the chunk need not grow.
const FULL_BYTES: usize = CHUNK_BYTES - 512;
/// The number of chunks whose memory is kept for reuse.
const SPARE_MAX: usize = 256;

/// Full chunks of entries that were saved before their turn, of all shards.
///
/// Writers of unsaved entries make them. The thread that writes the snapshot takes them at any time, with
/// nothing held. Memory that has been written is used again. So there is only as much as is under way at one
/// time, and it stays in the caches.
#[derive(Default)]
pub struct Early {
    full: SegQueue<Encoded>,
    /// Memory for more.
    spare: SegQueue<Vec<u8>>,
    /// Memory of all that is in `full`.
    n_bytes: AtomicUsize,
    limit: OnceLock<EarlyLimit>,
}

/// A chunk is never refused, as it is passed on under a hold. Instead a callback is called that keeps writers
/// away from the shards.
struct EarlyLimit {
    n_bytes: usize,
    tell: Box<dyn Fn() + Send + Sync>,
}

impl Early {
    /// Sets a callback for chunks that are passed on when `n_bytes` are reached. It is called under holds.
    /// Called once.
    pub fn limit(&self, n_bytes: usize, tell: impl Fn() + Send + Sync + 'static) {
        let limit = EarlyLimit { n_bytes, tell: Box::new(tell) };
        assert!(self.limit.set(limit).is_ok(), "there is one limit");
    }

    /// Whether a chunk must be passed on.
    pub(super) fn is_full(chunk: &Encoded) -> bool {
        chunk.bytes.len() >= FULL_BYTES
    }

    /// Passes on a chunk, unless it is empty; returns an empty one.
    #[cold]
    pub(super) fn exchange(&self, chunk: Encoded) -> Encoded {
        if !chunk.bytes.is_empty() {
            let n_added = chunk.bytes.capacity();
            let n_bytes = self.n_bytes.fetch_add(n_added, Relaxed) + n_added;
            self.full.push(chunk);
            if let Some(limit) = self.limit.get().filter(|limit| n_bytes >= limit.n_bytes) {
                (limit.tell)();
            }
        }
        let bytes = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK_BYTES));
        Encoded { bytes, ..Encoded::default() }
    }

    /// The next full chunk.
    pub fn take(&self) -> Option<Encoded> {
        let chunk = self.full.pop()?;
        self.n_bytes.fetch_sub(chunk.bytes.capacity(), Relaxed);
        Some(chunk)
    }

    /// Takes written memory back. Returns it if it is no chunk's, or there is enough.
    pub fn give_back(&self, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        if bytes.capacity() != CHUNK_BYTES || self.spare.len() >= SPARE_MAX {
            return Some(bytes);
        }
        bytes.clear();
        self.spare.push(bytes);
        None
    }

    /// Memory of the chunks that are full, in bytes.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes.load(Relaxed)
    }

    /// Frees all memory.
    pub fn clear(&self) {
        while self.take().is_some() {}
        while self.spare.pop().is_some() {}
    }
}
