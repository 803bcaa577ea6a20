//! The change stream: the records of all threads in one order, for any number of consumers.
//!
//! ```text
//! unit ── add ──▶ intake ── merge ──▶ Link ─▶ Link ─▶ Link        one writer: the thread with the baton
//!                                      │piece  │piece  └ empty: the end of the stream
//! cursor, one for each consumer ───────┘
//! ```
//!
//! A place in the stream is a *replication offset*: the number of bytes of its history before. A server that
//! receives another server's stream hands the bytes on as they came, so both count alike. The file may get
//! other bytes for the same changes.
//!
//! A *piece* is immutable once it is in the stream, so consumers read it without a lock and without a copy. A
//! piece lives as long as a cursor stands before it.
//!
//! One consumer stands beside the merger: the thread that merges also works for that one. The AOF is such a
//! consumer, so that a record needs no second thread to reach the file. All other consumers
//! [subscribe](ChangeStream::subscribe), and read at their own pace.

use std::{
    ops::ControlFlow,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use braid_protocol::request::write_words;
use bytes::{Bytes, BytesMut};

use crate::{
    baton::{Baton, Guard},
    follower::Follower,
    history::{History, ReplicationId},
    intake::{Apart, ApartRecord, Intake, Kind, Merged, Pen, Sink, Ticket, Writer},
};

pub use crate::history::Lsn;

/// The most records of a piece.
const PIECE_RECORDS: usize = 16 << 10;

/// The length at which a piece ends, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// The room that is allocated for pieces at a time, in bytes. Short pieces share one.
const ROOM_BYTES: usize = 16 << 10;

/// A change of the history to which the stream belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The history's ID, if another server may know it.
    pub id: Option<ReplicationId>,
    /// Whether the stream is another server's from here on.
    pub is_received: bool,
    /// If all data was replaced: the place of the new data in its history, and the database that the stream
    /// has selected there.
    pub jump: Option<(Lsn, u32)>,
}

impl Turn {
    /// Appends it as a record.
    pub fn write(&self, to: &mut Vec<u8>) -> Kind {
        to.push(
            u8::from(self.id.is_some())
                | u8::from(self.is_received) << 1
                | u8::from(self.jump.is_some()) << 2,
        );
        to.extend_from_slice(self.id.unwrap_or(ReplicationId::NONE).as_str().as_bytes());
        let (lsn, db) = self.jump.unwrap_or_default();
        to.extend_from_slice(&lsn.0.to_le_bytes());
        to.extend_from_slice(&db.to_le_bytes());
        Kind::Turn
    }

    /// Reads a record.
    fn read(record: &[u8]) -> Self {
        let (flags, rest) = record.split_first().expect("it has flags");
        let (id, rest) = rest.split_at(ReplicationId::BYTES);
        let (lsn, db) = rest.split_at(8);
        let lsn = Lsn(u64::from_le_bytes(lsn.try_into().expect("eight bytes")));
        let db = u32::from_le_bytes(db.try_into().expect("four bytes"));
        Self {
            id: ReplicationId::parse(id).filter(|_| flags & 1 != 0),
            is_received: flags & 2 != 0,
            jump: (flags & 4 != 0).then_some((lsn, db)),
        }
    }
}

/// The contents of a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// Commands of whole units.
    Units,
    /// Commands of whole units, and what the file gets for them.
    Apart(FilePart),
    /// Nothing. The history becomes another one.
    Turn(Turn),
    /// Nothing. The stream is cut here: a base of the file has everything before.
    Cut,
    /// Nothing. The snapshot of a follower has everything before. If the stream is another server's, the
    /// follower must learn that this database is selected.
    Mark(Option<u32>),
}

/// The commands that the file gets for a piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilePart {
    /// The commands of whole units.
    pub bytes: Bytes,
    /// The end of each unit in `bytes`, and the place of the stream to which the data has come there.
    pub ends: Box<[(usize, Lsn)]>,
}

/// Adjacent records of the stream, or a cut.
#[derive(Debug)]
pub struct Piece {
    /// Its contents.
    pub kind: PieceKind,
    /// Its place in the stream.
    pub start: Lsn,
    /// The ticket of its last record.
    pub last: Ticket,
    /// The commands of whole units. None at a cut.
    pub bytes: Bytes,
    ends: Ends,
    /// The memory that the stream has allocated up to and with this piece, in bytes.
    allocated_bytes: u64,
}

/// The ends of a piece's units. A piece of one unit is frequent, and needs no allocation for them.
#[derive(Debug)]
enum Ends {
    One(usize),
    Any(Box<[usize]>),
}

impl Ends {
    fn of(ends: &[usize]) -> Self {
        if let &[end] = ends { Ends::One(end) } else { Ends::Any(ends.into()) }
    }
}

impl Piece {
    /// The ends of the units in [`bytes`](Self::bytes). None at a cut.
    pub fn ends(&self) -> &[usize] {
        match &self.ends {
            Ends::One(end) => std::slice::from_ref(end),
            Ends::Any(ends) => ends,
        }
    }

    /// Whether all data is replaced here.
    pub fn is_jump(&self) -> bool {
        matches!(&self.kind, PieceKind::Turn(turn) if turn.jump.is_some())
    }

    /// The place after it.
    pub fn end(&self) -> Lsn {
        Lsn(self.start.0 + self.bytes.len() as u64)
    }
}

/// A place between two pieces: where the next one is, or will be.
#[derive(Debug, Default)]
struct Link {
    next: OnceLock<(Piece, Arc<Link>)>,
}

impl Drop for Link {
    /// Without the loop each link would drop the next one: a consumer that is far behind would overflow the
    /// stack.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some((_, after)) = next {
            next = Arc::into_inner(after).and_then(|mut link| link.next.take());
        }
    }
}

/// The place of a consumer.
#[derive(Clone, Debug)]
pub struct Cursor {
    at: Arc<Link>,
    lsn: Lsn,
    allocated_bytes: u64,
    /// See [`Cursor::n_jumps`].
    n_jumps: u64,
    /// Counts the subscribers.
    _subscribed: Option<Arc<()>>,
}

impl Cursor {
    /// The next piece, if it is in the stream yet.
    pub fn peek(&self) -> Option<&Piece> {
        self.at.next.get().map(|(piece, _)| piece)
    }

    /// Whether no other piece follows the next one yet.
    pub fn is_at_last(&self) -> bool {
        self.at.next.get().is_none_or(|(_, after)| after.next.get().is_none())
    }

    /// Passes the next piece, if there is one.
    pub fn pass(&mut self) {
        let Some((piece, after)) = self.at.next.get() else { return };
        (self.lsn, self.allocated_bytes) = (piece.end(), piece.allocated_bytes);
        self.n_jumps += u64::from(piece.is_jump());
        let after = Arc::clone(after);
        self.at = after;
    }

    /// The place in the stream.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// The number of jumps of the stream before. Places are comparable only if it is the same.
    pub fn n_jumps(&self) -> u64 {
        self.n_jumps
    }
}

/// The end of the stream, which the thread with the baton extends.
pub struct Merger {
    pen: Pen,
    tail: Arc<Link>,
    lsn: Lsn,
    /// The memory of all pieces so far, in bytes.
    allocated_bytes: u64,
    room: Room,
    apart: ApartRoom,
    subscribed: Arc<()>,
    /// The last bytes, for followers that come back.
    history: Option<History>,
    published: Arc<Published>,
}

/// The end of the stream, as any thread sees it.
#[derive(Debug, Default)]
struct Published {
    merged: AtomicU64,
    end: AtomicU64,
    /// The selected database, or [`NO_DB`].
    db: AtomicU32,
    /// The number of jumps.
    n_jumps: AtomicU64,
    /// The place of the history's first byte, and its length. It is kept if the length is not this.
    history: [AtomicU64; 2],
}

/// Stands for the length of a history that is not kept.
const NOT_KEPT: u64 = u64::MAX;

/// Stands for a database that is not known.
const NO_DB: u32 = u32::MAX;

impl Merger {
    fn new(intake: &Intake, published: Arc<Published>) -> Self {
        Self {
            pen: Pen::new(intake),
            tail: Arc::default(),
            lsn: Lsn(0),
            allocated_bytes: 0,
            room: Room::default(),
            apart: ApartRoom::default(),
            subscribed: Arc::new(()),
            history: None,
            published,
        }
    }

    /// The last ticket that is in the stream; 0 before the first.
    pub fn merged(&self) -> Ticket {
        self.pen.merged()
    }

    /// The place at which the stream ends.
    pub fn end(&self) -> Lsn {
        self.lsn
    }

    /// A cursor at the end, for the consumer beside the merger.
    pub fn cursor(&self) -> Cursor {
        Cursor {
            at: Arc::clone(&self.tail),
            lsn: self.lsn,
            allocated_bytes: self.allocated_bytes,
            n_jumps: self.published.n_jumps.load(Ordering::Relaxed),
            _subscribed: None,
        }
    }

    fn subscribe(&self) -> Cursor {
        Cursor { _subscribed: Some(Arc::clone(&self.subscribed)), ..self.cursor() }
    }

    /// Whether there is a consumer that has subscribed, or a history.
    pub fn has_subscribers(&self) -> bool {
        self.history.is_some() || Arc::strong_count(&self.subscribed) > 1
    }

    /// The last bytes of the stream, if they are kept.
    pub fn history(&self) -> Option<&History> {
        self.history.as_ref()
    }

    /// Keeps the last `n_bytes` of the stream from now on, or this many of those that are kept already.
    pub fn keep_history(&mut self, n_bytes: u64) {
        let end = self.lsn;
        self.history.get_or_insert_with(|| History::from(end)).limit(n_bytes);
        self.publish_history();
    }

    /// Begins the stream at a place where data was read. `db` is selected there. `history` has the bytes
    /// before, as far as they are known.
    ///
    /// Nothing may have been merged, and nobody may have subscribed.
    pub fn begin_at(&mut self, lsn: Lsn, db: Option<u32>, is_received: bool, history: Option<History>) {
        self.lsn = lsn;
        self.history = history;
        self.pen.turn(is_received, db);
        self.publish_end();
        self.publish_history();
    }

    /// Keeps no bytes of the stream any more.
    pub fn end_history(&mut self) {
        self.history = None;
        self.publish_history();
    }

    fn publish_history(&self) {
        let history = self.history.as_ref();
        let (first, n_bytes) = history.map_or((0, NOT_KEPT), |kept| (kept.first().0, kept.n_bytes()));
        self.published.history[0].store(first, Ordering::Relaxed);
        self.published.history[1].store(n_bytes, Ordering::Relaxed);
    }

    /// The memory of the pieces that a cursor has not passed, in bytes.
    pub fn allocated_behind(&self, cursor: &Cursor) -> usize {
        (self.allocated_bytes - cursor.allocated_bytes) as usize
    }

    /// Adds the next piece, if one is published. Returns whether there was one.
    pub fn merge(&mut self, intake: &Intake) -> bool {
        let (mut n_left, mut n_bytes) = (PIECE_RECORDS, 0);
        let merged = self.pen.merge(intake, &mut self.room, |n_more| {
            n_left -= 1;
            n_bytes += n_more;
            n_left > 0 && n_bytes < PIECE_BYTES
        });
        if let Some((bytes, ends)) = self.room.take() {
            let n_allocated = bytes.len();
            self.push(PieceKind::Units, bytes, ends, n_allocated);
            return true;
        }
        match merged {
            Merged::All | Merged::Enough => return false,
            Merged::UpToCut => {
                let selected = self.pen.pass_cut(intake);
                self.push(PieceKind::Cut, Bytes::new(), Ends::of(&[]), 0);
                if let Some(db) = selected {
                    self.select_in_file(db);
                }
            }
            Merged::UpToMark => {
                let selected = self.pen.pass_cut(intake);
                self.push(PieceKind::Mark(selected), Bytes::new(), Ends::of(&[]), 0);
            }
            Merged::UpToTurn => self.turn(intake),
            Merged::UpToApart => self.merge_apart(intake),
            Merged::UpToLong => {
                let (bytes, n_allocated) = self.pen.take_long(intake);
                let ends = Ends::One(bytes.len());
                self.push(PieceKind::Units, bytes, ends, n_allocated);
            }
        }
        true
    }

    /// Adds a piece of records that followers and the file do not get alike.
    fn merge_apart(&mut self, intake: &Intake) {
        let start = self.lsn;
        let taken = loop {
            let apart = &mut self.apart;
            match self.pen.take_apart(intake, |record| apart.add(record, start)) {
                Apart::Taken => {}
                other => break other,
            }
        };
        if let Some((kind, bytes, ends)) = self.apart.take() {
            let n_allocated =
                bytes.len() + if let PieceKind::Apart(part) = &kind { part.n_bytes() } else { 0 };
            self.push(kind, bytes, ends, n_allocated);
        }
        let Apart::Long(record, n_allocated) = taken else {
            // Records that count for nobody are merged, too.
            return self.publish_end();
        };
        let ApartRecord { stream, file, select, select_again } = record;
        if let Some(db) = select {
            self.select_in_file(db);
        }
        match file {
            None => {
                let ends = Ends::One(stream.len());
                self.push(PieceKind::Units, stream, ends, n_allocated);
            }
            Some(file) => {
                let end = Lsn(self.lsn.0 + stream.len() as u64);
                let ends = if file.is_empty() { Box::default() } else { Box::from([(file.len(), end)]) };
                let part = FilePart { bytes: file, ends };
                self.push(PieceKind::Apart(part), stream, Ends::of(&[]), n_allocated);
            }
        }
        if let Some(db) = select_again {
            self.select_in_file(db);
        }
    }

    /// Adds a piece by which the file selects a database.
    fn select_in_file(&mut self, db: u32) {
        let mut words = Vec::new();
        write_select(&mut words, db);
        let part = FilePart { ends: Box::from([(words.len(), self.lsn)]), bytes: Bytes::from(words) };
        let n_allocated = part.n_bytes();
        self.push(PieceKind::Apart(part), Bytes::new(), Ends::of(&[]), n_allocated);
    }

    /// Makes the history another one.
    fn turn(&mut self, intake: &Intake) {
        let turn = Turn::read(&self.pen.take_turn(intake));
        let mut db = self.pen.db();
        if let Some((to, selected)) = turn.jump {
            self.lsn = to;
            self.published.n_jumps.fetch_add(1, Ordering::Relaxed);
            db = Some(selected);
            if let Some(history) = &mut self.history {
                history.begin_anew(to);
            }
            self.publish_history();
        }
        let selected = self.pen.turn(turn.is_received, db);
        self.push(PieceKind::Turn(turn), Bytes::new(), Ends::of(&[]), 0);
        if let Some(db) = selected {
            self.select_in_file(db);
        }
    }

    /// Skips all that is published: nobody consumes it.
    pub fn discard(&mut self, intake: &Intake) {
        while self.pen.discard(intake) {
            self.turn(intake);
        }
    }

    fn push(&mut self, kind: PieceKind, bytes: Bytes, ends: Ends, n_allocated: usize) {
        if let Some(history) = &mut self.history {
            history.add(&bytes);
            self.publish_history();
        }
        let n_of_ends = if let Ends::Any(ends) = &ends { size_of_val(&**ends) } else { 0 };
        let n_bytes_beside = size_of::<Link>() + n_of_ends;
        self.allocated_bytes += (n_allocated + n_bytes_beside) as u64;
        let piece = Piece {
            kind,
            start: self.lsn,
            last: self.pen.merged(),
            bytes,
            ends,
            allocated_bytes: self.allocated_bytes,
        };
        self.lsn = piece.end();
        let after = Arc::new(Link::default());
        let added = self.tail.next.set((piece, Arc::clone(&after)));
        added.expect("only the thread with the baton adds pieces");
        self.tail = after;
        self.publish_end();
    }

    fn publish_end(&self) {
        self.published.end.store(self.lsn.0, Ordering::Relaxed);
        self.published.db.store(self.pen.db().unwrap_or(NO_DB), Ordering::Relaxed);
        // Release pairs with the Acquire of `merged_end`: whoever sees this ticket sees an end after it.
        self.published.merged.store(self.pen.merged(), Ordering::Release);
    }
}

/// The piece that is being merged.
#[derive(Default)]
struct Room {
    bytes: BytesMut,
    ends: Vec<usize>,
}

impl Room {
    /// The piece, if it has a unit.
    fn take(&mut self) -> Option<(Bytes, Ends)> {
        if self.ends.is_empty() {
            return None;
        }
        let ends = Ends::of(&self.ends);
        self.ends.clear();
        let bytes = self.bytes.split().freeze();
        if bytes.len() > PIECE_BYTES {
            // The next piece does not need that much.
            self.bytes = BytesMut::new();
        }
        Some((bytes, ends))
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.bytes.is_empty() && self.bytes.capacity() < bytes.len() {
            // If all pieces of the last room are gone, this takes that room again.
            self.bytes.reserve(ROOM_BYTES.max(bytes.len()));
        }
        self.bytes.extend_from_slice(bytes);
    }
}

impl Sink for Room {
    fn select(&mut self, db: u32) {
        let mut words = Vec::new();
        write_select(&mut words, db);
        self.extend(&words);
    }

    fn append(&mut self, commands: &[u8]) {
        self.extend(commands);
        self.ends.push(self.bytes.len());
    }
}

/// Appends a command that selects a database.
pub(crate) fn write_select(to: &mut Vec<u8>, db: u32) {
    let db = db.to_string();
    write_words(to, 2, [&b"SELECT"[..], db.as_bytes()].into_iter());
}

/// A piece that is being merged of records that followers and the file do not get alike.
///
/// If the file gets the same for all of its records, it becomes a piece of [units](PieceKind::Units).
#[derive(Default)]
struct ApartRoom {
    stream: Vec<u8>,
    file: Vec<u8>,
    ends: Vec<(usize, Lsn)>,
    is_same: bool,
    n_records: usize,
}

impl ApartRoom {
    /// Adds a record, unless it must be in the next piece. The piece begins at `start`.
    fn add(&mut self, record: ApartRecord<&[u8]>, start: Lsn) -> bool {
        let ApartRecord { stream, file, select, select_again } = record;
        let is_same = file.is_none() && select.is_none() && select_again.is_none();
        let is_full = self.n_records >= PIECE_RECORDS || self.stream.len() + self.file.len() >= PIECE_BYTES;
        if self.n_records > 0 && (is_full || self.is_same != is_same) {
            return false;
        }
        (self.is_same, self.n_records) = (is_same, self.n_records + 1);
        self.stream.extend_from_slice(stream);
        let end = Lsn(start.0 + self.stream.len() as u64);
        if is_same {
            self.ends.push((self.stream.len(), end));
            return true;
        }
        if let Some(db) = select {
            write_select(&mut self.file, db);
        }
        self.file.extend_from_slice(file.unwrap_or(stream));
        if let Some(db) = select_again {
            write_select(&mut self.file, db);
        }
        if self.ends.last().map_or(0, |&(end, _)| end) < self.file.len() {
            self.ends.push((self.file.len(), end));
        }
        true
    }

    /// The piece, if it has a record.
    fn take(&mut self) -> Option<(PieceKind, Bytes, Ends)> {
        let Self { stream, file, ends, is_same, n_records } = std::mem::take(self);
        if n_records == 0 {
            return None;
        }
        let bytes = Bytes::from(stream);
        if is_same {
            let ends: Vec<usize> = ends.into_iter().map(|(end, _)| end).collect();
            return Some((PieceKind::Units, bytes, Ends::of(&ends)));
        }
        let part = FilePart { bytes: Bytes::from(file), ends: ends.into() };
        Some((PieceKind::Apart(part), bytes, Ends::of(&[])))
    }
}

impl FilePart {
    /// The memory that it keeps, in bytes.
    fn n_bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.ends)
    }
}

/// The end of the stream, and the consumer beside it.
pub struct Held<C> {
    /// The end of the stream.
    pub merger: Merger,
    /// The consumer.
    pub consumer: C,
}

/// The records of all threads in one order.
pub struct ChangeStream<C> {
    intake: Intake,
    published: Arc<Published>,
    held: Baton<Held<C>>,
}

impl<C> ChangeStream<C> {
    /// The stream of `n_threads` threads, with the consumer that stands beside its merger.
    pub fn new(n_threads: usize, consumer: C) -> Self {
        let intake = Intake::new(n_threads);
        let published = Arc::<Published>::default();
        published.history[1].store(NOT_KEPT, Ordering::Relaxed);
        published.db.store(NO_DB, Ordering::Relaxed);
        let merger = Merger::new(&intake, Arc::clone(&published));
        Self { intake, published, held: Baton::new(Held { merger, consumer }) }
    }

    /// The last ticket that is in the stream, and a place after it.
    pub fn merged_end(&self) -> (Ticket, Lsn) {
        // Acquire pairs with the Release of `Merger::push`.
        let merged = self.published.merged.load(Ordering::Acquire);
        (merged, Lsn(self.published.end.load(Ordering::Relaxed)))
    }

    /// The number of jumps of the stream at about this moment.
    pub fn n_jumps(&self) -> u64 {
        self.published.n_jumps.load(Ordering::Relaxed)
    }

    /// The database that the stream has selected at about its end, if it is known.
    pub fn selected_db(&self) -> Option<u32> {
        Some(self.published.db.load(Ordering::Relaxed)).filter(|&db| db != NO_DB)
    }

    /// The side of the stream that receives records.
    pub fn intake(&self) -> &Intake {
        &self.intake
    }

    /// The place of the first byte of the history, and its length in bytes, at about this moment; none if it
    /// is not kept.
    pub fn history(&self) -> Option<(Lsn, u64)> {
        let [first, n_bytes] = self.published.history.each_ref().map(|number| number.load(Ordering::Relaxed));
        (n_bytes != NOT_KEPT).then_some((Lsn(first), n_bytes))
    }

    /// Adds a record to a thread's batch and returns its ticket. The shards that it is about are held.
    pub fn add(&self, writer: &mut Writer, build: impl FnOnce(&mut Vec<u8>) -> Kind) -> Ticket {
        writer.add(&self.intake, build)
    }

    /// Cuts the stream for the file after all records so far. All shards are held.
    pub fn add_cut(&self, writer: &mut Writer) {
        writer.add(&self.intake, |_| Kind::Cut);
    }

    /// Marks the place after all records so far, where a follower begins. All shards are held. Returns the
    /// mark's ticket.
    pub fn add_mark(&self, writer: &mut Writer) -> Ticket {
        writer.add(&self.intake, |_| Kind::Mark)
    }

    /// Notes after all records so far that the history becomes another one. All shards are held, unless only
    /// the history's ID becomes another one. Returns the ticket.
    pub fn add_turn(&self, writer: &mut Writer, turn: &Turn) -> Ticket {
        writer.add(&self.intake, |to| turn.write(to))
    }

    /// Hands a thread's batch over to the merger. The caller must [run](Self::run) after that, or have
    /// another thread do so.
    pub fn publish(&self, writer: &mut Writer) {
        writer.publish(&self.intake);
        self.held.announce();
    }

    /// Waits for the baton. See [`Baton::take`].
    pub fn take(&self) -> Guard<'_, Held<C>> {
        self.held.take()
    }

    /// Works with the baton, unless another thread has it and therefore does the work. See [`Baton::run`].
    pub fn run(&self, work: impl FnMut(&mut Held<C>) -> ControlFlow<()>) {
        self.held.run(work);
    }

    /// Begins to consume the stream at its present end. The place is exact if all shards are held, or a cut
    /// tells the consumer where to begin.
    pub fn subscribe(&self) -> Cursor {
        let held = self.take();
        held.merger.subscribe()
    }

    /// Does the same as [`resume`](Self::resume), unless another thread has the baton. A thread must
    /// [run](Self::run) after that.
    pub fn try_resume(&self, from: Lsn) -> Option<Option<Follower>> {
        let held = self.held.try_take()?;
        Some(Self::resume_held(&held, from))
    }

    /// Continues to consume the stream at a place in its [history](Merger::history), unless that is not kept.
    pub fn resume(&self, from: Lsn) -> Option<Follower> {
        Self::resume_held(&self.take(), from)
    }

    fn resume_held(held: &Held<C>, from: Lsn) -> Option<Follower> {
        let before = held.merger.history.as_ref()?.since(from)?;
        Some(Follower::resumed(before, held.merger.merged(), held.merger.subscribe()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(stream: &ChangeStream<()>, writer: &mut Writer, text: &str) -> Ticket {
        stream.add(writer, |to| {
            to.extend_from_slice(text.as_bytes());
            Kind::Commands { first_db: 0, last_db: 0 }
        })
    }

    fn merge_all(stream: &ChangeStream<()>) {
        let mut held = stream.take();
        while held.merger.merge(stream.intake()) {}
    }

    fn read_all(cursor: &mut Cursor) -> Vec<u8> {
        let mut read = Vec::new();
        while let Some(piece) = cursor.peek() {
            assert_eq!((piece.start, piece.ends().last().copied()), (cursor.lsn(), Some(piece.bytes.len())));
            read.extend_from_slice(&piece.bytes);
            cursor.pass();
        }
        read
    }

    #[test]
    fn each_cursor_reads_everything_after_its_beginning_once() {
        let (stream, mut writer) = (ChangeStream::new(1, ()), Writer::new(0));
        let mut first = stream.subscribe();
        add(&stream, &mut writer, "one ");
        stream.publish(&mut writer);
        merge_all(&stream);
        let mut second = stream.subscribe();
        add(&stream, &mut writer, "two ");
        add(&stream, &mut writer, "three");
        stream.publish(&mut writer);
        assert!(first.peek().is_some() && second.peek().is_none());
        merge_all(&stream);
        let select = "*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n";
        assert_eq!(read_all(&mut first), format!("{select}one two three").as_bytes());
        assert_eq!(read_all(&mut second), b"two three");
        assert_eq!(first.lsn(), second.lsn());
        assert!(stream.take().merger.has_subscribers());
        drop((first, second));
        assert!(!stream.take().merger.has_subscribers());
    }

    /// A consumer that is a million pieces behind, and ends, does not end the process.
    #[test]
    fn a_long_stream_is_dropped_piece_by_piece() {
        let (stream, mut writer) = (ChangeStream::new(1, ()), Writer::new(0));
        let cursor = stream.subscribe();
        for _ in 0..1_000_000 {
            add(&stream, &mut writer, "x");
            stream.publish(&mut writer);
            merge_all(&stream);
        }
        assert!(stream.take().merger.allocated_behind(&cursor) > 1_000_000);
        drop(cursor);
        drop(stream);
    }

    /// While consumers keep up, short pieces take turns in one room.
    #[test]
    fn the_room_of_consumed_pieces_is_used_again() {
        let (stream, mut writer) = (ChangeStream::new(1, ()), Writer::new(0));
        let mut cursor = stream.take().merger.cursor();
        let mut places = std::collections::BTreeSet::new();
        for _ in 0..10_000 {
            add(&stream, &mut writer, &"x".repeat(100));
            stream.publish(&mut writer);
            merge_all(&stream);
            let piece = cursor.peek().expect("it was merged");
            places.insert(piece.bytes.as_ptr().addr() / ROOM_BYTES);
            cursor.pass();
            assert_eq!(stream.take().merger.allocated_behind(&cursor), 0);
        }
        assert!(places.len() <= 4, "{} rooms", places.len());
    }

    /// A long record is not copied, and its memory is counted as it is.
    #[test]
    fn a_long_record_is_a_piece_of_its_own() {
        let (stream, mut writer) = (ChangeStream::new(1, ()), Writer::new(0));
        let mut cursor = stream.subscribe();
        add(&stream, &mut writer, "short ");
        let mut place = 0;
        stream.add(&mut writer, |to| {
            to.resize(to.len() + (1 << 20), b'x');
            place = to.as_ptr().addr();
            Kind::Commands { first_db: 0, last_db: 0 }
        });
        add(&stream, &mut writer, "after");
        stream.publish(&mut writer);
        merge_all(&stream);
        assert_eq!(stream.intake().unmerged_bytes(), 0);
        assert!(stream.take().merger.allocated_behind(&cursor) > 1 << 20);
        assert!(cursor.peek().expect("the short one").bytes.ends_with(b"short "));
        cursor.pass();
        let long = cursor.peek().expect("the long one");
        assert_eq!((long.bytes.len(), long.last), (1 << 20, 2));
        assert!((place..place + (1 << 16)).contains(&long.bytes.as_ptr().addr()), "it is no copy");
        cursor.pass();
        assert_eq!(read_all(&mut cursor), b"after");
        assert_eq!(stream.take().merger.allocated_behind(&cursor), 0);
    }
}
