//! Splits JSON into tokens. This module does not know a Lua state.

use std::borrow::Cow;

use crate::library::c_numbers::read_prefix;

/// A piece of JSON.
#[derive(Debug, PartialEq)]
pub(super) enum JsonToken<'a> {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    String(Cow<'a, [u8]>),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    /// Bytes that are no token, with the reason.
    Invalid(&'static str),
}

impl JsonToken<'_> {
    /// Returns the name of the token in errors.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::ObjectBegin => "T_OBJ_BEGIN",
            Self::ObjectEnd => "T_OBJ_END",
            Self::ArrayBegin => "T_ARR_BEGIN",
            Self::ArrayEnd => "T_ARR_END",
            Self::String(_) => "T_STRING",
            Self::Number(_) => "T_NUMBER",
            Self::Boolean(_) => "T_BOOLEAN",
            Self::Null => "T_NULL",
            Self::Colon => "T_COLON",
            Self::Comma => "T_COMMA",
            Self::End => "T_END",
            Self::Invalid(reason) => reason,
        }
    }
}

const INVALID_NUMBER: JsonToken<'_> = JsonToken::Invalid("invalid number");
const INVALID_TOKEN: JsonToken<'_> = JsonToken::Invalid("invalid token");

/// A reader of tokens, from left to right. A zero byte outside a string ends the text.
pub(super) struct JsonLexer<'a> {
    text: &'a [u8],
    at: usize,
    token_start: usize,
    reads_invalid_numbers: bool,
}

impl<'a> JsonLexer<'a> {
    pub(super) fn new(text: &'a [u8], reads_invalid_numbers: bool) -> Self {
        Self { text, at: 0, token_start: 0, reads_invalid_numbers }
    }

    /// Returns the number of bytes read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Returns the position at which the last token begins, or that of its wrong byte.
    pub(super) fn token_start(&self) -> usize {
        self.token_start
    }

    fn byte(&self, at: usize) -> u8 {
        self.text.get(at).copied().unwrap_or(0)
    }

    /// Reads the next token. After [`JsonToken::End`] and [`JsonToken::Invalid`] it does not advance.
    pub(super) fn next(&mut self) -> JsonToken<'a> {
        while matches!(self.byte(self.at), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        self.token_start = self.at;
        let token = match self.byte(self.at) {
            b'{' => JsonToken::ObjectBegin,
            b'}' => JsonToken::ObjectEnd,
            b'[' => JsonToken::ArrayBegin,
            b']' => JsonToken::ArrayEnd,
            b',' => JsonToken::Comma,
            b':' => JsonToken::Colon,
            0 => return JsonToken::End,
            b'"' => return self.string(),
            b'-' | b'0'..=b'9' => return self.number(),
            _ => return self.word(),
        };
        self.at += 1;
        token
    }

    fn number(&mut self) -> JsonToken<'a> {
        if !self.reads_invalid_numbers && is_invalid_number(&self.text[self.at..]) {
            return INVALID_NUMBER;
        }
        match read_prefix(&self.text[self.at..]) {
            Some((value, length)) => {
                self.at += length;
                JsonToken::Number(value)
            }
            None => INVALID_NUMBER,
        }
    }

    fn word(&mut self) -> JsonToken<'a> {
        let rest = &self.text[self.at..];
        let (token, length) = match rest {
            [b't', b'r', b'u', b'e', ..] => (JsonToken::Boolean(true), 4),
            [b'f', b'a', b'l', b's', b'e', ..] => (JsonToken::Boolean(false), 5),
            [b'n', b'u', b'l', b'l', ..] => (JsonToken::Null, 4),
            [b'i' | b'I' | b'n' | b'N' | b'+', ..]
                if self.reads_invalid_numbers && is_invalid_number(rest) =>
            {
                return self.number();
            }
            _ => return INVALID_TOKEN,
        };
        self.at += length;
        token
    }

    fn string(&mut self) -> JsonToken<'a> {
        self.at += 1;
        let start = self.at;
        self.skip_plain();
        if self.byte(self.at) == b'"' {
            self.at += 1;
            return JsonToken::String(Cow::Borrowed(&self.text[start..self.at - 1]));
        }
        let mut value = self.text[start..self.at].to_vec();
        loop {
            match self.byte(self.at) {
                b'"' => {
                    self.at += 1;
                    return JsonToken::String(Cow::Owned(value));
                }
                0 => return self.wrong("unexpected end of string"),
                b'\\' => {
                    if let Err(reason) = self.escape(&mut value) {
                        return self.wrong(reason);
                    }
                }
                _ => {
                    let from = self.at;
                    self.skip_plain();
                    value.extend_from_slice(&self.text[from..self.at]);
                }
            }
        }
    }

    /// Advances to the next quote, backslash or zero byte, or to the end.
    fn skip_plain(&mut self) {
        let rest = &self.text[self.at..];
        self.at += memchr::memchr3(b'"', b'\\', 0, rest).unwrap_or(rest.len());
    }

    fn wrong(&mut self, reason: &'static str) -> JsonToken<'a> {
        self.token_start = self.at;
        JsonToken::Invalid(reason)
    }

    fn escape(&mut self, value: &mut Vec<u8>) -> Result<(), &'static str> {
        let plain = match self.byte(self.at + 1) {
            b'u' => return self.unicode(value).ok_or("invalid unicode escape code"),
            escaped @ (b'"' | b'\\' | b'/') => escaped,
            b'b' => 8,
            b't' => b'\t',
            b'n' => b'\n',
            b'f' => 12,
            b'r' => b'\r',
            _ => return Err("invalid escape code"),
        };
        value.push(plain);
        self.at += 2;
        Ok(())
    }

    /// Reads `\u` with its four digits, or two of them that form one character.
    fn unicode(&mut self, value: &mut Vec<u8>) -> Option<()> {
        let first = self.code_unit(self.at)?;
        let is_surrogate = first & 0xf800 == 0xd800;
        let (code, length) = if is_surrogate {
            let second = self.code_unit(self.at + 6)?;
            let is_pair = first & 0x400 == 0 && second & 0xfc00 == 0xdc00;
            (is_pair.then_some(((first & 0x3ff) << 10 | second & 0x3ff) + 0x10000)?, 12)
        } else {
            (first, 6)
        };
        let letter = char::from_u32(code)?;
        value.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        self.at += length;
        Some(())
    }

    fn code_unit(&self, at: usize) -> Option<u32> {
        let digits = self.text.get(at..at + 6)?.strip_prefix(b"\\u")?;
        digits.iter().try_fold(0, |code, digit| Some(code << 4 | (*digit as char).to_digit(16)?))
    }
}

/// Whether C reads a number that JSON does not have.
///
/// Such numbers have a plus, hexadecimal digits or a leading zero, or are infinity or NaN. A text that passes
/// may still be no number.
fn is_invalid_number(text: &[u8]) -> bool {
    let unsigned = match text {
        [b'+', ..] => return true,
        [b'-', rest @ ..] => rest,
        _ => text,
    };
    let starts_with = |word: &[u8]| unsigned.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(word));
    match unsigned {
        [b'0', next, ..] => matches!(next, b'x' | b'X' | b'0'..=b'9'),
        _ => starts_with(b"inf") || starts_with(b"nan"),
    }
}
