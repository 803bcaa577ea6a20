//! A server's work besides commands: its memory limit, access control, events, TLS and metrics.

use super::contest::Bar;
use super::{access, events, hit_ratio, memory_limit, scrapes, tls};

pub(super) const BARS: &[Bar] = &[
    Bar { name: "memory-limit", run: memory_limit::under_writes },
    Bar { name: "memory-halving", run: memory_limit::halving },
    Bar { name: "hit-ratio", run: hit_ratio::run },
    Bar { name: "acl-restricted", run: access::restricted },
    Bar { name: "events-heard", run: events::heard },
    Bar { name: "events-unheard", run: events::unheard },
    Bar { name: "tls-p1", run: |contest, bar| tls::cpu(contest, bar, 1, 0.8) },
    Bar { name: "tls-p16", run: |contest, bar| tls::cpu(contest, bar, 16, 0.6) },
    Bar { name: "tls-handshakes", run: tls::handshakes },
    Bar { name: "metrics-scraped", run: scrapes::run },
];
