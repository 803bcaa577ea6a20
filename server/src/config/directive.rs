//! The form of a row of the directive table, with short constructors.

use super::directives::Settings;
use super::value::{Kind, Reason, Value};

/// A directive, as the file parser, the command line and `CONFIG` use it.
#[derive(Debug)]
pub struct Directive {
    /// Its name, in lowercase.
    pub name: &'static str,
    /// Its older name, from before Redis renamed it.
    pub alias: Option<&'static str>,
    /// The form of its values.
    pub kind: Kind,
    /// Its default, as the configuration file would write it.
    pub default: &'static str,
    /// Its visibility and whether it can be changed.
    pub flags: DirectiveFlags,
    /// Its effect.
    pub meaning: Meaning,
    /// A rule that checks or adjusts a value, for this directive only.
    pub(super) rule: Option<Rule>,
    /// The reason why it has no effect, if it has none.
    pub idle: Option<&'static str>,
    /// The missing feature, if an application that sets the directive would wait for its effect.
    pub(super) missing: Option<AbsentFeature>,
}

/// A feature that Braid does not have.
///
/// `CONFIG SET` is refused: an application that calls it relies on the reply, and would wait for an effect
/// that never comes. A file may ask for the feature, so that the server starts with Redis's files. It may not
/// if the feature's absence is unsafe.
#[derive(Clone, Copy, Debug)]
pub(super) struct AbsentFeature {
    /// The text of the error.
    pub why: &'static str,
    /// Whether a server whose configuration asks for the feature must not start.
    pub ends_start: bool,
}

/// A check or adjustment of a value that its kind accepts.
pub(super) type Rule = fn(Value) -> Result<Value, Reason>;

/// The effect of a directive.
#[derive(Clone, Copy, Debug)]
pub enum Meaning {
    /// Braid acts on it. This function writes it to the settings.
    Live(fn(&mut Settings, &Value)),
    /// This function writes it to the settings, but no code acts on them yet. For users it is like `Kept`.
    Reserved(fn(&mut Settings, &Value)),
    /// Accepted and stored without effect, so that files and clients written for Redis work.
    Kept,
}

/// A set of properties of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectiveFlags(u8);

impl DirectiveFlags {
    /// No property.
    pub const NONE: DirectiveFlags = DirectiveFlags(0);
    /// Cannot be changed while the server runs.
    pub const IMMUTABLE: DirectiveFlags = DirectiveFlags(1);
    /// Could be used to take over the machine: `CONFIG SET` needs `enable-protected-configs`.
    pub const PROTECTED: DirectiveFlags = DirectiveFlags(1 << 1);
    /// A secret: omitted from the server log, MONITOR and the slow log.
    pub const SENSITIVE: DirectiveFlags = DirectiveFlags(1 << 2);
    /// `CONFIG GET` shows it only under its full name.
    pub const HIDDEN: DirectiveFlags = DirectiveFlags(1 << 3);
    /// Valid only in files and on the command line. `CONFIG GET` and `SET` do not know it.
    pub const FILE_ONLY: DirectiveFlags = DirectiveFlags(1 << 4);

    /// `CONFIG REWRITE` leaves its lines where they are, which may be an included file.
    pub const STAYS: DirectiveFlags = DirectiveFlags(1 << 6);

    /// Whether all of `flags` are set.
    pub const fn contains(self, flags: DirectiveFlags) -> bool {
        self.0 & flags.0 == flags.0
    }

    const fn and(self, flags: DirectiveFlags) -> DirectiveFlags {
        DirectiveFlags(self.0 | flags.0)
    }
}

/// The largest `int` of C, the bound of many directives in Redis.
pub(super) const INT: i128 = i32::MAX as i128;
/// The largest `unsigned int` of C.
pub(super) const UINT: i128 = u32::MAX as i128;
/// The largest `long long` of C.
pub(super) const LONG: i128 = i64::MAX as i128;
/// The largest `unsigned long long` of C.
pub(super) const ULONG: i128 = u64::MAX as i128;

/// Declares a row of any kind.
pub(super) const fn row(name: &'static str, kind: Kind, default: &'static str) -> Directive {
    Directive {
        name,
        alias: None,
        kind,
        default,
        flags: DirectiveFlags::NONE,
        meaning: Meaning::Kept,
        rule: None,
        idle: None,
        missing: None,
    }
}

/// Declares a directive that is `yes` or `no`.
pub(super) const fn yes_no(name: &'static str, default: &'static str) -> Directive {
    row(name, Kind::Bool, default)
}

/// Declares a number within bounds.
pub(super) const fn integer(name: &'static str, min: i128, max: i128, default: &'static str) -> Directive {
    row(name, Kind::Integer { min, max }, default)
}

/// Declares a count of bytes within bounds.
pub(super) const fn memory(name: &'static str, min: i128, max: i128, default: &'static str) -> Directive {
    row(name, Kind::Memory { min, max }, default)
}

/// Declares a choice of one word.
pub(super) const fn choice(
    name: &'static str,
    words: &'static [&'static str],
    default: &'static str,
) -> Directive {
    row(name, Kind::Choice(words), default)
}

/// Declares a directive with any text.
pub(super) const fn text(name: &'static str, default: &'static str) -> Directive {
    row(name, Kind::Text, default)
}

/// Declares a line that only files contain.
pub(super) const fn line(name: &'static str, min: usize, max: usize) -> Directive {
    row(name, Kind::Line { min, max }, "").with(DirectiveFlags::FILE_ONLY)
}

impl Directive {
    pub(super) const fn alias(mut self, alias: &'static str) -> Self {
        self.alias = Some(alias);
        self
    }

    pub(super) const fn immutable(self) -> Self {
        self.with(DirectiveFlags::IMMUTABLE)
    }

    pub(super) const fn protected(self) -> Self {
        self.with(DirectiveFlags::PROTECTED)
    }

    pub(super) const fn sensitive(self) -> Self {
        self.with(DirectiveFlags::SENSITIVE)
    }

    pub(super) const fn hidden(self) -> Self {
        self.with(DirectiveFlags::HIDDEN)
    }

    pub(super) const fn stays(self) -> Self {
        self.with(DirectiveFlags::STAYS)
    }

    const fn with(mut self, flags: DirectiveFlags) -> Self {
        self.flags = self.flags.and(flags);
        self
    }

    pub(super) const fn rule(mut self, rule: Rule) -> Self {
        self.rule = Some(rule);
        self
    }

    pub(super) const fn live(mut self, apply: fn(&mut Settings, &Value)) -> Self {
        self.meaning = Meaning::Live(apply);
        self
    }

    pub(super) const fn reserved(mut self, apply: fn(&mut Settings, &Value)) -> Self {
        self.meaning = Meaning::Reserved(apply);
        self
    }

    /// Says why the directive has no effect.
    pub(super) const fn idle(mut self, why: &'static str) -> Self {
        self.idle = Some(why);
        self
    }

    pub(super) const fn missing(self, why: &'static str) -> Self {
        self.lacking(AbsentFeature { why, ends_start: false })
    }

    pub(super) const fn never_without(self, why: &'static str) -> Self {
        self.lacking(AbsentFeature { why, ends_start: true })
    }

    const fn lacking(mut self, missing: AbsentFeature) -> Self {
        self.idle = Some(missing.why);
        self.missing = Some(missing);
        self
    }

    /// Returns why `CONFIG SET` refuses a value, if it does.
    ///
    /// With a missing feature it refuses every value but the default.
    pub(super) fn refused_at_run_time(&self, value: &Value) -> Option<&'static str> {
        let missing = self.missing?;
        (*value != self.default_value()).then_some(missing.why)
    }

    /// Returns why the server must not start with a value, if it must not.
    pub(super) fn refused_at_start(&self, value: &Value) -> Option<&'static str> {
        self.missing.filter(|missing| missing.ends_start).and_then(|_| self.refused_at_run_time(value))
    }

    /// Returns why it has no effect; empty if it has one.
    pub fn why_idle(&self) -> &'static str {
        self.idle.unwrap_or_default()
    }

    /// Whether Braid acts on it.
    pub fn has_effect(&self) -> bool {
        matches!(self.meaning, Meaning::Live(_))
    }

    /// Reads a value from the words after the name. `old` is the present value.
    pub(super) fn parse(&self, words: &[&[u8]], old: &Value) -> Result<Value, Reason> {
        let value = self.kind.parse(words, old)?;
        match self.rule {
            Some(rule) => rule(value),
            None => Ok(value),
        }
    }

    /// Returns the default value.
    pub(super) fn default_value(&self) -> Value {
        match self.kind {
            Kind::Line { .. } => Value::Lines(Vec::new()),
            Kind::Primary => Value::Primary(None),
            // The working directory at the start, which only the caller knows.
            Kind::Dir => Value::Dir(self.default.into()),
            _ => match self.parse(&[self.default.as_bytes()], &Value::Bool(false)) {
                Ok(value) => value,
                Err(reason) => unreachable!("the default of {} is refused: {reason}", self.name),
            },
        }
    }

    /// Returns both names, the present one first.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.alias)
    }
}
