//! The function `cjson.decode`.

use mlua::{Lua, MultiValue};

use super::settings::Settings;
use super::tokens::{Lexer, Token};
use crate::library::arguments::Arguments;
use crate::library::builder::{Builder, Kind, MAX_DEPTH, Part};
use crate::library::meter::{Meter, Work};
use crate::library::raised::Failure;

/// Returns the value of the JSON in argument 1.
pub(super) fn decode(lua: &Lua, mut arguments: Arguments, settings: Settings) -> Result<MultiValue, Failure> {
    if arguments.count() != 1 {
        return Err(Failure::argument(1, "expected 1 argument"));
    }
    let text = arguments.string(lua, 1)?;
    let text = text.as_bytes();
    // The first character of JSON is ASCII. So a zero byte among the first two shows wider characters.
    if text.len() >= 2 && text[..2].contains(&0) {
        return Err(Failure::fixed("JSON parser does not support UTF-16 or UTF-32"));
    }
    let mut decoder = Decoder {
        lua,
        lexer: Lexer::new(&text, settings.decodes_invalid),
        builder: Builder::new(),
        kinds: Vec::new(),
        meter: Meter::new(lua),
        max_depth: MAX_DEPTH.min(settings.decode_max_depth as usize),
    };
    decoder.value()?;
    match decoder.token()? {
        Token::End => Ok(decoder.builder.finish(lua)?),
        other => Err(decoder.unexpected("the end", &other)),
    }
}

struct Decoder<'a> {
    lua: &'a Lua,
    lexer: Lexer<'a>,
    builder: Builder<'a>,
    /// The kinds of the open tables.
    kinds: Vec<Kind>,
    meter: Meter<'a>,
    max_depth: usize,
}

/// The continuation after a value.
enum Next<'a> {
    /// Another value, which begins with this token.
    Value(Token<'a>),
    /// The outermost value is complete.
    Done,
}

impl<'a> Decoder<'a> {
    fn token(&mut self) -> Result<Token<'a>, Failure> {
        let before = self.lexer.position();
        let token = self.lexer.next();
        self.meter.spend(1 + ((self.lexer.position() - before) / 16) as u32)?;
        Ok(token)
    }

    #[cold]
    fn unexpected(&self, expected: &str, found: &Token<'_>) -> Failure {
        let (found, character) = (found.name(), self.lexer.token_start() + 1);
        Failure::text(format!("Expected {expected} but found {found} at character {character}"))
    }

    /// Reads one value with its contents.
    fn value(&mut self) -> Result<(), Failure> {
        let mut token = self.token()?;
        loop {
            match token {
                Token::String(text) => self.push(Part::Text(text))?,
                Token::Number(value) => self.push(Part::Number(value))?,
                Token::Boolean(value) => self.push(Part::Boolean(value))?,
                Token::Null => self.push(Part::Null)?,
                Token::ObjectBegin | Token::ArrayBegin => match self.begin(&token)? {
                    Some(next) => {
                        token = next;
                        continue;
                    }
                    None => self.end()?,
                },
                other => return Err(self.unexpected("value", &other)),
            }
            match self.after()? {
                Next::Value(next) => token = next,
                Next::Done => return Ok(()),
            }
        }
    }

    fn push(&mut self, part: Part<'a>) -> Result<(), Failure> {
        Ok(self.builder.push(self.lua, part)?)
    }

    /// Opens a table. Returns the token of its first value, or `None` if it has none.
    fn begin(&mut self, token: &Token<'_>) -> Result<Option<Token<'a>>, Failure> {
        let (kind, end) = match token {
            Token::ObjectBegin => (Kind::Map, Token::ObjectEnd),
            _ => (Kind::Array, Token::ArrayEnd),
        };
        let depth = self.builder.depth() + 1;
        if depth > self.max_depth {
            let position = self.lexer.position();
            return Err(Failure::text(format!(
                "Found too many nested data structures ({depth}) at character {position}"
            )));
        }
        self.builder.open(self.lua, kind)?;
        self.kinds.push(kind);
        match self.token()? {
            first if first == end => Ok(None),
            first if kind == Kind::Map => self.key(first).map(Some),
            first => Ok(Some(first)),
        }
    }

    /// Closes the innermost table.
    fn end(&mut self) -> Result<(), Failure> {
        self.kinds.pop();
        Ok(self.builder.close(self.lua)?)
    }

    /// Takes `token` as an object's key, and returns the first token of its value.
    fn key(&mut self, token: Token<'a>) -> Result<Token<'a>, Failure> {
        let Token::String(text) = token else { return Err(self.unexpected("object key string", &token)) };
        self.push(Part::Text(text))?;
        match self.token()? {
            Token::Colon => self.token(),
            other => Err(self.unexpected("colon", &other)),
        }
    }

    /// Reads the tokens after a complete value, and closes complete tables.
    fn after(&mut self) -> Result<Next<'a>, Failure> {
        loop {
            let Some(&kind) = self.kinds.last() else { return Ok(Next::Done) };
            match (self.token()?, kind) {
                (Token::Comma, Kind::Array) => return self.token().map(Next::Value),
                (Token::Comma, Kind::Map) => {
                    let token = self.token()?;
                    return self.key(token).map(Next::Value);
                }
                (Token::ArrayEnd, Kind::Array) | (Token::ObjectEnd, Kind::Map) => self.end()?,
                (other, Kind::Array) => return Err(self.unexpected("comma or array end", &other)),
                (other, Kind::Map) => return Err(self.unexpected("comma or object end", &other)),
            }
        }
    }
}
