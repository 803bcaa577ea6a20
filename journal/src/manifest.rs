//! The manifest of an AOF: a list of files in the format of Redis 7.
//!
//! ```text
//! file appendonly.aof.2.base.rdb seq 2 type b      the data at some moment
//! file appendonly.aof.1.incr.aof seq 1 type h      no longer needed, and must be removed
//! file appendonly.aof.2.incr.aof seq 2 type i      the commands since then, one file after the other
//! ```

use std::fmt;

use braid_protocol::request::{Limits, Parse, RequestParser};

/// The longest line in bytes, including its end.
const LINE_MAX: usize = 1024;

/// The kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A data set as it was at some moment.
    Base,
    /// Changes since then.
    Increment,
}

/// Returns the kind and number of a part of the AOF `of`, by its name.
pub fn part_named(name: &[u8], of: &str) -> Option<(FileKind, u64)> {
    let rest = name.strip_prefix(of.as_bytes())?.strip_prefix(b".")?;
    let (number, kind) = std::str::from_utf8(rest).ok()?.split_once('.')?;
    let kind = match kind {
        "base.rdb" | "base.aof" => FileKind::Base,
        "incr.aof" => FileKind::Increment,
        _ => return None,
    };
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse().ok().filter(|_| is_number).map(|number| (kind, number))
}

/// One file of an AOF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name in the folder of the manifest.
    pub name: Vec<u8>,
    /// Its number among those of its kind, from 1 on.
    pub seq: u64,
}

/// The files of which an AOF consists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The data at the start of the increments; `None` if there was none.
    pub base: Option<Part>,
    /// The changes since then, in order.
    pub increments: Vec<Part>,
    /// Files that are no longer needed. The last one to become history is first.
    pub history: Vec<Part>,
    /// The highest numbers that a base and an increment have had.
    last_base: u64,
    last_increment: u64,
}

/// An error in a manifest, in Redis's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The number of the line, from 1 on, and its text.
    ///
    /// `None` if the whole manifest is wrong.
    pub line: Option<(usize, String)>,
    /// The text of the error.
    pub why: &'static str,
}

impl fmt::Display for Invalid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.line {
            Some((number, line)) => write!(out, "line {number}, '{line}': {}", self.why),
            None => write!(out, "{}", self.why),
        }
    }
}

impl std::error::Error for Invalid {}

impl Manifest {
    /// Parses a manifest.
    ///
    /// # Errors
    /// The error in the manifest, which keeps a server from starting.
    pub fn read(text: &[u8]) -> Result<Manifest, Invalid> {
        if text.is_empty() {
            return Err(Invalid { line: None, why: "Found an empty AOF manifest" });
        }
        let mut manifest = Manifest::default();
        for (nth, line) in text.split_inclusive(|&byte| byte == b'\n').enumerate() {
            if line[0] == b'#' {
                continue;
            }
            manifest.add_line(line).map_err(|why| {
                let shown = String::from_utf8_lossy(line.trim_ascii()).into_owned();
                Invalid { line: Some((nth + 1, shown)), why }
            })?;
        }
        Ok(manifest)
    }

    /// Creates an empty manifest that numbers its files after existing ones of the same kind.
    ///
    /// A manifest that was lost may have named those files.
    pub fn behind<'n>(names: impl IntoIterator<Item = &'n [u8]>, of: &str) -> Manifest {
        let mut manifest = Manifest::default();
        for (kind, number) in names.into_iter().filter_map(|name| part_named(name, of)) {
            let last = match kind {
                FileKind::Base => &mut manifest.last_base,
                FileKind::Increment => &mut manifest.last_increment,
            };
            *last = number.max(*last);
        }
        manifest
    }

    /// The lowest number of a base or increment in the manifest, if there is one.
    pub fn first_of(&self, kind: FileKind) -> Option<u64> {
        match kind {
            FileKind::Base => self.base.as_ref().map(|part| part.seq),
            FileKind::Increment => self.increments.first().map(|part| part.seq),
        }
    }

    fn add_line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        const FORMAT: &str = "Invalid AOF manifest file format";
        if !line.ends_with(b"\n") || line.len() > LINE_MAX {
            return Err("The AOF manifest file contains too long line");
        }
        let words = words(line).filter(|words| words.len() >= 6 && words.len() % 2 == 0).ok_or(FORMAT)?;
        let (mut name, mut seq, mut kind) = (Vec::new(), 0, 0);
        for pair in words.chunks_exact(2) {
            let (key, value) = (pair[0].to_ascii_lowercase(), &pair[1]);
            match &key[..] {
                b"file" if value.iter().any(|byte| b"/\\".contains(byte)) => {
                    return Err("File can't be a path, just a filename");
                }
                b"file" => name.clone_from(value),
                b"seq" => seq = std::str::from_utf8(value).ok().and_then(|seq| seq.parse().ok()).unwrap_or(0),
                b"type" => kind = value.first().copied().unwrap_or(0),
                // The field of a later version.
                _ => {}
            }
        }
        if name.is_empty() || seq == 0 || kind == 0 {
            return Err(FORMAT);
        }
        let part = Part { name, seq };
        match kind {
            b'b' if self.base.is_some() => return Err("Found duplicate base file information"),
            b'b' => {
                self.last_base = seq;
                self.base = Some(part);
            }
            b'i' if seq <= self.last_increment => return Err("Found a non-monotonic sequence number"),
            b'i' => {
                self.last_increment = seq;
                self.increments.push(part);
            }
            b'h' => self.history.push(part),
            _ => return Err("Unknown AOF file type"),
        }
        Ok(())
    }

    /// The text of the manifest file.
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let mut add = |part: &Part, kind: char| {
            text.extend_from_slice(b"file ");
            write_name(&part.name, &mut text);
            text.extend_from_slice(format!(" seq {} type {kind}\n", part.seq).as_bytes());
        };
        self.base.iter().for_each(|part| add(part, 'b'));
        self.history.iter().for_each(|part| add(part, 'h'));
        self.increments.iter().for_each(|part| add(part, 'i'));
        text
    }

    /// Adds the next increment of the AOF `of`.
    pub fn begin_increment(&mut self, of: &str) -> &Part {
        self.last_increment += 1;
        let name = format!("{of}.{}.incr.aof", self.last_increment).into_bytes();
        self.increments.push(Part { name, seq: self.last_increment });
        self.increments.last().expect("it was added just now")
    }

    /// Adds a new base. The old one and all increments but the last `n_kept` become history.
    pub fn begin_base(&mut self, of: &str, is_snapshot: bool, n_kept: usize) -> &Part {
        self.last_base += 1;
        let suffix = if is_snapshot { "rdb" } else { "aof" };
        let name = format!("{of}.{}.base.{suffix}", self.last_base).into_bytes();
        let n_over = self.increments.len().saturating_sub(n_kept);
        for part in self.base.take().into_iter().chain(self.increments.drain(..n_over)) {
            self.history.insert(0, part);
        }
        self.base.insert(Part { name, seq: self.last_base })
    }

    /// Skips the number of the next base, so that no base gets it.
    pub fn skip_base(&mut self) {
        self.last_base += 1;
    }

    /// Creates a manifest whose base is a file from a time without manifests.
    pub fn of_single_file(name: &str) -> Manifest {
        let base = Part { name: name.as_bytes().to_vec(), seq: 1 };
        Manifest { base: Some(base), last_base: 1, ..Manifest::default() }
    }
}

/// The words of a line, split with quotes as Redis splits an inline command.
fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut line = line.trim_ascii().to_vec();
    if line.first().is_none_or(|byte| *byte == b'*') {
        return None;
    }
    line.extend_from_slice(b"\r\n");
    let limits = Limits { max_bulk_bytes: LINE_MAX as u64, authenticated: true };
    let mut words = Vec::new();
    match RequestParser::new(limits).parse(&mut line, &mut words) {
        Ok(Parse::Request { .. }) => Some(words.iter().map(|word| word.of(&line).to_vec()).collect()),
        _ => None,
    }
}

/// Appends a name, in quotes unless it has only visible ASCII without quotes and backslashes.
fn write_name(name: &[u8], to: &mut Vec<u8>) {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"'\\".contains(byte);
    if !name.is_empty() && name.iter().all(is_plain) {
        return to.extend_from_slice(name);
    }
    to.push(b'"');
    for &byte in name {
        match byte {
            b'"' | b'\\' => to.extend_from_slice(&[b'\\', byte]),
            b'\n' => to.extend_from_slice(b"\\n"),
            b'\r' => to.extend_from_slice(b"\\r"),
            b'\t' => to.extend_from_slice(b"\\t"),
            0x07 => to.extend_from_slice(b"\\a"),
            0x08 => to.extend_from_slice(b"\\b"),
            b' '..=b'~' => to.push(byte),
            _ => to.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    to.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, seq: u64) -> Part {
        Part { name: name.as_bytes().to_vec(), seq }
    }

    fn why(text: &str) -> &'static str {
        Manifest::read(text.as_bytes()).expect_err("it is invalid").why
    }

    #[test]
    fn only_names_of_its_own_are_parts() {
        for (name, is) in [
            ("appendonly.aof.1.base.rdb", Some((FileKind::Base, 1))),
            ("appendonly.aof.22.base.aof", Some((FileKind::Base, 22))),
            ("appendonly.aof.3.incr.aof", Some((FileKind::Increment, 3))),
            ("appendonly.aof.3.incr.aof.bak", None),
            ("appendonly.aof.x.incr.aof", None),
            ("appendonly.aof.+3.incr.aof", None),
            ("appendonly.aof..incr.aof", None),
            ("appendonly.aof", None),
            ("other.aof.1.base.rdb", None),
        ] {
            assert_eq!(part_named(name.as_bytes(), "appendonly.aof"), is, "{name}");
        }
    }

    #[test]
    fn without_a_manifest_parts_that_are_there_are_numbered_past() {
        let names = ["a.7.base.rdb", "a.3.base.aof", "a.9.incr.aof", "b.20.incr.aof", "a.30.incr.aof.bak"];
        let mut manifest = Manifest::behind(names.map(str::as_bytes), "a");
        assert_eq!(manifest, Manifest { last_base: 7, last_increment: 9, ..Manifest::default() });
        manifest.begin_increment("a");
        assert_eq!(manifest.first_of(FileKind::Increment), Some(10));
        assert_eq!(manifest.first_of(FileKind::Base), None);
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let mut manifest = Manifest::of_single_file("appendonly.aof");
        manifest.begin_increment("appendonly.aof");
        manifest.begin_increment("with space\"\u{7}\n\u{1}");
        manifest.begin_base("appendonly.aof", true, 1);
        let text = manifest.text();
        assert_eq!(Manifest::read(&text), Ok(manifest.clone()));
        assert_eq!(manifest.base, Some(part("appendonly.aof.2.base.rdb", 2)));
        assert_eq!(manifest.history, [part("appendonly.aof.1.incr.aof", 1), part("appendonly.aof", 1)]);
        assert_eq!(
            String::from_utf8_lossy(&text),
            "file appendonly.aof.2.base.rdb seq 2 type b\n\
             file appendonly.aof.1.incr.aof seq 1 type h\n\
             file appendonly.aof seq 1 type h\n\
             file \"with space\\\"\\a\\n\\x01.2.incr.aof\" seq 2 type i\n"
        );
    }

    #[test]
    fn numbers_go_on_behind_those_that_were_read() {
        let text = "# a comment\nfile a.3.base.aof seq 3 type b\nFILE 'a.7.incr.aof' SEQ 7 later x type i\n";
        let mut manifest = Manifest::read(text.as_bytes()).expect("it is valid");
        assert_eq!(*manifest.begin_increment("a"), part("a.8.incr.aof", 8));
        assert_eq!(*manifest.begin_base("a", false, 0), part("a.4.base.aof", 4));
        assert!(manifest.increments.is_empty());
    }

    #[test]
    fn what_is_wrong_is_told_in_the_words_of_redis() {
        assert_eq!(why(""), "Found an empty AOF manifest");
        for text in [
            "\n",
            "file a seq 1\n",
            "file a seq 1 type i more\n",
            "file a seq x type b\n",
            "file \"a seq 1 type b\n",
        ] {
            assert_eq!(why(text), "Invalid AOF manifest file format", "{text:?}");
        }
        assert_eq!(why("file a seq 1 type b"), "The AOF manifest file contains too long line");
        assert_eq!(why("file ../a seq 1 type b\n"), "File can't be a path, just a filename");
        assert_eq!(why("file a seq 1 type x\n"), "Unknown AOF file type");
        assert_eq!(
            why("file a seq 1 type b\nfile b seq 2 type b\n"),
            "Found duplicate base file information"
        );
        let text = "file a seq 2 type i\nfile b seq 2 type i\n";
        let invalid = Manifest::read(text.as_bytes()).expect_err("it is invalid");
        assert_eq!(
            invalid.to_string(),
            "line 2, 'file b seq 2 type i': Found a non-monotonic sequence number"
        );
    }
}
