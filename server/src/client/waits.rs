//! The conditions for which commands wait.

use braid_protocol::reply::Reply;
use braid_storage::{entry::key::WatchedKey, observers::waiters::Awaits};

use crate::clock::Steady;

/// The wait of a command.
pub struct Wait {
    /// The keys, of which any ends the wait.
    pub keys: Vec<WaitedKey>,
    /// A key that the command writes when it is served.
    pub destination: Option<Box<[u8]>>,
    /// The timeout in milliseconds; `None` for none.
    pub timeout: Option<u64>,
    /// The deadline, by the steady clock.
    pub deadline: Option<Steady>,
    /// The milliseconds after which the command looks again, although none of its keys has changed.
    pub look_after: Option<u64>,
    /// The time when it looks again, by the steady clock.
    pub look_at: Option<Steady>,
    /// The reply where the command may not wait.
    pub nothing: Nothing,
    /// The replacements of the command's last words when it is served.
    pub last_words: Vec<Option<Vec<u8>>>,
    /// The cause of the wait.
    pub cause: Cause,
}

/// The reason why a command waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It is a blocking command and found nothing.
    Nothing,
    /// It must not write a pinned key yet.
    Pinned,
}

impl Wait {
    /// Creates a wait for any of some keys, with a timeout in milliseconds.
    ///
    /// `nothing` is the reply where the command may not wait.
    pub fn new(keys: Vec<WaitedKey>, timeout: Option<u64>, nothing: Nothing) -> Self {
        Self {
            keys,
            destination: None,
            timeout,
            deadline: None,
            look_after: None,
            look_at: None,
            nothing,
            last_words: Vec::new(),
            cause: Cause::Nothing,
        }
    }

    /// Adds another key that the command writes when it is served.
    pub fn with_destination(mut self, key: &[u8]) -> Self {
        self.destination = Some(key.into());
        self
    }

    /// Makes the command look again after some milliseconds, although none of its keys has changed.
    pub fn looking_after(mut self, millis: Option<u64>) -> Self {
        self.look_after = millis;
        self
    }

    /// Adds new last words, with which the command runs when it is served.
    ///
    /// The old ones have another meaning by then.
    pub fn with_last_words(mut self, words: Vec<Option<Vec<u8>>>) -> Self {
        self.last_words = words;
        self
    }

    /// Whether the command has begun for its client, as a blocking command that found nothing.
    pub fn is_visible(&self) -> bool {
        self.cause == Cause::Nothing
    }

    /// Creates a wait until a key may be written.
    pub fn for_unpinning(key: WaitedKey) -> Self {
        Self { cause: Cause::Pinned, ..Self::new(vec![key], None, Nothing::Null) }
    }
}

/// A key that a command waits for.
pub struct WaitedKey {
    /// The key.
    pub key: WatchedKey,
    /// The state of the key that ends the wait.
    pub awaits: Awaits,
}

/// The reply of a command that found nothing.
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
    /// It may not wait: it runs between MULTI and EXEC, or is no blocking command.
    MayNot,
    /// It may wait.
    May,
    /// It must wait.
    Asked(Box<Wait>),
}

/// The reason why a wait ends unserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// Its time is up, or CLIENT UNBLOCK makes it appear so.
    TimedOut,
    /// CLIENT UNBLOCK … ERROR.
    Unblocked,
    /// It is time to look again: the command runs anew.
    LooksAgain,
    /// The server has become a replica, or that of another primary.
    RoleChanged,
    /// The client has left.
    Left,
}
