//! Braid as a replica: of a primary that the test plays byte by byte, and of real servers.

mod fleet;
mod link;
mod played;
mod role;
mod writable;
