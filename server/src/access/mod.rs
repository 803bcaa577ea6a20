//! Access control: who may run which commands, on which keys and channels.
//!
//! A [`User`] is a value. It is made of rules, in the order in which they are given ([`User::apply`]), and is
//! not changed any more once it is in force: a change makes another one, and all users that hold together are
//! one [`Users`]. Nothing here knows of sockets, threads or the command table; names of commands are looked
//! up by whoever has the table ([`Commands`]).

mod denials;
mod password;
mod pattern;
mod rule;
mod selector;
mod user;
mod users;

pub use denials::{Context, Denials, Entry, Reason};
pub use password::PasswordHash;
pub use rule::{RuleError, UserError, has_spaces, merge};
pub use selector::{Asked, Commands, Form, N_COMMANDS_MAX, Named, Selector};
pub use user::{DEFAULT_USER, Flag, User, UserName};
pub use users::{LoadError, Users};
