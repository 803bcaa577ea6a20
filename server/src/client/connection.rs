//! One client's socket, buffers and session.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, atomic::Ordering},
};

use braid_journal::intake::Ticket;
use braid_protocol::{reply::Resp, request::RequestParser};
use braid_storage::{memory::reclaim, sync::executor::Node};
use bytes::Bytes;

use crate::{
    client::{footprint::Part, held_back::HeldBack, node::Job, record::ClientRecord, state::ConnectionState},
    notify::pushed::{Given, Shareable},
    replication::replica_link::ReplicaLink,
    sockets::{stream::Stream, tls::Ciphertext},
    telemetry::split::Split,
};

/// The bytes that are written to one socket in one turn. A system call that copies megabytes would stall the
/// thread's other connections.
pub const TURN_BYTES: usize = 256 * 1024;

/// The size of a reply from which it becomes a piece of the backlog uncopied.
const OWN_PIECE_BYTES: usize = 16 * 1024;

/// A connection.
pub struct Connection {
    /// The socket.
    pub stream: Stream,
    /// Whether it is read and its commands run, with its session and the space for delegated work.
    pub state: ConnectionState,
    /// The parser, at the start of the next request.
    pub parser: RequestParser,
    /// Input that has not run: an incomplete request, or the input after a command under way.
    pub unread: Vec<u8>,
    /// The end of the written room for a long argument in `unread`, if there is one.
    pub n_ready: usize,
    /// The minimum of bytes that an incomplete request still lacks.
    pub wanted: usize,
    /// The length of the input from which the commands under way were read, in bytes.
    pub n_under_way: usize,
    /// The maximum of bytes that its long command under way will add to the log.
    pub promised: usize,
    /// The part of its memory that its thread has counted.
    pub counted_bytes: u64,
    /// The [incoming bytes](Self::incoming_bytes) that were last counted.
    pub counted_incoming: u64,
    /// Replies that the socket has not taken yet.
    pub backlog: Backlog,
    /// Whether the socket has taken all offered bytes. Then more can be offered without an event.
    pub writable: bool,
    /// Whether the socket may have more to read.
    pub readable: bool,
    /// Whether complete commands wait in `unread` for the next turn. It has had its share of this one.
    pub is_behind: bool,
    /// Whether the client has closed its end, or both ends.
    pub peer_closed: bool,
    /// Whether it closes, and when.
    pub closing: Closing,
    /// The position that the log must reach before its replies leave and more runs. The log is written, or
    /// synced, to it. It is 0 if the connection does not wait for the log.
    pub ticket: Ticket,
    /// The position to which the log must be synced for all of the client's writes.
    pub last_ticket: Ticket,
    /// Notifications to it while a reply is not written yet. That reply belongs to a command that has changed
    /// its subscriptions.
    pub held_back: Option<HeldBack>,
    /// The data that other threads see.
    pub record: Arc<ClientRecord>,
    /// The source of its output if it is a replica.
    pub link: Option<Box<ReplicaLink>>,
    /// The division of its time, if requested, while something of it is under way.
    pub split: Option<Box<Split>>,
    /// The time at which the backlog exceeded its soft limit, in milliseconds of uptime.
    pub over_soft_limit_since: Option<u64>,
}

/// Whether a connection closes, and when. It only rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Closing {
    /// It stays open.
    No,
    /// Nothing more is read. It closes when its replies are written.
    AfterReplies,
    /// Nothing more is written either. The socket has failed, or the client was closed in the middle of its
    /// replies. It closes as soon as its node is back.
    Now,
}

impl Connection {
    /// The memory of every connection: itself, its node, and its record.
    pub const OWN_BYTES: usize = size_of::<Self>() + size_of::<Node<Job>>() + size_of::<ClientRecord>();

    /// Whether it may be read and its commands may run.
    #[inline]
    pub fn may_go_on(&self) -> bool {
        self.state.is_ready() && self.closing == Closing::No && self.ticket == 0
    }

    /// Whether a command of the connection is under way somewhere.
    #[inline]
    pub fn is_parked(&self) -> bool {
        self.state.is_parked()
    }

    /// Makes it close, unless it already closes sooner.
    pub fn close(&mut self, closing: Closing) {
        self.closing = self.closing.max(closing);
    }

    /// Whether it closes.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.closing != Closing::No
    }

    /// Whether nothing more is written.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.closing == Closing::Now
    }

    /// Writes as much of the replies as the socket takes. `out` is emptied; the rest goes to the backlog.
    ///
    /// # Errors
    /// If the socket fails. The connection is then of no use.
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

    /// The RESP version of notifications to it.
    pub fn version(&self) -> Resp {
        match self.state.node() {
            Some(node) => node.job.session.resp,
            None if self.record.resp.load(Ordering::Relaxed) == 3 => Resp::V3,
            None => Resp::V2,
        }
    }

    /// Keeps the node of WAIT or WAITAOF while the command waits.
    pub fn begin_sync_wait(&mut self, node: Box<Node<Job>>) {
        node.job.session.publish_dialect();
        // If there is no reply now, notifications need not follow one.
        if node.job.reply.is_empty()
            && let Some(held_back) = self.held_back.take()
        {
            self.send_held_back(&held_back, node.job.session.resp);
        }
        self.state.await_sync(node);
    }

    /// Sends the notifications that were held back: the RESP version is known by now.
    pub fn send_held_back(&mut self, held_back: &HeldBack, version: Resp) {
        held_back.in_dialect(version).for_each(|part| self.send(part));
    }

    /// Whether a command is under way that may read keys.
    ///
    /// A command that waits for keys does not read any. Neither does WAIT, once all earlier replies are
    /// written.
    pub fn may_read(&self) -> bool {
        match &self.state {
            ConnectionState::AwaitsKeys(_) => false,
            ConnectionState::AwaitsSync(node) => !node.job.reply.is_empty(),
            _ => true,
        }
    }

    /// Adds bytes to the backlog.
    pub fn send(&mut self, bytes: &[u8]) {
        self.backlog.push_bytes(bytes);
        self.publish_backlog();
    }

    /// Adds bytes to the backlog that other connections may share. Returns whether it was empty before.
    ///
    /// The backlog's size is published with the following write, if the socket takes more.
    pub fn give(&mut self, given: Given<'_>) -> bool {
        let was_empty = self.backlog.is_empty();
        if !given.head.is_empty() {
            self.backlog.push_bytes(given.head);
        }
        match given.rest {
            Shareable::Copied(bytes) => self.backlog.push_bytes(bytes),
            Shareable::Shared(bytes) => self.backlog.push_piece(BacklogPiece::Shared(Arc::clone(bytes))),
        }
        if !was_empty {
            self.publish_backlog();
        }
        was_empty
    }

    /// Whether there are bytes to write that the socket would take.
    pub fn can_write(&self) -> bool {
        self.writable && self.ticket == 0 && (!self.backlog.is_empty() || self.stream.has_unsent())
    }

    /// Publishes the size of the backlog.
    #[inline]
    pub fn publish_backlog(&self) {
        let n_held_back = self.held_back.as_ref().map_or(0, HeldBack::n_bytes);
        self.record.footprint.set(Part::Output, self.backlog.kept_bytes() + n_held_back);
        self.record.output_pieces.store(self.backlog.pieces.len() as u32, Ordering::Relaxed);
    }
}

impl Connection {
    /// Records the length of the commands' input, if a command is under way now.
    #[inline]
    pub fn note_under_way(&mut self, n_bytes: usize) {
        if self.is_parked() {
            self.n_under_way = n_bytes;
        }
    }

    /// Publishes the size of the input that has not run or is queued for EXEC.
    #[inline]
    pub fn publish_input(&self) {
        let n_unread = self.unread.len();
        let (n_input, n_arguments) = match self.state.node() {
            // This is the part of an incomplete request.
            Some(_) => {
                let n_parsed = self.parser.parsed_bytes().min(n_unread);
                (n_unread - n_parsed, n_parsed)
            }
            None => (n_unread, self.n_under_way),
        };
        self.record.footprint.set(Part::Input, n_input);
        // The spare room of a buffer that has grown with its input is not worth figures that differ from
        // client to client.
        let n_room = if self.n_ready == 0 { 0 } else { self.unread.capacity() - n_unread };
        self.record.footprint.set(Part::InputRoom, n_room);
        self.record.footprint.set(Part::Arguments, n_arguments);
        if let Some(node) = self.state.node() {
            node.job.session.publish_footprint();
        }
    }

    /// The bytes of its input that will become data.
    ///
    /// They belong to a long command that has arrived in part, or is under way.
    ///
    /// Nothing counts for a client that has not authenticated.
    #[inline]
    pub fn incoming_bytes(&self) -> u64 {
        const LONG_BYTES: u64 = 64 << 10;
        let parts = [Part::Input, Part::InputRoom, Part::Arguments];
        let bytes = parts.into_iter().map(|part| self.record.footprint.of(part)).sum();
        if bytes > LONG_BYTES && self.parser.limits().authenticated { bytes } else { 0 }
    }

    /// Publishes the memory that it uses, and returns it.
    #[inline]
    pub fn publish_footprint(&self) -> u64 {
        self.publish_input();
        self.publish_backlog();
        self.record.footprint.sum()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Part of a long argument may have arrived. Freeing megabytes takes long, so another thread does it.
        reclaim::discard_bytes(std::mem::take(&mut self.unread));
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        self.pieces.drain(..).for_each(BacklogPiece::discard);
    }
}

/// The sum of one or more writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    /// Bytes that the socket took.
    pub n_bytes: u64,
    /// The number of calls.
    pub n_writes: u64,
}

/// Writes once, and returns 0 if the socket is full.
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

/// A part of the backlog.
#[derive(Debug)]
pub enum BacklogPiece {
    /// Owned by this connection alone.
    Own(Vec<u8>),
    /// Shared with other connections.
    Shared(Arc<[u8]>),
    /// Shared with the change stream.
    Stream(Bytes),
}

impl BacklogPiece {
    /// Frees it, on another thread if it is large.
    fn discard(self) {
        if let BacklogPiece::Own(bytes) = self {
            reclaim::discard_bytes(bytes);
        }
    }
}

impl std::ops::Deref for BacklogPiece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            BacklogPiece::Own(bytes) => bytes,
            BacklogPiece::Shared(bytes) => bytes,
            BacklogPiece::Stream(bytes) => bytes,
        }
    }
}

/// Replies that wait for the socket, in order.
#[derive(Debug, Default)]
pub struct Backlog {
    pieces: VecDeque<BacklogPiece>,
    /// The number of bytes of the first piece that are written.
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

    /// The approximate memory that it keeps.
    ///
    /// A piece is freed when its last byte is written, with the spare capacity after its end.
    fn kept_bytes(&self) -> usize {
        let n_spare = match self.pieces.front() {
            Some(BacklogPiece::Own(first)) => first.capacity() - first.len(),
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
                // The reply may wait for long.
                bytes.shrink_to_fit();
            }
            if self.pieces.is_empty() {
                self.sent = from;
                self.pieces.push_back(BacklogPiece::Own(std::mem::take(bytes)));
                return;
            }
            if from == 0 {
                self.pieces.push_back(BacklogPiece::Own(std::mem::take(bytes)));
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
            Some(BacklogPiece::Own(last)) if last.len() + bytes.len() <= OWN_PIECE_BYTES => {
                last.extend_from_slice(bytes)
            }
            _ => self.pieces.push_back(BacklogPiece::Own(bytes.to_vec())),
        }
    }

    /// Adds a piece without a copy.
    pub fn push_piece(&mut self, piece: BacklogPiece) {
        self.n_bytes += piece.len();
        self.pieces.push_back(piece);
    }

    /// Writes a turn's share, and returns whether the socket took all offered bytes.
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
                self.pieces.pop_front().into_iter().for_each(BacklogPiece::discard);
                self.sent = 0;
            }
            if is_full {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
