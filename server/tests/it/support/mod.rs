//! What the integration tests share: a server process, and a client with a RESP reader of its own.
//!
//! Nothing here uses the crates under test, so a fault in the parser or in the reply writer cannot hide
//! itself.

#![allow(
    dead_code,
    unused_imports,
    reason = "each program of tests compiles this module, and uses a part of it"
)]

use std::time::Duration;

mod client;
pub mod crowd;
pub mod dice;
pub mod home;
pub mod reference;
mod reply;
mod server;
pub mod transcript;
pub mod values;

/// How long a test waits for an event before it takes the server for hung. It measures nothing: a machine
/// under load may be slow, and no test may fail for that.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub use client::{Client, Resp, encode};
pub use dice::Dice;
pub use reply::Reply;
pub use server::{Port, Server};
