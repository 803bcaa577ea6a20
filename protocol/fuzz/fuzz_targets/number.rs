//! Parsed numbers print as texts that can be parsed again.
#![no_main]

use braid_protocol::number::{LongDouble, parse_f64, parse_i64, write_f64, write_i64};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let mut out = Vec::new();
    if let Some(value) = parse_i64(text) {
        write_i64(&mut out, value);
        assert_eq!(out, text);
    }
    out.clear();
    if let Some(value) = parse_f64(text) {
        write_f64(&mut out, value);
        assert_eq!(parse_f64(&out).map(f64::to_bits), Some(value.to_bits()));
    }
    out.clear();
    if let Some(value) = LongDouble::parse(text) {
        value.write(&mut out);
        let once = LongDouble::parse(&out).expect("what is printed reads back");
        assert_eq!(value.is_finite(), once.is_finite());
        let sum = value + LongDouble::ZERO;
        let mut again = Vec::new();
        sum.write(&mut again);
        assert_eq!(out, again);
    }
});
