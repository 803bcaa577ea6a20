//! Reading any file ends, and its intact part reads again as the same units.
#![no_main]

use std::io::Cursor;

use braid_journal::{check::check, reader::Reader};
use libfuzzer_sys::fuzz_target;

/// Returns a file's units, whether it is intact, and the length of its intact part.
fn read(file: &[u8]) -> (Vec<u8>, bool, usize) {
    let mut reader = Reader::new(Cursor::new(file)).expect("memory can be read");
    let mut all = Vec::new();
    let is_whole = loop {
        match reader.next_units() {
            Ok(Some(units)) => all.extend_from_slice(units),
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    (all, is_whole, reader.whole_bytes() as usize)
}

fuzz_target!(|file: &[u8]| {
    let (units, _, n_whole) = read(file);
    assert_eq!(read(&file[..n_whole]), (units, true, n_whole));
    for until in [None, Some(1)] {
        let checked = check(Cursor::new(file), 0, until).expect("memory can be read");
        assert!(checked.whole_bytes <= n_whole as u64);
    }
});
