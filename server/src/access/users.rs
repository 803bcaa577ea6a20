//! The set of users in force at one time.

use std::{collections::BTreeMap, fmt, hint::black_box, sync::Arc};

use super::password::PasswordHash;
use super::rule::{RuleError, UserError, has_spaces, merge};
use super::selector::Commands;
use super::user::{DEFAULT_USER, User, UserName};
use crate::catalog::shown;
use crate::config::UserLine;

/// All users, by name. The default user always exists.
#[derive(Clone)]
pub struct Users {
    by_name: BTreeMap<UserName, Arc<User>>,
    next_serial: u64,
    /// Whether a new user may use all channels (`acl-pubsub-default`).
    pub new_allows_all_channels: bool,
}

/// The reason why configured users are refused. Prints as Redis's log does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserLoadError {
    /// A name contains spaces.
    Name,
    /// A rule of a user is refused.
    Rule {
        /// The user.
        user: Vec<u8>,
        /// The rule.
        rule: Vec<u8>,
        /// The reason for the refusal.
        why: RuleError,
    },
    /// A selector is not closed.
    Unmatched(UserError),
}

impl fmt::Display for UserLoadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UserLoadError::Name => out.write_str("Spaces not allowed in ACL usernames"),
            UserLoadError::Rule { user, rule, why } => write!(
                out,
                "Error loading ACL rule '{}' for the user named '{}': {why}",
                if is_secret(rule) { "(redacted)".into() } else { shown(rule) },
                shown(user)
            ),
            UserLoadError::Unmatched(why) => why.fmt(out),
        }
    }
}

/// Whether a rule contains a password.
fn is_secret(rule: &[u8]) -> bool {
    matches!(rule.first(), Some(b'>' | b'<' | b'#' | b'!'))
}

impl std::error::Error for UserLoadError {}

impl Users {
    /// Creates the default user, which may do everything without a password.
    pub fn new(new_allows_all_channels: bool, commands: &dyn Commands) -> Self {
        let mut users = Self { by_name: BTreeMap::new(), next_serial: 0, new_allows_all_channels };
        let mut user = users.new_user(DEFAULT_USER);
        let open = [b"+@all".as_slice(), b"~*", b"&*", b"on", b"nopass"];
        user.apply_all(&open, commands).expect("these are rules");
        users.put(user);
        users
    }

    fn new_user(&mut self, name: &[u8]) -> User {
        self.next_serial += 1;
        User::new(name, self.next_serial, self.new_allows_all_channels)
    }

    fn put(&mut self, user: User) {
        self.by_name.insert(Arc::clone(user.name()), Arc::new(user));
    }

    /// Returns the user with a name.
    pub fn get(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.by_name.get(name)
    }

    /// Returns the user with a name, if the password is accepted. That takes about as long where there is
    /// none.
    pub fn admitted(&self, name: &[u8], password: &[u8]) -> Option<&Arc<User>> {
        match self.get(name) {
            Some(user) => Some(user).filter(|user| user.admits(password)),
            None => {
                black_box(PasswordHash::of(password));
                None
            }
        }
    }

    /// The default user.
    pub fn default_user(&self) -> &Arc<User> {
        self.get(DEFAULT_USER).expect("there is always the default user")
    }

    /// All users, by name.
    pub fn all(&self) -> impl ExactSizeIterator<Item = &Arc<User>> {
        self.by_name.values()
    }

    /// ACL SETUSER: changes a user, and creates it if necessary. Returns the previous user.
    ///
    /// # Errors
    /// The first refused rule. Then nothing has changed.
    pub fn set<W: AsRef<[u8]>>(
        &mut self,
        name: &[u8],
        rules: &[W],
        commands: &dyn Commands,
    ) -> Result<Option<Arc<User>>, UserError> {
        let before = self.get(name).cloned();
        let mut user = match &before {
            Some(user) => user.with_default(self.new_allows_all_channels),
            None => self.new_user(name),
        };
        user.apply_all(rules, commands)?;
        self.put(user);
        Ok(before)
    }

    /// ACL DELUSER: removes a user.
    pub fn remove(&mut self, name: &[u8]) -> Option<Arc<User>> {
        self.by_name.remove(name)
    }

    /// `requirepass`: gives the default user this single password, or none.
    pub fn set_default_password(&mut self, password: Option<&[u8]>, commands: &dyn Commands) {
        let rule = match password {
            Some(password) => [b">", password].concat(),
            None => b"nopass".to_vec(),
        };
        let rules = [b"resetpass".as_slice(), &rule];
        self.set(DEFAULT_USER, &rules, commands).expect("these are rules");
    }

    /// Adds the configured users.
    ///
    /// # Errors
    /// The first refused user.
    pub fn declare(&mut self, lines: &[UserLine], commands: &dyn Commands) -> Result<(), UserLoadError> {
        for UserLine { name, rules } in lines {
            if has_spaces(name) {
                return Err(UserLoadError::Name);
            }
            let mut user = match self.get(name) {
                // Only the default user can exist before.
                Some(user) => {
                    let mut user = User::clone(user);
                    user.apply(b"reset", commands).expect("it is a rule");
                    user
                }
                None => self.new_user(name),
            };
            for rule in merge(rules).map_err(UserLoadError::Unmatched)? {
                let refused = |why| UserLoadError::Rule { user: name.clone(), rule: rule.clone(), why };
                user.apply(&rule, commands).map_err(refused)?;
            }
            self.put(user);
        }
        Ok(())
    }

    /// The text of a file of users.
    pub fn to_text(&self) -> Vec<u8> {
        self.all()
            .flat_map(|user| [b"user ", &user.name()[..], b" ", &user.describe(), b"\n"].concat())
            .collect()
    }

    /// Reads a file of users, which replace all current ones.
    ///
    /// A user with the name of a current one stays the same to its clients.
    ///
    /// # Errors
    /// All faults in the file, in Redis's words.
    pub fn read(&self, text: &[u8], path: &str, commands: &dyn Commands) -> Result<Self, String> {
        let mut users = Self { by_name: BTreeMap::new(), ..self.clone() };
        let mut errors = String::new();
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if !line.is_empty() {
                users.read_line(line, &FileLine { path, number: index + 1 }, commands, &mut errors);
            }
        }
        if !errors.is_empty() {
            errors.push_str(
                "WARNING: ACL errors detected, no change to the previously active ACL rules was performed",
            );
            return Err(errors);
        }
        if users.get(DEFAULT_USER).is_none() {
            let open = Users::new(self.new_allows_all_channels, commands);
            users.put(User::clone(open.default_user()));
        }
        users.take_serials_of(self);
        Ok(users)
    }

    fn read_line(&mut self, line: &[u8], place: &FileLine<'_>, commands: &dyn Commands, errors: &mut String) {
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let [b"user", name, rules @ ..] = &words[..] else {
            errors.push_str(&format!("{place} should start with user keyword followed by the username. "));
            return;
        };
        if has_spaces(name) {
            errors.push_str(&format!("'{place}: username '{}' contains invalid characters. ", shown(name)));
            return;
        }
        if self.get(name).is_some() {
            let (name, number) = (shown(name), place.number);
            errors.push_str(&format!("WARNING: Duplicate user '{name}' found on line {number}. "));
            return;
        }
        let mut user = self.new_user(name);
        let Ok(rules) = merge(rules) else {
            errors.push_str(&format!("{place}: Unmatched parenthesis in selector definition."));
            return;
        };
        let mut has_said = false;
        for rule in &rules {
            let rule = rule.trim_ascii();
            match user.apply(rule, commands) {
                Ok(()) => {}
                // An unknown rule is not secret.
                Err(why @ RuleError::Unknown) => {
                    let rule = shown(rule);
                    errors.push_str(&format!("{place}: Error in applying operation '{rule}': {why}. "));
                }
                // Later faults may follow from the first.
                Err(why) if !has_said => {
                    errors.push_str(&format!("{place}: {why}. "));
                    has_said = true;
                }
                Err(_) => {}
            }
        }
        self.put(user);
    }

    /// Copies the numbers of other users with the same names.
    fn take_serials_of(&mut self, others: &Users) {
        for user in self.by_name.values_mut() {
            if let Some(other) = others.get(user.name()) {
                *user = Arc::new(user.with_serial(other.serial()));
            }
        }
    }
}

/// A line of a file of users.
struct FileLine<'a> {
    path: &'a str,
    number: usize,
}

impl fmt::Display for FileLine<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.path, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::super::user::tests::Few;
    use super::*;

    fn line(name: &str, rules: &[&str]) -> UserLine {
        UserLine {
            name: name.as_bytes().to_vec(),
            rules: rules.iter().map(|rule| rule.as_bytes().to_vec()).collect(),
        }
    }

    fn text(users: &Users) -> String {
        String::from_utf8(users.to_text()).unwrap()
    }

    const OPEN: &str = "user default on nopass ~* &* +@all\n";

    #[test]
    fn there_is_always_the_default_user() {
        let users = Users::new(false, &Few);
        assert_eq!(text(&users), OPEN);
        let read = users.read(b"user bob on\n", "file", &Few).unwrap();
        assert_eq!(text(&read), format!("user bob on resetchannels -@all\n{OPEN}"));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut users = Users::new(true, &Few);
        users.set(b"bob", &["on", ">pw", "~a", "+get", "(resetchannels +set ~b)"], &Few).unwrap();
        users.set(b"al", &["resetchannels", "&x"], &Few).unwrap();
        let written = users.to_text();
        let read = users.read(&written, "file", &Few).unwrap();
        assert_eq!(read.to_text(), written);
        for user in users.all() {
            let again = read.get(user.name()).unwrap();
            assert!(again.is_like(user) && again.serial() == user.serial());
        }
    }

    #[test]
    fn a_user_who_is_made_again_is_another() {
        let mut users = Users::new(false, &Few);
        assert!(users.set(b"bob", &["on"], &Few).unwrap().is_none());
        let first = users.get(b"bob").unwrap().serial();
        assert!(users.set(b"bob", &["off"], &Few).unwrap().is_some());
        assert_eq!(users.get(b"bob").unwrap().serial(), first);
        users.remove(b"bob");
        users.set(b"bob", &["on"], &Few).unwrap();
        assert_ne!(users.get(b"bob").unwrap().serial(), first);
    }

    #[test]
    fn a_change_that_is_refused_changes_nothing() {
        let mut users = Users::new(false, &Few);
        users.set(b"bob", &["on", "~a"], &Few).unwrap();
        let before = text(&users);
        users.set(b"bob", &["~b", "nosuch"], &Few).unwrap_err();
        users.set(b"al", &["+nosuch"], &Few).unwrap_err();
        assert_eq!(text(&users), before);
    }

    #[test]
    fn declarations_are_obeyed_or_refused() {
        let mut users = Users::new(false, &Few);
        users.set_default_password(Some(b"pw"), &Few);
        let lines = [line("bob", &["on", "(~a", "+get)"]), line("default", &["on", ">other", "~*"])];
        users.declare(&lines, &Few).unwrap();
        assert!(users.default_user().admits(b"other") && !users.default_user().admits(b"pw"));
        assert_eq!(users.get(b"bob").unwrap().added_selectors().len(), 1);
        let refused = |name: &str, rules: &[&str]| {
            Users::new(false, &Few).declare(&[line(name, rules)], &Few).unwrap_err().to_string()
        };
        assert_eq!(refused("a b", &["on"]), "Spaces not allowed in ACL usernames");
        assert_eq!(
            refused("bob", &["on", "nosuch"]),
            "Error loading ACL rule 'nosuch' for the user named 'bob': Syntax error"
        );
        assert!(refused("bob", &["<hush"]).contains("(redacted)"));
        assert!(refused("bob", &["(~a"]).starts_with("Unmatched parenthesis"));
    }
}
