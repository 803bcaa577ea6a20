//! Comparing short byte strings.

/// Whether two byte strings are equal.
///
/// Strings of 8 to 32 bytes, such as most keys, are compared without a call.
#[inline(always)]
pub fn is_same(a: &[u8], b: &[u8]) -> bool {
    let len = a.len();
    if len != b.len() {
        return false;
    }
    // The last words may overlap the ones before.
    let differ = |at| word(a, at) ^ word(b, at);
    match len {
        8..=16 => differ(0) | differ(len - 8) == 0,
        17..=32 => differ(0) | differ(8) | differ(len - 16) | differ(len - 8) == 0,
        _ => a == b,
    }
}

/// The eight bytes at an offset.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts_at_every_length() {
        for len in 0..40 {
            let bytes: Vec<u8> = (1..=len).collect();
            assert!(is_same(&bytes, &bytes.clone()));
            assert!(!is_same(&bytes, &[&bytes[..], b"x"].concat()));
            for at in 0..bytes.len() {
                let mut other = bytes.clone();
                other[at] ^= 1;
                assert!(!is_same(&bytes, &other), "{len} bytes, differing at {at}");
            }
        }
    }
}
