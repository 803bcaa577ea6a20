//! The record of key use, for OBJECT IDLETIME and FREQ and for eviction: 24 bits an entry.
//!
//! Under LRU policies the bits are the time of the last use in seconds. Under LRM policies they are that of
//! the last change. Under LFU policies they are, as in Redis, two numbers. 16 bits are the minutes when the
//! counter last decayed. 8 bits are a counter that grows with the logarithm of the number of uses.

use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use crate::entry::{AccessClock, EntryRef, time::Millis};

/// The initial counter of a new key, so that it is not evicted before it had a chance.
const LFU_START: u32 = 5;
const CLOCK_MASK: u64 = (1 << 24) - 1;

/// The policy in force and its settings. Shared by all shards, written by CONFIG SET only.
#[derive(Debug, Default)]
pub struct Access {
    /// 0 for LRU and [`LRM`] for LRM; else bit 63, the decay time in minutes (31 bits) and the logarithm
    /// factor (32 bits).
    policy: AtomicU64,
    /// Whether expired keys and fields stay until a client writes them. No client sees them, but removing
    /// them would be a change.
    keeps_expired: AtomicBool,
}

/// The word of the policy that only changes count.
const LRM: u64 = 1 << 62;

/// The measure that is kept of a key's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessPolicy {
    /// The time of the last use.
    Lru,
    /// The time of the last change. Reads do not count.
    Lrm,
    /// The frequency of use.
    Lfu {
        /// The larger, the more uses a counter needs to grow (`lfu-log-factor`).
        log_factor: u32,
        /// Minutes after which a counter loses one (`lfu-decay-time`); 0: never.
        decay_minutes: u32,
    },
}

impl Access {
    /// Changes the policy. The clocks of keys written under the other one are misread until the keys are
    /// used.
    pub fn set_policy(&self, policy: AccessPolicy) {
        let word = match policy {
            AccessPolicy::Lru => 0,
            AccessPolicy::Lrm => LRM,
            AccessPolicy::Lfu { log_factor, decay_minutes } => {
                1 << 63 | u64::from(decay_minutes & 0x7fff_ffff) << 32 | u64::from(log_factor)
            }
        };
        self.policy.store(word, Relaxed);
    }

    /// Sets whether expired keys stay when they are only read.
    pub fn keep_expired(&self, keeps: bool) {
        // SeqCst: pairs with itself on other threads. Between two of these stores their callers read the
        // state that they follow.
        self.keeps_expired.store(keeps, SeqCst);
    }

    /// Whether reads leave expired keys and fields in place.
    pub(crate) fn keeps_expired(&self) -> bool {
        self.keeps_expired.load(Relaxed)
    }

    /// The policy.
    pub fn policy(&self) -> AccessPolicy {
        match self.policy.load(Relaxed) {
            0 => AccessPolicy::Lru,
            LRM => AccessPolicy::Lrm,
            word => AccessPolicy::Lfu {
                log_factor: word as u32,
                decay_minutes: (word >> 32) as u32 & 0x7fff_ffff,
            },
        }
    }

    /// Notes a use that changes nothing.
    #[inline]
    pub(crate) fn note(&self, entry: EntryRef<'_>, now: Millis) {
        if self.policy.load(Relaxed) != 0 {
            return self.note_lfu(entry, now);
        }
        self.note_time(entry, now);
    }

    /// Notes a use that may change the value.
    #[inline]
    pub(crate) fn note_change(&self, entry: EntryRef<'_>, now: Millis) {
        if self.policy.load(Relaxed) != 0 {
            return self.note_lfu_or_change(entry, now);
        }
        self.note_time(entry, now);
    }

    #[inline(always)]
    fn note_time(&self, entry: EntryRef<'_>, now: Millis) {
        let clock = AccessClock::new(((now.0 / 1000) & CLOCK_MASK) as u32);
        // An entry that is read often is written once a second only.
        if entry.access_clock() != clock {
            entry.set_access_clock(clock);
        }
    }

    /// Notes that an entry is new.
    #[inline]
    pub(crate) fn begin(&self, entry: EntryRef<'_>, now: Millis) {
        if self.policy.load(Relaxed) != 0 {
            return self.begin_lfu_or_change(entry, now);
        }
        self.note_time(entry, now);
    }

    /// Restores the use of an entry that was used elsewhere: the idle seconds or the frequency, whichever the
    /// policy keeps.
    pub fn resume(&self, entry: EntryRef<'_>, now: Millis, idle_seconds: Option<u64>, frequency: Option<u8>) {
        let is_lfu = matches!(self.policy(), AccessPolicy::Lfu { .. });
        let bits = match (is_lfu, idle_seconds, frequency) {
            (true, _, Some(frequency)) => minutes(now) << 8 | u32::from(frequency),
            (false, Some(idle), _) => {
                ((now.0 / 1000).wrapping_sub(idle.min(CLOCK_MASK / 2)) & CLOCK_MASK) as u32
            }
            _ => return,
        };
        entry.set_access_clock(AccessClock::new(bits));
    }

    #[cold]
    fn begin_lfu_or_change(&self, entry: EntryRef<'_>, now: Millis) {
        match self.policy() {
            AccessPolicy::Lrm => self.note_time(entry, now),
            _ => entry.set_access_clock(AccessClock::new(minutes(now) << 8 | LFU_START)),
        }
    }

    #[cold]
    fn note_lfu_or_change(&self, entry: EntryRef<'_>, now: Millis) {
        match self.policy() {
            AccessPolicy::Lrm => self.note_time(entry, now),
            _ => self.note_lfu(entry, now),
        }
    }

    #[cold]
    fn note_lfu(&self, entry: EntryRef<'_>, now: Millis) {
        let AccessPolicy::Lfu { log_factor, .. } = self.policy() else { return };
        let counter = self.frequency(entry, now);
        // The chance to grow is 1 in (counter − start) × factor + 1. The key's bits and the time are random
        // enough for that.
        let mixed = (now.0 ^ entry.key().as_ptr().addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let odds = u64::from(counter.saturating_sub(LFU_START)) * u64::from(log_factor) + 1;
        let grown = (counter < 255 && mixed.is_multiple_of(odds)) as u32;
        entry.set_access_clock(AccessClock::new(minutes(now) << 8 | (counter + grown)));
    }

    /// The logarithmic frequency of an entry's use, decayed up to now. Under LFU only.
    pub fn frequency(&self, entry: EntryRef<'_>, now: Millis) -> u32 {
        let AccessPolicy::Lfu { decay_minutes, .. } = self.policy() else { return 0 };
        let bits = entry.access_clock().bits();
        let passed = passed(minutes(now), bits >> 8, 0xffff);
        let decayed = passed.checked_div(decay_minutes).unwrap_or(0);
        (bits & 0xff).saturating_sub(decayed)
    }
}

/// The seconds since an entry was last used, under an LRU policy. The clock wraps after 194 days, and the
/// function returns half as much at most.
pub fn idle_seconds(entry: EntryRef<'_>, now: Millis) -> u64 {
    let seconds = ((now.0 / 1000) & CLOCK_MASK) as u32;
    u64::from(passed(seconds, entry.access_clock().bits(), CLOCK_MASK as u32))
}

/// The time since `then` by a clock that wraps at `mask`. None where `then` is ahead because the system's
/// clock was set back: a key that was used just before must not count as idle for the longest.
fn passed(now: u32, then: u32, mask: u32) -> u32 {
    let passed = now.wrapping_sub(then) & mask;
    if passed > mask / 2 { 0 } else { passed }
}

fn minutes(now: Millis) -> u32 {
    ((now.0 / 60_000) & 0xffff) as u32
}
