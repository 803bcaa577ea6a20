//! The shared parts of the integration tests: a server process and a client. The client has a RESP reader of
//! its own.
//!
//! Nothing here uses the crates under test. So a fault in the parser or in the reply writer cannot hide
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

/// The time for which a test waits for an event before it considers the server hung. It measures nothing: no
/// test may fail because a loaded machine is slow.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub use client::{Client, Resp, encode};
pub use dice::Dice;
pub use reply::Reply;
pub use server::{Port, Server};
