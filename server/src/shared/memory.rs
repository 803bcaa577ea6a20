//! The memory in use, and its limit: `maxmemory`.
//!
//! The allocator counts everything that is allocated, to 64 KiB a thread. The memory in use is that, less the
//! garbage that only waits to be freed. It has three classes:
//!
//! - *Data*: tables, entries and their parts, as the tables count them. Eviction can free data, and nothing
//!   else.
//! - *Clients'* memory: everything in their [footprints](crate::client::footprint). It has limits of its own.
//! - *The server's own* memory: everything else. Each of its sources has a limit of its own.
//!
//! Three things count against the limit: the data, input that clients are sending and that will become data,
//! and a part of the rest. That part is the rest at the time when the limit was set, or at the start, and a
//! little more. So memory use ends at the limit as long as only data grows. Growth of the rest beyond that is
//! no reason to evict. Removing keys would not end it, and other clients' keys would be lost.
//!
//! The limit is one of *resident* memory: the allocator's overhead beyond its requests is subtracted from it.
//! Some of that overhead is free, because no process could keep a small limit otherwise. The overhead counts
//! at once when it grows, and its count falls slowly when it shrinks. At most 30 % of the limit counts as
//! overhead: half of the data is not evicted for a heap full of holes. While there is more than the free
//! part, large blocks are returned to the system as soon as they are freed. The system gives no huge pages
//! then.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use braid_storage::memory::{allocator, reclaim};

use crate::{clock::Instant, process::huge_pages};

/// The part of the limit, in percent, that the overhead uses at most.
const OVERHEAD_MAX_PERCENT: u64 = 30;

/// The part of the limit that is left for running commands, with its bounds.
///
/// INFO needs about 4 KiB, and growing tables give up structure in blocks of 2 KiB.
const MARGIN_PART: u64 = 1024;
const MARGIN_MIN_BYTES: u64 = 6 << 10;
const MARGIN_MAX_BYTES: u64 = 64 << 10;

/// The overhead that is free under a small limit.
///
/// It decreases by a part of the limit, down to another part of it.
const OVERHEAD_FREE_BYTES: u64 = 12 << 20;
const OVERHEAD_FREE_LESS_PART: u64 = 16;
const OVERHEAD_FREE_PART: u64 = 200;

/// The overhead up to which huge pages are used.
const OVERHEAD_LITTLE_BYTES: u64 = 64 << 10;

/// The amount of data from which memory is in huge pages.
///
/// Random access to it costs less then, but a huge page is resident as soon as a part of it is. A server with
/// next to no data would be three times as large. One with 40 MiB would be 5 to 20 % larger, depending on how
/// it was loaded.
const HUGE_PAGES_FROM_BYTES: u64 = 64 << 20;

/// The growth of other memory since the limit was set that counts against it.
///
/// Such memory is in connections, and in space that threads keep.
const OWN_COUNTED_BYTES: u64 = 256 << 10;

/// The growth of the server's own memory that counts at once.
///
/// All other growth must last for `OWN_LASTS_SPANS` spans. Otherwise notifications about evicted keys would
/// cause more evictions.
const OWN_AT_ONCE_BYTES: u64 = 32 << 10;
const OWN_LASTS_SPANS: u64 = 3;

/// The number of spans for which freed memory may stay resident without being overhead.
///
/// The allocator returns pages after a second. If they were overhead at once, each eviction would cause the
/// next one, down to the maximum that counts. A span is a tenth of a second.
const N_SPANS: usize = 12;
const SPAN_MILLIS: u64 = 100;

/// The part by which the counted overhead falls at most between two measurements.
const FALLS_BY: u64 = 48;

/// The measurements of the process's memory, in bytes.
#[derive(Default)]
pub struct Memory {
    /// The memory in use when the process began to serve.
    pub startup: AtomicU64,
    /// The maximum of memory in use at a measurement.
    pub peak: AtomicU64,
    /// The time of that measurement, in seconds of uptime.
    pub peak_at: AtomicU64,
    /// The resident memory that is not counted when the process begins to serve. It is code, stacks and the
    /// allocator's own.
    base: AtomicU64,
    /// The allocated bytes of the last spans.
    allocated: Lately,
    /// The bytes of the server itself, and of its clients, in the last spans.
    own: Lately,
    of_clients: Lately,
    /// The bytes of both when the limit was set, or at the start. `counted_own` are those that count against
    /// it.
    own_at_first: AtomicU64,
    counted_own: AtomicU64,
    /// The maximum of memory in use under this limit that is not data.
    own_peak: AtomicU64,
    /// The bytes of long commands that clients are sending. They will become data.
    incoming: AtomicU64,
    /// The resident memory beyond the counted memory, without the free part.
    overhead: AtomicU64,
    /// `maxmemory`, or 0 for none. A measuring thread has read the other numbers some time before it writes
    /// them. If the limit were one of them, a removed limit could come back.
    limit: AtomicU64,
    /// The start of the current excess of memory, in microseconds since the start, or 0. The excess was not
    /// freed in time. `exceeded_micros` is the total of earlier such times.
    exceeded_since: AtomicU64,
    exceeded_micros: AtomicU64,
    /// Whether the system gives huge pages. It does not at the start; see [`Memory::without_huge_pages`].
    has_huge_pages: Flag,
    /// Whether memory written before was moved into huge pages.
    is_collapsed: AtomicBool,
    /// Whether too much memory was in use at the last attempt, and nothing could be evicted.
    pub is_exhausted: Flag,
}

/// A number's extremes in each of the last spans of time.
#[derive(Default)]
struct Lately([Interval; N_SPANS]);

/// A span of time. Spans are numbered from the start on.
#[derive(Default)]
struct Interval {
    number: AtomicU64,
    most: AtomicU64,
    least: AtomicU64,
}

impl Lately {
    /// Records the current value, and returns the number of the span. If two threads record at once, one
    /// value may be lost.
    fn note(&self, value: u64, uptime: Duration) -> u64 {
        // Unused spans have the number 0.
        let number = 1 + uptime.as_millis() as u64 / SPAN_MILLIS;
        let span = &self.0[number as usize % N_SPANS];
        if span.number.swap(number, Ordering::Relaxed) == number {
            span.most.fetch_max(value, Ordering::Relaxed);
            span.least.fetch_min(value, Ordering::Relaxed);
        } else {
            span.most.store(value, Ordering::Relaxed);
            span.least.store(value, Ordering::Relaxed);
        }
        number
    }

    /// Returns the last `n_spans` spans up to `number`.
    fn until(&self, number: u64, n_spans: u64) -> impl Iterator<Item = &Interval> {
        self.0.iter().filter(move |span| {
            let at = span.number.load(Ordering::Relaxed);
            at > 0 && at + n_spans > number
        })
    }

    /// Records the current value, and returns the maximum of the last second.
    fn most(&self, value: u64, uptime: Duration) -> u64 {
        let recent = self.until(self.note(value, uptime), N_SPANS as u64);
        recent.map(|span| span.most.load(Ordering::Relaxed)).max().unwrap_or(value)
    }

    /// Records the current value, and returns the minimum of the last `n_spans` spans.
    fn least(&self, value: u64, uptime: Duration, n_spans: u64) -> u64 {
        let recent = self.until(self.note(value, uptime), n_spans);
        recent.map(|span| span.least.load(Ordering::Relaxed)).min().unwrap_or(value)
    }

    /// Forgets the earlier values.
    fn restart(&self) {
        self.0.iter().for_each(|span| span.number.store(0, Ordering::Relaxed));
    }
}

/// A flag that changes rarely. All threads read it.
#[derive(Default)]
pub struct Flag(AtomicBool);

impl Flag {
    /// Whether the flag is set.
    #[inline(always)]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets or clears the flag. It writes only if that is a change.
    pub fn set(&self, holds: bool) {
        if self.get() != holds {
            self.0.store(holds, Ordering::Relaxed);
        }
    }
}

/// Returns the process's resident memory; 0 where the system does not report it.
pub fn resident_bytes() -> u64 {
    let numbers = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = numbers.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or_default() * rustix::param::page_size() as u64
}

impl Memory {
    /// Makes the system give no huge pages while there is little data.
    pub fn without_huge_pages() {
        // A system without them is no worse off.
        let _: Result<(), rustix::io::Errno> = rustix::thread::disable_transparent_huge_pages(true);
    }

    /// The memory in use.
    pub fn used() -> u64 {
        allocator::allocated_bytes().saturating_sub(reclaim::garbage_bytes())
    }

    /// Returns the bytes in use that are not data.
    fn own() -> u64 {
        Self::used().saturating_sub(allocator::data_bytes())
    }

    /// Returns the bytes in use that do not count against the limit.
    ///
    /// Without a limit there are none: all of them would count if a limit were set.
    pub fn uncounted(&self) -> u64 {
        if self.limit.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let counted = self.counted_own.load(Ordering::Relaxed) + self.incoming.load(Ordering::Relaxed);
        Self::own().saturating_sub(counted)
    }

    /// Records the memory in use when the process begins to serve.
    pub fn begin(&self, resident: u64) {
        let allocated = allocator::allocated_bytes();
        self.startup.store(allocated, Ordering::Relaxed);
        self.own_at_first.store(Self::own(), Ordering::Relaxed);
        self.base.store(resident.saturating_sub(allocated), Ordering::Relaxed);
    }

    /// Records whether too much memory is in use after a turn of eviction.
    pub fn note_exceeding(&self, is_exceeded: bool, started: Instant) {
        let since = self.exceeded_since.load(Ordering::Relaxed);
        if is_exceeded == (since != 0) {
            return;
        }
        let now = started.elapsed().as_micros() as u64;
        let then = if is_exceeded { now.max(1) } else { 0 };
        // If several threads get here, one counts.
        let is_first =
            self.exceeded_since.compare_exchange(since, then, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_first && !is_exceeded {
            self.exceeded_micros.fetch_add(now.saturating_sub(since), Ordering::Relaxed);
        }
    }

    /// The time for which too much memory has been in use, now and in total.
    pub fn exceeded(&self, started: Instant) -> [Duration; 2] {
        let since = self.exceeded_since.load(Ordering::Relaxed);
        let now = if since == 0 { 0 } else { (started.elapsed().as_micros() as u64).saturating_sub(since) };
        let all = self.exceeded_micros.load(Ordering::Relaxed) + now;
        [now, all].map(Duration::from_micros)
    }

    /// Sets `maxmemory`, which applies to all checks from now on.
    pub fn set_limit(&self, limit: Option<u64>) {
        let limit = limit.unwrap_or(0);
        if self.limit.swap(limit, Ordering::Relaxed) != limit {
            // The limit was chosen in view of the memory in use now.
            self.own_at_first.fetch_max(Self::own(), Ordering::Relaxed);
            self.own.restart();
            self.of_clients.restart();
            self.own_peak.store(0, Ordering::Relaxed);
        }
    }

    /// The maximum amount of data; negative where everything else exceeds the limit.
    fn data_limit(&self) -> i64 {
        match self.limit.load(Ordering::Relaxed) {
            0 => i64::MAX,
            limit => {
                let overhead = self.overhead.load(Ordering::Relaxed).min(limit / 100 * OVERHEAD_MAX_PERCENT);
                let margin = (limit / MARGIN_PART).clamp(MARGIN_MIN_BYTES, MARGIN_MAX_BYTES);
                let target = i64::try_from(limit.saturating_sub(overhead + margin)).unwrap_or(i64::MAX);
                let own = self.counted_own.load(Ordering::Relaxed) + self.incoming.load(Ordering::Relaxed);
                target.saturating_sub_unsigned(own)
            }
        }
    }

    /// The memory that may still be used; negative if too much is in use.
    pub fn room(&self) -> i64 {
        self.data_limit().saturating_sub_unsigned(allocator::data_bytes())
    }

    /// Whether commands that need memory are refused.
    ///
    /// The result of the last attempt to evict may be out of date, so it does not suffice.
    #[inline(always)]
    pub fn is_short(&self) -> bool {
        self.is_exhausted.get() && self.room() < 0
    }

    /// Records a change of the bytes that clients are sending as future data.
    ///
    /// They have changed from `before` to `after`.
    pub fn note_incoming(&self, before: u64, after: u64) {
        self.incoming.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        self.tell_allocator();
    }

    /// Tells the allocator how much data there may be.
    fn tell_allocator(&self) {
        let limit = self.limit.load(Ordering::Relaxed);
        allocator::set_limit((limit != 0).then_some(limit), self.data_limit());
    }

    /// Measures the memory in use.
    pub fn measure(&self, of_clients: u64, resident: impl FnOnce() -> u64, uptime: Duration) {
        let used = Self::used();
        if self.peak.fetch_max(used, Ordering::Relaxed) < used {
            self.peak_at.store(uptime.as_secs(), Ordering::Relaxed);
        }
        match self.limit.load(Ordering::Relaxed) {
            0 => {
                allocator::return_large_blocks(false);
                self.choose_pages(0);
            }
            limit => {
                self.note_own(of_clients, uptime);
                // The room of a long request may have come and gone between two measurements.
                let lately = self.allocated.most(allocator::take_most_allocated(), uptime);
                // The holes that this has left are no more reason to evict than the memory itself was.
                let left = self.own_peak.load(Ordering::Relaxed).saturating_sub(Self::own());
                let resident = resident();
                let now = self.note_overhead(resident.saturating_sub(lately + left), limit);
                allocator::return_large_blocks(now > 0 || resident > limit);
                self.choose_pages(self.overhead.load(Ordering::Relaxed));
            }
        }
        self.tell_allocator();
        if self.room() >= 0 {
            self.is_exhausted.set(false);
        }
    }

    /// Records the memory in use that is not data, and computes its counted part.
    fn note_own(&self, of_clients: u64, uptime: Duration) {
        let own = Self::own();
        self.own_peak.fetch_max(own, Ordering::Relaxed);
        let now = own.saturating_sub(of_clients);
        let lasting = self.own.least(now, uptime, OWN_LASTS_SPANS);
        let of_clients = self.of_clients.least(of_clients, uptime, OWN_LASTS_SPANS);
        let most = self.own_at_first.load(Ordering::Relaxed) + OWN_COUNTED_BYTES;
        let counted = now.min(lasting + OWN_AT_ONCE_BYTES) + of_clients;
        self.counted_own.store(counted.min(most), Ordering::Relaxed);
    }

    /// Records the resident memory that is not counted. Returns the part that is overhead now under a limit.
    fn note_overhead(&self, beside: u64, limit: u64) -> u64 {
        let less = limit / OVERHEAD_FREE_LESS_PART;
        let free = OVERHEAD_FREE_BYTES.saturating_sub(less).max(limit / OVERHEAD_FREE_PART);
        let now = beside.saturating_sub(self.base.load(Ordering::Relaxed) + free);
        let before = self.overhead.load(Ordering::Relaxed);
        self.overhead.store(now.max(before - before / FALLS_BY), Ordering::Relaxed);
        now
    }

    /// Makes the system give huge pages where there is much data and little overhead. Each is 2 MiB at once,
    /// whatever is written first.
    fn choose_pages(&self, overhead: u64) {
        let are_huge =
            self.peak.load(Ordering::Relaxed) >= HUGE_PAGES_FROM_BYTES && overhead <= OVERHEAD_LITTLE_BYTES;
        if self.has_huge_pages.get() == are_huge {
            return;
        }
        self.has_huge_pages.set(are_huge);
        // The server does without anything that the kernel or container forbids.
        let is_allowed = rustix::thread::disable_transparent_huge_pages(!are_huge).is_ok();
        if is_allowed && are_huge && !self.is_collapsed.swap(true, Ordering::Relaxed) {
            let collapse = || drop(huge_pages::collapse());
            let _: io::Result<_> = thread::Builder::new().name("huge-pages".to_owned()).spawn(collapse);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_freed_lately_is_no_overhead() {
        let memory = Memory::default();
        let most = |allocated, millis| memory.allocated.most(allocated, Duration::from_millis(millis));
        assert_eq!(most(500, 0), 500);
        assert_eq!(most(900, 50), 900);
        assert_eq!(most(700, 60), 900);
        assert_eq!(most(600, 700), 900);
        assert_eq!(most(600, 1150), 900);
        assert_eq!(most(600, 1250), 600, "a second is over");
        assert_eq!(most(1000, 1260), 1000, "what is new counts at once");
        assert_eq!(most(10, 60_000), 10);
    }

    #[test]
    fn what_is_over_in_a_moment_does_not_count() {
        let own = Lately::default();
        let least = |own_bytes, millis| own.least(own_bytes, Duration::from_millis(millis), OWN_LASTS_SPANS);
        assert_eq!(least(500, 0), 500);
        assert_eq!(least(900, 100), 500);
        assert_eq!(least(800, 299), 500);
        assert_eq!(least(900, 301), 800, "it lasts");
        assert_eq!(least(100, 302), 100, "less counts at once");
        own.restart();
        assert_eq!(least(700, 303), 700);
    }

    #[test]
    fn a_limit_that_is_no_more_does_not_come_back() {
        const LIMIT: u64 = 1 << 30;
        let memory = Memory::default();
        let unlimited = memory.room();
        memory.set_limit(Some(LIMIT));
        // Like a thread that begins to measure under the old limit, and ends after the new one was set.
        let mut n_looks = 0;
        let resident = || {
            n_looks += 1;
            memory.set_limit(None);
            1 << 40
        };
        memory.measure(0, resident, Duration::ZERO);
        assert_eq!((n_looks, memory.room()), (1, unlimited));
        // A thread that found nothing to evict under it does not bring it back either.
        memory.is_exhausted.set(true);
        assert!(!memory.is_short());
        memory.set_limit(Some(LIMIT));
        assert!(memory.room() < LIMIT.cast_signed(), "a new one holds at once");
    }

    #[test]
    fn the_largest_limit_is_none() {
        let memory = Memory::default();
        let unlimited = memory.room();
        memory.set_limit(Some(u64::MAX));
        assert_eq!(memory.room(), unlimited);
    }

    #[test]
    fn the_overhead_rises_at_once_and_falls_slowly() {
        let memory = Memory::default();
        memory.base.store(1000, Ordering::Relaxed);
        let note = |beside| {
            memory.note_overhead(beside, 0);
            memory.overhead.load(Ordering::Relaxed)
        };
        assert_eq!(note(500), 0, "less than at the start");
        assert_eq!(note(1000 + OVERHEAD_FREE_BYTES), 0, "little");
        assert_eq!(note(17_000 + OVERHEAD_FREE_BYTES), 16_000);
        assert_eq!(note(1000), 16_000 - 16_000 / FALLS_BY);
        let later = (0..600).fold(0, |_, _| note(1000));
        assert!(later < 100);
    }

    #[test]
    fn what_is_free_of_it_is_enough_to_stay_near_the_limit() {
        let free = |limit_mib: u64| {
            let beside = 1 << 40;
            (beside - Memory::default().note_overhead(beside, limit_mib << 20)) as f64 / f64::from(1 << 20)
        };
        assert_eq!([0, 64, 160, 200, 400, 10_000].map(free), [12.0, 8.0, 2.0, 1.0, 2.0, 50.0]);
    }
}
