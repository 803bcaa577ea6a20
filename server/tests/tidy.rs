//! The laws of the project that a compiler does not know. They concern the places of I/O and locks, the
//! promises of the command table, and the agreement of texts with the code.
//!
//! Each test reads the source tree. An exception is in a list beside the law, with its reason, and a
//! superfluous exception fails as well. `BRAID_DOCS_CORRECT=1` rewrites the parts of documents that describe
//! tables.

#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/floors.rs"]
mod floors;
#[path = "tidy/laws.rs"]
mod laws;
#[path = "tidy/modules.rs"]
mod modules;
#[path = "tidy/prose.rs"]
mod prose;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/table.rs"]
mod table;
#[path = "tidy/texts.rs"]
mod texts;
#[path = "tidy/type_names.rs"]
mod type_names;

/// Fails with the findings, one in each line.
fn none(law: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{law}\n  {}\n", found.join("\n  "));
}

/// Findings that are allowed: the place, the finding, the reason.
type Exceptions = &'static [(&'static str, &'static str, &'static str)];

/// Removes the exceptions from `found` (place, finding, and the text to show), and reports superfluous
/// exceptions.
fn excepting(exceptions: Exceptions, found: Vec<(String, String, String)>) -> Vec<String> {
    let mut is_used = vec![false; exceptions.len()];
    let mut rest = Vec::new();
    for (place, what, text) in found {
        match exceptions.iter().position(|&(of, which, _)| of == place && which == what) {
            Some(at) => is_used[at] = true,
            None => rest.push(text),
        }
    }
    let unused = exceptions.iter().zip(is_used).filter(|(_, is_used)| !is_used);
    rest.extend(
        unused
            .map(|((place, what, _), _)| format!("{place}: the exception for {what} is not needed any more")),
    );
    rest
}
