//! Data on disk: the cost of writing it, and of loading it.

use super::contest::Bar;
use super::{append_only, snapshot};

pub(super) const BARS: &[Bar] = &[
    Bar { name: "snapshot-throughput", run: snapshot::throughput },
    Bar { name: "snapshot-memory", run: snapshot::memory },
    Bar { name: "snapshot-time", run: snapshot::time },
    Bar { name: "snapshot-latency", run: snapshot::latency },
    Bar { name: "loading", run: snapshot::loading },
    Bar { name: "loading-log", run: snapshot::log_loading },
    Bar { name: "aof-everysec", run: |contest, bar| append_only::cpu(contest, bar, "everysec", 0.5) },
    Bar { name: "aof-always", run: |contest, bar| append_only::cpu(contest, bar, "always", 0.6) },
    Bar { name: "aof-always-rate", run: append_only::rate },
    Bar { name: "aof-slow-disk", run: append_only::slow_disk },
];
