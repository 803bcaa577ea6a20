//! Faults of a payload or a value, and their places: for the log.

use std::fmt;

use super::dialect::UnknownType;

/// The reason why a payload or a value was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The place of the fault, in bytes from the beginning. For a packed value it is the value's beginning.
    pub at: usize,
    /// The fault.
    pub flaw: Flaw,
}

/// A fault of a payload or a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It is too short to have a footer.
    NoFooter,
    /// Its version is not supported.
    Version(u16),
    /// Its checksum is not that of the bytes before it.
    Checksum {
        /// The checksum in the payload.
        stated: u64,
        /// The computed checksum.
        computed: u64,
    },
    /// It has a type that is not supported.
    Type(UnknownType),
    /// A length, a string or a number is cut off or invalid.
    Part,
    /// A packed value is inconsistent, or has twice a part that may be there once. Redis's words for its
    /// type.
    Packed(&'static str),
    /// A part is there twice.
    Twice(&'static str),
    /// A score is not a number.
    NotANumber,
    /// A field's deadline is later than any may be.
    Deadline,
    /// A statement of a stream about itself is false.
    Stream(&'static str),
    /// There is nothing in it.
    Empty,
    /// It continues where it should end.
    GoesOn,
    /// It is no library of functions.
    NoLibrary,
}

impl Flaw {
    /// Whether the fault is in the footer, and not before it.
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
            Flaw::Type(unknown) => write!(f, "{unknown}"),
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
