//! Braid's server, as a library its tests and its binary share.
