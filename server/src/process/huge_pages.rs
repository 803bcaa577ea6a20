//! Huge pages for memory that was first written in small pages.
//!
//! The system gives a huge page only for unwritten memory. Memory written before huge pages were allowed
//! stays in small pages until the system's own daemon visits it, which takes minutes. Only fully resident
//! ranges are merged here, so memory use does not grow.

use std::{
    fs::{self, File},
    io,
    ops::Range,
    os::unix::fs::FileExt,
    thread,
    time::Duration,
};

use braid_storage::memory::allocator;
use rustix::io::Errno;

/// The size of a huge page, where a page has [`PAGE_BYTES`].
const HUGE_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4096;
const N_PAGES: usize = HUGE_BYTES / PAGE_BYTES;

/// The size of a page's entry in `/proc/self/pagemap`, and the bit for resident pages.
const ENTRY_BYTES: usize = 8;
const RESIDENT: u64 = 1 << 63;

/// The pause between two huge pages. While the system makes one, no thread gets new memory.
const PAUSE: Duration = Duration::from_millis(1);

/// Moves the process's own resident memory into huge pages, as far as it fills them. Returns how many there
/// are then.
///
/// Takes a millisecond and a half for each. Does nothing where the system's operator forbids huge pages.
///
/// # Errors
/// The system's error: it may not know the call, or have no contiguous memory.
pub fn collapse() -> io::Result<usize> {
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")?;
    if setting.contains("[never]") || rustix::param::page_size() != PAGE_BYTES {
        return Ok(0);
    }
    let residency = File::open("/proc/self/pagemap")?;
    let mut n_huge = 0;
    for range in own_memory(&fs::read_to_string("/proc/self/maps")?) {
        let mut start = range.start.next_multiple_of(HUGE_BYTES);
        while start + HUGE_BYTES <= range.end {
            if is_resident(&residency, start)? {
                n_huge += usize::from(collapse_one(start)?);
                thread::sleep(PAUSE);
            }
            start += HUGE_BYTES;
        }
    }
    Ok(n_huge)
}

/// Returns the writable ranges of memory without a file, from lines such as
/// `7f0000000000-7f0000200000 rw-p 00000000 00:00 0`.
fn own_memory(maps: &str) -> impl Iterator<Item = Range<usize>> {
    maps.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let is_writable = words.next()? == "rw-p";
        let is_of_no_file = words.nth(2)? == "0";
        let is_stack = words.next().is_some_and(|name| name.starts_with("[stack"));
        let address = |text| usize::from_str_radix(text, 16).ok();
        (is_writable && is_of_no_file && !is_stack).then_some(address(start)?..address(end)?)
    })
}

/// Whether all memory of a future huge page is resident.
fn is_resident(residency: &File, start: usize) -> io::Result<bool> {
    let mut entries = [0; N_PAGES * ENTRY_BYTES];
    residency.read_exact_at(&mut entries, (start / PAGE_BYTES * ENTRY_BYTES) as u64)?;
    let (entries, _) = entries.as_chunks();
    Ok(entries.iter().all(|entry| u64::from_ne_bytes(*entry) & RESIDENT != 0))
}

/// Returns whether it is a huge page now.
fn collapse_one(start: usize) -> io::Result<bool> {
    let Err(error) = allocator::collapse(start..start + HUGE_BYTES) else {
        return Ok(true);
    };
    match Errno::from_io_error(&error) {
        // The system does not know this advice, or has no contiguous memory. The next attempt would fail as
        // well.
        Some(Errno::INVAL | Errno::NOMEM) => Err(error),
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_what_no_file_is_behind() {
        let maps = "\
5581c0000000-5581c0021000 rw-p 00000000 00:00 0                          [heap]
7f00c8000000-7f00c8200000 r--p 00001000 fe:00 4711                       /usr/bin/braid-server
7f00c8200000-7f00c8400000 rw-p 00001000 fe:00 4711                       /usr/bin/braid-server
7f00d0000000-7f0110000000 rw-p 00000000 00:00 0 
7f0110000000-7f0110001000 ---p 00000000 00:00 0 
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
a line that is none
";
        let ranges: Vec<_> = own_memory(maps).collect();
        assert_eq!(ranges, [0x5581_c000_0000..0x5581_c002_1000, 0x7f00_d000_0000..0x7f01_1000_0000]);
    }
}
