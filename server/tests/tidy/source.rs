//! The project's files, and Rust source divided far enough to judge it line by line.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Returns the folder of the crates.
pub fn root() -> PathBuf {
    let server = Path::new(env!("CARGO_MANIFEST_DIR"));
    server.parent().expect("the crate is a folder of the workspace").to_owned()
}

/// Returns the folders of the workspace's crates, as the root's `Cargo.toml` lists them.
pub fn crates() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace has a manifest");
    let (_, list) = manifest.split_once("\nmembers = [").expect("the workspace lists its members");
    let (list, _) = list.split_once(']').expect("the list ends");
    let crates: Vec<String> = list
        .split(',')
        .map(|name| name.trim().trim_matches('"').to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    assert!(crates.len() >= 6, "the search has missed crates: {crates:?}");
    crates
}

/// Returns every text file of the project, with its path from the root.
pub fn texts() -> Vec<(String, String)> {
    let mut texts = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
        for entry in entries {
            let path = entry.expect("the folder can be read to its end").path();
            let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
            if name == ".git" || name == "target" {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                let path =
                    path.strip_prefix(root()).expect("it lies below the root").to_string_lossy().into_owned();
                texts.push((path, text));
            }
        }
    }
    texts.sort();
    assert!(texts.len() > 100, "the walk has missed the project: {} files", texts.len());
    texts
}

/// One line of Rust.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// The code without comments and without the contents of literals: `"…"` is `""`.
    pub code: String,
    /// The text of its comments.
    pub comment: String,
    /// Whether the line is compiled only for tests or for loom.
    pub is_test: bool,
}

/// A file of Rust.
pub struct Source {
    /// The path from the root.
    pub path: String,
    /// The lines of the file.
    pub lines: Vec<Line>,
}

impl Source {
    /// Returns the lines that are part of the product, with their numbers from 1.
    pub fn product(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.lines.iter().enumerate().filter(|(_, line)| !line.is_test).map(|(at, line)| (at + 1, line))
    }

    /// Whether a comment on line `number`, or on one of the `n` lines above it, contains one of `words`.
    pub fn says(&self, number: usize, n: usize, words: &[&str]) -> bool {
        let from = number.saturating_sub(n + 1);
        self.lines[from..number].iter().any(|line| words.iter().any(|word| line.comment.contains(word)))
    }

    /// Returns the product's code in one piece. A line that begins with a dot is joined to the one before, so
    /// a chain of calls is one piece.
    pub fn joined(&self) -> String {
        let mut joined = String::new();
        for (_, line) in self.product() {
            let code = line.code.trim();
            if !code.starts_with('.') {
                joined.push(' ');
            }
            joined.push_str(code);
        }
        joined
    }
}

/// Returns the sources below `folder` (from the root), without files that are modules of tests.
pub fn sources(folder: &str) -> Vec<Source> {
    let of_folder = |path: &String| path.starts_with(folder) && path.ends_with(".rs");
    let mut sources: Vec<Source> = texts()
        .into_iter()
        .filter(|(path, _)| of_folder(path))
        .map(|(path, text)| Source { path, lines: lines(&text) })
        .collect();
    assert!(!sources.is_empty(), "there is no source in {folder}");
    let of_tests: BTreeSet<String> = sources.iter().flat_map(test_modules).collect();
    sources.retain(|source| !of_tests.iter().any(|file| source.path.starts_with(file.as_str())));
    sources
}

/// Returns the paths of the modules that a file declares for tests only, without the ending.
pub fn test_modules(source: &Source) -> Vec<String> {
    let stem = source.path.trim_end_matches(".rs");
    let folder = match stem.rsplit_once('/') {
        Some((folder, "lib" | "main" | "mod")) => folder,
        _ => stem,
    };
    let tests = source.lines.iter().filter(|line| line.is_test);
    let names = tests
        .filter_map(|line| line.code.trim().strip_suffix(';')?.rsplit_once("mod ").map(|(_, name)| name));
    names.map(|name| format!("{folder}/{name}")).collect()
}

/// Divides Rust source into lines.
pub fn lines(text: &str) -> Vec<Line> {
    let mut lines = vec![Line::default()];
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    let starts = |at: usize, with: &str| with.chars().enumerate().all(|(n, c)| chars.get(at + n) == Some(&c));
    while at < chars.len() {
        let line = lines.last_mut().expect("there is one");
        let before = line.code.chars().last().unwrap_or(' ');
        if chars[at] == '\n' {
            lines.push(Line::default());
            at += 1;
        } else if starts(at, "//") {
            while at < chars.len() && chars[at] != '\n' {
                line.comment.push(chars[at]);
                at += 1;
            }
        } else if starts(at, "/*") {
            let mut depth = 0;
            loop {
                match () {
                    () if starts(at, "/*") => (depth, at) = (depth + 1, at + 2),
                    () if starts(at, "*/") => (depth, at) = (depth - 1, at + 2),
                    () => {
                        note(&mut lines, chars[at]);
                        at += 1;
                    }
                }
                if depth == 0 || at >= chars.len() {
                    break;
                }
            }
        } else if chars[at] == 'r' && !is_word(before) && raw_hashes(&chars, at + 1).is_some() {
            let n_hashes = raw_hashes(&chars, at + 1).expect("just seen");
            let end = format!("\"{}", "#".repeat(n_hashes));
            at += n_hashes + 2;
            line.code.push_str("\"\"");
            while at < chars.len() && !starts(at, &end) {
                skip(&mut lines, chars[at]);
                at += 1;
            }
            at += end.len();
        } else if chars[at] == '"' {
            line.code.push_str("\"\"");
            at += 1;
            while at < chars.len() && chars[at] != '"' {
                // The character after a backslash is part of the literal, even a line end.
                for _ in 0..1 + usize::from(chars[at] == '\\') {
                    skip(&mut lines, chars[at]);
                    at += 1;
                }
            }
            at += 1;
        } else if chars[at] == '\'' && (starts(at + 1, "\\") || chars.get(at + 2) == Some(&'\'')) {
            line.code.push_str("' '");
            at += 1 + usize::from(chars[at + 1] == '\\');
            at += 1;
            while at < chars.len() && chars[at] != '\'' {
                at += 1;
            }
            at += 1;
        } else {
            line.code.push(chars[at]);
            at += 1;
        }
    }
    mark_tests(&mut lines);
    lines
}

fn note(lines: &mut Vec<Line>, c: char) {
    match c {
        '\n' => lines.push(Line::default()),
        c => lines.last_mut().expect("there is one").comment.push(c),
    }
}

fn skip(lines: &mut Vec<Line>, c: char) {
    if c == '\n' {
        lines.push(Line::default());
    }
}

/// Returns the number of hash marks of a raw string whose `r` is just before, if it is one.
fn raw_hashes(chars: &[char], at: usize) -> Option<usize> {
    let n = chars[at..].iter().take_while(|&&c| c == '#').count();
    (chars.get(at + n) == Some(&'"')).then_some(n)
}

/// Marks the items under `#[cfg(test)]`, `#[cfg(loom)]` and their like.
fn mark_tests(lines: &mut [Line]) {
    let mut at = 0;
    while at < lines.len() {
        let code = lines[at].code.trim();
        // Code without loom is the product, unless it is for tests.
        let without = code.replace("not(test)", "").replace("not(loom)", "");
        let is_mark =
            code.starts_with("#[cfg(") && ["test", "loom"].iter().any(|word| has_word(&without, word));
        if !is_mark {
            at += 1;
            continue;
        }
        let mut depth = 0i32;
        let mut first = true;
        loop {
            let code = if first { after_attribute(&lines[at].code) } else { lines[at].code.clone() };
            let has_attribute_only = code.trim().is_empty() || code.trim_start().starts_with("#[");
            first = false;
            lines[at].is_test = true;
            depth += code.matches('{').count() as i32 - code.matches('}').count() as i32;
            let ends = code.trim_end().ends_with(';') || code.contains('}') || code.trim_end().ends_with(',');
            at += 1;
            if at >= lines.len() || (depth <= 0 && ends && !has_attribute_only) {
                break;
            }
        }
    }
}

fn after_attribute(code: &str) -> String {
    code.split_once(']').map(|(_, rest)| rest.to_owned()).unwrap_or_default()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `text` has `word` with no letter, digit or underscore on either side.
pub fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back().unwrap_or(' ');
        let after = text[at + word.len()..].chars().next().unwrap_or(' ');
        !is_word(before) && !is_word(after)
    })
}

/// Returns the paths that begin with `std::` in some code. Those of `use` are written out one by one.
pub fn std_paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("std::") {
        let before = code[..at].chars().next_back().unwrap_or(' ');
        if !is_word(before) && before != ':' {
            expand("std::", &code[at + 5..], &mut paths);
        }
    }
    paths
}

/// Writes out one path or group that follows `prefix`. Returns the number of bytes of `rest` that it took.
fn expand(prefix: &str, rest: &str, paths: &mut Vec<String>) -> usize {
    let word_len = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
    let here = format!("{prefix}{}", &rest[..word_len]);
    let after = &rest[word_len..];
    if let Some(more) = after.strip_prefix("::").filter(|_| word_len > 0) {
        return word_len + 2 + expand(&format!("{here}::"), more, paths);
    }
    if word_len > 0 || !after.starts_with('{') {
        paths.push(here);
        return word_len;
    }
    let mut at = 1;
    while at < after.len() && !after[at..].starts_with('}') {
        let c = after[at..].chars().next().expect("not at the end");
        at += if is_word(c) { expand(prefix, &after[at..], paths) } else { c.len_utf8() };
    }
    at + 1
}

#[test]
fn source_is_taken_apart() {
    let text = "let a = \"// no { comment\"; // a comment\nlet b = '\\''; let c: &'static str = r#\"x\"y\"#;\n\
                /* two\nlines */ f();\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\nfn h() {}\n#[cfg(loom)]\nuse loom::x;\nz();\n\
                #[cfg(all(test, not(loom)))]\nmod t;\n#[cfg(not(loom))]\nmod u;";
    let lines = lines(text);
    let code: Vec<&str> = lines.iter().map(|line| line.code.trim()).collect();
    assert_eq!(code[..4], ["let a = \"\";", "let b = ' '; let c: &'static str = \"\";", "", "f();"]);
    assert_eq!(lines[0].comment, "// a comment");
    let tests: Vec<usize> = (0..lines.len()).filter(|&at| lines[at].is_test).collect();
    assert_eq!(tests, [4, 5, 6, 7, 9, 10, 12, 13]);
}

#[test]
fn paths_of_std_are_written_out() {
    let code = "use std::{fs, io::{self, Read}, time::Instant};std::thread::spawn(x)";
    let expected = ["std::fs", "std::io::self", "std::io::Read", "std::time::Instant", "std::thread::spawn"]
        .map(String::from);
    assert_eq!(std_paths(code), expected);
}
