//! The division of commands' time by family and phase, as a thread has recorded it.

use std::sync::OnceLock;

use crate::{
    catalog::Group,
    telemetry::{
        latency::{Latencies, LatencyHistogram},
        split::Phase,
    },
};

/// A histogram for each phase.
type OfFamily = [LatencyHistogram; Phase::ALL.len()];

/// One thread's records, by family. Families without records use no memory.
#[derive(Debug, Default)]
pub struct Splits([OnceLock<Box<OfFamily>>; Group::ALL.len()]);

impl Splits {
    /// Records the duration of each phase. Only the owning thread may.
    pub fn record(&self, family: Group, nanos: [u64; Phase::ALL.len()]) {
        let histograms = self.0[family as usize].get_or_init(Box::default);
        histograms.iter().zip(nanos).for_each(|(histogram, nanos)| histogram.record(nanos, 1));
    }

    /// Resets all records.
    pub fn reset(&self) {
        let histograms = self.0.iter().filter_map(OnceLock::get).flat_map(|histograms| histograms.iter());
        histograms.for_each(LatencyHistogram::reset);
    }

    /// The sum of several threads' records of a family and a phase, if any.
    pub fn sum<'a>(
        threads: impl Iterator<Item = &'a Splits>,
        family: Group,
        phase: Phase,
    ) -> Option<Latencies> {
        Latencies::sum(
            threads.filter_map(|splits| splits.0[family as usize].get()).map(|all| &all[phase as usize]),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_found_by_their_numbers() {
        let (splits, others) = (Splits::default(), Splits::default());
        for (nth, family) in Group::ALL.into_iter().enumerate() {
            assert_eq!(family as usize, nth);
            splits.record(family, [nth as u64, 0, 0, 7]);
            others.record(family, [nth as u64, 0, 0, 9]);
        }
        for (nth, family) in Group::ALL.into_iter().enumerate() {
            let sum = |phase| Splits::sum([&splits, &others].into_iter(), family, phase).unwrap();
            assert_eq!(
                (sum(Phase::Queue).n_calls(), sum(Phase::Queue).percentile_nanos(50.0)),
                (2, nth as u64)
            );
            assert_eq!(sum(Phase::Socket).percentile_nanos(100.0), 9);
        }
        splits.reset();
        assert!(Splits::sum(std::iter::once(&splits), Group::List, Phase::Run).is_none());
    }
}
