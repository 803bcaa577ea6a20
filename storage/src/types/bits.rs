//! Strings as arrays of bits: SETBIT, BITCOUNT, BITPOS, BITOP and BITFIELD.
//!
//! Bits are numbered from the highest of the first byte on, and after the end of a string all bits are zero.
//! Integers in a string begin at any bit and have their highest bit first.

use std::ops::Range;

/// Whether the bit at `at` is set.
#[inline]
pub fn get(bytes: &[u8], at: u64) -> bool {
    byte_at(bytes, at) & mask(at) != 0
}

/// The byte with the bit at `at`, after that bit was set or cleared.
#[inline]
pub fn byte_with(bytes: &[u8], at: u64, on: bool) -> u8 {
    let byte = byte_at(bytes, at);
    if on { byte | mask(at) } else { byte & !mask(at) }
}

fn byte_at(bytes: &[u8], at: u64) -> u8 {
    bytes.get((at / 8) as usize).copied().unwrap_or(0)
}

fn mask(at: u64) -> u8 {
    0x80 >> (at % 8)
}

/// Counts the bits that are set.
///
/// Eight vectors at a time are added up bit by bit, so that only every eighth is counted. This reads at the
/// speed of memory without a popcount instruction. (Harley and Seal's carry-save adders, in Muła, Kurz and
/// Lemire, "Faster Population Counts Using AVX2 Instructions".)
pub fn count(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<{ VECTOR_BYTES * 8 }>();
    let (mut ones, mut twos, mut fours) = ([0; LANES], [0; LANES], [0; LANES]);
    let mut n_eights = 0;
    for block in blocks {
        let (vectors, _) = block.as_chunks::<VECTOR_BYTES>();
        let (halves, _) = vectors.as_chunks::<4>();
        let mut carried = [[0; LANES]; 2];
        for (half, carried) in halves.iter().zip(&mut carried) {
            let a = carry(&mut ones, load(&half[0]), load(&half[1]));
            let b = carry(&mut ones, load(&half[2]), load(&half[3]));
            *carried = carry(&mut twos, a, b);
        }
        n_eights += count_vector(carry(&mut fours, carried[0], carried[1]));
    }
    let n_rest: u64 = rest.iter().map(|byte| u64::from(byte.count_ones())).sum();
    8 * n_eights + 4 * count_vector(fours) + 2 * count_vector(twos) + count_vector(ones) + n_rest
}

/// Words that are worked on side by side.
const LANES: usize = 4;
const VECTOR_BYTES: usize = LANES * 8;

type Vector = [u64; LANES];

#[inline(always)]
fn load(bytes: &[u8; VECTOR_BYTES]) -> Vector {
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|lane| u64::from_ne_bytes(words[lane]))
}

/// Adds two vectors to a sum, each bit for itself, and returns the carries.
#[inline(always)]
fn carry(sum: &mut Vector, a: Vector, b: Vector) -> Vector {
    std::array::from_fn(|lane| {
        let half = sum[lane] ^ a[lane];
        let carry = (sum[lane] & a[lane]) | (half & b[lane]);
        sum[lane] = half ^ b[lane];
        carry
    })
}

#[inline(always)]
fn count_vector(vector: Vector) -> u64 {
    vector.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Counts the bits of a range that are set. Bits after the end count as zero.
pub fn count_in(bytes: &[u8], bits: Range<u64>) -> u64 {
    let end = bits.end.min(bytes.len() as u64 * 8);
    if bits.start >= end {
        return 0;
    }
    let (first, last) = ((bits.start / 8) as usize, ((end - 1) / 8) as usize);
    let before = bytes[first] & !(0xff >> (bits.start % 8));
    let behind = bytes[last] & (0x7f >> ((end - 1) % 8));
    count(&bytes[first..=last]) - u64::from(before.count_ones()) - u64::from(behind.count_ones())
}

/// Finds the first bit of a range that is set, or clear.
///
/// # Panics
/// If the range reaches beyond the end.
pub fn find(bytes: &[u8], on: bool, bits: Range<u64>) -> Option<u64> {
    if bits.is_empty() {
        return None;
    }
    let skipped = if on { 0x00 } else { 0xff };
    let (first, last) = ((bits.start / 8) as usize, ((bits.end - 1) / 8) as usize);
    let head = (bytes[first] ^ skipped) & (0xff >> (bits.start % 8));
    let (byte, hits) = if head != 0 {
        (first, head)
    } else {
        let byte = first + 1 + position_other_than(&bytes[first + 1..=last], skipped)?;
        (byte, bytes[byte] ^ skipped)
    };
    let found = byte as u64 * 8 + u64::from(hits.leading_zeros());
    (found < bits.end).then_some(found)
}

/// Finds the first byte that differs from `skipped`.
fn position_other_than(bytes: &[u8], skipped: u8) -> Option<usize> {
    let pattern = u64::from_ne_bytes([skipped; 8]);
    let (blocks, _) = bytes.as_chunks::<64>();
    let is_skipped = |block: &&[u8; 64]| {
        let (words, _) = block.as_chunks::<8>();
        words.iter().fold(0, |differing, word| differing | (u64::from_ne_bytes(*word) ^ pattern)) == 0
    };
    let start = blocks.iter().take_while(is_skipped).count() * 64;
    bytes[start..].iter().position(|&byte| byte != skipped).map(|at| start + at)
}

/// An operation of BITOP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitOperation {
    /// Bits set in all sources.
    And,
    /// Bits set in any source.
    Or,
    /// Bits set in an odd number of sources.
    Xor,
    /// Bits clear in the only source.
    Not,
    /// Bits set in the first source and in no other.
    Diff,
    /// Bits clear in the first source and set in some other.
    Diff1,
    /// Bits set in the first source and in some other.
    AndOr,
    /// Bits set in exactly one source.
    One,
}

/// Bytes that are combined at a time: the sources' parts and the result stay in the first cache.
const CHUNK_BYTES: usize = 4096;

/// Combines strings as if all were as long as the longest, and passes the result on in pieces.
pub fn combine(operation: BitOperation, sources: &[&[u8]], mut emit: impl FnMut(&[u8])) {
    let len = longest(sources);
    let mut chunk = [0; CHUNK_BYTES];
    for start in (0..len).step_by(CHUNK_BYTES) {
        let chunk = &mut chunk[..(len - start).min(CHUNK_BYTES)];
        let end = start + chunk.len();
        let part = |source: &&'_ [u8]| start.min(source.len())..end.min(source.len());
        combine_chunk(operation, sources.iter().map(|source| &source[part(source)]), chunk);
        emit(chunk);
    }
}

/// The length of the longest string.
pub fn longest(sources: &[&[u8]]) -> usize {
    sources.iter().map(|source| source.len()).max().unwrap_or(0)
}

/// Combines parts, none longer than the chunk; missing bytes of a part are zero.
fn combine_chunk<'s>(
    operation: BitOperation,
    mut parts: impl Iterator<Item = &'s [u8]> + Clone,
    chunk: &mut [u8],
) {
    let all = parts.clone();
    let first = parts.next().unwrap_or_default();
    match operation {
        BitOperation::And => {
            write(chunk, first);
            parts.for_each(|part| and(chunk, part));
        }
        BitOperation::Or => {
            write(chunk, first);
            parts.for_each(|part| merge(chunk, part, |a, b| a | b));
        }
        BitOperation::Xor => {
            write(chunk, first);
            parts.for_each(|part| merge(chunk, part, |a, b| a ^ b));
        }
        BitOperation::Not => {
            write(chunk, first);
            chunk.iter_mut().for_each(|byte| *byte = !*byte);
        }
        BitOperation::Diff => {
            write(chunk, first);
            parts.for_each(|part| merge(chunk, part, |a, b| a & !b));
        }
        BitOperation::Diff1 => {
            combine_chunk(BitOperation::Or, parts, chunk);
            merge(chunk, first, |a, b| a & !b);
        }
        BitOperation::AndOr => {
            combine_chunk(BitOperation::Or, parts, chunk);
            and(chunk, first);
        }
        BitOperation::One => only_once(all, chunk),
    }
}

fn only_once<'s>(parts: impl Iterator<Item = &'s [u8]>, chunk: &mut [u8]) {
    let mut repeated = [0; CHUNK_BYTES];
    let repeated = &mut repeated[..chunk.len()];
    chunk.fill(0);
    for part in parts {
        for ((seen, repeated), &byte) in chunk.iter_mut().zip(&mut *repeated).zip(part) {
            *repeated |= *seen & byte;
            *seen |= byte;
        }
    }
    merge(chunk, repeated, |seen, repeated| seen & !repeated);
}

fn write(chunk: &mut [u8], part: &[u8]) {
    let (start, rest) = chunk.split_at_mut(part.len());
    start.copy_from_slice(part);
    rest.fill(0);
}

fn and(chunk: &mut [u8], part: &[u8]) {
    merge(chunk, part, |a, b| a & b);
    chunk[part.len()..].fill(0);
}

/// Changes the bytes that have a counterpart in the part.
#[inline(always)]
fn merge(chunk: &mut [u8], part: &[u8], with: impl Fn(u8, u8) -> u8) {
    for (byte, &other) in chunk.iter_mut().zip(part) {
        *byte = with(*byte, other);
    }
}

/// A type of integers in a string: `i1` to `i64`, `u1` to `u63`. All its values fit an `i64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntType {
    is_signed: bool,
    n_bits: u32,
}

/// The treatment of a value that is out of its type's range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// Its lowest bits are kept.
    #[default]
    Wrap,
    /// It becomes the nearest that is in range.
    Saturate,
    /// It is refused.
    Fail,
}

impl IntType {
    /// Signed integers of 1 to 64 bits.
    pub fn signed(n_bits: u32) -> Option<Self> {
        (1..=64).contains(&n_bits).then_some(IntType { is_signed: true, n_bits })
    }

    /// Unsigned integers of 1 to 63 bits.
    pub fn unsigned(n_bits: u32) -> Option<Self> {
        (1..=63).contains(&n_bits).then_some(IntType { is_signed: false, n_bits })
    }

    /// The number of bits of an integer.
    pub fn n_bits(self) -> u64 {
        u64::from(self.n_bits)
    }

    /// Reads the integer that begins at the bit `at`.
    pub fn get(self, bytes: &[u8], at: u64) -> i64 {
        let window = window(bytes, at) << (at % 8);
        let n_others = u128::BITS - self.n_bits;
        if self.is_signed { (window as i128 >> n_others) as i64 } else { (window >> n_others) as i64 }
    }

    /// Writes an integer, whose lowest bits are taken, from the bit `at` on.
    ///
    /// # Panics
    /// If it does not lie within the bytes.
    pub fn set(self, bytes: &mut [u8], at: u64, value: i64) {
        let shift = u128::BITS - self.n_bits - (at % 8) as u32;
        let mask = ((1 << self.n_bits) - 1) << shift;
        let written = (window(bytes, at) & !mask) | ((value as u128) << shift & mask);
        let (start, end) = ((at / 8) as usize, (at + self.n_bits()).div_ceil(8) as usize);
        bytes[start..end].copy_from_slice(&written.to_be_bytes()[..end - start]);
    }

    /// Converts `value` to this type; none if it is out of range and must be refused.
    pub fn fit(self, value: i128, overflow: Overflow) -> Option<i64> {
        let range = self.min()..=self.max();
        match overflow {
            _ if range.contains(&value) => Some(value as i64),
            Overflow::Wrap => Some(self.wrap(value)),
            Overflow::Saturate => Some(value.clamp(self.min(), self.max()) as i64),
            Overflow::Fail => None,
        }
    }

    /// Interprets a number that must be stored.
    ///
    /// Redis compares it with the type's range in 64 bits. For an unsigned type a negative number is a large
    /// one there. For a signed type, so is a number whose distance to the highest value does not fit 63 bits.
    pub fn given(self, value: i64) -> i128 {
        let wraps = !self.is_signed || (self.n_bits < 64 && self.max() - i128::from(value) > i64::MAX.into());
        if wraps { i128::from(value as u64) } else { i128::from(value) }
    }

    fn min(self) -> i128 {
        if self.is_signed { -1 << (self.n_bits - 1) } else { 0 }
    }

    fn max(self) -> i128 {
        self.min() + (1 << self.n_bits) - 1
    }

    fn wrap(self, value: i128) -> i64 {
        let n_others = u128::BITS - self.n_bits;
        if self.is_signed {
            (value << n_others >> n_others) as i64
        } else {
            ((value as u128) << n_others >> n_others) as i64
        }
    }
}

/// The nine bytes from the one with the bit `at` on, at the upper end of the word. Bytes after the string are
/// zero.
fn window(bytes: &[u8], at: u64) -> u128 {
    let part = bytes.get((at / 8) as usize..).unwrap_or_default();
    let part = &part[..part.len().min(9)];
    let mut window = [0; 16];
    window[..part.len()].copy_from_slice(part);
    u128::from_be_bytes(window)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The model: a vector of bits.
    fn bits_of(bytes: &[u8]) -> Vec<bool> {
        bytes.iter().flat_map(|byte| (0..8).map(move |n| byte >> (7 - n) & 1 == 1)).collect()
    }

    fn bytes_of(bits: &[bool]) -> Vec<u8> {
        bits.chunks(8).map(|bits| bits.iter().fold(0, |byte, &bit| byte << 1 | u8::from(bit))).collect()
    }

    /// Strings with long stretches of ones and zeros, around the sizes that are worked on at a time.
    fn strings() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![4 => Just(0x00), 4 => Just(0xff), 1 => any::<u8>()];
        let stretch = (byte, 1..200usize).prop_map(|(byte, n)| vec![byte; n]);
        prop::collection::vec(stretch, 0..8).prop_map(|stretches| stretches.concat())
    }

    fn ranges() -> impl Strategy<Value = Range<u64>> {
        (0..10_000u64, 0..10_000u64).prop_map(|(start, end)| start..end)
    }

    fn int_types() -> impl Strategy<Value = IntType> {
        prop_oneof![
            (1..=64u32).prop_map(|n| IntType::signed(n).unwrap()),
            (1..=63u32).prop_map(|n| IntType::unsigned(n).unwrap()),
        ]
    }

    /// One bit of the result, given that bit of the sources.
    fn combine_bits(operation: BitOperation, bits: &[bool]) -> bool {
        let n_set = bits.iter().filter(|bit| **bit).count();
        let (first, others) = (bits[0], bits[1..].contains(&true));
        match operation {
            BitOperation::And => n_set == bits.len(),
            BitOperation::Or => n_set > 0,
            BitOperation::Xor => n_set % 2 == 1,
            BitOperation::Not => !first,
            BitOperation::Diff => first && !others,
            BitOperation::Diff1 => !first && others,
            BitOperation::AndOr => first && others,
            BitOperation::One => n_set == 1,
        }
    }

    const OPERATIONS: [BitOperation; 8] = [
        BitOperation::And,
        BitOperation::Or,
        BitOperation::Xor,
        BitOperation::Not,
        BitOperation::Diff,
        BitOperation::Diff1,
        BitOperation::AndOr,
        BitOperation::One,
    ];

    proptest! {
        #[test]
        fn single_bits_are_those_of_the_model(bytes in strings(), at in 0..10_000u64, on: bool) {
            let mut bits = bits_of(&bytes);
            prop_assert_eq!(get(&bytes, at), bits.get(at as usize).copied().unwrap_or(false));
            let byte = (at / 8) as usize;
            bits.resize(bits.len().max(byte * 8 + 8), false);
            bits[at as usize] = on;
            prop_assert_eq!(byte_with(&bytes, at, on), bytes_of(&bits)[byte]);
        }

        #[test]
        fn counts_are_those_of_the_model(bytes in strings(), range in ranges()) {
            let bits = bits_of(&bytes);
            prop_assert_eq!(count(&bytes), bits.iter().filter(|bit| **bit).count() as u64);
            let in_range = |at: &usize| range.contains(&(*at as u64));
            let expected = (0..bits.len()).filter(in_range).filter(|at| bits[*at]).count();
            prop_assert_eq!(count_in(&bytes, range), expected as u64);
        }

        #[test]
        fn searches_find_what_the_model_finds(bytes in strings(), range in ranges(), on: bool) {
            let bits = bits_of(&bytes);
            let range = range.start.min(bits.len() as u64)..range.end.min(bits.len() as u64);
            let expected = range.clone().find(|at| bits[*at as usize] == on);
            prop_assert_eq!(find(&bytes, on, range), expected);
        }

        #[test]
        fn combinations_are_those_of_the_model(sources in prop::collection::vec(strings(), 1..5)) {
            let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
            let models: Vec<Vec<bool>> = sources.iter().map(|source| bits_of(source)).collect();
            for operation in OPERATIONS {
                let sources = if operation == BitOperation::Not { &sources[..1] } else { &sources };
                let mut combined = Vec::new();
                combine(operation, sources, |piece| combined.extend_from_slice(piece));
                let expected: Vec<bool> = (0..longest(sources) * 8)
                    .map(|at| {
                        let models = models[..sources.len()].iter();
                        let bits: Vec<bool> = models.map(|bits| bits.get(at).copied().unwrap_or(false)).collect();
                        combine_bits(operation, &bits)
                    })
                    .collect();
                prop_assert_eq!(bits_of(&combined), expected, "{:?}", operation);
            }
        }

        #[test]
        fn integers_are_where_the_model_has_them(
            mut bytes in strings(),
            at in 0..10_000u64,
            of in int_types(),
            value: i64,
        ) {
            let mut bits = bits_of(&bytes);
            let place = at as usize..(at + of.n_bits()) as usize;
            bits.resize(bits.len().max(place.end.next_multiple_of(8)), false);
            let sign = of.is_signed && bits[place.start];
            let read = bits[place.clone()].iter().fold(-i128::from(sign), |n, &bit| n << 1 | i128::from(bit));
            prop_assert_eq!(i128::from(of.get(&bytes, at)), read);

            let written = of.fit(value.into(), Overflow::Wrap).unwrap();
            for (n, at) in place.rev().enumerate() {
                bits[at] = value >> n & 1 == 1;
            }
            bytes.resize(bits.len() / 8, 0);
            of.set(&mut bytes, at, value);
            prop_assert_eq!(&bytes_of(&bits), &bytes);
            prop_assert_eq!(of.get(&bytes, at), written);
        }

        #[test]
        fn overflow_is_modular_or_clamped(of in int_types(), value: i64, increment: i64) {
            let sum = i128::from(value) + i128::from(increment);
            let n_values = 1i128 << of.n_bits;
            let min = if of.is_signed { -(n_values / 2) } else { 0 };
            let max = min + n_values - 1;
            let wrapped = (sum - min).rem_euclid(n_values) + min;
            prop_assert_eq!(of.fit(sum, Overflow::Wrap).map(i128::from), Some(wrapped));
            prop_assert_eq!(of.fit(sum, Overflow::Saturate).map(i128::from), Some(sum.clamp(min, max)));
            prop_assert_eq!(of.fit(sum, Overflow::Fail).map(i128::from), (wrapped == sum).then_some(sum));
        }
    }

    #[test]
    fn pieces_of_long_combinations_fit_together() {
        let long: Vec<u8> = (0..3 * CHUNK_BYTES + 5).map(|n| (n * 7) as u8).collect();
        let short = &long[..CHUNK_BYTES + 3];
        let mut combined = Vec::new();
        combine(BitOperation::Xor, &[&long, short, &[]], |piece| combined.extend_from_slice(piece));
        assert_eq!(combined.len(), long.len());
        assert!(combined[..short.len()].iter().all(|byte| *byte == 0));
        assert_eq!(combined[short.len()..], long[short.len()..]);
    }

    #[test]
    fn types_have_bounds() {
        assert_eq!((IntType::signed(0), IntType::signed(65)), (None, None));
        assert_eq!((IntType::unsigned(0), IntType::unsigned(64)), (None, None));
        let (least, most) = (IntType::signed(64).unwrap(), IntType::unsigned(63).unwrap());
        assert_eq!(least.fit(i64::MIN.into(), Overflow::Fail), Some(i64::MIN));
        assert_eq!(most.fit(i64::MAX.into(), Overflow::Fail), Some(i64::MAX));
        assert_eq!(most.fit(most.given(-1), Overflow::Saturate), Some(i64::MAX));
        assert_eq!(least.given(-1), -1);
        let byte = IntType::signed(8).unwrap();
        for (value, stored) in [(-129, -128), (127 - i64::MAX, -128), (126 - i64::MAX, 127), (i64::MIN, 127)]
        {
            assert_eq!(byte.fit(byte.given(value), Overflow::Saturate), Some(stored), "{value}");
            assert_eq!(byte.fit(byte.given(value), Overflow::Wrap), Some(i64::from(value as i8)));
        }
    }

    #[test]
    fn the_longest_strings_end_at_the_last_offset() {
        let (last, bytes) = (u64::from(u32::MAX), [0xff; 3]);
        assert_eq!(IntType::signed(64).unwrap().get(&bytes, last), 0);
        assert!(!get(&bytes, last));
        assert_eq!(count_in(&bytes, 20..u64::MAX), 4);
    }
}
