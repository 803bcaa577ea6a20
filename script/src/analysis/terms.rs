//! Terms: values that follow from KEYS, ARGV and literals alone.
//!
//! This module stores them, and computes their values in one run.

use std::cell::Cell;
use std::collections::HashMap;

use smallvec::SmallVec;

use super::number;

/// The most terms of a script. More are not worth predicting.
const MAX_TERMS: usize = 10_000;

/// The greatest depth to which a term consists of others. Evaluation recurses as deep.
const MAX_HEIGHT: u8 = 40;

/// The most terms that one evaluation may visit.
const MAX_SIZE: u32 = 1000;

/// The longest text that is joined for a term, in bytes.
///
/// A prediction must not cost more than the run.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// The longest text that the analysis knows, in bytes. Keys do not consist of longer ones.
const MAX_LITERAL_BYTES: usize = 4096;

/// The most rounds of all loops in one evaluation.
const MAX_ROUNDS: usize = 4096;

/// The longest key without an allocation, in bytes.
const INLINE_BYTES: usize = 256;

/// The bytes of a text that is being joined.
type Text = SmallVec<[u8; INLINE_BYTES]>;

/// The index of a term among the terms of its script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TermId(u32);

/// One of the two lists that a script receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum List {
    Keys,
    Arguments,
}

/// A loop that terms may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LoopId(u32);

/// The bits of a number, which can be compared and hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bits(u64);

impl From<f64> for Bits {
    fn from(number: f64) -> Self {
        Self(number.to_bits())
    }
}

impl Bits {
    pub fn number(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// The way in which a text or a number is made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Term {
    Text(Box<[u8]>),
    Number(Bits),
    /// The element of a list at a position from 1, which may be missing.
    Element(List, TermId),
    /// The length of a list.
    Count(List),
    /// The variable of a loop.
    Round(LoopId),
    Concat(Box<[TermId]>),
    Arithmetic(Arithmetic, TermId, TermId),
    Function(UnaryFunction, TermId),
    /// `string.sub` of a text, with its first and its last position.
    Part(TermId, TermId, TermId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Power,
}

/// Functions of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum UnaryFunction {
    /// `tonumber`.
    Number,
    /// The integer that `%d` makes of a number.
    Integer,
    Floor,
    Ceiling,
    Negate,
    Lower,
    Upper,
    Length,
}

/// The bounds of a loop, which depend on no loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bounds {
    pub from: TermId,
    pub to: TermId,
    pub step: TermId,
}

/// The terms of a script while it is analysed. Equal terms have one id.
#[derive(Default)]
pub(super) struct Terms {
    terms: Vec<Term>,
    facts: Vec<Facts>,
    ids: HashMap<Term, TermId>,
    loops: Vec<Bounds>,
    loop_ids: HashMap<(usize, Bounds), LoopId>,
}

#[derive(Clone, Copy)]
struct Facts {
    height: u8,
    /// The number of terms that an evaluation visits.
    size: u32,
    /// The loop on which the term depends. A term cannot depend on two.
    of_loop: Option<LoopId>,
}

impl Terms {
    /// Returns a term's id.
    ///
    /// It is `None` if the term depends on two loops or is too large.
    pub fn add(&mut self, term: Term) -> Option<TermId> {
        if let Some(id) = self.ids.get(&term) {
            return Some(*id);
        }
        let facts = self.facts_of(&term)?;
        if self.terms.len() >= MAX_TERMS || facts.height > MAX_HEIGHT || facts.size > MAX_SIZE {
            return None;
        }
        let id = TermId(self.terms.len() as u32);
        self.terms.push(term.clone());
        self.facts.push(facts);
        self.ids.insert(term, id);
        Some(id)
    }

    fn facts_of(&self, term: &Term) -> Option<Facts> {
        let mut facts = Facts { height: 0, size: 1, of_loop: None };
        if let Term::Round(id) = term {
            facts.of_loop = Some(*id);
        }
        for part in term.parts() {
            let of_part = self.facts[part.0 as usize];
            facts.height = facts.height.max(of_part.height + 1);
            facts.size = facts.size.saturating_add(of_part.size);
            facts.of_loop = match (facts.of_loop, of_part.of_loop) {
                (Some(one), Some(other)) if one != other => return None,
                (one, other) => one.or(other),
            };
        }
        Some(facts)
    }

    /// Returns the loop on which a term depends.
    pub fn loop_of(&self, id: TermId) -> Option<LoopId> {
        self.facts[id.0 as usize].of_loop
    }

    /// Returns a term for any round of its loop, independent of other terms' rounds.
    pub fn in_any_round(&mut self, id: TermId, place: usize) -> Option<TermId> {
        if self.loop_of(id).is_none() {
            return Some(id);
        }
        let mut term = self.get(id).clone();
        if let Term::Round(of) = term {
            let bounds = self.loops[of.0 as usize];
            return self.round(place, bounds);
        }
        for part in term.parts_mut() {
            *part = self.in_any_round(*part, place)?;
        }
        self.add(term)
    }

    pub fn get(&self, id: TermId) -> &Term {
        &self.terms[id.0 as usize]
    }

    pub fn text(&mut self, text: &[u8]) -> Option<TermId> {
        if text.len() > MAX_LITERAL_BYTES {
            return None;
        }
        self.add(Term::Text(text.into()))
    }

    pub fn number(&mut self, number: f64) -> Option<TermId> {
        self.add(Term::Number(number.into()))
    }

    /// Returns the variable of the loop at a place of the source.
    ///
    /// `place` is any number that distinguishes places.
    pub fn round(&mut self, place: usize, bounds: Bounds) -> Option<TermId> {
        if [bounds.from, bounds.to, bounds.step].into_iter().any(|id| self.loop_of(id).is_some()) {
            return None;
        }
        let n_loops = self.loop_ids.len() as u32;
        let id = *self.loop_ids.entry((place, bounds)).or_insert(LoopId(n_loops));
        if id.0 == n_loops {
            self.loops.push(bounds);
        }
        self.add(Term::Round(id))
    }

    /// Returns any element of a list from a position on.
    pub fn any(&mut self, place: usize, list: List, from: TermId, step: f64) -> Option<TermId> {
        let bounds = Bounds { from, to: self.add(Term::Count(list))?, step: self.number(step)? };
        let at = self.round(place, bounds)?;
        self.add(Term::Element(list, at))
    }

    /// Returns list and position of a term that is any element from a position on.
    pub fn as_any(&self, id: TermId) -> Option<(List, TermId)> {
        let Term::Element(list, at) = self.get(id) else { return None };
        let Term::Round(of) = self.get(*at) else { return None };
        let bounds = self.loops[of.0 as usize];
        let is_each =
            *self.get(bounds.to) == Term::Count(*list) && *self.get(bounds.step) == Term::Number(1.0.into());
        is_each.then_some((*list, bounds.from))
    }

    /// Returns the number that a term has in every run.
    pub fn constant(&self, id: TermId) -> Option<f64> {
        match self.get(id) {
            Term::Number(bits) => Some(bits.number()),
            _ => None,
        }
    }

    /// Returns the text that a term has in every run.
    pub fn literal(&self, id: TermId) -> Option<&[u8]> {
        match self.get(id) {
            Term::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Applies an operator. A result that does not depend on the run is computed here.
    pub fn arithmetic(&mut self, operation: Arithmetic, left: TermId, right: TermId) -> Option<TermId> {
        match (self.constant(left), self.constant(right)) {
            (Some(left), Some(right)) => self.number(operation.apply(left, right)),
            _ => self.add(Term::Arithmetic(operation, left, right)),
        }
    }

    /// Applies a function. A result that does not depend on the run is computed here.
    pub fn function(&mut self, function: UnaryFunction, of: TermId) -> Option<TermId> {
        let term = Term::Function(function, of);
        if !matches!(self.get(of), Term::Text(_) | Term::Number(_)) {
            return self.add(term);
        }
        let id = self.add(term)?;
        let run = Evaluation {
            terms: &self.terms,
            loops: &self.loops,
            keys: &[],
            arguments: &[],
            round: 0.0,
            met_long_text: Cell::new(false),
        };
        match function {
            UnaryFunction::Lower | UnaryFunction::Upper | UnaryFunction::Integer => {
                let mut text = Text::new();
                run.write(id, &mut text)?;
                self.text(&text)
            }
            _ => {
                let number = run.number(id)?;
                self.number(number)
            }
        }
    }

    /// Joins texts. Neighbours that are literal become one.
    pub fn concat(&mut self, parts: impl IntoIterator<Item = TermId>) -> Option<TermId> {
        let mut joined: Vec<TermId> = Vec::new();
        for part in parts {
            match self.get(part) {
                Term::Concat(inner) => {
                    for part in inner.clone() {
                        self.append(&mut joined, part)?;
                    }
                }
                _ => self.append(&mut joined, part)?,
            }
        }
        match joined.as_slice() {
            [] => self.text(b""),
            [one] if self.literal(*one).is_some() => Some(*one),
            _ => self.add(Term::Concat(joined.into())),
        }
    }

    fn append(&mut self, joined: &mut Vec<TermId>, part: TermId) -> Option<()> {
        let part = match self.fixed_text(part) {
            Some(text) => {
                let mut whole = joined.last().and_then(|last| self.literal(*last)).unwrap_or(b"").to_vec();
                if joined.last().is_some_and(|last| self.literal(*last).is_some()) {
                    joined.pop();
                }
                whole.extend_from_slice(&text);
                self.text(&whole)?
            }
            None => part,
        };
        joined.push(part);
        (joined.len() <= MAX_SIZE as usize).then_some(())
    }

    fn fixed_text(&self, id: TermId) -> Option<Text> {
        match self.get(id) {
            Term::Text(text) => Some(Text::from_slice(text)),
            Term::Number(bits) => {
                let mut text = Text::new();
                number::write(bits.number(), &mut text);
                Some(text)
            }
            _ => None,
        }
    }

    /// Keeps the terms of which `roots` consist, and drops the data of the analysis.
    pub fn templates(&self, roots: &[TermId]) -> Templates {
        let mut kept = Templates::default();
        let mut moved = HashMap::new();
        let mut loops = HashMap::new();
        for root in roots {
            let of_loop = self.loop_of(*root);
            let of_loop = of_loop.map(|id| self.keep_loop(id, &mut kept, &mut moved, &mut loops));
            let root = self.keep(*root, &mut kept, &mut moved, &mut loops);
            kept.roots.push((root, of_loop));
        }
        kept
    }

    fn keep_loop(
        &self,
        id: LoopId,
        kept: &mut Templates,
        moved: &mut HashMap<TermId, TermId>,
        loops: &mut HashMap<LoopId, LoopId>,
    ) -> LoopId {
        if let Some(id) = loops.get(&id) {
            return *id;
        }
        let Bounds { from, to, step } = self.loops[id.0 as usize];
        let mut keep = |id| self.keep(id, kept, moved, loops);
        let bounds = Bounds { from: keep(from), to: keep(to), step: keep(step) };
        let new = LoopId(kept.loops.len() as u32);
        kept.loops.push(bounds);
        loops.insert(id, new);
        new
    }

    fn keep(
        &self,
        id: TermId,
        kept: &mut Templates,
        moved: &mut HashMap<TermId, TermId>,
        loops: &mut HashMap<LoopId, LoopId>,
    ) -> TermId {
        if let Some(id) = moved.get(&id) {
            return *id;
        }
        let mut term = self.get(id).clone();
        if let Term::Round(of) = &mut term {
            *of = self.keep_loop(*of, kept, moved, loops);
        }
        for part in term.parts_mut() {
            *part = self.keep(*part, kept, moved, loops);
        }
        let new = TermId(kept.terms.len() as u32);
        kept.terms.push(term);
        moved.insert(id, new);
        new
    }
}

impl Term {
    fn parts(&self) -> impl Iterator<Item = TermId> {
        let (some, many): ([Option<TermId>; 3], &[TermId]) = match self {
            Term::Text(_) | Term::Number(_) | Term::Count(_) | Term::Round(_) => ([None; 3], &[]),
            Term::Element(_, of) | Term::Function(_, of) => ([Some(*of), None, None], &[]),
            Term::Concat(parts) => ([None; 3], parts),
            Term::Arithmetic(_, left, right) => ([Some(*left), Some(*right), None], &[]),
            Term::Part(of, from, to) => ([Some(*of), Some(*from), Some(*to)], &[]),
        };
        some.into_iter().flatten().chain(many.iter().copied())
    }

    fn parts_mut(&mut self) -> Vec<&mut TermId> {
        match self {
            Term::Text(_) | Term::Number(_) | Term::Count(_) | Term::Round(_) => Vec::new(),
            Term::Element(_, of) | Term::Function(_, of) => vec![of],
            Term::Concat(parts) => parts.iter_mut().collect(),
            Term::Arithmetic(_, left, right) => vec![left, right],
            Term::Part(of, from, to) => vec![of, from, to],
        }
    }
}

impl Arithmetic {
    fn apply(self, left: f64, right: f64) -> f64 {
        match self {
            Self::Add => left + right,
            Self::Subtract => left - right,
            Self::Multiply => left * right,
            Self::Divide => left / right,
            Self::Modulo => left - (left / right).floor() * right,
            Self::Power => left.powf(right),
        }
    }
}

/// An error: evaluation would take longer than the run.
///
/// There are too many keys, or a key is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// The terms that make keys, ready for evaluation.
#[derive(Clone, Debug, Default)]
pub(super) struct Templates {
    terms: Vec<Term>,
    loops: Vec<Bounds>,
    /// The terms to evaluate, each with the loop over which to do so.
    roots: Vec<(TermId, Option<LoopId>)>,
}

impl Templates {
    /// Whether all keys consist of texts and elements of the lists alone.
    pub fn are_plain(&self) -> bool {
        let is_plain = |term: &Term| {
            matches!(term, Term::Text(_) | Term::Number(_) | Term::Element(..) | Term::Concat(_))
        };
        self.loops.is_empty() && self.terms.iter().all(is_plain)
    }

    pub fn len(&self) -> usize {
        self.roots.len()
    }

    /// Calls `each` with every key that the terms make.
    ///
    /// A term that needs a missing element makes none.
    pub fn evaluate(
        &self,
        keys: &[&[u8]],
        arguments: &[&[u8]],
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TooMany> {
        let mut run = Evaluation {
            terms: &self.terms,
            loops: &self.loops,
            keys,
            arguments,
            round: 0.0,
            met_long_text: Cell::new(false),
        };
        let mut n_left = MAX_ROUNDS;
        let mut text = Text::new();
        for (root, of_loop) in &self.roots {
            match of_loop {
                None => run.key(*root, &mut text, each),
                Some(of) => run.keys(*root, *of, &mut n_left, &mut text, each)?,
            }
        }
        if run.met_long_text.get() { Err(TooMany) } else { Ok(()) }
    }
}

/// The state of one evaluation.
struct Evaluation<'a> {
    terms: &'a [Term],
    loops: &'a [Bounds],
    keys: &'a [&'a [u8]],
    arguments: &'a [&'a [u8]],
    /// The variable of the loop in progress.
    round: f64,
    /// Whether a text was longer than `MAX_TEXT_BYTES`.
    met_long_text: Cell<bool>,
}

impl<'a> Evaluation<'a> {
    fn get(&self, id: TermId) -> &'a Term {
        &self.terms[id.0 as usize]
    }

    fn key(&self, root: TermId, text: &mut Text, each: &mut dyn FnMut(&[u8])) {
        if let Some(slice) = self.slice(root) {
            return each(slice);
        }
        text.clear();
        if self.write(root, text).is_some() {
            each(text);
        }
    }

    /// Evaluates a term in each round of a loop. `n_left` rounds may still be made.
    fn keys(
        &mut self,
        root: TermId,
        of: LoopId,
        n_left: &mut usize,
        text: &mut Text,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TooMany> {
        let Bounds { from, to, step } = self.loops[of.0 as usize];
        let bounds = (self.number(from), self.number(to), self.number(step));
        let (Some(from), Some(to), Some(step)) = bounds else { return Ok(()) };
        self.round = from;
        while if step > 0.0 { self.round <= to } else { self.round >= to } {
            *n_left = n_left.checked_sub(1).ok_or(TooMany)?;
            self.key(root, text, each);
            self.round += step;
        }
        Ok(())
    }

    fn list(&self, list: List) -> &'a [&'a [u8]] {
        match list {
            List::Keys => self.keys,
            List::Arguments => self.arguments,
        }
    }

    /// The text of a term that needs no joining.
    fn slice(&self, id: TermId) -> Option<&'a [u8]> {
        match self.get(id) {
            Term::Text(text) => Some(text),
            Term::Element(list, at) => {
                let at = self.number(*at)?;
                let is_position = at >= 1.0 && at == at.trunc();
                if is_position { self.list(*list).get(at as usize - 1).copied() } else { None }
            }
            _ => None,
        }
    }

    fn number(&self, id: TermId) -> Option<f64> {
        match self.get(id) {
            Term::Number(bits) => Some(bits.number()),
            Term::Count(list) => Some(self.list(*list).len() as f64),
            Term::Round(_) => Some(self.round),
            Term::Arithmetic(operation, left, right) => {
                Some(operation.apply(self.number(*left)?, self.number(*right)?))
            }
            Term::Function(function, of) => self.function(*function, *of),
            Term::Text(_) | Term::Element(..) => number::parse(self.slice(id)?),
            Term::Concat(_) | Term::Part(..) => number::parse(&self.text(id)?),
        }
    }

    fn function(&self, function: UnaryFunction, of: TermId) -> Option<f64> {
        match function {
            UnaryFunction::Number => self.number(of),
            UnaryFunction::Integer => self.number(of).map(f64::trunc),
            UnaryFunction::Floor => self.number(of).map(f64::floor),
            UnaryFunction::Ceiling => self.number(of).map(f64::ceil),
            UnaryFunction::Negate => self.number(of).map(|number| -number),
            UnaryFunction::Length => match self.slice(of) {
                Some(slice) => Some(slice.len() as f64),
                None => Some(self.text(of)?.len() as f64),
            },
            UnaryFunction::Lower | UnaryFunction::Upper => number::parse(&self.text(of)?),
        }
    }

    fn text(&self, id: TermId) -> Option<Text> {
        let mut text = Text::new();
        self.write(id, &mut text)?;
        Some(text)
    }

    /// Writes a term's text. If it returns `None`, the bytes written have no meaning.
    fn write(&self, id: TermId, text: &mut Text) -> Option<()> {
        let start = text.len();
        match self.get(id) {
            Term::Text(_) | Term::Element(..) => {
                let slice = self.slice(id)?;
                if slice.len() > MAX_TEXT_BYTES {
                    self.met_long_text.set(true);
                    return None;
                }
                text.extend_from_slice(slice);
            }
            Term::Concat(parts) => {
                for part in parts {
                    self.write(*part, text)?;
                }
            }
            Term::Function(UnaryFunction::Lower, of) => {
                self.write(*of, text)?;
                text[start..].make_ascii_lowercase();
            }
            Term::Function(UnaryFunction::Upper, of) => {
                self.write(*of, text)?;
                text[start..].make_ascii_uppercase();
            }
            Term::Part(of, from, to) => {
                self.write(*of, text)?;
                self.cut(text, start, self.number(*from)?, self.number(*to)?);
            }
            Term::Function(UnaryFunction::Integer, _) => {
                number::write_integer(self.number(id)? as i64, text);
            }
            Term::Number(_) | Term::Count(_) | Term::Round(_) | Term::Arithmetic(..) | Term::Function(..) => {
                number::write(self.number(id)?, text);
            }
        }
        let is_long = text.len() > MAX_TEXT_BYTES;
        self.met_long_text.set(self.met_long_text.get() | is_long);
        (!is_long).then_some(())
    }

    /// Cuts the text from `start` on as `string.sub` does.
    fn cut(&self, text: &mut Text, start: usize, from: f64, to: f64) {
        let n_bytes = (text.len() - start) as i64;
        let position = |at: f64| if at < 0.0 { (n_bytes + at as i64 + 1).max(0) } else { at as i64 };
        let (from, to) = (position(from).max(1), position(to).min(n_bytes));
        if from > to {
            return text.truncate(start);
        }
        text.truncate(start + to as usize);
        text.drain(start..start + from as usize - 1);
    }
}
