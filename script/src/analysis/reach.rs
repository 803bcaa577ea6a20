//! What the caller tells of commands: where their keys are, and whether they write.

/// Knows the commands that scripts may call.
pub trait Commands {
    /// Returns what a command does, by its name in any case and, of commands with subcommands, its first argument (none if that
    /// is not known). `None` is a command that does not exist.
    fn command(&self, name: &[u8], subcommand: Option<&[u8]>) -> Option<Command>;
}

/// What a command does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Whether it may change anything.
    pub writes: bool,
    /// The keys it touches.
    pub reach: Reach,
}

/// The keys that a command touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Those among its arguments, if any.
    Arguments(Vec<KeysAt>),
    /// Perhaps all there are, as KEYS, SCAN and FLUSHALL do.
    Keyspace,
}

/// Positions of keys; the command's name is at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysAt {
    /// From `first` to `last` (negative: from the end) by `step`.
    Range {
        /// Of the first key.
        first: usize,
        /// Of the last; -1 is the last argument.
        last: isize,
        /// From a key to the next.
        step: usize,
    },
    /// The argument at `count` says how many keys follow, the next first, `step` apart.
    Counted {
        /// The position of the number.
        count: usize,
        /// From a key to the next.
        step: usize,
    },
    /// The argument after a word.
    After {
        /// The word, in any case.
        word: &'static str,
        /// The first position where the word has this meaning.
        from: usize,
    },
    /// The first half of what follows a word.
    HalfAfter {
        /// The word, in any case.
        word: &'static str,
        /// The first position where it can be.
        from: usize,
    },
}
