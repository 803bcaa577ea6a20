//! The response times of each second as an HdrHistogram interval log.
//!
//! HdrHistogram's own tools plot it.

use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;

use crate::engine::Outcome;

/// Nanoseconds in a millisecond: readers of the log expect the maximum in milliseconds.
const MAX_DIVISOR: f64 = 1e6;

/// Writes the log. `start` is when the run began.
pub fn hlog(outcome: &Outcome, start: SystemTime) -> Vec<u8> {
    let mut log = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment("response times in nanoseconds").with_start_time(start).with_base_time(start);
    builder.with_max_value_divisor(MAX_DIVISOR);
    let mut writer = builder.begin_log_with(&mut log, &mut serializer).expect("a Vec takes every write");
    for slice in &outcome.slices {
        writer
            .write_histogram(&slice.response, Duration::from_secs(slice.second), Duration::from_secs(1), None)
            .expect("a Vec takes every write and our histograms are in bounds");
    }
    drop(writer);
    log
}
