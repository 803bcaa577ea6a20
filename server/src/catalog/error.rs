//! Errors of commands. Only this module knows their wire text.

use std::borrow::Cow;

use braid_protocol::reply::Reply;
use braid_storage::error::StorageError;

/// The reason why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// The arguments do not fit the command's syntax.
    Syntax,
    /// The number of arguments is wrong for the named command or subcommand.
    Arity(&'static str),
    /// An argument is no 64-bit integer.
    NotInteger,
    /// An argument is no number.
    NotFloat,
    /// The named command got a time to live that is not positive, or too large.
    InvalidExpire(&'static str),
    /// The database does not exist.
    DbIndex,
    /// The key does not exist.
    NoSuchKey,
    /// The named command failed because of a bug in Braid.
    Internal(&'static str),
    /// The client's user lacks a right.
    Denied(Denial),
    /// The keyspace refused the operation.
    Storage(StorageError),
    /// Any other error: its code and text, without the leading `-`.
    Text(Cow<'static, str>),
}

/// The part of a command to which its user has no right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The command with this full name. The double reference keeps [`Outcome`] small, as each command returns
    /// one.
    Command(&'static &'static str),
    /// The key at this position among the command's words.
    Key(usize),
    /// The channel at this position among the command's words.
    Channel(usize),
    /// The database whose number is at this position among the command's words. At position 0, the name of
    /// the command stands for the selected database, or for all.
    Database(usize),
}

const _: () = assert!(size_of::<Outcome>() == size_of::<Cow<'static, str>>());

/// Returns a client's word as errors show it: up to a zero byte.
///
/// Texts are C strings in Redis.
pub fn shown(word: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(word.split(|&byte| byte == 0).next().unwrap_or_default())
}

/// The result of a handler.
pub type Outcome = Result<(), CommandError>;

impl From<StorageError> for CommandError {
    fn from(error: StorageError) -> Self {
        CommandError::Storage(error)
    }
}

impl CommandError {
    /// Returns an error with a constant text, which starts with its code, such as `ERR`.
    pub const fn text(text: &'static str) -> Self {
        CommandError::Text(Cow::Borrowed(text))
    }

    /// Returns an error with a formatted text, which starts with its code.
    pub fn owned(text: String) -> Self {
        CommandError::Text(Cow::Owned(text))
    }

    /// Whether the command must run again without the hold.
    #[inline(always)]
    pub fn is_too_much(&self) -> bool {
        matches!(self, CommandError::Storage(StorageError::TooMuch))
    }

    /// Returns the error's text on the wire, after the `-`.
    pub fn wire_text(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            CommandError::Syntax => "ERR syntax error",
            CommandError::Arity(name) => {
                return Cow::Owned(format!("ERR wrong number of arguments for '{name}' command"));
            }
            CommandError::NotInteger => "ERR value is not an integer or out of range",
            CommandError::NotFloat => "ERR value is not a valid float",
            CommandError::InvalidExpire(name) => {
                return Cow::Owned(format!("ERR invalid expire time in '{name}' command"));
            }
            CommandError::Internal(name) => {
                return Cow::Owned(format!("ERR internal error in '{name}', see the server's log"));
            }
            CommandError::DbIndex => "ERR DB index is out of range",
            CommandError::NoSuchKey => "ERR no such key",
            CommandError::Denied(Denial::Command(name)) => {
                return Cow::Owned(format!(
                    "NOPERM this user has no permissions to run the '{name}' command"
                ));
            }
            CommandError::Denied(Denial::Key(_)) => {
                "NOPERM this user has no permissions to access one of the keys used as arguments"
            }
            CommandError::Denied(Denial::Channel(_)) => {
                "NOPERM this user has no permissions to access one of the channels used as arguments"
            }
            CommandError::Denied(Denial::Database(_)) => "NOPERM No permissions to access database",
            CommandError::Storage(error) => match error {
                StorageError::WrongType => {
                    "WRONGTYPE Operation against a key holding the wrong kind of value"
                }
                StorageError::TooLong => "ERR string exceeds maximum allowed size (proto-max-bulk-len)",
                StorageError::TooMuch => unreachable!("such a command is run again, offloaded"),
            },
            CommandError::Text(text) => return text.clone(),
        })
    }

    /// Writes the error reply.
    #[cold]
    pub fn write(&self, reply: &mut Reply<'_>) {
        reply.error(&*self.wire_text());
    }
}
