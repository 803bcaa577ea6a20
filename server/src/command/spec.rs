//! What a row of the command table says.

use braid_protocol::reply::Reply;
use braid_storage::{Db, Shard};

use super::{Call, Work};
use crate::{
    catalog::{
        Args, Arity, Categories, Channels, CommandError, Deprecation, Flags, Group, Keys, MembersAt, Outcome,
        Words,
    },
    client::sweep::{Step, Sweep},
};

/// One command: everything that the dispatcher, MULTI, COMMAND, access control, cluster slots, statistics and
/// the documents need to know, beside its handler.
pub struct CommandSpec {
    /// Lower case.
    pub name: &'static str,
    /// How many arguments, the name included.
    pub arity: Arity,
    /// Properties.
    pub flags: Flags,
    /// Where its keys are.
    pub keys: Keys,
    /// Which of its words are channels that the client must have a right to.
    pub channels: Channels,
    /// Which members it reaches for of the collection that its key holds, if it does: those are fetched
    /// ahead.
    pub members: Option<MembersAt>,
    /// Whether it is answered that the last snapshot has failed, as writes are: whoever watches over the
    /// server looks at that.
    pub tells_of_failed_saves: bool,
    /// How the log is told what it has changed.
    pub log: Log,
    /// Where it runs, and what runs.
    pub run: Run,
    /// What its work grows with.
    pub work: Work,
    /// Whether a command of these words reaches for keys that cannot be known before it runs: then it takes
    /// all shards.
    pub roams: Option<fn(Words<'_>) -> bool>,
    /// The database of the key at a position among its words, where that is not the selected one.
    pub database_of: Option<fn(Words<'_>, usize) -> Option<Db>>,
    /// The Redis version (or `valkey x.y`) that introduced it.
    pub since: &'static str,
    /// The family.
    pub group: Group,
    /// The arguments after the name, in the notation of Redis's manual.
    pub syntax: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// Time in O notation.
    pub complexity: &'static str,
    /// The categories of access control in place of those that its group gives; flags add theirs in either
    /// case.
    pub categories: Option<Categories>,
    /// What `COMMAND INFO` tells proxies about merging replies, and tools about comparing them.
    pub tips: &'static [&'static str],
    /// Why it should no longer be used, if that is so.
    pub deprecated: Option<Deprecation>,
    /// Subcommands, each a row of its own. Their `name` is the second word, their arity counts both.
    pub subcommands: &'static [CommandSpec],
}

/// Logs what a command of this row and these words has done to the keys that it writes.
pub type LogAs = fn(&mut Call<'_, '_>, &CommandSpec, Words<'_>);

/// How the log is told what a command has changed. A command that has changed nothing is not logged.
#[derive(Clone, Copy)]
pub enum Log {
    /// In its own words: on the same data they do the same, at any time and on any server that knows the
    /// command. Of a transaction or a script, in those of its commands.
    Verbatim,
    /// In its own words, whether it has changed anything or not, as Redis does.
    Always,
    /// In its own words if it has so many: further ones are options, with which it is logged as that says.
    PlainOr(usize, LogAs),
    /// In those that say what its keys hold now: its own are relative to the time, leave something to chance,
    /// or are not known to Redis 7.0.
    As(LogAs),
    /// In those that its handler gives, for one of these reasons: only it knows what it has done.
    Given,
}

impl Log {
    /// Whether a command of so many words is logged in these, if it has changed anything.
    #[inline]
    pub fn is_verbatim(&self, n_words: usize) -> bool {
        match self {
            Log::Verbatim => true,
            Log::PlainOr(n_plain, _) => n_words == *n_plain,
            Log::Always | Log::As(_) | Log::Given => false,
        }
    }
}

/// Reads the arguments of a command that visits the shards in turn.
pub type BeginSweep = fn(&mut Call<'_, '_>, Args<'_>) -> Result<Sweep, CommandError>;

/// The most keys that one part of a command takes which [gives up its shards between
/// parts](GaveUp::BetweenParts).
pub const PART_KEYS: usize = 256;

/// Where a command runs.
#[derive(Clone, Copy)]
pub enum Run {
    /// On no shard: it only touches the session and the server.
    Session(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// On the shard of its first key, which is its only one.
    Shard(fn(&mut Shard, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// On the shards of all its keys, held together.
    Transaction(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// On the shards of at most [`PART_KEYS`] of its keys, held together, and then on those of the next ones.
    InParts(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// On the shards of the last [`PART_KEYS`] keys that the client watches, and of the channels that it
    /// [`LEAVES`](Flags::LEAVES).
    Own(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// EXEC: the commands of the client's transaction, on the shards of their keys and of those that it
    /// watches, held together.
    Queue,
    /// A script, on the shards of the keys that it declares or is known to reach for, held together; others
    /// join while it runs.
    Script(ScriptIn),
    /// On all shards, held together.
    Everything(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// On no shard, but its reply leaves only when every command that ran before it has ended: it sets a flag
    /// that commands look at under the hold.
    Barrier(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// On one shard after the other, each at a moment of its own.
    EachShard {
        /// Reads the arguments.
        begin: BeginSweep,
        /// Does one bounded piece of work on the shard the sweep stands at.
        step: fn(&mut Sweep, &mut Shard) -> Step,
    },
    /// A container: only its subcommands run.
    Container,
}

/// What the first argument of a command that runs a script is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptIn {
    /// The script's text.
    Text,
    /// The digest of one that is known.
    Digest,
    /// The name of a function.
    Function,
}

impl CommandSpec {
    /// A row with nothing filled in, to build rows on.
    pub const ROW: CommandSpec = CommandSpec {
        name: "",
        arity: Arity::AtLeast(1),
        flags: Flags::NONE,
        keys: Keys::NONE,
        channels: Channels::None,
        members: None,
        tells_of_failed_saves: false,
        log: Log::Verbatim,
        run: Run::Container,
        work: Work::Bounded,
        roams: None,
        database_of: None,
        since: "1.0.0",
        group: Group::Server,
        syntax: "",
        summary: "",
        complexity: "O(1)",
        categories: None,
        tips: &[],
        deprecated: None,
        subcommands: &[],
    };

    /// Whether an append-only file may have it: a write, a script, or a command that scripts may call. What
    /// scripts may not call belongs to a client or an operator. It would end, pause or change the server that
    /// loads the file.
    pub fn may_be_loaded(&self) -> bool {
        !self.flags.has(Flags::NOSCRIPT) || self.flags.has(Flags::WRITE) || self.group == Group::Scripting
    }
}
