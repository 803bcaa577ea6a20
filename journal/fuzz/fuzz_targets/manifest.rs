//! Any manifest is refused, or reads back as it is written.
#![no_main]

use braid_journal::manifest::Manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    if let Ok(manifest) = Manifest::read(text)
        && !manifest.text().is_empty()
    {
        assert_eq!(Manifest::read(&manifest.text()), Ok(manifest));
    }
});
