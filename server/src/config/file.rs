//! Configuration files: their lines and includes, and errors in them.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::configuration::{Config, Glob};
use super::directives::{self, DIRECTIVES};
use super::value::{Kind, Reason, Value, path_of, refusal};
use super::words;

/// Greatest depth of files that include files.
///
/// Redis sets no limit, and a file that includes itself overflows its stack.
const MAX_INCLUDE_DEPTH: usize = 16;

/// The reason why the server does not start.
///
/// It prints as Redis does, for operators who search for the message.
#[derive(Clone, Debug, PartialEq)]
pub enum FatalConfigError {
    /// A refused line.
    Line {
        /// The included file with the line; `None` for the main file and the command line.
        file: Option<PathBuf>,
        /// Number of the line, from 1. Options of the command line follow the file's last line after an empty
        /// one.
        number: usize,
        /// The line without surrounding spaces.
        line: Vec<u8>,
        /// The reason of the refusal.
        reason: Reason,
    },
    /// An unreadable file.
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The operating system's text.
        why: String,
    },
    /// A required feature that is missing, without which the server must not start.
    Missing {
        /// The directive that requires it.
        name: &'static str,
        /// The missing feature.
        why: &'static str,
    },
    /// Users declared both in the configuration and in an ACL file.
    UsersTwice,
}

impl fmt::Display for FatalConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FatalConfigError::Line { file, number, line, reason } => {
                let version = env!("CARGO_PKG_VERSION");
                writeln!(out, "\n*** FATAL CONFIG FILE ERROR (Braid {version}) ***")?;
                match file {
                    None => writeln!(out, "Reading the configuration file, at line {number}")?,
                    Some(file) => {
                        writeln!(out, "Reading the configuration file {}, at line {number}", file.display())?;
                    }
                }
                write!(out, ">>> '{}'\n{reason}", String::from_utf8_lossy(line))
            }
            FatalConfigError::Unreadable { path, why } => {
                write!(out, "Fatal error, can't open config file '{}': {why}", path.display())
            }
            FatalConfigError::Missing { name, why } => {
                write!(out, "Fatal error: '{name}' is set, and {why}. Take it away to start without that.")
            }
            FatalConfigError::UsersTwice => out.write_str(
                "Users are declared both in the configuration and in the ACL file that 'aclfile' names. \
                 Use either 'user' lines or an ACL file, but not both.",
            ),
        }
    }
}

impl std::error::Error for FatalConfigError {}

/// Reads text into a configuration, line by line.
pub(super) struct Loader<'a> {
    config: &'a mut Config,
    glob: Glob,
    /// Whether a `save` line was read. The first one replaces the default save points; later ones add theirs.
    saw_save: bool,
    depth: usize,
    /// The declared users, each with the depth of the file that declares it.
    declared: HashMap<Vec<u8>, usize>,
}

impl<'a> Loader<'a> {
    pub(super) fn new(config: &'a mut Config, glob: Glob) -> Self {
        Loader { config, glob, saw_save: false, depth: 0, declared: HashMap::new() }
    }

    /// Reads the main text: the file, if any, and the options after it.
    pub(super) fn load(&mut self, text: &[u8]) -> Result<(), FatalConfigError> {
        self.load_text(text, None)?;
        if self.config.aclfile.is_some() && !self.config.users.is_empty() {
            return Err(FatalConfigError::UsersTwice);
        }
        Ok(())
    }

    fn load_text(&mut self, text: &[u8], file: Option<&Path>) -> Result<(), FatalConfigError> {
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            let refused = |reason| FatalConfigError::Line {
                file: file.map(Path::to_path_buf),
                number: index + 1,
                line: line.to_vec(),
                reason,
            };
            match parse_line(line).map_err(refused)? {
                Line::Nothing => {}
                Line::Include(pattern) if self.depth < MAX_INCLUDE_DEPTH => self.include(&pattern)?,
                Line::Include(_) => return Err(refused(Reason::Rule("Files include each other too deeply"))),
                Line::Directive(place, words) => self.take(place, &words).map_err(refused)?,
            }
        }
        Ok(())
    }

    /// Reads the files that a pattern names.
    ///
    /// A pattern may match no file, but a name without wildcards must exist.
    fn include(&mut self, pattern: &[u8]) -> Result<(), FatalConfigError> {
        self.depth += 1;
        for path in expand(&self.config.dir, pattern, self.glob) {
            self.load_text(&read(&path)?, Some(&path))?;
        }
        self.depth -= 1;
        Ok(())
    }

    fn take(&mut self, place: usize, words: &[Vec<u8>]) -> Result<(), Reason> {
        let row = &DIRECTIVES[place];
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let mut value = row.parse(&words, &self.config.values[place])?;
        match row.kind {
            Kind::Save => {
                value = self.more_save_points(place, value, words.is_empty());
                self.saw_save = true;
            }
            Kind::Line { .. } if row.name == "user" => self.declare(&mut value)?,
            _ => {}
        }
        self.config.values[place] = Arc::new(value);
        self.config.apply(place);
        Ok(())
    }

    /// Accepts the last of the `user` lines.
    ///
    /// A user is declared once, except that a file may declare again the users of a file that it includes.
    /// The second declaration then replaces the first.
    fn declare(&mut self, users: &mut Value) -> Result<(), Reason> {
        let Value::Lines(lines) = users else { return Ok(()) };
        let Some(name) = lines.last().and_then(|line| line.first()).cloned() else { return Ok(()) };
        if let Some(earlier) = self.declared.insert(name.clone(), self.depth) {
            if earlier <= self.depth {
                return Err(Reason::DuplicateUser(name));
            }
            let replaced = lines.iter().position(|line| line.first() == Some(&name));
            lines.remove(replaced.expect("it is declared above"));
        }
        Ok(())
    }

    /// Returns the save points after a `save` line with the points `new`.
    ///
    /// `save ""` removes all points, and a bare `save` adds none.
    fn more_save_points(&self, place: usize, new: Value, is_bare: bool) -> Value {
        match (&*self.config.values[place], new) {
            (Value::Save(old), Value::Save(new)) if self.saw_save && (is_bare || !new.is_empty()) => {
                Value::Save([old.as_slice(), &new].concat())
            }
            (_, new) => new,
        }
    }
}

/// The content of a line of a configuration file.
pub(super) enum Line {
    /// Empty, or a comment.
    Nothing,
    /// A pattern of files to read here.
    Include(Vec<u8>),
    /// A directive's position in the table, and the words after its name.
    Directive(usize, Vec<Vec<u8>>),
}

/// Parses one line, but not the words after a directive's name.
pub(super) fn parse_line(line: &[u8]) -> Result<Line, Reason> {
    let line = line.trim_ascii();
    if line.is_empty() || line[0] == b'#' {
        return Ok(Line::Nothing);
    }
    let mut words =
        words::split(line).ok_or(Reason::Rule("Unbalanced quotes in configuration line"))?.into_iter();
    let Some(name) = words.next() else {
        return Ok(Line::Nothing);
    };
    let mut words: Vec<Vec<u8>> = words.collect();
    if name.eq_ignore_ascii_case(b"include") {
        return match (words.pop(), words.is_empty()) {
            (Some(pattern), true) => Ok(Line::Include(pattern)),
            _ => Err(Reason::BadDirective),
        };
    }
    match directives::find(&name) {
        Some((_, place)) => Ok(Line::Directive(place, words)),
        None => Err(Reason::BadDirective),
    }
}

/// Reads a file. An error names it.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, FatalConfigError> {
    let unreadable =
        |error: io::Error| FatalConfigError::Unreadable { path: path.to_owned(), why: refusal(&error) };
    std::fs::read(path).map_err(unreadable)
}

/// Returns the files that a pattern names, in order. Relative paths start at `base`.
///
/// As in a shell, a wildcard matches within one part of the path, and never a leading dot. Without wildcards
/// the pattern is a name, whether the file exists or not.
fn expand(base: &Path, pattern: &[u8], glob: Glob) -> Vec<PathBuf> {
    if !is_wild(pattern) {
        return vec![base.join(path_of(pattern))];
    }
    let mut paths = vec![if pattern.starts_with(b"/") { PathBuf::from("/") } else { base.to_owned() }];
    for part in pattern.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
        paths = match is_wild(part) {
            true => paths.iter().flat_map(|folder| matching(folder, part, glob)).collect(),
            false => {
                paths.iter().map(|folder| folder.join(path_of(part))).filter(|path| path.exists()).collect()
            }
        };
    }
    paths
}

/// Returns the paths in `folder` that match one part of a pattern, sorted by name.
///
/// There are none if `folder` is not a readable directory.
fn matching(folder: &Path, part: &[u8], glob: Glob) -> Vec<PathBuf> {
    let matches = |name: &[u8]| name.starts_with(b".") == part.starts_with(b".") && glob(part, name);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name()).filter(|name| matches(name.as_encoded_bytes()));
    let mut paths: Vec<PathBuf> = names.map(|name| folder.join(name)).collect();
    paths.sort();
    paths
}

fn is_wild(pattern: &[u8]) -> bool {
    pattern.iter().any(|byte| b"*?[".contains(byte))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::configuration::tests::{config, star};
    use super::*;

    /// Loads text over the defaults.
    pub(in crate::config) fn load(text: &str) -> Result<Config, String> {
        let mut config = config();
        match Loader::new(&mut config, star).load(text.as_bytes()) {
            Ok(()) => Ok(config),
            Err(error) => Err(error.to_string()),
        }
    }

    fn value(config: &Config, name: &str) -> String {
        let found = config.get(&[name.as_bytes()], star);
        String::from_utf8(found.into_iter().next().unwrap().1).unwrap()
    }

    /// A directory that is removed when the test ends.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let path = std::env::temp_dir().join(format!("braid-config-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            for (file, text) in files {
                std::fs::write(path.join(file), text).unwrap();
            }
            Folder(path.canonicalize().unwrap())
        }

        fn load(&self, text: &str) -> Result<Config, String> {
            load(&format!("dir \"{}\"\n{text}", self.0.display()))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // If removing fails, the operating system cleans its temporary directory.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn comments_spaces_quotes_and_case() {
        let config = load("# hello\r\n\n   # c\n\t hz\t 33  \r\nTIMEOUT \"7\"\nmaxmemory 100mb\n").unwrap();
        assert_eq!((value(&config, "hz"), value(&config, "timeout")), ("33".into(), "7".into()));
        assert_eq!(config.maxmemory, Some(100 << 20));
    }

    #[test]
    fn later_lines_override_and_lists_add_up() {
        let config = load(
            "hz 20\nhz 30\nbind 127.0.0.1\nbind * -::*\nsave 1 2\nsave 3 4 5 6\n\
             client-output-buffer-limit normal 1 2 3\nclient-output-buffer-limit slave 4mb 5 6\n",
        )
        .unwrap();
        assert_eq!(config.hz, 30);
        assert_eq!(value(&config, "bind"), "* -::*");
        assert_eq!(value(&config, "save"), "1 2 3 4 5 6");
        assert_eq!(
            value(&config, "client-output-buffer-limit"),
            "normal 1 2 3 slave 4194304 5 6 pubsub 33554432 8388608 60"
        );
    }

    #[test]
    fn save_points_can_be_taken_away() {
        for (text, expected) in [
            ("", "3600 1 300 100 60 10000"),
            ("save", ""),
            ("save \"\"", ""),
            ("save 1 1\nsave \"\"", ""),
            ("save \"\"\nsave 5 6", "5 6"),
            ("save 1 1\nsave", "1 1"),
        ] {
            assert_eq!(value(&load(text).unwrap(), "save"), expected, "{text}");
        }
    }

    #[test]
    fn refused_lines_are_shown_as_redis_shows_them() {
        let refused = load("port 1\n\nport abc\n").unwrap_err();
        let expected = format!(
            "\n*** FATAL CONFIG FILE ERROR (Braid {}) ***\nReading the configuration file, at line 3\n>>> 'port abc'\n\
             argument couldn't be parsed into an integer",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(refused, expected);
    }

    #[test]
    fn each_fault_has_its_reason() {
        for (line, reason) in [
            ("foo bar", "Bad directive or wrong number of arguments"),
            ("port", "wrong number of arguments"),
            ("port 0 1", "wrong number of arguments"),
            ("hz 10 # comments stand on lines of their own", "wrong number of arguments"),
            ("port \"0", "Unbalanced quotes in configuration line"),
            ("appendonly maybe", "argument must be 'yes' or 'no'"),
            ("include", "Bad directive or wrong number of arguments"),
            ("include a b", "Bad directive or wrong number of arguments"),
            ("rename-command get", "Bad directive or wrong number of arguments"),
            ("user", "Bad directive or wrong number of arguments"),
            ("user a on\nuser a on", "A user can only be defined once in config files"),
            ("dir /nonexistent", "No such file or directory"),
            ("bind a b c d e f g h i j k l m n o p q", "Too many bind addresses specified."),
        ] {
            let refused = load(line).unwrap_err();
            assert!(refused.ends_with(reason), "{line}: {refused}");
        }
        assert!(load("aclfile x\nuser a on").unwrap_err().contains("but not both"));
    }

    #[test]
    fn declarations_keep_their_words() {
        let config = load("rename-command get \"\"\nrename-command SET s\nuser a on >\"p w\" ~*\n").unwrap();
        let [get, set] = config.renamed_commands.as_slice() else { panic!() };
        assert_eq!((get.from.as_slice(), &get.to), (&b"get"[..], &None));
        assert_eq!(set.to.as_deref(), Some(&b"s"[..]));
        // A quote may open in the middle of a word.
        assert_eq!(config.users[0].rules, [&b"on"[..], b">p w", b"~*"]);
    }

    #[test]
    fn includes_take_patterns_and_are_read_where_they_stand() {
        let folder =
            Folder::new("include", &[("b.conf", "hz 40"), ("a.conf", "hz 30\nport 7"), (".c.conf", "hz 50")]);
        let config = folder.load("hz 20\nport 8\ninclude *.conf\ntimeout 3\n").unwrap();
        assert_eq!((config.hz, config.port), (40, 7));
        assert_eq!(folder.load("include a.conf\nhz 20").unwrap().hz, 20);
        assert_eq!(folder.load("include nothing-*.conf").unwrap().hz, 10);
        let missing = folder.load("include nothing.conf").unwrap_err();
        assert!(missing.starts_with("Fatal error, can't open config file '"), "{missing}");
        assert!(missing.ends_with("No such file or directory"), "{missing}");
    }

    #[test]
    fn the_primary_may_be_one_word() {
        let one = load("replicaof \"127.0.0.1 6379\"\n").unwrap();
        assert_eq!(one.replicaof, load("replicaof 127.0.0.1 6379\n").unwrap().replicaof);
        assert!(one.replicaof.is_some());
        assert!(load("replicaof \"no one\"\nslaveof NO ONE\n").unwrap().check_at_start().is_ok());
        assert!(load("replicaof none\n").unwrap_err().ends_with("wrong number of arguments"));
    }

    #[test]
    fn a_fault_in_an_included_file_names_the_file() {
        let folder = Folder::new("fault", &[("a.conf", "\nport x")]);
        let refused = folder.load("include a.conf").unwrap_err();
        let place = format!("Reading the configuration file {}/a.conf, at line 2\n", folder.0.display());
        assert!(refused.contains(&place), "{refused}");
    }

    #[test]
    fn a_file_that_includes_itself_is_refused() {
        let folder = Folder::new("loop", &[("a.conf", "include a.conf")]);
        let refused = folder.load("include a.conf").unwrap_err();
        assert!(refused.ends_with("Files include each other too deeply"), "{refused}");
    }
}
