//! The ends of a run.
//!
//! A run ends by itself with a reply ([`Ended`]), or the host ends it ([`Stop`]).

use std::fmt;

/// The end of a run that has written its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The reply is the script's value, and no error.
    Value,
    /// The reply is an error.
    Error {
        /// Whether a command has failed with this error, which is then counted already.
        is_counted: bool,
    },
}

/// The host's reason for ending a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The run needs more than it holds. It starts again from the beginning.
    GiveUp,
    /// SCRIPT KILL, FUNCTION KILL or SHUTDOWN.
    Killed,
    /// The run took longer than it may, for example while a library loads.
    TimeOver,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stop::GiveUp => "the run was given up",
            Stop::Killed => "the run was killed",
            Stop::TimeOver => "the run took too long",
        })
    }
}
