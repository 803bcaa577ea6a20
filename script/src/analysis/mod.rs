//! Says beforehand which keys a script will reach for, from its text alone.
//!
//! A script is read into a tree, and the tree is gone through with what is known of each value: KEYS, ARGV, literals, and what is
//! made of them. A command's key that follows from those becomes a template, which gives the key itself once KEYS and ARGV are
//! known. A key that comes from data, or a way to call commands that the text does not show, makes the prediction incomplete.
//!
//! It is a prediction: who runs the script checks every access. A key that is missing in it costs time, and so does one too many.
//!
//! What holds for every source: no panic, recursion of bounded depth, and time and memory that are bounded by
//! [`MAX_SOURCE_BYTES`] and the interpreter's count of steps.

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

/// Longer sources are not read.
pub const MAX_SOURCE_BYTES: usize = 256 * 1024;

/// How much of a script's keys its text tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It reaches for elements of KEYS only.
    Declared,
    /// It also reaches for keys that follow from KEYS and ARGV.
    Derived,
    /// It may reach for any key.
    Open,
}

/// Whether a script writes, as far as its text tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effects {
    /// None of its commands can write.
    ReadsOnly,
    /// One of its commands can.
    MayWrite,
    /// Its text does not show all of its commands, and none of those that it shows can write.
    Unclear,
}

/// Why a script's keys are not all known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The line, from 1; 0 if it is about no line.
    pub line: u32,
    /// What is there.
    pub why: Why,
}

/// What keeps a script's keys from being known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The source is too long, or not Lua 5.1.
    Unreadable,
    /// Going through it takes more steps, or nests deeper, than is worth it.
    TooLarge,
    /// A key comes from a reply, from decoded data, or from a function whose result is not followed.
    KeyFromData,
    /// The name of a command is not literal.
    CommandUnknown,
    /// `redis.call` is given away, or looked up by a name that is not literal.
    CallEscapes,
    /// It uses code that is data, or the table of globals.
    Opaque,
    /// It changes KEYS or ARGV.
    ChangesLists,
    /// A command reaches for all keys.
    Keyspace,
}

/// What a script will reach for, as far as its text tells.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// How much is known.
    pub class: Class,
    /// Whether it writes.
    pub effects: Effects,
    /// Whether the prediction is certain: whoever relies on it where it cannot run the script again needs that.
    pub is_certain: bool,
    /// Why it is [`Class::Open`], if so: what was found first.
    pub reason: Option<Reason>,
    templates: Templates,
}

/// Predicts what a script will reach for. A source that is not Lua is [`Class::Open`].
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

/// Predicts what each function of a library will reach for, by its name. Functions whose names are not literal are missing, as all
/// are of a source that is not Lua.
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

    /// What is said of what could not be read: nothing.
    pub fn unreadable() -> Self {
        Self {
            class: Class::Open,
            effects: Effects::Unclear,
            is_certain: false,
            reason: Some(Reason { line: 0, why: Why::Unreadable }),
            templates: Templates::default(),
        }
    }

    /// Returns how many templates there are: a [`Class::Declared`] script has none.
    pub fn n_templates(&self) -> usize {
        self.templates.len()
    }

    /// Calls `each` with every key beyond `keys` that a run with these lists will reach for, if the script is
    /// [`Class::Derived`]; if it is [`Class::Open`], with those that are known. A key may come more than once.
    ///
    /// # Errors
    /// [`TooMany`] if loops of the script make too many keys; `each` has been called with some of them.
    pub fn keys(&self, keys: &[&[u8]], argv: &[&[u8]], each: &mut dyn FnMut(&[u8])) -> Result<(), TooMany> {
        self.templates.evaluate(keys, argv, each)
    }
}

#[cfg(test)]
mod tests;
