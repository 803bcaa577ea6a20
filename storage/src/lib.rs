//! Braid's keyspace.
