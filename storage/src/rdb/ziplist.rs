//! Ziplists, in which Redis before 7.0 packed the contents of today's listpacks; read only.
//!
//! ```text
//! bytes u32 | offset of the last entry u32 | count u16 | entry* | 0xff        all little-endian
//! entry: bytes of the entry before it (one, or 0xfe and four) | code | payload
//! ```

use braid_protocol::number;

const HEADER_BYTES: usize = 10;
const END: u8 = 0xff;
/// Starts a length of four bytes of the entry before.
const LONG_BEFORE: u8 = 0xfe;
/// So many entries, or more, are not counted.
const UNCOUNTED: u16 = u16::MAX;

/// Calls `each` with the elements. A fault may be found after some calls.
pub fn each(bytes: &[u8], mut each: impl FnMut(&[u8]) -> Option<()>) -> Option<()> {
    let total = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    let last = u32::from_le_bytes(*bytes.get(4..)?.first_chunk()?) as usize;
    let stated = u16::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
    let (&end, entries) = bytes.get(HEADER_BYTES..)?.split_last()?;
    if total != bytes.len() || end != END {
        return None;
    }
    let (mut rest, mut before, mut count) = (entries, 0, 0usize);
    while !rest.is_empty() {
        let at = rest;
        let (stated_before, body) = length_before(rest)?;
        if stated_before != before {
            return None;
        }
        rest = entry(body, &mut each)?;
        (before, count) = (at.len() - rest.len(), count + 1);
    }
    let is_right = last == bytes.len() - 1 - before && (stated == UNCOUNTED || usize::from(stated) == count);
    is_right.then_some(())
}

fn length_before(entry: &[u8]) -> Option<(usize, &[u8])> {
    match entry.split_first()? {
        (&LONG_BEFORE, rest) => {
            let (len, rest) = rest.split_first_chunk()?;
            Some((u32::from_le_bytes(*len) as usize, rest))
        }
        (&END, _) => None,
        (&len, rest) => Some((len.into(), rest)),
    }
}

/// Calls `each` with an element; returns the bytes after it.
fn entry(body: &[u8], mut each: impl FnMut(&[u8]) -> Option<()>) -> Option<&[u8]> {
    let (&code, rest) = body.split_first()?;
    let (len, rest) = match code >> 6 {
        0 => (usize::from(code), rest),
        1 => {
            let (&low, rest) = rest.split_first()?;
            (usize::from(code & 0x3f) << 8 | usize::from(low), rest)
        }
        2 => {
            let (len, rest) = rest.split_first_chunk()?;
            (u32::from_be_bytes(*len) as usize, rest)
        }
        _ => {
            let (integer, rest) = integer(code, rest)?;
            number::format_i64(integer, each)?;
            return Some(rest);
        }
    };
    let (text, rest) = rest.split_at_checked(len)?;
    each(text)?;
    Some(rest)
}

fn integer(code: u8, rest: &[u8]) -> Option<(i64, &[u8])> {
    let n_bytes = match code {
        0xc0 => 2,
        0xd0 => 4,
        0xe0 => 8,
        0xf0 => 3,
        0xfe => 1,
        0xf1..=0xfd => return Some((i64::from(code & 0xf) - 1, rest)),
        _ => return None,
    };
    let (payload, rest) = rest.split_at_checked(n_bytes)?;
    let mut wide = [0; 8];
    // In the highest bytes, from where the shift brings the sign along.
    wide[8 - n_bytes..].copy_from_slice(payload);
    Some((i64::from_le_bytes(wide) >> (64 - 8 * n_bytes), rest))
}
