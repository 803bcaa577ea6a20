//! The keys of a command: their positions, and their use.

use std::num::NonZeroU8;

use super::Words;

/// A command's use of a key, in the words of `COMMAND GETKEYSANDFLAGS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// Reads the value and returns or uses it.
    Read,
    /// Reads a property of the key, but not its value.
    Look,
    /// Overwrites the value without reading it.
    Overwrite,
    /// Changes the value.
    Update,
    /// Changes the value and returns some of it.
    UpdateAndRead,
    /// Adds to the value.
    Add,
    /// Removes some of the value.
    Remove,
    /// Deletes the key.
    Delete,
    /// Reads the value and then deletes the key.
    ReadAndDelete,
    /// Writes only if the key does not exist, without reading.
    Insert,
    /// Changes the value, and removes some of it.
    UpdateAndRemove,
    /// Overwrites the value. It also returns the old one if `GET` is among the arguments.
    OverwriteOrSwap,
    /// Reads the value and adds to it.
    AddAndRead,
    /// Reads the value, and may store it in another encoding.
    ReadAndRestore,
    /// Changes the value and returns some of it. It only reads if its arguments are just `GET` and
    /// `OVERFLOW`.
    UpdateOrRead,
    /// A script's key, which the script may use in any way.
    AssumedUpdate,
    /// A key of a script that only reads.
    AssumedRead,
    /// A channel instead of a key. It belongs to a shard as a key does.
    Channel,
    /// A channel in the shard of the key of its name, which proxies must know.
    ShardChannel,
}

impl KeyUse {
    /// Returns the flags that Redis prints.
    pub const fn wire(self) -> &'static [&'static str] {
        match self {
            KeyUse::Read | KeyUse::AssumedRead => &["RO", "access"],
            KeyUse::Look => &["RO"],
            KeyUse::Overwrite => &["OW", "update"],
            KeyUse::Update => &["RW", "update"],
            KeyUse::UpdateAndRead | KeyUse::AssumedUpdate => &["RW", "access", "update"],
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

    /// Whether this is a key rather than a channel.
    pub const fn is_key(self) -> bool {
        !matches!(self, KeyUse::Channel | KeyUse::ShardChannel)
    }

    /// Returns the right to the key that a command with these words needs.
    ///
    /// A command that neither reveals nor changes the value needs none.
    pub fn rights<'w>(self, words: impl Iterator<Item = &'w [u8]>) -> KeyRights {
        match self.in_words(words) {
            KeyUse::Read | KeyUse::AssumedRead | KeyUse::ReadAndRestore => KeyRights::READ,
            KeyUse::Overwrite
            | KeyUse::Update
            | KeyUse::Add
            | KeyUse::Remove
            | KeyUse::Delete
            | KeyUse::Insert
            | KeyUse::UpdateAndRemove => KeyRights::WRITE,
            KeyUse::UpdateAndRead
            | KeyUse::AssumedUpdate
            | KeyUse::ReadAndDelete
            | KeyUse::AddAndRead
            | KeyUse::OverwriteOrSwap
            | KeyUse::UpdateOrRead => KeyRights::READ.and(KeyRights::WRITE),
            KeyUse::Look | KeyUse::Channel | KeyUse::ShardChannel => KeyRights::NONE,
        }
    }

    /// Returns Redis's note in the key specification.
    pub const fn notes(self) -> Option<&'static str> {
        match self {
            KeyUse::OverwriteOrSwap => Some("RW and ACCESS due to the optional `GET` argument"),
            KeyUse::ReadAndRestore => Some(
                "RW because it may change the internal representation of the key, and propagate to replicas",
            ),
            KeyUse::AssumedUpdate => {
                Some("We cannot tell how the keys will be used so we assume the worst, RW and UPDATE")
            }
            KeyUse::AssumedRead => {
                Some("We cannot tell how the keys will be used so we assume the worst, RO and ACCESS")
            }
            KeyUse::UpdateOrRead => Some("This command allows both access and modification of the key"),
            _ => None,
        }
    }

    /// Whether the use depends on the command's words.
    pub const fn depends_on_words(self) -> bool {
        matches!(self, KeyUse::OverwriteOrSwap | KeyUse::UpdateOrRead)
    }

    /// Returns the use by a command with these words, the name included.
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

/// Whether the words are only `GET type offset` and `OVERFLOW how`.
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

/// A set of rights to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRights(u8);

impl KeyRights {
    /// No right: only the key's existence, type and size can be learned.
    pub const NONE: KeyRights = KeyRights(0);
    /// The right to read its value.
    pub const READ: KeyRights = KeyRights(1);
    /// The right to change it.
    pub const WRITE: KeyRights = KeyRights(2);

    /// Returns both sets together.
    #[must_use]
    pub const fn and(self, other: KeyRights) -> KeyRights {
        KeyRights(self.0 | other.0)
    }

    /// Whether all of `other` are in `self`.
    #[inline(always)]
    pub const fn has(self, other: KeyRights) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The words of a command that are channels to which its client needs a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// No words.
    None,
    /// The first argument.
    First,
    /// All arguments.
    All,
    /// All arguments, each a pattern of channels.
    Patterns,
}

/// The members of a collection that a command will use, and that are prefetched.
///
/// Options may change which members those are. The prefetch is then useless but harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembersAt {
    /// Members at some positions of the command's words, of which the name is 0.
    Words {
        /// Position of the first member.
        first: u8,
        /// Distance from one member to the next; `None` if there is only one.
        step: Option<NonZeroU8>,
    },
    /// A member that the next random number selects.
    Draw,
    /// The lowest member of a sorted set.
    Lowest,
    /// The highest member of a sorted set.
    Highest,
}

impl MembersAt {
    /// One member, after the key.
    pub const ONE: Option<MembersAt> = Some(MembersAt::Words { first: 2, step: None });
    /// All words after the key.
    pub const ALL: Option<MembersAt> = Some(MembersAt::Words { first: 2, step: NonZeroU8::new(1) });
    /// Members that are each followed by a value.
    pub const WITH_VALUES: Option<MembersAt> = Some(MembersAt::Words { first: 2, step: NonZeroU8::new(2) });
    /// Members that each follow a score.
    pub const WITH_SCORES: Option<MembersAt> = Some(MembersAt::Words { first: 3, step: NonZeroU8::new(2) });
    /// Members that each follow a longitude and a latitude.
    pub const WITH_COORDINATES: Option<MembersAt> =
        Some(MembersAt::Words { first: 4, step: NonZeroU8::new(3) });

    /// Returns the members among a command's words.
    pub fn named(self, words: Words<'_>) -> impl Iterator<Item = &[u8]> + Clone {
        let (positions, step) = match self {
            MembersAt::Words { first, step: Some(step) } => (first as usize..words.len(), step.get()),
            MembersAt::Words { first, step: None } => {
                (first as usize..words.len().min(first as usize + 1), 1)
            }
            MembersAt::Draw | MembersAt::Lowest | MembersAt::Highest => (0..0, 1),
        };
        positions.step_by(step as usize).map(move |at| words.get(at))
    }
}

/// Some of a command's keys. Positions count the command's name as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpec {
    /// The positions.
    pub at: KeysAt,
    /// The use of the keys.
    pub used: KeyUse,
}

/// Positions of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysAt {
    /// From `first` to `last`, every `step` positions. A negative `last` counts from the end.
    Range {
        /// Position of the first key.
        first: u8,
        /// Position of the last key; -1 is the last argument.
        last: i8,
        /// Distance from one key to the next.
        step: u8,
    },
    /// Keys that follow their number, which is the argument at `count`. They are `step` apart.
    Counted {
        /// Position of the number.
        count: u8,
        /// Distance from one key to the next.
        step: u8,
    },
    /// The argument after the last occurrence of a word, in either case.
    Behind {
        /// The word, in upper case.
        word: &'static str,
        /// First position where the word has this meaning.
        from: u8,
    },
    /// The same, where clients cannot find the last occurrence: a value may be the same word. They are told
    /// that the position is unknown.
    LastBehind {
        /// The word, in upper case.
        word: &'static str,
        /// First position where the word has this meaning.
        from: u8,
    },
    /// No position: the data decides the names, as with `BY` and `GET` of SORT.
    InData,
    /// The first half of the arguments after a keyword. Only options precede the keyword.
    HalfBehind {
        /// The keyword, in upper case.
        keyword: &'static str,
        /// First position where the keyword can be.
        from: u8,
        /// The options, each with the number of its values.
        options: &'static [(&'static str, usize)],
    },
}

impl KeysAt {
    /// Returns a note for clients that cannot find the keys.
    pub const fn notes(self) -> Option<&'static str> {
        match self {
            KeysAt::LastBehind { .. } => Some("The last occurrence counts, and a value may be the same word"),
            KeysAt::InData => Some("BY and GET make the names of the keys of the elements"),
            _ => None,
        }
    }
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
        /// The first argument is read.
        READ = Read;
        /// A property of the first argument is read.
        LOOK = Look;
        /// The first argument is overwritten.
        OVERWRITE = Overwrite;
        /// The first argument is changed.
        UPDATE = Update;
        /// The first argument is changed and returned.
        UPDATE_AND_READ = UpdateAndRead;
        /// The first argument is added to.
        ADD = Add;
        /// Some of the first argument is removed.
        REMOVE = Remove;
        /// The first argument is returned and deleted.
        READ_AND_DELETE = ReadAndDelete;
        /// The first argument is deleted.
        DELETE = Delete;
        /// The first argument is written if it is missing.
        INSERT = Insert;
        /// The first argument is overwritten, and returned if `GET` is among the arguments.
        OVERWRITE_OR_SWAP = OverwriteOrSwap;
        /// The first argument is changed and returned, or only read if all operations are `GET`.
        UPDATE_OR_READ = UpdateOrRead;
    }

    /// Returns the keys that clients and proxies are told of.
    ///
    /// Channels are not among them, except for those that stay with a shard.
    pub fn told(self) -> &'static [KeySpec] {
        let is_told = |keys: &KeySpec| keys.used != KeyUse::Channel;
        if self.0.iter().all(is_told) { self.0 } else { &[] }
    }

    /// Whether there are any keys besides channels.
    pub fn are_some(self) -> bool {
        self.0.iter().any(|keys| keys.used.is_key())
    }

    /// The key that SORT reads, and the keys whose names BY and GET make of its elements.
    pub const SORTED: [KeySpec; 2] = [
        KeySpec { at: KeysAt::Range { first: 1, last: 1, step: 1 }, used: KeyUse::Read },
        KeySpec { at: KeysAt::InData, used: KeyUse::Read },
    ];

    /// Returns a specification of all arguments.
    pub const fn all(used: KeyUse) -> [KeySpec; 1] {
        [KeySpec { at: KeysAt::Range { first: 1, last: -1, step: 1 }, used }]
    }

    /// Whether the keyword before a key occurs more than once.
    ///
    /// One occurrence may itself be a key or another value. The handler may then find another key than
    /// [`Keys::positions`] does.
    pub fn are_ambiguous(self, words: Words<'_>) -> bool {
        self.0.iter().any(|spec| {
            let (KeysAt::Behind { word: wanted, from } | KeysAt::LastBehind { word: wanted, from }) = spec.at
            else {
                return false;
            };
            let is_wanted = |word: &&[u8]| word.eq_ignore_ascii_case(wanted.as_bytes());
            words.iter().skip(from as usize).filter(is_wanted).nth(1).is_some()
        })
    }

    /// Whether the first key is the command's first argument.
    pub fn begin_at_first(self) -> bool {
        matches!(self.0.first(), Some(KeySpec { at: KeysAt::Range { first: 1, .. }, .. }))
    }

    /// Calls `each` with the position and the use of every key of a command.
    ///
    /// The command has `n_args` words, and `word` returns one of them. A malformed number of keys yields no
    /// keys, because the handler reports the error.
    #[inline]
    pub fn positions<'w>(
        self,
        n_args: usize,
        word: impl Fn(usize) -> &'w [u8],
        each: impl FnMut(usize, KeyUse),
    ) {
        self.find::<false>(n_args, word, each);
    }

    /// Calls `each` as [`Keys::positions`] does, but with every candidate for an
    /// [ambiguous](Keys::are_ambiguous) key.
    ///
    /// The candidates are all words that the handler may use as the key.
    #[inline]
    pub fn possible_positions<'w>(
        self,
        n_args: usize,
        word: impl Fn(usize) -> &'w [u8],
        each: impl FnMut(usize, KeyUse),
    ) {
        self.find::<true>(n_args, word, each);
    }

    #[inline(always)]
    fn find<'w, const ALL: bool>(
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
                KeysAt::InData => continue,
                KeysAt::Behind { word: wanted, from } | KeysAt::LastBehind { word: wanted, from } => {
                    let is_behind = |at: &usize| word(at - 1).eq_ignore_ascii_case(wanted.as_bytes());
                    let mut behind = (from as usize + 1..n_args).rev().filter(is_behind);
                    if ALL {
                        behind.for_each(|at| each(at, spec.used));
                    } else if let Some(at) = behind.next() {
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

/// Returns the position after `keyword`.
///
/// A value of an option before it may be the same word.
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

/// The keys of commands that remove elements and have a timeout after the keys.
pub const ALL_BUT_LAST: Keys =
    Keys(&[KeySpec { at: KeysAt::Range { first: 1, last: -2, step: 1 }, used: KeyUse::ReadAndDelete }]);

#[cfg(test)]
mod tests {
    use super::*;

    const USES: &[KeyUse] = &[
        KeyUse::Read,
        KeyUse::Look,
        KeyUse::Overwrite,
        KeyUse::Update,
        KeyUse::UpdateAndRead,
        KeyUse::Add,
        KeyUse::Remove,
        KeyUse::Delete,
        KeyUse::ReadAndDelete,
        KeyUse::Insert,
        KeyUse::UpdateAndRemove,
        KeyUse::OverwriteOrSwap,
        KeyUse::AddAndRead,
        KeyUse::ReadAndRestore,
        KeyUse::UpdateOrRead,
        KeyUse::AssumedUpdate,
        KeyUse::AssumedRead,
        KeyUse::Channel,
        KeyUse::ShardChannel,
    ];

    #[test]
    fn the_rights_that_a_use_needs_are_those_that_its_flags_name() {
        for used in USES {
            let words: [&[u8]; 4] = [b"set", b"key", b"value", b"get"];
            let wire = used.in_words(words.into_iter()).wire();
            let mut rights = KeyRights::NONE;
            if wire.contains(&"access") {
                rights = rights.and(KeyRights::READ);
            }
            if ["insert", "update", "delete"].iter().any(|word| wire.contains(word)) {
                rights = rights.and(KeyRights::WRITE);
            }
            assert_eq!(used.rights(words.into_iter()), rights, "{used:?}");
        }
    }

    #[test]
    fn what_a_command_does_to_its_key_may_depend_on_its_words() {
        let rights =
            |used: KeyUse, words: &[&'static str]| used.rights(words.iter().map(|word| word.as_bytes()));
        let both = KeyRights::READ.and(KeyRights::WRITE);
        assert_eq!(rights(KeyUse::OverwriteOrSwap, &["set", "key", "get"]), KeyRights::WRITE);
        assert_eq!(rights(KeyUse::OverwriteOrSwap, &["set", "key", "value", "GET"]), both);
        assert_eq!(rights(KeyUse::UpdateOrRead, &["bitfield", "key", "get", "u4", "0"]), KeyRights::READ);
        assert_eq!(rights(KeyUse::UpdateOrRead, &["bitfield", "key", "incrby", "u4", "0", "1"]), both);
    }
}
