//! Runs a script's tree over the known facts of its values, and notes its keys.
//!
//! Both branches of an `if` are followed, and their effects are joined. A loop's body is followed twice. The
//! first time shows its changes. The second time starts from a state with all these changes. Functions that
//! the script defines are followed at each call.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use super::library::{Builtin, Global, global, redis_member};
use super::reach::Commands;
use super::syntax::{Binary, Block, Expression, Field, Function, Statement, Unary};
use super::terms::{self, Arithmetic, Bounds, List, LoopId, Term, TermId, Terms};
use super::values::{Changes, Closure, Content, Place, Shared, State, Table, Value, Values};
use super::{Reason, Why};

/// The most statements and expressions that an analysis visits.
///
/// The largest scripts in use need fewer.
const MAX_STEPS: u32 = 200_000;

/// The changes that cost as much as a step when ways of a script meet.
const CHANGES_PER_STEP: usize = 16;

/// The most keys that a script may derive. A longer route is of no use.
pub(super) const MAX_ROOTS: usize = 500;

/// The deepest recursion of the analysis itself.
const MAX_DEPTH: u32 = 400;

/// The most texts that one operator may make of values with alternatives.
pub(super) const MAX_COMBINATIONS: usize = 64;

/// The findings of an analysis.
#[derive(Default)]
pub(super) struct Findings {
    /// The keys beyond KEYS.
    pub roots: Vec<TermId>,
    /// The first reason found why the keys are not all known, if they are not.
    pub reason: Option<Reason>,
    /// Whether a command that may write is called.
    pub writes: bool,
    /// Whether a command may be called whose name the text does not show.
    pub is_command_unknown: bool,
    /// Whether a command may have further keys.
    ///
    /// One of its words, which the text does not show, could announce them.
    pub is_uncertain: bool,
}

/// A function that a library has registered.
pub(super) type RegisteredValue<'t> = (Vec<u8>, Value<'t>);

pub(super) struct Interpreter<'t, 'c> {
    pub(super) commands: &'c dyn Commands,
    pub terms: Terms,
    pub findings: Findings,
    pub registered: Vec<RegisteredValue<'t>>,
    /// Whether KEYS and ARGV are globals, as in scripts and not in libraries.
    has_lists: bool,
    pub(super) state: State<'t>,
    pub(super) activations: Vec<Activation<'t>>,
    loops: Vec<LoopState<'t>>,
    /// The loops that are being followed, by their variables.
    pub(super) rounds: Vec<LoopId>,
    /// The number of made-up places, for loops that the text does not have.
    pub(super) n_places: usize,
    /// The functions and tables that the analysis no longer follows.
    pub(super) escaped: Vec<Value<'t>>,
    /// Whether the next statement is unreachable.
    pub(super) is_dead: bool,
    /// Whether a loop is followed only to learn its changes.
    is_rehearsal: bool,
    pub(super) is_stopped: bool,
    n_steps: u32,
    depth: u32,
}

/// A function that is being followed.
pub(super) struct Activation<'t> {
    pub(super) function: Shared<'t>,
    pub(super) frames: Rc<[usize]>,
    pub(super) varargs: Values<'t>,
    /// A number that identifies the calls by which it was reached.
    pub(super) calls: u64,
    pub(super) mark: usize,
    /// The number of variables that its callers may see.
    pub(super) n_variables: usize,
    pub(super) exits: Vec<(Changes<'t>, Values<'t>)>,
}

/// A loop that is being followed, with the changes at each `break`.
pub(super) struct LoopState<'t> {
    mark: usize,
    n_variables: usize,
    breaks: Vec<Changes<'t>>,
}

impl<'t, 'c> Interpreter<'t, 'c> {
    pub fn new(commands: &'c dyn Commands, has_lists: bool) -> Self {
        Self {
            commands,
            terms: Terms::default(),
            findings: Findings::default(),
            registered: Vec::new(),
            has_lists,
            state: State::default(),
            activations: Vec::new(),
            loops: Vec::new(),
            rounds: Vec::new(),
            n_places: 0,
            escaped: Vec::new(),
            is_dead: false,
            is_rehearsal: false,
            is_stopped: false,
            n_steps: 0,
            depth: 0,
        }
    }

    /// Follows a script, or a library while it loads.
    pub fn script(&mut self, script: &'t Function<'t>) {
        let closure = Closure { function: Shared(script), frames: Rc::from([]) };
        self.invoke(&closure, Values::unknown(), 0);
    }

    /// Follows a function that a library has registered, and forgets its changes.
    ///
    /// The function receives KEYS and ARGV.
    pub fn registered_function(&mut self, function: &Value<'t>) -> Findings {
        let mark = self.state.mark();
        let lists = [Value::List(List::Keys), Value::List(List::Arguments)];
        self.is_dead = false;
        self.is_stopped = false;
        self.n_steps = 0;
        self.escaped.clear();
        self.call(function, Values { first: lists.to_vec(), others: None }, 0);
        self.state.undo(mark);
        std::mem::take(&mut self.findings)
    }

    pub(super) fn give_up(&mut self, line: u32, why: Why) {
        self.findings.reason.get_or_insert(Reason { line, why });
    }

    pub(super) fn stop(&mut self, line: u32) {
        self.give_up(line, Why::TooLarge);
        self.findings.is_command_unknown = true;
        self.is_stopped = true;
    }

    /// Counts a step. Returns false when the script is too large.
    fn may_step(&mut self) -> bool {
        self.n_steps += 1;
        if self.n_steps > MAX_STEPS && !self.is_stopped {
            self.stop(0);
        }
        !self.is_stopped
    }

    /// The changes since a mark. The search for them counts as steps.
    pub(super) fn changes(&mut self, mark: usize, n_variables: usize) -> Changes<'t> {
        self.n_steps += ((self.state.mark() - mark) / CHANGES_PER_STEP) as u32;
        self.state.changes(mark, n_variables)
    }

    /// Runs a part of the analysis one level deeper, or not at all.
    pub(super) fn nested<T>(&mut self, part: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.depth >= MAX_DEPTH {
            self.stop(0);
            return None;
        }
        self.depth += 1;
        let result = part(self);
        self.depth -= 1;
        Some(result)
    }

    fn activation(&mut self) -> &mut Activation<'t> {
        self.activations.last_mut().expect("the script itself is active")
    }

    fn variable(&mut self, level: usize, slot: usize) -> usize {
        self.activation().frames[level] + slot
    }

    /// The place of a variable of the function that is being followed.
    fn own(&mut self, slot: usize) -> usize {
        self.activation().frames.last().expect("each function has a frame") + slot
    }

    // Statements.

    pub(super) fn block(&mut self, block: &'t Block<'t>) {
        self.nested(|this| {
            for statement in block {
                if this.is_dead || !this.may_step() {
                    return;
                }
                this.statement(statement);
            }
        });
    }

    fn statement(&mut self, statement: &'t Statement<'t>) {
        match statement {
            Statement::Local { slots, values } => {
                let values = self.list(values);
                for (at, slot) in slots.iter().enumerate() {
                    let variable = self.own(*slot);
                    self.state.set(variable, values.get(at));
                }
            }
            Statement::LocalFunction { slot, function } => {
                let variable = self.own(*slot);
                let closure = self.closure(function);
                self.state.set(variable, closure);
            }
            Statement::Assign { targets, values } => self.assign(targets, values),
            Statement::Call(call) => {
                self.values(call);
            }
            Statement::Do(block) => self.block(block),
            Statement::While { condition, body } => self.repeated(&Value::Nil, &mut |this| {
                let condition = this.value(condition);
                if this.truth(&condition) != Some(false) {
                    this.block(body);
                }
            }),
            Statement::Repeat { body, condition } => self.repeated(&Value::Nil, &mut |this| {
                this.block(body);
                if !this.is_dead {
                    this.value(condition);
                }
            }),
            Statement::If { branches, otherwise } => self.branches(branches, otherwise),
            Statement::NumericFor { slot, bounds, body } => {
                let round = self.round_of(bounds);
                self.repeated(&round, &mut |this| {
                    let variable = this.own(*slot);
                    this.state.set(variable, round.clone());
                    this.block(body);
                });
            }
            Statement::GenericFor { slots, values, body } => self.generic_for(slots, values, body),
            Statement::Return(values) => {
                let values = self.list(values);
                self.leave(values);
            }
            Statement::Break => self.leave_loop(),
        }
    }

    fn closure(&mut self, function: &'t Function<'t>) -> Value<'t> {
        let frames = self.activation().frames.clone();
        Value::Function(Closure { function: Shared(function), frames })
    }

    fn leave(&mut self, values: Values<'t>) {
        let (mark, n_variables) = (self.activation().mark, self.activation().n_variables);
        // Nothing reads the state after the end of a script. After a library's end its functions do.
        let is_last = self.activations.len() == 1 && self.has_lists;
        let changes = if is_last { Vec::new() } else { self.changes(mark, n_variables) };
        self.activation().exits.push((changes, values));
        self.is_dead = true;
    }

    fn leave_loop(&mut self) {
        if let Some(&LoopState { mark, n_variables, .. }) = self.loops.last() {
            let changes = self.changes(mark, n_variables);
            self.loops.last_mut().expect("there is one").breaks.push(changes);
        }
        self.is_dead = true;
    }

    fn branches(&mut self, branches: &'t [(Expression<'t>, Block<'t>)], otherwise: &'t Block<'t>) {
        let mut ways = Vec::new();
        let mut is_decided = false;
        for (condition, block) in branches {
            let condition = self.value(condition);
            match self.truth(&condition) {
                Some(false) => continue,
                None => ways.extend(self.way(block)),
                Some(true) => {
                    is_decided = true;
                    ways.extend(self.way(block));
                    break;
                }
            }
        }
        if !is_decided {
            ways.extend(self.way(otherwise));
        }
        self.is_dead = ways.is_empty();
        self.state.meet(&ways);
    }

    /// Follows one of several ways. Returns its changes if its end is reached.
    ///
    /// The state is as before.
    fn way(&mut self, block: &'t Block<'t>) -> Option<Changes<'t>> {
        let (mark, n_variables) = (self.state.mark(), self.state.n_variables());
        self.block(block);
        let changes = (!self.is_dead).then(|| self.changes(mark, n_variables));
        self.state.undo(mark);
        self.is_dead = false;
        changes
    }

    /// Follows a loop. `body` follows one round, and `round` is the loop's variable, if it has one.
    fn repeated(&mut self, round: &Value<'t>, body: &mut dyn FnMut(&mut Self)) {
        let n_rounds = self.rounds.len();
        if let Value::Term(id) = round {
            self.rounds.extend(self.terms.loop_of(*id));
        }
        if !self.is_rehearsal {
            self.rehearse(body);
        }
        let mark = self.state.mark();
        let mut ways = self.round(body);
        ways.push(Changes::new());
        self.state.meet(&ways);
        self.rounds.truncate(n_rounds);
        let Self { state, terms, rounds, n_places, .. } = self;
        state.renew(mark, &mut |value| renewed(value, terms, rounds, n_places));
    }

    /// Follows a loop to learn its changes, and prepares for them.
    ///
    /// Then it follows the loop once more, to see whether these were all.
    fn rehearse(&mut self, body: &mut dyn FnMut(&mut Self)) {
        self.is_rehearsal = true;
        let n_exits = self.activation().exits.len();
        let ways = self.round(body);
        let terms = &mut self.terms;
        for way in ways {
            self.state.widen(way, &mut |place, value| later(place, value, terms));
        }
        for way in self.round(body) {
            let way = self.later_changes(way);
            self.state.give_up(way);
        }
        self.activation().exits.truncate(n_exits);
        self.is_rehearsal = false;
    }

    /// The changes of a round, as they may be in later rounds.
    fn later_changes(&mut self, mut changes: Changes<'t>) -> Changes<'t> {
        for (place, content) in &mut changes {
            if let Content::Value(value) = content {
                let all = value.alternatives().iter();
                let mut all =
                    all.map(|value| later(*place, value, &mut self.terms).unwrap_or(Value::Unknown));
                let first = all.next().expect("a value has an alternative");
                *value = all.fold(first, |one, other| one.join(&other));
            }
        }
        changes
    }

    /// Follows one round of a loop, and returns the ways out of it.
    ///
    /// The state is as before.
    fn round(&mut self, body: &mut dyn FnMut(&mut Self)) -> Vec<Changes<'t>> {
        let (mark, n_variables) = (self.state.mark(), self.state.n_variables());
        self.loops.push(LoopState { mark, n_variables, breaks: Vec::new() });
        body(self);
        let mut ways = self.loops.pop().expect("it was put there").breaks;
        if !self.is_dead {
            ways.push(self.changes(mark, n_variables));
        }
        self.state.undo(mark);
        self.is_dead = false;
        ways
    }

    /// The variable of a numeric `for`.
    fn round_of(&mut self, bounds: &'t [Expression<'t>]) -> Value<'t> {
        let place = place(bounds);
        let bounds: Vec<Value<'t>> = bounds.iter().map(|bound| self.value(bound)).collect();
        let round = match bounds.as_slice() {
            [Value::Term(from), Value::Term(to)] => {
                let step = self.terms.number(1.0);
                step.and_then(|step| self.terms.round(place, Bounds { from: *from, to: *to, step }))
            }
            [Value::Term(from), Value::Term(to), Value::Term(step)] => {
                self.terms.round(place, Bounds { from: *from, to: *to, step: *step })
            }
            _ => None,
        };
        or_unknown(round)
    }

    fn generic_for(&mut self, slots: &'t [usize], values: &'t [Expression<'t>], body: &'t Block<'t>) {
        let place = place(values);
        let values = self.list(values);
        let (iterator, over) = (values.get(0), values.get(1));
        let pair = self.pair(&over, place);
        self.repeated(&pair.get(0), &mut |this| {
            let values = match iterator {
                Value::Builtin(Builtin::Next) => this.pair(&over, place),
                _ => this.call(&iterator, Values::unknown(), 0),
            };
            for (at, slot) in slots.iter().enumerate() {
                let variable = this.own(*slot);
                this.state.set(variable, values.get(at));
            }
            this.block(body);
        });
    }

    /// Any position of a table, and the value there.
    fn pair(&mut self, over: &Value<'t>, place: usize) -> Values<'t> {
        if let Value::List(list) = over {
            let one = self.terms.number(1.0);
            let element = one.and_then(|one| self.terms.any(place, *list, one, 1.0));
            let at = element.map(|element| match self.terms.get(element) {
                Term::Element(_, at) => *at,
                _ => element,
            });
            return Values { first: vec![or_unknown(at), or_unknown(element)], others: None };
        }
        let value = self.map(over, &mut |this, over| match over {
            Value::Table(id) => this.state.table(*id).anything(),
            _ => Value::Unknown,
        });
        Values { first: vec![Value::Unknown, without_nil(&value)], others: None }
    }

    fn assign(&mut self, targets: &'t [Expression<'t>], values: &'t [Expression<'t>]) {
        let values = self.list(values);
        for (at, target) in targets.iter().enumerate() {
            let value = values.get(at);
            match target {
                Expression::Local { level, slot } => {
                    let variable = self.variable(*level, *slot);
                    self.state.set(variable, value);
                }
                Expression::Index { of, at, line } => {
                    let is_next = is_next(of, at);
                    let (of, at) = (self.value(of), self.value(at));
                    self.store(&of, &at, value, is_next, *line);
                }
                // Globals cannot be set: the run ends with an error.
                _ => self.escape(&value, 0),
            }
        }
    }

    /// Stores a value in a table, at the end if `is_next`.
    pub(super) fn store(
        &mut self,
        of: &Value<'t>,
        at: &Value<'t>,
        value: Value<'t>,
        is_next: bool,
        line: u32,
    ) {
        let is_certain = of.alternatives().len() == 1;
        for of in of.alternatives() {
            match of {
                Value::Table(id) => {
                    let (place, value) = (self.position(at), value.clone());
                    self.state.change(*id, |table| {
                        let before = (!is_certain).then(|| table.clone());
                        match place {
                            _ if is_next => table.push(value),
                            TablePosition::Element(at) => table.set_element(at, value),
                            TablePosition::Field(name) => table.set_field(&name, value),
                            TablePosition::Unknown => table.blur(value),
                        }
                        if let Some(before) = before {
                            *table = table.join(&before);
                        }
                    });
                }
                Value::List(_) => self.give_up(line, Why::ChangesLists),
                _ => self.escape(&value, line),
            }
        }
    }

    fn position(&self, at: &Value<'t>) -> TablePosition {
        let Value::Term(id) = at else { return TablePosition::Unknown };
        match (self.terms.get(*id), self.terms.constant(*id)) {
            (Term::Text(name), _) => TablePosition::Field(name.clone()),
            (_, Some(at)) if at >= 1.0 && at == at.trunc() => TablePosition::Element(at as usize),
            _ => TablePosition::Unknown,
        }
    }

    // Expressions.

    pub(super) fn value(&mut self, expression: &'t Expression<'t>) -> Value<'t> {
        if !self.may_step() {
            return Value::Unknown;
        }
        self.nested(|this| this.value_of(expression)).unwrap_or(Value::Unknown)
    }

    fn value_of(&mut self, expression: &'t Expression<'t>) -> Value<'t> {
        match expression {
            Expression::Nil => Value::Nil,
            Expression::Bool(is_true) => Value::Bool(*is_true),
            Expression::Number(number) => or_unknown(self.terms.number(*number)),
            Expression::Text(text) => or_unknown(self.terms.text(text)),
            Expression::Function(function) => self.closure(function),
            Expression::Local { level, slot } => {
                let variable = self.variable(*level, *slot);
                self.state.variable(variable).clone()
            }
            Expression::Global { name, line } => self.global(name, *line),
            Expression::Index { of, at, line } => {
                let (of, at) = (self.value(of), self.value(at));
                self.index(&of, &at, *line)
            }
            Expression::Table(fields) => self.table(fields, std::ptr::from_ref(expression) as usize),
            Expression::Binary { operator, left, right } => self.binary(*operator, left, right),
            Expression::Unary { operator, of } => {
                let of = self.value(of);
                self.unary(*operator, &of)
            }
            Expression::Single(of) => self.value(of),
            Expression::Varargs | Expression::Call { .. } | Expression::Method { .. } => {
                self.values(expression).get(0)
            }
        }
    }

    /// The values of an expression, which may have several.
    fn values(&mut self, expression: &'t Expression<'t>) -> Values<'t> {
        if !self.may_step() {
            return Values::unknown();
        }
        let values = self.nested(|this| match expression {
            Expression::Varargs => this.activation().varargs.clone(),
            Expression::Call { callee, arguments, line } => {
                let callee = this.value(callee);
                let arguments = this.list(arguments);
                this.call(&callee, arguments, *line)
            }
            Expression::Method { of, name, arguments, line } => this.method(of, name, arguments, *line),
            _ => Values::one(this.value(expression)),
        });
        values.unwrap_or_else(Values::unknown)
    }

    /// The values of a list of expressions. The last one may have several.
    pub(super) fn list(&mut self, expressions: &'t [Expression<'t>]) -> Values<'t> {
        let Some((last, first)) = expressions.split_last() else { return Values::default() };
        let mut all: Vec<Value<'t>> = first.iter().map(|expression| self.value(expression)).collect();
        let last = self.values(last);
        all.extend(last.first);
        Values { first: all, others: last.others }
    }

    fn global(&mut self, name: &[u8], line: u32) -> Value<'t> {
        match name {
            b"KEYS" if self.has_lists => return Value::List(List::Keys),
            b"ARGV" if self.has_lists => return Value::List(List::Arguments),
            _ => {}
        }
        match global(name) {
            Global::Builtin(builtin) => Value::Builtin(builtin),
            Global::Missing => Value::Nil,
            Global::Opaque => {
                self.findings.is_command_unknown = true;
                self.give_up(line, Why::Opaque);
                Value::Unknown
            }
        }
    }

    pub(super) fn made_up_place(&mut self) -> usize {
        self.n_places += 1;
        self.n_places
    }

    /// Applies a function to each alternative of a value.
    pub(super) fn map(
        &mut self,
        value: &Value<'t>,
        function: &mut dyn FnMut(&mut Self, &Value<'t>) -> Value<'t>,
    ) -> Value<'t> {
        let mut all = value.alternatives().iter();
        let first = function(self, all.next().expect("a value has an alternative"));
        all.fold(first, |joined, value| joined.join(&function(self, value)))
    }

    pub(super) fn index(&mut self, of: &Value<'t>, at: &Value<'t>, line: u32) -> Value<'t> {
        self.map(of, &mut |this, of| this.map(at, &mut |this, at| this.member(of, at, line)))
    }

    pub(super) fn member(&mut self, of: &Value<'t>, at: &Value<'t>, line: u32) -> Value<'t> {
        match (of, at) {
            (Value::List(list), Value::Term(at)) => or_unknown(self.terms.add(Term::Element(*list, *at))),
            (Value::List(list), Value::Unknown) => {
                let (one, place) = (self.terms.number(1.0), self.made_up_place());
                or_unknown(one.and_then(|one| self.terms.any(place, *list, one, 1.0)))
            }
            (Value::Table(id), _) => {
                let table = self.state.table(*id);
                match self.position(at) {
                    TablePosition::Element(at) => table.element(at),
                    TablePosition::Field(name) => table.field(&name),
                    TablePosition::Unknown => table.anything(),
                }
            }
            (Value::Builtin(builtin), Value::Term(name)) => self.builtin_member(*builtin, *name, line),
            (Value::Builtin(Builtin::Redis), _) => {
                self.lose(line);
                Value::Unknown
            }
            _ => Value::Unknown,
        }
    }

    fn builtin_member(&mut self, of: Builtin, name: TermId, line: u32) -> Value<'t> {
        let name = self.terms.literal(name);
        match (of, name) {
            (Builtin::Redis, Some(name)) => Value::Builtin(redis_member(name)),
            (Builtin::Library(library), Some(name)) => Value::Builtin(library.member(name)),
            (Builtin::Redis, None) => {
                self.lose(line);
                Value::Unknown
            }
            _ => Value::Unknown,
        }
    }

    /// Notes that the script may call commands that the text does not show.
    pub(super) fn lose(&mut self, line: u32) {
        self.findings.is_command_unknown = true;
        self.give_up(line, Why::CallEscapes);
    }

    pub(super) fn table(&mut self, fields: &'t [Field<'t>], place: usize) -> Value<'t> {
        let mut table = Table::default();
        for (at, field) in fields.iter().enumerate() {
            match field {
                Field::Next(expression) if at + 1 == fields.len() => {
                    let values = self.values(expression);
                    values.first.into_iter().for_each(|value| table.push(value));
                    table.others = values.others;
                }
                Field::Next(expression) => table.push(self.value(expression)),
                Field::At(at, value) => {
                    let (at, value) = (self.value(at), self.value(value));
                    match self.position(&at) {
                        TablePosition::Element(at) => table.set_element(at, value),
                        TablePosition::Field(name) => table.set_field(&name, value),
                        TablePosition::Unknown => table.blur(value),
                    }
                }
            }
        }
        let calls = self.activation().calls;
        self.state.make_table(table, place, calls)
    }

    fn truth(&self, value: &Value<'t>) -> Option<bool> {
        value.truth(|id| {
            matches!(self.terms.get(id), Term::Element(..) | Term::Function(terms::UnaryFunction::Number, _))
        })
    }

    fn binary(&mut self, operator: Binary, left: &'t Expression<'t>, right: &'t Expression<'t>) -> Value<'t> {
        let left = self.value(left);
        let arithmetic = match operator {
            Binary::And | Binary::Or => return self.choice(operator, &left, right),
            Binary::Add => Arithmetic::Add,
            Binary::Subtract => Arithmetic::Subtract,
            Binary::Multiply => Arithmetic::Multiply,
            Binary::Divide => Arithmetic::Divide,
            Binary::Modulo => Arithmetic::Modulo,
            Binary::Power => Arithmetic::Power,
            Binary::Concat => {
                let right = self.value(right);
                return self.concat(&left, &right);
            }
            Binary::Equal | Binary::NotEqual => {
                let right = self.value(right);
                let is_equal = self.is_equal(&left, &right);
                return is_equal
                    .map_or(Value::Unknown, |is_equal| Value::Bool(is_equal == (operator == Binary::Equal)));
            }
            Binary::Less | Binary::Greater | Binary::LessOrEqual | Binary::GreaterOrEqual => {
                self.value(right);
                return Value::Unknown;
            }
        };
        let right = self.value(right);
        self.combine(&left, &right, &mut |terms, left, right| terms.arithmetic(arithmetic, left, right))
    }

    /// `and` and `or`.
    fn choice(&mut self, operator: Binary, left: &Value<'t>, right: &'t Expression<'t>) -> Value<'t> {
        let takes_left_if = operator == Binary::Or;
        let truth = self.truth(left);
        if truth == Some(takes_left_if) {
            return left.clone();
        }
        let (mark, n_variables) = (self.state.mark(), self.state.n_variables());
        let right = self.value(right);
        if truth.is_some() {
            return right;
        }
        if self.state.mark() > mark {
            // The right side may not be reached. Then neither its changes nor an end in it happen.
            let mut ways = vec![Changes::new()];
            ways.extend((!self.is_dead).then(|| self.changes(mark, n_variables)));
            self.state.undo(mark);
            self.state.meet(&ways);
        }
        self.is_dead = false;
        match operator {
            Binary::Or => without_nil(left).join(&right),
            _ => right.join(&Value::Nil),
        }
    }

    /// Whether two values are equal, where the text shows it.
    fn is_equal(&self, left: &Value<'t>, right: &Value<'t>) -> Option<bool> {
        match (left, right) {
            (Value::Nil, Value::Nil) => Some(true),
            (Value::Bool(left), Value::Bool(right)) => Some(left == right),
            (Value::Term(left), Value::Term(right)) => {
                let is_fixed = |id| self.terms.literal(id).is_some() || self.terms.constant(id).is_some();
                (is_fixed(*left) && is_fixed(*right)).then_some(left == right)
            }
            (Value::Nil, other) | (other, Value::Nil) => match self.truth(other) {
                Some(true) => Some(false),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn unary(&mut self, operator: Unary, of: &Value<'t>) -> Value<'t> {
        match operator {
            Unary::Not => self.truth(of).map_or(Value::Unknown, |is_true| Value::Bool(!is_true)),
            Unary::Negate => self.apply(terms::UnaryFunction::Negate, of),
            Unary::Length => self.map(of, &mut |this, of| match of {
                Value::List(list) => or_unknown(this.terms.add(Term::Count(*list))),
                Value::Table(id) => {
                    let table = this.state.table(*id);
                    let is_known = table.others.is_none() && !table.elements.contains(&Value::Nil);
                    let n_elements = is_known.then_some(table.elements.len() as f64);
                    or_unknown(n_elements.and_then(|n_elements| this.terms.number(n_elements)))
                }
                Value::Term(_) => this.apply(terms::UnaryFunction::Length, of),
                _ => Value::Unknown,
            }),
        }
    }

    pub(super) fn apply(&mut self, function: terms::UnaryFunction, of: &Value<'t>) -> Value<'t> {
        self.map(of, &mut |this, of| match of {
            Value::Term(of) => or_unknown(this.terms.function(function, *of)),
            Value::Nil => Value::Nil,
            _ => Value::Unknown,
        })
    }

    /// Joins the texts of two values, in all combinations.
    pub(super) fn concat(&mut self, left: &Value<'t>, right: &Value<'t>) -> Value<'t> {
        self.combine(left, right, &mut |terms, left, right| terms.concat([left, right]))
    }

    /// Makes a term of each combination of two values' terms.
    ///
    /// Alternatives that are no terms end the run, and are left out.
    fn combine(
        &mut self,
        left: &Value<'t>,
        right: &Value<'t>,
        make: &mut dyn FnMut(&mut Terms, TermId, TermId) -> Option<TermId>,
    ) -> Value<'t> {
        let (left, right) = (left.alternatives(), right.alternatives());
        if left.len() * right.len() > MAX_COMBINATIONS {
            return Value::Unknown;
        }
        let mut joined = None;
        for left in left {
            for right in right {
                let value = match (left, right) {
                    (Value::Term(left), Value::Term(right)) => {
                        or_unknown(make(&mut self.terms, *left, *right))
                    }
                    (Value::Unknown | Value::Term(_), Value::Unknown | Value::Term(_)) => Value::Unknown,
                    _ => continue,
                };
                joined = Some(joined.map_or(value.clone(), |joined: Value<'t>| joined.join(&value)));
            }
        }
        joined.unwrap_or(Value::Nil)
    }
}

/// A position in a table.
pub(super) enum TablePosition {
    Element(usize),
    Field(Box<[u8]>),
    Unknown,
}

pub(super) fn or_unknown<'t>(term: Option<TermId>) -> Value<'t> {
    term.map_or(Value::Unknown, Value::Term)
}

/// The value without nil and false among its alternatives; nil if no other is left.
pub(super) fn without_nil<'t>(value: &Value<'t>) -> Value<'t> {
    let all = value.alternatives().iter().filter(|value| !matches!(value, Value::Nil | Value::Bool(false)));
    all.cloned().reduce(|one, other| one.join(&other)).unwrap_or(Value::Nil)
}

/// A number that distinguishes places of a script.
fn place(of: &[Expression<'_>]) -> usize {
    of.as_ptr() as usize
}

/// Whether an index is the one after a table's last, as in `t[#t + 1]`.
fn is_next(of: &Expression<'_>, at: &Expression<'_>) -> bool {
    let Expression::Binary { operator: Binary::Add, left, right } = at else { return false };
    let Expression::Unary { operator: Unary::Length, of: measured } = &**left else { return false };
    let is_same = match (of, &**measured) {
        (Expression::Local { level, slot }, Expression::Local { level: other_level, slot: other_slot }) => {
            (level, slot) == (other_level, other_slot)
        }
        _ => false,
    };
    is_same && matches!(**right, Expression::Number(1.0))
}

/// The value that a place may have in rounds after one has left `value` there.
///
/// It is `None` if rounds build on each other.
fn later<'t>(place: Place, value: &Value<'t>, terms: &mut Terms) -> Option<Value<'t>> {
    match value {
        Value::Unknown | Value::OneOf(_) => None,
        Value::Term(id) if matches!(terms.get(*id), Term::Text(_) | Term::Element(..)) => {
            terms.in_any_round(*id, place_of_round(place, *id)).map(Value::Term)
        }
        Value::Term(_) => None,
        _ => Some(value.clone()),
    }
}

/// A number for a round that the text does not name.
///
/// It is the round in which a variable was set to a term.
fn place_of_round(place: Place, id: TermId) -> usize {
    let mut hasher = DefaultHasher::new();
    (place, id).hash(&mut hasher);
    hasher.finish() as usize
}

/// The value as it is outside of the loops on which it depends.
///
/// `None` if it depends on no loop, or only on loops that are in use.
pub(super) fn renewed<'t>(
    value: &Value<'t>,
    terms: &mut Terms,
    rounds: &[LoopId],
    n_places: &mut usize,
) -> Option<Value<'t>> {
    let depends = |terms: &Terms, value: &Value<'t>| match value {
        Value::Term(id) => terms.loop_of(*id).is_some_and(|of| !rounds.contains(&of)),
        _ => false,
    };
    if !value.alternatives().iter().any(|value| depends(terms, value)) {
        return None;
    }
    *n_places += 1;
    let all = value.alternatives().iter().map(|value| match value {
        Value::Term(id) if depends(terms, value) => or_unknown(terms.in_any_round(*id, *n_places)),
        other => other.clone(),
    });
    all.reduce(|one, other| one.join(&other))
}
