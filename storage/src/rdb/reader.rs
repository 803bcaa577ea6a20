//! The reader of the format's parts. It answers `None` for any fault of a part, and knows the
//! [fault](Malformed).

use std::borrow::Cow;

use braid_protocol::number;

use super::{
    apart::Apart,
    codes::{double_text, encoded, length},
    flaw::{Flaw, Malformed},
    lzf, ziplist,
};
use crate::{
    entry::{Pinned, time::Millis},
    types::packed::{Element, Packed},
};

/// The longest string, compressed or not.
const STRING_MAX_BYTES: usize = 1 << 30;

/// The bytes that have not been read yet.
pub struct Reader<'a> {
    rest: &'a [u8],
    n_bytes: usize,
    /// The strings that stand apart, and how many bytes of those that were read are not in the others.
    apart: &'a [Apart],
    n_apart_bytes: usize,
    /// The first fault that was found, apart from missing parts.
    refused: Option<Malformed>,
}

impl<'a> Reader<'a> {
    /// Makes a reader that has read nothing yet.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::with_apart(bytes, &[])
    }

    /// Makes a reader of a record of which some strings stand apart.
    pub fn with_apart(bytes: &'a [u8], apart: &'a [Apart]) -> Self {
        Self { rest: bytes, n_bytes: bytes.len(), apart, n_apart_bytes: 0, refused: None }
    }

    /// Whether all has been read.
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// The number of bytes that have been read.
    pub fn at(&self) -> usize {
        self.n_bytes - self.rest.len() + self.n_apart_bytes
    }

    /// The fault, after a `None`.
    pub fn malformed(&self) -> Malformed {
        self.refused.unwrap_or(Malformed { at: self.at(), flaw: Flaw::Part })
    }

    /// Reports a fault of the last part.
    #[cold]
    pub fn refuse<T>(&mut self, flaw: Flaw) -> Option<T> {
        self.refuse_at(self.at(), flaw)
    }

    /// Reports a fault of the last part unless a required condition holds.
    pub fn require(&mut self, is_so: bool, flaw: Flaw) -> Option<()> {
        if is_so { Some(()) } else { self.refuse(flaw) }
    }

    #[cold]
    fn refuse_at<T>(&mut self, at: usize, flaw: Flaw) -> Option<T> {
        self.refused.get_or_insert(Malformed { at, flaw });
        None
    }

    /// Reads a string and converts it by `take`, which answers `None` for a fault.
    pub fn string_as<T>(&mut self, flaw: Flaw, take: impl FnOnce(Cow<'a, [u8]>) -> Option<T>) -> Option<T> {
        let at = self.at();
        let string = self.string()?;
        match take(string) {
            None => self.refuse_at(at, flaw),
            taken => taken,
        }
    }

    fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(bytes)
    }

    /// Reads `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// One byte.
    pub fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    /// A length, or another number that is mostly small.
    pub fn len(&mut self) -> Option<u64> {
        let first = self.byte()?;
        self.len_from(first)
    }

    fn len_from(&mut self, first: u8) -> Option<u64> {
        Some(match (first >> 6, first) {
            (length::IN_6_BITS, _) => first.into(),
            (length::IN_14_BITS, _) => u16::from_be_bytes([first & 0x3f, self.byte()?]).into(),
            (_, length::IN_32_BITS) => u32::from_be_bytes(self.array()?).into(),
            (_, length::IN_64_BITS) => u64::from_be_bytes(self.array()?),
            _ => return None,
        })
    }

    /// A length of bytes.
    fn size(&mut self) -> Option<usize> {
        usize::try_from(self.len()?).ok().filter(|&size| size <= STRING_MAX_BYTES)
    }

    /// A string, however it is written.
    pub fn string(&mut self) -> Option<Cow<'a, [u8]>> {
        let first = self.byte()?;
        let integer = match first {
            encoded::INT_8 => i8::from_le_bytes(self.array()?).into(),
            encoded::INT_16 => i16::from_le_bytes(self.array()?).into(),
            encoded::INT_32 => i32::from_le_bytes(self.array()?).into(),
            encoded::LZF => {
                let (compressed, len) = (self.size()?, self.size()?);
                return lzf::decompress(self.bytes(compressed)?, len).map(Cow::Owned);
            }
            encoded::APART => {
                let apart = self.apart.get(u32::from_le_bytes(self.array()?) as usize)?;
                self.n_apart_bytes += apart.n_bytes_less;
                return Some(Cow::Borrowed(&apart.text));
            }
            _ if first >> 6 == length::ENCODED => return None,
            _ => {
                let len = usize::try_from(self.len_from(first)?).ok()?;
                return self.bytes(len).map(Cow::Borrowed);
            }
        };
        Some(Cow::Owned(number::format_i64(integer, <[u8]>::to_vec)))
    }

    /// A string that is compressed and very long, as a blob; nothing if it is not, and is still to be read.
    pub fn long_compressed(&mut self) -> Option<Option<Pinned>> {
        const LONG_BYTES: usize = 1 << 20;
        let start = self.rest;
        if self.byte()? == encoded::LZF {
            let (compressed, len) = (self.size()?, self.size()?);
            if len >= LONG_BYTES {
                return lzf::decompress_blob(self.bytes(compressed)?, len).map(Some);
            }
        }
        self.rest = start;
        Some(None)
    }

    /// A point in time.
    pub fn time(&mut self) -> Option<Millis> {
        self.array().map(|bytes| Millis(u64::from_le_bytes(bytes)))
    }

    /// A binary number.
    pub fn double(&mut self) -> Option<f64> {
        self.array().map(f64::from_le_bytes)
    }

    /// A number as it was written before there were binary ones.
    pub fn double_in_text(&mut self) -> Option<f64> {
        match self.byte()? {
            double_text::NAN => None,
            double_text::INFINITY => Some(f64::INFINITY),
            double_text::NEG_INFINITY => Some(f64::NEG_INFINITY),
            len => number::parse_f64(self.bytes(len.into())?),
        }
    }

    /// Calls `each` as often as the length says that comes next. Each call reads something, so a length that
    /// is too large ends with the bytes.
    pub fn repeated(&mut self, mut each: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        for _ in 0..self.len()? {
            each(self)?;
        }
        Some(())
    }
}

/// Calls `each` with the elements of a listpack, which is checked before.
pub fn each_packed(bytes: &[u8], mut each: impl FnMut(&[u8]) -> Option<()>) -> Option<()> {
    Packed::check(bytes)?.iter().try_for_each(|element: Element<'_>| element.with_text(&mut each))
}

/// Calls `each` with the elements of a listpack or a ziplist, two and two.
pub fn each_pair(
    is_ziplist: bool,
    bytes: &[u8],
    mut each: impl FnMut(&[u8], &[u8]) -> Option<()>,
) -> Option<()> {
    let (mut first, mut has_first) = (Vec::new(), false);
    let mut take = |text: &[u8]| {
        has_first = !has_first;
        if !has_first {
            return each(&first, text);
        }
        first.clear();
        first.extend_from_slice(text);
        Some(())
    };
    if is_ziplist {
        ziplist::each(bytes, &mut take)?
    } else {
        each_packed(bytes, &mut take)?
    }
    (!has_first).then_some(())
}
