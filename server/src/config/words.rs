//! Words of a configuration line: splitting, and quoting as its inverse.
//!
//! The grammar is that of inline commands: double quotes with `\n`, `\xHH` and the like, single quotes with
//! only `\'`. It is kept in two functions, so that the protocol crate's splitter can replace [`split`].

/// Splits a line into words.
///
/// Returns `None` if a quote stays open or is followed by anything but a space. As in Redis, a zero byte ends
/// the line.
pub fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let end = line.iter().position(|&byte| byte == 0).unwrap_or(line.len());
    let mut words = Vec::new();
    let mut rest = trim_start(&line[..end]);
    while !rest.is_empty() {
        let (word, after) = match rest[0] {
            b'"' | b'\'' => quoted(rest)?,
            _ => bare(rest)?,
        };
        words.push(word);
        rest = trim_start(after);
    }
    Some(words)
}

/// Returns the text without leading spaces. This makes the rest shorter with each word.
fn trim_start(text: &[u8]) -> &[u8] {
    let begin = text.iter().position(|&byte| !is_space(byte)).unwrap_or(text.len());
    &text[begin..]
}

/// Reads a word that does not begin with a quote.
///
/// A quote in its middle opens a quoted tail, as in `a"b c"`.
fn bare(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let end =
        text.iter().position(|&byte| is_space(byte) || byte == b'"' || byte == b'\'').unwrap_or(text.len());
    let (head, rest) = text.split_at(end);
    let mut word = head.to_vec();
    match rest.first() {
        Some(b'"' | b'\'') => {
            let (tail, after) = quoted(rest)?;
            word.extend(tail);
            Some((word, after))
        }
        _ => Some((word, rest)),
    }
}

/// Reads a quoted word; `text` begins with its quote. The closing quote must end the word.
fn quoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let quote = text[0];
    let mut word = Vec::new();
    let mut rest = &text[1..];
    loop {
        rest = match *rest {
            [byte, ref after @ ..] if byte == quote => {
                return after.first().is_none_or(|&next| is_space(next)).then_some((word, after));
            }
            [b'\\', b'x', high, low, ref after @ ..]
                if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                word.push(nibble(high) << 4 | nibble(low));
                after
            }
            [b'\\', byte, ref after @ ..] if quote == b'"' => {
                word.push(unescape(byte));
                after
            }
            [b'\\', b'\'', ref after @ ..] => {
                word.push(b'\'');
                after
            }
            [byte, ref after @ ..] => {
                word.push(byte);
                after
            }
            [] => return None,
        };
    }
}

fn unescape(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

/// Whether a byte is a space in C, which includes the vertical tab.
fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Writes `word` in double quotes, with everything unprintable escaped.
pub fn quote(word: &[u8]) -> Vec<u8> {
    let mut out = vec![b'"'];
    for &byte in word {
        match byte {
            b'\\' | b'"' => out.extend([b'\\', byte]),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            0x07 => out.extend(b"\\a"),
            0x08 => out.extend(b"\\b"),
            b' '..=b'~' => out.push(byte),
            _ => out.extend(format!("\\x{byte:02x}").bytes()),
        }
    }
    out.push(b'"');
    out
}

/// Writes `word` unquoted if [`split`] would return it unchanged, and in quotes otherwise.
pub(super) fn quote_if_needed(word: &[u8]) -> Vec<u8> {
    let plain = |&byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
    if !word.is_empty() && word.iter().all(plain) { word.to_vec() } else { quote(word) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Option<Vec<String>> {
        let split = split(line.as_bytes())?;
        Some(split.into_iter().map(|word| String::from_utf8(word).unwrap()).collect())
    }

    #[test]
    fn words_are_split_at_spaces_outside_quotes() {
        assert_eq!(words("  hz \t 33  ").unwrap(), ["hz", "33"]);
        assert_eq!(words(r#"save """#).unwrap(), ["save", ""]);
        assert_eq!(words(r#"hz "7\x37""#).unwrap(), ["hz", "77"]);
        assert_eq!(words(r#"a 'it\'s' "tab\there""#).unwrap(), ["a", "it's", "tab\there"]);
        assert_eq!(words("").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_vertical_tab_is_a_space_and_a_zero_byte_ends_the_line() {
        assert_eq!(words("\x0b hz\x0b\x0c33 \x0b").unwrap(), ["hz", "33"]);
        assert_eq!(words("\x0b").unwrap(), Vec::<String>::new());
        assert_eq!(words("hz 33\0 44").unwrap(), ["hz", "33"]);
        assert_eq!(words(" \0 hz").unwrap(), Vec::<String>::new());
        assert_eq!(words("\"a\"\0b").unwrap(), ["a"]);
        assert_eq!(words("\"a\0\""), None);
    }

    #[test]
    fn a_quote_left_open_or_glued_to_text_is_refused() {
        for line in ["port \"0", "port '0", "port \"0\"1", "port \"0\\", "a\"b"] {
            assert_eq!(words(line), None, "{line}");
        }
    }

    #[test]
    fn quoting_and_splitting_are_inverse_for_every_byte() {
        let every: Vec<u8> = (0..=255).collect();
        assert_eq!(split(&quote(&every)).unwrap(), std::slice::from_ref(&every));
        for word in [&b""[..], b"plain", b"two words", b"it's", b"back\\slash", &every] {
            assert_eq!(split(&quote_if_needed(word)).unwrap(), [word]);
        }
    }
}
