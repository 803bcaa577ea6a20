//! The system's figures about the process and about itself.

use std::fs;

/// Returns the resident memory of the process without files, so without its code.
pub fn own_bytes() -> u64 {
    kilobytes_of("/proc/self/status", "RssAnon:") * 1024
}

/// Returns a number of kilobytes from one of the system's files.
///
/// It is 0 where there is no such file.
pub fn kilobytes_of(path: &str, name: &str) -> u64 {
    let file = fs::read_to_string(path).unwrap_or_default();
    let value = file.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
