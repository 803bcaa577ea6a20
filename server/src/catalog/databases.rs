//! The databases that a command names.

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
