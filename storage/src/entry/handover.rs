//! Long words that an entry takes over from their request, so that memory has one copy and not two.

use braid_protocol::request::Arg;

use super::blob::{self, HEADER_BYTES, LONG_BYTES, Pinned};

/// The least part of its request that the word must be, so that an entry keeps little besides its value.
const PART_MIN: (usize, usize) = (7, 8);

/// A request that is little more than one long word. It lies in memory as a blob of that word, followed by
/// the other words.
#[derive(Debug)]
pub struct Handover {
    blob: Pinned,
    /// The bytes of all words.
    n_bytes: usize,
}

impl Handover {
    /// Moves the words of a request, which begins `from` a byte of `buffer`, so that an entry can take over
    /// the longest. They are in [`Handover::bytes`] afterwards, at the places that `words` is given.
    ///
    /// # Errors
    /// If that is not long enough, or takes too small a part of the buffer. Then nothing has changed.
    pub fn new(mut buffer: Vec<u8>, from: usize, words: &mut [Arg]) -> Result<Self, Vec<u8>> {
        let Some(longest) = (0..words.len()).max_by_key(|&nth| words[nth].len) else { return Err(buffer) };
        let (start, len) = (from + words[longest].start as usize, words[longest].len as usize);
        let n_bytes = words.iter().map(|word| word.len as usize).sum::<usize>();
        let is_most = len >= LONG_BYTES && len / PART_MIN.0 >= buffer.capacity() / PART_MIN.1;
        if !is_most || start < HEADER_BYTES || HEADER_BYTES + n_bytes > buffer.len() {
            return Err(buffer);
        }
        if !buffer.as_ptr().cast::<u64>().is_aligned() {
            return Err(buffer);
        }
        let mut others = Vec::with_capacity(n_bytes - len);
        for (nth, word) in words.iter_mut().enumerate() {
            let place = if nth == longest { 0 } else { len + others.len() };
            if nth != longest {
                others.extend_from_slice(&buffer[from + word.start as usize..][..word.len as usize]);
            }
            word.start = u32::try_from(place).expect("a request is shorter than 4 GiB");
        }
        buffer.copy_within(start..start + len, HEADER_BYTES);
        buffer[HEADER_BYTES + len..][..others.len()].copy_from_slice(&others);
        let blob = Pinned::in_buffer(buffer, len).expect("it is aligned and long enough");
        Ok(Handover { blob, n_bytes })
    }

    /// The bytes in which the words lie.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `new` has put the words there, and only this has those after the blob's own bytes.
        unsafe { self.blob.first_bytes(self.n_bytes) }
    }

    /// Runs something that may make an entry of the long word.
    pub fn offer<T>(&self, run: impl FnOnce() -> T) -> T {
        blob::offer([&self.blob], run)
    }

    /// The memory that it takes, unless an entry has it.
    pub fn into_buffer(self) -> Option<Vec<u8>> {
        self.blob.into_buffer()
    }
}
