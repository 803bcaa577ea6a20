//! Splits Lua's source into tokens. Bytes are bytes: a text need not be UTF-8.

/// An error: the source is not Lua 5.1, or is nested too deeply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'s> {
    /// A name or a keyword.
    Word(&'s [u8]),
    Text(Vec<u8>),
    Number(f64),
    /// An operator or a punctuation mark.
    Mark(&'static str),
    End,
}

/// All operators and punctuation marks.
///
/// A longer mark stands before those with which it begins.
const MARKS: &[&str] = &[
    "...", "..", "==", "~=", "<=", ">=", "+", "-", "*", "/", "%", "^", "#", "<", ">", "=", "(", ")", "{",
    "}", "[", "]", ";", ":", ",", ".",
];

pub(super) struct Lexer<'s> {
    source: &'s [u8],
    at: usize,
    /// The line of the next byte, from 1.
    pub line: u32,
}

impl<'s> Lexer<'s> {
    /// Reads from the start, after a line that begins with `#`.
    pub fn new(source: &'s [u8]) -> Self {
        let mut lexer = Self { source, at: 0, line: 1 };
        if source.first() == Some(&b'#') {
            lexer.skip_line();
        }
        lexer
    }

    /// Returns the next token. At the end it returns `End`, however often it is called.
    pub fn token(&mut self) -> Result<Token<'s>, Malformed> {
        self.skip_blanks()?;
        match self.peek(0) {
            None => Ok(Token::End),
            Some(b'a'..=b'z' | b'A'..=b'Z' | b'_') => Ok(Token::Word(self.word())),
            Some(b'0'..=b'9') => self.number(),
            Some(b'.') if self.peek(1).is_some_and(|next| next.is_ascii_digit()) => self.number(),
            Some(quote @ (b'"' | b'\'')) => self.short_text(quote),
            Some(b'[') if self.long_bracket().is_some() => Ok(Token::Text(self.long_text()?.to_vec())),
            Some(_) => self.mark(),
        }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.source.get(self.at + ahead).copied()
    }

    fn rest(&self) -> &'s [u8] {
        &self.source[self.at..]
    }

    /// Passes the next byte, and counts lines.
    fn take(&mut self) -> Result<u8, Malformed> {
        let byte = self.peek(0).ok_or(Malformed)?;
        self.at += 1;
        self.line += u32::from(byte == b'\n');
        Ok(byte)
    }

    fn skip_line(&mut self) {
        while self.peek(0).is_some_and(|byte| byte != b'\n') {
            self.at += 1;
        }
    }

    fn skip_blanks(&mut self) -> Result<(), Malformed> {
        loop {
            match self.peek(0) {
                Some(b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c) => {
                    self.take()?;
                }
                Some(b'-') if self.peek(1) == Some(b'-') => self.skip_comment()?,
                _ => return Ok(()),
            }
        }
    }

    fn skip_comment(&mut self) -> Result<(), Malformed> {
        self.at += 2;
        if self.peek(0) == Some(b'[') && self.long_bracket().is_some() {
            self.long_text()?;
        } else {
            self.skip_line();
        }
        Ok(())
    }

    fn word(&mut self) -> &'s [u8] {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let word = self.rest();
        let word = &word[..word.iter().position(|byte| !is_part(byte)).unwrap_or(word.len())];
        self.at += word.len();
        word
    }

    /// Reads a number: letters, digits, points, and signs after an exponent's letter.
    ///
    /// All of these must then form a number of Lua.
    fn number(&mut self) -> Result<Token<'s>, Malformed> {
        let start = self.at;
        let is_hex = matches!(self.peek(1), Some(b'x' | b'X'));
        while let Some(byte) = self.peek(0) {
            let follows_exponent =
                !is_hex && self.at > start && matches!(self.source[self.at - 1], b'e' | b'E');
            if !(byte.is_ascii_alphanumeric()
                || matches!(byte, b'.' | b'_')
                || (matches!(byte, b'+' | b'-') && follows_exponent))
            {
                break;
            }
            self.at += 1;
        }
        super::number::parse(&self.source[start..self.at]).map(Token::Number).ok_or(Malformed)
    }

    fn short_text(&mut self, quote: u8) -> Result<Token<'s>, Malformed> {
        self.take()?;
        let mut text = Vec::new();
        loop {
            match self.take()? {
                byte if byte == quote => return Ok(Token::Text(text)),
                b'\n' => return Err(Malformed),
                b'\\' => self.escape(&mut text)?,
                byte => text.push(byte),
            }
        }
    }

    fn escape(&mut self, text: &mut Vec<u8>) -> Result<(), Malformed> {
        text.push(match self.take()? {
            b'a' => 7,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 11,
            digit @ b'0'..=b'9' => self.decimal(digit)?,
            byte => byte,
        });
        Ok(())
    }

    /// Reads up to three digits that stand for a byte.
    fn decimal(&mut self, first: u8) -> Result<u8, Malformed> {
        let mut value = u16::from(first - b'0');
        for _ in 0..2 {
            let Some(digit @ b'0'..=b'9') = self.peek(0) else { break };
            value = value * 10 + u16::from(digit - b'0');
            self.at += 1;
        }
        u8::try_from(value).map_err(|_| Malformed)
    }

    /// The level of the long bracket at this position: `[[` is 0, `[=[` is 1.
    fn long_bracket(&self) -> Option<usize> {
        let level = self.rest()[1..].iter().take_while(|byte| **byte == b'=').count();
        (self.peek(1 + level) == Some(b'[')).then_some(level)
    }

    /// Reads a long bracket. A line's end right after its start is no part of the text.
    fn long_text(&mut self) -> Result<&'s [u8], Malformed> {
        let level = self.long_bracket().ok_or(Malformed)?;
        let text = &self.rest()[level + 2..];
        let closes = |at: usize| {
            text[at..].first() == Some(&b']')
                && text.len() >= at + level + 2
                && text[at + 1..=at + level].iter().all(|byte| *byte == b'=')
                && text[at + level + 1] == b']'
        };
        let mut end = 0;
        while !closes(end) {
            end += 1;
            if end >= text.len() {
                return Err(Malformed);
            }
            // After a bracket that does not close, the next candidate is the next bracket.
            end += text[end..].iter().position(|byte| *byte == b']').ok_or(Malformed)?;
        }
        self.at += level + 2 + end + level + 2;
        let text = &text[..end];
        self.line += text.iter().filter(|byte| **byte == b'\n').count() as u32;
        let text = text.strip_prefix(b"\r").unwrap_or(text);
        Ok(text.strip_prefix(b"\n").unwrap_or(text))
    }

    fn mark(&mut self) -> Result<Token<'s>, Malformed> {
        let rest = self.rest();
        let mark = MARKS.iter().find(|mark| rest.starts_with(mark.as_bytes())).ok_or(Malformed)?;
        self.at += mark.len();
        Ok(Token::Mark(mark))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(source: &str) -> Vec<Token<'_>> {
        let mut lexer = Lexer::new(source.as_bytes());
        std::iter::from_fn(|| lexer.token().ok().filter(|token| *token != Token::End)).collect()
    }

    fn text(text: &[u8]) -> Token<'static> {
        Token::Text(text.to_vec())
    }

    #[test]
    fn comments_and_a_first_line_with_a_hash_are_passed() {
        assert_eq!(
            tokens("#!lua name=x\n--[==[ ]] ]==] a -- b\n--[[c]]d"),
            [Token::Word(b"a"), Token::Word(b"d")]
        );
    }

    #[test]
    fn texts_lose_their_escapes() {
        assert_eq!(
            tokens(
                r#"'a\'\65\n\
' "\\" [[
x]] [=[]]]=]"#
            ),
            [text(b"a'A\n\n"), text(b"\\"), text(b"x"), text(b"]]")]
        );
        assert!(Lexer::new(b"'\\300'").token().is_err());
        assert!(Lexer::new(b"'open").token().is_err());
        assert!(Lexer::new(b"[[open").token().is_err());
    }

    #[test]
    fn numbers_are_those_of_lua() {
        let numbers = [3.0, 3.5, 0.5, 255.0, 1000.0, 0.01];
        assert_eq!(tokens("3 3.5 .5 0xff 1e3 1e-2"), numbers.map(Token::Number));
        assert!(Lexer::new(b"3x").token().is_err());
    }

    #[test]
    fn marks_are_read_at_full_length() {
        assert_eq!(
            tokens("a...b..c==d"),
            [
                Token::Word(b"a"),
                Token::Mark("..."),
                Token::Word(b"b"),
                Token::Mark(".."),
                Token::Word(b"c"),
                Token::Mark("=="),
                Token::Word(b"d")
            ]
        );
    }
}
