//! The known facts of values, and the state of a run.
//!
//! The state consists of variables and tables, with a trail by which changes are undone.

use std::collections::HashMap;
use std::rc::Rc;

use super::library::Builtin;
use super::syntax::Function;
use super::terms::{List, TermId};

/// The most alternatives of a value. With more, the value is unknown.
const MAX_ALTERNATIVES: usize = 32;

/// The most elements, and the most fields, of a table that the analysis distinguishes.
const MAX_PARTS: usize = 250;

/// The known facts of a value.
#[derive(Clone, Debug)]
pub(super) enum Value<'t> {
    /// Unknown data: no function, and no table with functions.
    Unknown,
    Nil,
    Bool(bool),
    /// A text or a number that follows from KEYS and ARGV.
    Term(TermId),
    /// KEYS or ARGV.
    List(List),
    Table(usize),
    Function(Closure<'t>),
    Builtin(Builtin),
    /// One of these values, none of which is such a choice.
    OneOf(Rc<[Value<'t>]>),
}

/// A function with the variables that it can use.
#[derive(Clone, Debug)]
pub(super) struct Closure<'t> {
    pub function: Shared<'t>,
    /// The indices at which the variables of each enclosing function begin among all variables.
    pub frames: Rc<[usize]>,
}

/// A function's text, compared by its address.
#[derive(Clone, Copy)]
pub(super) struct Shared<'t>(pub &'t Function<'t>);

impl PartialEq for Shared<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl std::fmt::Debug for Shared<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "function of {} parameters", self.0.n_parameters)
    }
}

impl PartialEq for Value<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Value::Unknown, Value::Unknown) | (Value::Nil, Value::Nil) => true,
            (Value::Bool(one), Value::Bool(other)) => one == other,
            (Value::Term(one), Value::Term(other)) => one == other,
            (Value::List(one), Value::List(other)) => one == other,
            (Value::Table(one), Value::Table(other)) => one == other,
            (Value::Builtin(one), Value::Builtin(other)) => one == other,
            (Value::Function(one), Value::Function(other)) => {
                one.function == other.function && one.frames == other.frames
            }
            (Value::OneOf(one), Value::OneOf(other)) => one == other,
            _ => false,
        }
    }
}

impl<'t> Value<'t> {
    /// The alternatives of a value. A value that is no choice has itself as its only alternative.
    pub fn alternatives(&self) -> &[Value<'t>] {
        match self {
            Value::OneOf(alternatives) => alternatives,
            one => std::slice::from_ref(one),
        }
    }

    /// Whether a value could be called or changed where the analysis does not follow it.
    pub fn is_traced(&self) -> bool {
        matches!(self, Value::Function(_) | Value::Builtin(_) | Value::Table(_))
    }

    /// The known facts of a value that is this or `other`.
    pub fn join(&self, other: &Value<'t>) -> Value<'t> {
        if self == other {
            return self.clone();
        }
        let mut all: Vec<Value<'t>> = Vec::new();
        for value in self.alternatives().iter().chain(other.alternatives()) {
            if !all.contains(value) {
                all.push(value.clone());
            }
        }
        if all.contains(&Value::Unknown) || all.len() > MAX_ALTERNATIVES {
            all.retain(Value::is_traced);
            all.truncate(2 * MAX_ALTERNATIVES);
            all.push(Value::Unknown);
        }
        match all.len() {
            1 => all.remove(0),
            _ => Value::OneOf(all.into()),
        }
    }

    /// Whether `if` takes the value for true, where that is certain.
    ///
    /// Terms count as in runs in which nothing is missing. Elements of lists are the exception.
    pub fn truth(&self, is_element: impl Fn(TermId) -> bool) -> Option<bool> {
        let mut truths = self.alternatives().iter().map(|value| match value {
            Value::Unknown => None,
            Value::Nil => Some(false),
            Value::Bool(is_true) => Some(*is_true),
            Value::Term(id) => (!is_element(*id)).then_some(true),
            _ => Some(true),
        });
        let first = truths.next()??;
        truths.all(|truth| truth == Some(first)).then_some(first)
    }
}

/// Several values, as a call returns them.
#[derive(Clone, Debug, Default)]
pub(super) struct Values<'t> {
    pub first: Vec<Value<'t>>,
    /// Any number of further values, each of which is this.
    pub others: Option<Value<'t>>,
}

impl<'t> Values<'t> {
    pub fn one(value: Value<'t>) -> Self {
        Self { first: vec![value], others: None }
    }

    /// Any number of unknown values.
    pub fn unknown() -> Self {
        Self { first: Vec::new(), others: Some(Value::Unknown) }
    }

    /// The value at a position from 0.
    pub fn get(&self, at: usize) -> Value<'t> {
        match (self.first.get(at), &self.others) {
            (Some(value), _) => value.clone(),
            (None, Some(others)) => others.clone(),
            (None, None) => Value::Nil,
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &Value<'t>> {
        self.first.iter().chain(&self.others)
    }

    /// The values without the first `n`.
    pub fn skip(mut self, n: usize) -> Self {
        self.first.drain(..n.min(self.first.len()));
        self
    }

    pub fn join(&self, other: &Self) -> Self {
        let n_first = self.first.len().max(other.first.len());
        let others = match (&self.others, &other.others) {
            (Some(one), Some(other)) => Some(one.join(other)),
            (one, other) => one.clone().or(other.clone()),
        };
        Self { first: (0..n_first).map(|at| self.get(at).join(&other.get(at))).collect(), others }
    }
}

/// The known contents of a table that the script has made.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table<'t> {
    /// Its elements from 1 on.
    pub elements: Vec<Value<'t>>,
    /// The values that may stand at other positions.
    pub others: Option<Value<'t>>,
    /// Whether elements may have been overwritten with `others`.
    pub is_loose: bool,
    pub fields: Vec<(Box<[u8]>, Value<'t>)>,
}

impl<'t> Table<'t> {
    /// The known facts of the element at a position from 1.
    pub fn element(&self, at: usize) -> Value<'t> {
        let known = at.checked_sub(1).and_then(|at| self.elements.get(at));
        match (known, &self.others) {
            (Some(value), Some(others)) if self.is_loose => value.join(others),
            (Some(value), _) => value.clone(),
            (None, Some(others)) => others.join(&Value::Nil),
            (None, None) => Value::Nil,
        }
    }

    pub fn field(&self, name: &[u8]) -> Value<'t> {
        let known = self.fields.iter().find(|(of, _)| **of == *name).map(|(_, value)| value);
        match (known, &self.others) {
            (Some(value), Some(others)) if self.is_loose => value.join(others),
            (Some(value), _) => value.clone(),
            (None, Some(others)) if self.is_loose => others.join(&Value::Nil),
            (None, _) => Value::Nil,
        }
    }

    /// The join of its elements, or `None` if there are none.
    pub fn any(&self) -> Option<Value<'t>> {
        self.elements.iter().chain(&self.others).cloned().reduce(|one, other| one.join(&other))
    }

    /// The join of all elements and fields, and nil.
    pub fn anything(&self) -> Value<'t> {
        let fields = self.fields.iter().map(|(_, value)| value.clone());
        fields.chain(self.any()).fold(Value::Nil, |one, other| one.join(&other))
    }

    pub fn set_element(&mut self, at: usize, value: Value<'t>) {
        match at {
            0 => self.blur(value),
            _ if at <= self.elements.len() => self.elements[at - 1] = value,
            _ if at == self.elements.len() + 1 => self.push(value),
            _ => self.append(value),
        }
    }

    pub fn set_field(&mut self, name: &[u8], value: Value<'t>) {
        match self.fields.iter().position(|(of, _)| **of == *name) {
            Some(at) => self.fields[at].1 = value,
            None if self.fields.len() >= MAX_PARTS => self.blur(value),
            None => self.fields.push((name.into(), value)),
        }
    }

    /// Adds an element after all others.
    pub fn push(&mut self, value: Value<'t>) {
        let has_place = self.others.is_none() && self.elements.len() < MAX_PARTS;
        if has_place { self.elements.push(value) } else { self.append(value) }
    }

    fn append(&mut self, value: Value<'t>) {
        self.others = Some(self.others.as_ref().map_or(value.clone(), |others| others.join(&value)));
    }

    /// Notes that a value was stored at an unknown position.
    pub fn blur(&mut self, value: Value<'t>) {
        self.append(value);
        self.is_loose = true;
    }

    /// Notes that the elements were moved.
    pub fn shuffle(&mut self) {
        self.others = self.any();
        self.elements.clear();
    }

    /// The known contents of a table that is this or `other`.
    pub fn join(&self, other: &Self) -> Self {
        let n_common = self.elements.len().min(other.elements.len());
        let mut joined = Table {
            elements: (0..n_common).map(|at| self.elements[at].join(&other.elements[at])).collect(),
            is_loose: self.is_loose || other.is_loose,
            ..Table::default()
        };
        let rest = self.elements[n_common..].iter().chain(&other.elements[n_common..]);
        rest.chain(&self.others).chain(&other.others).for_each(|value| joined.append(value.clone()));
        for (name, _) in self.fields.iter().chain(&other.fields) {
            joined.set_field(name, self.field(name).join(&other.field(name)));
        }
        joined
    }
}

/// A variable or a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Place {
    Variable(usize),
    Table(usize),
}

/// The content of a place.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content<'t> {
    Value(Value<'t>),
    Table(Rc<Table<'t>>),
}

impl<'t> Content<'t> {
    fn join(&self, other: &Self) -> Self {
        match (self, other) {
            (Content::Value(one), Content::Value(other)) => Content::Value(one.join(other)),
            (Content::Table(one), Content::Table(other)) if one == other => Content::Table(one.clone()),
            (Content::Table(one), Content::Table(other)) => Content::Table(Rc::new(one.join(other))),
            _ => unreachable!("a place holds one kind of content"),
        }
    }
}

/// The places that have changed since a moment, with their new contents.
pub(super) type Changes<'t> = Vec<(Place, Content<'t>)>;

/// All variables and tables, with the former contents of changed ones.
#[derive(Default)]
pub(super) struct State<'t> {
    variables: Vec<Value<'t>>,
    tables: Vec<Rc<Table<'t>>>,
    /// The tables, by the place and the calls at which they are made.
    made: HashMap<(usize, u64), usize>,
    /// The content before each change, the latest last.
    trail: Vec<(Place, Content<'t>)>,
}

impl<'t> State<'t> {
    /// Makes room for a function's variables, and returns the index of the first.
    pub fn frame(&mut self, n_slots: usize) -> usize {
        let base = self.variables.len();
        self.variables.resize(base + n_slots, Value::Nil);
        base
    }

    pub fn n_variables(&self) -> usize {
        self.variables.len()
    }

    pub fn variable(&self, at: usize) -> &Value<'t> {
        &self.variables[at]
    }

    pub fn set(&mut self, at: usize, value: Value<'t>) {
        self.put(Place::Variable(at), Content::Value(value));
    }

    /// Makes a table at a place of the text that was reached by certain calls.
    ///
    /// All tables made there are one, so the rounds of a loop do not make more and more of them.
    pub fn make_table(&mut self, table: Table<'t>, place: usize, calls: u64) -> Value<'t> {
        let n_tables = self.tables.len();
        let id = *self.made.entry((place, calls)).or_insert(n_tables);
        if id == n_tables {
            self.tables.push(Rc::new(table));
        } else {
            self.put(Place::Table(id), Content::Table(Rc::new(table)));
        }
        Value::Table(id)
    }

    pub fn table(&self, id: usize) -> Rc<Table<'t>> {
        self.tables[id].clone()
    }

    pub fn change(&mut self, id: usize, change: impl FnOnce(&mut Table<'t>)) {
        let mut table = Table::clone(&self.tables[id]);
        change(&mut table);
        self.put(Place::Table(id), Content::Table(Rc::new(table)));
    }

    fn get(&self, place: Place) -> Content<'t> {
        match place {
            Place::Variable(at) => Content::Value(self.variables[at].clone()),
            Place::Table(id) => Content::Table(self.tables[id].clone()),
        }
    }

    fn replace(&mut self, place: Place, content: Content<'t>) {
        match (place, content) {
            (Place::Variable(at), Content::Value(value)) => self.variables[at] = value,
            (Place::Table(id), Content::Table(table)) => self.tables[id] = table,
            _ => unreachable!("a place holds one kind of content"),
        }
    }

    fn put(&mut self, place: Place, content: Content<'t>) {
        self.trail.push((place, self.get(place)));
        self.replace(place, content);
    }

    /// Returns the present moment, for [`State::changes`] and [`State::undo`].
    pub fn mark(&self) -> usize {
        self.trail.len()
    }

    /// Returns the changes since a mark. Of variables, only those before `n_variables` count.
    pub fn changes(&self, mark: usize, n_variables: usize) -> Changes<'t> {
        let mut places: Vec<Place> = self.trail[mark..].iter().map(|(place, _)| *place).collect();
        places.sort_unstable();
        places.dedup();
        let matters = |place: &Place| !matches!(place, Place::Variable(at) if *at >= n_variables);
        places.into_iter().filter(matters).map(|place| (place, self.get(place))).collect()
    }

    /// Restores the state at a mark.
    pub fn undo(&mut self, mark: usize) {
        while self.trail.len() > mark {
            let (place, content) = self.trail.pop().expect("there is more than the mark");
            self.replace(place, content);
        }
    }

    /// Continues where several ways meet. Each way is its changes of the present state.
    pub fn meet(&mut self, ways: &[Changes<'t>]) {
        let mut places: Vec<Place> = ways.iter().flatten().map(|(place, _)| *place).collect();
        places.sort_unstable();
        places.dedup();
        for place in places {
            let before = self.get(place);
            let of_way = |way: &Changes<'t>| {
                let at = way.binary_search_by_key(&place, |(place, _)| *place);
                at.map_or_else(|_| before.clone(), |at| way[at].1.clone())
            };
            let met = ways.iter().map(of_way).reduce(|one, other| one.join(&other));
            self.put(place, met.expect("a place comes from a way"));
        }
    }

    /// Replaces the variables that changed since a mark by the values that `renewed` returns.
    pub fn renew(&mut self, mark: usize, renewed: &mut dyn FnMut(&Value<'t>) -> Option<Value<'t>>) {
        for (place, content) in self.changes(mark, self.variables.len()) {
            if let Content::Value(value) = content
                && let Some(value) = renewed(&value)
            {
                self.put(place, Content::Value(value));
            }
        }
    }

    /// Prepares for a loop of which one round made `changes`.
    ///
    /// A changed place may be as before. Or it has the value that `later` makes of the one after the round.
    /// If `later` returns none, rounds build on each other, and the place may have any value.
    pub fn widen(
        &mut self,
        changes: Changes<'t>,
        later: &mut dyn FnMut(Place, &Value<'t>) -> Option<Value<'t>>,
    ) {
        for (place, after) in changes {
            let before = self.get(place);
            let joined = match (&before, &after) {
                (Content::Value(before), Content::Value(after)) => {
                    let all = after.alternatives().iter();
                    let all = all.map(|value| later(place, value).unwrap_or(Value::Unknown));
                    Content::Value(all.fold(before.clone(), |one, other| one.join(&other)))
                }
                _ => before.join(&after),
            };
            if joined != before {
                self.put(place, joined);
            }
        }
    }

    /// Notes that places of a loop still change after the loop was prepared.
    ///
    /// The variables among them may then have any value.
    pub fn give_up(&mut self, changes: Changes<'t>) {
        for (place, after) in changes {
            let before = self.get(place);
            let mut joined = before.join(&after);
            if joined == before {
                continue;
            }
            if let Content::Value(value) = &mut joined {
                *value = value.join(&Value::Unknown);
            }
            self.put(place, joined);
        }
    }
}
