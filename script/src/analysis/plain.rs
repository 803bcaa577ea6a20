//! Scripts so plain that their prediction is certain: what they reach for stands in their text as it is run.
//!
//! The analysis follows much more than this, and is mostly right about it. But whoever relies on a prediction where it cannot run the
//! script again needs certainty: a key that the prediction has missed could then not be had. So here everything is left out by which
//! the text could say one thing and the run do another: functions and caught errors, metatables, values made text by other rules than
//! Lua's own, and numbers that are written in more than one way.

use super::lexer::{Lexer, Token};

/// Names that are not plain, unless they are fields, as in `redis.pcall`.
const NAMES: [&[u8]; 20] = [
    b"function",
    b"pcall",
    b"xpcall",
    b"setmetatable",
    b"getmetatable",
    b"rawset",
    b"rawget",
    b"tostring",
    b"type",
    b"select",
    b"load",
    b"loadstring",
    b"coroutine",
    b"setfenv",
    b"getfenv",
    b"_G",
    b"next",
    b"pairs",
    b"goto",
    b"string",
];

/// The largest number that every way to write numbers writes alike.
const NUMBER_MAX: f64 = 1e14;

/// Whether a source, which is Lua, has nothing in it but what is plain.
pub(super) fn is_plain(source: &[u8]) -> bool {
    if source.contains(&b'\r')
        || memchr::memmem::find(source, b"[[").is_some()
        || memchr::memmem::find(source, b"[=").is_some()
    {
        return false;
    }
    let mut lexer = Lexer::new(source);
    let mut before = Token::End;
    loop {
        let Ok(token) = lexer.token() else { return false };
        let is_field = matches!(before, Token::Mark("." | ":"));
        let is_api = matches!(&before, Token::Word(b"redis" | b"server"));
        let is_plain = match &token {
            // The table itself may go anywhere; its fields are followed.
            Token::Mark(mark) if is_api => *mark == ".",
            _ if is_api => false,
            Token::Word(name) => is_field || !NAMES.contains(name),
            Token::Number(number) => number.fract() == 0.0 && (0.0..NUMBER_MAX).contains(number),
            // A field by its index: a later one may take its place.
            Token::Mark("[") => !matches!(before, Token::Mark("{" | "," | ";")),
            Token::Mark(_) | Token::Text(_) => true,
            Token::End => return true,
        };
        if !is_plain {
            return false;
        }
        before = token;
    }
}
