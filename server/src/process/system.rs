//! What the system tells of the process and of itself.

use std::fs;

/// The memory that the process occupies and that is of no file: not its code.
pub fn own_bytes() -> u64 {
    kilobytes_of("/proc/self/status", "RssAnon:") * 1024
}

/// A number of kilobytes in one of the system's files; 0 where there is no such file.
pub fn kilobytes_of(path: &str, name: &str) -> u64 {
    let file = fs::read_to_string(path).unwrap_or_default();
    let value = file.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
