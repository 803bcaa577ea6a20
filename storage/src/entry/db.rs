//! Names of the parts of a keyspace.

/// A database's number (`SELECT`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Db(pub u32);

impl Db {
    /// The position in an array of all databases.
    #[inline(always)]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
