//! Commands on connections and their users.

pub(super) mod acl;
pub(super) mod client;
pub(super) mod handshake;
pub(super) mod tracking;
