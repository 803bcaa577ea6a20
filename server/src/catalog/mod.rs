//! Descriptions of commands: their words and arguments, flags, keys, categories and errors.
//!
//! Nothing here knows the commands themselves.

mod args;
mod category;
mod databases;
mod error;
mod facts;
mod flags;
mod key_spec;
mod requests;

pub use args::Args;
pub use braid_protocol::Words;
pub use category::Categories;
pub use databases::Databases;
pub use error::{CommandError, Denial, Outcome, shown};
pub use facts::{Arity, Deprecation, Group};
pub use flags::Flags;
pub use key_spec::{ALL_BUT_LAST, Channels, KeyRights, KeySpec, KeyUse, Keys, KeysAt, MembersAt};
pub use requests::Requests;

/// A command's number: its position in the command table, subcommands included, from 0 without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommandId(pub u16);

impl CommandId {
    /// Returns the number as an index, for tables by command.
    #[inline(always)]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
