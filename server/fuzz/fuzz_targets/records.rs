//! Sessions of TLS with changed bytes bring no plaintext that was not sent, and no panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/it/properties/records.rs"]
mod properties;

fuzz_target!(|plan: &[u8]| properties::check(plan));
