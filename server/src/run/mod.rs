//! One way to run a command.
//!
//! Everything that takes effect at one moment is a [unit](unit): one command, one EXEC with its queue, one
//! served command, the result of offloaded work. There are five ways to a unit. They differ only in its
//! caller and in the destination of its reply:
//!
//! | way | caller of the unit |
//! |---|---|
//! | in place: its shards are idle | `net/thread/serving.rs` |
//! | from a [node](job): a shard was held, or it could not run in place | the thread that drains the shard |
//! | [served](serve): a key that it waits for was written | the holder that wrote the key |
//! | [offloaded](offload): too much for a hold | a heavy-work thread, holding nothing; a unit stores it |
//! | within EXEC | [`transaction`], which runs each queued command through the same [step] |
//!
//! All of them end a command in [`finish`], which tells its observers.

pub mod blocking;
pub mod budget;
pub mod command_lookup;
pub mod finish;
pub mod gates;
pub mod job;
pub mod logging;
pub mod offload;
pub mod route;
pub mod sampling;
pub mod script;
pub mod script_prediction;
pub mod serve;
pub mod step;
pub mod timing;
pub mod transaction;
pub mod unit;
