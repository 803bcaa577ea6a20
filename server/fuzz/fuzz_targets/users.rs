//! Files of users are refused or read back as they are written.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../tests/properties/users.rs"]
mod properties;

fuzz_target!(|text: &[u8]| properties::check_file(text));
