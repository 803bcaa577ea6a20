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
    ops::Range,
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
    /// Commands that only [followers](crate::follower) get, and no file. They are dropped while the stream
    /// is [another server's](crate::stream::Turn::is_received).
    ForFollowers,
    /// Commands that only the file gets.
    ForFile {
        /// See [`Kind::Commands`].
        first_db: u32,
        /// See [`Kind::Commands`].
        last_db: u32,
    },
    /// A part of another server's stream, as [`Received`] writes it. It is dropped unless the stream is
    /// another server's.
    Received,
    /// No commands, but a [`Turn`](crate::stream::Turn): the history becomes another one.
    Turn,
    /// No commands: the stream is cut here for the file.
    Cut,
    /// No commands: a follower begins here.
    Mark,
}

/// The header of a record in a batch: its ticket, length, kind and databases.
#[derive(Clone, Copy)]
struct Head {
    ticket: Ticket,
    n_bytes: usize,
    kind: Kind,
}

impl Head {
    const BYTES: usize = 24;
    /// The place of the kind above the bits of the length.
    const KIND_BITS: u32 = 56;

    fn write(&self, to: &mut [u8]) {
        let (kind, first_db, last_db) = match self.kind {
            Kind::Commands { first_db, last_db } => (0_u64, first_db, last_db),
            Kind::ForFollowers => (1, 0, 0),
            Kind::ForFile { first_db, last_db } => (2, first_db, last_db),
            Kind::Received => (3, 0, 0),
            Kind::Turn => (4, 0, 0),
            Kind::Cut => (5, 0, 0),
            Kind::Mark => (6, 0, 0),
        };
        let length = self.n_bytes as u64 | kind << Self::KIND_BITS;
        to[..8].copy_from_slice(&self.ticket.to_le_bytes());
        to[8..16].copy_from_slice(&length.to_le_bytes());
        to[16..20].copy_from_slice(&first_db.to_le_bytes());
        to[20..24].copy_from_slice(&last_db.to_le_bytes());
    }

    fn read(from: &[u8]) -> Self {
        let (first_db, last_db) = (u32_at(from, 16), u32_at(from, 20));
        let length = u64_at(from, 8);
        let kind = match length >> Self::KIND_BITS {
            0 => Kind::Commands { first_db, last_db },
            1 => Kind::ForFollowers,
            2 => Kind::ForFile { first_db, last_db },
            3 => Kind::Received,
            4 => Kind::Turn,
            5 => Kind::Cut,
            _ => Kind::Mark,
        };
        let n_bytes = (length & ((1 << Self::KIND_BITS) - 1)) as usize;
        Self { ticket: u64_at(from, 0), n_bytes, kind }
    }
}

fn u64_at(from: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(from[at..at + 8].try_into().expect("eight bytes"))
}

fn u32_at(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(from[at..at + 4].try_into().expect("four bytes"))
}

/// The commands of a part of another server's stream, as the file gets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileText {
    /// It gets none.
    Nothing,
    /// They are the bytes that were received. `db` must be selected before them, if any must.
    Same {
        /// See above.
        db: Option<u32>,
    },
    /// They are other commands. This database must be selected before them, and `last_db` is after them.
    Other {
        /// See above.
        first_db: u32,
        /// See above.
        last_db: u32,
    },
}

/// A part of another server's stream: its bytes for followers, and what the file gets for it.
///
/// A record has both, so that the file never has the one without the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'r> {
    /// The bytes as they came.
    pub bytes: &'r [u8],
    /// The database that the stream has selected after them.
    pub db: u32,
}

impl Received<'_> {
    /// The bytes before the received ones in a record.
    const HEAD_BYTES: usize = 24;
    /// Stands for no database.
    const NO_DB: u32 = u32::MAX;

    /// Appends it as a record. `write` appends the file's commands, which may be the received bytes, and
    /// returns the databases that are selected before and after them; `None` if the file gets none.
    pub fn write(
        self,
        to: &mut Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>) -> Option<(Option<u32>, u32)>,
    ) -> Kind {
        let start = to.len();
        to.resize(start + Self::HEAD_BYTES, 0);
        to.extend_from_slice(self.bytes);
        let text_at = to.len();
        let (form, first_db, last_db) = match write(to) {
            None => (0_u32, Self::NO_DB, Self::NO_DB),
            Some((first_db, last_db)) if to[text_at..] == *self.bytes && last_db == self.db => {
                to.truncate(text_at);
                (1, first_db.unwrap_or(Self::NO_DB), last_db)
            }
            Some((first_db, last_db)) => (2, first_db.unwrap_or(last_db), last_db),
        };
        let head = &mut to[start..start + Self::HEAD_BYTES];
        head[..8].copy_from_slice(&(self.bytes.len() as u64).to_le_bytes());
        for (at, number) in [(8, self.db), (12, form), (16, first_db), (20, last_db)] {
            head[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        Kind::Received
    }

    /// The received bytes' length, the database after them, and the file's text.
    fn read_head(record: &[u8]) -> (usize, u32, FileText) {
        let (first_db, last_db) = (u32_at(record, 16), u32_at(record, 20));
        let text = match u32_at(record, 12) {
            0 => FileText::Nothing,
            1 => FileText::Same { db: Some(first_db).filter(|&db| db != Self::NO_DB) },
            _ => FileText::Other { first_db, last_db },
        };
        (u64_at(record, 0) as usize, u32_at(record, 8), text)
    }
}

/// A record that is not the same for followers and the file.
pub struct ApartRecord<B> {
    /// The bytes that followers get.
    pub stream: B,
    /// The commands that the file gets; none if they are those for followers.
    pub file: Option<B>,
    /// The database to select for the file before its commands, if another one is.
    pub select: Option<u32>,
    /// The database to select for the file after its commands, because the stream has that selected.
    pub select_again: Option<u32>,
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

/// The result of [`Pen::take_apart`].
pub enum Apart {
    /// There is no such record.
    Over,
    /// It was not accepted, and comes again.
    Other,
    /// It was taken.
    Taken,
    /// It is long. This is the record, and the memory that it keeps.
    Long(ApartRecord<Bytes>, usize),
}

/// The parts of a record for followers and for the file.
struct ApartPlaces {
    stream: Range<usize>,
    file: Option<Range<usize>>,
    select: Option<u32>,
    select_again: Option<u32>,
    /// The databases that the stream and the file have selected after it.
    dbs: (Option<u32>, Option<u32>),
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
    /// It is selected once more before the next command: somebody may begin to read there.
    selects_again: bool,
    /// The database that is selected at the end of the file, if it is known.
    file_db: Option<u32>,
    /// Whether the stream is another server's.
    is_received: bool,
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
    /// The next record is a turn.
    UpToTurn,
    /// The next record is not the same for followers and the file.
    UpToApart,
    /// The next record is long: the caller takes it with its batch, without a copy.
    UpToLong,
}

impl Pen {
    /// The pen of an intake from which nothing has been merged.
    pub fn new(intake: &Intake) -> Self {
        Self {
            lanes: intake.lanes.iter().map(|_| OpenLane::default()).collect(),
            next: 1,
            last: 0,
            db: None,
            selects_again: false,
            file_db: None,
            is_received: false,
        }
    }

    /// Whether the stream is another server's.
    pub fn is_received(&self) -> bool {
        self.is_received
    }

    /// The database that is selected at the end of the stream, if it is known.
    pub fn db(&self) -> Option<u32> {
        self.db
    }

    /// Sets whose stream it is, and the database that it has selected.
    ///
    /// If the stream is another server's and the file has another database selected, the caller must make it
    /// select the returned one. A start from the file then knows it.
    pub fn turn(&mut self, is_received: bool, db: Option<u32>) -> Option<u32> {
        (self.is_received, self.db, self.selects_again) = (is_received, db, true);
        let selected = db.filter(|&db| is_received && self.file_db != Some(db));
        self.file_db = selected.or(self.file_db);
        selected
    }

    /// The last ticket that is merged; 0 before the first.
    pub fn merged(&self) -> Ticket {
        self.next - 1
    }

    /// Merges published records in the order of their tickets.
    ///
    /// It ends when the next record is not published, or when `go_on` returns false. `go_on` is called after
    /// each record with the record's length in bytes. The merge also stops before records of other kinds
    /// than commands. It stops before a [long](Self::take_long) record too, but after the selection of its
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
                Kind::ForFollowers | Kind::ForFile { .. } | Kind::Received => return Merged::UpToApart,
                Kind::Turn => return Merged::UpToTurn,
                Kind::Cut => return Merged::UpToCut,
                Kind::Mark => return Merged::UpToMark,
            };
            let is_long = head.n_bytes >= LONG_BYTES;
            if self.selects_again || self.db != Some(first_db) || self.file_db != Some(first_db) {
                to.select(first_db);
                if is_long {
                    to.append(&[]);
                    self.select(first_db);
                }
            }
            if is_long {
                return Merged::UpToLong;
            }
            self.select(last_db);
            to.append(self.record(lane, &head));
            self.pass(intake, lane, &head);
            if !go_on(head.n_bytes) {
                return Merged::Enough;
            }
        }
    }

    /// Notes the database that commands of both have selected.
    fn select(&mut self, db: u32) {
        (self.db, self.file_db, self.selects_again) = (Some(db), Some(db), false);
    }

    /// The bytes of a record.
    fn record(&self, lane: usize, head: &Head) -> &[u8] {
        let open = &self.lanes[lane];
        let start = open.at + Head::BYTES;
        &open.batch[start..start + head.n_bytes]
    }

    /// Passes the cut or the mark at which [`merge`](Self::merge) has stopped.
    ///
    /// A reader that begins there does not know the selected database. So the server's own stream selects it
    /// again.
    /// If the stream is another server's, the reader must learn it otherwise: it is returned.
    ///
    /// # Panics
    /// If the next record is neither.
    pub fn pass_cut(&mut self, intake: &Intake) -> Option<u32> {
        let (lane, head) = self.find(intake).expect("the cut was seen");
        assert!(matches!(head.kind, Kind::Cut | Kind::Mark), "the next record has no commands");
        self.pass(intake, lane, &head);
        self.selects_again = true;
        let selected = self.db.filter(|_| self.is_received);
        if head.kind == Kind::Cut {
            self.file_db = selected;
        }
        selected
    }

    /// Takes the turn at which [`merge`](Self::merge) has stopped.
    ///
    /// # Panics
    /// If the next record is none.
    pub fn take_turn(&mut self, intake: &Intake) -> Vec<u8> {
        let (lane, head) = self.find(intake).expect("the turn was seen");
        assert_eq!(head.kind, Kind::Turn, "the next record is a turn");
        let turn = self.record(lane, &head).to_vec();
        self.pass(intake, lane, &head);
        turn
    }

    /// Takes the next record, if it is one that [`merge`](Self::merge) leaves to others, and `take` accepts
    /// it. A record that counts for nobody is passed.
    ///
    /// A long record is handed over without a copy, with the memory that it keeps.
    pub fn take_apart(&mut self, intake: &Intake, mut take: impl FnMut(ApartRecord<&[u8]>) -> bool) -> Apart {
        loop {
            let Some((lane, head)) = self.find(intake) else { return Apart::Over };
            let counts = match head.kind {
                Kind::ForFollowers => !self.is_received,
                Kind::Received => self.is_received,
                Kind::ForFile { .. } => true,
                _ => return Apart::Over,
            };
            if !counts {
                self.pass(intake, lane, &head);
                continue;
            }
            let ApartPlaces { stream, file, select, select_again, dbs } = self.places(lane, &head);
            if head.n_bytes >= LONG_BYTES {
                let (bytes, n_allocated) = self.take_record(intake, lane, &head);
                (self.db, self.file_db) = dbs;
                let file = file.map(|file| bytes.slice(file));
                let record = ApartRecord { stream: bytes.slice(stream), file, select, select_again };
                return Apart::Long(record, n_allocated);
            }
            let bytes = self.record(lane, &head);
            let file = file.map(|file| &bytes[file]);
            if !take(ApartRecord { stream: &bytes[stream], file, select, select_again }) {
                return Apart::Other;
            }
            (self.db, self.file_db) = dbs;
            self.pass(intake, lane, &head);
            return Apart::Taken;
        }
    }

    /// The parts of a record for followers and for the file.
    fn places(&self, lane: usize, head: &Head) -> ApartPlaces {
        let (db, file_db, all) = (self.db, self.file_db, 0..head.n_bytes);
        let select = |first_db: u32| Some(first_db).filter(|_| file_db != Some(first_db));
        let nothing = Some(0..0);
        match head.kind {
            Kind::ForFile { first_db, last_db } => {
                // Otherwise a start from the file would not know what another server's stream has selected.
                let select_again = db.filter(|&db| self.is_received && db != last_db);
                let dbs = (db, Some(select_again.unwrap_or(last_db)));
                ApartPlaces { stream: 0..0, file: Some(all), select: select(first_db), select_again, dbs }
            }
            Kind::Received => {
                let (n_bytes, db, text) = Received::read_head(self.record(lane, head));
                let stream = Received::HEAD_BYTES..Received::HEAD_BYTES + n_bytes;
                let own = Some(stream.end..head.n_bytes);
                let (file, select, file_db) = match text {
                    FileText::Nothing => (nothing, None, file_db),
                    FileText::Same { db: first } => (None, first.and_then(select), Some(db)),
                    FileText::Other { first_db, last_db } => (own, select(first_db), Some(last_db)),
                };
                ApartPlaces { stream, file, select, select_again: None, dbs: (Some(db), file_db) }
            }
            _ => ApartPlaces {
                stream: all,
                file: nothing,
                select: None,
                select_again: None,
                dbs: (db, file_db),
            },
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
        self.select(last_db);
        self.take_record(intake, lane, &head)
    }

    /// Takes a long record with its batch.
    fn take_record(&mut self, intake: &Intake, lane: usize, head: &Head) -> (Bytes, usize) {
        let open = &mut self.lanes[lane];
        let record = open.at + Head::BYTES..open.at + Head::BYTES + head.n_bytes;
        assert_eq!(record.end, open.batch.len(), "nothing is added after a long record");
        let batch = mem::take(open).batch;
        let n_allocated = batch.capacity();
        intake.lanes[lane].unmerged_bytes.fetch_sub(n_allocated, Relaxed);
        self.next += 1;
        (Bytes::from(batch).slice(record), n_allocated)
    }

    /// Skips all published records, up to a gap or a turn: nobody reads them. Returns whether there is a
    /// turn.
    pub fn discard(&mut self, intake: &Intake) -> bool {
        let is_at_turn = loop {
            match self.find(intake) {
                None => break false,
                Some((_, head)) if head.kind == Kind::Turn => break true,
                Some((lane, head)) => self.pass(intake, lane, &head),
            }
        };
        (self.db, self.file_db) = (None, None);
        is_at_turn
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
