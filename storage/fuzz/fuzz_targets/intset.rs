//! Intsets from elsewhere: whatever passes the check can be read and edited like one of our own.

#![no_main]

use std::collections::BTreeSet;

use braid_storage::types::set::intset::{self, IntSet};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (&[u8], Vec<i64>)| {
    let (bytes, values) = data;
    let Some(ints) = IntSet::check(bytes) else { return };
    let mut model: BTreeSet<i64> = ints.iter().collect();
    assert_eq!(model.len(), ints.len());
    let mut buffer = bytes.to_vec();
    for value in values {
        match IntSet::new(&buffer).find(value) {
            Ok(index) => intset::remove(&mut buffer, index),
            Err(index) => intset::insert(&mut buffer, index, value),
        }
        if !model.insert(value) {
            model.remove(&value);
        }
        assert!(IntSet::new(&buffer).iter().eq(model.iter().copied()));
        assert!(model.is_empty() || IntSet::check(&buffer).is_some());
    }
});
