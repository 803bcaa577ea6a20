//! The first line of a script or library: `#!lua name=mylib flags=no-writes,allow-stale`.

use std::fmt;

/// The flags of a script or function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// Writes nothing, so it may run on a replica.
    pub const NO_WRITES: Flags = Flags(1);
    /// May run when memory is full.
    pub const ALLOW_OOM: Flags = Flags(2);
    /// May run on a replica that has lost its master.
    pub const ALLOW_STALE: Flags = Flags(4);
    /// May not run in a cluster.
    pub const NO_CLUSTER: Flags = Flags(8);
    /// May reach keys of several slots.
    pub const ALLOW_CROSS_SLOT_KEYS: Flags = Flags(16);

    /// Every flag with its name, in the order in which Redis lists them.
    pub const NAMES: [(&str, Flags); 5] = [
        ("no-writes", Flags::NO_WRITES),
        ("allow-oom", Flags::ALLOW_OOM),
        ("allow-stale", Flags::ALLOW_STALE),
        ("no-cluster", Flags::NO_CLUSTER),
        ("allow-cross-slot-keys", Flags::ALLOW_CROSS_SLOT_KEYS),
    ];

    /// The flag with this name.
    pub fn named(name: &[u8]) -> Option<Flags> {
        Flags::NAMES.iter().find(|(known, _)| known.as_bytes() == name).map(|&(_, flag)| flag)
    }

    /// Whether all of `flags` are set.
    pub fn contains(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Sets `flags` too.
    #[must_use]
    pub fn and(self, flags: Flags) -> Flags {
        Flags(self.0 | flags.0)
    }

    /// The names of the flags that are set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Flags::NAMES.iter().filter(move |&&(_, flag)| self.contains(flag)).map(|&(name, _)| name)
    }
}

/// A complaint about a first line, in Redis's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShebangError(Vec<u8>);

impl ShebangError {
    fn new(text: &str, what: &[u8]) -> Self {
        ShebangError([text.as_bytes(), what].concat())
    }

    /// The error's text without its code, which is `ERR`.
    pub fn text(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for ShebangError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl std::error::Error for ShebangError {}

/// Reads the flags of EVAL's script; `None` if there is no such line.
///
/// # Errors
///
/// If the line names another engine, an unknown option or an unknown flag.
pub fn script(source: &[u8]) -> Result<Option<Flags>, ShebangError> {
    if !source.starts_with(b"#!") {
        return Ok(None);
    }
    let line = first_line(source).ok_or_else(|| ShebangError::new("Invalid script shebang", b""))?;
    let words = words(line).ok_or_else(|| ShebangError::new("Invalid engine in script shebang", b""))?;
    let (engine, options) = words.split_first().expect("the line has two characters");
    if engine != b"#!lua" {
        return Err(ShebangError::new("Unexpected engine in script shebang: ", engine));
    }
    let mut flags = Flags::default();
    for option in options {
        let list = option
            .strip_prefix(b"flags=")
            .ok_or_else(|| ShebangError::new("Unknown lua shebang option: ", option))?;
        for name in list.split(|&byte| byte == b',').filter(|_| !list.is_empty()) {
            let flag = Flags::named(name);
            flags = flags
                .and(flag.ok_or_else(|| ShebangError::new("Unexpected flag in script shebang: ", name))?);
        }
    }
    Ok(Some(flags))
}

/// Reads the name of a library.
///
/// # Errors
///
/// If the line is missing, names another engine, or names the library wrongly, twice or not at all.
pub fn library(source: &[u8]) -> Result<String, ShebangError> {
    if !source.starts_with(b"#!") {
        return Err(ShebangError::new("Missing library metadata", b""));
    }
    let words = first_line(source).and_then(words);
    let words = words.ok_or_else(|| ShebangError::new("Invalid library metadata", b""))?;
    let (engine, options) = words.split_first().expect("the line has two characters");
    let mut name = None;
    for option in options {
        let (key, value) = option.split_at_checked(5).unwrap_or((&[], option));
        if !key.eq_ignore_ascii_case(b"name=") {
            return Err(ShebangError::new("Invalid metadata value given: ", option));
        }
        if name.replace(value).is_some() {
            return Err(ShebangError::new(
                "Invalid metadata value, name argument was given multiple times",
                b"",
            ));
        }
    }
    let name = name.ok_or_else(|| ShebangError::new("Library name was not given", b""))?;
    let name = valid_name(name).ok_or_else(|| ShebangError::new(INVALID_NAME, b""))?;
    if !engine[2..].eq_ignore_ascii_case(b"lua") {
        let quoted = [&engine[2..], b"' not found"].concat();
        return Err(ShebangError::new("Engine '", &quoted));
    }
    Ok(name)
}

/// Redis's complaint about the name of a library or function with other characters.
pub(crate) const INVALID_NAME: &str = "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";

/// The name, if it consists of letters, digits and underscores.
pub(crate) fn valid_name(name: &[u8]) -> Option<String> {
    let is_valid = !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    is_valid.then(|| String::from_utf8_lossy(name).into_owned())
}

/// The source without its first line.
///
/// The line's end stays, so that lines keep their numbers.
pub(crate) fn body(source: &[u8]) -> &[u8] {
    match first_line(source) {
        Some(line) if source.starts_with(b"#!") => &source[line.len()..],
        _ => source,
    }
}

fn first_line(source: &[u8]) -> Option<&[u8]> {
    source.iter().position(|&byte| byte == b'\n').map(|end| &source[..end])
}

/// Splits a line at spaces outside quotes, as Redis splits its configuration.
///
/// Returns `None` if a quote is not closed.
fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let (word, after) = word(rest)?;
        words.push(word);
        rest = after.trim_ascii_start();
    }
    Some(words)
}

fn word(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    loop {
        match rest {
            [] => return Some((word, rest)),
            [quote @ (b'"' | b'\''), inner @ ..] => {
                rest = quoted(*quote, inner, &mut word)?;
                // A closing quote ends the word.
                return rest.first().is_none_or(u8::is_ascii_whitespace).then_some((word, rest));
            }
            [byte, after @ ..] if byte.is_ascii_whitespace() => return Some((word, after)),
            [byte, after @ ..] => {
                word.push(*byte);
                rest = after;
            }
        }
    }
}

fn quoted<'a>(quote: u8, mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        match (byte, rest) {
            (byte, _) if byte == quote => return Some(rest),
            (b'\\', [b'x', high, low, after @ ..])
                if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).expect("hexadecimal digits are text");
                word.push(u8::from_str_radix(digits, 16).expect("they are digits"));
                rest = after;
            }
            (b'\\', [escaped, after @ ..]) if quote == b'"' || *escaped == b'\'' => {
                word.push(unescaped(*escaped));
                rest = after;
            }
            (byte, _) => word.push(byte),
        }
    }
}

fn unescaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script_error(source: &str) -> String {
        script(source.as_bytes()).expect_err("it is wrong").to_string()
    }

    #[test]
    fn scripts_name_their_flags() {
        assert_eq!(script(b"return 1"), Ok(None));
        assert_eq!(script(b"#!lua\nreturn 1"), Ok(Some(Flags::default())));
        assert_eq!(script(b"#!lua flags=\nreturn 1"), Ok(Some(Flags::default())));
        let both = Flags::NO_WRITES.and(Flags::ALLOW_STALE);
        assert_eq!(script(b"#!lua  flags=no-writes,allow-stale  \nreturn 1"), Ok(Some(both)));
        assert_eq!(script(b"#!lua \"flags=no-writes\" flags=allow-stale\n"), Ok(Some(both)));
        assert_eq!(both.names().collect::<Vec<_>>(), ["no-writes", "allow-stale"]);
    }

    #[test]
    fn wrong_lines_of_scripts_are_named_as_in_redis() {
        assert_eq!(script_error("#!lua flags=no-writes"), "Invalid script shebang");
        assert_eq!(script_error("#!lua flags=x\n"), "Unexpected flag in script shebang: x");
        assert_eq!(script_error("#!lua flags=no-writes,\n"), "Unexpected flag in script shebang: ");
        assert_eq!(script_error("#!lua foo=1\n"), "Unknown lua shebang option: foo=1");
        assert_eq!(script_error("#!foo\n"), "Unexpected engine in script shebang: #!foo");
        assert_eq!(script_error("#! lua\n"), "Unexpected engine in script shebang: #!");
        assert_eq!(script_error("#!LUA\n"), "Unexpected engine in script shebang: #!LUA");
        assert_eq!(script_error("#!lua flags=\"no-writes\n"), "Invalid engine in script shebang");
    }

    #[test]
    fn libraries_have_a_name() {
        assert_eq!(library(b"#!lua name=my_lib1\n"), Ok("my_lib1".to_owned()));
        assert_eq!(library(b"#!LUA NAME=x\n"), Ok("x".to_owned()));
        for (source, error) in [
            ("x", "Missing library metadata"),
            ("#!lua", "Invalid library metadata"),
            ("#!lua\n", "Library name was not given"),
            ("#!lua name=\n", INVALID_NAME),
            ("#!lua name=a-b\n", INVALID_NAME),
            ("#!lua name=a foo=b\n", "Invalid metadata value given: foo=b"),
            ("#!lua name=a name=b\n", "Invalid metadata value, name argument was given multiple times"),
            ("#!foo name=a\n", "Engine 'foo' not found"),
        ] {
            assert_eq!(library(source.as_bytes()).expect_err("it is wrong").to_string(), error, "{source}");
        }
    }
}
