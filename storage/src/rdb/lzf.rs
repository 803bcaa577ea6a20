//! The LZF compression, to be read.
//!
//! A byte below 32 is followed by so many and one more bytes to copy. Any other starts a repetition: its upper three bits are
//! the length less two (seven: the next byte is added to it), its lower five and the byte behind are how far back it starts,
//! less one.

/// The bytes that were compressed, if there are exactly `len` of them. Nothing is allocated before it is needed.
pub fn decompress(mut from: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    while let Some((&control, rest)) = from.split_first() {
        if control < 32 {
            let (literal, rest) = rest.split_at_checked(usize::from(control) + 1)?;
            out.extend_from_slice(literal);
            from = rest;
        } else {
            from = repeat(&mut out, control, rest)?;
        }
        if out.len() > len {
            return None;
        }
    }
    (out.len() == len).then_some(out)
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
