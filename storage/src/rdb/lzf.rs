//! The LZF compression.
//!
//! A byte below 32 is followed by so many and one more bytes to copy. Any other starts a repetition: its
//! upper three bits are the length less two (seven: the next byte is added to it), its lower five and the
//! byte behind are how far back it starts, less one.

use crate::entry::Pinned;

/// The bytes that were compressed, if there are exactly `len` of them. Their room is taken at once, if there
/// can be as many.
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

/// Compressed bytes become at most so many times as many.
const TIMES_MAX: usize = REPEATED_MAX / 3 + 1;

/// The size of a piece that is decompressed before it goes to a blob.
const PIECE_BYTES: usize = 256 << 10;

/// The same as a blob, without a second copy of it all: a repetition starts only so far back. The blob's room
/// is taken at once, if there can be as much.
pub fn decompress_blob(mut from: &[u8], len: usize) -> Option<Pinned> {
    if len / TIMES_MAX > from.len() {
        return None;
    }
    let (mut blob, mut out) = (Pinned::with_capacity(len), Vec::with_capacity(2 * PIECE_BYTES));
    while !from.is_empty() {
        from = step(&mut out, from)?;
        if blob.len() + out.len() > len {
            return None;
        }
        if out.len() >= PIECE_BYTES {
            let n_done = out.len() - BACK_MAX;
            blob.extend_from_slice(&out[..n_done]);
            out.drain(..n_done);
        }
    }
    blob.extend_from_slice(&out);
    (blob.len() == len).then_some(blob)
}

/// Adds what the next bytes stand for; gives what is behind them.
fn step<'a>(out: &mut Vec<u8>, from: &'a [u8]) -> Option<&'a [u8]> {
    let (&control, rest) = from.split_first()?;
    if control >= 32 {
        return repeat(out, control, rest);
    }
    let (literal, rest) = rest.split_at_checked(usize::from(control) + 1)?;
    out.extend_from_slice(literal);
    Some(rest)
}

/// Adds a repetition; gives what is behind it.
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
    // It may reach into what it adds itself.
    for at in start..start + n + 2 {
        out.push(out[at]);
    }
    Some(rest)
}

/// The longest run of bytes that are copied as they are.
const LITERAL_MAX: usize = 32;

/// The longest repetition.
const REPEATED_MAX: usize = 7 + 255 + 2;

/// How far back one may start.
const BACK_MAX: usize = 1 << 13;

/// Bits of the number of places that are remembered; fewer of them for short strings, whose places stay in
/// the first level of the cache then.
const TABLE_BITS: u32 = 14;

/// So many misses in a row, as a power of two, make the search step further by one: what does not repeat
/// takes less time.
const MISSES_A_STEP_BITS: usize = 5;

/// After so many short strings in a row that do not become shorter,
const VAIN_MAX: u32 = 64;

/// only one of so many is tried, until one does: the data are of a kind that cannot be compressed, or are
/// compressed already.
const TRIED_ONE_OF: u32 = 8;

/// Longer strings are always tried. Trying takes as long as reading them, and what could be saved is much.
const SHORT_MAX_BYTES: usize = 1024;

/// Compresses one string after the other. It remembers where three bytes were last seen, in a table that is
/// not cleared in between: places are counted through all strings, so that those of earlier ones are told by
/// their numbers.
pub struct Compressor {
    last_seen: Box<[u32; 1 << TABLE_BITS]>,
    /// The place of the next string's first byte. 0 stands for none.
    next: u32,
    out: Vec<u8>,
    /// How many short strings in a row have not become shorter, or were not tried.
    n_vain: u32,
}

impl Default for Compressor {
    fn default() -> Self {
        Self { last_seen: Box::new([0; 1 << TABLE_BITS]), next: 1, out: Vec::new(), n_vain: 0 }
    }
}

impl Compressor {
    /// The string compressed, if that takes at most `max_bytes` and is likely enough to be tried.
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

    /// The string compressed, if that takes at most `max_bytes`.
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
                    // What comes next mostly repeats what came next there.
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

    /// Gives the string's first byte its place. There is none for a string that is too long to be counted.
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

    /// Notes where three bytes are; gives where others were that fall on the same number, mostly the same.
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

/// How many bytes both begin with, up to what a repetition may have.
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
