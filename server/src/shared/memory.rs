//! How much memory is in use, and how much may be: `maxmemory`.
//!
//! All that is allocated is counted by the allocator, to 64 KiB a thread; less what only waits to be freed,
//! that is the memory in use. It is of three classes:
//!
//! - *Data*: tables, entries and what belongs to them, as the tables count it. Eviction can free it, and only
//!   this.
//! - *Clients'*: what is in their [footprints](crate::client::footprint). Their own limits end it.
//! - *The server's own*: all the rest. What makes it has limits of its own.
//!
//! Against the limit counts the data, what clients are sending that is about to be data, and of the rest as
//! much as there was when the limit was set, or at the start, and a little more: so what is in use ends where
//! the limit says, as long as nothing but data grows. What grows beyond that is no reason to evict. To remove
//! keys would not end it, and it is others' keys that would go.
//!
//! The limit is one of *resident* memory: what the allocator needs beside what it was asked for is taken off
//! it. Of that overhead some is free, as a small limit would not be kept by any process; it counts at once
//! when it grows and slowly less when it shrinks, and not more of it than 30 % of the limit: half of the data
//! is not thrown away for a heap full of holes. While there is more than is free, large blocks are given back
//! to the system as soon as they are freed, and it gives no huge pages.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::process::huge_pages;

/// The part of the limit, in percent, that the overhead takes at most.
const OVERHEAD_MAX_PERCENT: u64 = 30;

/// The part of the limit, the least and the most, that is left for what commands take while they run: INFO
/// takes some 4 KiB, and tables that grow give up structure in blocks of 2 KiB.
const MARGIN_PART: u64 = 1024;
const MARGIN_MIN_BYTES: u64 = 6 << 10;
const MARGIN_MAX_BYTES: u64 = 64 << 10;

/// So much of it counts for nothing under a small limit, which is one of what is in use; less by a part of
/// the limit, down to another.
const OVERHEAD_FREE_BYTES: u64 = 12 << 20;
const OVERHEAD_FREE_LESS_PART: u64 = 16;
const OVERHEAD_FREE_PART: u64 = 200;

/// So much of it is none.
const OVERHEAD_LITTLE_BYTES: u64 = 64 << 10;

/// The data from which on memory is in huge pages. Random access to it costs less then, but they are resident
/// as soon as a part is: a server with next to no data would be three times as large, and one with 40 MiB by
/// 5 to 20 %, depending on how it was loaded.
const HUGE_PAGES_FROM_BYTES: u64 = 64 << 20;

/// So much more than when the limit was set counts against it of what is no data: connections, and room that
/// threads keep.
const OWN_COUNTED_BYTES: u64 = 256 << 10;

/// Of that what the server itself takes counts at once up to this. All else must last for so many spans of
/// time: what clients are told of keys that are evicted would have more of them evicted.
const OWN_AT_ONCE_BYTES: u64 = 32 << 10;
const OWN_LASTS_SPANS: u64 = 3;

/// For how long what is freed may stay resident without being overhead: the allocator gives pages back after
/// a second. Were it overhead at once, each eviction would be a reason for the next, down to the most that
/// counts. In spans of a tenth of that.
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
    /// What was resident when the process began to serve and is not counted: code, stacks, the allocator's
    /// own.
    base: AtomicU64,
    /// Allocated bytes of late.
    allocated: Lately,
    /// Bytes in use of late by the server itself, and by its clients.
    own: Lately,
    of_clients: Lately,
    /// Bytes of both when the limit was set, or at the start; and those that count against it.
    own_at_first: AtomicU64,
    counted_own: AtomicU64,
    /// The most that was in use under this limit that is no data.
    own_peak: AtomicU64,
    /// Bytes of long commands that clients are sending: they are about to be data.
    incoming: AtomicU64,
    /// How much is resident beside what is counted, apart from that.
    overhead: AtomicU64,
    /// `maxmemory`, or 0 for none. Whoever measures has read the rest a while before it writes that: were
    /// this part of it, a limit that is no more could come back.
    limit: AtomicU64,
    /// Since when too much has been in use and was not removed in time, in microseconds from the start on, or
    /// 0; and for how long it was so before that.
    exceeded_since: AtomicU64,
    exceeded_micros: AtomicU64,
    /// The system gives huge pages: not at the start, see [`Memory::without_huge_pages`].
    has_huge_pages: Flag,
    /// What had been written to before was put into them.
    is_collapsed: AtomicBool,
    /// Too much was in use, and nothing could be evicted, when somebody last tried.
    pub is_exhausted: Flag,
}

/// A number's extremes in each of the last spans of time.
#[derive(Default)]
struct Lately([Span; N_SPANS]);

/// A span of time. They are numbered from the start on.
#[derive(Default)]
struct Span {
    number: AtomicU64,
    most: AtomicU64,
    least: AtomicU64,
}

impl Lately {
    /// Notes what it is now; gives the number of the span. Two threads that note it at once may lose one of
    /// the two.
    fn note(&self, value: u64, uptime: Duration) -> u64 {
        // Those that have not been yet have the number 0.
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

    /// The spans up to one, so many of them.
    fn until(&self, number: u64, n_spans: u64) -> impl Iterator<Item = &Span> {
        self.0.iter().filter(move |span| {
            let at = span.number.load(Ordering::Relaxed);
            at > 0 && at + n_spans > number
        })
    }

    /// Notes what it is; returns the most that it was in the last second.
    fn most(&self, value: u64, uptime: Duration) -> u64 {
        let recent = self.until(self.note(value, uptime), N_SPANS as u64);
        recent.map(|span| span.most.load(Ordering::Relaxed)).max().unwrap_or(value)
    }

    /// Notes what it is; returns the least that it was in so many spans.
    fn least(&self, value: u64, uptime: Duration, n_spans: u64) -> u64 {
        let recent = self.until(self.note(value, uptime), n_spans);
        recent.map(|span| span.least.load(Ordering::Relaxed)).min().unwrap_or(value)
    }

    /// Forgets what it was.
    fn restart(&self) {
        self.0.iter().for_each(|span| span.number.store(0, Ordering::Relaxed));
    }
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

    /// Returns the bytes in use that are no data.
    fn own() -> u64 {
        Self::used().saturating_sub(braid_storage::data_bytes())
    }

    /// Returns the bytes in use that do not count against the limit. Without a limit there are none: all of
    /// them would count if one were set.
    pub fn uncounted(&self) -> u64 {
        if self.limit.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let counted = self.counted_own.load(Ordering::Relaxed) + self.incoming.load(Ordering::Relaxed);
        Self::own().saturating_sub(counted)
    }

    /// Notes what is in use when the process begins to serve.
    pub fn begin(&self, resident: u64) {
        let allocated = braid_storage::allocated_bytes();
        self.startup.store(allocated, Ordering::Relaxed);
        self.own_at_first.store(Self::own(), Ordering::Relaxed);
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
        let limit = limit.unwrap_or(0);
        if self.limit.swap(limit, Ordering::Relaxed) != limit {
            // It was chosen by what is in use now.
            self.own_at_first.fetch_max(Self::own(), Ordering::Relaxed);
            self.own.restart();
            self.of_clients.restart();
            self.own_peak.store(0, Ordering::Relaxed);
        }
    }

    /// How much data there may be; less than nothing where all else takes more than the limit.
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

    /// How much more may be in use; less than nothing if too much is.
    pub fn room(&self) -> i64 {
        self.data_limit().saturating_sub_unsigned(braid_storage::data_bytes())
    }

    /// Whether commands that need memory are refused. What was found when somebody last tried to evict may be
    /// over, so that does not suffice.
    #[inline(always)]
    pub fn is_short(&self) -> bool {
        self.is_exhausted.get() && self.room() < 0
    }

    /// Notes that clients are sending more of what is about to be data, or less: `before` bytes have become
    /// `after`.
    pub fn note_incoming(&self, before: u64, after: u64) {
        self.incoming.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        self.tell_allocator();
    }

    /// Has the allocator know how much data there may be.
    fn tell_allocator(&self) {
        let limit = self.limit.load(Ordering::Relaxed);
        braid_storage::set_limit((limit != 0).then_some(limit), self.data_limit());
    }

    /// Looks at how much is in use.
    pub fn measure(&self, of_clients: u64, resident: impl FnOnce() -> u64, uptime: Duration) {
        self.peak.fetch_max(Self::used(), Ordering::Relaxed);
        match self.limit.load(Ordering::Relaxed) {
            0 => {
                braid_storage::return_large_blocks(false);
                self.choose_pages(0);
            }
            limit => {
                self.note_own(of_clients, uptime);
                // The room of a long request may have come and gone between two looks.
                let lately = self.allocated.most(braid_storage::take_most_allocated(), uptime);
                // The holes that this has left are no more a reason to evict than it was.
                let left = self.own_peak.load(Ordering::Relaxed).saturating_sub(Self::own());
                let resident = resident();
                let now = self.note_overhead(resident.saturating_sub(lately + left), limit);
                braid_storage::return_large_blocks(now > 0 || resident > limit);
                self.choose_pages(self.overhead.load(Ordering::Relaxed));
            }
        }
        self.tell_allocator();
        if self.room() >= 0 {
            self.is_exhausted.set(false);
        }
    }

    /// Notes how much of what is in use is no data, and finds what of that counts.
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

    /// Notes how much is resident and not counted; gives how much of that is overhead now under a limit.
    fn note_overhead(&self, beside: u64, limit: u64) -> u64 {
        let less = limit / OVERHEAD_FREE_LESS_PART;
        let free = OVERHEAD_FREE_BYTES.saturating_sub(less).max(limit / OVERHEAD_FREE_PART);
        let now = beside.saturating_sub(self.base.load(Ordering::Relaxed) + free);
        let before = self.overhead.load(Ordering::Relaxed);
        self.overhead.store(now.max(before - before / FALLS_BY), Ordering::Relaxed);
        now
    }

    /// Has the system give huge pages where there is much data and little overhead: each is 2 MiB at once,
    /// for whatever is written first.
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
