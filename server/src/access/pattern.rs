//! Patterns of keys and channels.

use braid_storage::glob::{Case, glob_match};

/// A glob pattern. Most patterns are a prefix and a star, or have no wildcard at all. Those need only a
/// comparison of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: Box<[u8]>,
    form: PatternForm,
    /// The first eight bytes of every match, and the mask of their significant bits.
    head: u64,
    head_mask: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatternForm {
    /// Exactly these bytes.
    Literal,
    /// All of the text except its last byte, which is a star, and then anything.
    Prefix,
    Glob,
}

/// The first bytes of a text, as [`Pattern::matches`] compares them.
#[derive(Clone, Copy)]
pub struct TextHead(u64);

impl TextHead {
    /// Returns the first bytes of a text. Zeros replace missing bytes.
    #[inline(always)]
    pub fn of(text: &[u8]) -> Self {
        match text.first_chunk::<8>() {
            Some(head) => Self(u64::from_le_bytes(*head)),
            None => Self::of_short(text),
        }
    }

    /// Does the same for fewer than eight bytes.
    ///
    /// It reads the first four and the last four, which may overlap, or one by one.
    #[inline(always)]
    fn of_short(text: &[u8]) -> Self {
        match (text.first_chunk::<4>(), text.last_chunk::<4>()) {
            (Some(first), Some(last)) => {
                let last = u64::from(u32::from_le_bytes(*last)) << (8 * (text.len() - 4));
                Self(u64::from(u32::from_le_bytes(*first)) | last)
            }
            _ => Self(text.iter().rev().fold(0, |head, &byte| head << 8 | u64::from(byte))),
        }
    }
}

impl Pattern {
    /// Reads a pattern.
    pub fn new(text: &[u8]) -> Self {
        let is_wild = |byte: &u8| matches!(byte, b'*' | b'?' | b'[' | b'\\');
        let form = match text {
            // The matcher decides whether stars alone match the empty text.
            [prefix @ .., b'*'] if !prefix.is_empty() && !prefix.iter().any(is_wild) => PatternForm::Prefix,
            literal if !literal.iter().any(is_wild) => PatternForm::Literal,
            _ => PatternForm::Glob,
        };
        let n_fixed = match form {
            PatternForm::Literal => text.len(),
            PatternForm::Prefix => text.len() - 1,
            PatternForm::Glob => 0,
        };
        let head_mask = if n_fixed >= 8 { u64::MAX } else { (1 << (8 * n_fixed)) - 1 };
        Self { text: text.into(), form, head: TextHead::of(&text[..n_fixed]).0, head_mask }
    }

    /// The pattern as it was given.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Whether it matches every text except the empty one.
    pub fn is_star(&self) -> bool {
        *self.text == *b"*"
    }

    /// Whether a text matches. `head` is the text's.
    #[inline(always)]
    pub fn matches(&self, text: &[u8], head: TextHead) -> bool {
        if (head.0 ^ self.head) & self.head_mask != 0 {
            return false;
        }
        match self.form {
            PatternForm::Prefix => {
                let n = self.text.len() - 1;
                text.len() >= n && (n <= 8 || text[8..n] == self.text[8..n])
            }
            PatternForm::Literal => *text == *self.text,
            PatternForm::Glob => self.matches_glob(text),
        }
    }

    #[inline(never)]
    fn matches_glob(&self, text: &[u8]) -> bool {
        glob_match(&self.text, text, Case::Sensitive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        Pattern::new(pattern).matches(text, TextHead::of(text))
    }

    #[test]
    fn every_pattern_matches_what_the_glob_matches() {
        let patterns: [&[u8]; 19] = [
            b"",
            b"*",
            b"**",
            b"a",
            b"a*",
            b"a**",
            b"ab*c",
            b"object:*",
            b"object:12*",
            b"object:123",
            b"object:1234*",
            b"\0*",
            b"a\0*",
            b"a?*",
            b"a[b]*",
            b"a\\*",
            b"\\a*",
            b"\0",
            b"object:\xff*",
        ];
        let texts: [&[u8]; 17] = [
            b"",
            b"a",
            b"ab",
            b"abc",
            b"a*",
            b"b",
            b"\0",
            b"a\0",
            b"\0a",
            b"object:",
            b"object:1",
            b"object:12",
            b"object:123",
            b"object:1234",
            b"object:12345",
            b"object:\xff",
            b"objecx:1",
        ];
        for pattern in patterns {
            for text in texts {
                let expected = glob_match(pattern, text, Case::Sensitive);
                assert_eq!(matches(pattern, text), expected, "{pattern:?} {text:?}");
            }
        }
    }

    #[test]
    fn a_head_is_the_first_eight_bytes() {
        let text: Vec<u8> = (1..=12).collect();
        for len in 0..text.len() {
            let mut first = [0; 8];
            let n = len.min(8);
            first[..n].copy_from_slice(&text[..n]);
            assert_eq!(TextHead::of(&text[..len]).0, u64::from_le_bytes(first), "{len}");
        }
    }

    #[test]
    fn what_is_a_prefix_is_compared() {
        assert_eq!(Pattern::new(b"user:*").form, PatternForm::Prefix);
        assert_eq!(Pattern::new(b"user:1").form, PatternForm::Literal);
        for glob in [&b"*"[..], b"a*b*", b"a?", b"[ab]*", b"\\a*"] {
            assert_eq!(Pattern::new(glob).form, PatternForm::Glob);
        }
    }
}
