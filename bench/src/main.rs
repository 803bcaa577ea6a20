//! Load generator and comparisons for Redis-compatible servers.

fn main() {}
