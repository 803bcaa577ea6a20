//! The command table: the rows of every family, found by name.

pub(super) mod acl_names;
pub(super) mod categories;
mod documented;
pub(super) mod introspection;
pub(super) mod renames;
pub(super) mod script_key_specs;
pub(super) mod spec;
pub(super) mod syntax;

use std::collections::HashMap;

use braid_storage::{
    entry::db::Db,
    table::hash::{Routed, Router},
};

use super::{CommandSpec, Run};
use crate::{
    access::{CheckedCommand, N_COMMANDS_MAX},
    catalog::{Args, CommandId, Flags, KeyRights, KeySpec, KeysAt, Words},
    command::table::renames::CalledNames,
};

/// A row of the table, with facts derived from its position there.
pub struct Registered {
    /// The row in its family.
    pub spec: &'static CommandSpec,
    /// Its number, from 0 without gaps, subcommands included. It is the index of its statistics.
    pub id: CommandId,
    /// The container of a subcommand.
    pub parent: Option<&'static CommandSpec>,
    /// The full name, such as `get` or `client|list`.
    pub full_name: &'static str,
    /// The name that clients use: its own, unless `rename-command` sets another.
    pub called: &'static [u8],
    /// Whether `rename-command` has removed it or its container.
    pub is_hidden: bool,
    /// Whether its first argument is a key.
    pub first_is_key: bool,
    /// The right that it needs to its first argument, if other words do not matter.
    ///
    /// It is `None` unless the first argument is its only key.
    pub only_key: Option<KeyRights>,
    /// Whether it has many keys, all with known positions, or declares keys for a script.
    pub names_all_keys: bool,
    /// Whether it is an argument of its container in Redis. Its container then counts it in its statistics.
    pub counts_as_parent: bool,
    /// The number by which access control knows it. Its name there is `judged_name`.
    ///
    /// Both are those of the container, if that counts the subcommand.
    pub judged_as: CommandId,
    judged_name: &'static &'static str,
    subcommands: HashMap<&'static str, &'static Registered>,
}

impl Registered {
    /// Whether it has all these flags.
    #[inline]
    pub fn has(&self, flags: Flags) -> bool {
        self.spec.flags.has(flags)
    }

    /// Whether it has any of these flags.
    #[inline]
    pub fn has_any(&self, flags: Flags) -> bool {
        self.spec.flags.has_any(flags)
    }

    /// Whether a word is the name that clients use, in either case.
    #[inline]
    pub fn is_named(&self, word: &[u8]) -> bool {
        self.called.eq_ignore_ascii_case(word)
    }

    /// Whether its second word may name a subcommand.
    #[inline]
    pub fn has_subcommands(&self) -> bool {
        !self.subcommands.is_empty()
    }

    /// Returns its subcommands, in the order of their numbers.
    pub fn subcommands(&self) -> impl Iterator<Item = &'static Registered> {
        let mut all: Vec<_> = self.subcommands.values().copied().collect();
        all.sort_unstable_by_key(|sub| sub.id);
        all.into_iter()
    }

    /// Returns the rows whose statistics belong to it: usually only itself.
    pub fn counted(&'static self) -> impl Iterator<Item = &'static Registered> + Clone {
        let parts = self.subcommands.values().copied().filter(|sub| sub.counts_as_parent);
        std::iter::once(self).filter(|command| !command.counts_as_parent).chain(parts)
    }

    /// Returns the facts that access control needs about a command with these words.
    ///
    /// The database `db` is selected.
    #[inline(always)]
    pub fn asked<'w>(&self, words: Words<'w>, db: Db) -> CheckedCommand<'w> {
        CheckedCommand {
            id: self.judged_as,
            full_name: self.judged_name,
            is_free: self.has(Flags::NO_AUTH),
            keys: self.spec.keys,
            channels: self.spec.channels,
            flags: self.spec.flags,
            databases: self.spec.databases,
            db,
            words,
        }
    }

    /// Returns a cursor over its arguments, after its name.
    pub fn args<'w>(&self, words: Words<'w>, router: &'w Router, first: Option<Routed>) -> Args<'w> {
        let args = Args::new(words, router, first);
        if self.parent.is_some() { args.after_subcommand() } else { args }
    }

    /// Whether it runs the queue of the client's transaction.
    ///
    /// Its needs and rights then include those of the queued commands.
    #[inline]
    pub fn runs_queue(&self) -> bool {
        matches!(self.spec.run, Run::Queue)
    }

    /// Whether tracking remembers its keys. For a script it remembers the keys that the script's commands
    /// read.
    #[inline]
    pub fn reads_its_keys(&self) -> bool {
        self.has(Flags::READONLY) && !matches!(self.spec.run, Run::Script(_))
    }

    /// Whether it runs a script that may write.
    #[inline]
    pub fn runs_script(&self) -> bool {
        matches!(self.spec.run, Run::Script(_)) && !self.has(Flags::READONLY)
    }

    /// Whether it only contains subcommands.
    pub fn is_container(&self) -> bool {
        matches!(self.spec.run, Run::Container)
    }
}

/// The result of looking up a name.
pub enum Found {
    /// A command, or a subcommand.
    Command(&'static Registered),
    /// A container without a subcommand of this name.
    UnknownSubcommand(&'static Registered),
    /// No command has this name.
    Unknown,
}

impl Found {
    /// Whether both are the same command.
    #[inline]
    pub fn is_same(&self, other: &Self) -> bool {
        matches!((self, other), (Found::Command(a), Found::Command(b)) if std::ptr::eq(*a, *b))
    }
}

/// A command in the hash table of names.
#[derive(Clone, Copy)]
struct NameSlot {
    /// The beginning and length of the name, which distinguish most names.
    head: NameHead,
    command: &'static Registered,
}

/// The first eight bytes of a name in lower case, and its length.
#[derive(Clone, Copy, PartialEq, Eq)]
struct NameHead {
    bytes: u64,
    n_bytes: usize,
}

impl NameHead {
    #[inline]
    fn of(name: &[u8]) -> Self {
        let bytes = match name.first_chunk() {
            Some(first) => u64::from_le_bytes(*first),
            None => name.iter().rev().fold(0, |bytes, &byte| bytes << 8 | u64::from(byte)),
        };
        NameHead { bytes: lower_case(bytes), n_bytes: name.len() }
    }

    #[inline]
    fn hash(self) -> usize {
        ((self.bytes ^ self.n_bytes as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize
    }

    /// Whether it contains the whole name.
    #[inline]
    fn is_all(self) -> bool {
        self.n_bytes <= size_of::<u64>()
    }
}

/// Converts the bytes from A to Z among eight bytes to lower case.
#[inline]
fn lower_case(bytes: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * EACH;
    // Without its highest bit no byte carries into the next one.
    let low = bytes & !HIGH;
    let from_a = low + (0x80 - b'A' as u64) * EACH;
    let behind_z = low + (0x7f - b'Z' as u64) * EACH;
    let is_upper = (from_a ^ behind_z) & !bytes & HIGH;
    bytes | is_upper >> 2
}

/// All commands, found by name or number.
pub struct CommandTable {
    /// A hash table with open addressing. Its size is a power of two, and at most a quarter is used.
    places: Box<[Option<NameSlot>]>,
    all: Vec<&'static Registered>,
    top: Vec<&'static Registered>,
    /// Commands by full name, regardless of `rename-command`.
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
            let head = NameHead::of(command.called);
            let mut place = head.hash() & (places.len() - 1);
            while places[place].is_some() {
                place = (place + 1) & (places.len() - 1);
            }
            places[place] = Some(NameSlot { head, command });
        }
        let originally = all.iter().map(|&command| (command.full_name, command)).collect();
        Self { places, all, top, originally }
    }

    /// Finds the command of a log by its words.
    ///
    /// A log has the names that clients used, and the commands' own names where the server has written
    /// them. A name that `rename-command` gave to another command stands for that one.
    pub fn find_logged(&self, words: Words<'_>) -> Found {
        let found = self.find(words);
        if !matches!(found, Found::Unknown) {
            return found;
        }
        let Some(command) = self.originally(words.get(0)) else { return found };
        if words.len() < 2 {
            return Found::Command(command);
        }
        Found::Command(self.subcommand(command, words.get(1)).unwrap_or(command))
    }

    /// Returns a command by its original full name, in either case.
    pub fn originally(&self, full_name: &[u8]) -> Option<&'static Registered> {
        let full_name = full_name.to_ascii_lowercase();
        std::str::from_utf8(&full_name).ok().and_then(|name| self.originally.get(name)).copied()
    }

    /// Finds a command by the name that clients use, in either case.
    #[inline]
    pub fn command(&self, name: &[u8]) -> Option<&'static Registered> {
        let wanted = NameHead::of(name);
        let mut place = wanted.hash() & (self.places.len() - 1);
        while let Some(NameSlot { head, command }) = self.places[place] {
            if head == wanted && (head.is_all() || command.is_named(name)) {
                return Some(command);
            }
            place = (place + 1) & (self.places.len() - 1);
        }
        None
    }

    /// Finds the command that the first word, or the first two words, name.
    #[inline]
    pub fn find(&self, words: Words<'_>) -> Found {
        let Some(command) = self.command(words.get(0)) else { return Found::Unknown };
        if command.subcommands.is_empty() || words.len() < 2 {
            return Found::Command(command);
        }
        match self.subcommand(command, words.get(1)) {
            Some(sub) => Found::Command(sub),
            // COMMAND runs without a subcommand, but a second word must name one. DEBUG checks its words
            // itself.
            None if command.is_container() || command.spec.arity.admits(1) => {
                Found::UnknownSubcommand(command)
            }
            None => Found::Command(command),
        }
    }

    /// Finds a subcommand by its name, in either case.
    pub fn subcommand(&self, command: &'static Registered, name: &[u8]) -> Option<&'static Registered> {
        let name = name.to_ascii_lowercase();
        std::str::from_utf8(&name).ok().and_then(|name| command.subcommands.get(name)).copied()
    }

    /// Returns the command with this number.
    #[inline]
    pub fn get(&self, id: CommandId) -> &'static Registered {
        self.all[id.index()]
    }

    /// Returns all commands, subcommands included, by number.
    pub fn all(&self) -> &[&'static Registered] {
        &self.all
    }

    /// Returns all commands that can be called, without subcommands.
    pub fn top(&self) -> &[&'static Registered] {
        &self.top
    }
}

/// The names of a command.
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
        // The shards of a subscription depend on the names of its channels.
        && !spec.flags.has(Flags::WHILE_SUBSCRIBED)
        && spec.keys.0.iter().all(is_position);
    let id = command_id(all.len());
    // A row that runs, but only with a second word, checks that word itself.
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
