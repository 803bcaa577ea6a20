//! Braid as a replica: of a primary that the test plays byte by byte, and of real servers.

mod encrypted;
mod failing_over;
mod fleet;
mod link;
mod played;
mod resuming;
mod role;
mod writable;
