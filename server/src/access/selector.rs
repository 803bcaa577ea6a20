//! A selector: commands, keys and channels that may be used together.

use super::pattern::{Pattern, TextHead};
use super::rule::{RuleError, has_spaces};
use braid_protocol::number::parse_i64;
use braid_storage::entry::db::Db;

use crate::catalog::{Categories, Channels, CommandId, Databases, Denial, Flags, KeyRights, Keys, Words};

/// The capacity of the command bitmap.
pub const N_COMMANDS_MAX: usize = 1024;

/// The owner of the command table, which resolves names in rules.
pub trait Commands {
    /// The command with a name, including `container|subcommand`, in either case.
    fn named(&self, name: &[u8]) -> Option<NamedCommand>;
    /// Whether a category exists in some server, but not in this one.
    fn knows_category(&self, name: &[u8]) -> bool;
    /// Calls `each` with every command, its subcommands, and its categories.
    fn each(&self, each: &mut dyn FnMut(&[CommandId], Categories));
}

/// A command that a rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCommand {
    /// The full name in lower case, with its container.
    pub full_name: String,
    /// Its number, followed by those of its subcommands. It is empty for a command of Redis that is missing
    /// here: a rule about it changes nothing.
    pub ids: Vec<CommandId>,
    /// Its form, for rules that say more than its name.
    pub form: CommandForm,
}

/// The additions that rules may make to a command's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandForm {
    /// A command without subcommands: rules may add its first argument.
    Plain,
    /// A command with subcommands: rules may add one of them.
    Container,
    /// A subcommand: rules may add nothing.
    Subcommand,
}

/// A command whose rights are checked.
#[derive(Clone, Copy)]
pub struct CheckedCommand<'a> {
    /// Its number.
    pub id: CommandId,
    /// Its full name, for the refusal.
    pub full_name: &'static &'static str,
    /// Whether every user may run it.
    pub is_free: bool,
    /// The positions of its keys.
    pub keys: Keys,
    /// The positions of its channels.
    pub channels: Channels,
    /// Its properties.
    pub flags: Flags,
    /// The databases that it names.
    pub databases: Databases,
    /// The selected database.
    pub db: Db,
    /// The words of its request.
    pub words: Words<'a>,
}

/// A set of commands.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CommandSet([u64; N_COMMANDS_MAX / 64]);

impl CommandSet {
    const NONE: Self = Self([0; N_COMMANDS_MAX / 64]);
    const ALL: Self = Self([u64::MAX; N_COMMANDS_MAX / 64]);

    #[inline]
    fn has(&self, id: CommandId) -> bool {
        self.0[id.index() / 64] >> (id.index() % 64) & 1 == 1
    }

    fn set(&mut self, id: CommandId, is_in: bool) {
        let bit = 1 << (id.index() % 64);
        let word = &mut self.0[id.index() / 64];
        *word = if is_in { *word | bit } else { *word & !bit };
    }
}

impl CheckedCommand<'_> {
    /// Whether it uses the data of the selected database.
    fn uses_selected(&self) -> bool {
        self.flags.has(Flags::READONLY)
            || self.flags.has(Flags::WRITE)
            || self.keys.0.iter().any(|key| key.used.is_key())
    }
}

/// The databases that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DatabaseSet {
    All,
    /// These, in order.
    Some(Vec<u32>),
}

impl DatabaseSet {
    fn allows(&self, db: Db) -> bool {
        match self {
            DatabaseSet::All => true,
            DatabaseSet::Some(allowed) => allowed.binary_search(&db.0).is_ok(),
        }
    }

    /// Whether the word is the number of a database that may not be used. The command itself refuses a word
    /// that is none.
    fn denies(&self, word: &[u8]) -> bool {
        let number = parse_i64(word).and_then(|number| u32::try_from(number).ok());
        number.is_some_and(|number| !self.allows(Db(number)))
    }

    /// Reads the numbers of a rule, separated by commas.
    fn parse(numbers: &[u8]) -> Result<Self, RuleError> {
        let mut allowed = Vec::new();
        for word in numbers.split(|&byte| byte == b',') {
            let (digits, is_negative) = match word {
                [b'-', digits @ ..] => (digits, true),
                digits => (digits, false),
            };
            if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                return Err(RuleError::Syntax);
            }
            let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<i32>().ok());
            let number = number.filter(|_| !is_negative).ok_or(RuleError::DatabaseOutOfRange)?;
            allowed.push(number as u32);
        }
        allowed.sort_unstable();
        allowed.dedup();
        Ok(DatabaseSet::Some(allowed))
    }
}

/// Keys that match a pattern, with the rights to them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyPattern {
    rights: KeyRights,
    pattern: Pattern,
}

impl KeyPattern {
    fn describe(&self, out: &mut Vec<u8>) {
        let reads = self.rights.has(KeyRights::READ);
        let writes = self.rights.has(KeyRights::WRITE);
        out.extend_from_slice(match (reads, writes) {
            // `~*` would be another rule, after which no pattern may stand.
            (true, true) if self.pattern.is_star() => b"%RW~",
            (true, true) => b"~",
            (true, false) => b"%R~",
            (false, _) => b"%W~",
        });
        out.extend_from_slice(self.pattern.text());
    }
}

/// Commands, keys and channels that may be used together.
///
/// A user has one or more selectors. A command needs one that allows all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    commands: CommandSet,
    /// Whether `+@all` came last, without a later removal.
    allows_all_commands: bool,
    /// Whether [`Selector::describe_commands`] begins with `+@all`, and not with `-@all`.
    begins_with_all: bool,
    /// Commands that are allowed only with certain first arguments, in order. The arguments are in lower
    /// case.
    first_arguments: Vec<(CommandId, Box<[u8]>)>,
    /// The rules about commands after the first, as given. Later rules remove those that they make void.
    command_rules: Vec<Vec<u8>>,
    allows_all_keys: bool,
    key_patterns: Vec<KeyPattern>,
    allows_all_channels: bool,
    channel_patterns: Vec<Pattern>,
    databases: DatabaseSet,
}

impl Selector {
    /// Creates a selector that allows nothing, or only all channels.
    pub fn new(allows_all_channels: bool) -> Self {
        Self {
            commands: CommandSet::NONE,
            allows_all_commands: false,
            begins_with_all: false,
            first_arguments: Vec::new(),
            command_rules: Vec::new(),
            allows_all_keys: false,
            key_patterns: Vec::new(),
            allows_all_channels,
            channel_patterns: Vec::new(),
            databases: DatabaseSet::All,
        }
    }

    /// Whether it allows everything.
    pub fn allows_everything(&self) -> bool {
        self.allows_all_commands
            && self.allows_all_keys
            && self.allows_all_channels
            && self.allows_all_databases()
    }

    /// Whether it allows all channels.
    pub fn allows_all_channels(&self) -> bool {
        self.allows_all_channels
    }

    /// Whether it allows all databases.
    pub fn allows_all_databases(&self) -> bool {
        self.databases == DatabaseSet::All
    }

    /// The patterns of its channels.
    pub fn channel_patterns(&self) -> &[Pattern] {
        &self.channel_patterns
    }

    /// Checks a command.
    ///
    /// # Errors
    /// The first denied part.
    pub fn check(&self, asked: &CheckedCommand<'_>) -> Result<(), Denial> {
        if !self.allows_command(asked) {
            return Err(Denial::Command(asked.full_name));
        }
        if let Some(at) = self.forbidden_database(asked) {
            return Err(Denial::Database(at));
        }
        if let Some(at) = self.forbidden_key(asked) {
            return Err(Denial::Key(at));
        }
        match self.forbidden_channel(asked) {
            Some(at) => Err(Denial::Channel(at)),
            None => Ok(()),
        }
    }

    fn allows_command(&self, asked: &CheckedCommand<'_>) -> bool {
        if self.allows_all_commands || asked.is_free || self.commands.has(asked.id) {
            return true;
        }
        asked.words.len() > 1
            && self
                .first_arguments
                .iter()
                .any(|(id, argument)| *id == asked.id && asked.words.get(1).eq_ignore_ascii_case(argument))
    }

    /// Whether its rights to commands depend on neither their words nor the selected database.
    pub(super) fn judges_commands_by_name(&self) -> bool {
        self.first_arguments.is_empty() && self.allows_all_databases()
    }

    /// The position of the first database that it denies, as in [`Denial::Database`].
    fn forbidden_database(&self, asked: &CheckedCommand<'_>) -> Option<usize> {
        if self.allows_all_databases() {
            return None;
        }
        let words = asked.words;
        let is_denied = |at: usize| at < words.len() && self.databases.denies(words.get(at));
        let named = match asked.databases {
            Databases::Selected => None,
            Databases::All => Some(0),
            Databases::Words(places) => places.iter().copied().find(|&at| is_denied(at)),
            Databases::AfterDb(first) => {
                let named = (first..words.len()).filter(|&at| words.get(at).eq_ignore_ascii_case(b"db"));
                named.map(|at| at + 1).find(|&at| is_denied(at))
            }
        };
        named.or_else(|| (asked.uses_selected() && !self.databases.allows(asked.db)).then_some(0))
    }

    /// The position of the first key that it denies.
    #[inline]
    pub(super) fn forbidden_key(&self, asked: &CheckedCommand<'_>) -> Option<usize> {
        if self.allows_all_keys {
            return None;
        }
        let words = asked.words;
        let mut forbidden = None;
        asked.keys.possible_positions(
            words.len(),
            |at| words.get(at),
            |at, used| {
                let needed = used.rights(words.iter());
                if forbidden.is_none() && used.is_key() && !self.allows_key(words.get(at), needed) {
                    forbidden = Some(at);
                }
            },
        );
        forbidden
    }

    /// Whether it allows an action on a key.
    #[inline(always)]
    pub fn allows_key(&self, key: &[u8], needed: KeyRights) -> bool {
        let head = TextHead::of(key);
        for allowed in &self.key_patterns {
            if allowed.pattern.matches(key, head) && allowed.rights.has(needed) {
                return true;
            }
        }
        self.allows_all_keys
    }

    /// Whether it allows an action on any key.
    pub(super) fn allows_any_key(&self, needed: KeyRights) -> bool {
        let is_any = |allowed: &KeyPattern| allowed.rights.has(needed) && allowed.pattern.is_star();
        self.allows_all_keys || self.key_patterns.iter().any(is_any)
    }

    fn forbidden_channel(&self, asked: &CheckedCommand<'_>) -> Option<usize> {
        if self.allows_all_channels {
            return None;
        }
        let words = asked.words;
        let (n_checked, is_pattern) = match asked.channels {
            Channels::None => return None,
            Channels::First => (2, false),
            Channels::All => (words.len(), false),
            Channels::Patterns => (words.len(), true),
        };
        (1..n_checked.min(words.len()))
            .find(|&at| !allows_channel(&self.channel_patterns, words.get(at), is_pattern))
    }
}

/// Whether one of some patterns allows a channel. A pattern of channels must equal one of them, letter for
/// letter.
pub(super) fn allows_channel<'p>(
    patterns: impl IntoIterator<Item = &'p Pattern>,
    channel: &[u8],
    is_pattern: bool,
) -> bool {
    let head = TextHead::of(channel);
    patterns.into_iter().any(|pattern| match is_pattern {
        true => pattern.text() == channel,
        false => pattern.matches(channel, head),
    })
}

/// The rules of a selector.
impl Selector {
    /// Applies a rule about commands, keys or channels.
    ///
    /// # Errors
    /// If it is no rule, or makes no sense here. Then nothing has changed.
    pub fn apply(&mut self, rule: &[u8], commands: &dyn Commands) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        if is("allkeys") || is("~*") {
            self.allows_all_keys = true;
            self.key_patterns.clear();
        } else if is("resetkeys") {
            self.allows_all_keys = false;
            self.key_patterns.clear();
        } else if is("allchannels") || is("&*") {
            self.allows_all_channels = true;
            self.channel_patterns.clear();
        } else if is("resetchannels") {
            self.allows_all_channels = false;
            self.channel_patterns.clear();
        } else if is("alldbs") {
            self.databases = DatabaseSet::All;
        } else if is("resetdbs") {
            self.databases = DatabaseSet::Some(Vec::new());
        } else if is("allcommands") || is("+@all") {
            self.begin_commands(true);
        } else if is("nocommands") || is("-@all") {
            self.begin_commands(false);
        } else {
            return match rule {
                [b'd' | b'D', b'b' | b'B', b'=', numbers @ ..] => {
                    self.databases = DatabaseSet::parse(numbers)?;
                    Ok(())
                }
                [b'~', pattern @ ..] => self.add_keys(KeyRights::READ.and(KeyRights::WRITE), pattern),
                [b'%', rest @ ..] => self.add_keys_with_rights(rest),
                [b'&', pattern @ ..] => self.add_channels(pattern),
                [sign @ (b'+' | b'-'), b'@', category @ ..] => {
                    self.apply_category(*sign == b'+', category, commands)
                }
                [b'+', name @ ..] => self.allow(name, commands),
                [b'-', name @ ..] => self.forbid(name, commands),
                _ => Err(RuleError::Syntax),
            };
        }
        Ok(())
    }

    fn begin_commands(&mut self, with_all: bool) {
        self.commands = if with_all { CommandSet::ALL } else { CommandSet::NONE };
        self.allows_all_commands = with_all;
        self.begins_with_all = with_all;
        self.first_arguments.clear();
        self.command_rules.clear();
    }

    fn add_keys_with_rights(&mut self, rest: &[u8]) -> Result<(), RuleError> {
        if self.allows_all_keys {
            return Err(RuleError::KeysBehindAll);
        }
        let mut rights = KeyRights::NONE;
        let mut rest = rest.iter();
        for &letter in rest.by_ref() {
            let right = match letter.to_ascii_uppercase() {
                b'R' => KeyRights::READ,
                b'W' => KeyRights::WRITE,
                b'~' if rights != KeyRights::NONE => return self.add_keys(rights, rest.as_slice()),
                _ => return Err(RuleError::Syntax),
            };
            if rights.has(right) {
                return Err(RuleError::Syntax);
            }
            rights = rights.and(right);
        }
        Err(RuleError::Syntax)
    }

    fn add_keys(&mut self, rights: KeyRights, pattern: &[u8]) -> Result<(), RuleError> {
        if self.allows_all_keys {
            return Err(RuleError::KeysBehindAll);
        }
        if has_spaces(pattern) {
            return Err(RuleError::Syntax);
        }
        match self.key_patterns.iter_mut().find(|known| known.pattern.text() == pattern) {
            Some(known) => known.rights = known.rights.and(rights),
            None => self.key_patterns.push(KeyPattern { rights, pattern: Pattern::new(pattern) }),
        }
        Ok(())
    }

    fn add_channels(&mut self, pattern: &[u8]) -> Result<(), RuleError> {
        if self.allows_all_channels {
            return Err(RuleError::ChannelsBehindAll);
        }
        if has_spaces(pattern) {
            return Err(RuleError::Syntax);
        }
        if !self.channel_patterns.iter().any(|known| known.text() == pattern) {
            self.channel_patterns.push(Pattern::new(pattern));
        }
        Ok(())
    }

    fn apply_category(&mut self, allow: bool, name: &[u8], commands: &dyn Commands) -> Result<(), RuleError> {
        match Categories::named(name) {
            Some(category) => commands.each(&mut |ids, categories| {
                if categories.has(category) {
                    self.change(ids, allow);
                }
            }),
            None if commands.knows_category(name) => {}
            None => return Err(RuleError::Unknown),
        }
        self.note_rule(allow, &[b"@", name].concat());
        Ok(())
    }

    fn allow(&mut self, name: &[u8], commands: &dyn Commands) -> Result<(), RuleError> {
        let Some(bar) = name.iter().rposition(|&byte| byte == b'|') else {
            let command = commands.named(name).ok_or(RuleError::Unknown)?;
            self.change(&command.ids, true);
            self.note_rule(true, command.full_name.as_bytes());
            return Ok(());
        };
        let (of, rest) = (&name[..bar], &name[bar + 1..]);
        let command = commands.named(of).ok_or(RuleError::Unknown)?;
        match command.form {
            CommandForm::Subcommand => return Err(RuleError::ArgumentOfSubcommand),
            _ if rest.is_empty() || has_spaces(rest) => return Err(RuleError::Syntax),
            CommandForm::Container => {
                let sub = commands.named(name).ok_or(RuleError::Unknown)?;
                self.change(&sub.ids, true);
            }
            CommandForm::Plain => {
                if let Some(&id) = command.ids.first() {
                    self.allow_with_first(id, rest);
                }
            }
        }
        self.note_rule(true, name);
        Ok(())
    }

    fn forbid(&mut self, name: &[u8], commands: &dyn Commands) -> Result<(), RuleError> {
        let command = commands.named(name).ok_or(RuleError::Unknown)?;
        self.change(&command.ids, false);
        self.note_rule(false, command.full_name.as_bytes());
        Ok(())
    }

    /// Allows or denies a command and its subcommands.
    fn change(&mut self, ids: &[CommandId], allow: bool) {
        for &id in ids {
            self.commands.set(id, allow);
        }
        self.allows_all_commands &= allow;
        // As in Redis, earlier rules about a subcommand's arguments would stay. There are no such rules.
        if let Some(first) = ids.first() {
            self.first_arguments.retain(|(id, _)| id != first);
        }
    }

    fn allow_with_first(&mut self, id: CommandId, argument: &[u8]) {
        let argument = argument.to_ascii_lowercase().into_boxed_slice();
        let allowed = (id, argument);
        if let Err(at) = self.first_arguments.binary_search(&allowed) {
            self.first_arguments.insert(at, allowed);
        }
    }

    /// Keeps a rule about commands. It replaces those about the same command or its subcommands.
    fn note_rule(&mut self, allow: bool, what: &[u8]) {
        let what = what.to_ascii_lowercase();
        self.command_rules.retain(|rule| {
            let about = &rule[1..];
            let is_covered =
                about.strip_prefix(&what[..]).is_some_and(|rest| matches!(rest, [] | [b'|', ..]));
            !is_covered
        });
        let sign = if allow { b'+' } else { b'-' };
        self.command_rules.push([&[sign], &what[..]].concat());
    }
}

/// The description of a selector, in rules that make it again.
impl Selector {
    /// The rules about commands.
    pub fn describe_commands(&self) -> Vec<u8> {
        let mut out = if self.begins_with_all { b"+@all".to_vec() } else { b"-@all".to_vec() };
        for rule in &self.command_rules {
            out.push(b' ');
            out.extend_from_slice(rule);
        }
        out
    }

    /// The patterns of keys.
    pub fn describe_keys(&self) -> Vec<u8> {
        if self.allows_all_keys {
            return b"~*".to_vec();
        }
        let mut out = Vec::new();
        for (nth, keys) in self.key_patterns.iter().enumerate() {
            if nth > 0 {
                out.push(b' ');
            }
            keys.describe(&mut out);
        }
        out
    }

    /// The patterns of channels.
    pub fn describe_channels(&self) -> Vec<u8> {
        if self.allows_all_channels {
            return b"&*".to_vec();
        }
        let with_sign = |pattern: &Pattern| [b"&", pattern.text()].concat();
        self.channel_patterns.iter().map(with_sign).collect::<Vec<_>>().join(&b' ')
    }

    /// The rule about databases; empty if all are allowed.
    pub fn describe_databases(&self) -> Vec<u8> {
        match &self.databases {
            DatabaseSet::All => Vec::new(),
            DatabaseSet::Some(allowed) if allowed.is_empty() => b"resetdbs".to_vec(),
            DatabaseSet::Some(allowed) => {
                let numbers: Vec<String> = allowed.iter().map(u32::to_string).collect();
                format!("db={}", numbers.join(",")).into_bytes()
            }
        }
    }

    /// All rules.
    pub fn describe(&self) -> Vec<u8> {
        let mut parts = Vec::new();
        let keys = self.describe_keys();
        if !keys.is_empty() {
            parts.push(keys);
        }
        if !self.allows_all_channels {
            parts.push(b"resetchannels".to_vec());
        }
        let channels = self.describe_channels();
        if !channels.is_empty() {
            parts.push(channels);
        }
        let databases = self.describe_databases();
        if !databases.is_empty() {
            parts.push(databases);
        }
        parts.push(self.describe_commands());
        parts.join(&b' ')
    }
}
