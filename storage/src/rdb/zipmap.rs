//! Zipmaps, in which Redis before 2.6 packed hashes; read only.
//!
//! ```text
//! count u8 | (length | name | length | free u8 | value | free bytes)* | 0xff
//! ```
//!
//! A length is one byte, or 0xfe and four, little-endian. 0xfe for the count says that nobody has counted.

const END: u8 = 0xff;
const LONG: u8 = 0xfe;
const UNCOUNTED: u8 = 0xfe;

/// Calls `each` with names and values, of which there must be some, as in Redis. A fault may be found after
/// some calls.
pub fn each(bytes: &[u8], mut each: impl FnMut(&[u8], &[u8]) -> Option<()>) -> Option<()> {
    let (&stated, rest) = bytes.split_first()?;
    let (&end, mut fields) = rest.split_last()?;
    if end != END {
        return None;
    }
    let mut count = 0usize;
    while !fields.is_empty() {
        let (len, rest) = length(fields)?;
        let (name, rest) = rest.split_at_checked(len)?;
        let (len, rest) = length(rest)?;
        let (&free, rest) = rest.split_first()?;
        let (value, rest) = rest.split_at_checked(len)?;
        (_, fields) = rest.split_at_checked(free.into())?;
        each(name, value)?;
        count += 1;
    }
    (count > 0 && (stated == UNCOUNTED || usize::from(stated) == count)).then_some(())
}

fn length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    match bytes.split_first()? {
        (&END, _) => None,
        (&LONG, rest) => {
            let (len, rest) = rest.split_first_chunk()?;
            let len = u32::from_le_bytes(*len) as usize;
            // As in Redis, a short length must not be written the long way.
            (len >= LONG.into()).then_some((len, rest))
        }
        (&len, rest) => Some((len.into(), rest)),
    }
}
