//! Transcripts: sessions as text, with the expected replies of the server.
//!
//! A file is a session. Blank lines divide it into blocks. Keys and connections persist across blocks.
//!
//! ```text
//! # A comment: a hash mark and a space.
//! > SET greeting "hello\r\n"          a command of client 1, quoted as in redis-cli
//! +OK                                 a status or, with -, an error: the rest of the line
//! 2> GET greeting                     a command of client 2, which connects when it is first named
//! "hello\r\n"                         a bulk string
//! ```
//!
//! # Replies
//!
//! | written | is |
//! |---|---|
//! | `+OK`, `-ERR text` | status and error: the rest of the line; or quoted, `+"two words"`. In a collection a status is one word |
//! | `:1` | integer |
//! | `"text"` | bulk string |
//! | `(nil)`, `(nil-array)` | `$-1` and `*-1`, both `_` in RESP3 |
//! | `["a" :1 (nil)]` | array; elements are divided by blanks or line ends |
//! | `,3.5` | double; in RESP2 a bulk string. Numbers are compared, not digits |
//! | `#t`, `#f` | boolean; in RESP2 `:1` and `:0` |
//! | `(123456789012345678901234567890)` | big number; in RESP2 a bulk string |
//! | `=txt "text"` | verbatim string; in RESP2 a bulk string |
//! | `{"name" :1 "other" :2}` | map, in any order; in RESP2 an array of names and values |
//! | `pairs {"name" :1 "other" :2}` | map, in any order; in RESP2 an array of arrays of two |
//! | `~["a" "b"]` | set, in any order; in RESP2 an array |
//! | `>["message" "a" "b"]` | push; in RESP2 an array |
//! | `unordered ["a" "b"]` | array in any order |
//! | `flat [["a" ,1] ["b" ,2]]` | array of arrays; in RESP2 one array of their elements |
//! | `|{"a" :1} "b"` | attribute and the reply after it; in RESP2 the reply alone |
//! | `(none)` | no reply at all |
//!
//! For replies that vary from run to run:
//!
//! | written | is |
//! |---|---|
//! | `<any>` | any one reply |
//! | `<integer>`, `<between 1 10>` | an integer |
//! | `<bulk>`, `<match "a*b">` | a bulk string; `*` stands for any text. `=txt <match "a*b">` and so on likewise |
//! | `<status "a*">`, `<error "a*">` | a status, an error |
//! | `<one of "a" :1 (nil)>` | any of these replies |
//! | `<integer as id>`, `<bulk as text>` | captures the reply for later: `%id%` in commands, texts and globs |
//! | `<lines` … `>` | a bulk string with these lines (globs) among its lines, in this order |
//! | `["a" ... "b"]` | any elements in between; in a map, any other pairs |
//!
//! `%ab*1000%` is `ab` a thousand times.
//!
//! # Directives
//!
//! | written | does |
//! |---|---|
//! | `@only braid`, `@only redis` | limits the block to Braid, or to another server |
//! | `@since 7.4, valkey 9` | limits the block to Braid, and to servers that are as new as one of these |
//! | `@until 7.4, valkey 9` | limits the block to servers older than these; Braid answers like the newest |
//! | `@except 8.2, valkey 9.1` | limits the block to Braid, and to servers older than these |
//! | `@resp 2`, `@resp 3` | limits the block to one version of the protocol |
//! | `@differs 8.2, valkey 9.1: "text"` | after the replies of a step: the reply of servers that are as new |
//! | `@config directive value` | gives the file a server of its own, started with that setting |
//! | `@send 2> BLPOP k 0` | sends a command whose reply is awaited later |
//! | `@recv 2` | awaits the replies that follow, on that client |
//! | `@blocked 2` | awaits that the server lists that client as blocked |
//! | `@raw "bytes"`, `@raw 2 "bytes"` | sends bytes, and awaits the replies that follow |
//! | `@finish`, `@finish 2` | closes the sending half of a connection |
//! | `@closed`, `@closed 2` | expects that the server closes the connection |
//! | `@reconnect`, `@reconnect 2` | starts a new connection in that client's place |
//! | `@advance 1500ms` | moves the server's clock forward; only under `@only braid` |
//!
//! A block that has limits and no commands, at the top of a file, limits the whole file.

mod parse;
mod pattern;
mod run;

use std::ops::Range;
use std::path::PathBuf;

pub use parse::parse_reply;
pub use pattern::{Captures, Pattern, TextPattern};
pub use run::{Environment, Outcome};

use super::Resp;

/// A file of transcripts.
pub struct Transcript {
    pub name: String,
    pub path: PathBuf,
    /// Settings that the server must be started with.
    pub settings: Vec<(String, String)>,
    pub scope: Scope,
    pub blocks: Vec<Block>,
}

/// The lines between two blank lines.
#[derive(Default)]
pub struct Block {
    pub scope: Scope,
    pub steps: Vec<TranscriptStep>,
}

/// The servers and protocols to which a block or a file applies. The default is all.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    pub only: Option<ServerFamily>,
    /// The releases that began with it, in each family that has it.
    pub since: Vec<Release>,
    /// The releases that ended it.
    pub until: Vec<Release>,
    /// The releases that have it in a way that is not Braid's.
    pub except: Vec<Release>,
    pub resp: Option<Resp>,
}

/// The kind of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFamily {
    Braid,
    Redis,
    Valkey,
}

/// A release of Redis or Valkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    pub family: ServerFamily,
    pub version: (u32, u32),
}

/// One action and its expected replies.
pub struct TranscriptStep {
    /// The line of the action, from 1.
    pub line: usize,
    /// The action's text in the file.
    pub source: String,
    pub action: Action,
    pub expected: Vec<Pattern>,
    /// The replies of servers that answer in another way.
    pub differing: Vec<DifferingReplies>,
    /// The lines of the expected replies, from 0. If there are none, the range is empty and starts after the
    /// action.
    pub expected_lines: Range<usize>,
}

/// The replies of some servers, where they are not Braid's.
pub struct DifferingReplies {
    pub releases: Vec<Release>,
    pub expected: Vec<Pattern>,
}

impl TranscriptStep {
    /// Returns the replies that a server should give.
    pub fn expected_of(&self, server: Release) -> &[Pattern] {
        let differs = |differing: &&DifferingReplies| server.is_as_new_as_any(&differing.releases);
        self.differing.iter().find(differs).map_or(&self.expected, |differing| &differing.expected)
    }
}

/// A client's number in its transcript.
pub type ClientNumber = u8;

/// The action of a step.
#[derive(Clone, Debug)]
pub enum Action {
    Command(ClientNumber, Vec<Vec<u8>>),
    Send(ClientNumber, Vec<Vec<u8>>),
    Receive(ClientNumber),
    AwaitBlocked(ClientNumber),
    Raw(ClientNumber, Vec<u8>),
    FinishSending(ClientNumber),
    AwaitClose(ClientNumber),
    Reconnect(ClientNumber),
    Advance { milliseconds: u64 },
}

impl Transcript {
    /// Reads all transcripts whose name contains `filter`, sorted by name.
    ///
    /// # Errors
    /// The first line that cannot be understood, with file and reason.
    ///
    /// # Panics
    /// When the folder cannot be read.
    pub fn read_all(filter: &str) -> Result<Vec<Transcript>, String> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/transcripts");
        let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
            .expect("the folder of transcripts is there")
            .map(|entry| entry.expect("the folder of transcripts is readable").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
            .filter(|path| path.file_stem().is_some_and(|name| name.to_string_lossy().contains(filter)))
            .collect();
        paths.sort();
        paths.into_iter().map(Transcript::read).collect()
    }

    fn read(path: PathBuf) -> Result<Transcript, String> {
        let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
        parse::parse(&text)
            .map(|parsed| Transcript { name: name.clone(), path, ..parsed })
            .map_err(|(line, why)| format!("{name}.txt:{line}: {why}"))
    }

    /// The steps of all blocks.
    pub fn steps(&self) -> impl Iterator<Item = &TranscriptStep> {
        self.blocks.iter().flat_map(|block| &block.steps)
    }
}

impl Scope {
    /// Whether this scope includes a server and a version of the protocol.
    pub fn includes(&self, server: Release, resp: Resp) -> bool {
        let is_braid = server.family == ServerFamily::Braid;
        self.only.is_none_or(|only| is_braid == (only == ServerFamily::Braid))
            && (self.since.is_empty() || is_braid || server.is_as_new_as_any(&self.since))
            && (self.until.is_empty() || !is_braid && !server.is_as_new_as_any(&self.until))
            && (is_braid || !server.is_as_new_as_any(&self.except))
            && self.resp.is_none_or(|only| only == resp)
    }

    /// Whether this is the default.
    pub fn is_everywhere(&self) -> bool {
        self.only.is_none()
            && self.since.is_empty()
            && self.until.is_empty()
            && self.except.is_empty()
            && self.resp.is_none()
    }
}

impl Release {
    fn is_as_new_as_any(self, others: &[Release]) -> bool {
        others.iter().any(|other| self.is_as_new_as(*other))
    }

    /// Whether this release is at least as new. Valkey forked from Redis 7.2, so it counts as 7.2 where a
    /// release of Redis is required.
    fn is_as_new_as(self, other: Release) -> bool {
        match (self.family, other.family) {
            (ServerFamily::Valkey, ServerFamily::Redis) => (7, 2) >= other.version,
            (this, that) => this == that && self.version >= other.version,
        }
    }
}

impl Action {
    /// Whether the action has replies.
    pub fn has_replies(&self) -> bool {
        matches!(self, Action::Command(..) | Action::Receive(_) | Action::Raw(..))
    }
}
