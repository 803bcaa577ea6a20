//! The law of type names: a name stands for one type of a crate, unless it is a role.
//!
//! Associated types do not count, since their trait gives them their meaning.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Exceptions, excepting, none,
    source::{Source, crates, lines, test_modules, texts},
};

/// Names that mean the same in every module.
const ROLES: &[&str] =
    &["Builder", "Cursor", "Error", "Iter", "Options", "Reader", "Settings", "Stats", "Writer"];

/// Names that mean the same in every module of tests.
const TEST_ROLES: &[&str] = &["Fixture", "Model", "Random", "World"];

/// Names that stand for several types of a crate, and renamed imports.
const EXCEPTIONS: Exceptions = &[];

/// The words that begin a declaration of a type.
const DECLARATIONS: &[&str] = &["enum", "struct", "trait", "type", "union"];

/// A type, or an import under another name.
#[derive(Debug, PartialEq, Eq)]
struct NamedType {
    name: String,
    /// The line, from 1.
    number: usize,
    is_test: bool,
    is_import: bool,
}

/// Returns the types that a file declares, and the types that it imports under another name.
fn named(source: &Source) -> Vec<NamedType> {
    let mut found = Vec::new();
    // One entry for each open brace: whether the types in it are associated types.
    let mut braces = Vec::new();
    // The words since the last brace or semicolon.
    let mut statement: Vec<String> = Vec::new();
    for (at, line) in source.lines.iter().enumerate() {
        for token in tokens(&line.code) {
            let is_associated = braces.last().is_some_and(|&is_associated| is_associated);
            // A function's `use<'a>` is no import.
            let is_use = ["use", "fn"].map(|word| statement.iter().any(|of| of == word)) == [true, false];
            let last = statement.last().map_or("", String::as_str);
            let is_import = is_use && last == "as" && is_type_name(token);
            let is_declared = DECLARATIONS.contains(&last)
                && token.starts_with(char::is_uppercase)
                && !(last == "type" && is_associated);
            if is_import || is_declared {
                found.push(NamedType {
                    name: token.to_owned(),
                    number: at + 1,
                    is_test: line.is_test,
                    is_import,
                });
            }
            match token {
                // The braces of an import are part of it.
                "{" | "}" if is_use => {}
                "{" => {
                    let has = |words: &[&str]| statement.iter().any(|word| words.contains(&word.as_str()));
                    braces.push(has(&["impl", "trait"]) && !has(&["fn"]));
                    statement.clear();
                }
                "}" => {
                    braces.pop();
                    statement.clear();
                }
                ";" => statement.clear(),
                _ => statement.push(token.to_owned()),
            }
        }
    }
    found
}

/// Cuts code into words and other characters, without spaces.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (token, after) = rest.split_at(word.max(first.len_utf8()));
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

/// Whether a name has the form of a type's, and not of a constant's.
fn is_type_name(name: &str) -> bool {
    name.starts_with(char::is_uppercase) && (name.len() == 1 || name.contains(char::is_lowercase))
}

/// Returns the sources of a crate, and whether each is compiled for tests only.
fn sources(krate: &str) -> Vec<(Source, bool)> {
    let folder = format!("{krate}/");
    let all: Vec<Source> = texts()
        .into_iter()
        .filter(|(path, _)| path.starts_with(&folder) && path.ends_with(".rs"))
        .map(|(path, text)| Source { path, lines: lines(&text) })
        .collect();
    let of_tests: BTreeSet<String> = all.iter().flat_map(test_modules).collect();
    let source = format!("{krate}/src/");
    all.into_iter()
        .map(|one| {
            let stem = one.path.trim_end_matches(".rs");
            let is_test = !one.path.starts_with(&source)
                || of_tests.iter().any(|of| stem == of || stem.starts_with(&format!("{of}/")));
            (one, is_test)
        })
        .collect()
}

/// Returns the names of a crate that break the law: the crate, the name, and the text to show.
fn findings(krate: &str, sources: &[(Source, bool)]) -> Vec<(String, String, String)> {
    let mut types: BTreeMap<(bool, String), Vec<String>> = BTreeMap::new();
    let mut found = Vec::new();
    for (source, is_test_file) in sources {
        for named in named(source) {
            let place = format!("{}:{}", source.path, named.number);
            if named.is_import {
                let text = format!("{place}: imported as {}", named.name);
                found.push((krate.to_owned(), named.name, text));
            } else {
                types.entry((*is_test_file || named.is_test, named.name)).or_default().push(place);
            }
        }
    }
    for ((is_test, name), places) in types {
        let is_role = ROLES.contains(&name.as_str()) || is_test && TEST_ROLES.contains(&name.as_str());
        if places.len() > 1 && !is_role {
            let text = format!("{name}: {}", places.join(", "));
            found.push((krate.to_owned(), name, text));
        }
    }
    found
}

#[test]
fn a_name_stands_for_one_type_of_a_crate() {
    let mut found = Vec::new();
    let mut n_types = 0;
    for krate in crates() {
        let sources = sources(&krate);
        n_types += sources.iter().map(|(source, _)| named(source).len()).sum::<usize>();
        found.extend(findings(&krate, &sources));
    }
    assert!(n_types > 1000, "the search has missed the types: {n_types}");
    none(
        "A name stands for one type of a crate, and an import keeps its name:",
        excepting(EXCEPTIONS, found),
    );
}

/// The search itself: one that finds no type would find no double.
mod search {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), lines: lines(text) }
    }

    #[test]
    fn types_are_found_and_associated_types_are_not() {
        let text = "pub(crate) struct A<T: Clone>(T);\nimpl<T> B for A<T> {\n    type C = D;\n    fn f() -> impl E {\n        enum F { G }\n    }\n}\n\
                    trait H {\n    type I: J;\n    fn g() {\n        type K = u8;\n    }\n}\nunion Lu { a: u8 }\nlet union = a;\n#[cfg(test)]\nmod tests {\n    struct M;\n}";
        let found: Vec<(String, bool)> =
            named(&source("x", text)).into_iter().map(|named| (named.name, named.is_test)).collect();
        let expected = [("A", false), ("F", false), ("H", false), ("K", false), ("Lu", false), ("M", true)];
        assert_eq!(found, expected.map(|(name, is_test)| (name.to_owned(), is_test)));
    }

    #[test]
    fn only_renamed_types_are_findings_among_imports() {
        let text = "use a::{B as _, C as D, e as f,\n    G};\npub use h::I as Ij;\nuse k::LIMIT as MOST;\nlet x = y as T;";
        let found: Vec<String> = named(&source("x", text)).into_iter().map(|named| named.name).collect();
        assert_eq!(found, ["D", "Ij"]);
    }

    #[test]
    fn doubles_are_found_within_the_product_and_within_the_tests() {
        let sources = [
            (source("x/src/a.rs", "struct A; struct B; struct Error; struct Model;"), false),
            (source("x/src/b.rs", "struct A; struct Error; struct Model;"), false),
            (source("x/tests/c.rs", "struct B; struct D; struct Model;"), true),
            (source("x/tests/d.rs", "struct D; struct Model;"), true),
        ];
        let names: Vec<String> = findings("x", &sources).into_iter().map(|(_, name, _)| name).collect();
        assert_eq!(names, ["A", "Model", "D"]);
    }
}
