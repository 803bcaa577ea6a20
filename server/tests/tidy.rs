//! The laws of the project that a compiler does not know: who may do I/O, where locks are, what the command
//! table promises, and that what is written about the code agrees with it.
//!
//! Each test reads the source tree. An exception stands in a list beside the law, with its reason, and one
//! that is no longer needed fails as well. `BRAID_DOCS_CORRECT=1` writes what the documents say of the tables
//! anew.

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

/// Fails with what was found, one finding a line.
fn none(law: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{law}\n  {}\n", found.join("\n  "));
}

/// Findings that are allowed, with the reason: where, what, why.
type Exceptions = &'static [(&'static str, &'static str, &'static str)];

/// Takes the exceptions out of `found` (where, what, and the text to show), and reports those that apply to
/// nothing.
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
