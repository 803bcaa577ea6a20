//! A user: passwords and selectors.

use std::sync::Arc;

use super::password::PasswordHash;
use super::pattern::Pattern;
use super::rule::{RuleError, UserError, merge};
use super::selector::{CheckedCommand, Commands, Selector, allows_channel};
use crate::catalog::{Channels, Denial, KeyRights};
use crate::config::split;

/// The user of a connection until it authenticates as another one.
pub const DEFAULT_USER: &[u8] = b"default";

/// A user's name.
pub type UserName = Arc<[u8]>;

/// Whether the payload of RESTORE is checked closely. Braid always does that, and only keeps the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sanitize {
    Unsaid,
    Yes,
    Skip,
}

/// A property that is listed by its word.
pub type UserFlag = &'static str;

/// A user.
#[derive(Clone, Debug)]
pub struct User {
    name: UserName,
    /// The user's number. No two users have the same, whatever their names and lifetimes.
    serial: u64,
    is_on: bool,
    needs_no_password: bool,
    sanitize: Sanitize,
    passwords: Vec<PasswordHash>,
    /// The first selector is the user's own. Rules without parentheses change it.
    selectors: Vec<Selector>,
    /// Whether a new selector allows all channels.
    new_allows_all_channels: bool,
}

impl User {
    /// Creates a disabled user without rights, or only with the right to all channels.
    pub fn new(name: &[u8], serial: u64, new_allows_all_channels: bool) -> Self {
        Self {
            name: name.into(),
            serial,
            is_on: false,
            needs_no_password: false,
            sanitize: Sanitize::Unsaid,
            passwords: Vec::new(),
            selectors: vec![Selector::new(new_allows_all_channels)],
            new_allows_all_channels,
        }
    }

    /// The same user, with another default for new selectors and for `reset`.
    pub fn with_default(&self, new_allows_all_channels: bool) -> Self {
        Self { new_allows_all_channels, ..self.clone() }
    }

    /// The same user with another number.
    pub fn with_serial(&self, serial: u64) -> Self {
        Self { serial, ..self.clone() }
    }

    /// The name.
    pub fn name(&self) -> &UserName {
        &self.name
    }

    /// The number that distinguishes the user from others who have had the name.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Whether clients may authenticate as the user.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether any password is accepted.
    pub fn needs_no_password(&self) -> bool {
        self.needs_no_password
    }

    /// Whether a client may be the user without authentication.
    pub fn is_open(&self) -> bool {
        self.is_on && self.needs_no_password
    }

    /// Whether clients may authenticate as the user with a password.
    pub fn admits(&self, password: &[u8]) -> bool {
        let given = PasswordHash::of(password);
        // All are compared, so that the time does not reveal which one matches.
        let fits = self.passwords.iter().fold(false, |any, known| any | (*known == given));
        self.is_on & (self.needs_no_password | fits)
    }

    /// Whether the user may do everything, so that no check is needed.
    pub fn may_do_everything(&self) -> bool {
        self.selectors.iter().any(Selector::allows_everything)
    }

    /// The flags, in Redis's order.
    pub fn flags(&self) -> Vec<UserFlag> {
        let mut flags = vec![if self.is_on { "on" } else { "off" }];
        if self.needs_no_password {
            flags.push("nopass");
        }
        match self.sanitize {
            Sanitize::Unsaid => {}
            Sanitize::Yes => flags.push("sanitize-payload"),
            Sanitize::Skip => flags.push("skip-sanitize-payload"),
        }
        flags
    }

    /// The passwords.
    pub fn passwords(&self) -> &[PasswordHash] {
        &self.passwords
    }

    /// Whether some selector has a rule about databases.
    pub fn has_database_rules(&self) -> bool {
        !self.selectors.iter().all(Selector::allows_all_databases)
    }

    /// The user's own selector.
    pub fn own_selector(&self) -> &Selector {
        &self.selectors[0]
    }

    /// The selectors that were added in parentheses.
    pub fn added_selectors(&self) -> &[Selector] {
        &self.selectors[1..]
    }

    /// Returns the rules that make the user.
    pub fn describe(&self) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = self.flags().into_iter().map(|flag| flag.as_bytes().to_vec()).collect();
        parts.extend(self.passwords.iter().map(|password| format!("#{password}").into_bytes()));
        parts.push(self.own_selector().describe());
        parts.extend(
            self.added_selectors().iter().map(|selector| [b"(", &selector.describe()[..], b")"].concat()),
        );
        parts.join(&b' ')
    }

    /// Whether the other user has the same passwords and rights.
    pub fn is_like(&self, other: &User) -> bool {
        self.name == other.name
            && self.flags() == other.flags()
            && self.passwords == other.passwords
            && self.selectors == other.selectors
    }
}

/// The rights of a user.
impl User {
    /// Checks a command. One selector must allow all of it.
    ///
    /// # Errors
    /// The denied part: the command, if no selector allows it; otherwise the last denied key or channel.
    pub fn check(&self, asked: &CheckedCommand<'_>) -> Result<(), Denial> {
        let mut worst = Denial::Command(asked.full_name);
        for selector in &self.selectors {
            match selector.check(asked) {
                Ok(()) => return Ok(()),
                Err(denial) => {
                    if order(denial) > order(worst) {
                        worst = denial;
                    }
                }
            }
        }
        Err(worst)
    }

    /// Whether a command may run like one that [`User::check`] has allowed.
    ///
    /// It is the same command with equally many words.
    ///
    /// The result `false` proves nothing.
    #[inline]
    pub fn allows_another(&self, asked: &CheckedCommand<'_>) -> bool {
        match &self.selectors[..] {
            [only] if only.judges_commands_by_name() && asked.channels == Channels::None => {
                only.forbidden_key(asked).is_none()
            }
            _ => self.check(asked).is_ok(),
        }
    }

    /// Returns the user's selector, if it is the only one and ignores first arguments.
    ///
    /// A command that equals one allowed by [`User::check`] then depends only on the keys that the selector
    /// [allows](Selector::allows_key).
    #[inline(always)]
    pub fn only_selector(&self) -> Option<&Selector> {
        match &self.selectors[..] {
            [only] if only.judges_commands_by_name() => Some(only),
            _ => None,
        }
    }

    /// Whether a command may run, and do this with any unnamed key.
    pub fn allows_with_any_key(&self, asked: &CheckedCommand<'_>, needed: KeyRights) -> bool {
        self.selectors.iter().any(|selector| selector.check(asked).is_ok() && selector.allows_any_key(needed))
    }

    /// Whether the user may still use a subscribed channel or pattern of a client.
    pub fn allows_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        self.allows_all_channels() || allows_channel(self.channel_patterns(), channel, is_pattern)
    }

    /// Whether the user may use all channels that `before` could use. Then no subscriber needs a check.
    pub fn keeps_channels_of(&self, before: &User) -> bool {
        let has = |pattern: &Pattern| self.channel_patterns().any(|own| own.text() == pattern.text());
        self.allows_all_channels() || !before.allows_all_channels() && before.channel_patterns().all(has)
    }

    fn allows_all_channels(&self) -> bool {
        self.selectors.iter().any(Selector::allows_all_channels)
    }

    fn channel_patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.selectors.iter().flat_map(Selector::channel_patterns)
    }
}

/// Ranks a denial. The reported one comes from the selector that allowed most.
fn order(denial: Denial) -> (u8, usize) {
    match denial {
        Denial::Command(_) => (0, 0),
        Denial::Database(at) => (1, at),
        Denial::Key(at) => (2, at),
        Denial::Channel(at) => (3, at),
    }
}

/// The rules of a user.
impl User {
    /// Applies rules in order.
    ///
    /// # Errors
    /// The first refused rule. The user is then of no use.
    pub fn apply_all<W: AsRef<[u8]>>(
        &mut self,
        rules: &[W],
        commands: &dyn Commands,
    ) -> Result<(), UserError> {
        for rule in merge(rules)? {
            self.apply(&rule, commands).map_err(|why| UserError::Rule(rule, why))?;
        }
        Ok(())
    }

    /// Applies one rule.
    ///
    /// # Errors
    /// If it is no rule, or makes no sense here. Then nothing has changed.
    pub fn apply(&mut self, rule: &[u8], commands: &dyn Commands) -> Result<(), RuleError> {
        match rule {
            b"" => return Ok(()),
            [b'>', password @ ..] => self.add_password(PasswordHash::of(password)),
            [b'#', digits @ ..] => self.add_password(PasswordHash::parse(digits).ok_or(RuleError::BadHash)?),
            [b'<', password @ ..] => return self.remove_password(PasswordHash::of(password)),
            [b'!', digits @ ..] => {
                return self.remove_password(PasswordHash::parse(digits).ok_or(RuleError::BadHash)?);
            }
            [b'(', inner @ .., b')'] => self.add_selector(inner, commands)?,
            _ => return self.apply_word(rule, commands),
        }
        Ok(())
    }

    fn apply_word(&mut self, rule: &[u8], commands: &dyn Commands) -> Result<(), RuleError> {
        match &rule.to_ascii_lowercase()[..] {
            b"on" => self.is_on = true,
            b"off" => self.is_on = false,
            b"sanitize-payload" => self.sanitize = Sanitize::Yes,
            b"skip-sanitize-payload" => self.sanitize = Sanitize::Skip,
            b"nopass" => {
                self.needs_no_password = true;
                self.passwords.clear();
            }
            b"resetpass" => {
                self.needs_no_password = false;
                self.passwords.clear();
            }
            b"clearselectors" => self.selectors.truncate(1),
            b"reset" => {
                let fresh = User::new(&self.name, self.serial, self.new_allows_all_channels);
                *self = User { sanitize: Sanitize::Yes, ..fresh };
            }
            _ => return self.selectors[0].apply(rule, commands),
        }
        Ok(())
    }

    fn add_password(&mut self, hash: PasswordHash) {
        if !self.passwords.contains(&hash) {
            self.passwords.push(hash);
        }
        self.needs_no_password = false;
    }

    fn remove_password(&mut self, hash: PasswordHash) -> Result<(), RuleError> {
        let at = self.passwords.iter().position(|known| *known == hash).ok_or(RuleError::NoSuchPassword)?;
        self.passwords.remove(at);
        Ok(())
    }

    fn add_selector(&mut self, inner: &[u8], commands: &dyn Commands) -> Result<(), RuleError> {
        // The text after a zero byte would be dropped silently.
        if inner.contains(&0) {
            return Err(RuleError::Syntax);
        }
        let mut selector = Selector::new(self.new_allows_all_channels);
        for rule in split(inner).ok_or(RuleError::Syntax)? {
            // `split` would interpret quotes in a description, and take this parenthesis for the end of the
            // selector.
            if rule.iter().any(|byte| matches!(byte, b'"' | b'\'')) || rule.ends_with(b")") {
                return Err(RuleError::Syntax);
            }
            selector.apply(&rule, commands)?;
        }
        self.selectors.push(selector);
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use braid_protocol::request::Arg;
    use braid_storage::entry::db::Db;

    use super::super::selector::{CommandForm, NamedCommand};
    use super::*;
    use crate::catalog::{Categories, CommandId, Databases, Flags, KeySpec, KeyUse, Keys, KeysAt, Words};

    /// GET, MGET, SET, CONFIG with two subcommands, PUBLISH and PSUBSCRIBE.
    pub struct Few;

    const NAMES: [(&str, Categories); 8] = [
        ("get", Categories::READ),
        ("mget", Categories::READ),
        ("set", Categories::WRITE),
        ("config", Categories::NONE),
        ("config|get", Categories::ADMIN),
        ("config|set", Categories::ADMIN),
        ("publish", Categories::PUBSUB),
        ("psubscribe", Categories::PUBSUB),
    ];

    impl Commands for Few {
        fn named(&self, name: &[u8]) -> Option<NamedCommand> {
            let at = NAMES.iter().position(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name))?;
            let form = match at {
                3 => CommandForm::Container,
                4 | 5 => CommandForm::Subcommand,
                _ => CommandForm::Plain,
            };
            let ids = if at == 3 { vec![3, 4, 5] } else { vec![at as u16] };
            let ids = ids.into_iter().map(CommandId).collect();
            Some(NamedCommand { full_name: NAMES[at].0.to_owned(), ids, form })
        }

        fn knows_category(&self, name: &[u8]) -> bool {
            name == b"json"
        }

        fn each(&self, each: &mut dyn FnMut(&[CommandId], Categories)) {
            for (at, (name, categories)) in NAMES.iter().enumerate() {
                each(&[CommandId(at as u16)], *categories);
                assert!(!name.is_empty());
            }
        }
    }

    pub fn user(rules: &[&str]) -> User {
        let mut user = User::new(b"alice", 1, false);
        user.apply_all(rules, &Few).unwrap_or_else(|why| panic!("{rules:?}: {why}"));
        user
    }

    fn described(user: &User) -> String {
        String::from_utf8(user.describe()).unwrap()
    }

    /// Returns the denial of a command, given as one line.
    fn check(user: &User, line: &str) -> Result<(), Denial> {
        const EACH: Keys = Keys(&Keys::all(KeyUse::Read));
        const FIRST: Keys = Keys::OVERWRITE;
        let words: Vec<&str> = line.split(' ').collect();
        let mut bytes = Vec::new();
        let ranges: Vec<Arg> = words
            .iter()
            .map(|word| {
                bytes.extend_from_slice(word.as_bytes());
                Arg { start: (bytes.len() - word.len()) as u32, len: word.len() as u32 }
            })
            .collect();
        let at = NAMES.iter().position(|(name, _)| *name == words[0]).unwrap();
        let (keys, channels) = match at {
            0 => (
                Keys(&[KeySpec { at: KeysAt::Range { first: 1, last: 1, step: 1 }, used: KeyUse::Read }]),
                Channels::None,
            ),
            1 => (EACH, Channels::None),
            2 => (FIRST, Channels::None),
            6 => (Keys::NONE, Channels::First),
            7 => (Keys::NONE, Channels::Patterns),
            _ => (Keys::NONE, Channels::None),
        };
        let (id, full_name) = (CommandId(at as u16), &NAMES[at].0);
        let asked = CheckedCommand {
            id,
            full_name,
            is_free: false,
            keys,
            channels,
            flags: if at < 2 { Flags::READONLY } else { Flags::NONE },
            databases: Databases::Selected,
            db: Db(0),
            words: Words::new(&bytes, &ranges),
        };
        let checked = user.check(&asked);
        let is_short = user.only_selector().filter(|_| at == 0 || at == 2);
        if checked.is_ok() || !matches!(checked, Err(Denial::Command(_))) {
            assert_eq!(user.allows_another(&asked), checked.is_ok(), "{line}");
            if let Some(only) = is_short {
                let needed = if at == 0 { KeyRights::READ } else { KeyRights::WRITE };
                assert_eq!(only.allows_key(words[1].as_bytes(), needed), checked.is_ok(), "{line}");
            }
        }
        checked
    }

    #[test]
    fn rules_are_obeyed_in_their_order() {
        let cases = [
            (&["+get"][..], "off resetchannels -@all +get"),
            (&["+get", "-get"], "off resetchannels -@all -get"),
            (&["-get", "+GET"], "off resetchannels -@all +get"),
            (
                &["+@all", "-config|set", "-@READ", "+mget"],
                "off resetchannels +@all -config|set -@read +mget",
            ),
            (&["+config|set", "+get", "-config"], "off resetchannels -@all +get -config"),
            (&["+get|a", "+get|b", "+get|A"], "off resetchannels -@all +get|b +get|a"),
            (&["+get|a", "-get"], "off resetchannels -@all -get"),
            (&["+get", "+@all"], "off resetchannels +@all"),
            (&["on", "nopass", "allkeys", "allchannels", "allcommands"], "on nopass ~* &* +@all"),
            (&["~a", "%R~a", "%W~b", "%R~b", "%r~c"], "off ~a ~b %R~c resetchannels -@all"),
            (&["%R~*", "%W~*"], "off %RW~* resetchannels -@all"),
            (&["&a", "&a", "&b*"], "off resetchannels &a &b* -@all"),
            (
                &["(+get ~a)", "(+set &b)", "()"],
                "off resetchannels -@all (~a resetchannels -@all +get) (resetchannels &b -@all +set) (resetchannels -@all)",
            ),
            (&["(+get)", "clearselectors"], "off resetchannels -@all"),
            (&["on", "nopass", "~a", "+get", "(+get)", "reset"], "off sanitize-payload resetchannels -@all"),
        ];
        for (rules, expected) in cases {
            let made = user(rules);
            assert_eq!(described(&made), expected, "{rules:?}");
            let again: Vec<&str> = expected.split(' ').collect();
            assert!(user(&again).is_like(&made), "what {expected} makes is another user");
        }
    }

    #[test]
    fn a_rule_that_is_refused_is_named() {
        let mut user = User::new(b"alice", 1, false);
        let refused = user.apply_all(&["on", "(~a", "+nosuch)"], &Few).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "Error in ACL SETUSER modifier '(~a +nosuch)': Unknown command or category name in ACL"
        );
        for (rule, why) in [
            ("+get|a b", RuleError::Syntax),
            ("(\"~a\"b)", RuleError::Syntax),
            ("(\"~a\\\"b\")", RuleError::Syntax),
            ("+config|nosuch", RuleError::Unknown),
            ("+config|get|x", RuleError::ArgumentOfSubcommand),
            ("-get|a", RuleError::Unknown),
            ("%~a", RuleError::Syntax),
            ("(on)", RuleError::Syntax),
        ] {
            assert_eq!(user.apply(rule.as_bytes(), &Few), Err(why), "{rule}");
        }
    }

    #[test]
    fn passwords_fit_or_do_not() {
        let mut user = user(&["on", ">one", ">two", ">one"]);
        assert_eq!(user.passwords().len(), 2);
        assert!(user.admits(b"one") && user.admits(b"two") && !user.admits(b"three") && !user.admits(b""));
        user.apply(b"<one", &Few).unwrap();
        assert!(!user.admits(b"one") && user.admits(b"two"));
        assert_eq!(user.apply(b"<one", &Few), Err(RuleError::NoSuchPassword));
        user.apply(b"nopass", &Few).unwrap();
        assert!(user.admits(b"anything") && user.is_open());
        user.apply(b"off", &Few).unwrap();
        assert!(!user.admits(b"anything") && !user.is_open());
        user.apply_all(&["on", "resetpass"], &Few).unwrap();
        assert!(!user.admits(b"anything"));
    }

    #[test]
    fn one_selector_must_allow_all_of_a_command() {
        let one = user(&["+@read", "%R~a*", "%W~b*", "+set"]);
        assert_eq!(check(&one, "get a1"), Ok(()));
        assert_eq!(check(&one, "get b1"), Err(Denial::Key(1)));
        assert_eq!(check(&one, "set b1 x"), Ok(()));
        assert_eq!(check(&one, "set a1 x"), Err(Denial::Key(1)));
        assert_eq!(check(&one, "mget a1 a2 b a3 c"), Err(Denial::Key(3)));
        assert_eq!(check(&one, "publish c x"), Err(Denial::Command(&"publish")));
        let two = user(&["+mget", "~a", "(+mget ~a ~b)"]);
        assert_eq!(check(&two, "get a"), Err(Denial::Command(&"get")));
        assert_eq!(check(&two, "mget a b"), Ok(()));
        // The selector that allowed most determines the denial.
        assert_eq!(check(&two, "mget a b c"), Err(Denial::Key(3)));
    }

    #[test]
    fn first_arguments_allow_what_the_command_alone_does_not() {
        let user = user(&["+get|a", "~*"]);
        assert_eq!(check(&user, "get a"), Ok(()));
        assert_eq!(check(&user, "get A"), Ok(()));
        assert_eq!(check(&user, "get b"), Err(Denial::Command(&"get")));
    }

    #[test]
    fn channels_match_and_patterns_of_channels_are_the_same() {
        let user = user(&["+@all", "resetchannels", "&news", "&w*"]);
        assert_eq!(check(&user, "publish news x"), Ok(()));
        assert_eq!(check(&user, "publish weather x"), Ok(()));
        assert_eq!(check(&user, "publish other x"), Err(Denial::Channel(1)));
        assert_eq!(check(&user, "psubscribe w* news"), Ok(()));
        assert_eq!(check(&user, "psubscribe w* weather"), Err(Denial::Channel(2)));
    }

    #[test]
    fn a_user_keeps_the_channels_or_not() {
        let keeps = |now: &[&str], before: &[&str]| user(now).keeps_channels_of(&user(before));
        assert!(keeps(&["&a", "&b"], &["&a"]));
        assert!(keeps(&["allchannels"], &["&a"]));
        assert!(keeps(&["(&a)"], &["&a"]));
        assert!(!keeps(&["&a"], &["&a", "&b"]));
        assert!(!keeps(&["&a"], &["allchannels"]));
        // Patterns are compared for equality, not for matching.
        assert!(!keeps(&["&*b*"], &["&ab"]));
    }

    #[test]
    fn a_selector_ends_at_its_parenthesis_and_not_at_a_zero_byte() {
        assert!(user(&["(\x0b~a\x0b+get\x0b)"]).is_like(&user(&["(~a +get)"])));
        let mut bob = user(&[]);
        assert_eq!(bob.apply(b"(~* +@all\0-@all)", &Few), Err(RuleError::Syntax));
        assert_eq!(bob.apply(b"(\0)", &Few), Err(RuleError::Syntax));
        assert!(bob.added_selectors().is_empty());
    }

    /// As the description `(~a() resetchannels -@all)` has it, the selector ends after `~a(`.
    #[test]
    fn no_rule_of_a_selector_ends_with_a_parenthesis() {
        let mut bob = user(&[]);
        for rule in [&b"(~a())"[..], b"(~a) +get)", b"(&a))", b"(+select|a))"] {
            assert_eq!(bob.apply(rule, &Few), Err(RuleError::Syntax));
        }
        assert!(bob.added_selectors().is_empty());
        assert!(bob.apply(b"(~a(b +get)", &Few).is_ok());
        assert!(bob.apply(b"~a()", &Few).is_ok());
    }

    #[test]
    fn everything_is_what_one_selector_allows() {
        assert!(user(&["+@all", "~*", "&*"]).may_do_everything());
        assert!(user(&["(+@all ~* &*)"]).may_do_everything());
        for less in [
            &["+@all", "~*"][..],
            &["+@all", "&*"],
            &["~*", "&*"],
            &["+@all", "~*", "&*", "-get"],
            &["+@all", "(~* &*)"],
        ] {
            assert!(!user(less).may_do_everything(), "{less:?}");
        }
    }
}
