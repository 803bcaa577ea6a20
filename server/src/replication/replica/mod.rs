//! This server as a replica of another one.
//!
//! ```text
//! role        the state that all threads see: whose replica, how the link is, how far the data is
//! greeting    from the first byte on a new connection to the payload or the stream; no I/O
//! payload     the end of a copy among the bytes of a connection; no I/O
//! units       from the bytes of the stream to units with their ends; no I/O
//! channel     the socket, with its timeouts and what a replica sends on its own
//! copying     a whole copy of the primary's data
//! applying    units of the stream on shards
//! link        the thread that has all of these
//! ```

pub mod applying;
pub mod channel;
pub mod copying;
pub mod greeting;
pub mod link;
pub mod payload;
pub mod role;
pub mod units;
