//! Walking over a value without building it: to find its end, or to write it again with its strings
//! compressed.
//!
//! Each type says once, beside its reader, which parts its values have ([`ValueParts`]). The walker decides
//! how to treat a part.

use super::{
    apart::{LONG_BYTES, LongString},
    codes::{double_text, encoded, length},
};

/// The reason why a walk did not come to the end of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The bytes end: at least this many more, and at least one, belong to the value.
    More(usize),
    /// A very long string comes next, which is to be read to a place of its own.
    Long(LongString),
    /// A length or a string has an invalid form.
    Malformed,
}

/// The parts of which values consist, one after the other.
pub trait ValueParts {
    /// A length, or another number that is mostly small.
    fn len(&mut self) -> Result<u64, Stop>;
    /// A string, however it is written.
    fn string(&mut self) -> Result<(), Stop>;
    /// `n` bytes.
    fn bytes(&mut self, n: usize) -> Result<(), Stop>;
    /// A number as it was written before there were binary ones.
    fn double_in_text(&mut self) -> Result<(), Stop>;
    /// The number of elements that follow.
    fn count(&mut self) -> Result<u64, Stop> {
        self.len()
    }
    /// Notes that one of these elements has been passed.
    fn passed_element(&mut self) {}
}

/// `n` lengths.
pub fn lens(parts: &mut dyn ValueParts, n: usize) -> Result<(), Stop> {
    (0..n).try_for_each(|_| parts.len().map(|_| ()))
}

/// Walks over a length and over the parts that it counts. Each part reads something, so a length that is too
/// large ends with the bytes.
pub fn repeated<'p>(
    parts: &mut (dyn ValueParts + 'p),
    mut each: impl FnMut(&mut (dyn ValueParts + 'p)) -> Result<(), Stop>,
) -> Result<(), Stop> {
    for _ in 0..parts.count()? {
        each(parts)?;
        parts.passed_element();
    }
    Ok(())
}

/// Walks over a length and over `n` strings for each unit of it.
pub fn strings(parts: &mut dyn ValueParts, n: usize) -> Result<(), Stop> {
    repeated(parts, |parts| (0..n).try_for_each(|_| parts.string()))
}

/// A string as it is written, taken apart.
pub enum Written<'a> {
    /// The bytes of the string.
    Plain(&'a [u8]),
    /// Fewer bytes than the string has.
    Short,
}

/// Walks over bytes.
pub struct Walker<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The number of strings that stand apart, and the number that it has passed; nothing if very long
    /// strings are parts like others.
    apart: Option<(usize, usize)>,
    elements: Elements,
}

/// The elements over which a walk has come. Only those of the last count are known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Elements {
    /// The place of their number.
    pub count_at: usize,
    /// Their number.
    pub count: u64,
    /// The place of the first.
    pub start: usize,
    /// The number of those that were passed, the place after the last of these, and the number of strings
    /// before that place that stand apart.
    pub n_passed: u64,
    pub end: usize,
    pub n_apart: usize,
}

impl<'a> Walker<'a> {
    /// A walk from the first byte on.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, apart: None, elements: Elements::default() }
    }

    /// A walk over a record of which `n_apart` strings stand apart. It stops before the next very long one.
    pub fn setting_apart(bytes: &'a [u8], n_apart: usize) -> Self {
        Self { apart: Some((n_apart, 0)), ..Self::new(bytes) }
    }

    /// The elements of the value's last count.
    pub fn elements(&self) -> Elements {
        self.elements
    }

    /// The number of bytes that it has walked over.
    #[inline]
    pub fn at(&self) -> usize {
        self.at
    }

    /// The bytes between two places.
    pub fn between(&self, from: usize, to: usize) -> &'a [u8] {
        &self.bytes[from..to]
    }

    /// The bytes from here on.
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// So many bytes, which are given.
    #[inline]
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at..];
        match rest.get(..n) {
            Some(taken) => {
                self.at += n;
                Ok(taken)
            }
            None => Err(Stop::More(n - rest.len())),
        }
    }

    /// One byte.
    #[inline]
    pub fn byte(&mut self) -> Result<u8, Stop> {
        self.take(1).map(|taken| taken[0])
    }

    /// So many bytes, which are given as they are.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        self.take(N).map(|taken| taken.try_into().expect("as many as were asked for"))
    }

    #[inline]
    fn len_from(&mut self, first: u8) -> Result<u64, Stop> {
        Ok(match (first >> 6, first) {
            (length::IN_6_BITS, _) => first.into(),
            (length::IN_14_BITS, _) => u16::from_be_bytes([first & 0x3f, self.byte()?]).into(),
            (_, length::IN_32_BITS) => u32::from_be_bytes(self.array()?).into(),
            (_, length::IN_64_BITS) => u64::from_be_bytes(self.array()?),
            _ => return Err(Stop::Malformed),
        })
    }

    fn size(&mut self) -> Result<usize, Stop> {
        usize::try_from(ValueParts::len(self)?).map_err(|_| Stop::Malformed)
    }

    /// A string, which is taken apart.
    #[inline]
    pub fn written(&mut self) -> Result<Written<'a>, Stop> {
        let start = self.at;
        let first = self.byte()?;
        let n = match first {
            encoded::INT_8 => 1,
            encoded::INT_16 => 2,
            encoded::INT_32 => 4,
            encoded::LZF => {
                let (stored, len) = (self.size()?, self.size()?);
                self.stop_at_long(start, stored, len, true)?;
                stored
            }
            encoded::APART => return self.pass_apart(),
            _ if first >> 6 == length::ENCODED => return Err(Stop::Malformed),
            _ => {
                let len = usize::try_from(self.len_from(first)?).map_err(|_| Stop::Malformed)?;
                self.stop_at_long(start, len, len, false)?;
                return self.take(len).map(Written::Plain);
            }
        };
        self.take(n).map(|_| Written::Short)
    }

    /// Stops before a very long string that should stand apart.
    #[inline]
    fn stop_at_long(&self, start: usize, stored: usize, len: usize, is_compressed: bool) -> Result<(), Stop> {
        if len < LONG_BYTES || self.apart.is_none() {
            return Ok(());
        }
        Err(Stop::Long(LongString { start, text_at: self.at, stored, len, is_compressed }))
    }

    /// Passes the next string that stands apart. A file has no such code: it is valid only in the places
    /// where it was put, which come one after the other.
    fn pass_apart(&mut self) -> Result<Written<'a>, Stop> {
        let (n_apart, n_passed) =
            self.apart.filter(|(n_apart, n_passed)| n_passed < n_apart).ok_or(Stop::Malformed)?;
        if u32::from_le_bytes(self.array()?) as usize != n_passed {
            return Err(Stop::Malformed);
        }
        self.apart = Some((n_apart, n_passed + 1));
        Ok(Written::Short)
    }
}

impl ValueParts for Walker<'_> {
    #[inline]
    fn len(&mut self) -> Result<u64, Stop> {
        let first = self.byte()?;
        self.len_from(first)
    }

    #[inline]
    fn string(&mut self) -> Result<(), Stop> {
        self.written().map(|_| ())
    }

    #[inline]
    fn bytes(&mut self, n: usize) -> Result<(), Stop> {
        self.take(n).map(|_| ())
    }

    fn double_in_text(&mut self) -> Result<(), Stop> {
        let len = self.byte()?;
        if len < double_text::NAN { self.bytes(len.into()) } else { Ok(()) }
    }

    fn count(&mut self) -> Result<u64, Stop> {
        let count_at = self.at;
        let count = self.len()?;
        self.elements = Elements { count_at, count, start: self.at, end: self.at, ..Elements::default() };
        Ok(count)
    }

    #[inline]
    fn passed_element(&mut self) {
        self.elements.n_passed += 1;
        self.elements.end = self.at;
        self.elements.n_apart = self.apart.map_or(0, |(_, n_passed)| n_passed);
    }
}
