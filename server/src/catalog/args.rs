//! A cursor over a command's arguments, for handlers.

use braid_protocol::{Words, number};
use braid_storage::{
    entry::{key::Key, time::Millis},
    table::hash::{Routed, Router},
};

use super::CommandError;

/// The remaining arguments of a command.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    words: Words<'a>,
    at: usize,
    router: &'a Router,
    /// The route of the word at position 1, if the dispatcher has computed it.
    first: Option<Routed>,
}

/// Not inlined: hashing is long code, and the dispatcher has already routed most keys.
#[inline(never)]
fn route(router: &Router, key: &[u8]) -> Routed {
    router.route(key)
}

impl<'a> Args<'a> {
    /// Creates a cursor at the first argument after the name.
    pub fn new(words: Words<'a>, router: &'a Router, first: Option<Routed>) -> Self {
        Self { words, at: 1, router, first }
    }

    /// Moves the cursor to the first argument after a subcommand.
    pub fn after_subcommand(mut self) -> Self {
        self.at = 2;
        self
    }

    /// Returns all words, the name included.
    pub fn words(self) -> Words<'a> {
        self.words
    }

    /// Returns the router that [`Args::key`] uses.
    pub fn router(self) -> &'a Router {
        self.router
    }

    /// Returns the arguments after the next `n`.
    pub fn skip(mut self, n: usize) -> Self {
        self.at += n;
        self
    }

    /// Returns the number of remaining arguments.
    #[inline]
    pub fn remaining(self) -> usize {
        self.words.len().saturating_sub(self.at)
    }

    /// Whether no arguments remain.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.remaining() == 0
    }

    /// Returns the next argument, if any, without taking it.
    #[inline]
    pub fn peek(self) -> Option<&'a [u8]> {
        (self.at < self.words.len()).then(|| self.words.get(self.at))
    }

    /// Takes the next argument.
    #[expect(clippy::should_implement_trait, reason = "it is no iterator: a missing argument is an error")]
    #[inline]
    pub fn next(&mut self) -> Result<&'a [u8], CommandError> {
        let word = self.peek().ok_or(CommandError::Syntax)?;
        self.at += 1;
        Ok(word)
    }

    /// Takes the next argument as a key.
    #[inline]
    pub fn key(&mut self) -> Result<Key<'a>, CommandError> {
        let first = self.first.filter(|_| self.at == 1);
        let bytes = self.next()?;
        let routed = match first {
            Some(routed) => routed,
            None => route(self.router, bytes),
        };
        Ok(Key { bytes, routed })
    }

    /// Takes the next argument as a 64-bit integer.
    #[inline]
    pub fn int(&mut self) -> Result<i64, CommandError> {
        number::parse_i64(self.next()?).ok_or(CommandError::NotInteger)
    }

    /// Takes the next argument as a number. It may be infinite, but not NaN.
    pub fn float(&mut self) -> Result<f64, CommandError> {
        number::parse_f64(self.next()?).ok_or(CommandError::NotFloat)
    }

    /// Takes the next argument as the timeout of a blocking command, in seconds.
    ///
    /// Returns milliseconds, or `None` for 0. As in Redis, a timeout is out of range if its end after `now`
    /// exceeds an `i64`.
    pub fn timeout(&mut self, now: Millis) -> Result<Option<u64>, CommandError> {
        let not_float = CommandError::text("ERR timeout is not a float or out of range");
        let seconds = number::parse_f64(self.next()?).ok_or(not_float)?;
        if seconds < 0.0 {
            return Err(CommandError::text("ERR timeout is negative"));
        }
        if seconds == 0.0 {
            return Ok(None);
        }
        let millis = (seconds * 1000.0).ceil();
        if millis > i64::MAX as f64 - now.0 as f64 {
            return Err(CommandError::text("ERR timeout is out of range"));
        }
        Ok(Some(millis as u64))
    }

    /// Takes the next argument if it is `tag`, in either case. `tag` is in upper case.
    #[inline]
    pub fn tag(&mut self, tag: &str) -> bool {
        let is_tag = self.peek().is_some_and(|word| word.eq_ignore_ascii_case(tag.as_bytes()));
        self.at += is_tag as usize;
        is_tag
    }

    /// Fails if an argument remains.
    #[inline]
    pub fn finish(self) -> Result<(), CommandError> {
        if self.is_empty() { Ok(()) } else { Err(CommandError::Syntax) }
    }

    /// Returns the remaining arguments.
    pub fn rest(self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone {
        (self.at..self.words.len()).map(move |index| self.words.get(index))
    }
}
