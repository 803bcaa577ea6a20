//! The keys among the arguments of a script's commands.

use super::Why;
use super::interpreter::{Interpreter, MAX_ROOTS, or_unknown};
use super::reach::{KeysAt, Reach};
use super::terms::{List, Term};
use super::values::{Value, Values};

impl<'t> Interpreter<'t, '_> {
    /// Notes the keys of `redis.call` with these arguments.
    pub(super) fn command(&mut self, arguments: &Values<'t>, line: u32) {
        let subcommand = match arguments.get(1) {
            Value::Term(id) => self.terms.literal(id).map(<[u8]>::to_vec),
            _ => None,
        };
        for name in arguments.get(0).alternatives() {
            let name = match name {
                Value::Nil | Value::Bool(_) => continue,
                Value::Term(id) => self.terms.literal(*id).map(<[u8]>::to_vec),
                _ => None,
            };
            let Some(name) = name else {
                self.unknown_command(arguments, line);
                continue;
            };
            let Some(command) = self.commands.command(&name, subcommand.as_deref()) else { continue };
            self.findings.writes |= command.writes;
            match command.reach {
                Reach::Keyspace => self.give_up(line, Why::Keyspace),
                Reach::Arguments(specs) => {
                    specs.into_iter().for_each(|keys| self.keys(keys, arguments, line));
                }
            }
        }
    }

    /// Notes the key of a command whose name the text does not show.
    ///
    /// If the name follows from ARGV, the command is assumed to have one key, its first argument. Many
    /// commands do, as in scripts that learn from ARGV at which end to add to a list.
    fn unknown_command(&mut self, arguments: &Values<'t>, line: u32) {
        self.findings.is_command_unknown = true;
        match (&arguments.first[..], arguments.get(0)) {
            ([_, key, ..], Value::Term(_)) => self.key(key, line),
            _ => self.give_up(line, Why::CommandUnknown),
        }
    }

    fn keys(&mut self, keys: KeysAt, arguments: &Values<'t>, line: u32) {
        let n_first = arguments.first.len();
        let end = if arguments.others.is_some() { usize::MAX } else { n_first };
        self.findings.is_uncertain |= arguments.others.is_some();
        if let KeysAt::After { from, .. } | KeysAt::HalfAfter { from, .. } = keys {
            // One of the other arguments could be the word.
            let is_told = |value: &Value<'t>| matches!(value, Value::Term(id) if self.terms.literal(*id).is_some() || self.terms.constant(*id).is_some());
            let is_key_of_word = |at: usize| at > from && self.is_any_word(&arguments.first[at - 1], keys);
            let all = (from..n_first).all(|at| is_told(&arguments.first[at]) || is_key_of_word(at));
            self.findings.is_uncertain |= !all;
        }
        match keys {
            KeysAt::Range { first, last, step } => {
                let last = if last < 0 { end.saturating_add_signed(last) } else { last as usize };
                self.range(first, last, step, arguments, line);
            }
            KeysAt::Counted { count, step } => {
                let n_keys = match arguments.get(count) {
                    Value::Term(id) => self.terms.constant(id),
                    _ => None,
                };
                let last = n_keys.map_or(end, |n_keys| count.saturating_add(n_keys as usize * step));
                self.range(count + 1, last, step, arguments, line);
            }
            KeysAt::After { word, from } => {
                let at = (from + 1..n_first).rfind(|at| self.is_word(&arguments.first[at - 1], word));
                at.into_iter().for_each(|at| self.key(&arguments.first[at], line));
            }
            KeysAt::HalfAfter { word, from } => {
                let at = (from..n_first).find(|at| self.is_word(&arguments.first[*at], word));
                let Some(at) = at.map(|at| at + 1) else { return };
                let n_keys = if end == n_first { (n_first - at) / 2 } else { usize::MAX - at };
                if n_keys > 0 {
                    self.range(at, at + n_keys - 1, 1, arguments, line);
                }
            }
        }
    }

    /// Whether a value is the word after which a specification's keys stand.
    fn is_any_word(&self, value: &Value<'t>, keys: KeysAt) -> bool {
        match keys {
            KeysAt::After { word, .. } | KeysAt::HalfAfter { word, .. } => self.is_word(value, word),
            KeysAt::Range { .. } | KeysAt::Counted { .. } => false,
        }
    }

    fn is_word(&self, value: &Value<'t>, word: &str) -> bool {
        let Value::Term(id) = value else { return false };
        self.terms.literal(*id).is_some_and(|text| text.eq_ignore_ascii_case(word.as_bytes()))
    }

    fn range(&mut self, first: usize, last: usize, step: usize, arguments: &Values<'t>, line: u32) {
        let mut at = first;
        while at <= last && at < arguments.first.len() {
            self.key(&arguments.first[at], line);
            at += step.max(1);
        }
        let Some(others) = &arguments.others else { return };
        if at <= last {
            let offset = at - arguments.first.len();
            let is_one = last < at.saturating_add(step);
            let others = self.map(others, &mut |this, value| this.rest(value, offset, step, is_one));
            self.key(&others, line);
        }
    }

    /// Any of the values from `offset` on by `step`, or only the first if `is_one`.
    fn rest(&mut self, others: &Value<'t>, offset: usize, step: usize, is_one: bool) -> Value<'t> {
        let Value::Term(id) = others else { return others.clone() };
        let Some((list, from)) = self.terms.as_any(*id) else { return others.clone() };
        let Some(from) = self.terms.constant(from) else { return others.clone() };
        let from = from + offset as f64;
        if is_one {
            return self.element(list, from as usize);
        }
        let from = self.terms.number(from);
        or_unknown(from.and_then(|from| self.terms.any(0, list, from, step as f64)))
    }

    /// Notes a key, unless it is an element of KEYS.
    fn key(&mut self, key: &Value<'t>, line: u32) {
        for key in key.alternatives() {
            match key {
                Value::Unknown => self.give_up(line, Why::KeyFromData),
                Value::Term(id) => {
                    let is_declared = matches!(self.terms.get(*id), Term::Element(List::Keys, _));
                    if is_declared || self.findings.roots.contains(id) {
                        continue;
                    }
                    if self.findings.roots.len() >= MAX_ROOTS {
                        return self.give_up(line, Why::TooLarge);
                    }
                    self.findings.roots.push(*id);
                }
                // The value is no key: the command is refused.
                _ => {}
            }
        }
    }
}
