//! The number of instances for the needs of a month.

use serde::Serialize;

/// The planned capacity of one instance, without the head-room.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Instance {
    /// Requests a second.
    pub rate: f64,
    /// Bytes of memory.
    pub memory_bytes: f64,
}

/// The needs of a month over all instances, copies not counted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Needs {
    /// Requests a second.
    pub rate: f64,
    /// The number of keys.
    pub n_keys: u64,
    /// Cores of servers, head-room included.
    pub cores: f64,
    /// Bytes of memory, a snapshot and buffers included.
    pub memory_bytes: f64,
    /// Bits a second on the wire, both directions.
    pub network_bits: f64,
}

/// A month of the plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Month {
    /// The number of the month, counted from today.
    pub month: u32,
    /// The needs of the month.
    pub needs: Needs,
    /// Instances that meet the needs, copies not counted.
    pub n_instances: u64,
    /// The number of instances with their copies.
    pub n_with_copies: u64,
    /// The need that decides their number: `rate` or `memory`.
    pub short_of: &'static str,
}

impl Month {
    /// Counts the instances; there is at least one.
    pub fn new(month: u32, needs: Needs, instance: &Instance, redundancy: u64) -> Self {
        let for_rate = needs.rate / instance.rate;
        let for_memory = needs.memory_bytes / instance.memory_bytes;
        // A tiny excess over a whole number is rounding: the default rate of today is exactly that of one
        // instance.
        let n_instances = ((for_rate.max(for_memory) - 1e-9).ceil() as u64).max(1);
        Self {
            month,
            needs,
            n_instances,
            n_with_copies: n_instances * (1 + redundancy),
            short_of: if for_rate >= for_memory { "rate" } else { "memory" },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn month(rate: f64, memory_bytes: f64) -> Month {
        let needs = Needs { rate, n_keys: 1, cores: 1.0, memory_bytes, network_bits: 1.0 };
        Month::new(0, needs, &Instance { rate: 100.0, memory_bytes: 1000.0 }, 1)
    }

    #[test]
    fn what_is_shortest_decides() {
        assert_eq!((month(100.0, 10.0).n_instances, month(100.0, 10.0).short_of), (1, "rate"));
        assert_eq!((month(101.0, 10.0).n_instances, month(101.0, 10.0).n_with_copies), (2, 4));
        assert_eq!((month(150.0, 3500.0).n_instances, month(150.0, 3500.0).short_of), (4, "memory"));
        assert_eq!(month(0.0, 0.0).n_instances, 1);
    }
}
