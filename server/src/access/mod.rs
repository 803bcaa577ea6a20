//! Access control: the rights of users to commands, keys and channels.
//!
//! A [`User`] is a value. It is made of rules, in their given order ([`User::apply`]), and does not change
//! once it is in force. A change makes another user. All users in force at one time are one [`Users`]. This
//! folder knows nothing of sockets, threads or the command table. The owner of the table looks up names of
//! commands ([`Commands`]).

mod denials;
mod password;
mod pattern;
mod rule;
mod selector;
mod user;
mod users;

pub use denials::{Context, DenialEntry, Denials, DeniedRight};
pub use password::PasswordHash;
pub use rule::{RuleError, UserError, has_spaces, merge};
pub use selector::{CheckedCommand, CommandForm, Commands, N_COMMANDS_MAX, NamedCommand, Selector};
pub use user::{DEFAULT_USER, User, UserFlag, UserName};
pub use users::{UserLoadError, Users};
