//! Points in time, as numbers: storage reads no clock, so the time of a command is always an argument.

/// A point in time, in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

/// The point in time at which something expires (a TTL is a duration, a deadline is not).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(pub Millis);

impl Deadline {
    /// The deadline `unix_ms` milliseconds after the Unix epoch.
    #[inline]
    pub const fn at(unix_ms: u64) -> Self {
        Deadline(Millis(unix_ms))
    }

    /// Whether the deadline has passed at `now`. At its very millisecond it has not, as in Redis's
    /// `keyIsExpired`.
    #[inline]
    pub fn has_passed(self, now: Millis) -> bool {
        now > self.0
    }
}

/// The effect of a write on a key's deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The key keeps its deadline, if it has one.
    Keep,
    /// The key loses its deadline.
    Clear,
    /// The key expires at this time.
    At(Deadline),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_passes_one_millisecond_later() {
        assert!(!Deadline::at(10).has_passed(Millis(9)));
        assert!(!Deadline::at(10).has_passed(Millis(10)));
        assert!(Deadline::at(10).has_passed(Millis(11)));
    }
}
