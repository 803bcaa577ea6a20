//! RESP2, RESP3 and inline commands: bytes to requests and replies, and back.
//!
//! | module | turns | for |
//! |---|---|---|
//! | [`request`] | bytes into the arguments of requests | the server's read path |
//! | [`reply`] | shapes into bytes; alone knows RESP2 from RESP3 | the server's write path |
//! | [`value`] | bytes into replies | clients: tests, load generators, replication |
//! | [`number`] | the text grammar of numbers, both ways | all of the above and the value types |
//!
//! The crate does no I/O, starts no threads, reads no clock and knows no command. Everything here is a
//! function of the given bytes, so that it can be fuzzed and split at every byte.
//!
//! Terms: see `docs/glossary.md`.

#![forbid(unsafe_code)]

pub mod bytes;
pub mod number;
pub mod reply;
pub mod request;
pub mod value;

pub use reply::{Reply, Resp};
pub use request::{Arg, Limits, Parse, ProtocolError, RequestParser, Words};
pub use value::{ReplyError, ReplyParser, ReplySkipper, Value, parse_reply, skip_reply};
