//! What is on disk: what it costs to bring it there, and to get it back.

use super::contest::Bar;
use super::snapshot;

pub(super) const BARS: &[Bar] = &[
    Bar { name: "snapshot-throughput", run: snapshot::throughput },
    Bar { name: "snapshot-memory", run: snapshot::memory },
    Bar { name: "snapshot-time", run: snapshot::time },
    Bar { name: "snapshot-latency", run: snapshot::latency },
    Bar { name: "loading", run: snapshot::loading },
];
