//! How much memory is in use, and how much may be: `maxmemory`.
//!
//! What is allocated is counted by the allocator, to 64 KiB a thread; less what only waits to be freed, that is the memory in use. The
//! limit is one of *resident* memory: what the allocator needs beside what it was asked for is taken off it, so that the process stays
//! near it. Of that overhead some is free, as a small limit would not be kept by any process; it counts at once when it grows and slowly
//! less when it shrinks, and not more of it than 30 % of the limit: half of the data is not thrown away for a heap full of holes. While
//! there is more than is free, large blocks are given back to the system as soon as they are freed, and it gives no huge pages.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::huge_pages;

/// The part of the limit, in percent, that the overhead takes at most.
const OVERHEAD_MAX_PERCENT: u64 = 30;

/// The part of the limit, and the most, that is left for what commands take while they run.
const MARGIN_PART: u64 = 1024;
const MARGIN_MAX_BYTES: u64 = 64 << 10;

/// So much of it counts for nothing under a small limit, which is one of what is in use; less by a part of the limit, down to another.
const OVERHEAD_FREE_BYTES: u64 = 12 << 20;
const OVERHEAD_FREE_LESS_PART: u64 = 16;
const OVERHEAD_FREE_PART: u64 = 200;

/// So much of it is none.
const OVERHEAD_LITTLE_BYTES: u64 = 64 << 10;

/// The data from which on memory is in huge pages. Random access to it costs less then, but
/// they are resident as soon as a part is: a server with next to no data would be three times as large, and one with 40 MiB
/// by 5 to 20 %, depending on how it was loaded.
const HUGE_PAGES_FROM_BYTES: u64 = 64 << 20;

/// For how long what is freed may stay resident without being overhead: the allocator gives pages back after a second. Were it overhead at
/// once, each eviction would be a reason for the next, down to the most that counts. In spans of a tenth of that.
const N_SPANS: usize = 12;
const SPAN_MILLIS: u64 = 100;

/// By what part it falls at most between two looks.
const FALLS_BY: u64 = 48;

/// What is known of the process's memory. Numbers of bytes.
#[derive(Default)]
pub struct Memory {
    /// What was in use when the process began to serve.
    pub startup: AtomicU64,
    /// The most that was in use at a look.
    pub peak: AtomicU64,
    /// What was resident when the process began to serve and is not counted: code, stacks, the allocator's own.
    base: AtomicU64,
    /// The most that was allocated in each of the last spans, which are numbered from the start on: the number and the bytes.
    spans: [Span; N_SPANS],
    /// How much is resident beside what is counted, apart from that.
    overhead: AtomicU64,
    /// `maxmemory`, or 0 for none. Whoever measures has read the rest a while before it writes that: were this part of it, a limit that is
    /// no more could come back.
    limit: AtomicU64,
    /// What waits to be logged.
    waiting: AtomicU64,
    /// Since when too much has been in use and was not removed in time, in microseconds from the start on, or 0; and for how long it was
    /// so before that.
    exceeded_since: AtomicU64,
    exceeded_micros: AtomicU64,
    /// The system gives huge pages: not at the start, see [`Memory::without_huge_pages`].
    has_huge_pages: Flag,
    /// What had been written to before was put into them.
    is_collapsed: AtomicBool,
    /// Too much was in use, and nothing could be evicted, when somebody last tried.
    pub is_exhausted: Flag,
}

/// A span of time.
#[derive(Default)]
struct Span {
    number: AtomicU64,
    most_bytes: AtomicU64,
}

/// Something that holds or does not, mostly for long. All threads read it.
#[derive(Default)]
pub struct Flag(AtomicBool);

impl Flag {
    /// Whether it holds.
    #[inline(always)]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes whether it holds; writes only if that is new.
    pub fn set(&self, holds: bool) {
        if self.get() != holds {
            self.0.store(holds, Ordering::Relaxed);
        }
    }
}

/// The process's resident memory; nothing where the system does not tell.
pub fn resident_bytes() -> u64 {
    let numbers = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = numbers.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or_default() * rustix::param::page_size() as u64
}

impl Memory {
    /// Has the system give no huge pages, as long as there is little data.
    pub fn without_huge_pages() {
        // A system that has none is no worse off.
        let _: Result<(), rustix::io::Errno> = rustix::thread::disable_transparent_huge_pages(true);
    }

    /// The memory in use.
    pub fn used() -> u64 {
        braid_storage::allocated_bytes().saturating_sub(braid_storage::garbage_bytes())
    }

    /// Notes what is in use when the process begins to serve.
    pub fn begin(&self, resident: u64) {
        let allocated = braid_storage::allocated_bytes();
        self.startup.store(allocated, Ordering::Relaxed);
        self.base.store(resident.saturating_sub(allocated), Ordering::Relaxed);
    }

    /// Notes whether too much is in use at the end of a turn of eviction.
    pub fn note_exceeding(&self, is_exceeded: bool, started: Instant) {
        let since = self.exceeded_since.load(Ordering::Relaxed);
        if is_exceeded == (since != 0) {
            return;
        }
        let now = started.elapsed().as_micros() as u64;
        let then = if is_exceeded { now.max(1) } else { 0 };
        // Of several threads one counts.
        let is_first =
            self.exceeded_since.compare_exchange(since, then, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_first && !is_exceeded {
            self.exceeded_micros.fetch_add(now.saturating_sub(since), Ordering::Relaxed);
        }
    }

    /// For how long too much has been in use, now and in all.
    pub fn exceeded(&self, started: Instant) -> [Duration; 2] {
        let since = self.exceeded_since.load(Ordering::Relaxed);
        let now = if since == 0 { 0 } else { (started.elapsed().as_micros() as u64).saturating_sub(since) };
        let all = self.exceeded_micros.load(Ordering::Relaxed) + now;
        [now, all].map(Duration::from_micros)
    }

    /// Sets `maxmemory`; it holds for whoever asks from now on.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.limit.store(limit.unwrap_or(0), Ordering::Relaxed);
    }

    /// How much may be in use: 2^63 - 1 at most.
    fn target(&self) -> u64 {
        const UNLIMITED: u64 = i64::MAX as u64;
        match self.limit.load(Ordering::Relaxed) {
            0 => UNLIMITED,
            limit => {
                let overhead = self.overhead.load(Ordering::Relaxed).min(limit / 100 * OVERHEAD_MAX_PERCENT);
                let margin = (limit / MARGIN_PART).min(MARGIN_MAX_BYTES);
                let waiting = self.waiting.load(Ordering::Relaxed);
                (limit - overhead - margin).saturating_add(waiting).min(UNLIMITED)
            }
        }
    }

    /// How much more may be in use; less than nothing if too much is.
    pub fn room(&self) -> i64 {
        self.target().cast_signed().saturating_sub(Self::used().cast_signed())
    }

    /// Whether commands that need memory are refused. What was found when somebody last tried to evict may be over, so that does not suffice.
    #[inline(always)]
    pub fn is_short(&self) -> bool {
        self.is_exhausted.get() && self.room() < 0
    }

    /// Has so many bytes that wait to be logged be in use beside what may be: as in Redis they are no reason to evict, as they come with the
    /// writes that evict.
    pub fn allow(&self, waiting_bytes: u64) {
        self.waiting.store(waiting_bytes, Ordering::Relaxed);
        braid_storage::set_limit(self.target());
    }

    /// Looks at how much is in use.
    pub fn measure(&self, waiting_bytes: u64, resident: impl FnOnce() -> u64, uptime: Duration) {
        self.peak.fetch_max(Self::used(), Ordering::Relaxed);
        match self.limit.load(Ordering::Relaxed) {
            0 => {
                braid_storage::return_large_blocks(false);
                self.choose_pages(0);
            }
            limit => {
                let lately = self.most_of_late(braid_storage::allocated_bytes(), uptime);
                self.note_overhead(resident().saturating_sub(lately), limit);
            }
        }
        self.allow(waiting_bytes);
        if self.room() >= 0 {
            self.is_exhausted.set(false);
        }
    }

    /// Notes how much is allocated; returns the most that was in the last second. Two threads that note it at once may lose one of
    /// the two.
    fn most_of_late(&self, allocated: u64, uptime: Duration) -> u64 {
        // The first has no number of those that are there at the start.
        let number = 1 + uptime.as_millis() as u64 / SPAN_MILLIS;
        let span = &self.spans[number as usize % N_SPANS];
        if span.number.swap(number, Ordering::Relaxed) == number {
            span.most_bytes.fetch_max(allocated, Ordering::Relaxed);
        } else {
            span.most_bytes.store(allocated, Ordering::Relaxed);
        }
        let is_recent = |span: &&Span| span.number.load(Ordering::Relaxed) + N_SPANS as u64 > number;
        let recent = self.spans.iter().filter(is_recent);
        recent.map(|span| span.most_bytes.load(Ordering::Relaxed)).max().unwrap_or(allocated)
    }

    /// Notes how much is resident and not counted; gives how much of that is overhead under a limit.
    fn note_overhead(&self, beside: u64, limit: u64) -> u64 {
        let less = limit / OVERHEAD_FREE_LESS_PART;
        let free = OVERHEAD_FREE_BYTES.saturating_sub(less).max(limit / OVERHEAD_FREE_PART);
        let now = beside.saturating_sub(self.base.load(Ordering::Relaxed) + free);
        braid_storage::return_large_blocks(now > 0);
        let before = self.overhead.load(Ordering::Relaxed);
        let overhead = now.max(before - before / FALLS_BY);
        self.overhead.store(overhead, Ordering::Relaxed);
        self.choose_pages(overhead);
        overhead
    }

    /// Has the system give huge pages where there is much data and little overhead: each is 2 MiB at once, for whatever is written first.
    fn choose_pages(&self, overhead: u64) {
        let are_huge =
            self.peak.load(Ordering::Relaxed) >= HUGE_PAGES_FROM_BYTES && overhead <= OVERHEAD_LITTLE_BYTES;
        if self.has_huge_pages.get() == are_huge {
            return;
        }
        self.has_huge_pages.set(are_huge);
        // What kernel or container do not allow is done without.
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
        let most = |allocated, millis| memory.most_of_late(allocated, Duration::from_millis(millis));
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
    fn a_limit_that_is_no_more_does_not_come_back() {
        const LIMIT: u64 = 1 << 30;
        let memory = Memory::default();
        let unlimited = memory.room();
        memory.set_limit(Some(LIMIT));
        // As by a thread that begins to look under the old limit, and ends after the new one has come.
        let mut n_looks = 0;
        let resident = || {
            n_looks += 1;
            memory.set_limit(None);
            1 << 40
        };
        memory.measure(0, resident, Duration::ZERO);
        assert_eq!((n_looks, memory.room()), (1, unlimited));
        // Nor by one that found nothing to evict under it.
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
        let note = |beside| memory.note_overhead(beside, 0);
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
