//! The parts of a client: its socket, its session, its node and its notifications.

pub mod argument_buffer;
pub mod connection;
pub mod footprint;
pub mod held_back;
pub mod id;
pub mod identity;
pub mod node;
pub mod record;
pub mod session;
pub mod state;
pub mod sweep;
pub mod waits;
pub mod watches;
