//! Why a measurement can fail.

use std::io;
use std::path::PathBuf;

/// A reason why a bar could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The operating system refused something.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was attempted, as it reads after "cannot".
        doing: String,
        /// What the system said.
        source: io::Error,
    },
    /// A server ended, or never answered, before it was ready.
    #[error("{binary} did not start: {why}; its log ends: {log}")]
    NotStarted {
        /// The server's program.
        binary: String,
        /// What was waited for.
        why: String,
        /// The last lines that the server wrote.
        log: String,
    },
    /// A command line of `--spawn` cannot be run.
    #[error("--spawn {command}: {why}")]
    Spawn {
        /// The command line.
        command: String,
        /// What is wrong with it.
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
        /// What is wrong with it.
        why: String,
    },
    /// redis-benchmark failed, or printed something else than a result.
    #[error("{command} failed: {output}")]
    RedisBenchmark {
        /// The command line.
        command: String,
        /// What it printed last.
        output: String,
    },
    /// It went wrong on one side of a comparison.
    #[error("{side}: {source}")]
    OnSide {
        /// Which side.
        side: &'static str,
        /// What went wrong.
        source: Box<Self>,
    },
    /// The machine does not allow what the bar needs.
    #[error("{0}")]
    Machine(String),
}

impl BenchError {
    /// A field of a workload that makes no sense.
    pub fn workload(place: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Workload { place: place.into(), why: why.into() }
    }

    /// Says on which side of a comparison it happened.
    pub fn on_side(self, side: &'static str) -> Self {
        Self::OnSide { side, source: Box::new(self) }
    }
}

/// Names what was attempted when the operating system refuses it.
pub trait Doing<T> {
    /// Turns an I/O error into "cannot {doing}: …".
    fn doing(self, doing: impl Into<String>) -> Result<T, BenchError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: impl Into<String>) -> Result<T, BenchError> {
        self.map_err(|source| BenchError::Io { doing: doing.into(), source })
    }
}
