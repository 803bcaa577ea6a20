//! Lua 5.1's patterns over bytes. This module does not know a Lua state.
//!
//! Lua's own matcher calls itself. This one has a stack of choices in memory instead. Each item of a pattern
//! leaves at most one choice there. So the stack never grows beyond the pattern's length, whatever the
//! subject is.

use super::class::{self, PatternItem};
use crate::library::meter::Work;

/// The most captures of a pattern.
pub(super) const MAX_CAPTURES: usize = 32;

/// The most open choices: 32 MiB.
const MAX_CHOICES: usize = 1 << 20;

/// The reason why a pattern cannot be applied.
#[derive(Debug, PartialEq)]
pub(super) enum Fault<S> {
    /// The pattern is wrong. The text is the reason.
    Pattern(&'static str),
    /// The work was ended.
    Stopped(S),
}

/// The extent of a capture.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Extent {
    /// The capture has been opened and not closed.
    Open,
    /// The capture is a position: `()`.
    Position,
    /// The length of the capture in bytes.
    Bytes(usize),
}

#[derive(Clone, Copy, Debug)]
struct Capture {
    start: usize,
    extent: Extent,
}

/// The value of a finished capture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Captured {
    /// The bytes from the first index up to the second.
    Bytes(usize, usize),
    /// A position in the subject, from 1.
    Position(usize),
}

/// The next attempt, or a change to undo, when the rest does not match.
#[derive(Clone, Copy)]
enum Choice {
    /// Removes the capture that was opened last.
    Reopen,
    /// Opens the capture of this number again.
    Unclose(u8),
    /// Continues with the pattern at `rest` and the subject at `at`, without an optional item.
    Skip { at: usize, rest: usize },
    /// Shortens a repetition by one byte, from `longest` down to `shortest`.
    Shorten { shortest: usize, longest: usize, rest: usize },
    /// Takes one more byte by the item at `item`.
    Lengthen { at: usize, item: usize },
}

/// A matcher of one pattern in one subject.
pub(super) struct Matcher<'a> {
    subject: &'a [u8],
    pattern: &'a [u8],
    captures: Vec<Capture>,
    choices: Vec<Choice>,
}

impl<'a> Matcher<'a> {
    /// Makes a matcher. A pattern ends at its first zero byte.
    pub(super) fn new(subject: &'a [u8], pattern: &'a [u8]) -> Self {
        let length = memchr::memchr(0, pattern).unwrap_or(pattern.len());
        Self { subject, pattern: &pattern[..length], captures: Vec::new(), choices: Vec::new() }
    }

    /// Removes a leading `^` from the pattern. Returns whether there was one.
    pub(super) fn take_anchor(&mut self) -> bool {
        let rest = self.pattern.strip_prefix(b"^");
        self.pattern = rest.unwrap_or(self.pattern);
        rest.is_some()
    }

    /// Finds the first match that begins at `from` or later. Returns its beginning and its end.
    pub(super) fn search<W: Work>(
        &mut self,
        from: usize,
        work: &mut W,
    ) -> Result<Option<(usize, usize)>, Fault<W::Stop>> {
        let first = class::literal_start(self.pattern);
        let mut start = from;
        while start <= self.subject.len() {
            if let Some(byte) = first {
                let Some(ahead) = memchr::memchr(byte, &self.subject[start..]) else { return Ok(None) };
                work.spend(1 + (ahead as u32 >> 4)).map_err(Fault::Stopped)?;
                start += ahead;
            }
            if let Some(end) = self.match_at(start, work)? {
                return Ok(Some((start, end)));
            }
            start += 1;
        }
        Ok(None)
    }

    /// Matches at `start` exactly. Returns the end of the match.
    pub(super) fn match_at<W: Work>(
        &mut self,
        start: usize,
        work: &mut W,
    ) -> Result<Option<usize>, Fault<W::Stop>> {
        self.captures.clear();
        self.choices.clear();
        let mut state = Some((start, 0));
        while let Some((at, item)) = state {
            state = match self.step(at, item, work)? {
                Step::Done(end) => return Ok(Some(end)),
                Step::Next(at, item) => Some((at, item)),
                Step::Fail => self.back(work)?,
            };
        }
        Ok(None)
    }

    /// Returns the number of values of a match.
    ///
    /// They are its captures, or itself if it has none.
    pub(super) fn n_values(&self) -> usize {
        self.captures.len().max(1)
    }

    /// Returns the number of captures of a match.
    pub(super) fn n_captures(&self) -> usize {
        self.captures.len()
    }

    /// Returns the value `index`, from 0, of the match from `start` to `end`.
    pub(super) fn value<S>(&self, index: usize, start: usize, end: usize) -> Result<Captured, Fault<S>> {
        let Some(capture) = self.captures.get(index) else {
            return if index == 0 { Ok(Captured::Bytes(start, end)) } else { Err(invalid_index()) };
        };
        match capture.extent {
            Extent::Open => Err(Fault::Pattern("unfinished capture")),
            Extent::Position => Ok(Captured::Position(capture.start + 1)),
            Extent::Bytes(length) => Ok(Captured::Bytes(capture.start, capture.start + length)),
        }
    }

    fn byte(&self, at: usize) -> u8 {
        self.pattern.get(at).copied().unwrap_or(0)
    }

    /// Returns the end of an item.
    ///
    /// A long set costs steps for its length, because it is read for each byte that is compared with it.
    #[inline]
    fn item_end<W: Work>(&self, item: usize, work: &mut W) -> Result<usize, Fault<W::Stop>> {
        let end = class::item_end(self.pattern, item).map_err(Fault::Pattern)?;
        if end - item > 16 {
            work.spend(4 * (end - item) as u32).map_err(Fault::Stopped)?;
        }
        Ok(end)
    }

    /// Matches the item at `item` with the subject at `at`, and literal items after it.
    #[inline]
    fn step<W: Work>(
        &mut self,
        mut at: usize,
        mut item: usize,
        work: &mut W,
    ) -> Result<Step, Fault<W::Stop>> {
        loop {
            work.spend(1).map_err(Fault::Stopped)?;
            let Some(&first) = self.pattern.get(item) else { return Ok(Step::Done(at)) };
            match first {
                b'(' | b')' => return self.parenthesis(at, item),
                b'$' if item + 1 == self.pattern.len() => {
                    return Ok(if at == self.subject.len() { Step::Done(at) } else { Step::Fail });
                }
                b'%' => match self.byte(item + 1) {
                    b'b' => return self.balance(at, item + 2, work),
                    b'f' => return self.frontier(at, item + 2, work),
                    digit @ b'0'..=b'9' => return self.repeat_capture(at, item, digit, work),
                    _ => {}
                },
                _ => {}
            }
            let rest = self.item_end(item, work)?;
            let single = PatternItem::new(self.pattern, item, rest);
            match self.byte(rest) {
                b'?' => return self.optional(at, single, rest + 1),
                b'*' => return self.longest(at, at, single, rest + 1, work),
                b'+' => return self.longest(at, at + 1, single, rest + 1, work),
                b'-' => return self.push(Choice::Lengthen { at, item }, at, rest + 1),
                _ if !self.subject.get(at).is_some_and(|byte| single.matches(*byte)) => {
                    return Ok(Step::Fail);
                }
                _ => (at, item) = (at + 1, rest),
            }
        }
    }

    /// Leaves a choice, and continues at `at` and `rest`.
    fn push<S>(&mut self, choice: Choice, at: usize, rest: usize) -> Result<Step, Fault<S>> {
        if self.choices.len() == MAX_CHOICES {
            return Err(Fault::Pattern("pattern too complex"));
        }
        self.choices.push(choice);
        Ok(Step::Next(at, rest))
    }

    fn parenthesis<S>(&mut self, at: usize, item: usize) -> Result<Step, Fault<S>> {
        match (self.byte(item), self.byte(item + 1)) {
            (b'(', b')') => self.open(at, Extent::Position, item + 2),
            (b'(', _) => self.open(at, Extent::Open, item + 1),
            _ => self.close(at, item + 1),
        }
    }

    fn open<S>(&mut self, at: usize, extent: Extent, rest: usize) -> Result<Step, Fault<S>> {
        if self.captures.len() == MAX_CAPTURES {
            return Err(Fault::Pattern("too many captures"));
        }
        self.captures.push(Capture { start: at, extent });
        self.push(Choice::Reopen, at, rest)
    }

    fn close<S>(&mut self, at: usize, rest: usize) -> Result<Step, Fault<S>> {
        let open = self.captures.iter().rposition(|capture| capture.extent == Extent::Open);
        let index = open.ok_or(Fault::Pattern("invalid pattern capture"))?;
        let capture = &mut self.captures[index];
        capture.extent = Extent::Bytes(at - capture.start);
        self.push(Choice::Unclose(index as u8), at, rest)
    }

    /// Matches the item `%b()`. The two bytes stand at `item` of the pattern.
    fn balance<W: Work>(&mut self, at: usize, item: usize, work: &mut W) -> Result<Step, Fault<W::Stop>> {
        let &[open, close, ..] = &self.pattern[item..] else {
            return Err(Fault::Pattern("unbalanced pattern"));
        };
        if self.subject.get(at) != Some(&open) {
            return Ok(Step::Fail);
        }
        let mut depth = 1_usize;
        for (ahead, byte) in self.subject[at + 1..].iter().enumerate() {
            work.spend(1).map_err(Fault::Stopped)?;
            if *byte == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(Step::Next(at + ahead + 2, item + 2));
                }
            } else if *byte == open {
                depth += 1;
            }
        }
        Ok(Step::Fail)
    }

    /// Matches the item `%f[set]`. The set stands at `item` of the pattern.
    ///
    /// The bytes before and after the subject count as zero.
    fn frontier<W: Work>(&mut self, at: usize, item: usize, work: &mut W) -> Result<Step, Fault<W::Stop>> {
        if self.byte(item) != b'[' {
            return Err(Fault::Pattern("missing '[' after '%f' in pattern"));
        }
        let rest = self.item_end(item, work)?;
        let set = PatternItem::new(self.pattern, item, rest);
        let before = at.checked_sub(1).map_or(0, |before| self.subject[before]);
        let after = self.subject.get(at).copied().unwrap_or(0);
        Ok(if !set.matches(before) && set.matches(after) { Step::Next(at, rest) } else { Step::Fail })
    }

    /// Matches `%1`: the text of the capture.
    fn repeat_capture<W: Work>(
        &mut self,
        at: usize,
        item: usize,
        digit: u8,
        work: &mut W,
    ) -> Result<Step, Fault<W::Stop>> {
        let index = usize::from(digit).wrapping_sub(usize::from(b'1'));
        let capture = self.captures.get(index).ok_or_else(invalid_index)?;
        let length = match capture.extent {
            Extent::Open => return Err(invalid_index()),
            Extent::Position => return Ok(Step::Fail),
            Extent::Bytes(length) => length,
        };
        work.spend((length / 16) as u32).map_err(Fault::Stopped)?;
        let text = &self.subject[capture.start..capture.start + length];
        let same = self.subject[at..].starts_with(text);
        Ok(if same { Step::Next(at + length, item + 2) } else { Step::Fail })
    }

    /// Takes the item if it matches, and leaves the choice to continue without it.
    fn optional<S>(&mut self, at: usize, item: PatternItem<'_>, rest: usize) -> Result<Step, Fault<S>> {
        if self.subject.get(at).is_some_and(|byte| item.matches(*byte)) {
            self.push(Choice::Skip { at, rest }, at + 1, rest)
        } else {
            Ok(Step::Next(at, rest))
        }
    }

    /// Takes the item as often as it matches.
    ///
    /// It must reach `shortest`, and leaves the choice to give bytes back down to there.
    fn longest<W: Work>(
        &mut self,
        at: usize,
        shortest: usize,
        item: PatternItem<'_>,
        rest: usize,
        work: &mut W,
    ) -> Result<Step, Fault<W::Stop>> {
        let longest = at + item.count(&self.subject[at..]);
        work.spend((longest - at) as u32).map_err(Fault::Stopped)?;
        if longest < shortest {
            return Ok(Step::Fail);
        }
        if longest == shortest {
            return Ok(Step::Next(longest, rest));
        }
        let choice = Choice::Shorten { shortest, longest, rest };
        self.push(choice, longest, rest)
    }

    /// Takes the latest choice. Returns where to continue.
    fn back<W: Work>(&mut self, work: &mut W) -> Result<Option<(usize, usize)>, Fault<W::Stop>> {
        while let Some(choice) = self.choices.pop() {
            work.spend(1).map_err(Fault::Stopped)?;
            match choice {
                Choice::Reopen => drop(self.captures.pop()),
                Choice::Unclose(index) => self.captures[usize::from(index)].extent = Extent::Open,
                Choice::Skip { at, rest } => return Ok(Some((at, rest))),
                Choice::Shorten { shortest, longest, rest } => {
                    let longest = longest - 1;
                    if longest > shortest {
                        self.choices.push(Choice::Shorten { shortest, longest, rest });
                    }
                    return Ok(Some((longest, rest)));
                }
                Choice::Lengthen { at, item } => {
                    if let Some(next) = self.lengthen(at, item, work)? {
                        return Ok(Some(next));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Takes one byte more by the item at `item` of the pattern, if it matches.
    fn lengthen<W: Work>(
        &mut self,
        at: usize,
        item: usize,
        work: &mut W,
    ) -> Result<Option<(usize, usize)>, Fault<W::Stop>> {
        let rest = self.item_end(item, work)?;
        let matches = self
            .subject
            .get(at)
            .is_some_and(|byte| PatternItem::new(self.pattern, item, rest).matches(*byte));
        if !matches {
            return Ok(None);
        }
        self.choices.push(Choice::Lengthen { at: at + 1, item });
        Ok(Some((at + 1, rest + 1)))
    }
}

/// The result of one step.
enum Step {
    /// The whole pattern matches, up to this place of the subject.
    Done(usize),
    /// The match continues at this place of the subject with this item.
    Next(usize, usize),
    /// The item does not match.
    Fail,
}

/// The refusal of a number that names no closed capture.
fn invalid_index<S>() -> Fault<S> {
    Fault::Pattern("invalid capture index")
}
