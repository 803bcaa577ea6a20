//! The LZF compression.
//!
//! A byte `n` below 32 is followed by `n + 1` bytes to copy. Any other starts a repetition. Its upper three
//! bits are the length less two (seven: the next byte is added to it). Its lower five bits and the byte after
//! it are the distance to its start, less one.

use crate::entry::Pinned;

/// Decompresses bytes, if there are exactly `len` of them. Their room is taken at once, if there can be that
/// many.
pub fn decompress(mut from: &[u8], len: usize) -> Option<Vec<u8>> {
    if len / TIMES_MAX > from.len() {
        return None;
    }
    let mut out = Vec::with_capacity(len);
    while !from.is_empty() {
        from = step(&mut out, from)?;
        if out.len() > len {
            return None;
        }
    }
    (out.len() == len).then_some(out)
}

/// The factor by which compressed bytes grow at most.
const TIMES_MAX: usize = REPEATED_MAX / 3 + 1;

/// The size of a piece that is decompressed before it goes to a blob.
const PIECE_BYTES: usize = 256 << 10;

/// The longest step: a control byte and the bytes to copy.
const STEP_MAX: usize = 1 + 32;

/// Decompresses to a blob, without a second copy of it all, because a repetition starts within [`BACK_MAX`].
pub fn decompress_blob(from: &[u8], len: usize) -> Option<Pinned> {
    let mut decompressor = BlobDecompressor::new(from.len(), len)?;
    from.chunks(PIECE_BYTES).try_for_each(|piece| decompressor.push(piece))?;
    decompressor.finish()
}

/// Decompresses to a blob what comes piece by piece.
pub struct BlobDecompressor {
    blob: Pinned,
    /// The decompressed bytes that are not in the blob yet.
    out: Vec<u8>,
    /// The compressed bytes from the next step on.
    from: Vec<u8>,
    len: usize,
}

impl BlobDecompressor {
    /// Prepares for `stored` bytes that decompress to `len`. The blob's room is taken at once; there is no
    /// decompressor if there cannot be that much.
    pub fn new(stored: usize, len: usize) -> Option<Self> {
        if len / TIMES_MAX > stored {
            return None;
        }
        let out = Vec::with_capacity(2 * PIECE_BYTES);
        Some(Self { blob: Pinned::with_capacity(len), out, from: Vec::new(), len })
    }

    /// Decompresses the steps that are complete after these bytes.
    pub fn push(&mut self, piece: &[u8]) -> Option<()> {
        self.from.extend_from_slice(piece);
        self.run(STEP_MAX)
    }

    /// The blob, after all bytes, if it is exactly as long as it should be.
    pub fn finish(mut self) -> Option<Pinned> {
        self.run(1)?;
        self.blob.extend_from_slice(&self.out);
        (self.blob.len() == self.len).then_some(self.blob)
    }

    /// Takes steps as long as there are at least this many bytes.
    fn run(&mut self, n_min: usize) -> Option<()> {
        let mut from = &self.from[..];
        while from.len() >= n_min {
            from = step(&mut self.out, from)?;
            if self.blob.len() + self.out.len() > self.len {
                return None;
            }
            if self.out.len() >= PIECE_BYTES {
                let n_done = self.out.len() - BACK_MAX;
                self.blob.extend_from_slice(&self.out[..n_done]);
                self.out.drain(..n_done);
            }
        }
        let n_left = from.len();
        self.from.drain(..self.from.len() - n_left);
        Some(())
    }
}

/// Adds the bytes for which the next bytes stand; returns the rest.
fn step<'a>(out: &mut Vec<u8>, from: &'a [u8]) -> Option<&'a [u8]> {
    let (&control, rest) = from.split_first()?;
    if control >= 32 {
        return repeat(out, control, rest);
    }
    let (literal, rest) = rest.split_at_checked(usize::from(control) + 1)?;
    out.extend_from_slice(literal);
    Some(rest)
}

/// Adds a repetition; returns the rest.
fn repeat<'a>(out: &mut Vec<u8>, control: u8, mut rest: &'a [u8]) -> Option<&'a [u8]> {
    let mut take = || {
        let (&byte, behind) = rest.split_first()?;
        rest = behind;
        Some(usize::from(byte))
    };
    let mut n = usize::from(control >> 5);
    if n == 7 {
        n += take()?;
    }
    let back = (usize::from(control & 31) << 8) + take()? + 1;
    let start = out.len().checked_sub(back)?;
    // It may reach into its own output.
    for at in start..start + n + 2 {
        out.push(out[at]);
    }
    Some(rest)
}

/// The longest run of bytes that are copied as they are.
const LITERAL_MAX: usize = 32;

/// The longest repetition.
const REPEATED_MAX: usize = 7 + 255 + 2;

/// The greatest distance to its start.
const BACK_MAX: usize = 1 << 13;

/// Bits of the number of places that are remembered; fewer of them for short strings, whose places stay in
/// the first level of the cache then.
const TABLE_BITS: u32 = 14;

/// The misses in a row, as a power of two, after which the search steps further by one: text without
/// repetitions takes less time.
const MISSES_A_STEP_BITS: usize = 5;

/// The short strings in a row that do not become shorter after which most are not tried.
const VAIN_MAX: u32 = 64;

/// After [`VAIN_MAX`] one short string in this many is tried, until one becomes shorter: the data cannot be
/// compressed, or are compressed already.
const TRIED_ONE_OF: u32 = 8;

/// Longer strings are always tried: trying takes as long as reading them, and may save much.
const SHORT_MAX_BYTES: usize = 1024;

/// Compresses one string after the other. It remembers the last place of three bytes, in a table that is not
/// cleared in between. Places are counted through all strings, so that the numbers tell those of earlier
/// strings apart.
pub struct Compressor {
    last_seen: Box<[u32; 1 << TABLE_BITS]>,
    /// The place of the next string's first byte. 0 stands for none.
    next: u32,
    out: Vec<u8>,
    /// The number of short strings in a row that have not become shorter, or were not tried.
    n_vain: u32,
}

impl Default for Compressor {
    fn default() -> Self {
        Self { last_seen: Box::new([0; 1 << TABLE_BITS]), next: 1, out: Vec::new(), n_vain: 0 }
    }
}

impl Compressor {
    /// Compresses the string, if that takes at most `max_bytes` and is likely enough to be tried.
    pub fn try_compress(&mut self, text: &[u8], max_bytes: usize) -> Option<&[u8]> {
        if text.len() > SHORT_MAX_BYTES {
            return self.compress(text, max_bytes);
        }
        self.n_vain += 1;
        if self.n_vain > VAIN_MAX {
            if !self.n_vain.is_multiple_of(TRIED_ONE_OF) {
                return None;
            }
            self.n_vain = VAIN_MAX;
        }
        let is_shorter = self.compress(text, max_bytes).is_some();
        if is_shorter {
            self.n_vain = 0;
        }
        is_shorter.then_some(&self.out)
    }

    /// Compresses the string, if that takes at most `max_bytes`.
    pub fn compress(&mut self, text: &[u8], max_bytes: usize) -> Option<&[u8]> {
        let first = self.begin(text)?;
        let shift = u32::BITS - (usize::BITS - text.len().leading_zeros() + 3).min(TABLE_BITS);
        let (mut at, mut n_done, mut n_misses) = (0, 0, 0);
        while let Some(&three) = text.get(at..).and_then(<[u8]>::first_chunk::<3>) {
            let seen = self.exchange(three, first + at as u32, shift);
            match seen.checked_sub(first).map(|seen| seen as usize) {
                Some(seen) if at - seen <= BACK_MAX && text[seen..seen + 3] == three => {
                    let n = n_equal(&text[seen..], &text[at..]);
                    self.copy(&text[n_done..at]);
                    self.repeat(at - seen, n);
                    // The next bytes mostly repeat those that came next there.
                    let last = at + n - 1;
                    if let Some(&three) = text.get(last..).and_then(<[u8]>::first_chunk::<3>) {
                        self.exchange(three, first + last as u32, shift);
                    }
                    at += n;
                    (n_done, n_misses) = (at, 0);
                }
                _ => {
                    at += 1 + (n_misses >> MISSES_A_STEP_BITS);
                    n_misses += 1;
                }
            }
            if self.out.len() > max_bytes {
                return None;
            }
        }
        let rest = &text[n_done..];
        if self.out.len() + rest.len() + rest.len().div_ceil(LITERAL_MAX) > max_bytes {
            return None;
        }
        self.copy(rest);
        Some(&self.out)
    }

    /// Goes on counting places from a number on.
    #[cfg(test)]
    pub fn begin_at(&mut self, next: u32) {
        self.next = next;
    }

    /// Assigns the string's first byte its place. There is none for a string that is too long to be counted.
    fn begin(&mut self, text: &[u8]) -> Option<u32> {
        let n = u32::try_from(text.len()).ok().filter(|&n| n < u32::MAX)?;
        self.out.clear();
        if self.next.checked_add(n).is_none() {
            self.last_seen.fill(0);
            self.next = 1;
        }
        let first = self.next;
        self.next += n;
        Some(first)
    }

    /// Stores the place of three bytes; returns the previous place with the same hash, mostly of the same
    /// bytes.
    #[inline]
    fn exchange(&mut self, [a, b, c]: [u8; 3], place: u32, shift: u32) -> u32 {
        let number = u32::from_le_bytes([a, b, c, 0]).wrapping_mul(0x9e37_79b1) >> shift;
        std::mem::replace(&mut self.last_seen[number as usize % (1 << TABLE_BITS)], place)
    }

    fn copy(&mut self, literal: &[u8]) {
        for run in literal.chunks(LITERAL_MAX) {
            self.out.push(run.len() as u8 - 1);
            self.out.extend_from_slice(run);
        }
    }

    fn repeat(&mut self, back: usize, n: usize) {
        let (back, n) = (back - 1, n - 2);
        let high = (back >> 8) as u8;
        if n < 7 {
            self.out.push((n as u8) << 5 | high);
        } else {
            self.out.extend_from_slice(&[7 << 5 | high, (n - 7) as u8]);
        }
        self.out.push(back as u8);
    }
}

/// The number of bytes with which both begin, up to the longest repetition.
fn n_equal(earlier: &[u8], later: &[u8]) -> usize {
    let max = later.len().min(REPEATED_MAX);
    let chunks = earlier[..max].as_chunks::<8>().0.iter().zip(later[..max].as_chunks::<8>().0);
    let mut n = 0;
    for (earlier, later) in chunks {
        let differ = u64::from_le_bytes(*earlier) ^ u64::from_le_bytes(*later);
        if differ != 0 {
            return n + differ.trailing_zeros() as usize / 8;
        }
        n += 8;
    }
    n + earlier[n..max].iter().zip(&later[n..max]).take_while(|(earlier, later)| earlier == later).count()
}
