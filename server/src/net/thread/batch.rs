//! Commands parsed ahead: the input of one read is parsed, prefetched and run in batches.

use std::{cell::Cell, ops::Range};

use braid_protocol::{
    bytes::is_same,
    request::{Arg, Parse, Pattern, ProtocolError, RequestParser},
};
use braid_storage::{
    entry::{db::Db, time::Millis},
    sync::executor::Node,
    table::hash::Routed,
};

use crate::{
    access::User,
    catalog::{Flags, Words},
    client::{connection::Connection, node::Job, session::Session},
    clock::Instant,
    command::{Found, Registered, Run, TABLE},
    run::{
        budget::Budget,
        gates::{self, Admission},
    },
    shared::server::Server,
    telemetry::stats::ThreadStats,
};

/// The number of commands that are parsed ahead, prefetched together and then run.
const BATCH: usize = 32;

/// The number of keys that fills a batch. The cache lines of more keys would evict each other from the
/// first-level cache.
const BATCH_KEYS: usize = 64;

/// Commands parsed ahead.
#[derive(Default)]
pub(super) struct Batch {
    words: Vec<Arg>,
    pub(super) commands: Vec<ParsedCommand>,
    /// The places of the commands' keys. They are each first key, and all keys of commands that name all
    /// theirs.
    keys: Vec<Routed>,
    /// Commands of which all keys were looked up, with their range in `keys`. Their indices rise.
    with_all_keys: Vec<(usize, Range<usize>)>,
    /// Commands whose time is not measured with the batch, one bit each. They do not run, or run elsewhere.
    unmeasured: Cell<u32>,
    /// How many commands measured with the batch the client's record already counts.
    n_counted: Cell<usize>,
    /// The last command of an earlier batch. Usually the next batch begins with it.
    recent: Option<&'static Registered>,
}

/// The form of an earlier request. Usually a pipeline repeats one command.
struct Last {
    command: &'static Registered,
    /// The start of its name in the input.
    name_at: usize,
    pattern: Option<Pattern>,
}

impl Last {
    fn name<'a>(&self, input: &'a [u8]) -> &'a [u8] {
        &input[self.name_at..self.name_at + self.command.called.len()]
    }
}

/// The last first key, by its position in the input. A pipeline that repeats a key looks it up once.
#[derive(Clone, Copy)]
struct LastKey {
    at: usize,
    len: usize,
    lives: Routed,
}

impl LastKey {
    #[inline]
    fn is(&self, input: &[u8], key: &[u8]) -> bool {
        let before = &input[self.at..self.at + self.len];
        // Most keys that differ do so in the last byte.
        before.last() == key.last() && is_same(before, key)
    }
}

/// Looks keys up ahead of the commands that name them.
struct Lookout<'a> {
    server: &'a Server,
    db: Db,
    last: Option<LastKey>,
}

impl Lookout<'_> {
    /// Finds the place of a command's first key, and prefetches the start of its look-up.
    ///
    /// The place is added to `keys`, unless it is the same as the last one. The command lies `at` this offset
    /// of the input.
    #[inline(always)]
    fn look(
        &mut self,
        command: &Registered,
        words: Words<'_>,
        at: usize,
        input: &[u8],
        keys: &mut Vec<Routed>,
    ) -> Option<Routed> {
        if !command.first_is_key || words.len() < 2 {
            return None;
        }
        let key = words.get(1);
        let lives = match self.last.filter(|last| last.is(input, key)) {
            Some(last) => last.lives,
            None => {
                let lives = self.look_for(key);
                keys.push(lives);
                lives
            }
        };
        self.last = Some(LastKey { at: at + words.offset(1), len: key.len(), lives });
        Some(lives)
    }

    /// Finds the places of all keys of a command in the same way. Returns their range in `keys`.
    #[inline(never)]
    fn look_for_all(&self, command: &Registered, words: Words<'_>, keys: &mut Vec<Routed>) -> Range<usize> {
        let first = keys.len();
        let get = |at| words.get(at);
        command.spec.keys.positions(words.len(), get, |at, _| keys.push(self.look_for(words.get(at))));
        first..keys.len()
    }

    #[inline(always)]
    fn look_for(&self, key: &[u8]) -> Routed {
        let lives = self.server.keyspace.router().route(key);
        self.server.engine.prefetch(lives.shard);
        self.server.keyspace.prefetch_root(self.db, lives);
        lives
    }
}

/// A parsed command.
pub(super) struct ParsedCommand {
    pub(super) found: Found,
    /// The start of the command in the input.
    pub(super) start: usize,
    pub(super) end: usize,
    first_word: usize,
    pub(super) n_words: usize,
    /// The place of its first key, if its first argument is one.
    pub(super) routed: Option<Routed>,
}

impl Batch {
    pub(super) fn clear(&mut self) {
        self.words.clear();
        self.commands.clear();
        self.keys.clear();
        self.with_all_keys.clear();
        self.unmeasured.set(0);
        self.n_counted.set(0);
    }

    fn is_full(&self) -> bool {
        self.commands.len() >= BATCH || self.keys.len() >= BATCH_KEYS
    }

    /// Adds the request at `range` of the input, and looks its keys up.
    #[inline(always)]
    fn add(
        &mut self,
        found: Found,
        range: Range<usize>,
        first_word: usize,
        lookout: &mut Lookout<'_>,
        input: &[u8],
    ) {
        let words = Words::new(&input[range.clone()], &self.words[first_word..]);
        let n_words = words.len();
        let routed = match found {
            Found::Command(command) if command.names_all_keys && n_words <= BATCH_KEYS => {
                let keys = lookout.look_for_all(command, words, &mut self.keys);
                let first = self.keys[keys.start..].first().copied();
                self.with_all_keys.push((self.commands.len(), keys));
                first
            }
            Found::Command(command) => lookout.look(command, words, range.start, input, &mut self.keys),
            _ => None,
        };
        self.commands.push(ParsedCommand {
            found,
            start: range.start,
            end: range.end,
            first_word,
            n_words,
            routed,
        });
    }

    /// Adds the requests from `at` on that begin like the last one, which was `command`.
    ///
    /// Returns the offset at which the input continues. Most of a pipeline passes here, out of the way of the
    /// code for other requests.
    #[inline(never)]
    fn parse_alike(
        &mut self,
        parser: &mut RequestParser,
        command: &'static Registered,
        pattern: &Pattern,
        lookout: &mut Lookout<'_>,
        input: &[u8],
        mut at: usize,
    ) -> usize {
        while !self.is_full() && at < input.len() {
            let first_word = self.words.len();
            let Some(consumed) = parser.parse_alike(pattern, input, at, &mut self.words) else { break };
            self.add(Found::Command(command), at..at + consumed, first_word, lookout, input);
            at += consumed;
        }
        at
    }

    /// Excludes a command from the batch's time.
    #[cold]
    pub(super) fn leave_unmeasured(&self, index: usize) {
        self.unmeasured.set(self.unmeasured.get() | 1 << index);
    }

    /// Returns how many of the first `n_begun` commands run with the batch and are uncounted.
    pub(super) fn count(&self, n_begun: usize) -> u64 {
        let unmeasured = self.unmeasured.get();
        let n = n_begun - if unmeasured == 0 { 0 } else { n_bits(unmeasured, 0..n_begun) };
        (n - self.n_counted.replace(n)) as u64
    }

    /// Returns how many commands have begun. With `end`, the batch has ended before that offset.
    pub(super) fn n_begun(&self, end: Option<usize>) -> usize {
        end.map_or(self.commands.len(), |end| {
            self.commands.iter().take_while(|parsed| parsed.start < end).count()
        })
    }

    /// Divides the batch's time among its first commands.
    pub(super) fn share_out_time(&self, nanos: u64, stats: &ThreadStats, n_begun: usize) {
        let begun = &self.commands[..n_begun];
        let unmeasured = self.unmeasured.get();
        let n_not = if unmeasured == 0 { 0 } else { n_bits(unmeasured, 0..n_begun) };
        let n_measured = (n_begun - n_not) as u64;
        let Some(share) = nanos.checked_div(n_measured) else { return };
        let mut first = 0;
        for run in begun.chunk_by(|a, b| a.found.is_same(&b.found)) {
            let not = if unmeasured == 0 { 0 } else { n_bits(unmeasured, first..first + run.len()) };
            first += run.len();
            if let Found::Command(command) = run[0].found
                && run.len() > not
            {
                stats.took(command.id, share, (run.len() - not) as u64);
            }
        }
    }

    /// The first commands, without those whose time is not measured with the batch.
    pub(super) fn measured(&self, n_begun: usize) -> impl Iterator<Item = &ParsedCommand> {
        let unmeasured = self.unmeasured.get();
        let begun = self.commands[..n_begun].iter().enumerate();
        begun.filter(move |(index, _)| unmeasured >> index & 1 == 0).map(|(_, parsed)| parsed)
    }

    /// The places of all keys of the command at `index`, in order. Empty if only its first key was looked up.
    pub(super) fn keys_of(&self, index: usize) -> &[Routed] {
        let found = self.with_all_keys.binary_search_by_key(&index, |(of, _)| *of);
        found.map_or(&[], |nth| &self.keys[self.with_all_keys[nth].1.clone()])
    }

    fn words_of<'a>(&'a self, parsed: &ParsedCommand, input: &'a [u8]) -> Words<'a> {
        let ranges = &self.words[parsed.first_word..parsed.first_word + parsed.n_words];
        Words::new(&input[parsed.start..parsed.end], ranges)
    }
}

/// Returns the number of set bits in a range.
#[cold]
fn n_bits(bits: u32, range: std::ops::Range<usize>) -> usize {
    range.filter(|index| bits >> index & 1 == 1).count()
}

/// The data that the commands of a batch share.
#[derive(Clone, Copy)]
pub(super) struct Turn<'a> {
    pub(super) server: &'a Server,
    pub(super) batch: &'a Batch,
    pub(super) input: &'a [u8],
    /// The time of the read.
    pub(super) now: Millis,
}

impl<'a> Turn<'a> {
    pub(super) fn words(self, parsed: &ParsedCommand) -> Words<'a> {
        self.batch.words_of(parsed, self.input)
    }

    /// The first argument of a command that has one.
    #[inline(always)]
    fn first_argument(self, parsed: &ParsedCommand) -> &'a [u8] {
        self.batch.words[parsed.first_word + 1].of(&self.input[parsed.start..])
    }
}

impl ParsedCommand {
    /// Whether the command may run under the hold of `leader`.
    ///
    /// The leader was admitted, and its key is at `lives`.
    pub(super) fn follows(
        &self,
        leader: &ParsedCommand,
        lives: Routed,
        session: &Session,
        turn: Turn<'_>,
    ) -> bool {
        let (Found::Command(command), Some(routed)) = (&self.found, self.routed) else { return false };
        routed.shard == lives.shard
            && (self.is_like(leader) && self.is_allowed(session, turn)
                || matches!(command.spec.run, Run::Shard(_))
                    && matches!(
                        gates::admit(turn.server, session, &self.found, turn.words(self)),
                        Ok((_, Admission::Run))
                    ))
    }

    /// The length of the request.
    #[inline]
    pub(super) fn n_bytes(&self) -> usize {
        self.end - self.start
    }

    /// Whether the command uses members of the collection at its key.
    #[inline]
    pub(super) fn reaches_for_members(&self) -> bool {
        matches!(&self.found, Found::Command(command) if command.spec.members.is_some())
    }

    /// The command, which is known to exist.
    pub(super) fn command(&self) -> &'static Registered {
        let Found::Command(command) = self.found else { unreachable!("only known commands are run") };
        command
    }

    /// The command with its words, if it exists.
    pub(super) fn known<'a>(&self, turn: Turn<'a>) -> Option<(&'static Registered, Words<'a>)> {
        let Found::Command(command) = self.found else { return None };
        Some((command, turn.words(self)))
    }

    /// Whether the session's user may run it.
    ///
    /// The user may run a command that [is like it](Self::is_like).
    #[inline(always)]
    pub(super) fn is_allowed(&self, session: &Session, turn: Turn<'_>) -> bool {
        session.rights.as_deref().is_none_or(|user| self.is_allowed_to(user, session.db, turn))
    }

    /// A function of its own, in two parts. Most commands have one key, and most users one selector.
    #[inline(never)]
    fn is_allowed_to(&self, user: &User, db: Db, turn: Turn<'_>) -> bool {
        let Found::Command(command) = self.found else { return false };
        if let Some(needed) = command.only_key
            && let Some(only) = user.only_selector()
            && only.allows_key(turn.first_argument(self), needed)
        {
            return true;
        }
        self.is_allowed_in_detail(user, db, turn)
    }

    #[inline(never)]
    fn is_allowed_in_detail(&self, user: &User, db: Db, turn: Turn<'_>) -> bool {
        user.allows_another(&self.command().asked(turn.words(self), db))
    }

    /// Whether it is the same command with equally many words.
    ///
    /// If the other command is admitted, this one is admitted too, provided that its user may use its keys.
    #[inline]
    pub(super) fn is_like(&self, other: &ParsedCommand) -> bool {
        self.found.is_same(&other.found) && self.n_words == other.n_words
    }
}

impl Batch {
    /// Parses up to a batch of requests from `from` on. Returns the offset at which the input continues.
    #[inline(never)]
    pub(super) fn parse(
        &mut self,
        server: &Server,
        connection: &mut Connection,
        input: &mut [u8],
        from: usize,
    ) -> Result<usize, ProtocolError> {
        self.clear();
        let db = connection.state.node().map(|node| node.job.session.db).unwrap_or_default();
        let mut lookout = Lookout { server, db, last: None };
        let mut last: Option<Last> = None;
        let mut at = from;
        loop {
            if at < input.len()
                && let Some(Last { command, pattern: Some(pattern), .. }) = &last
            {
                at = self.parse_alike(&mut connection.parser, command, pattern, &mut lookout, input, at);
            }
            if self.is_full() || at >= input.len() {
                break;
            }
            // The quotes of an inline command are resolved in place, so it must not be parsed twice. It gets
            // a batch of its own, because requests after a waiting command are parsed again.
            let inline = input[at] != b'*';
            if inline && !self.commands.is_empty() {
                break;
            }
            let first_word = self.words.len();
            let consumed = match connection.parser.parse(&mut input[at..], &mut self.words)? {
                Parse::Request { consumed } => consumed,
                Parse::Empty { consumed } => {
                    at += consumed;
                    continue;
                }
                Parse::Incomplete { wanted } => {
                    connection.wanted = wanted;
                    break;
                }
            };
            let words = Words::new(&input[at..at + consumed], &self.words[first_word..]);
            let found = match &last {
                // Comparing the name is cheaper than finding it.
                Some(last) if last.name(input) == words.get(0) => Found::Command(last.command),
                _ => match self.recent {
                    Some(recent) if recent.is_named(words.get(0)) => Found::Command(recent),
                    _ => TABLE.find(words),
                },
            };
            let mut stop = inline;
            last = None;
            if let Found::Command(command) = found {
                stop |= command.has(Flags::PARSE_STOP);
                // A subcommand's name is not the word that would be compared.
                if command.parent.is_none() && !command.has_subcommands() {
                    self.recent = Some(command);
                    if at + consumed < input.len() {
                        let pattern = Pattern::of(input, at, &self.words[first_word..]);
                        last = Some(Last { command, name_at: at + words.offset(0), pattern });
                    }
                }
            }
            self.add(found, at..at + consumed, first_word, &mut lookout, input);
            at += consumed;
            if stop {
                break;
            }
        }
        Ok(at)
    }

    /// Prefetches the data after the tables' roots for the commands of a batch.
    ///
    /// So the memory latencies of the batch overlap.
    ///
    /// It would only delay a single command.
    pub(super) fn prefetch(&self, server: &Server, connection: &Connection) {
        if self.keys.len() > 1
            && let Some(node) = connection.state.node()
        {
            server.keyspace.prefetch(node.job.session.db, &self.keys);
        }
    }
}

/// The batch that a thread serves, and its times.
pub(super) struct Serving {
    /// Kept for its space, and taken out while a connection is served.
    pub(super) batch: Option<Box<Batch>>,
    /// The rest of the batch's budget.
    pub(super) budget: Budget,
    /// The owner of the input that is being served.
    pub(super) input_for: InputFor,
    /// The time at which the last commands of this turn ended, if any ran.
    pub(super) ended_at: Option<Instant>,
    /// The time at which this turn began, if latencies are divided into their parts.
    pub(super) woke_at: Option<Instant>,
}

impl Default for Serving {
    fn default() -> Self {
        Self {
            batch: None,
            budget: Budget::of_batch(),
            input_for: InputFor::Connection,
            ended_at: None,
            woke_at: None,
        }
    }
}

impl Serving {
    /// Begins a turn of the loop.
    pub(super) fn begin_turn(&mut self, splits_latency: bool) {
        self.woke_at = splits_latency.then(Instant::now);
    }
}

/// The owner of input that has been served and that contains a very long request.
#[derive(Default)]
pub(super) enum InputFor {
    /// The connection: it keeps the part that has not run.
    #[default]
    Connection,
    /// The commands that are queued for EXEC.
    Queue,
    /// The node, which is under way then.
    Node(Box<Node<Job>>),
}
