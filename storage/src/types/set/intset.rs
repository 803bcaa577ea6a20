//! Integers in ascending order in one piece of memory.
//!
//! The layout is Redis's intset, byte for byte, so that DUMP and RESTORE copy it:
//!
//! ```text
//! width u32 | count u32 | integer*        all little-endian; each integer has `width` bytes: 2, 4 or 8
//! ```
//!
//! All integers are as wide as the widest that was ever there: removing never narrows.

use braid_protocol::number::MAX_I64_TEXT_BYTES;

use crate::types::packed::Splice;

/// Bytes before the first integer.
const HEADER_BYTES: usize = 8;

/// The most integers, as in Redis: the bytes must fit 32 bits with much to spare.
pub const INTSET_MAX_LEN: usize = 1 << 30;

/// No integers.
pub const EMPTY: &[u8] = &[2, 0, 0, 0, 0, 0, 0, 0];

/// Ascending integers, for reading.
#[derive(Clone, Copy)]
pub struct IntSet<'a>(&'a [u8]);

impl<'a> IntSet<'a> {
    /// A view of bytes that were written by this module, or have been [checked](Self::check).
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        debug_assert!(bytes.len() >= HEADER_BYTES);
        IntSet(bytes)
    }

    /// A view of bytes from elsewhere, unless they are not well formed in every byte. No integers are not.
    pub fn check(bytes: &'a [u8]) -> Option<Self> {
        let width = u32::from_le_bytes(*bytes.first_chunk()?);
        let count = u32::from_le_bytes(*bytes.get(4..)?.first_chunk()?) as usize;
        let has_length = matches!(width, 2 | 4 | 8)
            && (width as usize).checked_mul(count) == Some(bytes.len() - HEADER_BYTES);
        if !has_length || count == 0 {
            return None;
        }
        let ints = IntSet(bytes);
        ints.iter().is_sorted_by(|a, b| a < b).then_some(ints)
    }

    /// The bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// The number of integers.
    #[inline]
    pub fn len(self) -> usize {
        u32::from_le_bytes([self.0[4], self.0[5], self.0[6], self.0[7]]) as usize
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Bytes of each integer.
    #[inline]
    fn width(self) -> usize {
        self.0[0].into()
    }

    /// The integer at an index.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn get(self, index: usize) -> i64 {
        let width = self.width();
        let at = HEADER_BYTES + index * width;
        match self.0[at..at + width] {
            [a, b] => i16::from_le_bytes([a, b]).into(),
            [a, b, c, d] => i32::from_le_bytes([a, b, c, d]).into(),
            [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
            _ => unreachable!("integers are 2, 4 or 8 bytes wide"),
        }
    }

    /// Where an integer is, or, as an error, where it would be.
    pub fn find(self, value: i64) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        // Most sets are filled in ascending order.
        if high > 0 && self.get(high - 1) < value {
            return Err(high);
        }
        while low < high {
            let middle = low.midpoint(high);
            match self.get(middle).cmp(&value) {
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// The integers, ascending.
    #[inline]
    pub fn iter(self) -> impl ExactSizeIterator<Item = i64> + DoubleEndedIterator + use<'a> {
        (0..self.len()).map(move |index| self.get(index))
    }

    /// The bytes of the longest integer's text. It is at either end, as all others lie in between.
    pub fn text_bytes_max(self) -> usize {
        let ends = [0, self.len().wrapping_sub(1)].into_iter().filter(|&index| index < self.len());
        ends.map(|index| text_bytes(self.get(index))).max().unwrap_or(0)
    }
}

impl std::fmt::Debug for IntSet<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The bytes of an integer's text.
fn text_bytes(value: i64) -> usize {
    let n_digits = value.unsigned_abs().checked_ilog10().unwrap_or(0) as usize + 1;
    debug_assert!(n_digits < MAX_I64_TEXT_BYTES);
    n_digits + usize::from(value < 0)
}

/// The least width that an integer has room in.
#[inline]
fn width_of(value: i64) -> usize {
    if i16::try_from(value).is_ok() {
        2
    } else if i32::try_from(value).is_ok() {
        4
    } else {
        8
    }
}

/// Integers that ascend, in the least width that has room for all.
pub fn of_ascending(values: &[i64]) -> Vec<u8> {
    let width = values.iter().map(|&value| width_of(value)).max().unwrap_or(2);
    let mut bytes = vec![0; HEADER_BYTES + values.len() * width];
    write_all(&mut bytes, width, values);
    bytes
}

/// Writes integers over bytes of exactly their length.
fn write_all(bytes: &mut [u8], width: usize, values: &[i64]) {
    debug_assert!(values.is_sorted_by(|a, b| a < b));
    bytes[0] = width as u8;
    bytes[1..4].fill(0);
    write_len(bytes, values.len());
    for (to, value) in bytes[HEADER_BYTES..].chunks_exact_mut(width).zip(values) {
        to.copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

fn write_len(bytes: &mut [u8], len: usize) {
    let len = u32::try_from(len).expect("there are at most 2^30 integers");
    bytes[4..8].copy_from_slice(&len.to_le_bytes());
}

/// Adds an integer that is not there, where [`IntSet::find`] says.
pub fn insert(buffer: &mut impl Splice, index: usize, value: i64) {
    let ints = IntSet::new(buffer.bytes());
    let (len, width) = (ints.len(), ints.width());
    debug_assert_eq!(ints.find(value), Err(index));
    if width_of(value) > width {
        return insert_wider(buffer, value);
    }
    let at = HEADER_BYTES + index * width;
    buffer.splice(at..at, width);
    let bytes = buffer.bytes_mut();
    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    write_len(bytes, len + 1);
}

/// Adds an integer for which the others have to become wider: so it comes before or behind all of them.
#[cold]
fn insert_wider(buffer: &mut impl Splice, value: i64) {
    let mut values: Vec<i64> = IntSet::new(buffer.bytes()).iter().collect();
    values.insert(if value < 0 { 0 } else { values.len() }, value);
    let width = width_of(value);
    let end = buffer.bytes().len();
    buffer.splice(HEADER_BYTES..end, values.len() * width);
    write_all(buffer.bytes_mut(), width, &values);
}

/// Removes the integer at an index.
pub fn remove(buffer: &mut impl Splice, index: usize) {
    let ints = IntSet::new(buffer.bytes());
    let (len, width) = (ints.len(), ints.width());
    debug_assert!(index < len);
    let at = HEADER_BYTES + index * width;
    buffer.splice(at..at + width, 0);
    write_len(buffer.bytes_mut(), len - 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(buffer: &mut Vec<u8>, value: i64) -> bool {
        match IntSet::new(buffer).find(value) {
            Ok(_) => false,
            Err(index) => {
                insert(buffer, index, value);
                true
            }
        }
    }

    #[test]
    fn the_layout_is_that_of_redis() {
        let mut buffer = EMPTY.to_vec();
        add(&mut buffer, 5);
        add(&mut buffer, -1);
        assert_eq!(buffer, [2, 0, 0, 0, 2, 0, 0, 0, 0xff, 0xff, 5, 0]);
        add(&mut buffer, 0x10000);
        assert_eq!(
            buffer,
            [4, 0, 0, 0, 3, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 5, 0, 0, 0, 0, 0, 1, 0],
            "all are as wide as the widest"
        );
        remove(&mut buffer, 2);
        assert_eq!(buffer, [4, 0, 0, 0, 2, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 5, 0, 0, 0]);
        add(&mut buffer, i64::MIN);
        assert_eq!(buffer[..8], [8, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(IntSet::new(&buffer).iter().collect::<Vec<_>>(), [i64::MIN, -1, 5]);
    }

    #[test]
    fn integers_of_every_width_agree_with_a_btree() {
        let edges = [0, 1, -1, 127, 32767, 32768, -32768, -32769, i32::MAX as i64, i32::MAX as i64 + 1];
        let more = [i32::MIN as i64, i32::MIN as i64 - 1, i64::MAX, i64::MIN, i64::MAX - 1, 42];
        let values: Vec<i64> = edges.into_iter().chain(more).collect();
        for start in 0..values.len() {
            let mut buffer = EMPTY.to_vec();
            let mut model = std::collections::BTreeSet::new();
            for step in 0..values.len() {
                let value = values[(start + step * 7) % values.len()];
                assert_eq!(add(&mut buffer, value), model.insert(value));
                assert!(!add(&mut buffer, value));
                let ints = IntSet::check(&buffer).expect("well formed");
                assert!(ints.iter().eq(model.iter().copied()));
                let text_bytes_max = model.iter().map(|value| value.to_string().len()).max();
                assert_eq!(Some(ints.text_bytes_max()), text_bytes_max);
                let ascending: Vec<i64> = model.iter().copied().collect();
                assert!(IntSet::check(&of_ascending(&ascending)).unwrap().iter().eq(ints.iter()));
            }
            for &value in &values {
                let index = IntSet::new(&buffer).find(value).expect("all are there");
                remove(&mut buffer, index);
                assert!(IntSet::new(&buffer).find(value).is_err());
            }
            assert!(IntSet::new(&buffer).is_empty());
        }
    }

    #[test]
    fn bytes_that_are_no_intset_are_refused() {
        let good = of_ascending(&[-3, 70_000, 80_000]);
        assert!(IntSet::check(&good).is_some());
        for len in 0..good.len() {
            assert!(IntSet::check(&good[..len]).is_none(), "{len} bytes");
        }
        for bad in [
            &[3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0][..],
            &[2, 1, 0, 0, 1, 0, 0, 0, 1, 0],
            &[2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 1, 0],
            &[2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0],
            &[2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0],
            &[8, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
            EMPTY,
        ] {
            assert!(IntSet::check(bad).is_none(), "{bad:?}");
        }
    }
}
