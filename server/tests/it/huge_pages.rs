//! Huge pages: none while there is little data. Once there is much, its memory is in huge pages.

use std::fs;

use crate::support::{Server, crowd::until};

/// Returns the number after a name in a file of `/proc`, if there is one.
fn number(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let mut words = text.lines().find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace();
    words.next()?.parse().ok()
}

/// Whether the system makes huge pages at once on request. Linux does so since 6.1, if its operator allows
/// it.
fn makes_huge_pages() -> bool {
    let version = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let setting =
        fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or("[never]".into());
    version >= (6, 1) && !setting.contains("[never]")
}

#[test]
fn what_was_written_in_small_pages_comes_into_huge_ones_when_there_is_much() {
    let server = Server::start(&["--save", ""]);
    let status = format!("/proc/{}/status", server.pid());
    let Some(allowed) = number(&status, "THP_enabled:") else {
        eprintln!("the system does not say whether a process may have huge pages");
        return;
    };
    assert_eq!(allowed, 0, "a server without data");
    let memory = format!("/proc/{}/smaps_rollup", server.pid());
    // The allocator writes its first memory before `main`, when huge pages cannot be forbidden yet.
    assert_eq!(number(&memory, "AnonHugePages:").unwrap_or(0), 0, "a server without data");
    let mut client = server.connect();
    client.command(&["DEBUG", "POPULATE", "250000", "few", "64"]);
    client.command(&["PING"]);
    assert_eq!(number(&status, "THP_enabled:"), Some(0), "with little data");
    let failed = || number("/proc/vmstat", "thp_collapse_alloc_failed ").unwrap_or(0);
    let n_failed = failed();
    client.command(&["DEBUG", "POPULATE", "600000", "many", "64"]);
    until("huge pages are allowed", || number(&status, "THP_enabled:") == Some(1));
    if makes_huge_pages() {
        // A machine with fragmented free memory has no huge pages to give.
        let is_huge = || number(&memory, "AnonHugePages:").is_some_and(|kib| kib >= 40 << 10);
        until("the data is in huge pages", || is_huge() || failed() > n_failed);
    }
}
