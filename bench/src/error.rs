//! The errors of a measurement.

use std::io;
use std::path::PathBuf;

/// A reason why a bar could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The operating system refused something.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The attempted operation, as it reads after "cannot".
        doing: String,
        /// The system's error.
        source: io::Error,
    },
    /// A server ended, or never answered, before it was ready.
    #[error("{binary} did not start: {why}; its log ends: {log}")]
    NotStarted {
        /// The server's program.
        binary: String,
        /// The event that did not come, or the end of the server.
        why: String,
        /// The last lines that the server wrote.
        log: String,
    },
    /// A command line of `--spawn` cannot be run.
    #[error("--spawn {command}: {why}")]
    Spawn {
        /// The command line.
        command: String,
        /// The fault in it.
        why: &'static str,
    },
    /// A file of /proc does not read as documented in proc(5).
    #[error("{path} does not read as expected", path = .0.display())]
    Proc(PathBuf),
    /// A reply is not RESP2.
    #[error("malformed reply: {0}")]
    Malformed(&'static str),
    /// A reply is neither RESP2 nor RESP3.
    #[error("malformed reply: {0}")]
    Reply(#[from] braid_protocol::value::ReplyError),
    /// A reply is well-formed and wrong.
    #[error("{request} was answered wrongly: {reply}")]
    WrongReply {
        /// The request.
        request: String,
        /// The reply, described.
        reply: String,
    },
    /// A workload makes no sense.
    #[error("workload: {place}: {why}")]
    Workload {
        /// The file or the field.
        place: String,
        /// The fault in it.
        why: String,
    },
    /// redis-benchmark failed, or printed something else than a result.
    #[error("{command} failed: {output}")]
    RedisBenchmark {
        /// The command line.
        command: String,
        /// The last part of its output.
        output: String,
    },
    /// An error on one side of a comparison.
    #[error("{side}: {source}")]
    OnSide {
        /// The name of the side.
        side: &'static str,
        /// The error on that side.
        source: Box<Self>,
    },
    /// The machine lacks something that the bar needs.
    #[error("{0}")]
    Machine(String),
}

impl BenchError {
    /// The error for a field of a workload that makes no sense.
    pub fn workload(place: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Workload { place: place.into(), why: why.into() }
    }

    /// Adds the side of the comparison on which the error occurred.
    pub fn on_side(self, side: &'static str) -> Self {
        Self::OnSide { side, source: Box::new(self) }
    }
}

/// Names the attempted operation when the operating system refuses it.
pub trait Doing<T> {
    /// Turns an I/O error into "cannot {doing}: …".
    fn doing(self, doing: impl Into<String>) -> Result<T, BenchError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: impl Into<String>) -> Result<T, BenchError> {
        self.map_err(|source| BenchError::Io { doing: doing.into(), source })
    }
}
