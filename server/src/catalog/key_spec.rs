//! Where the keys of a command are, and what it does to them.

use std::num::NonZeroU8;

use super::Words;

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
    /// Changes what is there and returns some of it, or only reads if it is told no more than `GET` and
    /// `OVERFLOW`.
    UpdateOrRead,
    /// A script gets it: it may do anything.
    AssumedUpdate,
    /// A script that only reads gets it.
    AssumedRead,
    /// It is no key but a channel, which belongs to a shard as a key does.
    Channel,
    /// It is a channel that stays with the shard of the key of its name, so that proxies must know of it.
    ShardChannel,
}

impl KeyUse {
    /// The flags that Redis prints.
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

    /// Whether it is a key at all.
    pub const fn is_key(self) -> bool {
        !matches!(self, KeyUse::Channel | KeyUse::ShardChannel)
    }

    /// What right to the key a command needs, of which these are the words. None is enough for what tells no
    /// value and changes none.
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

    /// What a key specification remarks about it.
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

    /// Whether what a command does depends on its words.
    pub const fn depends_on_words(self) -> bool {
        matches!(self, KeyUse::OverwriteOrSwap | KeyUse::UpdateOrRead)
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

/// What one may do with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRights(u8);

impl KeyRights {
    /// Nothing but to learn whether it is there, of which type and how large.
    pub const NONE: KeyRights = KeyRights(0);
    /// To read its value.
    pub const READ: KeyRights = KeyRights(1);
    /// To change it.
    pub const WRITE: KeyRights = KeyRights(2);

    /// Both.
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

/// Which of a command's words are channels that its client must have a right to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// None.
    None,
    /// The first argument.
    First,
    /// All arguments.
    All,
    /// All arguments, each a pattern of channels.
    Patterns,
}

/// Which members of a collection a command reaches for: they are fetched ahead. Options may change that: then
/// what is fetched ahead is of no use, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembersAt {
    /// Those at some positions of its words; the command's name is at 0.
    Words {
        /// Of the first member.
        first: u8,
        /// From a member to the next; none if there is only one.
        step: Option<NonZeroU8>,
    },
    /// One that the next random number draws.
    Draw,
    /// The first of a sorted set.
    Lowest,
    /// The last of a sorted set.
    Highest,
}

impl MembersAt {
    /// One, behind the key.
    pub const ONE: Option<MembersAt> = Some(MembersAt::Words { first: 2, step: None });
    /// All that is behind the key.
    pub const ALL: Option<MembersAt> = Some(MembersAt::Words { first: 2, step: NonZeroU8::new(1) });
    /// Each with its value behind it.
    pub const WITH_VALUES: Option<MembersAt> = Some(MembersAt::Words { first: 2, step: NonZeroU8::new(2) });
    /// Each with its score before it.
    pub const WITH_SCORES: Option<MembersAt> = Some(MembersAt::Words { first: 3, step: NonZeroU8::new(2) });
    /// Each with its longitude and latitude before it.
    pub const WITH_COORDINATES: Option<MembersAt> =
        Some(MembersAt::Words { first: 4, step: NonZeroU8::new(3) });

    /// The members among a command's words.
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

    /// Those that clients and proxies are told of. Channels are none to them, but for those that stay with a
    /// shard.
    pub fn told(self) -> &'static [KeySpec] {
        let is_told = |keys: &KeySpec| keys.used != KeyUse::Channel;
        if self.0.iter().all(is_told) { self.0 } else { &[] }
    }

    /// Whether there are any, and not only channels.
    pub fn are_some(self) -> bool {
        self.0.iter().any(|keys| keys.used.is_key())
    }

    /// Every argument from the first on.
    pub const fn all(used: KeyUse) -> [KeySpec; 1] {
        [KeySpec { at: KeysAt::Range { first: 1, last: -1, step: 1 }, used }]
    }

    /// Whether the word that a key stands behind is there more than once: one may be a key or another value
    /// itself, and the key that the handler finds another one than [`Keys::positions`] tells.
    pub fn are_ambiguous(self, words: Words<'_>) -> bool {
        self.0.iter().any(|spec| {
            let KeysAt::Behind { word: wanted, from } = spec.at else { return false };
            let is_wanted = |word: &&[u8]| word.eq_ignore_ascii_case(wanted.as_bytes());
            words.iter().skip(from as usize).filter(is_wanted).nth(1).is_some()
        })
    }

    /// Whether the first of them is the command's first argument.
    pub fn begin_at_first(self) -> bool {
        matches!(self.0.first(), Some(KeySpec { at: KeysAt::Range { first: 1, .. }, .. }))
    }

    /// Calls `each` with the position of every key of a command of `n_args` words (`word` gives one), and
    /// what it is used for. Malformed counts give no keys: the handler reports them.
    #[inline]
    pub fn positions<'w>(
        self,
        n_args: usize,
        word: impl Fn(usize) -> &'w [u8],
        each: impl FnMut(usize, KeyUse),
    ) {
        self.find::<false>(n_args, word, each);
    }

    /// The same, but where it is [ambiguous](Keys::are_ambiguous) which word is a key, with all that the
    /// handler may take for it.
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
                KeysAt::Behind { word: wanted, from } => {
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
