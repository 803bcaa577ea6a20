//! Scripts so plain that their prediction is certain.
//!
//! Such a script's text shows the keys of its run. The analysis follows much more than this, and its
//! predictions are mostly right. But a caller that cannot run the script again needs certainty, because it
//! could not get a key that the prediction has missed.
//!
//! So a plain script has nothing that could make the run differ from the text:
//! - functions and caught errors;
//! - metatables;
//! - values turned into text by other rules than Lua's own;
//! - numbers that are written in more than one way.

use super::lexer::{Lexer, Token};

/// The names that are not plain, except as fields such as `redis.pcall`.
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

/// The bound of the numbers that every way to write numbers writes alike.
const NUMBER_MAX: f64 = 1e14;

/// Whether a source, which is Lua, consists of plain parts only.
pub(super) fn is_plain(source: &[u8]) -> bool {
    if source.contains(&b'\r')
        || memchr::memmem::find(source, b"[[").is_some()
        || memchr::memmem::find(source, b"[=").is_some()
    {
        return false;
    }
    let mut lexer = Lexer::new(source);
    let mut before = Token::End;
    let mut blocks = Blocks::default();
    loop {
        let Ok(token) = lexer.token() else { return false };
        // The analysis follows a table that changes from round to round for some rounds only.
        if blocks.changes_table_in_loop(&token) {
            return false;
        }
        let is_field = matches!(before, Token::Mark("." | ":"));
        let is_api = matches!(&before, Token::Word(b"redis" | b"server"));
        let is_plain = match &token {
            // The table itself could go anywhere, so only its fields are plain.
            Token::Mark(mark) if is_api => *mark == ".",
            _ if is_api => false,
            Token::Word(name) => is_field || !NAMES.contains(name),
            Token::Number(number) => number.fract() == 0.0 && (0.0..NUMBER_MAX).contains(number),
            // A field by its index: a later field may take its place.
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

/// The blocks and brackets that a token is in, and the two tokens before it.
#[derive(Default)]
struct Blocks {
    /// Whether each open block is a loop's body, innermost last.
    open: Vec<bool>,
    /// Whether the next `do` begins a loop's body.
    loop_follows: bool,
    n_brackets: usize,
    /// Whether the token before ends the name of a table's part.
    after_part: bool,
    after_point: bool,
}

impl Blocks {
    /// Advances by a token. Returns whether it may make or change a table in a loop.
    ///
    /// Without later tokens that is uncertain. In doubt the answer is true.
    fn changes_table_in_loop(&mut self, token: &Token<'_>) -> bool {
        let (after_part, after_point) = (self.after_part, self.after_point);
        self.after_part = matches!(token, Token::Mark("]")) || after_point && matches!(token, Token::Word(_));
        self.after_point = matches!(token, Token::Mark("."));
        match token {
            Token::Word(b"for" | b"while") => self.loop_follows = true,
            Token::Word(b"do") => self.open.push(std::mem::take(&mut self.loop_follows)),
            Token::Word(b"repeat") => self.open.push(true),
            Token::Word(b"if") => self.open.push(false),
            Token::Word(b"end" | b"until") if !after_point => {
                self.open.pop();
            }
            Token::Mark("(") => self.n_brackets += 1,
            Token::Mark(")") => self.n_brackets = self.n_brackets.saturating_sub(1),
            _ => {}
        }
        let is_change = match token {
            Token::Mark("{") => true,
            Token::Mark("=" | ",") => after_part && self.n_brackets == 0,
            Token::Word(b"table") => !after_point,
            _ => false,
        };
        is_change && self.open.contains(&true)
    }
}
