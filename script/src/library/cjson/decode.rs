//! `cjson.decode`.

use mlua::{Lua, LuaString, Value};

use super::lexer::{Lexer, Token};
use super::settings::Settings;
use crate::library::arguments::Arguments;
use crate::library::meter::{Meter, Work};
use crate::library::raised::Failure;
use crate::library::tables::{Builder, Crossing, Kind, MAX_DEPTH};

/// Returns the value that argument 1 is the JSON of.
pub(super) fn decode(
    lua: &Lua,
    mut arguments: Arguments,
    settings: Settings,
    crossing: &Crossing,
) -> Result<Value, Failure> {
    if arguments.count() != 1 {
        return Err(Failure::argument(1, "expected 1 argument"));
    }
    let text = arguments.string(lua, 1)?;
    let text = text.as_bytes();
    // The first character of JSON is ASCII, so a zero byte among the first two tells of wider characters.
    if text.len() >= 2 && text[..2].contains(&0) {
        return Err(Failure::fixed("JSON parser does not support UTF-16 or UTF-32"));
    }
    let mut decoder = Decoder {
        lua,
        lexer: Lexer::new(&text, settings.decodes_invalid),
        builder: Builder::new(crossing),
        kinds: Vec::new(),
        keys: Keys::default(),
        meter: Meter::new(lua),
        max_depth: MAX_DEPTH.min(settings.decode_max_depth as usize),
    };
    let value = decoder.value()?;
    match decoder.token()? {
        Token::End => Ok(value),
        other => Err(decoder.unexpected("the end", &other)),
    }
}

struct Decoder<'a> {
    lua: &'a Lua,
    lexer: Lexer<'a>,
    builder: Builder<'a>,
    /// What the open tables are.
    kinds: Vec<Kind>,
    keys: Keys,
    meter: Meter<'a>,
    max_depth: usize,
}

/// What follows a value.
enum Next<'a> {
    /// Another value, which begins with this token.
    Value(Token<'a>),
    /// Nothing: the outermost value is complete.
    Done(Value),
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

    /// Reads one value with all that is in it.
    fn value(&mut self) -> Result<Value, Failure> {
        let mut token = self.token()?;
        loop {
            let value = match token {
                Token::String(text) => Value::String(self.lua.create_string(text)?),
                Token::Number(value) => Value::Number(value),
                Token::Boolean(value) => Value::Boolean(value),
                Token::Null => Value::NULL,
                Token::ObjectBegin | Token::ArrayBegin => match self.begin(&token)? {
                    Some(next) => {
                        token = next;
                        continue;
                    }
                    None => self.end()?,
                },
                other => return Err(self.unexpected("value", &other)),
            };
            match self.after(value)? {
                Next::Value(next) => token = next,
                Next::Done(value) => return Ok(value),
            }
        }
    }

    /// Opens a table; returns the token of its first value, or `None` if it has none.
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
    fn end(&mut self) -> Result<Value, Failure> {
        self.kinds.pop();
        Ok(self.builder.close(self.lua)?)
    }

    /// Takes `token` as an object's key, and returns the first token of its value.
    fn key(&mut self, token: Token<'a>) -> Result<Token<'a>, Failure> {
        let Token::String(text) = token else { return Err(self.unexpected("object key string", &token)) };
        let key = self.keys.get(self.lua, &text)?;
        self.builder.push(self.lua, Value::String(key))?;
        match self.token()? {
            Token::Colon => self.token(),
            other => Err(self.unexpected("colon", &other)),
        }
    }

    /// Puts a value into its table, and closes tables that are complete.
    fn after(&mut self, mut value: Value) -> Result<Next<'a>, Failure> {
        loop {
            let Some(&kind) = self.kinds.last() else { return Ok(Next::Done(value)) };
            self.builder.push(self.lua, value)?;
            match (self.token()?, kind) {
                (Token::Comma, Kind::Array) => return self.token().map(Next::Value),
                (Token::Comma, Kind::Map) => {
                    let token = self.token()?;
                    return self.key(token).map(Next::Value);
                }
                (Token::ArrayEnd, Kind::Array) | (Token::ObjectEnd, Kind::Map) => value = self.end()?,
                (other, Kind::Array) => return Err(self.unexpected("comma or array end", &other)),
                (other, Kind::Map) => return Err(self.unexpected("comma or object end", &other)),
            }
        }
    }
}

/// How many keys are remembered.
const N_KEYS: usize = 32;

/// Remembers keys: the objects of an array have the same ones, and a Lua string costs more than a look.
#[derive(Default)]
struct Keys([Option<(Box<[u8]>, LuaString)>; N_KEYS]);

impl Keys {
    fn get(&mut self, lua: &Lua, text: &[u8]) -> mlua::Result<LuaString> {
        let (Some(first), Some(last)) = (text.first(), text.last()) else { return lua.create_string(text) };
        let place = usize::from(*first) * 7 + usize::from(*last) * 3 + text.len();
        let slot = &mut self.0[place % N_KEYS];
        if let Some((known, key)) = slot
            && **known == *text
        {
            return Ok(key.clone());
        }
        let key = lua.create_string(text)?;
        *slot = Some((text.into(), key.clone()));
        Ok(key)
    }
}
