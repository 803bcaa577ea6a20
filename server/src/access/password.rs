//! Passwords, of which only the SHA-256 hashes are kept.

use std::{fmt, hint::black_box};

use sha2::{Digest, Sha256};

/// The SHA-256 hash of a password.
#[derive(Clone, Copy)]
pub struct PasswordHash([u8; 32]);

impl PasswordHash {
    /// Hashes a password.
    pub fn of(password: &[u8]) -> Self {
        Self(Sha256::digest(password).into())
    }

    /// Reads 64 lowercase hexadecimal digits.
    pub fn parse(digits: &[u8]) -> Option<Self> {
        let digits: &[u8; 64] = digits.try_into().ok()?;
        let mut hash = [0; 32];
        for (byte, [high, low]) in hash.iter_mut().zip(digits.as_chunks::<2>().0) {
            *byte = nibble(*high)? << 4 | nibble(*low)?;
        }
        Some(Self(hash))
    }
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Comparison takes the same time wherever the first difference is.
impl PartialEq for PasswordHash {
    fn eq(&self, other: &Self) -> bool {
        let difference = self.0.iter().zip(other.0).fold(0, |all, (one, other)| all | black_box(one ^ other));
        difference == 0
    }
}

impl Eq for PasswordHash {}

/// Prints lowercase hexadecimal digits.
impl fmt::Display for PasswordHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

/// Hides the hash, which is a secret, too.
impl fmt::Debug for PasswordHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("PasswordHash(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_PASSWD4: &str = "34344e4d60c2b6d639b7bd22e18f2b0b91bc34bf0ac5f9952744435093cfb4e6";

    #[test]
    fn a_password_has_the_hash_that_other_programs_compute() {
        assert_eq!(PasswordHash::of(b"passwd4").to_string(), OF_PASSWD4);
        assert_eq!(PasswordHash::parse(OF_PASSWD4.as_bytes()), Some(PasswordHash::of(b"passwd4")));
        assert!(PasswordHash::of(b"passwd4") != PasswordHash::of(b"passwd5"));
        assert!(PasswordHash::of(b"") == PasswordHash::of(b""));
    }

    #[test]
    fn a_hash_is_64_lowercase_digits() {
        for wrong in
            [&OF_PASSWD4[1..], &OF_PASSWD4.to_uppercase(), &format!("{OF_PASSWD4}0"), "", &"g".repeat(64)]
        {
            assert_eq!(PasswordHash::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn one_changed_bit_anywhere_makes_another_hash() {
        let hash = PasswordHash::of(b"secret");
        for bit in 0..256 {
            let mut other = hash;
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert!(other != hash, "bit {bit}");
        }
    }
}
