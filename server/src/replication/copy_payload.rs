//! The bytes of a snapshot for replicas, which some read while they are being written.
//!
//! The thread that writes them never waits for a socket: what does not fit into memory goes to a file that
//! has no name any more.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use braid_journal::disk::create_nameless;

/// The bytes that stay in memory if there are no more.
const MEMORY_BYTES: usize = 8 << 20;

/// How far a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadProgress {
    /// It still grows.
    Grows,
    /// It is complete.
    Whole,
    /// It will never be complete.
    Failed,
}

/// The payload of a full copy.
pub struct CopyPayload {
    stored: Mutex<Stored>,
    /// The bytes that may be read.
    n_bytes: AtomicU64,
    folder: PathBuf,
}

struct Stored {
    place: Place,
    progress: PayloadProgress,
}

enum Place {
    Memory(Vec<u8>),
    File(Arc<File>),
}

impl CopyPayload {
    /// An empty payload. If it grows long, its file is in a folder.
    pub fn new(folder: &Path) -> Self {
        let stored = Stored { place: Place::Memory(Vec::new()), progress: PayloadProgress::Grows };
        Self { stored: Mutex::new(stored), n_bytes: AtomicU64::new(0), folder: folder.to_owned() }
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// If they do not fit into memory, and there is no file or it is full.
    pub fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let n_before = self.n_bytes();
        let mut stored = self.stored();
        if let Place::Memory(memory) = &stored.place
            && memory.len() + bytes.len() > MEMORY_BYTES
        {
            let mut file = create_nameless(&self.folder)?;
            file.write_all(memory)?;
            stored.place = Place::File(Arc::new(file));
        }
        match &mut stored.place {
            Place::Memory(memory) => memory.extend_from_slice(bytes),
            Place::File(file) => {
                let file = Arc::clone(file);
                drop(stored);
                file.write_all_at(bytes, n_before)?;
            }
        }
        // Release pairs with the Acquire of `n_bytes`: the bytes before are there.
        self.n_bytes.store(n_before + bytes.len() as u64, Ordering::Release);
        Ok(())
    }

    /// Reads at most `most` bytes at a place, as far as they are written.
    ///
    /// # Errors
    /// Those of the file.
    pub fn read(&self, at: u64, most: usize) -> io::Result<Vec<u8>> {
        let n = usize::try_from(self.n_bytes().saturating_sub(at)).map_or(most, |n| n.min(most));
        let stored = self.stored();
        match &stored.place {
            Place::Memory(memory) => Ok(memory[at as usize..at as usize + n].to_vec()),
            Place::File(file) => {
                let file = Arc::clone(file);
                drop(stored);
                let mut bytes = vec![0; n];
                file.read_exact_at(&mut bytes, at)?;
                Ok(bytes)
            }
        }
    }

    /// The bytes that may be read.
    pub fn n_bytes(&self) -> u64 {
        // Acquire pairs with the Release of `append`.
        self.n_bytes.load(Ordering::Acquire)
    }

    /// How far it is.
    pub fn progress(&self) -> PayloadProgress {
        self.stored().progress
    }

    /// Ends it.
    pub fn end(&self, progress: PayloadProgress) {
        self.stored().progress = progress;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn bytes_are_read_while_more_come_in_memory_and_in_a_file() {
        let folder = std::env::temp_dir().join(format!("braid-payload-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let payload = CopyPayload::new(&folder);
        let chunk: Vec<u8> = (0..1 << 20).map(|n: u32| (n * 7 % 251) as u8).collect();
        let mut all = Vec::new();
        let mut read = Vec::new();
        for nth in 0..12 {
            payload.append(&chunk[nth..]).expect("it is stored");
            all.extend_from_slice(&chunk[nth..]);
            while read.len() < all.len() {
                let n_more = payload.read(read.len() as u64, 300_000).expect("it is read");
                assert!(!n_more.is_empty() && n_more.len() <= 300_000);
                read.extend(n_more);
            }
            assert!(payload.read(read.len() as u64, 1).expect("nothing more").is_empty());
        }
        assert!(read == all);
        assert_eq!(fs::read_dir(&folder).expect("it is there").count(), 0, "the file has no name");
        assert_eq!(payload.progress(), PayloadProgress::Grows);
        payload.end(PayloadProgress::Whole);
        assert_eq!(payload.progress(), PayloadProgress::Whole);
        fs::remove_dir(&folder).expect("it is empty");

        let payload = CopyPayload::new(&folder);
        payload.append(&chunk).expect("memory needs no folder");
        let error = payload.append(&vec![0; MEMORY_BYTES]).expect_err("there is no folder");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(payload.n_bytes(), chunk.len() as u64);
    }
}
