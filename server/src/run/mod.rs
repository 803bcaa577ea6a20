//! One way to run a command.
//!
//! What takes effect at once is a [unit](unit): one command, one EXEC with what it runs, one command that had
//! waited, the result of work that was offloaded. There are five ways to it, which differ only in who calls
//! the unit and where its reply goes:
//!
//! | way | calls the unit |
//! |---|---|
//! | in place: its shards are idle | `net/thread/serving.rs` |
//! | from a [node](job): a shard was held, or the unit could not run in place | whoever drains the shard |
//! | [served](serve): a key that it waits for was written | the holder who wrote it |
//! | [offloaded](offload): it reads too much for a hold | a heavy-work thread, without the hold; its result is stored by a unit |
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
