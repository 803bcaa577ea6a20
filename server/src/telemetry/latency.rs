//! The latencies of commands: a histogram for each command and thread.
//!
//! Only one thread records in its histograms, and a reader adds up those of all threads. So recording is a
//! load and a store on a cache line of the thread's own. A histogram is allocated when its command first runs
//! on its thread. Each of its powers of two is allocated when a run first takes that long, with one kilobyte.
//! All of them together would be 24 kilobytes, with hundreds of commands and as many threads as cores.
//!
//! The crate `hdrhistogram`, which the bench uses, records through `&mut` and allocates all its counters at
//! once.

use std::sync::OnceLock;

use crate::telemetry::stats::Count;

/// Smaller values are distinguished to the nanosecond.
const EXACT: u64 = 256;
/// The slots of each larger power of two. A figure is exact to 1 %, as in Redis.
const SLOTS_PER_OCTAVE: u64 = EXACT / 2;
/// The longest recorded time, as in Redis: a second. Longer times count as this.
const LONGEST_NANOS: u64 = 1_000_000_000;
/// The number of slots.
const N_SLOTS: usize = slot_of(MOST_NANOS) + 1;
/// The last time that is distinguished: the power of two above the longest, less one.
const MOST_NANOS: u64 = LONGEST_NANOS.next_power_of_two() - 1;

/// Returns the slot of a number of nanoseconds.
#[inline]
const fn slot_of(nanos: u64) -> usize {
    if nanos < EXACT {
        return nanos as usize;
    }
    // The number of insignificant low bits. The rest is below `EXACT` and at least half of it.
    let shift = EXACT.leading_zeros() - nanos.leading_zeros() + 1;
    (shift as u64 * SLOTS_PER_OCTAVE + (nanos >> shift)) as usize
}

/// Returns the longest time in a slot.
const fn longest_of(slot: usize) -> u64 {
    let slot = slot as u64;
    if slot < EXACT {
        return slot;
    }
    let shift = slot / SLOTS_PER_OCTAVE - 1;
    ((slot - shift * SLOTS_PER_OCTAVE + 1) << shift) - 1
}

/// The counts of one power of two.
///
/// For exact values, it is one half of those that are distinguished to the nanosecond.
type Octave = [Count; SLOTS_PER_OCTAVE as usize];

/// The latencies of one command on one thread.
#[derive(Debug)]
pub struct LatencyHistogram(Box<[OnceLock<Box<Octave>>]>);

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self((0..N_SLOTS / SLOTS_PER_OCTAVE as usize).map(|_| OnceLock::new()).collect())
    }
}

impl LatencyHistogram {
    /// Records that `n` commands took `nanos` nanoseconds each. Only the owning thread may.
    #[inline]
    pub fn record(&self, nanos: u64, n: u64) {
        let slot = slot_of(nanos.min(LONGEST_NANOS));
        let (octave, slot) = (slot / SLOTS_PER_OCTAVE as usize, slot % SLOTS_PER_OCTAVE as usize);
        let new = || Box::new(std::array::from_fn(|_| Count::default()));
        self.0[octave].get_or_init(new)[slot].add(n);
    }

    /// The slots, with the number of runs in each.
    fn counts(&self) -> impl Iterator<Item = (usize, &Count)> {
        let octaves = self.0.iter().enumerate();
        let used = octaves.filter_map(|(nth, octave)| Some((nth, octave.get()?)));
        used.flat_map(|(nth, octave)| (nth * octave.len()..).zip(octave.iter()))
    }

    /// Resets all counts.
    pub fn reset(&self) {
        self.counts().for_each(|(_, count)| count.reset());
    }
}

/// The latencies of a command, at a moment.
#[derive(Clone, Debug)]
pub struct Latencies {
    slots: Vec<u64>,
    n_calls: u64,
}

impl Latencies {
    /// The sum of the threads' records; none if there are no records.
    pub fn sum<'a>(histograms: impl Iterator<Item = &'a LatencyHistogram>) -> Option<Self> {
        let mut sum: Option<Vec<u64>> = None;
        for histogram in histograms {
            let slots = sum.get_or_insert_with(|| vec![0; N_SLOTS]);
            histogram.counts().for_each(|(slot, count)| slots[slot] += count.get());
        }
        let slots = sum?;
        let n_calls = slots.iter().sum();
        (n_calls > 0).then_some(Self { slots, n_calls })
    }

    /// The calls that were recorded after an earlier moment; none if there were none. After a reset all calls
    /// are later.
    pub fn since(&self, before: &Latencies) -> Option<Self> {
        if before.slots.iter().zip(&self.slots).any(|(before, now)| before > now) {
            return Some(self.clone());
        }
        let slots: Vec<u64> =
            self.slots.iter().zip(&before.slots).map(|(now, before)| now - before).collect();
        let n_calls = slots.iter().sum();
        (n_calls > 0).then_some(Self { slots, n_calls })
    }

    /// The number of recorded calls.
    pub fn n_calls(&self) -> u64 {
        self.n_calls
    }

    /// The time that `percent` of the calls did not exceed, in nanoseconds.
    pub fn percentile_nanos(&self, percent: f64) -> u64 {
        let wanted = ((percent / 100.0 * self.n_calls as f64).ceil() as u64).clamp(1, self.n_calls);
        let mut n_calls = 0;
        let reaches = |count: &u64| {
            n_calls += count;
            n_calls >= wanted
        };
        longest_of(self.slots.iter().position(reaches).expect("there are as many calls as slots count"))
    }

    /// Pairs of a time in seconds and the number of calls that took no longer.
    ///
    /// The times double from about a microsecond to a second, and are always the same.
    pub fn in_octaves(&self) -> impl Iterator<Item = (f64, u64)> {
        (10..=LONGEST_NANOS.ilog2() + 1).map(|octave| {
            let bound = slot_of((1 << octave) - 1);
            (f64::from(1 << octave) / 1e9, self.slots[..=bound].iter().sum())
        })
    }

    /// Pairs of a time in microseconds and the number of calls that took no longer.
    ///
    /// The times double from one microsecond on. A pair with the same number as the one before is left out.
    pub fn cumulative(&self) -> Vec<(u64, u64)> {
        let mut pairs: Vec<(u64, u64)> = Vec::new();
        let (mut slot, mut n_calls) = (0, 0);
        for bound in (10..).map(|octave| slot_of((1 << octave).min(MOST_NANOS))) {
            let before = n_calls;
            n_calls += self.slots[slot..=bound].iter().sum::<u64>();
            slot = bound + 1;
            if n_calls > before {
                pairs.push((longest_of(bound) / 1000, n_calls));
            }
            if n_calls == self.n_calls {
                break;
            }
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_falls_into_a_slot_of_its_size() {
        let mut before = 0;
        for nanos in (0..100_000).chain((100_000..LONGEST_NANOS).step_by(99_991)) {
            let slot = slot_of(nanos);
            let longest = longest_of(slot);
            assert!(longest >= nanos && longest - nanos <= nanos / 128, "{nanos} is up to {longest}");
            assert!(slot >= before && slot < N_SLOTS);
            before = slot;
        }
    }

    #[test]
    fn only_what_is_recorded_takes_memory() {
        assert_eq!(N_SLOTS as u64 % SLOTS_PER_OCTAVE, 0, "all slots are those of whole powers of two");
        let histogram = LatencyHistogram::default();
        [100, 1000, 1010, 1500].into_iter().for_each(|nanos| histogram.record(nanos, 1));
        assert_eq!(histogram.0.iter().filter(|octave| octave.get().is_some()).count(), 3);
    }

    #[test]
    fn percentiles_are_right_to_a_hundredth() {
        let threads = [LatencyHistogram::default(), LatencyHistogram::default()];
        assert!(Latencies::sum(threads.iter()).is_none());
        for micros in 1..=1000 {
            threads[micros as usize % 2].record(micros * 1000, 1);
        }
        let sum = Latencies::sum(threads.iter()).unwrap();
        assert_eq!(sum.n_calls(), 1000);
        for (percent, micros) in [(0.0, 1.0), (50.0, 500.0), (99.9, 999.0), (100.0, 1000.0)] {
            let found = sum.percentile_nanos(percent) as f64 / 1000.0;
            assert!((found / micros - 1.0).abs() < 0.01, "p{percent} is {found}");
        }
    }

    #[test]
    fn what_came_later_is_told_apart() {
        let histogram = LatencyHistogram::default();
        histogram.record(1000, 3);
        let before = Latencies::sum(std::iter::once(&histogram)).unwrap();
        assert!(before.since(&before).is_none());
        histogram.record(5_000_000, 2);
        let now = Latencies::sum(std::iter::once(&histogram)).unwrap();
        let later = now.since(&before).unwrap();
        assert_eq!((later.n_calls(), later.percentile_nanos(1.0) / 100_000), (2, 50));
        // All calls came after a reset.
        assert_eq!(before.since(&now).unwrap().n_calls(), 3);
    }

    #[test]
    fn octaves_count_up_to_all_calls() {
        let histogram = LatencyHistogram::default();
        for nanos in [0, 1023, 1024, 2047, 2048, u64::MAX] {
            histogram.record(nanos, 1);
        }
        let octaves: Vec<(f64, u64)> =
            Latencies::sum(std::iter::once(&histogram)).unwrap().in_octaves().collect();
        assert_eq!(octaves[..3], [(1024e-9, 2), (2048e-9, 4), (4096e-9, 5)]);
        assert_eq!((octaves.len(), octaves[20]), (21, (f64::from(1 << 30) / 1e9, 6)));
    }

    #[test]
    fn cumulative_counts_have_the_bounds_of_redis() {
        let histogram = LatencyHistogram::default();
        for nanos in [7, 7_007, 18_047, 41_215, 300_000, u64::MAX] {
            histogram.record(nanos, 2);
        }
        let sum = Latencies::sum(std::iter::once(&histogram)).unwrap();
        assert_eq!(sum.cumulative(), [(1, 2), (8, 4), (33, 6), (66, 8), (528, 10), (1_073_741, 12)]);
        assert_eq!(sum.percentile_nanos(100.0), longest_of(slot_of(LONGEST_NANOS)));
        histogram.reset();
        assert!(Latencies::sum(std::iter::once(&histogram)).is_none());
    }
}
