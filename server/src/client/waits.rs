//! What commands wait for.

use braid_protocol::reply::Reply;
use braid_storage::{Awaits, WatchedKey};

use crate::clock::Steady;

/// What a command waits for.
pub struct Wait {
    /// Any of these.
    pub keys: Vec<WaitedKey>,
    /// A key that the command writes when it is served.
    pub destination: Option<Box<[u8]>>,
    /// After how many milliseconds it gives up; `None`: never.
    pub timeout: Option<u64>,
    /// The deadline, by the clock that nobody sets.
    pub deadline: Option<Steady>,
    /// What it answers where it may not wait.
    pub nothing: Nothing,
    /// The command's last words, where others take their place when it is served.
    pub last_words: Vec<Option<Vec<u8>>>,
    /// Why.
    pub cause: Cause,
}

/// Why a command waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It is a blocking command and found nothing.
    Nothing,
    /// It must not write a key yet that is pinned.
    Pinned,
}

impl Wait {
    /// A wait for any of some keys, for so many milliseconds; `nothing` is the answer where the command may
    /// not wait.
    pub fn new(keys: Vec<WaitedKey>, timeout: Option<u64>, nothing: Nothing) -> Self {
        Self {
            keys,
            destination: None,
            timeout,
            deadline: None,
            nothing,
            last_words: Vec::new(),
            cause: Cause::Nothing,
        }
    }

    /// The same for a command that writes another key when it is served.
    pub fn with_destination(mut self, key: &[u8]) -> Self {
        self.destination = Some(key.into());
        self
    }

    /// The same for a command whose last words mean something else now than when it is served: it is then run
    /// with these.
    pub fn with_last_words(mut self, words: Vec<Option<Vec<u8>>>) -> Self {
        self.last_words = words;
        self
    }

    /// Whether the command has begun for its client: it is a blocking command that found nothing.
    pub fn is_visible(&self) -> bool {
        self.cause == Cause::Nothing
    }

    /// A wait until a key may be written.
    pub fn for_unpinning(key: WaitedKey) -> Self {
        Self { cause: Cause::Pinned, ..Self::new(vec![key], None, Nothing::Null) }
    }
}

/// A key that a command waits for.
pub struct WaitedKey {
    /// Which.
    pub key: WatchedKey,
    /// The state of the key that ends the wait.
    pub awaits: Awaits,
}

/// The answer of a command that got nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nothing {
    /// A null.
    Null,
    /// A null where an array would be.
    NullArray,
}

impl Nothing {
    /// Writes the answer.
    pub fn write(self, reply: &mut Reply<'_>) {
        match self {
            Nothing::Null => reply.null(),
            Nothing::NullArray => reply.null_array(),
        }
    }
}

/// Whether a command may wait, and whether it does.
pub enum Waiting {
    /// It may not: it runs between MULTI and EXEC, or is no blocking command.
    MayNot,
    /// It may.
    May,
    /// It has to.
    Asked(Box<Wait>),
}

/// Why a wait ends without having been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GaveUp {
    /// Its time is up, or CLIENT UNBLOCK wants it to look so.
    TimedOut,
    /// CLIENT UNBLOCK … ERROR.
    Unblocked,
    /// The client has left.
    Left,
}
