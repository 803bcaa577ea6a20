//! A configuration: a value for every directive, with `CONFIG GET` and `SET`.

use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::directive::{Directive, DirectiveFlags, Meaning};
use super::directives::{DIRECTIVES, Settings, find, place_of};
use super::file::FatalConfigError;
use super::settings::{Access, PrimaryAddress, UserLine};
use super::value::{Reason, Value};

/// A matcher of texts: glob pattern first, text second.
pub type Glob = fn(&[u8], &[u8]) -> bool;

/// A complete configuration. Settings are its fields, such as `config.maxclients`.
#[derive(Clone, Debug)]
pub struct Config {
    settings: Settings,
    /// One value for each row of the table. Copies share unchanged values.
    pub(super) values: Vec<Arc<Value>>,
    /// The values with which [`Config::new`] begins, before it sets `dir`.
    pub(super) defaults: Arc<[Arc<Value>]>,
    /// The working directory with which [`Config::new`] begins.
    pub(super) start_dir: PathBuf,
    pub(super) file: Option<PathBuf>,
}

/// The origin of a connection, which matters for protected directives and dangerous features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The loopback interface or a Unix socket.
    Local,
    /// Anywhere else.
    Remote,
}

impl Access {
    /// Whether clients of this origin are admitted.
    pub fn admits(self, asker: Asker) -> bool {
        match self {
            Access::Yes => true,
            Access::No => false,
            Access::Local => asker == Asker::Local,
        }
    }
}

/// The reason why `CONFIG SET` changed nothing.
///
/// It prints as Redis's reply without the leading `ERR `.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigError {
    /// No such directive.
    Unknown(Vec<u8>),
    /// A refused value or a directive that cannot be changed.
    Refused {
        /// The name by which the directive was given.
        name: &'static str,
        /// The reason.
        reason: Reason,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Unknown(name) => {
                let name = String::from_utf8_lossy(name);
                write!(out, "Unknown option or number of arguments for CONFIG SET - '{name}'")
            }
            ConfigError::Refused { name, reason } => {
                write!(out, "CONFIG SET failed (possibly related to argument '{name}') - {reason}")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// Two configurations are equal if every directive has the same value, whatever its origin.
impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl Deref for Config {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.settings
    }
}

impl Config {
    /// Returns the configuration in which nothing is set.
    ///
    /// `n_cores`, limited to the directive's bounds, is the default of `io-threads`. `dir` is the absolute
    /// working directory.
    pub fn new(n_cores: usize, dir: PathBuf) -> Self {
        let mut defaults: Vec<Arc<Value>> =
            DIRECTIVES.iter().map(Directive::default_value).map(Arc::new).collect();
        defaults[place_of("io-threads")] = Arc::new(Value::Number(n_cores.clamp(1, 128) as i128));
        let mut config = Config {
            settings: Settings::default(),
            values: defaults.clone(),
            defaults: defaults.into(),
            start_dir: dir,
            file: None,
        };
        config.begin();
        config
    }

    /// Returns the configuration with which this one began.
    pub(super) fn fresh(&self) -> Self {
        let mut config = Config { values: self.defaults.to_vec(), ..self.clone() };
        config.begin();
        config
    }

    fn begin(&mut self) {
        self.values[place_of("dir")] = Arc::new(Value::Dir(self.start_dir.clone()));
        for place in 0..DIRECTIVES.len() {
            self.apply(place);
        }
    }

    /// Whether Redis would share small integers between keys.
    ///
    /// It does not while keys are evicted by their use, because each key must then record its own.
    pub fn shares_integers(&self) -> bool {
        self.maxmemory.is_none() || !self.maxmemory_policy.is_by_use()
    }

    /// Returns the port for plain TCP, or that for TLS without one.
    pub fn main_port(&self) -> u16 {
        if self.port != 0 { self.port } else { self.tls_port }
    }

    /// Returns the port at which a replica serves clients of its primary: that for TLS, if links use TLS.
    pub fn replication_port(&self) -> u16 {
        if self.tls_replication && self.tls_port != 0 { self.tls_port } else { self.main_port() }
    }

    /// Returns the absolute path of the loaded file, which `CONFIG REWRITE` writes.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Lists names and values as `CONFIG GET` does.
    ///
    /// A pattern without wildcards is a name. Case does not matter, and each name is listed once. Hidden
    /// directives are listed only for their full name. The values are as Redis prints them.
    pub fn get(&self, patterns: &[&[u8]], glob: Glob) -> Vec<(&'static str, Vec<u8>)> {
        let patterns: Vec<Vec<u8>> = patterns.iter().map(|pattern| pattern.to_ascii_lowercase()).collect();
        let is_asked = |row: &Directive, name: &str| {
            patterns.iter().any(|pattern| {
                let wild = pattern.iter().any(|byte| b"*?[".contains(byte));
                match wild {
                    true => !row.flags.contains(DirectiveFlags::HIDDEN) && glob(pattern, name.as_bytes()),
                    false => pattern == name.as_bytes(),
                }
            })
        };
        let rows = DIRECTIVES.iter().zip(&self.values);
        let shown = rows.filter(|(row, _)| !row.flags.contains(DirectiveFlags::FILE_ONLY));
        let asked = shown.flat_map(|(row, value)| {
            let names = row.names().filter(move |name| is_asked(row, name));
            names.map(move |name| (name, row.kind.print(value)))
        });
        asked.collect()
    }

    /// Changes directives as `CONFIG SET` does, all or none.
    ///
    /// Returns the directives whose value has changed.
    ///
    /// # Errors
    /// The first directive that is unknown, immutable, protected from this client or named twice. If there is
    /// none, the first whose value is refused. The configuration is then unchanged.
    pub fn set(
        &mut self,
        pairs: &[(&[u8], &[u8])],
        asker: Asker,
    ) -> Result<Vec<&'static Directive>, ConfigError> {
        let places = self.places_to_set(pairs, asker)?;
        let before = self.values.clone();
        for (&(name, place), &(_, text)) in places.iter().zip(pairs) {
            match DIRECTIVES[place].parse(&[text], &self.values[place]) {
                Ok(value) => self.values[place] = Arc::new(value),
                Err(reason) => {
                    self.values = before;
                    return Err(ConfigError::Refused { name, reason });
                }
            }
        }
        let is_other = |&place: &usize| self.values[place] != before[place];
        let changed: Vec<usize> = (0..DIRECTIVES.len()).filter(is_other).collect();
        for &place in &changed {
            self.apply(place);
        }
        Ok(changed.into_iter().map(|place| &DIRECTIVES[place]).collect())
    }

    /// Checks that no value requires a missing feature without which the server must not start.
    ///
    /// Such a server would serve foreign data or break a promise.
    ///
    /// # Errors
    /// The first such directive, and the missing feature.
    pub(super) fn check_at_start(&self) -> Result<(), FatalConfigError> {
        let mut rows = DIRECTIVES.iter().zip(&self.values);
        let refused = rows.find_map(|(row, value)| Some((row.name, row.refused_at_start(value)?)));
        refused.map_or(Ok(()), |(name, why)| Err(FatalConfigError::Missing { name, why }))
    }

    /// Checks that a client's changes require no missing feature. A file may require one.
    ///
    /// # Errors
    /// The first directive that requires one.
    pub fn check_at_run_time(&self, changed: &[&'static Directive]) -> Result<(), ConfigError> {
        for row in changed {
            if let Some(why) = row.refused_at_run_time(&self.values[place_of(row.name)]) {
                return Err(ConfigError::Refused { name: row.name, reason: Reason::Rule(why) });
            }
        }
        Ok(())
    }

    /// Checks the names of a `CONFIG SET`, before any value is read.
    fn places_to_set(
        &self,
        pairs: &[(&[u8], &[u8])],
        asker: Asker,
    ) -> Result<Vec<(&'static str, usize)>, ConfigError> {
        let mut seen = HashSet::new();
        let mut places = Vec::with_capacity(pairs.len());
        for (given, _) in pairs {
            let found = find(given)
                .filter(|&(_, place)| !DIRECTIVES[place].flags.contains(DirectiveFlags::FILE_ONLY));
            let (name, place) = found.ok_or_else(|| ConfigError::Unknown(given.to_vec()))?;
            let flags = DIRECTIVES[place].flags;
            let why = if flags.contains(DirectiveFlags::IMMUTABLE) {
                Some("can't set immutable config")
            } else if flags.contains(DirectiveFlags::PROTECTED)
                && !self.settings.enable_protected_configs.admits(asker)
            {
                Some("can't set protected config")
            } else if !seen.insert(name) {
                Some("duplicate parameter")
            } else {
                None
            };
            if let Some(why) = why {
                return Err(ConfigError::Refused { name, reason: Reason::Rule(why) });
            }
            places.push((name, place));
        }
        Ok(places)
    }

    /// Replaces the declared users with the present ones, for `CONFIG REWRITE`.
    pub fn set_users(&mut self, users: &[UserLine]) {
        let words = |user: &UserLine| {
            let mut words = vec![user.name.clone()];
            words.extend_from_slice(&user.rules);
            words
        };
        let place = place_of("user");
        self.values[place] = Arc::new(Value::Lines(users.iter().map(words).collect()));
        self.apply(place);
    }

    /// Replaces the primary, as REPLICAOF does.
    pub fn set_primary(&mut self, primary: Option<PrimaryAddress>) {
        let place = place_of("replicaof");
        self.values[place] =
            Arc::new(Value::Primary(primary.map(|PrimaryAddress { host, port }| (host, port))));
        self.apply(place);
    }

    /// Returns a sentence for each directive that is set but has no effect.
    ///
    /// The server log shows them at the start.
    pub fn notices(&self) -> Vec<String> {
        let notice =
            |row: &Directive| format!("'{}' is set, but has no effect: {}.", row.name, row.why_idle());
        self.kept_and_set().map(notice).collect()
    }

    /// Returns the directives without effect whose value asks for one.
    ///
    /// A default asks for none, and neither does `save ""`.
    fn kept_and_set(&self) -> impl Iterator<Item = &'static Directive> {
        let asks = |value: &Value| !matches!(value, Value::Save(points) if points.is_empty());
        let kept = self.not_default().filter(|(row, _)| !row.has_effect());
        kept.filter(move |(_, value)| asks(value)).map(|(row, _)| row)
    }

    pub(super) fn not_default(&self) -> impl Iterator<Item = (&'static Directive, &Value)> {
        let rows = DIRECTIVES.iter().zip(&self.values).zip(self.defaults.iter());
        rows.filter(|((_, value), default)| value != default).map(|((row, value), _)| (row, &**value))
    }

    /// Writes the value at `place` to the settings.
    pub(super) fn apply(&mut self, place: usize) {
        if let Meaning::Live(apply) | Meaning::Reserved(apply) = DIRECTIVES[place].meaning {
            apply(&mut self.settings, &self.values[place]);
        }
    }
}

/// Whether a directive's value is a secret.
///
/// MONITOR, the slow log and the server log omit secrets.
pub fn is_sensitive(name: &[u8]) -> bool {
    find(name).is_some_and(|(_, place)| DIRECTIVES[place].flags.contains(DirectiveFlags::SENSITIVE))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::settings::{BindAddress, BindHost};
    use super::*;

    /// A matcher that knows only `*`, which is enough for these tests.
    pub(in crate::config) fn star(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'*', rest @ ..] => (0..=text.len()).any(|start| star(rest, &text[start..])),
            [byte, rest @ ..] => text.first() == Some(byte) && star(rest, &text[1..]),
        }
    }

    pub(in crate::config) fn config() -> Config {
        Config::new(3, PathBuf::from("/"))
    }

    fn get(config: &Config, patterns: &[&str]) -> Vec<(&'static str, String)> {
        let patterns: Vec<&[u8]> = patterns.iter().map(|pattern| pattern.as_bytes()).collect();
        let found = config.get(&patterns, star).into_iter();
        found.map(|(name, value)| (name, String::from_utf8(value).unwrap())).collect()
    }

    fn set(config: &mut Config, pairs: &[(&str, &str)]) -> Result<Vec<&'static str>, String> {
        let pairs: Vec<(&[u8], &[u8])> =
            pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        let changed = config.set(&pairs, Asker::Remote).map_err(|error| error.to_string())?;
        Ok(changed.iter().map(|row| row.name).collect())
    }

    #[test]
    fn a_missing_feature_may_stand_in_a_file_and_is_refused_at_run_time() {
        for row in DIRECTIVES {
            if row.missing.is_none() {
                continue;
            }
            assert_eq!(row.refused_at_run_time(&row.default_value()), None, "{}", row.name);
            assert!(!row.has_effect(), "{}: it is there", row.name);
        }
        let text = "activedefrag yes\n";
        let config = super::super::file::tests::load(text).unwrap();
        let set_and_check = |pairs: &[(&str, &str)]| {
            let mut config = config.clone();
            let before = config.values.clone();
            set(&mut config, pairs)?;
            let is_other = |place: &usize| config.values[*place] != before[*place];
            let changed: Vec<_> =
                (0..DIRECTIVES.len()).filter(is_other).map(|place| &DIRECTIVES[place]).collect();
            config.check_at_run_time(&changed).map_err(|error| error.to_string())
        };
        assert_eq!(set_and_check(&[("activedefrag", "yes"), ("maxclients", "5")]), Ok(()));
        assert_eq!(set_and_check(&[("activedefrag", "no")]), Ok(()));
        let refused = set_and_check(&[("maxclients", "5"), ("import-mode", "yes")]);
        assert!(refused.unwrap_err().ends_with("keys that expire during an import cannot be kept"));
    }

    #[test]
    fn settings_begin_with_the_defaults() {
        let config = config();
        assert_eq!((config.port, config.protected_mode, config.maxclients), (6379, true, 10_000));
        let loopback = |host: &str, optional| BindAddress { host: BindHost::Named(host.into()), optional };
        assert_eq!(config.bind, [loopback("127.0.0.1", false), loopback("::1", true)]);
        assert_eq!((config.io_threads, config.shards, config.hash_tags), (3, 1024, true));
        assert_eq!(config.dir, Path::new("/"));
        assert_eq!(config.maxmemory, None);
        assert_eq!(config.slowlog_log_slower_than, Some(std::time::Duration::from_millis(10)));
        assert_eq!(config.client_output_buffer_limit.pubsub.hard_bytes, 32 << 20);
        assert_eq!(Config::new(1_000, PathBuf::from("/")).io_threads, 128);
    }

    #[test]
    fn get_takes_several_patterns_in_any_case_and_lists_each_name_once() {
        let config = config();
        let found = get(&config, &["TIMEOUT", "Time*", "hz", "nonesuch"]);
        assert_eq!(found, [("timeout", "0".into()), ("hz", "10".into())]);
        assert_eq!(get(&config, &["slave-priority"]), [("slave-priority", "100".into())]);
        assert_eq!(get(&config, &["save", "dir"]).len(), 2);
    }

    #[test]
    fn hidden_directives_are_shown_by_their_full_name_only() {
        assert_eq!(get(&config(), &["watchdog-perio*"]), []);
        assert_eq!(get(&config(), &["watchdog-period"]), [("watchdog-period", "0".into())]);
    }

    #[test]
    fn lines_of_files_are_unknown_to_get_and_set() {
        let mut config = config();
        assert_eq!(get(&config, &["user", "loadmodule", "rename-command", "include"]), []);
        let unknown = "Unknown option or number of arguments for CONFIG SET - 'user'";
        assert_eq!(set(&mut config, &[("user", "x")]), Err(unknown.into()));
    }

    #[test]
    fn set_changes_all_or_nothing() {
        let mut config = config();
        let before = config.clone();
        let refused = set(&mut config, &[("timeout", "7"), ("maxmemory", "x")]).unwrap_err();
        assert_eq!(
            refused,
            "CONFIG SET failed (possibly related to argument 'maxmemory') - argument must be a memory value"
        );
        assert_eq!(config, before);
        assert_eq!(config.settings, before.settings);

        let changed = set(&mut config, &[("TIMEOUT", "7"), ("maxmemory", "1gb"), ("hz", "10")]).unwrap();
        assert_eq!(changed, ["timeout", "maxmemory"]);
        assert_eq!(config.maxmemory, Some(1 << 30));
        assert_eq!(config.timeout, Some(std::time::Duration::from_secs(7)));
        assert_eq!(get(&config, &["maxmemory"]), [("maxmemory", "1073741824".into())]);
    }

    #[test]
    fn set_refuses_in_the_words_of_redis() {
        let cases: [(&[(&str, &str)], &str); 6] = [
            (&[("foo", "1"), ("port", "x")], "Unknown option or number of arguments for CONFIG SET - 'foo'"),
            (&[("timeout", "7"), ("databases", "2")], "'databases') - can't set immutable config"),
            (&[("timeout", "1"), ("timeout", "2")], "'timeout') - duplicate parameter"),
            (&[("dir", "/")], "'dir') - can't set protected config"),
            (&[("port", "99999")], "'port') - argument must be between 0 and 65535 inclusive"),
            (&[("slave-read-only", "x")], "'slave-read-only') - argument must be 'yes' or 'no'"),
        ];
        for (pairs, ending) in cases {
            let refused = set(&mut config(), pairs).unwrap_err();
            assert!(refused.ends_with(ending), "{refused}");
        }
    }

    #[test]
    fn both_names_of_a_directive_may_stand_in_one_set() {
        let mut config = config();
        set(&mut config, &[("hash-max-ziplist-entries", "1"), ("hash-max-listpack-entries", "2")]).unwrap();
        assert_eq!(config.hash_max_listpack_entries, 2);
        assert_eq!(get(&config, &["hash-max-ziplist-entries"])[0].1, "2");
    }

    #[test]
    fn protected_directives_can_be_opened_to_local_clients() {
        let mut config = config();
        config.settings.enable_protected_configs = Access::Local;
        let pairs: [(&[u8], &[u8]); 1] = [(b"dbfilename", b"x.rdb")];
        assert!(config.set(&pairs, Asker::Remote).is_err());
        assert!(config.set(&pairs, Asker::Local).is_ok());
    }

    #[test]
    fn dir_must_exist_and_starts_where_it_was() {
        let mut config = config();
        config.settings.enable_protected_configs = Access::Yes;
        let missing = set(&mut config, &[("dir", "/nonexistent")]).unwrap_err();
        assert!(missing.ends_with("No such file or directory"), "{missing}");
        let file = set(&mut config, &[("dir", "/dev/null")]).unwrap_err();
        assert!(file.ends_with("Not a directory"), "{file}");
        set(&mut config, &[("dir", "dev")]).unwrap();
        assert_eq!(config.dir, Path::new("/dev"));
    }

    #[test]
    fn secrets_are_known() {
        assert!(is_sensitive(b"RequirePass"));
        assert!(!is_sensitive(b"port"));
    }

    #[test]
    fn what_has_no_effect_is_said() {
        let mut config = config();
        assert_eq!(config.notices(), Vec::<String>::new());
        set(&mut config, &[("activedefrag", "yes"), ("save", "")]).unwrap();
        let why = "'activedefrag' is set, but has no effect: the allocator cannot move values together.";
        assert_eq!(config.notices(), [why]);
    }
}
