//! Whatever bytes a client stores as a HyperLogLog, all that can be done with them agrees on whether they are
//! whole.
#![no_main]

use braid_storage::types::hll::{self, Corrupt, Hll, HllChange, HllEncoding, Registers};
use libfuzzer_sys::fuzz_target;

const HEADER: &[u8] = b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80";

// Runs behind a sparse header and, as bytes, any header at all; elements, and the longest sparse
// representation.
fuzz_target!(|input: (bool, Vec<u8>, Vec<Vec<u8>>, u16)| {
    let (with_header, body, elements, max_bytes) = input;
    let mut bytes = if with_header { [HEADER, &body].concat() } else { body };
    let max_bytes = usize::from(max_bytes);
    for round in 0..4 {
        let Some(hll) = Hll::new(&bytes) else { return };
        let mut registers = Registers::default();
        let is_whole = registers.merge(hll).is_ok();
        assert_eq!(hll.cardinality(), is_whole.then(|| registers.cardinality()).ok_or(Corrupt));
        assert_eq!(hll.to_dense().is_ok(), is_whole);
        assert!(hll.runs().map(|run| run.n_bytes).sum::<usize>() <= bytes.len());
        let merged = registers.merged_into(Some(hll), HllEncoding::Sparse, max_bytes);
        if is_whole {
            let merged = merged.expect("a whole one takes all registers");
            assert_eq!(Hll::new(&merged).and_then(|hll| hll.cardinality().ok()), hll.cardinality().ok());
        }
        match hll.with_elements(elements.iter().map(Vec::as_slice), max_bytes) {
            Ok(HllChange::None) => {}
            Ok(HllChange::Raise(raise)) => raise.apply(&mut bytes),
            Ok(HllChange::Rewrite(changed)) => bytes = changed,
            Err(Corrupt) => {
                assert!(!is_whole);
                return;
            }
        }
        if is_whole {
            let hll = Hll::new(&bytes).expect("adding leaves it one");
            assert!(hll.cardinality().is_ok());
            assert_eq!(hll.with_elements(elements.iter().map(Vec::as_slice), max_bytes), Ok(HllChange::None));
        }
        if round == 1 {
            hll::store_cardinality(&mut bytes, 7);
            assert_eq!(Hll::new(&bytes).and_then(Hll::stored_cardinality), Some(7));
        }
    }
});
