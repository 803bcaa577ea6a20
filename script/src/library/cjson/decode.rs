//! The function `cjson.decode`.

use mlua::{Lua, MultiValue};

use super::settings::Settings;
use super::tokens::{JsonLexer, JsonToken};
use crate::library::arguments::Arguments;
use crate::library::builder::{Builder, MAX_DEPTH, Part, TableKind};
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
        lexer: JsonLexer::new(&text, settings.decodes_invalid),
        builder: Builder::new(),
        kinds: Vec::new(),
        meter: Meter::new(lua),
        max_depth: MAX_DEPTH.min(settings.decode_max_depth as usize),
    };
    decoder.value()?;
    match decoder.token()? {
        JsonToken::End => Ok(decoder.builder.finish(lua)?),
        other => Err(decoder.unexpected("the end", &other)),
    }
}

struct Decoder<'a> {
    lua: &'a Lua,
    lexer: JsonLexer<'a>,
    builder: Builder<'a>,
    /// The kinds of the open tables.
    kinds: Vec<TableKind>,
    meter: Meter<'a>,
    max_depth: usize,
}

/// The continuation after a value.
enum Next<'a> {
    /// Another value, which begins with this token.
    Value(JsonToken<'a>),
    /// The outermost value is complete.
    Done,
}

impl<'a> Decoder<'a> {
    fn token(&mut self) -> Result<JsonToken<'a>, Failure> {
        let before = self.lexer.position();
        let token = self.lexer.next();
        self.meter.spend(1 + ((self.lexer.position() - before) / 16) as u32)?;
        Ok(token)
    }

    #[cold]
    fn unexpected(&self, expected: &str, found: &JsonToken<'_>) -> Failure {
        let (found, character) = (found.name(), self.lexer.token_start() + 1);
        Failure::text(format!("Expected {expected} but found {found} at character {character}"))
    }

    /// Reads one value with its contents.
    fn value(&mut self) -> Result<(), Failure> {
        let mut token = self.token()?;
        loop {
            match token {
                JsonToken::String(text) => self.push(Part::Text(text))?,
                JsonToken::Number(value) => self.push(Part::Number(value))?,
                JsonToken::Boolean(value) => self.push(Part::Boolean(value))?,
                JsonToken::Null => self.push(Part::Null)?,
                JsonToken::ObjectBegin | JsonToken::ArrayBegin => match self.begin(&token)? {
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
    fn begin(&mut self, token: &JsonToken<'_>) -> Result<Option<JsonToken<'a>>, Failure> {
        let (kind, end) = match token {
            JsonToken::ObjectBegin => (TableKind::Map, JsonToken::ObjectEnd),
            _ => (TableKind::Array, JsonToken::ArrayEnd),
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
            first if kind == TableKind::Map => self.key(first).map(Some),
            first => Ok(Some(first)),
        }
    }

    /// Closes the innermost table.
    fn end(&mut self) -> Result<(), Failure> {
        self.kinds.pop();
        Ok(self.builder.close(self.lua)?)
    }

    /// Takes `token` as an object's key, and returns the first token of its value.
    fn key(&mut self, token: JsonToken<'a>) -> Result<JsonToken<'a>, Failure> {
        let JsonToken::String(text) = token else { return Err(self.unexpected("object key string", &token)) };
        self.push(Part::Text(text))?;
        match self.token()? {
            JsonToken::Colon => self.token(),
            other => Err(self.unexpected("colon", &other)),
        }
    }

    /// Reads the tokens after a complete value, and closes complete tables.
    fn after(&mut self) -> Result<Next<'a>, Failure> {
        loop {
            let Some(&kind) = self.kinds.last() else { return Ok(Next::Done) };
            match (self.token()?, kind) {
                (JsonToken::Comma, TableKind::Array) => return self.token().map(Next::Value),
                (JsonToken::Comma, TableKind::Map) => {
                    let token = self.token()?;
                    return self.key(token).map(Next::Value);
                }
                (JsonToken::ArrayEnd, TableKind::Array) | (JsonToken::ObjectEnd, TableKind::Map) => {
                    self.end()?
                }
                (other, TableKind::Array) => return Err(self.unexpected("comma or array end", &other)),
                (other, TableKind::Map) => return Err(self.unexpected("comma or object end", &other)),
            }
        }
    }
}
