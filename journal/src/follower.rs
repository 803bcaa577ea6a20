//! A follower: a consumer of the change stream that sends it elsewhere, such as to a replica.

use std::{collections::VecDeque, io};

use bytes::Bytes;

use crate::{
    intake::Ticket,
    spool::SpoolReader,
    stream::{Cursor, Lsn, PieceKind},
};

/// A place among the pieces of the stream, which are kept in memory from there on.
#[derive(Clone, Debug)]
pub struct Pieces {
    /// The bytes of the history that it has not read.
    before: VecDeque<Bytes>,
    /// The last ticket of those.
    before_last: Ticket,
    cursor: Cursor,
    /// The place up to which it has read.
    lsn: Lsn,
}

impl Pieces {
    /// The place up to which it has read.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// The number of jumps of the stream before.
    pub fn n_jumps(&self) -> u64 {
        self.cursor.n_jumps()
    }

    /// See [`Follower::has_more`].
    pub fn has_more(&self, reached: Ticket) -> bool {
        self.next_bytes(reached).is_some()
    }

    /// The number of bytes that [`take`](Self::take) takes.
    pub fn next_bytes(&self, reached: Ticket) -> Option<usize> {
        match self.before.front() {
            Some(bytes) => (self.before_last <= reached).then_some(bytes.len()),
            None => {
                let piece = self.cursor.peek()?;
                (piece.last <= reached && !piece.is_jump()).then_some(piece.bytes.len())
            }
        }
    }

    /// See [`Follower::take`].
    pub fn take(&mut self, reached: Ticket) -> Option<Bytes> {
        if !self.has_more(reached) {
            return None;
        }
        let bytes = match self.before.pop_front() {
            Some(bytes) => bytes,
            None => {
                let bytes = self.cursor.peek()?.bytes.clone();
                self.cursor.pass();
                bytes
            }
        };
        self.lsn.0 += bytes.len() as u64;
        Some(bytes)
    }
}

/// The place of a follower in the stream, and what it reads before that.
#[derive(Clone, Debug)]
pub struct Follower {
    source: FollowerSource,
    /// See [`Follower::db`].
    db: Option<u32>,
}

#[derive(Clone, Debug)]
enum FollowerSource {
    Pieces(Pieces),
    Spool(SpoolReader),
}

/// Bytes that a follower has read.
#[derive(Debug)]
pub enum Taken {
    /// Whole pieces of the stream.
    Piece(Bytes),
    /// A part of the stream that begins and ends anywhere, and what was found in the pieces that it touches.
    /// See [`Inspect`](crate::spool::Inspect).
    Part(Bytes, Option<&'static str>),
}

impl Follower {
    /// A follower that comes back: it reads the `before` bytes of the history, up to the cursor, and goes on.
    pub fn resumed(before: VecDeque<Bytes>, before_last: Ticket, cursor: Cursor) -> Self {
        let n_before: usize = before.iter().map(Bytes::len).sum();
        let lsn = Lsn(cursor.lsn().0 - n_before as u64);
        Self { source: FollowerSource::Pieces(Pieces { before, before_last, cursor, lsn }), db: None }
    }

    /// A follower at a place in a spool.
    pub fn in_spool(reader: SpoolReader) -> Self {
        Self { source: FollowerSource::Spool(reader), db: None }
    }

    /// Looks for a mark after a cursor. Returns the follower that begins there, or the cursor if the mark is
    /// not in the stream yet.
    ///
    /// # Errors
    /// The cursor, moved on.
    pub fn at_mark(mut cursor: Cursor, mark: Ticket) -> Result<Self, Cursor> {
        while let Some(piece) = cursor.peek() {
            let found = match piece.kind {
                PieceKind::Mark(db) if piece.last == mark => Some(db),
                _ => None,
            };
            cursor.pass();
            if let Some(db) = found {
                return Ok(Self { db, ..Self::resumed(VecDeque::new(), 0, cursor) });
            }
        }
        Err(cursor)
    }

    /// Its place among the pieces, unless it reads a spool.
    pub fn pieces(&self) -> Option<&Pieces> {
        match &self.source {
            FollowerSource::Pieces(pieces) => Some(pieces),
            FollowerSource::Spool(_) => None,
        }
    }

    /// Reads a spool from now on, at the same place.
    pub(crate) fn move_to(&mut self, reader: SpoolReader) {
        debug_assert_eq!(self.lsn(), reader.lsn());
        self.source = FollowerSource::Spool(reader);
    }

    /// The place up to which it has read.
    pub fn lsn(&self) -> Lsn {
        match &self.source {
            FollowerSource::Pieces(pieces) => pieces.lsn(),
            FollowerSource::Spool(reader) => reader.lsn(),
        }
    }

    /// The place from which on the stream is kept in memory for it.
    pub fn memory_from(&self) -> Lsn {
        match &self.source {
            FollowerSource::Pieces(pieces) => pieces.lsn(),
            FollowerSource::Spool(reader) => reader.memory_from(),
        }
    }

    /// The database that is selected where it began at a mark, if the stream does not say so after that.
    pub fn db(&self) -> Option<u32> {
        self.db
    }

    /// Whether there is something to read whose tickets are [`reached`](Self::take). There is nothing any
    /// more once all data was replaced.
    pub fn has_more(&self, reached: Ticket) -> bool {
        match &self.source {
            FollowerSource::Pieces(pieces) => pieces.has_more(reached),
            FollowerSource::Spool(reader) => reader.has_more(reached),
        }
    }

    /// Reads the next bytes, if their tickets are not after `reached`. They may be empty.
    ///
    /// # Errors
    /// Those of a spool's disk.
    pub fn take(&mut self, reached: Ticket) -> io::Result<Option<Taken>> {
        self.leave_spool();
        match &mut self.source {
            FollowerSource::Pieces(pieces) => Ok(pieces.take(reached).map(Taken::Piece)),
            FollowerSource::Spool(reader) => {
                let (bytes, found) = reader.read()?;
                self.leave_spool();
                Ok(Some(Taken::Part(bytes, found)))
            }
        }
    }

    /// Reads pieces again, if it has read all of its spool.
    fn leave_spool(&mut self) {
        if let FollowerSource::Spool(reader) = &self.source
            && let Some(pieces) = reader.successor()
        {
            self.source = FollowerSource::Pieces(pieces);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        intake::{Kind, Writer},
        stream::ChangeStream,
    };

    fn add(stream: &ChangeStream<()>, writer: &mut Writer, kind: Kind, text: &str) -> Ticket {
        let ticket = stream.add(writer, |to| {
            to.extend_from_slice(text.as_bytes());
            kind
        });
        stream.publish(writer);
        let mut held = stream.take();
        while held.merger.merge(stream.intake()) {}
        ticket
    }

    const UNIT: Kind = Kind::Commands { first_db: 3, last_db: 3 };

    fn read_all(follower: &mut Follower, reached: Ticket) -> String {
        let mut text = String::new();
        while let Some(taken) = follower.take(reached).expect("it reads no disk") {
            let Taken::Piece(bytes) = taken else { panic!("it reads no spool") };
            text.push_str(std::str::from_utf8(&bytes).expect("it is text"));
        }
        text
    }

    #[test]
    fn it_begins_at_its_mark_with_the_database_and_reads_what_is_reached() {
        let (stream, mut writer) = (ChangeStream::new(1, ()), Writer::new(0));
        let cursor = stream.subscribe();
        add(&stream, &mut writer, UNIT, "before ");
        add(&stream, &mut writer, Kind::Mark, "");
        let cursor = Follower::at_mark(cursor, 9).expect_err("there is no such mark");
        let mark = stream.add_mark(&mut writer);
        let cursor = Follower::at_mark(cursor, mark).expect_err("the mark is not merged");
        add(&stream, &mut writer, UNIT, "one ");
        let last = add(&stream, &mut writer, Kind::ForFollowers, "ping ");
        let mut follower = Follower::at_mark(cursor, mark).expect("it is merged");
        let select = "*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n";
        assert_eq!(read_all(&mut follower, last - 1), format!("{select}one "));
        assert!(!follower.has_more(last - 1) && follower.has_more(last));
        assert_eq!(read_all(&mut follower, last), "ping ");
        add(&stream, &mut writer, UNIT, "two");
        assert_eq!(read_all(&mut follower, Ticket::MAX), "two", "the database is selected still");
        assert_eq!(follower.lsn(), stream.merged_end().1);
    }

    #[test]
    fn it_comes_back_where_it_was_as_long_as_the_history_goes_back() {
        let (stream, mut writer) = (ChangeStream::new(1, ()), Writer::new(0));
        assert!(stream.resume(Lsn(0)).is_none(), "nothing is kept");
        stream.take().merger.keep_history(1 << 20);
        let mark = stream.add_mark(&mut writer);
        let cursor = stream.subscribe();
        add(&stream, &mut writer, UNIT, "one ");
        let mut follower = Follower::at_mark(cursor, mark).expect("it is merged");
        read_all(&mut follower, Ticket::MAX);
        let left_at = follower.lsn();
        drop(follower);
        add(&stream, &mut writer, UNIT, "two ");
        let last = add(&stream, &mut writer, Kind::ForFollowers, "ping ");
        let mut again = stream.resume(left_at).expect("it is kept");
        assert_eq!(again.lsn(), left_at);
        assert!(again.take(last - 1).expect("it reads no disk").is_none(), "some of it may not leave yet");
        let next = add(&stream, &mut writer, UNIT, "three");
        assert_eq!(read_all(&mut again, last), "two ping ");
        assert_eq!(read_all(&mut again, next), "three");
        assert!(stream.resume(Lsn(again.lsn().0 + 1)).is_none(), "it is ahead");
    }
}
