//! The databases that a command names.

use braid_protocol::number;
use braid_storage::entry::db::Db;

use crate::catalog::Words;

/// The databases that a command uses besides the selected one, for access control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Databases {
    /// None.
    Selected,
    /// Those whose numbers are the words at these positions.
    Words(&'static [usize]),
    /// Those whose numbers follow the words `DB` from this position on.
    AfterDb(usize),
    /// All.
    All,
}

impl Databases {
    /// Returns the databases whose numbers are words of a command, if these stand at fixed positions.
    pub fn named(self, words: Words<'_>) -> impl Iterator<Item = Db> {
        let places = if let Databases::Words(places) = self { places } else { &[] };
        let numbers = places.iter().filter(move |&&at| at < words.len());
        let numbers = numbers.filter_map(move |&at| number::parse_i64(words.get(at)));
        numbers.filter_map(|number| number.try_into().ok()).map(Db)
    }
}
