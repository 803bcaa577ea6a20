//! Replication: copies of one server's data on others.

pub mod replica;
