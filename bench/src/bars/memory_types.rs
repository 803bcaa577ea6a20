//! Resident memory of hashes, lists, sets and sorted sets: many small values and few large ones.

use super::contest::{Bar, Contest};
use super::resident::settled_bytes;
use crate::bars::measures::{Measure, Target, Unit};
use crate::bars::preload;
use crate::bars::values::{self, Filling, ValueType};
use crate::error::BenchError;

/// The bars: values of 8 members, and values of 100,000.
pub(super) const BARS: &[Bar] = &[
    Bar { name: "memory-small-hash", run: |contest, bar| small(contest, bar, ValueType::Hash) },
    Bar { name: "memory-small-list", run: |contest, bar| small(contest, bar, ValueType::List) },
    Bar { name: "memory-small-set", run: |contest, bar| small(contest, bar, ValueType::Set) },
    Bar { name: "memory-small-zset", run: |contest, bar| small(contest, bar, ValueType::SortedSet) },
    Bar { name: "memory-large-hash", run: |contest, bar| large(contest, bar, ValueType::Hash) },
    Bar { name: "memory-large-zset", run: |contest, bar| large(contest, bar, ValueType::SortedSet) },
];

const N_SMALL: u64 = 200_000;
const N_LARGE: u64 = 10;

/// Measures keys with few members, which servers pack.
fn small(contest: &Contest, bar: &str, value_type: ValueType) -> Result<Vec<Measure>, BenchError> {
    let measure = Measure::new("RSS/key of 8", Unit::Bytes, Target::ratio(0.8));
    run(contest, bar, measure, value_type, [N_SMALL, 8], N_SMALL)
}

/// Measures few keys with many members, so that the members dominate.
fn large(contest: &Contest, bar: &str, value_type: ValueType) -> Result<Vec<Measure>, BenchError> {
    let measure = Measure::new("RSS/member", Unit::Bytes, Target::ratio(0.6));
    run(contest, bar, measure, value_type, [N_LARGE, 100_000], N_LARGE * 100_000)
}

/// Fills a fresh server with `n_keys` times `n_members` members of 8 bytes.
///
/// The memory that they take is divided by `n_parts`.
fn run(
    contest: &Contest,
    bar: &str,
    measure: Measure,
    value_type: ValueType,
    [n_keys, n_members]: [u64; 2],
    n_parts: u64,
) -> Result<Vec<Measure>, BenchError> {
    let member = |index| values::eight_bytes(b'm', index);
    let filling = Filling { value_type, n_keys, n_members, key: preload::name, member };
    contest.rounds(bar, contest.few_rounds(), vec![measure], |side| {
        let server = contest.start(side, &[])?;
        let before = settled_bytes(&server)?;
        filling.fill(server.address())?;
        Ok(vec![(settled_bytes(&server)? - before) / n_parts as f64])
    })
}
