//! The items of a pattern that match one byte: bytes, classes and sets.

/// Returns the end of the item that begins at `item`.
///
/// A pattern's repetition mark is not part of its item.
pub(super) fn item_end(pattern: &[u8], item: usize) -> Result<usize, &'static str> {
    match pattern[item] {
        b'%' if item + 1 == pattern.len() => Err("malformed pattern (ends with '%')"),
        b'%' => Ok(item + 2),
        b'[' => set_end(pattern, item + 1),
        _ => Ok(item + 1),
    }
}

/// Returns the end of the set whose bracket stands before `at`.
///
/// A bracket that would close the set at once belongs to it.
fn set_end(pattern: &[u8], mut at: usize) -> Result<usize, &'static str> {
    let byte = |at: usize| pattern.get(at).copied();
    at += usize::from(byte(at) == Some(b'^'));
    loop {
        let first = byte(at).ok_or("malformed pattern (missing ']')")?;
        at += 1;
        at += usize::from(first == b'%' && at < pattern.len());
        if byte(at) == Some(b']') {
            return Ok(at + 1);
        }
    }
}

/// Returns the byte with which every match of `pattern` begins.
///
/// There is one if the first item is a plain byte that must be there.
pub(super) fn literal_start(pattern: &[u8]) -> Option<u8> {
    let first = *pattern.first()?;
    let is_plain = !matches!(first, b'(' | b')' | b'$' | b'%' | b'.' | b'[');
    let may_miss = matches!(pattern.get(1), Some(b'?' | b'*' | b'-'));
    (is_plain && !may_miss).then_some(first)
}

/// Whether a byte has a special meaning in patterns.
pub(super) fn is_special(byte: u8) -> bool {
    b"^$*+?.([%-".contains(&byte)
}

/// One item of a pattern.
#[derive(Clone, Copy)]
pub(super) enum PatternItem<'a> {
    Any,
    Byte(u8),
    Class(u8),
    /// A set, without its outer brackets and its leading `^`.
    Set {
        members: &'a [u8],
        negated: bool,
    },
}

/// The number of matches in a row after which a set becomes a table.
///
/// The table has an entry for each of the 256 bytes.
const TABLE_FROM: usize = 64;

impl<'a> PatternItem<'a> {
    /// Reads the item of `pattern` from `item` to `end`.
    #[inline]
    pub(super) fn new(pattern: &'a [u8], item: usize, end: usize) -> Self {
        match pattern[item] {
            b'.' => Self::Any,
            b'%' => Self::Class(pattern[item + 1]),
            b'[' => {
                let negated = pattern[item + 1] == b'^';
                Self::Set { members: &pattern[item + 1 + usize::from(negated)..end - 1], negated }
            }
            byte => Self::Byte(byte),
        }
    }

    #[inline]
    pub(super) fn matches(self, byte: u8) -> bool {
        match self {
            Self::Any => true,
            Self::Byte(own) => own == byte,
            Self::Class(letter) => class_has(letter, byte),
            Self::Set { members, negated } => set_has(members, byte) != negated,
        }
    }

    /// Returns the number of bytes at the start of `text` that match.
    #[inline]
    pub(super) fn count(self, text: &[u8]) -> usize {
        match self {
            Self::Any => text.len(),
            Self::Byte(own) => leading(text, |byte| byte == own),
            Self::Class(letter) => leading(text, |byte| class_has(letter, byte)),
            Self::Set { .. } => self.count_set(text),
        }
    }

    fn count_set(self, text: &[u8]) -> usize {
        let start = &text[..text.len().min(TABLE_FROM)];
        let count = leading(start, |byte| self.matches(byte));
        if count < TABLE_FROM {
            return count;
        }
        let table: [bool; 256] = std::array::from_fn(|byte| self.matches(byte as u8));
        TABLE_FROM + leading(&text[TABLE_FROM..], |byte| table[usize::from(byte)])
    }
}

#[inline]
fn leading(text: &[u8], matches: impl Fn(u8) -> bool) -> usize {
    text.iter().position(|byte| !matches(*byte)).unwrap_or(text.len())
}

/// Whether a set names `byte`: by itself, by a class, or by a range.
fn set_has(members: &[u8], byte: u8) -> bool {
    let mut rest = members;
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'%', [letter, after @ ..]) => {
                if class_has(*letter, byte) {
                    return true;
                }
                after
            }
            (low, [b'-', high, after @ ..]) => {
                if (*low..=*high).contains(&byte) {
                    return true;
                }
                after
            }
            (own, after) => {
                if *own == byte {
                    return true;
                }
                after
            }
        };
    }
    false
}

const ALPHA: u8 = 1;
const DIGIT: u8 = 2;
const LOWER: u8 = 4;
const UPPER: u8 = 8;
const SPACE: u8 = 16;
const CONTROL: u8 = 32;
const PUNCTUATION: u8 = 64;
const HEXADECIMAL: u8 = 128;

/// The kinds of character of each byte. One look at this table costs less than the comparisons.
const KINDS: [u8; 256] = {
    let mut kinds = [0; 256];
    let mut at = 0;
    while at < 256 {
        kinds[at] = kinds_of(at as u8);
        at += 1;
    }
    kinds
};

const fn kinds_of(byte: u8) -> u8 {
    let mut kinds = 0;
    let facts = [
        (byte.is_ascii_alphabetic(), ALPHA),
        (byte.is_ascii_digit(), DIGIT),
        (byte.is_ascii_lowercase(), LOWER),
        (byte.is_ascii_uppercase(), UPPER),
        (byte.is_ascii_whitespace() || byte == 0x0b, SPACE),
        (byte.is_ascii_control(), CONTROL),
        (byte.is_ascii_punctuation(), PUNCTUATION),
        (byte.is_ascii_hexdigit(), HEXADECIMAL),
    ];
    let mut at = 0;
    while at < facts.len() {
        if facts[at].0 {
            kinds |= facts[at].1;
        }
        at += 1;
    }
    kinds
}

/// Whether `%letter` matches `byte`.
///
/// A capital letter is the opposite of its small one. Any other byte stands for itself.
#[inline]
fn class_has(letter: u8, byte: u8) -> bool {
    let kinds = match letter.to_ascii_lowercase() {
        b'a' => ALPHA,
        b'd' => DIGIT,
        b'l' => LOWER,
        b's' => SPACE,
        b'u' => UPPER,
        b'w' => ALPHA | DIGIT,
        b'x' => HEXADECIMAL,
        b'p' => PUNCTUATION,
        b'c' => CONTROL,
        b'z' => return (byte == 0) == letter.is_ascii_lowercase(),
        _ => return letter == byte,
    };
    (KINDS[usize::from(byte)] & kinds != 0) == letter.is_ascii_lowercase()
}
