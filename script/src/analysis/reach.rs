//! The caller's knowledge of commands: the positions of their keys, and whether they write.

/// The table of the commands that scripts may call.
pub trait Commands {
    /// Returns the properties of a command, or `None` if the command does not exist.
    ///
    /// The name may be in any case. For a command with subcommands, `subcommand` is its first argument, or
    /// `None` if that is not known.
    fn command(&self, name: &[u8], subcommand: Option<&[u8]>) -> Option<Command>;
}

/// The properties of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Whether the command may change anything.
    pub writes: bool,
    /// The keys that the command uses.
    pub reach: Reach,
}

/// The keys that a command uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The keys among its arguments, if any.
    Arguments(Vec<KeysAt>),
    /// Possibly all keys, as KEYS, SCAN and FLUSHALL use them.
    Keyspace,
}

/// The positions of keys. The command's name is at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysAt {
    /// The arguments from `first` to `last` by `step`. A negative `last` counts from the end.
    Range {
        /// The position of the first key.
        first: usize,
        /// The position of the last key; -1 is the last argument.
        last: isize,
        /// The distance from a key to the next.
        step: usize,
    },
    /// Keys whose number stands at `count`.
    ///
    /// They follow that argument at once, `step` apart.
    Counted {
        /// The position of the number.
        count: usize,
        /// The distance from a key to the next.
        step: usize,
    },
    /// The argument after a word.
    After {
        /// The word, in any case.
        word: &'static str,
        /// The first position where the word has this meaning.
        from: usize,
    },
    /// The first half of the arguments after a word.
    HalfAfter {
        /// The word, in any case.
        word: &'static str,
        /// The first position where the word can be.
        from: usize,
    },
}
