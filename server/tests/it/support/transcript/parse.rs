//! The grammar of transcripts, which the parent module describes.

use std::path::PathBuf;

use super::{
    Action, Block, ClientNumber, DifferingReplies, Pattern, Release, Scope, ServerFamily, TextPattern,
    Transcript, TranscriptStep,
};
use crate::support::Resp;

/// The line of a fault, and its description.
type ParseError = (usize, String);

/// Parses a file's text. The caller fills in name and path.
///
/// # Errors
/// The first line that cannot be understood.
pub fn parse(text: &str) -> Result<Transcript, ParseError> {
    let mut parser = Parser { cursor: Cursor { text: text.as_bytes(), at: 0 }, done: Transcript::default() };
    match parser.file() {
        Ok(()) => Ok(parser.done),
        Err(why) => Err((parser.cursor.line(), why)),
    }
}

/// Parses one expected reply.
///
/// # Errors
/// A description of its fault.
pub fn parse_reply(text: &str) -> Result<Pattern, String> {
    let mut cursor = Cursor { text: text.as_bytes(), at: 0 };
    let pattern = cursor.pattern(Place::Line)?;
    cursor.next_line()?;
    Ok(pattern)
}

impl Default for Transcript {
    fn default() -> Transcript {
        Transcript {
            name: String::new(),
            path: PathBuf::new(),
            settings: Vec::new(),
            scope: Scope::default(),
            blocks: Vec::new(),
        }
    }
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    done: Transcript,
}

impl Parser<'_> {
    fn file(&mut self) -> Result<(), String> {
        let mut block = Block::default();
        while !self.cursor.at_end() {
            let line = self.cursor.rest_of_line();
            if line.is_empty() {
                self.cursor.next_line()?;
                self.close(std::mem::take(&mut block));
            } else if is_comment(&line) {
                self.cursor.skip_line();
            } else if line.starts_with('@') {
                self.directive(&mut block)?;
            } else if let Some((client, command)) = as_command(&line) {
                let argv = split_args(command)?;
                self.step(&mut block, Action::Command(client, argv))?;
            } else {
                return Err(format!("a command was expected here, not {line:?}"));
            }
        }
        self.close(block);
        Ok(())
    }

    fn close(&mut self, block: Block) {
        if !block.steps.is_empty() {
            self.done.blocks.push(block);
        } else if self.done.blocks.is_empty() && !block.scope.is_everywhere() {
            self.done.scope = block.scope;
        }
    }

    /// Adds the action at the cursor, with the replies below it.
    fn step(&mut self, block: &mut Block, action: Action) -> Result<(), String> {
        let line = self.cursor.line();
        let source = self.cursor.rest_of_line();
        self.cursor.skip_line();
        let start = self.cursor.line() - 1;
        let mut expected = Vec::new();
        let mut end = start;
        while self.cursor.at_reply() {
            if !action.has_replies() {
                return Err("this action has no replies".to_owned());
            }
            expected.push(self.cursor.pattern(Place::Line)?);
            self.cursor.next_line()?;
            end = self.cursor.line() - 1;
        }
        let mut differing: Vec<DifferingReplies> = Vec::new();
        while self.cursor.accept("@differs ") {
            let releases = as_releases(&self.cursor.text_until(": ")?)?;
            let pattern = self.cursor.pattern(Place::Line)?;
            self.cursor.next_line()?;
            match differing.last_mut() {
                Some(last) if last.releases == releases => last.expected.push(pattern),
                _ => differing.push(DifferingReplies { releases, expected: vec![pattern] }),
            }
        }
        block.steps.push(TranscriptStep {
            line,
            source,
            action,
            expected,
            differing,
            expected_lines: start..end,
        });
        Ok(())
    }

    fn directive(&mut self, block: &mut Block) -> Result<(), String> {
        let line = self.cursor.rest_of_line();
        let (name, rest) = line[1..].split_once(' ').unwrap_or((&line[1..], ""));
        let action = match name {
            "send" => match as_command(rest) {
                Some((client, command)) => Action::Send(client, split_args(command)?),
                None => return Err("@send takes a client and a command".to_owned()),
            },
            "recv" => Action::Receive(client_number(rest)?),
            "blocked" => Action::AwaitBlocked(client_number(rest)?),
            "finish" => Action::FinishSending(client_number(rest)?),
            "closed" => Action::AwaitClose(client_number(rest)?),
            "reconnect" => Action::Reconnect(client_number(rest)?),
            "raw" => raw(rest)?,
            "advance" => self.advance(block, rest)?,
            "config" => return self.setting(rest),
            _ => return self.limit(block, name, rest),
        };
        self.step(block, action)
    }

    fn advance(&self, block: &Block, rest: &str) -> Result<Action, String> {
        let only = block.scope.only.or(self.done.scope.only);
        if only != Some(ServerFamily::Braid) {
            return Err("no server but Braid can @advance: say @only braid first".to_owned());
        }
        let milliseconds = rest.strip_suffix("ms").and_then(|number| number.parse().ok());
        let milliseconds = milliseconds.ok_or("@advance takes milliseconds, as in 1500ms")?;
        Ok(Action::Advance { milliseconds })
    }

    fn setting(&mut self, rest: &str) -> Result<(), String> {
        if !self.done.blocks.is_empty() {
            return Err("@config belongs to the top of the file".to_owned());
        }
        let (directive, value) = rest.split_once(' ').ok_or("@config takes a directive and its value")?;
        self.done.settings.push((directive.to_owned(), value.to_owned()));
        self.cursor.skip_line();
        Ok(())
    }

    fn limit(&mut self, block: &mut Block, name: &str, rest: &str) -> Result<(), String> {
        if !block.steps.is_empty() {
            return Err(format!("@{name} belongs to the top of its block"));
        }
        let scope = &mut block.scope;
        match (name, rest) {
            ("only", "braid") => scope.only = Some(ServerFamily::Braid),
            ("only", "redis") => scope.only = Some(ServerFamily::Redis),
            ("resp", "2") => scope.resp = Some(Resp::Two),
            ("resp", "3") => scope.resp = Some(Resp::Three),
            ("since", releases) => scope.since = as_releases(releases)?,
            ("until", releases) => scope.until = as_releases(releases)?,
            ("except", releases) => scope.except = as_releases(releases)?,
            _ => return Err(format!("there is no @{name} {rest}")),
        }
        self.cursor.skip_line();
        Ok(())
    }
}

fn is_comment(line: &str) -> bool {
    line == "#" || line.starts_with("# ")
}

/// Divides `> command` or `2> command` into client and command.
fn as_command(line: &str) -> Option<(ClientNumber, &str)> {
    let (client, command) = line.split_once("> ")?;
    match client.as_bytes() {
        [] => Some((1, command)),
        [digit @ b'1'..=b'9'] => Some((digit - b'0', command)),
        _ => None,
    }
}

fn client_number(text: &str) -> Result<ClientNumber, String> {
    match text.as_bytes() {
        [] => Ok(1),
        [digit @ b'1'..=b'9'] => Ok(digit - b'0'),
        _ => Err(format!("{text:?} is no client: they have numbers from 1 to 9")),
    }
}

fn raw(rest: &str) -> Result<Action, String> {
    let (client, text) =
        if rest.starts_with('"') { ("", rest) } else { rest.split_once(' ').unwrap_or((rest, "")) };
    let mut texts = split_args(text)?;
    match (texts.pop(), texts.pop()) {
        (Some(bytes), None) => Ok(Action::Raw(client_number(client)?, bytes)),
        _ => Err("@raw takes one quoted text".to_owned()),
    }
}

fn as_releases(text: &str) -> Result<Vec<Release>, String> {
    text.split(", ").map(as_release).collect()
}

fn as_release(text: &str) -> Result<Release, String> {
    let (family, version) = match text.strip_prefix("valkey ") {
        Some(version) => (ServerFamily::Valkey, version),
        None => (ServerFamily::Redis, text),
    };
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    match (major.parse(), minor.parse()) {
        (Ok(major), Ok(minor)) => Ok(Release { family, version: (major, minor) }),
        _ => Err(format!("{text:?} is no release")),
    }
}

/// Splits a command line as redis-cli does.
fn split_args(line: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut cursor = Cursor { text: line.as_bytes(), at: 0 };
    let mut argv = Vec::new();
    loop {
        cursor.skip_blanks();
        match cursor.peek() {
            None if argv.is_empty() => return Err("there is no command here".to_owned()),
            None => return Ok(argv),
            Some(b'"') => argv.push(cursor.double_quoted()?),
            Some(b'\'') => argv.push(cursor.single_quoted()?),
            Some(_) => argv.push(cursor.take_while(|byte| byte != b' ').to_vec()),
        }
        if !matches!(cursor.peek(), None | Some(b' ')) {
            return Err("a closing quote ends its argument".to_owned());
        }
    }
}

/// The surroundings of a pattern.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Line,
    Collection,
}

struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    /// The number of the line, from 1.
    fn line(&self) -> usize {
        1 + self.text[..self.at.min(self.text.len())].iter().filter(|&&byte| byte == b'\n').count()
    }

    fn rest_of_line(&self) -> String {
        let rest = &self.text[self.at..];
        let end = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        String::from_utf8_lossy(&rest[..end]).into_owned()
    }

    fn skip_line(&mut self) {
        self.take_while(|byte| byte != b'\n');
        self.at += 1;
    }

    /// Goes to the next line. The rest of this one must be empty.
    fn next_line(&mut self) -> Result<(), String> {
        match self.peek() {
            None | Some(b'\n') => {
                self.at += 1;
                Ok(())
            }
            Some(_) => Err(format!("what does {:?} mean here?", self.rest_of_line())),
        }
    }

    /// Whether an expected reply starts on this line.
    fn at_reply(&self) -> bool {
        if self.at_end() {
            return false;
        }
        let line = self.rest_of_line();
        !line.is_empty() && !is_comment(&line) && !line.starts_with('@') && as_command(&line).is_none()
    }

    fn accept(&mut self, text: &str) -> bool {
        let found = self.text.get(self.at..).is_some_and(|rest| rest.starts_with(text.as_bytes()));
        if found {
            self.at += text.len();
        }
        found
    }

    /// Takes the text before an end on this line, and the end.
    fn text_until(&mut self, end: &str) -> Result<String, String> {
        let line = self.rest_of_line();
        let (text, _) = line.split_once(end).ok_or_else(|| format!("there is no {end:?} in {line:?}"))?;
        self.at += text.len() + end.len();
        Ok(text.to_owned())
    }

    fn require(&mut self, text: &str) -> Result<(), String> {
        if self.accept(text) {
            Ok(())
        } else {
            Err(format!("{text:?} was expected before {:?}", self.rest_of_line()))
        }
    }

    fn take_while(&mut self, wanted: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|&byte| !wanted(byte)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn skip_blanks(&mut self) {
        self.take_while(|byte| byte == b' ');
    }

    fn skip_space(&mut self) {
        self.take_while(|byte| byte.is_ascii_whitespace());
    }

    fn word(&mut self) -> String {
        let word = self.take_while(|byte| !byte.is_ascii_whitespace() && !b"]}>".contains(&byte));
        String::from_utf8_lossy(word).into_owned()
    }

    fn integer(&mut self) -> Result<i64, String> {
        let word = self.word();
        word.parse().map_err(|_| format!("{word:?} is no integer"))
    }

    fn pattern(&mut self, place: Place) -> Result<Pattern, String> {
        if self.accept("...") {
            return if place == Place::Collection {
                Ok(Pattern::Rest)
            } else {
                Err("... out of place".to_owned())
            };
        }
        for (open, close, make) in COLLECTIONS {
            if self.accept(open) {
                return Ok(make(self.patterns(close)?));
            }
        }
        if self.accept("|{") {
            let pairs = self.patterns("}")?;
            self.skip_blanks();
            return Ok(Pattern::Attribute(pairs, Box::new(self.pattern(place)?)));
        }
        for (text, pattern) in WORDS {
            if self.accept(text) {
                return Ok(pattern.clone());
            }
        }
        match self.peek() {
            Some(b'<') => self.wildcard(),
            Some(b'"') => Ok(Pattern::Bulk(TextPattern::Exact(self.double_quoted()?))),
            Some(b'+') => {
                self.at += 1;
                Ok(Pattern::Status(TextPattern::Exact(self.status(place)?)))
            }
            Some(b'-') => {
                self.at += 1;
                Ok(Pattern::Error(TextPattern::Exact(self.status(Place::Line)?)))
            }
            Some(b':') => {
                self.at += 1;
                Ok(Pattern::Integer(self.integer()?))
            }
            Some(b',') => {
                self.at += 1;
                let word = self.word();
                word.parse().map(Pattern::Double).map_err(|_| format!("{word:?} is no number"))
            }
            Some(b'(') => {
                self.at += 1;
                let digits = self.take_while(|byte| byte.is_ascii_digit() || byte == b'-').to_vec();
                self.require(")")?;
                Ok(Pattern::BigNumber(digits))
            }
            Some(b'=') => {
                self.at += 1;
                let format = self.word().into_bytes();
                self.skip_blanks();
                match self.pattern(place)? {
                    Pattern::Bulk(text) => Ok(Pattern::Verbatim(format, text)),
                    _ => Err("a verbatim string is a format and a text".to_owned()),
                }
            }
            _ => Err(format!("what reply is {:?}?", self.rest_of_line())),
        }
    }

    fn patterns(&mut self, close: &str) -> Result<Vec<Pattern>, String> {
        let mut patterns = Vec::new();
        loop {
            self.skip_space();
            if self.accept(close) {
                return Ok(patterns);
            }
            if self.at_end() {
                return Err(format!("{close:?} is missing"));
            }
            patterns.push(self.pattern(Place::Collection)?);
        }
    }

    fn status(&mut self, place: Place) -> Result<Vec<u8>, String> {
        match (self.peek(), place) {
            (Some(b'"'), _) => self.double_quoted(),
            (_, Place::Line) => Ok(self.take_while(|byte| byte != b'\n').to_vec()),
            (_, Place::Collection) => Ok(self.word().into_bytes()),
        }
    }

    fn wildcard(&mut self) -> Result<Pattern, String> {
        if self.accept("<lines\n") {
            return self.lines().map(|globs| Pattern::Bulk(TextPattern::Lines(globs)));
        }
        if self.accept("<one of") {
            return Ok(Pattern::OneOf(self.patterns(">")?));
        }
        self.require("<")?;
        let name = self.word();
        self.skip_blanks();
        let pattern = match name.as_str() {
            "any" => Pattern::Any,
            "integer" => Pattern::AnyInteger,
            "bulk" => Pattern::Bulk(TextPattern::Any),
            "match" => Pattern::Bulk(TextPattern::Glob(self.double_quoted()?)),
            "status" => Pattern::Status(TextPattern::Glob(self.double_quoted()?)),
            "error" => Pattern::Error(TextPattern::Glob(self.double_quoted()?)),
            "between" => {
                let low = self.integer()?;
                self.skip_blanks();
                Pattern::Between(low, self.integer()?)
            }
            other => return Err(format!("there is no pattern <{other}>")),
        };
        self.skip_blanks();
        let pattern =
            if self.accept("as ") { Pattern::Capture(self.word(), Box::new(pattern)) } else { pattern };
        self.require(">")?;
        Ok(pattern)
    }

    fn lines(&mut self) -> Result<Vec<Vec<u8>>, String> {
        let mut globs = Vec::new();
        loop {
            if self.at_end() {
                return Err("\">\" is missing".to_owned());
            }
            self.skip_blanks();
            let line = self.take_while(|byte| byte != b'\n');
            if line == b">" {
                return Ok(globs);
            }
            globs.push(line.to_vec());
            self.at += 1;
        }
    }

    fn double_quoted(&mut self) -> Result<Vec<u8>, String> {
        self.require("\"")?;
        let mut text = Vec::new();
        loop {
            let byte = self.next_quoted()?;
            match byte {
                b'"' => return Ok(text),
                b'\\' => text.push(self.escaped()?),
                _ => text.push(byte),
            }
        }
    }

    fn escaped(&mut self) -> Result<u8, String> {
        Ok(match self.next_quoted()? {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 0x08,
            b'a' => 0x07,
            b'x' => {
                let digits = [self.next_quoted()?, self.next_quoted()?];
                let digits = String::from_utf8_lossy(&digits).into_owned();
                u8::from_str_radix(&digits, 16).map_err(|_| format!("\\x{digits} is no byte"))?
            }
            other => other,
        })
    }

    fn single_quoted(&mut self) -> Result<Vec<u8>, String> {
        self.require("'")?;
        let mut text = Vec::new();
        loop {
            match self.next_quoted()? {
                b'\'' => return Ok(text),
                b'\\' if self.accept("'") => text.push(b'\''),
                byte => text.push(byte),
            }
        }
    }

    fn next_quoted(&mut self) -> Result<u8, String> {
        let byte = self.peek().filter(|&byte| byte != b'\n').ok_or("a closing quote is missing")?;
        self.at += 1;
        Ok(byte)
    }
}

type MakeCollection = fn(Vec<Pattern>) -> Pattern;

const COLLECTIONS: [(&str, &str, MakeCollection); 7] = [
    ("[", "]", Pattern::Array),
    ("~[", "]", Pattern::Set),
    (">[", "]", Pattern::Push),
    ("unordered [", "]", Pattern::UnorderedArray),
    ("flat [", "]", Pattern::Flat),
    ("{", "}", Pattern::Map),
    ("pairs {", "}", Pattern::Pairs),
];

const WORDS: [(&str, Pattern); 5] = [
    ("(nil)", Pattern::Nil),
    ("(nil-array)", Pattern::NilArray),
    ("(none)", Pattern::Nothing),
    ("#t", Pattern::Boolean(true)),
    ("#f", Pattern::Boolean(false)),
];
