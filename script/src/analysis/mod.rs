//! Predicts the keys that a script will use, from its text alone.
//!
//! A script is read into a tree. The interpreter walks the tree with the known facts of each value: KEYS,
//! ARGV, literals, and the values made of them. A command's key that follows from those becomes a template.
//! The template returns the key itself once KEYS and ARGV are known. Two things make the prediction
//! incomplete: a key that comes from data, and a way to call commands that the text does not show.
//!
//! The result is a prediction: the code that runs the script checks every access. A missing key costs time,
//! and so does a superfluous one.
//!
//! These properties hold for every source:
//! - nothing panics;
//! - the depth of recursion is bounded;
//! - time and memory are bounded by [`MAX_SOURCE_BYTES`] and the interpreter's count of steps.

mod calls;
mod interpreter;
mod lexer;
mod library;
mod number;
mod parser;
mod plain;
mod reach;
mod routes;
mod syntax;
mod terms;
pub(crate) mod uses;
mod values;

use std::collections::BTreeMap;

use interpreter::{Findings, Interpreter};
pub use reach::{Command, Commands, KeysAt, Reach};
pub use terms::TooMany;
use terms::{Templates, Terms};

/// The longest source that is read.
pub const MAX_SOURCE_BYTES: usize = 256 * 1024;

/// The extent to which a script's text shows its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The script uses elements of KEYS only.
    Declared,
    /// The script also uses keys that follow from KEYS and ARGV.
    Derived,
    /// The script may use any key.
    Open,
}

/// Whether a script writes, as far as its text shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effects {
    /// None of its commands can write.
    ReadsOnly,
    /// One of its commands can.
    MayWrite,
    /// Its text does not show all of its commands.
    ///
    /// None of those that it shows can write.
    Unclear,
}

/// The reason why a script's keys are not all known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The line, from 1; 0 if the reason concerns no line.
    pub line: u32,
    /// The kind of the reason.
    pub why: Why,
}

/// The kinds of reasons for which a script's keys are not all known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The source is too long, or not Lua 5.1.
    Unreadable,
    /// The analysis takes more steps, or nests deeper, than a prediction is worth.
    TooLarge,
    /// A key comes from data.
    ///
    /// That is a reply, decoded data, or the result of a function that is not followed.
    KeyFromData,
    /// The name of a command is not literal.
    CommandUnknown,
    /// `redis.call` is passed to code that is not followed.
    ///
    /// A look-up in `redis` by a name that is not literal counts as the same.
    CallEscapes,
    /// The script uses code that is data, or the table of globals.
    Opaque,
    /// The script changes KEYS or ARGV.
    ChangesLists,
    /// A command may use all keys.
    Keyspace,
}

/// The predicted keys of a script, as far as its text shows them.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// The extent to which the keys are known.
    pub class: Class,
    /// Whether the script writes.
    pub effects: Effects,
    /// Whether the prediction is certain.
    ///
    /// A caller that relies on it and cannot run the script again needs that.
    pub is_certain: bool,
    /// The first reason found why the class is [`Class::Open`], if it is.
    pub reason: Option<Reason>,
    templates: Templates,
}

/// Predicts the keys of a script. A source that is not Lua is [`Class::Open`].
pub fn analyse(source: &[u8], commands: &dyn Commands) -> Analysis {
    let Some(script) = read(source) else { return Analysis::unreadable() };
    let mut interpreter = Interpreter::new(commands, true);
    interpreter.script(&script);
    let findings = std::mem::take(&mut interpreter.findings);
    let tells_commands = !findings.is_command_unknown && !findings.is_uncertain;
    let analysis = Analysis::new(findings, &interpreter.terms);
    let is_certain = tells_commands
        && analysis.class != Class::Open
        && analysis.templates.are_plain()
        && plain::is_plain(source);
    Analysis { is_certain, ..analysis }
}

/// Predicts the keys of each function of a library, by the function's name.
///
/// Functions whose names are not literal are missing. If the source is not Lua, all are missing.
pub fn analyse_library(source: &[u8], commands: &dyn Commands) -> BTreeMap<Vec<u8>, Analysis> {
    let Some(library) = read(source) else { return BTreeMap::new() };
    let mut interpreter = Interpreter::new(commands, false);
    interpreter.script(&library);
    let loading = std::mem::take(&mut interpreter.findings);
    let mut analyses = BTreeMap::new();
    for (name, function) in std::mem::take(&mut interpreter.registered) {
        let mut findings = interpreter.registered_function(&function);
        findings.reason = loading.reason.or(findings.reason);
        findings.is_command_unknown |= loading.is_command_unknown;
        analyses.insert(name, Analysis::new(findings, &interpreter.terms));
    }
    analyses
}

fn read(source: &[u8]) -> Option<syntax::Function<'_>> {
    if source.len() > MAX_SOURCE_BYTES {
        return None;
    }
    parser::parse(source).ok()
}

impl Analysis {
    fn new(findings: Findings, terms: &Terms) -> Self {
        let class = match (&findings.reason, findings.roots.is_empty()) {
            (Some(_), _) => Class::Open,
            (None, true) => Class::Declared,
            (None, false) => Class::Derived,
        };
        let effects = match (findings.writes, findings.is_command_unknown) {
            (true, _) => Effects::MayWrite,
            (false, true) => Effects::Unclear,
            (false, false) => Effects::ReadsOnly,
        };
        Self {
            class,
            effects,
            is_certain: false,
            reason: findings.reason,
            templates: terms.templates(&findings.roots),
        }
    }

    /// The analysis of a source that cannot be read, which claims nothing.
    pub fn unreadable() -> Self {
        Self {
            class: Class::Open,
            effects: Effects::Unclear,
            is_certain: false,
            reason: Some(Reason { line: 0, why: Why::Unreadable }),
            templates: Templates::default(),
        }
    }

    /// Returns the number of templates. A [`Class::Declared`] script has none.
    pub fn n_templates(&self) -> usize {
        self.templates.len()
    }

    /// Calls `each` with the predicted keys of a run with these lists, beyond `keys`.
    ///
    /// For a [`Class::Derived`] script these are all keys that it will use. For a [`Class::Open`] script they
    /// are the known ones. A key may come more than once.
    ///
    /// # Errors
    /// [`TooMany`] if loops of the script make too many keys; `each` has been called with some of them.
    pub fn keys(&self, keys: &[&[u8]], argv: &[&[u8]], each: &mut dyn FnMut(&[u8])) -> Result<(), TooMany> {
        self.templates.evaluate(keys, argv, each)
    }
}

#[cfg(test)]
mod tests;
