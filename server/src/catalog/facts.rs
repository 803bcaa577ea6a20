//! Descriptive facts in a row of the command table: arity, group and deprecation.

/// A deprecation: its version, and the replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deprecation {
    /// The version that deprecated the command.
    pub since: &'static str,
    /// The replacement, in words.
    pub replaced_by: &'static str,
}

/// A number of arguments, counting the command's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Exactly this number.
    Exactly(u8),
    /// This number or more.
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

    /// Returns the arity as `COMMAND INFO` prints it: negative for a minimum.
    pub fn as_integer(self) -> i64 {
        match self {
            Arity::Exactly(n) => n as i64,
            Arity::AtLeast(n) => -(n as i64),
        }
    }
}

/// A group of commands, as `COMMAND DOCS` names it.
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
    /// MULTI and related commands.
    Transactions,
    /// The connection.
    Connection,
    /// The server.
    Server,
    /// Scripts and functions.
    Scripting,
    /// Bits of strings.
    Bitmap,
    /// HyperLogLogs.
    HyperLogLog,
    /// Publish and subscribe.
    PubSub,
    /// A cluster.
    Cluster,
}

impl Group {
    /// All groups, in the order of their numbers.
    pub const ALL: [Group; 16] = [
        Group::String,
        Group::Generic,
        Group::List,
        Group::Hash,
        Group::Set,
        Group::SortedSet,
        Group::Geo,
        Group::Stream,
        Group::Transactions,
        Group::Connection,
        Group::Server,
        Group::Scripting,
        Group::Bitmap,
        Group::HyperLogLog,
        Group::PubSub,
        Group::Cluster,
    ];

    /// Returns the group's name in `COMMAND DOCS`.
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
            Group::Scripting => "scripting",
            Group::Connection => "connection",
            Group::Server => "server",
            Group::Bitmap => "bitmap",
            Group::HyperLogLog => "hyperloglog",
            Group::PubSub => "pubsub",
            Group::Cluster => "cluster",
        }
    }
}
