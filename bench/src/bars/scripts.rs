//! Scripts: the cost of a run, the waits of others during a long one, and scripts whose keys depend on data.

use super::contest::Bar;
use super::{script_cpu, script_open, script_others};

pub(super) const BARS: &[Bar] = &[
    Bar { name: "scripts-get-p1", run: |contest, bar| script_cpu::get(contest, bar, 1, 0.95) },
    Bar { name: "scripts-get-p16", run: |contest, bar| script_cpu::get(contest, bar, 16, 0.6) },
    Bar { name: "scripts-eval", run: script_cpu::eval },
    Bar { name: "scripts-limiter", run: script_cpu::limiter },
    Bar { name: "scripts-order", run: script_cpu::order },
    Bar { name: "scripts-order-read", run: script_cpu::order_of_read_key },
    Bar { name: "scripts-others", run: script_others::run },
    Bar { name: "scripts-open", run: script_open::run },
];
