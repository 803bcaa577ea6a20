//! Calls of the script's own functions, and of the functions of the libraries.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::Why;
use super::interpreter::{Activation, Interpreter, MAX_COMBINATIONS, or_unknown, renewed, without_nil};
use super::library::{Builtin, Library};
use super::syntax::{Expression, Unary};
use super::terms::{self, List, Term};
use super::values::{Closure, Shared, Table, Value, Values};

/// The deepest calls of the script's own functions that are followed.
const MAX_CALLS: usize = 24;

impl<'t> Interpreter<'t, '_> {
    pub(super) fn method(
        &mut self,
        of: &'t Expression<'t>,
        name: &[u8],
        arguments: &'t [Expression<'t>],
        line: u32,
    ) -> Values<'t> {
        let of = self.value(of);
        let mut arguments = self.list(arguments);
        let at = or_unknown(self.terms.text(name));
        let callee = self.map(&of, &mut |this, of| match of {
            Value::Term(_) | Value::Unknown => Value::Builtin(Library::Text.member(name)),
            _ => this.member(of, &at, line),
        });
        arguments.first.insert(0, of);
        self.call(&callee, arguments, line)
    }

    pub(super) fn call(&mut self, callee: &Value<'t>, arguments: Values<'t>, line: u32) -> Values<'t> {
        let mut joined: Option<Values<'t>> = None;
        for callee in callee.alternatives() {
            let values = match callee {
                Value::Function(closure) => self.invoke(closure, arguments.clone(), line),
                Value::Builtin(builtin) => self.builtin(*builtin, arguments.clone(), line),
                _ => self.other(&arguments, line),
            };
            joined = Some(joined.map_or(values.clone(), |joined| joined.join(&values)));
        }
        joined.unwrap_or_else(Values::unknown)
    }

    /// Follows a call of a function of the script.
    pub(super) fn invoke(
        &mut self,
        closure: &Closure<'t>,
        mut arguments: Values<'t>,
        line: u32,
    ) -> Values<'t> {
        let function = closure.function;
        let n_active = self.activations.iter().filter(|active| active.function == function).count();
        if n_active > 1 || self.is_stopped {
            return Values::unknown();
        }
        if n_active == 1 {
            // The function calls itself: the second call stands for all others.
            arguments.first.iter_mut().for_each(|value| *value = value.join(&Value::Unknown));
        }
        if self.activations.len() >= MAX_CALLS {
            self.stop(line);
            return Values::unknown();
        }
        let (mark, n_variables) = (self.state.mark(), self.state.n_variables());
        let base = self.state.frame(function.0.n_slots);
        let frames = closure.frames.iter().copied().chain([base]).collect();
        for at in 0..function.0.n_parameters {
            self.state.set(base + at, arguments.get(at));
        }
        let varargs = arguments.skip(function.0.n_parameters);
        let exits = Vec::new();
        let calls = self.calls(function, line);
        self.activations.push(Activation { function, frames, varargs, calls, mark, n_variables, exits });
        self.block(&function.0.body);
        self.finish(mark)
    }

    /// A number that identifies the calls that lead to a function.
    fn calls(&self, function: Shared<'t>, line: u32) -> u64 {
        let mut hasher = DefaultHasher::new();
        let caller = self.activations.last().map_or(0, |caller| caller.calls);
        (caller, std::ptr::from_ref(function.0) as usize, line).hash(&mut hasher);
        hasher.finish()
    }

    /// Ends a function: joins its exits.
    pub(super) fn finish(&mut self, mark: usize) -> Values<'t> {
        let Activation { exits, n_variables, .. } = self.activations.pop().expect("it is active");
        if exits.is_empty() {
            return Values::default();
        }
        let (mut ways, mut returned) = (Vec::new(), Vec::new());
        if !self.is_dead {
            ways.push(self.changes(mark, n_variables));
            returned.push(Values::default());
        }
        for (way, values) in exits {
            ways.push(way);
            returned.push(values);
        }
        self.state.undo(mark);
        self.state.meet(&ways);
        self.is_dead = false;
        let mut values = returned.into_iter().reduce(|one, other| one.join(&other)).unwrap_or_default();
        let Self { terms, rounds, n_places, .. } = self;
        for value in &mut values.first {
            if let Some(renewed) = renewed(value, terms, rounds, n_places) {
                *value = renewed;
            }
        }
        values
    }

    /// Follows a call of a value that only calls the functions it receives.
    fn other(&mut self, arguments: &Values<'t>, line: u32) -> Values<'t> {
        for value in arguments.all() {
            if !matches!(value, Value::Table(_)) {
                self.escape(value, line);
            }
        }
        Values::unknown()
    }

    /// Notes that the analysis can no longer follow a value.
    ///
    /// A function is then assumed to be called with any arguments, and `redis.call` to run any command.
    pub(super) fn escape(&mut self, value: &Value<'t>, line: u32) {
        for value in value.alternatives() {
            if !value.is_traced() || self.escaped.contains(value) {
                continue;
            }
            self.escaped.push(value.clone());
            match value {
                Value::Function(closure) => {
                    let was_dead = self.is_dead;
                    self.invoke(closure, Values::unknown(), line);
                    self.is_dead = was_dead;
                }
                Value::Builtin(Builtin::Call | Builtin::Redis) => self.lose(line),
                Value::Table(id) => {
                    let anything = self.state.table(*id).anything();
                    self.nested(|this| this.escape(&anything, line));
                }
                _ => {}
            }
        }
    }

    fn builtin(&mut self, builtin: Builtin, arguments: Values<'t>, line: u32) -> Values<'t> {
        let first = arguments.get(0);
        let value = match builtin {
            Builtin::Call => {
                self.command(&arguments, line);
                Value::Unknown
            }
            Builtin::Register => return self.register(&arguments),
            Builtin::Protected => return self.protected(arguments, line),
            Builtin::Assert => return arguments,
            Builtin::Error => {
                self.is_dead = true;
                return Values::unknown();
            }
            Builtin::Unpack => return self.unpack(&arguments),
            Builtin::Select => return self.select(arguments),
            Builtin::Pairs => {
                let next = Value::Builtin(Builtin::Next);
                return Values { first: vec![next, first, Value::Nil], others: None };
            }
            Builtin::ToNumber if arguments.get(1) == Value::Nil => {
                self.apply(terms::UnaryFunction::Number, &first)
            }
            Builtin::ToText => without_nil(&first),
            Builtin::RawGet => self.index(&first, &arguments.get(1), line),
            Builtin::RawSet => {
                self.store(&first, &arguments.get(1), arguments.get(2), false, line);
                first
            }
            Builtin::SetMetatable => {
                self.escape(&arguments.get(1), line);
                self.store(&first, &Value::Unknown, Value::Unknown, false, line);
                first
            }
            Builtin::Insert => {
                self.insert(&arguments, line);
                Value::Nil
            }
            Builtin::Shuffle => self.shuffle(&arguments, line),
            Builtin::Join => self.join(&arguments),
            Builtin::Format => self.format(&arguments),
            Builtin::Part => self.part(&arguments),
            Builtin::Lower => self.apply(terms::UnaryFunction::Lower, &first),
            Builtin::Upper => self.apply(terms::UnaryFunction::Upper, &first),
            Builtin::Length => self.unary(Unary::Length, &first),
            Builtin::Floor => self.apply(terms::UnaryFunction::Floor, &first),
            Builtin::Ceiling => self.apply(terms::UnaryFunction::Ceiling, &first),
            Builtin::ToNumber | Builtin::Next | Builtin::Other => return self.other(&arguments, line),
            Builtin::Redis | Builtin::Library(_) => Value::Unknown,
        };
        Values::one(value)
    }

    fn register(&mut self, arguments: &Values<'t>) -> Values<'t> {
        let (mut name, mut function) = (arguments.get(0), arguments.get(1));
        if let Value::Table(id) = name {
            let table = self.state.table(id);
            (name, function) = (table.field(b"function_name"), table.field(b"callback"));
        }
        if let Value::Term(id) = name
            && let Some(name) = self.terms.literal(id)
        {
            self.registered.push((name.to_vec(), function));
        }
        Values::default()
    }

    fn protected(&mut self, arguments: Values<'t>, line: u32) -> Values<'t> {
        let function = arguments.get(0);
        let results = self.call(&function, arguments.skip(1), line);
        self.is_dead = false;
        let first = std::iter::once(Value::Unknown).chain(results.first).collect();
        Values { first, others: results.others }
    }

    fn unpack(&mut self, arguments: &Values<'t>) -> Values<'t> {
        let constant = |value: Value<'t>| match value {
            Value::Nil => Bound::Absent,
            Value::Term(id) => match self.terms.constant(id) {
                Some(at) if at >= 1.0 => Bound::At(at as usize),
                _ => Bound::Unknown,
            },
            _ => Bound::Unknown,
        };
        let (from, to) = (constant(arguments.get(1)), constant(arguments.get(2)));
        let of = arguments.get(0);
        let all = of.alternatives().iter().map(|of| match of {
            Value::Table(id) => unpack_table(&self.state.table(*id), from, to),
            Value::List(list) => self.unpack_list(*list, from, to),
            _ => Values::unknown(),
        });
        all.reduce(|one, other| one.join(&other)).unwrap_or_else(Values::unknown)
    }

    fn unpack_list(&mut self, list: List, from: Bound, to: Bound) -> Values<'t> {
        let first = match from {
            Bound::At(at) => at,
            _ => 1,
        };
        if let (Bound::At(to), false) = (to, from == Bound::Unknown)
            && to < first + MAX_COMBINATIONS
        {
            let all = (first..=to).map(|at| self.element(list, at)).collect();
            return Values { first: all, others: None };
        }
        let place = self.made_up_place();
        let any = self.terms.number(first as f64).and_then(|from| self.terms.any(place, list, from, 1.0));
        Values { first: Vec::new(), others: Some(or_unknown(any)) }
    }

    pub(super) fn element(&mut self, list: List, at: usize) -> Value<'t> {
        let at = self.terms.number(at as f64);
        or_unknown(at.and_then(|at| self.terms.add(Term::Element(list, at))))
    }

    fn select(&mut self, arguments: Values<'t>) -> Values<'t> {
        match arguments.get(0) {
            Value::Term(id) if self.terms.constant(id).is_some_and(|n| n >= 1.0) => {
                let n = self.terms.constant(id).unwrap_or(1.0);
                arguments.skip(n as usize)
            }
            _ => {
                let any = arguments.all().cloned().reduce(|one, other| one.join(&other));
                Values {
                    first: Vec::new(),
                    others: Some(any.unwrap_or(Value::Unknown).join(&Value::Unknown)),
                }
            }
        }
    }

    fn insert(&mut self, arguments: &Values<'t>, line: u32) {
        let (of, value) = (arguments.get(0), arguments.get(1));
        if arguments.first.len() <= 2 {
            return self.store(&of, &Value::Unknown, value, true, line);
        }
        let value = arguments.get(2);
        self.store(&of, &Value::Unknown, value, true, line);
        self.shuffle(&Values::one(of), line);
    }

    fn shuffle(&mut self, arguments: &Values<'t>, line: u32) -> Value<'t> {
        self.escape(&arguments.get(1), line);
        let of = arguments.get(0);
        self.map(&of, &mut |this, of| match of {
            Value::Table(id) => {
                this.state.change(*id, Table::shuffle);
                this.state.table(*id).any().unwrap_or(Value::Nil)
            }
            Value::List(_) => {
                this.give_up(line, Why::ChangesLists);
                Value::Unknown
            }
            _ => Value::Unknown,
        })
    }

    /// Follows `table.concat`.
    pub(super) fn join(&mut self, arguments: &Values<'t>) -> Value<'t> {
        let Value::Table(id) = arguments.get(0) else { return Value::Unknown };
        let table = self.state.table(id);
        if table.others.is_some() || arguments.first.len() > 2 {
            return Value::Unknown;
        }
        let between = arguments.get(1);
        let mut joined = or_unknown(self.terms.text(b""));
        for (at, element) in table.elements.iter().enumerate() {
            if at > 0 && between != Value::Nil {
                joined = self.concat(&joined, &between);
            }
            joined = self.concat(&joined, element);
        }
        joined
    }

    /// Follows `string.format` with `%s`, `%d` and `%i`.
    fn format(&mut self, arguments: &Values<'t>) -> Value<'t> {
        let Value::Term(id) = arguments.get(0) else { return Value::Unknown };
        let Some(format) = self.terms.literal(id).map(<[u8]>::to_vec) else { return Value::Unknown };
        let mut pieces = format.split(|byte| *byte == b'%');
        let mut text = or_unknown(self.terms.text(pieces.next().unwrap_or(b"")));
        let mut at = 1;
        while let Some(piece) = pieces.next() {
            let (value, rest) = match piece {
                [b's', rest @ ..] => (arguments.get(at), rest),
                [b'd' | b'i', rest @ ..] => {
                    (self.apply(terms::UnaryFunction::Integer, &arguments.get(at)), rest)
                }
                [] => (or_unknown(self.terms.text(b"%")), pieces.next().unwrap_or(b"")),
                _ => return Value::Unknown,
            };
            at += usize::from(!piece.is_empty());
            let rest = or_unknown(self.terms.text(rest));
            text = self.concat(&text, &value);
            text = self.concat(&text, &rest);
        }
        text
    }

    /// Follows `string.sub`.
    fn part(&mut self, arguments: &Values<'t>) -> Value<'t> {
        let to =
            if arguments.first.len() > 2 { arguments.get(2) } else { or_unknown(self.terms.number(-1.0)) };
        let (Value::Term(from), Value::Term(to)) = (arguments.get(1), to) else { return Value::Unknown };
        self.map(&arguments.get(0), &mut |this, of| match of {
            Value::Term(of) => or_unknown(this.terms.add(Term::Part(*of, from, to))),
            _ => Value::Unknown,
        })
    }
}

/// An argument that limits the elements to unpack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    Absent,
    At(usize),
    Unknown,
}

fn unpack_table<'t>(table: &Table<'t>, from: Bound, to: Bound) -> Values<'t> {
    let (first, last) = match (from, to) {
        (Bound::Absent, Bound::Absent) => (1, table.elements.len()),
        (Bound::At(from), Bound::Absent) => (from, table.elements.len()),
        (Bound::Absent, Bound::At(to)) if to <= MAX_COMBINATIONS => (1, to),
        (Bound::At(from), Bound::At(to)) if to < from + MAX_COMBINATIONS => (from, to),
        _ => return Values { first: Vec::new(), others: table.any() },
    };
    let first = (first..=last).map(|at| table.element(at)).collect();
    Values { first, others: table.others.clone().filter(|_| to == Bound::Absent) }
}
