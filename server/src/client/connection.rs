//! One client's socket, buffers and session.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, atomic::Ordering},
};

use braid_journal::intake::Ticket;
use braid_protocol::{reply::Resp, request::RequestParser};
use braid_storage::executor::Node;

use crate::{
    client::{
        footprint::Part,
        held_back::HeldBack,
        node::{Job, Parked},
        record::ClientRecord,
    },
    notify::pushed::{Given, Shareable},
    sockets::{stream::Stream, tls::Ciphertext},
    telemetry::split::Split,
};

/// How much is written to one socket in one turn: a system call that copies megabytes would stall the
/// thread's other connections.
pub const TURN_BYTES: usize = 256 * 1024;

/// A reply of at least so many bytes becomes a piece of its own of the backlog, without being copied.
const OWN_PIECE_BYTES: usize = 16 * 1024;

/// A connection.
pub struct Connection {
    /// The socket.
    pub stream: Stream,
    /// The session, and room for work that must wait for a shard. Absent while that work is under way: the
    /// connection is parked and starts nothing new.
    pub node: Option<Box<Node<Job>>>,
    /// Where the next request begins.
    pub parser: RequestParser,
    /// What was read and not run: an incomplete request, or what came behind a command that is under way.
    pub unread: Vec<u8>,
    /// Up to where the room for a long argument in there has been written to, if that is so long.
    pub n_ready: usize,
    /// How many bytes an incomplete request still lacks, at least.
    pub wanted: usize,
    /// The input that what is under way was read from, in bytes.
    pub n_under_way: usize,
    /// Upper bound, in bytes, of what its long command under way adds to the log.
    pub promised: usize,
    /// What of its memory its thread has counted.
    pub counted_bytes: u64,
    /// The [incoming bytes](Self::incoming_bytes) that were last counted.
    pub counted_incoming: u64,
    /// Replies that the socket has not taken yet.
    pub backlog: Backlog,
    /// The socket has taken all that was offered, so there is no event to wait for before it is offered more.
    pub writable: bool,
    /// The socket may have more to read.
    pub readable: bool,
    /// Commands that have come whole wait in `unread` for the next turn: it has had its share of this one.
    pub is_behind: bool,
    /// The client has closed its end, or both.
    pub peer_closed: bool,
    /// Close as soon as the backlog is written, and read nothing more.
    pub closing: bool,
    /// What it waits for before more of it is read and run.
    pub pace: Pace,
    /// Up to where the log must be written, or synced, before its replies leave and more of it runs; 0 if it
    /// waits for nothing of that.
    pub ticket: Ticket,
    /// Up to where it must be synced for all that the client has written so far.
    pub last_ticket: Ticket,
    /// Its handshake waits for its turn on the thread.
    pub is_queued: bool,
    /// What is sent to it while the reply to a command that has changed its subscriptions is still to be
    /// written.
    pub held_back: Option<HeldBack>,
    /// Where its node is among those that a pause holds back.
    pub postponed: Option<u64>,
    /// The command of it that waits for keys.
    pub waiting: Option<Arc<Parked>>,
    /// WAIT or WAITAOF waits, and all replies before it have been written.
    pub awaits_sync: bool,
    /// Nothing more is written: the socket has failed, or the client is closed in the middle of its replies.
    pub is_lost: bool,
    /// What others see.
    pub record: Arc<ClientRecord>,
    /// Where its time goes, if that is asked for and something of it is under way.
    pub split: Option<Box<Split>>,
    /// When the backlog went over its soft limit, in milliseconds of uptime.
    pub over_soft_limit_since: Option<u64>,
}

/// What a connection waits for before more of it is read and run. Its session is with it, so it can be closed
/// meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Nothing.
    Free,
    /// Its thread must have read so many notifications: they came before what it has sent.
    AfterNotifications(u64),
    /// The queues of these threads, a bit each, must have emptied: its commands have filled them.
    UntilRoom(u128),
    /// The TLS handshake must have come to an end.
    UntilSecure,
}

impl Connection {
    /// What every connection takes: itself, its node, and what others see.
    pub const OWN_BYTES: usize = size_of::<Self>() + size_of::<Node<Job>>() + size_of::<ClientRecord>();

    /// Whether it may be read and its commands may run.
    #[inline]
    pub fn may_go_on(&self) -> bool {
        self.node.is_some() && !self.closing && self.pace == Pace::Free && self.ticket == 0
    }

    /// Whether a command of the connection is under way somewhere.
    #[inline]
    pub fn is_parked(&self) -> bool {
        self.node.is_none()
    }

    /// Writes as much of the replies as the socket takes. `out` is emptied; what is left goes to the backlog.
    ///
    /// # Errors
    /// The socket's. The connection is of no use after that.
    pub fn write(&mut self, out: &mut Vec<u8>, room: &mut Ciphertext) -> io::Result<Written> {
        let mut written = Written::default();
        if self.ticket != 0 {
            self.backlog.push(out, 0);
        } else if self.backlog.is_empty() && !out.is_empty() && out.len() <= TURN_BYTES {
            let n = write_some(&mut self.stream, out, room, &mut written)?;
            if n == out.len() {
                out.clear();
                return Ok(written);
            }
            self.backlog.push(out, n);
            self.writable = false;
        } else {
            self.backlog.push(out, 0);
            if !self.backlog.is_empty() {
                self.writable = self.backlog.write_to(&mut self.stream, room, &mut written)?;
            } else if self.stream.has_unsent() {
                self.writable = self.stream.flush()?;
            }
        }
        self.publish_backlog();
        Ok(written)
    }

    /// The dialect in which it is sent what it has not asked for.
    pub fn version(&self) -> Resp {
        match &self.node {
            Some(node) => node.job.session.resp,
            None if self.record.resp.load(Ordering::Relaxed) == 3 => Resp::V3,
            None => Resp::V2,
        }
    }

    /// Notes that WAIT or WAITAOF waits, whose node is this.
    pub fn begin_sync_wait(&mut self, node: &Node<Job>) {
        node.job.session.publish_dialect();
        self.awaits_sync = node.job.reply.is_empty();
        // There is no reply that this would have to follow.
        if self.awaits_sync
            && let Some(held_back) = self.held_back.take()
        {
            self.send_held_back(&held_back, node.job.session.resp);
        }
    }

    /// Sends what was held back: the dialect is known by now.
    pub fn send_held_back(&mut self, held_back: &HeldBack, version: Resp) {
        held_back.in_dialect(version).for_each(|part| self.send(part));
    }

    /// Whether a command is under way that may read keys: it is not while it waits for keys or for the disk.
    pub fn may_read(&self) -> bool {
        self.waiting.is_none() && !self.awaits_sync
    }

    /// Adds to what waits to be written.
    pub fn send(&mut self, bytes: &[u8]) {
        self.backlog.push_bytes(bytes);
        self.publish_backlog();
    }

    /// Adds something to what waits to be written that may be for others as well; says whether nothing had
    /// waited before. What waits is published with the write that follows, if the socket takes more.
    pub fn give(&mut self, given: Given<'_>) -> bool {
        let was_empty = self.backlog.is_empty();
        if !given.head.is_empty() {
            self.backlog.push_bytes(given.head);
        }
        match given.rest {
            Shareable::Copied(bytes) => self.backlog.push_bytes(bytes),
            Shareable::Shared(bytes) => self.backlog.push_piece(Piece::Shared(Arc::clone(bytes))),
        }
        if !was_empty {
            self.publish_backlog();
        }
        was_empty
    }

    /// Whether there is something to write that the socket would take.
    pub fn can_write(&self) -> bool {
        self.writable && self.ticket == 0 && (!self.backlog.is_empty() || self.stream.has_unsent())
    }

    /// Has others see how much waits to be written.
    #[inline]
    pub fn publish_backlog(&self) {
        let n_held_back = self.held_back.as_ref().map_or(0, HeldBack::n_bytes);
        self.record.footprint.set(Part::Output, self.backlog.kept_bytes() + n_held_back);
        self.record.output_pieces.store(self.backlog.pieces.len() as u32, Ordering::Relaxed);
    }
}

impl Connection {
    /// Notes from how many bytes of input commands were read, if one of them is under way now.
    #[inline]
    pub fn note_under_way(&mut self, n_bytes: usize) {
        if self.is_parked() {
            self.n_under_way = n_bytes;
        }
    }

    /// Has others see how much was read and is not run, or waits for EXEC.
    #[inline]
    pub fn publish_input(&self) {
        let n_unread = self.unread.len();
        let (n_input, n_arguments) = match &self.node {
            // Of an incomplete request.
            Some(_) => {
                let n_parsed = self.parser.parsed_bytes().min(n_unread);
                (n_unread - n_parsed, n_parsed)
            }
            None => (n_unread, self.n_under_way),
        };
        self.record.footprint.set(Part::Input, n_input);
        // That of a buffer which has grown with what came is not worth the figures that would differ from
        // client to client.
        let n_room = if self.n_ready == 0 { 0 } else { self.unread.capacity() - n_unread };
        self.record.footprint.set(Part::InputRoom, n_room);
        self.record.footprint.set(Part::Arguments, n_arguments);
        if let Some(node) = &self.node {
            node.job.session.publish_footprint();
        }
    }

    /// How much of what it is sending is about to be data: a long command that has come in part, or is under
    /// way. Of a client that has not authenticated, nothing.
    #[inline]
    pub fn incoming_bytes(&self) -> u64 {
        const LONG_BYTES: u64 = 64 << 10;
        let parts = [Part::Input, Part::InputRoom, Part::Arguments];
        let bytes = parts.into_iter().map(|part| self.record.footprint.of(part)).sum();
        if bytes > LONG_BYTES && self.parser.limits().authenticated { bytes } else { 0 }
    }

    /// Has others see how much memory it takes; gives that.
    #[inline]
    pub fn publish_footprint(&self) -> u64 {
        self.publish_input();
        self.publish_backlog();
        self.record.footprint.sum()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Half of a long argument may have come. To give megabytes back takes long: that is done elsewhere.
        braid_storage::discard_bytes(std::mem::take(&mut self.unread));
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        self.pieces.drain(..).for_each(Piece::discard);
    }
}

/// What one or more writes came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    /// Bytes the socket took.
    pub n_bytes: u64,
    /// Calls.
    pub n_writes: u64,
}

/// Writes once; 0 if the socket is full.
fn write_some(
    stream: &mut Stream,
    bytes: &[u8],
    room: &mut Ciphertext,
    written: &mut Written,
) -> io::Result<usize> {
    loop {
        match stream.write(bytes, room) {
            Ok(n) => {
                written.n_bytes += n as u64;
                written.n_writes += 1;
                return Ok(n);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A part of what waits for the socket.
#[derive(Debug)]
pub enum Piece {
    /// Of this connection alone.
    Own(Vec<u8>),
    /// Waits at other connections as well.
    Shared(Arc<[u8]>),
}

impl Piece {
    /// Frees it, elsewhere if it is large.
    fn discard(self) {
        if let Piece::Own(bytes) = self {
            braid_storage::discard_bytes(bytes);
        }
    }
}

impl std::ops::Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Piece::Own(bytes) => bytes,
            Piece::Shared(bytes) => bytes,
        }
    }
}

/// Replies that wait for the socket, in order.
#[derive(Debug, Default)]
pub struct Backlog {
    pieces: VecDeque<Piece>,
    /// How much of the first piece is written.
    sent: usize,
    /// Bytes not written yet.
    pub n_bytes: usize,
}

impl Backlog {
    /// Whether everything is written.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// How much memory it keeps, about: a piece goes when its last byte is written, with the room that it has
    /// beyond its end.
    fn kept_bytes(&self) -> usize {
        let n_spare = match self.pieces.front() {
            Some(Piece::Own(first)) => first.capacity() - first.len(),
            _ => 0,
        };
        self.n_bytes + self.sent + n_spare
    }

    /// Adds `bytes` from `from` on, and empties `bytes`.
    fn push(&mut self, bytes: &mut Vec<u8>, from: usize) {
        let n_new = bytes.len() - from;
        if n_new == 0 {
            bytes.clear();
            return;
        }
        self.n_bytes += n_new;
        if n_new >= OWN_PIECE_BYTES {
            if bytes.capacity() > bytes.len() + bytes.len() / 4 {
                // It may wait for long.
                bytes.shrink_to_fit();
            }
            if self.pieces.is_empty() {
                self.sent = from;
                self.pieces.push_back(Piece::Own(std::mem::take(bytes)));
                return;
            }
            if from == 0 {
                self.pieces.push_back(Piece::Own(std::mem::take(bytes)));
                return;
            }
        }
        self.add(&bytes[from..]);
        bytes.clear();
    }

    /// Adds a copy of some bytes.
    fn push_bytes(&mut self, bytes: &[u8]) {
        self.n_bytes += bytes.len();
        self.add(bytes);
    }

    fn add(&mut self, bytes: &[u8]) {
        match self.pieces.back_mut() {
            Some(Piece::Own(last)) if last.len() + bytes.len() <= OWN_PIECE_BYTES => {
                last.extend_from_slice(bytes)
            }
            _ => self.pieces.push_back(Piece::Own(bytes.to_vec())),
        }
    }

    /// Adds a piece as it is.
    pub fn push_piece(&mut self, piece: Piece) {
        self.n_bytes += piece.len();
        self.pieces.push_back(piece);
    }

    /// Writes a turn's share; says whether the socket took all that was offered.
    fn write_to(
        &mut self,
        stream: &mut Stream,
        room: &mut Ciphertext,
        written: &mut Written,
    ) -> io::Result<bool> {
        let mut left = TURN_BYTES;
        while let Some(first) = self.pieces.front()
            && left > 0
        {
            let rest = &first[self.sent..];
            let offered = &rest[..rest.len().min(left)];
            let n = write_some(stream, offered, room, written)?;
            let is_full = n < offered.len();
            self.n_bytes -= n;
            self.sent += n;
            left -= n;
            if self.sent == first.len() {
                self.pieces.pop_front().into_iter().for_each(Piece::discard);
                self.sent = 0;
            }
            if is_full {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
