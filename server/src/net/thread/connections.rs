//! A connection's turn: it is read, served, written to, and closed if necessary.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

use braid_protocol::request::{Limits, RequestParser};
use braid_storage::{
    memory::reclaim,
    sync::{
        coordinator::{Route, Weight},
        executor::Node,
    },
};
use mio::Token;

use super::{IoThread, READ_BYTES, replica_links, returning::redeem};
use crate::{
    client::{
        argument_buffer::Room,
        connection::{Backlog, Closing, Connection, TURN_BYTES},
        footprint::Footprint,
        id::Origin,
        node::{Job, Task},
        record::{ClientRecord, Listens},
        session::Session,
        state::ConnectionState,
        waits::WaitEnd,
    },
    config::OutputLimit,
    shared::server::Server,
    sockets::{
        poller::Ready,
        stream::{Accepted, Stream},
    },
    verbose, warning_seldom,
};

/// The capacity for replies that a thread keeps. It holds one write, with the growth of its buffer.
const KEPT_OUT_BYTES: usize = 2 * TURN_BYTES;

/// The bytes of replies that may wait for a client that has not authenticated. Such a client receives little
/// but errors.
const STRANGER_OUTPUT_BYTES: usize = 16 << 10;

impl IoThread {
    /// Begins to serve a connection.
    pub(super) fn welcome(&mut self, mut accepted: Accepted) {
        let server = self.server();
        let slot = self.connections.next();
        if let Err(error) = self.poller.register(&mut accepted.stream, Token(slot)) {
            warning_seldom!("Registering a client's socket: {error}");
            server.threads[self.worker.thread.index].n_connections.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let origin = Origin { thread: self.worker.thread.index, slot };
        let mut record = ClientRecord::new(
            server.clients.next_id(),
            origin,
            accepted.peer,
            accepted.local,
            accepted.stream.fd(),
            server.clock.uptime_millis(),
            server.accounts.users().default_user(),
        );
        record.footprint = Footprint::of_new_client(Connection::OWN_BYTES);
        let record = Arc::new(record);
        server.clients.add(Arc::clone(&record));
        // Counted only once it is in the list of clients. A reader of this count finds each counted client in
        // the list, or the client has left.
        self.worker.thread.stats().connections.add(1);
        let is_secure = matches!(accepted.stream, Stream::Tls(_));
        let id = record.id;
        let mut session = Session::new(Arc::clone(&record), origin);
        server.become_default_user(&mut session);
        let authenticated = session.authenticated;
        let node = Node::new(Job::new(session));
        let state = if is_secure {
            ConnectionState::Handshake { node, is_queued: false }
        } else {
            ConnectionState::Ready(node)
        };
        self.connections.insert(Box::new(Connection {
            stream: accepted.stream,
            state,
            parser: RequestParser::new(Limits { authenticated, ..self.own.limits }),
            unread: Vec::new(),
            n_ready: 0,
            wanted: 0,
            n_under_way: 0,
            promised: 0,
            counted_bytes: 0,
            counted_incoming: 0,
            backlog: Backlog::default(),
            writable: true,
            readable: true,
            is_behind: false,
            peer_closed: false,
            closing: Closing::No,
            record,
            link: None,
            ticket: 0,
            last_ticket: 0,
            held_back: None,
            split: None,
            over_soft_limit_since: None,
        }));
        self.count_memory_at(slot);
        if is_secure {
            self.begin_handshake(slot, id);
        } else {
            self.go_on(slot);
        }
    }

    pub(super) fn on_event(&mut self, slot: usize, event: &Ready) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        connection.readable |= event.is_readable;
        connection.writable |= event.is_writable;
        connection.peer_closed |= event.is_read_closed;
        if let ConnectionState::Handshake { .. } = connection.state {
            self.queue_handshake(slot);
            return;
        }
        let may_have_left = connection.peer_closed && connection.is_parked();
        // A command that only waits for permission to write runs nevertheless, like a command that was read.
        // It was sent before the end of the stream.
        let waits = connection.state.awaits_keys().is_some_and(|parked| parked.is_visible());
        let may_read = (event.is_readable || event.is_read_closed) && connection.may_go_on();
        if may_read || connection.can_write() {
            self.go_on(slot);
        }
        if may_have_left && waits {
            self.end_wait(slot, WaitEnd::Left);
        } else if may_have_left {
            self.close_postponed(slot);
        }
    }

    /// Serves a connection for its turn: its unread input, new input, and its replies.
    ///
    /// `self.buffers.replies` may already hold replies to this connection.
    pub(super) fn go_on(&mut self, slot: usize) {
        self.worker.thread.leave_to_others();
        let Some(mut connection) = self.connections.take(slot) else { return };
        let mut out = std::mem::take(&mut self.buffers.replies);
        self.worker.thread.ticket.set(0);
        let read = self.run_unread(&mut connection, &mut out).and_then(|()| {
            if connection.readable && !connection.is_behind && connection.may_go_on() {
                self.read(&mut connection, &mut out)
            } else {
                Ok(())
            }
        });
        if self.server().durability.fills_stream() {
            self.await_log(slot, &mut connection, out.len());
        }
        if connection.is_lost() {
            out.clear();
            connection.backlog = Backlog::default();
        }
        let must_close = self.is_over_hard_limit(&connection, out.len());
        let written = read.and_then(|()| match must_close {
            true => Err(io::ErrorKind::OutOfMemory.into()),
            false => connection.write(&mut out, &mut self.buffers.ciphertext),
        });
        if out.capacity() > KEPT_OUT_BYTES || must_close {
            // A long reply to no one. Otherwise the thread would keep this memory.
            reclaim::discard_bytes(std::mem::take(&mut out));
        }
        out.clear();
        self.buffers.replies = out;
        if connection.split.is_some() {
            self.end_split(&mut connection);
        }
        self.count_memory(&mut connection);
        let alive = match written {
            Ok(written) => {
                let stats = self.worker.thread.stats();
                match connection.link {
                    None => stats.bytes_out.add(written.n_bytes),
                    Some(_) => stats.replica_bytes_out.add(written.n_bytes),
                }
                connection.record.count_written(written.n_bytes);
                stats.writes.add(written.n_writes);
                !connection.record.is_killed() && !self.is_over_soft_limit(&mut connection)
            }
            Err(_) => false,
        };
        if !alive {
            connection.close(Closing::Now);
            connection.backlog = Backlog::default();
            if connection.is_parked() {
                self.count_memory(&mut connection);
            }
        }
        self.keep_or_close(slot, connection);
    }

    /// Returns a connection to its slot. Closes it instead if it must close and nothing of it is under way.
    fn keep_or_close(&mut self, slot: usize, connection: Box<Connection>) {
        let done = connection.is_closing() && connection.backlog.is_empty();
        if done && connection.state.may_close() {
            self.connections.put_back(slot, connection);
            self.drop_connection(slot);
            return;
        }
        let can_read = (connection.readable || connection.is_behind) && connection.may_go_on();
        if can_read || connection.can_write() {
            self.again.push(slot);
        }
        self.connections.put_back(slot, connection);
    }

    /// Closes a connection at once, or as soon as its command under way returns.
    ///
    /// While it is listed it shows its last memory use, which may be the reason for its end.
    pub(super) fn drop_connection(&mut self, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        // Returning replies would be taken for those that are dropped here.
        connection.close(Closing::Now);
        connection.backlog = Backlog::default();
        if !connection.state.may_close() {
            self.end_wait(slot, WaitEnd::Left);
            return;
        }
        let Some(mut connection) = self.connections.take(slot) else { return };
        if let ConnectionState::Postponed { nth, .. } = connection.state {
            self.waits.forget_postponed(nth);
        }
        redeem(&mut connection, self.server());
        connection.stream.close();
        self.uncount_memory(&mut connection);
        let server = self.server();
        let record = &connection.record;
        verbose!("Client closed connection id={} addr={}", record.id.0, record.peer);
        // This comes first: there is room for another client when this one is no longer listed.
        server.threads[self.worker.thread.index].n_connections.fetch_sub(1, Ordering::Relaxed);
        // A CLIENT KILL that has found the record but not marked it yet must not count it.
        if record.killed.swap(true, Ordering::Relaxed) {
            server.killed_client_left();
        }
        server.evicted_client_left(record);
        self.bid_farewell(slot, *connection);
    }

    fn run_unread(&mut self, connection: &mut Connection, out: &mut Vec<u8>) -> io::Result<()> {
        connection.is_behind = false;
        // The loop also runs the input after a request that was moved into a transaction.
        while !connection.unread.is_empty() && connection.may_go_on() {
            let mut unread = std::mem::take(&mut connection.unread);
            let (is_fed, start) = (connection.link.is_some(), out.len());
            let consumed = self.serve(connection, &mut unread, out);
            if is_fed && out.len() > start {
                replica_links::part_with_answered_replica(connection, &out[start..], self.server());
                out.truncate(start);
            }
            connection.note_under_way(consumed);
            let has_moved = self.has_moved_input();
            // The room of a long argument stays while the argument arrives. Giving it up and taking it again
            // would copy its bytes.
            if consumed > 0 {
                unread = self.give_input(connection, unread, consumed);
                give_up_room(&mut unread);
            }
            connection.unread = unread;
            self.check_input(connection)?;
            if !has_moved {
                break;
            }
        }
        Ok(())
    }

    /// Reads once, and runs the requests that are complete now.
    fn read(&mut self, connection: &mut Connection, out: &mut Vec<u8>) -> io::Result<()> {
        let room = READ_BYTES.min(self.buffers.input.len());
        let n = loop {
            match connection.stream.read(&mut self.buffers.input[..room], &mut self.buffers.ciphertext) {
                Ok(n) => break n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    connection.readable = false;
                    // The flag may come from an event of the slot's previous connection.
                    connection.peer_closed = false;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        if n == 0 {
            connection.readable = false;
            connection.peer_closed = true;
            connection.close(Closing::AfterReplies);
            return Ok(());
        }
        // A read that did not fill the buffer has emptied the socket, unless the end of the stream is still
        // to come.
        connection.readable = n == room || connection.peer_closed || connection.stream.has_more();
        let stats = self.worker.thread.stats();
        stats.bytes_in.add(n as u64);
        stats.reads.add(1);
        connection.record.count_read(n);
        let is_listener = connection.record.is_listener();
        if connection.unread.is_empty() && !is_listener {
            let mut buffer = std::mem::take(&mut self.buffers.input);
            let consumed = self.serve(connection, &mut buffer[..n], out);
            connection.note_under_way(consumed);
            connection.unread.extend_from_slice(&buffer[consumed..n]);
            self.buffers.input = buffer;
        } else {
            let is_complete = connection.unread.is_empty() || n >= connection.wanted;
            grow_closely(&mut connection.unread, n);
            connection.unread.extend_from_slice(&self.buffers.input[..n]);
            if is_complete {
                // A long request may bring the client over its limit.
                self.count_memory(connection);
                if connection.record.is_killed() {
                    return Err(io::ErrorKind::OutOfMemory.into());
                }
                // Earlier notifications to the client come before the reply.
                if is_listener {
                    self.await_notifications(connection);
                }
                self.run_unread(connection, out)?;
                return self.check_input(connection);
            }
            connection.wanted -= n;
            self.check_input(connection)?;
            if Room::is_wanted(&connection.unread, connection.n_ready, connection.wanted, READ_BYTES) {
                self.ask_for_room(connection);
            }
            return Ok(());
        }
        self.check_input(connection)
    }

    /// Parks a connection until there is room for the rest of a long argument.
    #[cold]
    fn ask_for_room(&mut self, connection: &mut Connection) {
        let mut node = connection.state.depart();
        let unread = std::mem::take(&mut connection.unread);
        connection.n_under_way = unread.len();
        node.job.task = Task::MakeRoom(Room::behind(unread, connection.wanted, READ_BYTES));
        node.set_route(Route::default().with_weight(Weight::Heavy));
        self.worker.submit(node);
    }

    /// Returns the received part of a long argument to its connection, with room after it.
    pub(super) fn take_room(&mut self, node: &mut Node<Job>) {
        let Task::MakeRoom(room) = std::mem::take(&mut node.job.task) else { return };
        let connection = self.connections.parked(node.job.session.origin.slot);
        (connection.unread, connection.n_ready) = room.into_parts();
    }

    fn check_input(&mut self, connection: &mut Connection) -> io::Result<()> {
        let n_unread = connection.unread.len();
        connection.publish_input();
        // Commands that are queued for EXEC are kept input, too.
        let queue = connection.state.node().and_then(|node| node.job.session.queue.as_ref());
        let n_bytes = n_unread + queue.map_or(0, |queue| queue.n_bytes());
        if n_bytes <= self.own.config.client_query_buffer_limit {
            return Ok(());
        }
        self.worker.thread.stats().input_limit_closes.add(1);
        warning_seldom!(
            "Closing client that reached max query buffer length: id={} addr={} qbuf={n_bytes}",
            connection.record.id.0,
            connection.record.peer
        );
        Err(io::ErrorKind::OutOfMemory.into())
    }

    /// Whether more replies wait for a client than `client-output-buffer-limit` allows.
    ///
    /// `n_new` bytes have not been offered to its socket yet.
    fn is_over_hard_limit(&self, connection: &Connection, n_new: usize) -> bool {
        // The stream keeps the data that a replica has still to get.
        if connection.link.is_some() {
            return false;
        }
        let limit = if connection.record.listens(Listens::ToTopics) {
            self.own.config.client_output_buffer_limit.pubsub.hard() as usize
        } else {
            self.output_limit(connection)
        };
        let is_cut = || connection.state.node().is_some_and(|node| node.job.session.is_over_limit);
        let is_over = n_new + connection.backlog.n_bytes > limit || connection.is_closing() && is_cut();
        if is_over {
            self.report_over_limit(connection);
        }
        is_over
    }

    /// The bytes of replies that may wait for a client without subscriptions.
    pub(super) fn output_limit(&self, connection: &Connection) -> usize {
        let limit = self.worker.thread.stats().output_limit.load(Ordering::Relaxed);
        if connection.parser.limits().authenticated { limit } else { limit.min(STRANGER_OUTPUT_BYTES) }
    }

    /// Whether a client has read its replies too slowly for too long.
    fn is_over_soft_limit(&mut self, connection: &mut Connection) -> bool {
        if connection.link.is_some() {
            return false;
        }
        let limit = self.soft_limit(connection);
        let is_over = limit.soft_bytes != 0 && connection.backlog.n_bytes as u64 > limit.soft_bytes;
        if !is_over {
            connection.over_soft_limit_since = None;
            return false;
        }
        let now = self.server().clock.uptime_millis();
        let since = *connection.over_soft_limit_since.get_or_insert(now);
        let is_overdue = now - since > limit.soft_time.as_millis() as u64;
        if is_overdue {
            self.report_over_limit(connection);
        }
        is_overdue
    }

    fn soft_limit(&self, connection: &Connection) -> OutputLimit {
        let limits = &self.own.config.client_output_buffer_limit;
        if connection.record.listens(Listens::ToTopics) { limits.pubsub } else { limits.normal }
    }

    #[cold]
    pub(super) fn report_over_limit(&self, connection: &Connection) {
        self.worker.thread.stats().output_limit_closes.add(1);
        let (id, addr) = (connection.record.id.0, &connection.record.peer);
        if connection.parser.limits().authenticated {
            warning_seldom!(
                "Client id={id} addr={addr} scheduled to be closed ASAP for overcoming of output buffer limits."
            );
        } else {
            // Any client can cause this as often as it likes.
            verbose!("Client id={id} addr={addr} is closed: it has not authenticated, and reads no replies.");
        }
    }

    /// Closes connections that have been silent for longer than `timeout`.
    pub(super) fn close_idle(&mut self, server: &Server) {
        let Some(timeout) = self.own.config.timeout else { return };
        let now = server.clock.uptime_millis();
        let is_idle = |connection: &Connection| {
            !connection.is_parked()
                && !connection.record.only_listens()
                && now.saturating_sub(connection.record.active_at.load(Ordering::Relaxed))
                    > timeout.as_millis() as u64
        };
        let idle: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, connection)| is_idle(connection))
            .map(|(slot, _)| slot)
            .collect();
        for slot in idle {
            self.drop_connection(slot);
        }
    }

    /// Closes connections over the soft output limit for too long, or over a lowered hard limit.
    ///
    /// A client that neither reads nor sends is checked nowhere else.
    pub(super) fn close_overdue(&mut self) {
        let may_be_over = std::mem::take(&mut self.own.may_be_over);
        let limits = &self.own.config.client_output_buffer_limit;
        let pubsub_has = limits.pubsub.soft_bytes != 0 && !self.subscribers.is_empty();
        if limits.normal.soft_bytes == 0 && !pubsub_has && !may_be_over {
            return;
        }
        for slot in 0..self.connections.n_slots() {
            let Some(mut connection) = self.connections.take(slot) else { continue };
            let must_close = !connection.backlog.is_empty()
                && (self.is_over_soft_limit(&mut connection)
                    || may_be_over && self.is_over_hard_limit(&connection, 0));
            self.connections.put_back(slot, connection);
            if must_close {
                self.drop_connection(slot);
            }
        }
    }
}

/// Frees the space of a large buffer that has become almost empty.
fn give_up_room(buffer: &mut Vec<u8>) {
    if buffer.is_empty() {
        reclaim::discard_bytes(std::mem::take(buffer));
    } else if buffer.capacity() > 4 * buffer.len().max(READ_BYTES) {
        let rest = buffer.to_vec();
        reclaim::discard_bytes(std::mem::replace(buffer, rest));
    }
}

/// Makes room for more of a long request of unknown length.
///
/// Doubling would allocate, and count, up to twice the bytes received.
fn grow_closely(bytes: &mut Vec<u8>, n_more: usize) {
    const LONG_BYTES: usize = 4 << 20;
    let len = bytes.len();
    if len >= LONG_BYTES && bytes.capacity() - len < n_more {
        bytes.reserve_exact((len / 8).max(n_more));
    }
}
