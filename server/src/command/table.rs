//! The command table: every family's rows, found by name.

use std::collections::HashMap;

use braid_storage::{Routed, Router};

use super::{CommandSpec, Run, renames::CalledNames};
use crate::{
    access::{Asked, N_COMMANDS_MAX},
    catalog::{Args, CommandId, Flags, KeyRights, KeySpec, KeysAt, Words},
};

/// A row, or a subcommand's row, with what is derived from its place in the table.
pub struct Registered {
    /// The row.
    pub spec: &'static CommandSpec,
    /// Its number, from 0 without gaps, subcommands included: the index of its statistics.
    pub id: CommandId,
    /// The container it is a subcommand of.
    pub parent: Option<&'static CommandSpec>,
    /// `get`, or `client|list`.
    pub full_name: &'static str,
    /// The name by which it is called: its own, unless `rename-command` gives another.
    pub called: &'static [u8],
    /// Whether `rename-command` has taken it, or its container, away.
    pub is_hidden: bool,
    /// Whether its first argument is a key.
    pub first_is_key: bool,
    /// What right it needs to its first argument, if that is its only key, whatever its other words say.
    pub only_key: Option<KeyRights>,
    /// Whether it takes many keys, all of which are known from their positions, or declares some for a
    /// script.
    pub names_all_keys: bool,
    /// Whether it is an argument of its container to Redis, and so counts as that in statistics.
    pub counts_as_parent: bool,
    /// By which number, and under which name, access control knows it: its own, or its container's, if it
    /// counts as that.
    pub judged_as: CommandId,
    judged_name: &'static &'static str,
    subcommands: HashMap<&'static str, &'static Registered>,
}

impl Registered {
    /// Whether it has all of some properties.
    #[inline]
    pub fn has(&self, flags: Flags) -> bool {
        self.spec.flags.has(flags)
    }

    /// Whether it has one of them.
    #[inline]
    pub fn has_any(&self, flags: Flags) -> bool {
        self.spec.flags.has_any(flags)
    }

    /// Whether a word is the name by which it is called, in either case.
    #[inline]
    pub fn is_named(&self, word: &[u8]) -> bool {
        self.called.eq_ignore_ascii_case(word)
    }

    /// Whether its second word may name another row.
    #[inline]
    pub fn has_subcommands(&self) -> bool {
        !self.subcommands.is_empty()
    }

    /// Its subcommands, by name.
    pub fn subcommands(&self) -> impl Iterator<Item = &'static Registered> {
        let mut all: Vec<_> = self.subcommands.values().copied().collect();
        all.sort_unstable_by_key(|sub| sub.id);
        all.into_iter()
    }

    /// The rows that its statistics are of: mostly itself alone.
    pub fn counted(&'static self) -> impl Iterator<Item = &'static Registered> + Clone {
        let parts = self.subcommands.values().copied().filter(|sub| sub.counts_as_parent);
        std::iter::once(self).filter(|command| !command.counts_as_parent).chain(parts)
    }

    /// What access control has to know of one of it.
    #[inline(always)]
    pub fn asked<'w>(&self, words: Words<'w>) -> Asked<'w> {
        Asked {
            id: self.judged_as,
            full_name: self.judged_name,
            is_free: self.has(Flags::NO_AUTH),
            keys: self.spec.keys,
            channels: self.spec.channels,
            words,
        }
    }

    /// Its arguments, behind its name.
    pub fn args<'w>(&self, words: Words<'w>, router: &'w Router, first: Option<Routed>) -> Args<'w> {
        let args = Args::new(words, router, first);
        if self.parent.is_some() { args.after_subcommand() } else { args }
    }

    /// Whether it runs the queue of the client's transaction: its needs, and what it may do, are those of the
    /// queued commands, too.
    #[inline]
    pub fn runs_queue(&self) -> bool {
        matches!(self.spec.run, Run::Queue)
    }

    /// Whether tracking remembers the keys that it names: of a script those that its commands read.
    #[inline]
    pub fn reads_its_keys(&self) -> bool {
        self.has(Flags::READONLY) && !matches!(self.spec.run, Run::Script(_))
    }

    /// Whether it runs a script that may write.
    #[inline]
    pub fn runs_script(&self) -> bool {
        matches!(self.spec.run, Run::Script(_)) && !self.has(Flags::READONLY)
    }

    /// Whether it only contains others.
    pub fn is_container(&self) -> bool {
        matches!(self.spec.run, Run::Container)
    }
}

/// What a name stands for.
pub enum Found {
    /// A command, or a subcommand.
    Command(&'static Registered),
    /// A container without the subcommand that was asked for.
    UnknownSubcommand(&'static Registered),
    /// Nothing.
    Unknown,
}

impl Found {
    /// Whether both are the same command.
    #[inline]
    pub fn is_same(&self, other: &Self) -> bool {
        matches!((self, other), (Found::Command(a), Found::Command(b)) if std::ptr::eq(*a, *b))
    }
}

/// A command by its name.
#[derive(Clone, Copy)]
struct Place {
    /// Where the name begins, and how long it is: that tells most from others.
    head: Head,
    command: &'static Registered,
}

/// The first eight bytes of a name in lower case, and its length.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Head {
    bytes: u64,
    n_bytes: usize,
}

impl Head {
    #[inline]
    fn of(name: &[u8]) -> Self {
        let bytes = match name.first_chunk() {
            Some(first) => u64::from_le_bytes(*first),
            None => name.iter().rev().fold(0, |bytes, &byte| bytes << 8 | u64::from(byte)),
        };
        Head { bytes: lower_case(bytes), n_bytes: name.len() }
    }

    #[inline]
    fn hash(self) -> usize {
        ((self.bytes ^ self.n_bytes as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize
    }

    /// Whether it is all of the name.
    #[inline]
    fn is_all(self) -> bool {
        self.n_bytes <= size_of::<u64>()
    }
}

/// Eight bytes with those from A to Z in lower case.
#[inline]
fn lower_case(bytes: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * EACH;
    // Without its highest bit no byte carries into the next.
    let low = bytes & !HIGH;
    let from_a = low + (0x80 - b'A' as u64) * EACH;
    let behind_z = low + (0x7f - b'Z' as u64) * EACH;
    let is_upper = (from_a ^ behind_z) & !bytes & HIGH;
    bytes | is_upper >> 2
}

/// All commands.
pub struct CommandTable {
    /// Open addressing over a power of two of places, at most a quarter full.
    places: Box<[Option<Place>]>,
    all: Vec<&'static Registered>,
    top: Vec<&'static Registered>,
    /// By full name, whatever they are called.
    originally: HashMap<&'static str, &'static Registered>,
}

impl CommandTable {
    /// Builds the table.
    pub(super) fn build(families: &[&'static [CommandSpec]], mut names: CalledNames) -> Self {
        let mut all = Vec::new();
        let mut top: Vec<&'static Registered> = Vec::new();
        for spec in families.iter().copied().flatten() {
            let called = names.remove(spec.name).unwrap_or_else(|| Some(spec.name.into()));
            let is_hidden = called.is_none();
            let parent = Parent { spec, id: command_id(all.len() + spec.subcommands.len()) };
            let mut subcommands = HashMap::new();
            for sub in spec.subcommands {
                let full_name = String::leak(format!("{}|{}", spec.name, sub.name));
                let names = Names { full_name, called: sub.name.as_bytes(), is_hidden };
                let sub = register(&mut all, sub, Some(&parent), names, HashMap::new());
                subcommands.insert(sub.spec.name, sub);
            }
            let called = Vec::leak(called.unwrap_or_default());
            let names = Names { full_name: spec.name, called, is_hidden };
            let command = register(&mut all, spec, None, names, subcommands);
            if !is_hidden {
                top.push(command);
            }
        }
        assert!(all.len() < N_COMMANDS_MAX, "rules of access control need a bit for each command");
        let mut places = vec![None; (top.len() * 4).next_power_of_two()].into_boxed_slice();
        for &command in &top {
            let head = Head::of(command.called);
            let mut place = head.hash() & (places.len() - 1);
            while places[place].is_some() {
                place = (place + 1) & (places.len() - 1);
            }
            places[place] = Some(Place { head, command });
        }
        let originally = all.iter().map(|&command| (command.full_name, command)).collect();
        Self { places, all, top, originally }
    }

    /// A command by the full name that it has without `rename-command`, in either case.
    pub fn originally(&self, full_name: &[u8]) -> Option<&'static Registered> {
        let full_name = full_name.to_ascii_lowercase();
        std::str::from_utf8(&full_name).ok().and_then(|name| self.originally.get(name)).copied()
    }

    /// Finds a command by the name alone by which it is called, in either case.
    #[inline]
    pub fn command(&self, name: &[u8]) -> Option<&'static Registered> {
        let wanted = Head::of(name);
        let mut place = wanted.hash() & (self.places.len() - 1);
        while let Some(Place { head, command }) = self.places[place] {
            if head == wanted && (head.is_all() || command.is_named(name)) {
                return Some(command);
            }
            place = (place + 1) & (self.places.len() - 1);
        }
        None
    }

    /// Finds what the first word, or the first two, of a command stand for.
    #[inline]
    pub fn find(&self, words: Words<'_>) -> Found {
        let Some(command) = self.command(words.get(0)) else { return Found::Unknown };
        if command.subcommands.is_empty() || words.len() < 2 {
            return Found::Command(command);
        }
        match self.subcommand(command, words.get(1)) {
            Some(sub) => Found::Command(sub),
            // COMMAND runs without a subcommand, but a second word must be one. DEBUG judges its words
            // itself.
            None if command.is_container() || command.spec.arity.admits(1) => {
                Found::UnknownSubcommand(command)
            }
            None => Found::Command(command),
        }
    }

    /// A subcommand by its name, in either case.
    pub fn subcommand(&self, command: &'static Registered, name: &[u8]) -> Option<&'static Registered> {
        let name = name.to_ascii_lowercase();
        std::str::from_utf8(&name).ok().and_then(|name| command.subcommands.get(name)).copied()
    }

    /// The command of a number.
    #[inline]
    pub fn get(&self, id: CommandId) -> &'static Registered {
        self.all[id.index()]
    }

    /// All commands, subcommands included, by their number.
    pub fn all(&self) -> &[&'static Registered] {
        &self.all
    }

    /// All commands that can be called, without subcommands.
    pub fn top(&self) -> &[&'static Registered] {
        &self.top
    }
}

/// What a command is called.
struct Names {
    full_name: &'static str,
    called: &'static [u8],
    is_hidden: bool,
}

/// A container whose subcommands are being registered.
struct Parent {
    spec: &'static CommandSpec,
    id: CommandId,
}

fn command_id(index: usize) -> CommandId {
    CommandId(u16::try_from(index).expect("there are fewer commands than that"))
}

fn register(
    all: &mut Vec<&'static Registered>,
    spec: &'static CommandSpec,
    parent: Option<&Parent>,
    names: Names,
    subcommands: HashMap<&'static str, &'static Registered>,
) -> &'static Registered {
    let Names { full_name, called, is_hidden } = names;
    let first_is_key =
        spec.keys.0.first().is_some_and(|keys| matches!(keys.at, KeysAt::Range { first: 1, .. }));
    let is_position = |keys: &KeySpec| matches!(keys.at, KeysAt::Range { .. });
    let declares_keys = matches!(spec.run, Run::Script(_));
    let names_all_keys = matches!(spec.run, Run::Transaction(_) | Run::InParts(_))
        && first_is_key
        && spec.roams.is_none()
        // What a subscription needs beside its channels depends on their names.
        && !spec.flags.has(Flags::WHILE_SUBSCRIBED)
        && spec.keys.0.iter().all(is_position);
    let id = command_id(all.len());
    // A row that runs, and not without a second word, judges that itself.
    let judging =
        |parent: &&Parent| !matches!(parent.spec.run, Run::Container) && !parent.spec.arity.admits(1);
    let judged = parent.filter(judging);
    let registered = Box::leak(Box::new(Registered {
        spec,
        id,
        parent: parent.map(|parent| parent.spec),
        full_name,
        called,
        is_hidden,
        first_is_key,
        only_key: only_key(spec),
        names_all_keys: names_all_keys || declares_keys,
        counts_as_parent: judged.is_some(),
        judged_as: judged.map_or(id, |parent| parent.id),
        judged_name: Box::leak(Box::new(judged.map_or(full_name, |parent| parent.spec.name))),
        subcommands,
    }));
    all.push(registered);
    registered
}

/// See [`Registered::only_key`].
fn only_key(spec: &CommandSpec) -> Option<KeyRights> {
    match spec.keys.0 {
        [KeySpec { at: KeysAt::Range { first: 1, last: 1, step: 1 }, used }] if used.is_key() => {
            (!used.depends_on_words()).then(|| used.rights(std::iter::empty()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::TABLE;

    #[test]
    fn bytes_become_lower_case_as_in_ascii() {
        for byte in 0..=u8::MAX {
            for other in [0, b'A', b'Z', b'[', b'@', 0x7f, 0x80, 0xff] {
                let mut bytes = [byte, other, byte, byte, other, byte, other, byte];
                let lower = lower_case(u64::from_le_bytes(bytes));
                bytes.make_ascii_lowercase();
                assert_eq!(lower.to_le_bytes(), bytes);
            }
        }
    }

    #[test]
    fn commands_are_found_in_either_case_and_no_others() {
        for &command in TABLE.top() {
            let upper = command.called.to_ascii_uppercase();
            for name in [command.called, &upper] {
                assert!(TABLE.command(name).is_some_and(|found| std::ptr::eq(found, command)));
            }
            for at in 0..upper.len() {
                let mut other = upper.clone();
                other[at] ^= 0x40;
                assert!(TABLE.command(&other).is_none(), "{}", other.escape_ascii());
            }
            assert!(TABLE.command(&[command.called, b"\0"].concat()).is_none());
        }
        assert!(TABLE.command(b"").is_none());
    }
}
