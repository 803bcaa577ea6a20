//! The row of a command in the command table.

use braid_protocol::reply::Reply;
use braid_storage::{entry::db::Db, keyspace::shard::Shard};

use crate::{
    catalog::{
        Args, Arity, Categories, Channels, CommandError, Databases, Deprecation, Flags, Group, Keys,
        MembersAt, Outcome, Words,
    },
    client::sweep::{Sweep, SweepProgress},
    command::{Call, Work},
};

/// One command: its handler, and everything that other code and the documents know about it.
///
/// That code is the dispatcher, MULTI, COMMAND, access control, cluster slots and statistics.
pub struct CommandSpec {
    /// The name, in lower case.
    pub name: &'static str,
    /// The number of words, the name included.
    pub arity: Arity,
    /// The command's properties.
    pub flags: Flags,
    /// The positions and uses of its keys.
    pub keys: Keys,
    /// The words that are channels to which the client needs a right.
    pub channels: Channels,
    /// The members that it will use of its key's collection, if it has one. They are prefetched.
    pub members: Option<MembersAt>,
    /// Whether it fails after a failed snapshot, as writes do. Programs that watch the server rely on that.
    pub tells_of_failed_saves: bool,
    /// The way in which its changes enter the change stream.
    pub log: Log,
    /// Its handler, and the shards that the handler needs.
    pub run: Run,
    /// The growth of its work with the data.
    pub work: Work,
    /// Whether a command with these words may use keys that are not known before.
    ///
    /// Such a command takes all shards.
    pub roams: Option<fn(Words<'_>) -> bool>,
    /// The databases that it names, to which the client needs a right.
    pub databases: Databases,
    /// Returns the database of the key at a position, if not the selected one.
    pub database_of: Option<fn(Words<'_>, usize) -> Option<Db>>,
    /// The version of Redis (or `valkey x.y`) that introduced it.
    pub since: &'static str,
    /// Its group in COMMAND DOCS.
    pub group: Group,
    /// The arguments after the name, in the notation of Redis's manual.
    pub syntax: &'static str,
    /// A summary of one sentence.
    pub summary: &'static str,
    /// Its time complexity in O notation.
    pub complexity: &'static str,
    /// Categories of access control that replace those of its group. Flags add theirs in either case.
    pub categories: Option<Categories>,
    /// Tips of `COMMAND INFO`: for proxies about merging replies, for tools about comparing them.
    pub tips: &'static [&'static str],
    /// Its deprecation, if it is deprecated.
    pub deprecated: Option<Deprecation>,
    /// Subcommands, each a row of its own. Their `name` is the second word, and their arity counts both
    /// words.
    pub subcommands: &'static [CommandSpec],
}

/// Records the effect of a command on the keys that it writes.
pub type LogAs = fn(&mut Call<'_, '_>, &CommandSpec, Words<'_>);

/// The way in which a command's changes are recorded.
///
/// A command without changes has no record.
#[derive(Clone, Copy)]
pub enum Log {
    /// With its own words. On the same data they have the same effect, at any time and on any server that
    /// knows the command. A transaction or a script is recorded with the words of its commands.
    Verbatim,
    /// With its own words, even if it has changed nothing, as in Redis.
    Always,
    /// With its own words if there are this many. Further words are options, with which the function records
    /// it.
    PlainOr(usize, LogAs),
    /// With words that set the present values of its keys. Its own words depend on the time or on chance, or
    /// Redis 7.0 does not know them.
    As(LogAs),
    /// With words from its handler, which alone knows its changes.
    ///
    /// The reasons not to use its own words are the same.
    Given,
}

impl Log {
    /// Whether a command of `n_words` words is recorded with its own words.
    ///
    /// This assumes that it has changed something.
    #[inline]
    pub fn is_verbatim(&self, n_words: usize) -> bool {
        match self {
            Log::Verbatim => true,
            Log::PlainOr(n_plain, _) => n_words == *n_plain,
            Log::Always | Log::As(_) | Log::Given => false,
        }
    }
}

/// A function that reads the arguments of a sweep.
pub type BeginSweep = fn(&mut Call<'_, '_>, Args<'_>) -> Result<Sweep, CommandError>;

/// The most keys in one part of a command that [releases its shards between parts](GaveUp::BetweenParts).
pub const PART_KEYS: usize = 256;

/// The shards that a command runs on, with its handler.
#[derive(Clone, Copy)]
pub enum Run {
    /// No shard: it uses only the session and the server.
    Session(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// The shard of its first key, which is its only one.
    Shard(fn(&mut Shard, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// The shards of all its keys, held together.
    Transaction(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// The shards of up to [`PART_KEYS`] of its keys, held together.
    ///
    /// Then it takes the shards of the next keys.
    InParts(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// The shards of the client's last watched keys, and of some channels.
    ///
    /// There are up to [`PART_KEYS`] such keys. The channels are those that it [`LEAVES`](Flags::LEAVES).
    Own(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// The shards of the commands in the client's transaction, held together.
    ///
    /// This is EXEC. It also holds the shards of the client's watched keys.
    Queue,
    /// The shards of a script's keys, held together.
    ///
    /// The keys are those that the script declares or is predicted to use. Other shards are added while it
    /// runs.
    Script(ScriptIn),
    /// All shards, held together.
    Everything(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// No shard, but its reply leaves only after every earlier command has ended. It sets a flag that
    /// commands read under the hold.
    Barrier(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// One shard after the other, each at its own time.
    EachShard {
        /// Reads the arguments.
        begin: BeginSweep,
        /// Does one bounded piece of work on the shard the sweep stands at.
        step: fn(&mut Sweep, &mut Shard) -> SweepProgress,
    },
    /// None: a container, of which only the subcommands run.
    Container,
}

/// The meaning of a script command's first argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptIn {
    /// The script's text.
    Text,
    /// The digest of a known script.
    Digest,
    /// The name of a function.
    Function,
}

impl CommandSpec {
    /// A row without content, as a base for other rows.
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
        databases: Databases::Selected,
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

    /// A row of the subcommand HELP of a container, as a base for other rows.
    pub const HELP: CommandSpec = CommandSpec {
        name: "help",
        arity: Arity::Exactly(2),
        flags: Flags::LOADING.and(Flags::STALE),
        summary: "Returns helpful text about the different subcommands.",
        ..Self::ROW
    };

    /// Whether an AOF may contain the command.
    ///
    /// It may contain writes, scripts, and commands that scripts may call.
    ///
    /// Other commands belong to a client or an operator. They would end, pause or change the server that
    /// loads the file.
    pub fn may_be_loaded(&self) -> bool {
        !self.flags.has(Flags::NOSCRIPT) || self.flags.has(Flags::WRITE) || self.group == Group::Scripting
    }
}
