//! What a row of the command table says.

use std::num::NonZeroU8;

use braid_protocol::reply::Reply;
use braid_storage::Shard;

use super::{Args, Call, Categories, Outcome, Step, Sweep, Work};

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
    /// Where it names members of the collection that its key holds, if it does: those are fetched ahead.
    pub members: Option<MembersAt>,
    /// Where it runs, and what runs.
    pub run: Run,
    /// What its work grows with.
    pub work: Work,
    /// Whether a command of these words reaches for keys that cannot be known before it runs: then it takes all shards.
    pub roams: Option<fn(super::Words<'_>) -> bool>,
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
    /// The categories of access control in place of those that its group gives; flags add theirs in either case.
    pub categories: Option<Categories>,
    /// What `COMMAND INFO` tells proxies about merging replies, and tools about comparing them.
    pub tips: &'static [&'static str],
    /// Why it should no longer be used, if that is so.
    pub deprecated: Option<Deprecation>,
    /// Subcommands, each a row of its own. Their `name` is the second word, their arity counts both.
    pub subcommands: &'static [CommandSpec],
}

/// Since when a command should no longer be used, and what to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deprecation {
    /// The version.
    pub since: &'static str,
    /// What does the same, in words.
    pub replaced_by: &'static str,
}

/// A number of arguments, counting the command's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Exactly that many.
    Exactly(u8),
    /// That many or more.
    AtLeast(u8),
}

impl Arity {
    /// Whether a command of `n_args` words is well formed.
    #[inline]
    pub fn admits(self, n_args: usize) -> bool {
        match self {
            Arity::Exactly(n) => n_args == n as usize,
            Arity::AtLeast(n) => n_args >= n as usize,
        }
    }

    /// As `COMMAND INFO` writes it: negative for a minimum.
    pub fn as_integer(self) -> i64 {
        match self {
            Arity::Exactly(n) => n as i64,
            Arity::AtLeast(n) => -(n as i64),
        }
    }
}

/// Reads the arguments of a command that visits the shards in turn.
pub type BeginSweep = fn(&mut Call<'_, '_>, Args<'_>) -> Result<Sweep, super::CommandError>;

/// Where a command runs.
#[derive(Clone, Copy)]
pub enum Run {
    /// On no shard: it only touches the session and the server.
    Session(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// On the shard of its first key, which is its only one.
    Shard(fn(&mut Shard, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// On the shards of all its keys, held together.
    Transaction(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// On the shards of the keys that the client watches, of the channels that it [`LEAVES`](Flags::LEAVES) and, for EXEC, those
    /// of the queued commands.
    Own(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// On all shards, held together.
    Everything(fn(&mut Call<'_, '_>, Args<'_>, &mut Reply<'_>) -> Outcome),
    /// On no shard, but its reply leaves only when every command that ran before it has ended: it sets a flag that
    /// commands look at under the hold.
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

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $wire:expr;)*) => {
        /// Properties of a command, a set.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Flags(u32);

        impl Flags {
            $($(#[$doc])* pub const $name: Flags = Flags(1 << $bit);)*

            /// Each flag with the word that `COMMAND INFO` has for it, if it has one.
            pub const NAMES: &[(Flags, Option<&'static str>)] = &[$((Flags::$name, $wire)),*];
        }
    };
}

flags! {
    /// May change keys.
    WRITE = 0, Some("write");
    /// Only reads keys.
    READONLY = 1, Some("readonly");
    /// Refused when memory is short.
    DENYOOM = 2, Some("denyoom");
    /// Administrative.
    ADMIN = 3, Some("admin");
    /// Publishes or subscribes.
    PUBSUB = 22, Some("pubsub");
    /// Not for scripts.
    NOSCRIPT = 4, Some("noscript");
    /// Allowed while a data set is being loaded.
    LOADING = 5, Some("loading");
    /// Allowed on a replica with stale data.
    STALE = 6, Some("stale");
    /// Constant or logarithmic time.
    FAST = 7, Some("fast");
    /// Allowed before authentication.
    NO_AUTH = 8, Some("no_auth");
    /// Not allowed between MULTI and EXEC.
    NO_MULTI = 9, Some("no_multi");
    /// Its keys cannot be found by position alone.
    MOVABLE_KEYS = 10, Some("movablekeys");
    /// Not shown by MONITOR.
    SKIP_MONITOR = 11, Some("skip_monitor");
    /// Not in the slow log.
    SKIP_SLOWLOG = 12, Some("skip_slowlog");
    /// Allowed while a script runs for too long.
    ALLOW_BUSY = 13, Some("allow_busy");
    /// Runs at once inside MULTI instead of being queued.
    IMMEDIATE = 14, None;
    /// Changes how what follows on the connection is read or run, so nothing is parsed ahead of it.
    PARSE_STOP = 15, None;
    /// In the `dangerous` category.
    DANGEROUS = 16, None;
    /// Tells of the whole keyspace: between MULTI and EXEC it needs all shards held.
    WHOLE_KEYSPACE = 17, None;
    /// Deprecated.
    DEPRECATED = 18, None;
    /// In the `blocking` category, may wait.
    BLOCKING = 19, Some("blocking");
    /// Not allowed while a data set is being loaded in the background.
    NO_ASYNC_LOADING = 20, Some("no_async_loading");
    /// Reads, and may change how a value is stored: CLIENT PAUSE holds it back together with writes.
    MAY_REPLICATE = 21, None;
    /// Allowed on a connection that is subscribed to something and cannot tell messages from replies.
    WHILE_SUBSCRIBED = 23, None;
    /// Ends subscriptions of the client: those to the channels that it names, or all.
    LEAVES = 24, None;
    /// Runs the queue of the client's transaction: its needs, and what it may do, are those of the queued commands, too.
    RUNS_QUEUE = 25, None;
    /// Touches keys in another database than the selected one, or selects another.
    OTHER_DATABASES = 26, None;
    /// Writes files, or waits for another command of its kind: within EXEC, which holds shards, no thread with sockets runs it.
    USES_FILES = 30, None;
    /// MONITOR shows its name only: every other word may be a secret.
    SECRET = 27, None;
    /// MONITOR hides the two words after each `AUTH` among its words: a user and a password.
    SECRET_AFTER_AUTH = 28, None;
    /// What CLIENT CACHING has said holds beyond it. A container's flag is for all its subcommands.
    KEEPS_CACHING = 29, None;
}

impl Flags {
    /// No properties.
    pub const NONE: Flags = Flags(0);

    /// Both.
    pub const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Whether all of `other` are in `self`.
    #[inline(always)]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What a command does to its keys, in the words of `COMMAND GETKEYSANDFLAGS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// Reads the value and returns or uses it.
    Read,
    /// Reads something about the key, not its value.
    Look,
    /// Overwrites without reading.
    Overwrite,
    /// Changes what is there.
    Update,
    /// Changes what is there and returns some of it.
    UpdateAndRead,
    /// Adds to what is there.
    Add,
    /// Removes some of what is there.
    Remove,
    /// Deletes.
    Delete,
    /// Reads the value and then deletes the key.
    ReadAndDelete,
    /// Writes only if the key is not there, without reading.
    Insert,
    /// Changes what is there, and removes some of it.
    UpdateAndRemove,
    /// Overwrites, and reads the old value too if the word `GET` is among the arguments.
    OverwriteOrSwap,
    /// Adds to what is there, having read it.
    AddAndRead,
    /// Reads the value, and may store it in another way.
    ReadAndRestore,
    /// Changes what is there and returns some of it, or only reads if it is told no more than `GET` and `OVERFLOW`.
    UpdateOrRead,
    /// It is no key but a channel, which belongs to a shard as a key does.
    Channel,
    /// It is a channel that stays with the shard of the key of its name, so that proxies must know of it.
    ShardChannel,
}

impl KeyUse {
    /// The flags that Redis prints.
    pub const fn wire(self) -> &'static [&'static str] {
        match self {
            KeyUse::Read => &["RO", "access"],
            KeyUse::Look => &["RO"],
            KeyUse::Overwrite => &["OW", "update"],
            KeyUse::Update => &["RW", "update"],
            KeyUse::UpdateAndRead => &["RW", "access", "update"],
            KeyUse::Add => &["RW", "insert"],
            KeyUse::Remove => &["RW", "delete"],
            KeyUse::Delete => &["RM", "delete"],
            KeyUse::ReadAndDelete => &["RW", "access", "delete"],
            KeyUse::Insert => &["OW", "insert"],
            KeyUse::AddAndRead => &["RW", "access", "insert"],
            KeyUse::ReadAndRestore => &["RW", "access"],
            KeyUse::OverwriteOrSwap | KeyUse::UpdateOrRead => &["RW", "access", "update", "variable_flags"],
            KeyUse::UpdateAndRemove => &["RW", "update", "delete"],
            KeyUse::Channel | KeyUse::ShardChannel => &["not_key"],
        }
    }

    /// Whether it is a key at all.
    pub const fn is_key(self) -> bool {
        !matches!(self, KeyUse::Channel | KeyUse::ShardChannel)
    }

    /// What a key specification remarks about it.
    pub const fn notes(self) -> Option<&'static str> {
        match self {
            KeyUse::OverwriteOrSwap => Some("RW and ACCESS due to the optional `GET` argument"),
            KeyUse::ReadAndRestore => Some(
                "RW because it may change the internal representation of the key, and propagate to replicas",
            ),
            KeyUse::UpdateOrRead => Some("This command allows both access and modification of the key"),
            _ => None,
        }
    }

    /// What this command does, where that depends on its words, the name included.
    pub fn in_words<'w>(self, words: impl Iterator<Item = &'w [u8]>) -> KeyUse {
        match self {
            KeyUse::OverwriteOrSwap => {
                let swaps = words.skip(3).any(|word| word.eq_ignore_ascii_case(b"get"));
                if swaps { KeyUse::UpdateAndRead } else { KeyUse::Overwrite }
            }
            KeyUse::UpdateOrRead => {
                if only_gets(words.skip(2)) {
                    KeyUse::Read
                } else {
                    KeyUse::UpdateAndRead
                }
            }
            fixed => fixed,
        }
    }
}

/// Whether words are `GET type offset` and `OVERFLOW how` only.
fn only_gets<'w>(mut words: impl Iterator<Item = &'w [u8]>) -> bool {
    while let Some(word) = words.next() {
        let n_behind = if word.eq_ignore_ascii_case(b"get") {
            2
        } else if word.eq_ignore_ascii_case(b"overflow") {
            1
        } else {
            return false;
        };
        if words.by_ref().take(n_behind).count() < n_behind {
            return false;
        }
    }
    true
}

/// Positions of members of a collection; the command's name is at 0. Options may push them further back: then what is fetched ahead
/// is of no use, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MembersAt {
    /// Of the first member.
    pub first: u8,
    /// From a member to the next; none if there is only one.
    pub step: Option<NonZeroU8>,
}

impl MembersAt {
    /// One, behind the key.
    pub const ONE: Option<MembersAt> = Some(MembersAt { first: 2, step: None });
    /// All that is behind the key.
    pub const ALL: Option<MembersAt> = Some(MembersAt { first: 2, step: NonZeroU8::new(1) });
    /// Each with its value behind it.
    pub const WITH_VALUES: Option<MembersAt> = Some(MembersAt { first: 2, step: NonZeroU8::new(2) });
    /// Each with its score before it.
    pub const WITH_SCORES: Option<MembersAt> = Some(MembersAt { first: 3, step: NonZeroU8::new(2) });
    /// Each with its longitude and latitude before it.
    pub const WITH_COORDINATES: Option<MembersAt> = Some(MembersAt { first: 4, step: NonZeroU8::new(3) });

    /// The members among a command's words.
    pub fn of(self, words: super::Words<'_>) -> impl Iterator<Item = &[u8]> + Clone {
        let (n_max, step) = self.step.map_or((1, 1), |step| (usize::MAX, step.get() as usize));
        (self.first as usize..words.len()).step_by(step).take(n_max).map(move |at| words.get(at))
    }
}

/// Some of a command's keys: positions count the command's name as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpec {
    /// Where.
    pub at: KeysAt,
    /// What for.
    pub used: KeyUse,
}

/// Positions of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysAt {
    /// From `first` to `last` (negative: from the end) by `step`.
    Range {
        /// Of the first key.
        first: u8,
        /// Of the last; -1 is the last argument.
        last: i8,
        /// From a key to the next.
        step: u8,
    },
    /// The argument at `count` says how many keys follow, the next first, `step` apart.
    Counted {
        /// The position of the number.
        count: u8,
        /// From a key to the next.
        step: u8,
    },
    /// The argument behind the last one that is a certain word, in either case.
    Behind {
        /// The word, in upper case.
        word: &'static str,
        /// The first position where the word has this meaning.
        from: u8,
    },
    /// The first half of what follows a word, before which only options stand.
    HalfBehind {
        /// The word, in upper case.
        keyword: &'static str,
        /// The first position where it can be.
        from: u8,
        /// The options, with how many words each takes beside its own.
        options: &'static [(&'static str, usize)],
    },
}

/// All keys of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys(pub &'static [KeySpec]);

macro_rules! one_key {
    ($($(#[$doc:meta])* $name:ident = $used:ident;)*) => {$(
        $(#[$doc])*
        pub const $name: Keys =
            Keys(&[KeySpec { at: KeysAt::Range { first: 1, last: 1, step: 1 }, used: KeyUse::$used }]);
    )*};
}

impl Keys {
    /// No keys.
    pub const NONE: Keys = Keys(&[]);

    one_key! {
        /// The first argument, read.
        READ = Read;
        /// The first argument, looked at.
        LOOK = Look;
        /// The first argument, overwritten.
        OVERWRITE = Overwrite;
        /// The first argument, changed.
        UPDATE = Update;
        /// The first argument, changed and returned.
        UPDATE_AND_READ = UpdateAndRead;
        /// The first argument, added to.
        ADD = Add;
        /// The first argument, from which something is removed.
        REMOVE = Remove;
        /// The first argument, returned and deleted.
        READ_AND_DELETE = ReadAndDelete;
        /// The first argument, deleted.
        DELETE = Delete;
        /// The first argument, written if missing.
        INSERT = Insert;
        /// The first argument, overwritten, and returned if `GET` is among the arguments.
        OVERWRITE_OR_SWAP = OverwriteOrSwap;
        /// The first argument, changed and returned, or only read if `GET` is all that is asked for.
        UPDATE_OR_READ = UpdateOrRead;
    }

    /// Those that clients and proxies are told of. Channels are none to them, but for those that stay with a shard.
    pub fn told(self) -> &'static [KeySpec] {
        let is_told = |keys: &KeySpec| keys.used != KeyUse::Channel;
        if self.0.iter().all(is_told) { self.0 } else { &[] }
    }

    /// Every argument from the first on.
    pub const fn all(used: KeyUse) -> [KeySpec; 1] {
        [KeySpec { at: KeysAt::Range { first: 1, last: -1, step: 1 }, used }]
    }

    /// Whether the word that a key stands behind is there more than once: one may be a key or another value itself, and the key that
    /// the handler finds another one than [`Keys::positions`] tells.
    pub fn are_ambiguous(self, words: super::Words<'_>) -> bool {
        self.0.iter().any(|spec| {
            let KeysAt::Behind { word: wanted, from } = spec.at else { return false };
            let is_wanted = |word: &&[u8]| word.eq_ignore_ascii_case(wanted.as_bytes());
            words.iter().skip(from as usize).filter(is_wanted).nth(1).is_some()
        })
    }

    /// Calls `each` with the position of every key of a command of `n_args` words (`word` gives one), and what
    /// it is used for. Malformed counts give no keys: the handler reports them.
    #[inline]
    pub fn positions<'w>(
        self,
        n_args: usize,
        word: impl Fn(usize) -> &'w [u8],
        mut each: impl FnMut(usize, KeyUse),
    ) {
        for spec in self.0 {
            let (first, last, step) = match spec.at {
                KeysAt::Range { first, last, step } => {
                    let last = if last < 0 { n_args as isize + last as isize } else { last as isize };
                    (first as usize, last, step as usize)
                }
                KeysAt::Counted { count, step } => {
                    let (count, step) = (count as usize, step as usize);
                    if count >= n_args {
                        continue;
                    }
                    let Some(n_keys) = braid_protocol::number::parse_i64(word(count)) else { continue };
                    let room = (n_args - count - 1).div_ceil(step);
                    if n_keys <= 0 || n_keys as usize > room {
                        continue;
                    }
                    (count + 1, (count + 1 + (n_keys as usize - 1) * step) as isize, step)
                }
                KeysAt::Behind { word: wanted, from } => {
                    if let Some(at) = (from as usize + 1..n_args)
                        .rfind(|&at| word(at - 1).eq_ignore_ascii_case(wanted.as_bytes()))
                    {
                        each(at, spec.used);
                    }
                    continue;
                }
                KeysAt::HalfBehind { keyword, options, .. } => {
                    let Some(first) = behind_keyword(keyword, options, n_args, &word) else { continue };
                    (first, (first + (n_args - first) / 2) as isize - 1, 1)
                }
            };
            let mut at = first;
            while at as isize <= last && at < n_args {
                each(at, spec.used);
                at += step;
            }
        }
    }
}

/// The position behind `keyword`, which may also be a value of the options before it.
fn behind_keyword<'w>(
    keyword: &str,
    options: &[(&str, usize)],
    n_args: usize,
    word: &impl Fn(usize) -> &'w [u8],
) -> Option<usize> {
    let mut at = 1;
    while at < n_args {
        if word(at).eq_ignore_ascii_case(keyword.as_bytes()) {
            return Some(at + 1);
        }
        let is_this = |(name, _): &&(&str, usize)| word(at).eq_ignore_ascii_case(name.as_bytes());
        let n_values = options.iter().find(is_this).map_or(0, |(_, n_values)| *n_values);
        at += 1 + n_values;
    }
    None
}

/// The keys of commands that take elements away, with a timeout behind the keys.
pub(super) const ALL_BUT_LAST: Keys =
    Keys(&[KeySpec { at: KeysAt::Range { first: 1, last: -2, step: 1 }, used: KeyUse::ReadAndDelete }]);

/// A family of commands, as `COMMAND DOCS` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Strings.
    String,
    /// Keys of any type.
    Generic,
    /// Lists.
    List,
    /// Hashes.
    Hash,
    /// Sets.
    Set,
    /// Sorted sets.
    SortedSet,
    /// Geospatial indexes.
    Geo,
    /// Streams.
    Stream,
    /// MULTI and its kin.
    Transactions,
    /// The connection.
    Connection,
    /// The server.
    Server,
    /// Bits of strings.
    Bitmap,
    /// HyperLogLogs.
    HyperLogLog,
    /// Publish and subscribe.
    PubSub,
}

impl Group {
    /// As `COMMAND DOCS` prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Group::String => "string",
            Group::Generic => "generic",
            Group::List => "list",
            Group::Hash => "hash",
            Group::Set => "set",
            Group::SortedSet => "sorted-set",
            Group::Geo => "geo",
            Group::Stream => "stream",
            Group::Transactions => "transactions",
            Group::Connection => "connection",
            Group::Server => "server",
            Group::Bitmap => "bitmap",
            Group::HyperLogLog => "hyperloglog",
            Group::PubSub => "pubsub",
        }
    }
}

impl CommandSpec {
    /// A row with nothing filled in, to build rows on.
    pub const ROW: CommandSpec = CommandSpec {
        name: "",
        arity: Arity::AtLeast(1),
        flags: Flags::NONE,
        keys: Keys::NONE,
        members: None,
        run: Run::Container,
        work: Work::Bounded,
        roams: None,
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
}
