//! Commands on connections and their users.

pub(super) mod acl;
pub(super) mod client;
mod client_filter;
pub(super) mod handshake;
pub(super) mod tracking;
