//! What is wrong with a payload or a value, and where: for the log.

use std::fmt;

/// Why nothing was made of a payload or a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Where it was found, in bytes from the beginning. Of a packed value it is the value's beginning.
    pub at: usize,
    /// What it is.
    pub flaw: Flaw,
}

/// What may be wrong with a payload or a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It is too short to have a footer.
    NoFooter,
    /// Its version is not read.
    Version(u16),
    /// Its checksum is not that of what comes before.
    Checksum {
        /// The one in the payload.
        stated: u64,
        /// The payload's own.
        computed: u64,
    },
    /// It has a type that is not read.
    Type(u8),
    /// A length, a string or a number is cut off, or is none.
    Part,
    /// A packed value does not add up, or has twice what may be there once. Redis's words for what it is.
    Packed(&'static str),
    /// Something is there twice.
    Twice(&'static str),
    /// A score is not a number.
    NotANumber,
    /// A field's deadline is later than any may be.
    Deadline,
    /// What a stream says of itself is not so.
    Stream(&'static str),
    /// There is nothing in it.
    Empty,
    /// It goes on where it ought to end.
    GoesOn,
    /// It is no library of functions.
    NoLibrary,
}

impl Flaw {
    /// Whether it is the footer that is wrong, and not what comes before.
    pub fn is_of_footer(self) -> bool {
        matches!(self, Flaw::NoFooter | Flaw::Version(_) | Flaw::Checksum { .. })
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::NoFooter => write!(f, "it is too short to have a version and a checksum"),
            Flaw::Version(version) => write!(f, "its version is {version}, which is not read"),
            Flaw::Checksum { stated, computed } => {
                write!(f, "the checksum is {stated:016x} and ought to be {computed:016x}")
            }
            Flaw::Type(number) => write!(f, "values of type {number} are not known to this version"),
            Flaw::Part => write!(f, "a length, a string or a number is cut off or not well formed"),
            Flaw::Packed(what) => write!(f, "{what} integrity check failed"),
            Flaw::Twice(what) => write!(f, "Duplicate {what} detected"),
            Flaw::NotANumber => write!(f, "a score is not a number"),
            Flaw::Deadline => write!(f, "a field's deadline is out of range"),
            Flaw::Stream(what) => write!(f, "{what}"),
            Flaw::Empty => write!(f, "there is nothing in it"),
            Flaw::GoesOn => write!(f, "there is something after its end"),
            Flaw::NoLibrary => write!(f, "it is no library of functions"),
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, at byte {}", self.flaw, self.at)
    }
}
