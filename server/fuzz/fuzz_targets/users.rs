//! Files of users are refused or read back as they are written.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[expect(dead_code, reason = "the other target uses the rest")]
#[path = "../../tests/it/properties/users.rs"]
mod properties;

fuzz_target!(|text: &[u8]| properties::check_file(text));
