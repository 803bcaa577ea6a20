//! The intake of the change stream: many threads add records, and one merges them.
//!
//! ```text
//! thread   builds a record in its own batch, under the holds of its unit, and takes a ticket:
//!          one addition to a word that only threads with a record write
//! publish  hands over the whole batch: one push for many records
//! pen      the thread that has it takes the published batches and orders the records by ticket
//! ```
//!
//! *Order.* A thread takes a ticket while it holds the shards that the record is about. So of two units that
//! share a shard, the later one has the larger ticket. The same holds for two units of which one ended before
//! the other began. The records in ticket order are therefore one possible order of execution.
//!
//! *No gaps.* A taken ticket is in some thread's batch, and nothing between taking it and storing it there
//! can fail. So the pen may stop at the first ticket that it does not find: that ticket will be published
//! soon.

use std::{
    mem,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use crossbeam_queue::{ArrayQueue, SegQueue};
use crossbeam_utils::CachePadded;

/// The number of a record. Numbers begin at 1 and have no gaps.
pub type Ticket = u64;

/// Empty batches that a thread keeps for reuse.
const SPARE_BATCHES: usize = 4;
/// The largest capacity of a batch that is kept for reuse, in bytes.
const KEPT_BYTES: usize = 256 << 10;
/// The length from which a record is long, in bytes.
///
/// A long record is not copied when it is merged. Nothing is added after it in its batch, because the batch's
/// capacity would double.
const LONG_BYTES: usize = 64 << 10;

/// The side of the change stream that receives records.
pub struct Intake {
    /// The next ticket to take.
    tickets: CachePadded<AtomicU64>,
    /// The published batches of each thread.
    lanes: Box<[CachePadded<Lane>]>,
}

struct Lane {
    full: SegQueue<Vec<u8>>,
    spare: ArrayQueue<Vec<u8>>,
    /// The capacity, in bytes, of the batches in `full` and of a partly merged one.
    unmerged_bytes: AtomicUsize,
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Commands.
    Commands {
        /// The database that must be selected before the first command.
        first_db: u32,
        /// The database that is selected after the last command.
        last_db: u32,
    },
    /// Commands that only [followers](crate::follower) get, and no file.
    ForFollowers,
    /// No commands: the stream is cut here for the file.
    Cut,
    /// No commands: a follower begins here.
    Mark,
}

/// The header of a record in a batch: its ticket, length and databases.
struct Head {
    ticket: Ticket,
    n_bytes: usize,
    kind: Kind,
}

impl Head {
    const BYTES: usize = 24;
    // These stand in place of a database.
    const CUT: u32 = u32::MAX;
    const MARK: u32 = u32::MAX - 1;
    const FOR_FOLLOWERS: u32 = u32::MAX - 2;

    fn write(&self, to: &mut [u8]) {
        let (first_db, last_db) = match self.kind {
            Kind::Commands { first_db, last_db } => (first_db, last_db),
            Kind::ForFollowers => (Self::FOR_FOLLOWERS, 0),
            Kind::Cut => (Self::CUT, 0),
            Kind::Mark => (Self::MARK, 0),
        };
        to[..8].copy_from_slice(&self.ticket.to_le_bytes());
        to[8..16].copy_from_slice(&(self.n_bytes as u64).to_le_bytes());
        to[16..20].copy_from_slice(&first_db.to_le_bytes());
        to[20..24].copy_from_slice(&last_db.to_le_bytes());
    }

    fn read(from: &[u8]) -> Self {
        let number = |at: usize| u64::from_le_bytes(from[at..at + 8].try_into().expect("eight bytes"));
        let database = |at: usize| u32::from_le_bytes(from[at..at + 4].try_into().expect("four bytes"));
        let kind = match (database(16), database(20)) {
            (Self::FOR_FOLLOWERS, _) => Kind::ForFollowers,
            (Self::CUT, _) => Kind::Cut,
            (Self::MARK, _) => Kind::Mark,
            (first_db, last_db) => Kind::Commands { first_db, last_db },
        };
        Self { ticket: number(0), n_bytes: number(8) as usize, kind }
    }
}

impl Intake {
    /// Creates an intake for `n_threads` threads.
    pub fn new(n_threads: usize) -> Self {
        let lane = || Lane {
            full: SegQueue::new(),
            spare: ArrayQueue::new(SPARE_BATCHES),
            unmerged_bytes: AtomicUsize::new(0),
        };
        Self {
            tickets: CachePadded::new(AtomicU64::new(1)),
            lanes: (0..n_threads).map(|_| CachePadded::new(lane())).collect(),
        }
    }

    /// The last ticket that was taken; 0 before the first.
    pub fn last_ticket(&self) -> Ticket {
        self.tickets.load(Relaxed) - 1
    }

    /// Whether a thread has published a batch that the pen has not taken yet.
    pub fn has_published(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.full.is_empty())
    }

    /// The memory of the batches that are published and not fully merged, in bytes.
    pub fn unmerged_bytes(&self) -> usize {
        self.lanes.iter().map(|lane| lane.unmerged_bytes.load(Relaxed)).sum()
    }
}

/// A thread's side of the intake.
#[derive(Default)]
pub struct Writer {
    lane: usize,
    batch: Vec<u8>,
}

impl Writer {
    /// The writer of thread number `lane`.
    pub fn new(lane: usize) -> Self {
        Self { lane, batch: Vec::new() }
    }

    /// Adds a record whose bytes `build` appends, and returns its ticket.
    ///
    /// The caller holds the shards that the record is about.
    pub fn add(&mut self, intake: &Intake, build: impl FnOnce(&mut Vec<u8>) -> Kind) -> Ticket {
        if self.batch.len() >= LONG_BYTES {
            self.publish(intake);
        }
        let at = self.batch.len();
        self.batch.resize(at + Head::BYTES, 0);
        let kind = build(&mut self.batch);
        let n_bytes = self.batch.len() - at - Head::BYTES;
        // From here on nothing may fail, because the pen waits for this ticket. Relaxed is enough for the
        // order of tickets: a hold passes from thread to thread. So the next holder's change of this word
        // comes later in the word's modification order.
        let ticket = intake.tickets.fetch_add(1, Relaxed);
        Head { ticket, n_bytes, kind }.write(&mut self.batch[at..]);
        ticket
    }

    /// The bytes of records that are not published yet.
    #[inline]
    pub fn unpublished_bytes(&self) -> usize {
        self.batch.len()
    }

    /// Hands the added records over to the pen.
    pub fn publish(&mut self, intake: &Intake) {
        if self.batch.is_empty() {
            return;
        }
        let lane = &intake.lanes[self.lane];
        let next = lane.spare.pop().unwrap_or_default();
        let batch = mem::replace(&mut self.batch, next);
        lane.unmerged_bytes.fetch_add(batch.capacity(), Relaxed);
        lane.full.push(batch);
    }
}

/// The pen's view of a lane.
#[derive(Default)]
struct OpenLane {
    batch: Vec<u8>,
    at: usize,
}

impl OpenLane {
    fn head(&self) -> Option<Head> {
        (self.at < self.batch.len()).then(|| Head::read(&self.batch[self.at..]))
    }
}

/// The merging side of the intake.
pub struct Pen {
    lanes: Vec<OpenLane>,
    /// The next ticket to merge.
    next: Ticket,
    /// The lane of the last record. In most cases it also has the next one.
    last: usize,
    /// The database that is selected at the end of the stream, if it is known.
    db: Option<u32>,
}

/// The destination of merged records.
pub trait Sink {
    /// Selects a database for the commands that follow.
    fn select(&mut self, db: u32);
    /// Appends the commands of one unit.
    fn append(&mut self, commands: &[u8]);
}

/// The reason why a merge has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// Every record that was found is merged.
    All,
    /// The caller has stopped the merge.
    Enough,
    /// The next record is a cut.
    UpToCut,
    /// The next record is a mark.
    UpToMark,
    /// The next record is for followers only.
    UpToOthers,
    /// The next record is long: the caller takes it with its batch, without a copy.
    UpToLong,
}

impl Pen {
    /// The pen of an intake from which nothing has been merged.
    pub fn new(intake: &Intake) -> Self {
        Self { lanes: intake.lanes.iter().map(|_| OpenLane::default()).collect(), next: 1, last: 0, db: None }
    }

    /// The last ticket that is merged; 0 before the first.
    pub fn merged(&self) -> Ticket {
        self.next - 1
    }

    /// Forgets the selected database. The next record selects its own again, because another file begins.
    pub fn forget_db(&mut self) {
        self.db = None;
    }

    /// Merges published records in the order of their tickets.
    ///
    /// It ends when the next record is not published, or when `go_on` returns false. `go_on` is called after
    /// each record with the record's length in bytes. The merge also stops before a cut, a mark and a record
    /// for followers. It stops before a [long](Self::take_long) record too, but after the selection of its
    /// database.
    pub fn merge(
        &mut self,
        intake: &Intake,
        to: &mut impl Sink,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Merged {
        loop {
            let Some((lane, head)) = self.find(intake) else { return Merged::All };
            let (first_db, last_db) = match head.kind {
                Kind::Commands { first_db, last_db } => (first_db, last_db),
                Kind::ForFollowers => return Merged::UpToOthers,
                Kind::Cut => return Merged::UpToCut,
                Kind::Mark => return Merged::UpToMark,
            };
            let is_long = head.n_bytes >= LONG_BYTES;
            if self.db != Some(first_db) {
                to.select(first_db);
                if is_long {
                    to.append(&[]);
                    self.db = Some(first_db);
                }
            }
            if is_long {
                return Merged::UpToLong;
            }
            self.db = Some(last_db);
            let open = &self.lanes[lane];
            let start = open.at + Head::BYTES;
            to.append(&open.batch[start..start + head.n_bytes]);
            self.pass(intake, lane, &head);
            if !go_on(head.n_bytes) {
                return Merged::Enough;
            }
        }
    }

    /// Passes the cut or the mark at which [`merge`](Self::merge) has stopped.
    ///
    /// # Panics
    /// If the next record is neither.
    pub fn pass_cut(&mut self, intake: &Intake) {
        let (lane, head) = self.find(intake).expect("the cut was seen");
        assert!(matches!(head.kind, Kind::Cut | Kind::Mark), "the next record has no commands");
        self.pass(intake, lane, &head);
        self.db = None;
    }

    /// Merges the records for followers at which [`merge`](Self::merge) has stopped, up to one of another
    /// kind.
    pub fn merge_others(&mut self, intake: &Intake, to: &mut impl Sink) {
        while let Some((lane, head)) = self.find(intake)
            && head.kind == Kind::ForFollowers
        {
            let open = &self.lanes[lane];
            let start = open.at + Head::BYTES;
            to.append(&open.batch[start..start + head.n_bytes]);
            self.pass(intake, lane, &head);
        }
    }

    /// Takes the long record at which [`merge`](Self::merge) has stopped, in its batch. Returns it with the
    /// memory that it keeps, in bytes.
    ///
    /// # Panics
    /// If there is no next record, or it is a cut.
    pub fn take_long(&mut self, intake: &Intake) -> (Bytes, usize) {
        let (lane, head) = self.find(intake).expect("the record was seen");
        let Kind::Commands { last_db, .. } = head.kind else { panic!("the next record is long") };
        let open = &mut self.lanes[lane];
        let record = open.at + Head::BYTES..open.at + Head::BYTES + head.n_bytes;
        assert_eq!(record.end, open.batch.len(), "nothing is added after a long record");
        let batch = mem::take(open).batch;
        let n_allocated = batch.capacity();
        intake.lanes[lane].unmerged_bytes.fetch_sub(n_allocated, Relaxed);
        self.next += 1;
        self.db = Some(last_db);
        (Bytes::from(batch).slice(record), n_allocated)
    }

    /// Skips all published records, up to a gap: the log has been turned off.
    pub fn discard(&mut self, intake: &Intake) {
        while let Some((lane, head)) = self.find(intake) {
            self.pass(intake, lane, &head);
        }
        self.db = None;
    }

    /// Finds the next record, if it is published.
    fn find(&mut self, intake: &Intake) -> Option<(usize, Head)> {
        let n_lanes = self.lanes.len();
        (self.last..n_lanes).chain(0..self.last).find_map(|lane| {
            let open = &mut self.lanes[lane];
            if open.at >= open.batch.len() {
                let batch = intake.lanes[lane].full.pop()?;
                *open = OpenLane { batch, at: 0 };
            }
            let head = open.head().filter(|head| head.ticket == self.next)?;
            self.last = lane;
            Some((lane, head))
        })
    }

    fn pass(&mut self, intake: &Intake, lane: usize, head: &Head) {
        let open = &mut self.lanes[lane];
        open.at += Head::BYTES + head.n_bytes;
        self.next += 1;
        if open.at >= open.batch.len() {
            let mut batch = mem::take(open).batch;
            let of = &intake.lanes[lane];
            of.unmerged_bytes.fetch_sub(batch.capacity(), Relaxed);
            if batch.capacity() <= KEPT_BYTES {
                batch.clear();
                // Batches beyond the spare ones are freed.
                let _: Result<(), Vec<u8>> = of.spare.push(batch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[derive(Default)]
    struct Told(Vec<u8>);

    impl Sink for Told {
        fn select(&mut self, db: u32) {
            self.0.extend_from_slice(format!("[{db}]").as_bytes());
        }

        fn append(&mut self, commands: &[u8]) {
            self.0.extend_from_slice(commands);
        }
    }

    fn add(writer: &mut Writer, intake: &Intake, text: &str, db: u32) -> Ticket {
        writer.add(intake, |to| {
            to.extend_from_slice(text.as_bytes());
            Kind::Commands { first_db: db, last_db: db }
        })
    }

    #[test]
    fn records_come_in_the_order_of_their_tickets_and_not_past_a_gap() {
        let intake = Intake::new(2);
        let (mut a, mut b) = (Writer::new(0), Writer::new(1));
        let (mut pen, mut told) = (Pen::new(&intake), Told::default());
        add(&mut a, &intake, "one ", 0);
        add(&mut b, &intake, "two ", 0);
        add(&mut a, &intake, "three ", 3);
        b.publish(&intake);
        assert_eq!(pen.merge(&intake, &mut told, |_| true), Merged::All);
        assert_eq!(pen.merged(), 0, "the first is not published");
        a.publish(&intake);
        add(&mut b, &intake, "four", 3);
        assert_eq!(pen.merge(&intake, &mut told, |_| true), Merged::All);
        assert_eq!((pen.merged(), &told.0[..]), (3, &b"[0]one two [3]three "[..]));
        b.publish(&intake);
        pen.merge(&intake, &mut told, |_| true);
        assert_eq!(told.0, b"[0]one two [3]three four");
        assert_eq!((intake.unmerged_bytes(), intake.last_ticket()), (0, 4));
    }

    #[test]
    fn a_long_record_is_not_copied_and_comes_in_its_order() {
        let intake = Intake::new(1);
        let (mut writer, mut pen, mut told) = (Writer::new(0), Pen::new(&intake), Told::default());
        let long = "x".repeat(3 * LONG_BYTES);
        add(&mut writer, &intake, "before ", 0);
        add(&mut writer, &intake, &long, 2);
        add(&mut writer, &intake, &long, 2);
        add(&mut writer, &intake, "behind", 2);
        writer.publish(&intake);
        assert!(intake.unmerged_bytes() < 7 * LONG_BYTES, "their room has not doubled");
        for text in ["[0]before [2]", "[0]before [2]"] {
            assert_eq!(pen.merge(&intake, &mut told, |_| true), Merged::UpToLong);
            assert_eq!(told.0, text.as_bytes());
            assert_eq!(pen.take_long(&intake).0, long.as_bytes());
        }
        assert_eq!(pen.merge(&intake, &mut told, |_| true), Merged::All);
        assert_eq!(told.0, b"[0]before [2]behind");
        assert_eq!((pen.merged(), intake.unmerged_bytes()), (4, 0));
    }

    #[test]
    fn a_cut_stops_the_merging_and_what_follows_selects_its_database_anew() {
        let intake = Intake::new(1);
        let (mut writer, mut pen, mut told) = (Writer::new(0), Pen::new(&intake), Told::default());
        add(&mut writer, &intake, "before", 1);
        writer.add(&intake, |_| Kind::Cut);
        add(&mut writer, &intake, "behind", 1);
        writer.publish(&intake);
        assert_eq!(pen.merge(&intake, &mut told, |_| true), Merged::UpToCut);
        assert_eq!(pen.merge(&intake, &mut told, |_| true), Merged::UpToCut);
        assert_eq!((pen.merged(), &told.0[..]), (1, &b"[1]before"[..]));
        pen.pass_cut(&intake);
        assert_eq!(pen.merge(&intake, &mut told, |_| true), Merged::All);
        assert_eq!(told.0, b"[1]before[1]behind");
    }

    #[test]
    fn what_many_threads_write_is_merged_once_each_and_in_order() {
        const N_THREADS: usize = 4;
        const N_RECORDS: usize = 5000;
        let intake = Intake::new(N_THREADS);
        let mut told = Told::default();
        thread::scope(|scope| {
            for lane in 0..N_THREADS {
                let intake = &intake;
                scope.spawn(move || {
                    let mut writer = Writer::new(lane);
                    let mut before = 0;
                    for nth in 0..N_RECORDS {
                        let ticket = add(&mut writer, intake, &format!("{lane}:{nth} "), 0);
                        assert!(ticket > before);
                        before = ticket;
                        if nth % (lane + 1) == 0 {
                            writer.publish(intake);
                        }
                    }
                    writer.publish(intake);
                });
            }
            let mut pen = Pen::new(&intake);
            while pen.merged() < (N_THREADS * N_RECORDS) as u64 {
                pen.merge(&intake, &mut told, |_| true);
                thread::yield_now();
            }
        });
        let text = String::from_utf8(told.0).expect("text");
        let mut seen = [0; N_THREADS];
        for record in text.trim_start_matches("[0]").split_whitespace() {
            let (lane, nth) = record.split_once(':').expect("a lane and a number");
            let (lane, nth): (usize, usize) = (lane.parse().expect("a lane"), nth.parse().expect("a number"));
            assert_eq!(seen[lane], nth);
            seen[lane] += 1;
        }
        assert_eq!(seen, [N_RECORDS; N_THREADS]);
    }
}
