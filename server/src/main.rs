//! Braid: a drop-in Redis server.

fn main() {}
