//! Delivery of the notifications of this thread's subscribers.
//!
//! They are read in order, and each is written to its connection at its place among the replies.

use std::{
    borrow::Cow,
    mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use braid_protocol::reply::{Reply, Resp};

use braid_storage::{observers::channels::ChannelKind, sync::executor::Node};

use super::{
    IoThread,
    subscribers::{GATHERED_BYTES, GIVING_REST_MAX, SLICE_TIME, Slice, Subscribers, Tracker, WRITE_BYTES},
};
use crate::{
    client::{
        connection::{Closing, Connection},
        held_back::HeldBack,
        id::ClientId,
        node::Job,
        record::{ClientRecord, Listens},
        state::ConnectionState,
    },
    clock::Instant,
    notify::{
        notifications::{ConnectionSlot, Message, Notification, Notifications},
        pushed::{Given, Shareable},
        subscriptions::TopicKind,
        tracking_table::{Interest, Invalidation, TrackerNumber, Whom},
    },
    observe::invalidations,
    shared::mail::Mail,
};

/// The owner of the cached copies that an invalidation concerns.
#[derive(Clone, Copy)]
enum Told {
    /// The client that receives the invalidation.
    OfOwn,
    /// Another client, which has redirected its invalidations to this one.
    OfOther,
}

/// Facts about a connection on which its notifications depend.
#[derive(Clone, Copy)]
struct Recipient {
    id: ClientId,
    /// Whether a command of the connection is under way that may read keys.
    may_read: bool,
    /// Whether it is subscribed to a channel or pattern.
    hears_topics: bool,
}

/// The bytes before a message's channel and payload, in each RESP version.
///
/// A subscriber needs them first, to learn why it receives the message.
struct Heads {
    v2: Cow<'static, [u8]>,
    v3: Cow<'static, [u8]>,
}

impl Heads {
    /// For subscribers of the channel.
    fn of_channel(kind: ChannelKind) -> Self {
        let (v2, v3): (&[u8], &[u8]) = match kind {
            ChannelKind::Global => (b"*3\r\n$7\r\nmessage\r\n", b">3\r\n$7\r\nmessage\r\n"),
            ChannelKind::Sharded => (b"*3\r\n$8\r\nsmessage\r\n", b">3\r\n$8\r\nsmessage\r\n"),
        };
        Self { v2: v2.into(), v3: v3.into() }
    }

    /// For subscribers of a pattern that matches the channel.
    fn of_pattern(pattern: &[u8]) -> Self {
        let head = |version| {
            let mut bytes = Vec::with_capacity(pattern.len() + 32);
            let mut reply = Reply::new(&mut bytes, version);
            reply.push(4);
            reply.bulk(b"pmessage");
            reply.bulk(pattern);
            bytes.into()
        };
        Self { v2: head(Resp::V2), v3: head(Resp::V3) }
    }

    fn of(&self, version: Resp) -> &[u8] {
        if version == Resp::V3 { &self.v3 } else { &self.v2 }
    }
}

impl IoThread {
    pub(super) fn notifications(&self) -> &'static Notifications {
        &self.server().threads[self.worker.thread.index].notifications
    }

    /// Whether all sent notifications have been read.
    pub(super) fn has_read_notifications(&self) -> bool {
        self.giving.n_read >= self.notifications().n_added()
    }

    /// Returns a node to its connection when all notifications sent by now have been read.
    ///
    /// It counts as parked until then, so notifications that belong after its replies are held back.
    pub(super) fn give_back_after_notifications(
        &mut self,
        connection: &mut Connection,
        node: Box<Node<Job>>,
    ) {
        node.job.session.publish_state(None);
        let turn = (self.notifications().n_added(), node.job.session.origin.slot, connection.record.id);
        connection.state.hold_reply(node);
        self.giving.turns.push_back(turn);
    }

    /// Continues a connection that is being served when all notifications so far have been read.
    pub(super) fn await_notifications(&mut self, connection: &mut Connection) {
        let n_notifications = self.notifications().n_added();
        if n_notifications > self.giving.n_read && connection.state.is_ready() {
            let slot = connection.state.ready().job.session.origin.slot;
            connection.state.await_notifications();
            self.giving.turns.push_back((n_notifications, slot, connection.record.id));
        }
    }

    /// Delivers the notifications in the queue, for a share of this turn.
    ///
    /// Each goes to its connections in the order of the queue, with replies at their places in between. No
    /// connection is being served. Returns the time at which it began, if it gave anything out.
    pub(super) fn give_out(&mut self) -> Option<Instant> {
        let notifications = self.notifications();
        if notifications.is_empty() || self.may_leave_notifications() {
            return None;
        }
        let began = Instant::now();
        self.giving.slice = Slice::default();
        let most = self.giving.writes_took.clamp(*SLICE_TIME.start(), *SLICE_TIME.end());
        let mut is_spent = false;
        while !is_spent && !notifications.is_empty() {
            let mut n_bytes_read = 0;
            while !is_spent && let Some(notification) = notifications.pop() {
                self.giving.n_read += 1;
                n_bytes_read += notification.n_bytes();
                self.give_notification(notification);
                is_spent = self.giving.slice.is_spent(began, most);
            }
            // Connections are closed between notifications, not in the middle of one. The state that leaves
            // with a connection belongs to no other.
            for place in mem::take(&mut self.giving.to_close) {
                self.drop_connection(place);
            }
            if notifications.read(n_bytes_read) {
                self.tell_of_room();
            }
            self.go_on_after_notifications();
        }
        self.giving.gave_until = Some(Instant::now());
        Some(began)
    }

    /// Records that all notifications given out since `began` have been written.
    ///
    /// More are gathered for as long as that took. So a thread with many subscribers has half of its time for
    /// other clients, and writes several messages at once.
    pub(super) fn rest_from_giving(&mut self, began: Instant) {
        let now = Instant::now();
        self.giving.rest_until = Some(now + (now - began).min(GIVING_REST_MAX));
        self.giving.writes_took = self.giving.gave_until.map_or(Duration::ZERO, |until| now - until);
    }

    /// Whether the queued notifications may wait a little longer.
    pub(super) fn may_leave_notifications(&self) -> bool {
        let notifications = self.notifications();
        notifications.is_empty()
            || notifications.n_bytes() < GATHERED_BYTES
                && self.giving.turns.is_empty()
                && self.giving.rest_until.is_some_and(|until| Instant::now() < until)
    }

    /// Continues connections and nodes that have waited for the notifications read so far.
    fn go_on_after_notifications(&mut self) {
        let n_read = self.giving.n_read;
        let has_its_turn = |turn: &mut (u64, ConnectionSlot, ClientId)| turn.0 <= n_read;
        while let Some((_, place, id)) = self.giving.turns.pop_front_if(has_its_turn) {
            let Some(connection) = self.connections.of_client(place, id) else { continue };
            if let Some(node) = connection.state.release_reply() {
                self.give_back(node);
            } else if let ConnectionState::InputAwaitsNotifications(_) = connection.state {
                connection.state.notifications_were_read();
                self.go_on(place);
            }
        }
    }

    /// Holds a connection back if its commands have filled queues of notifications. Returns whether it did.
    pub(super) fn hold_for_room(&mut self, connection: &mut Connection) -> bool {
        let Some(node) = connection.state.node() else { return false };
        let session = &node.job.session;
        let threads = session.floods.take();
        if threads == 0 {
            return false;
        }
        let notifications = self.notifications();
        self.giving.held_back.push((session.origin.slot, connection.record.id, threads));
        notifications.hold_back(self.giving.held_back.len());
        // Checked after all threads can see that it waits: the queues may have emptied meanwhile.
        let must_wait = self.are_full(threads);
        if must_wait {
            connection.state.await_room();
        } else {
            self.giving.held_back.pop();
            notifications.hold_back(self.giving.held_back.len());
        }
        must_wait
    }

    /// Does [`IoThread::hold_for_room`] for a connection in its slot.
    pub(super) fn await_room(&mut self, place: ConnectionSlot) {
        let Some(mut connection) = self.connections.take(place) else { return };
        self.hold_for_room(&mut connection);
        self.connections.put_back(place, connection);
    }

    /// Whether one of some threads has a queue that is too full. Each thread is one bit.
    fn are_full(&self, threads: u128) -> bool {
        let all = self.server().threads.iter().enumerate();
        all.into_iter().any(|(thread, peer)| threads >> thread & 1 == 1 && peer.notifications.is_full())
    }

    /// Makes all threads check the clients that they hold back.
    fn tell_of_room(&mut self) {
        for (thread, peer) in self.server().threads.iter().enumerate() {
            if peer.notifications.holds_back() {
                self.worker.thread.send_mail(thread, Mail::Room);
            }
        }
    }

    /// Continues connections for which there is room by now.
    pub(super) fn release_held_back(&mut self) {
        let (mut held_back, mut released) = (Vec::new(), Vec::new());
        for (place, id, threads) in mem::take(&mut self.giving.held_back) {
            let Some(connection) = self.connections.of_client(place, id) else { continue };
            if let ConnectionState::InputAwaitsRoom(_) = connection.state {
                let whose = if self.are_full(threads) { &mut held_back } else { &mut released };
                whose.push((place, id, threads));
            }
        }
        self.giving.held_back = held_back;
        self.notifications().hold_back(self.giving.held_back.len());
        for (place, id, _) in released {
            if let Some(connection) = self.connections.of_client(place, id) {
                connection.state.room_was_made();
                self.go_on(place);
            }
        }
    }

    /// Delivers a notification to its connections.
    fn give_notification(&mut self, notification: Notification) {
        match notification {
            Notification::Joined(place, kind, name) => {
                self.subscribers.add(place, kind, name);
                self.hold_back(place);
            }
            Notification::Left(place, kind, name) => {
                self.subscribers.remove(place, kind, &name);
                self.hold_back(place);
            }
            Notification::Published(message) => self.deliver(&message),
            Notification::Monitors(place, true) => {
                self.subscribers.monitors.insert(place);
                self.hold_back(place);
            }
            Notification::Monitors(place, false) => {
                self.subscribers.monitors.remove(&place);
                self.hold_back(place);
            }
            Notification::Observed(author, line) => self.show(author, &line),
            Notification::Tracks(place, id, number, mode) => {
                self.subscribers.track(number, Tracker { place, id, mode });
                self.hold_back(place);
            }
            Notification::TracksNoMore(place, number, leftover) => {
                self.subscribers.track_no_more(number);
                self.forgetting.add(*leftover);
                self.hold_back(place);
            }
            Notification::Invalidated(whom, what) => self.invalidate(whom, &what),
        }
    }

    /// Makes later notifications to a connection wait for the reply to its command.
    ///
    /// That reply is not written yet.
    fn hold_back(&mut self, place: ConnectionSlot) {
        if let Some(connection) = self.connections.get_mut(place) {
            connection.held_back.get_or_insert_default();
        }
    }

    fn deliver(&mut self, message: &Message) {
        let topic = TopicKind::of_channel(message.kind);
        self.deliver_to(topic, message.channel(), message, &Heads::of_channel(message.kind));
        for pattern in &message.patterns {
            self.deliver_to(TopicKind::Pattern, pattern, message, &Heads::of_pattern(pattern));
        }
    }

    /// Delivers a message to the subscribers of a name.
    fn deliver_to(&mut self, topic: TopicKind, name: &[u8], message: &Message, heads: &Heads) {
        let limit = self.own.config.client_output_buffer_limit.pubsub.hard();
        let mut places = mem::take(&mut self.giving.places);
        places.extend(self.subscribers.of(topic, name));
        for place in places.drain(..) {
            // The reply to PUBLISH precedes a message that the client has published to itself.
            self.give(place, limit, |to, version, give| {
                let after = to.id == message.publisher;
                give(Given { head: heads.of(version), rest: &message.body }, after);
            });
        }
        self.giving.places = places;
    }

    /// Sends the line of a client's command to monitoring clients. The client itself receives the reply
    /// first.
    fn show(&mut self, author: ClientId, line: &[u8]) {
        let limit = self.own.config.client_output_buffer_limit.normal.hard();
        let line = Shareable::new(line.to_vec());
        let mut places = mem::take(&mut self.giving.places);
        places.extend(&self.subscribers.monitors);
        for place in places.drain(..) {
            self.give(place, limit, |to, _, give| {
                give(Given::whole(&line), to.id == author);
            });
        }
        self.giving.places = places;
    }

    /// Tells tracking clients that their cached copies are out of date.
    fn invalidate(&mut self, whom: Whom, what: &Arc<Invalidation>) {
        let Subscribers { trackers, by_prefix, .. } = &self.subscribers;
        let numbers: Vec<TrackerNumber> = match &whom {
            Whom::Readers(numbers) => numbers.to_vec(),
            Whom::Prefix(prefix) => by_prefix.get(prefix).into_iter().flatten().copied().collect(),
            Whom::Everybody => trackers.keys().copied().collect(),
            Whom::Redirected(id) => {
                if let Some(record) = self.server().clients.get(*id) {
                    self.give_redirected(&record, what);
                }
                return;
            }
        };
        for number in numbers {
            let Some(tracker) = self.subscribers.trackers.get(&number).cloned() else { continue };
            let Tracker { place, id, mode } = tracker;
            // Keys that it read before it chose prefixes are of no interest to it now.
            let is_outdated = matches!(whom, Whom::Readers(_)) && mode.interest == Interest::Broadcast;
            let is_own = mode.noloop && what.author == id && what.keys.is_some();
            if !is_outdated && !is_own {
                match mode.redirect {
                    None => self.give_invalidation(place, Told::OfOwn, what),
                    Some(target) => self.redirect(place, target, what),
                }
            }
        }
    }

    /// Tells the target of a redirection in place of the tracking client. If the target is gone, tells the
    /// tracking client so.
    fn redirect(&mut self, place: ConnectionSlot, target: ClientId, what: &Arc<Invalidation>) {
        let server = self.server();
        match server.clients.get(target).filter(|record| !record.leaves.load(Ordering::Relaxed)) {
            Some(record) => self.give_redirected(&record, what),
            None => {
                let limit = self.own.config.client_output_buffer_limit.normal.hard();
                if let Some(connection) = self.connections.get(place) {
                    connection.record.has_lost_redirect.store(true, Ordering::Relaxed);
                }
                self.give(place, limit, |to, version, give| {
                    if version == Resp::V2 {
                        return;
                    }
                    let mut bytes = Vec::new();
                    let mut reply = Reply::new(&mut bytes, Resp::V3);
                    reply.push(2);
                    reply.bulk(b"tracking-redir-broken");
                    reply.integer(target.0 as i64);
                    give(Given::told(&bytes), to.may_read);
                });
            }
        }
    }

    /// Tells the target of a redirected invalidation, on whichever thread it is. It may be handed over to
    /// another thread at any time.
    fn give_redirected(&mut self, record: &ClientRecord, what: &Arc<Invalidation>) {
        let thread = record.thread.load(Ordering::Relaxed);
        if thread != self.worker.thread.index {
            let notification = Notification::Invalidated(Whom::Redirected(record.id), Arc::clone(what));
            return self.worker.thread.notify(thread, notification);
        }
        match self.place_of(record) {
            Some(place) => self.give_invalidation(place, Told::OfOther, what),
            None => {
                self.giving.on_their_way.entry(record.id).or_default().push(Arc::clone(what));
            }
        }
    }

    /// Delivers the invalidations that arrived during a handover to the connection that was taken over.
    pub(super) fn give_what_came_before(&mut self, place: ConnectionSlot, id: ClientId) {
        for what in self.giving.on_their_way.remove(&id).unwrap_or_default() {
            self.give_invalidation(place, Told::OfOther, &what);
        }
        for place in mem::take(&mut self.giving.to_close) {
            self.drop_connection(place);
        }
    }

    fn give_invalidation(&mut self, place: ConnectionSlot, told: Told, what: &Invalidation) {
        let limit = self.own.config.client_output_buffer_limit.normal.hard();
        self.give(place, limit, |to, version, give| {
            let mut bytes = Vec::new();
            let mut reply = Reply::new(&mut bytes, version);
            match told {
                _ if version == Resp::V3 => {
                    reply.push(2);
                    reply.bulk(b"invalidate");
                }
                Told::OfOther if to.hears_topics => {
                    reply.array(3);
                    reply.bulk(b"message");
                    reply.bulk(invalidations::CHANNEL);
                }
                // The protocol has no way to tell it.
                _ => return,
            }
            match &what.keys {
                None => reply.null(),
                Some(keys) => {
                    reply.array(keys.len());
                    keys.iter().for_each(|key| reply.bulk(key));
                }
            }
            // This comes after the reply in which the client reads the key. A command that waits for keys has
            // read nothing new since.
            let reads = to.id == what.author || to.may_read;
            give(Given::told(&bytes), reads);
        });
    }

    /// Delivers a notification to a connection. Closes it if more than `limit` bytes wait then.
    ///
    /// `what` writes the notification in a RESP version, if there is one, and says whether it comes after the
    /// reply to a command under way. That command may change the version, so `what` is then called for both.
    fn give(
        &mut self,
        place: ConnectionSlot,
        limit: u64,
        what: impl Fn(Recipient, Resp, &mut dyn FnMut(Given<'_>, bool)),
    ) {
        let Some(connection) = self.connections.get_mut(place) else { return };
        // A killed client gets no later notifications.
        if connection.is_closing() || connection.record.is_killed() {
            return;
        }
        let to = Recipient {
            id: connection.record.id,
            may_read: connection.may_read(),
            hears_topics: connection.record.listens(Listens::ToTopics),
        };
        let slice = &mut self.giving.slice;
        let (mut is_given, mut is_first) = (false, false);
        let mut is_held_back = connection.held_back.is_some();
        if !is_held_back {
            what(to, connection.version(), &mut |given, after| {
                is_held_back = after && connection.is_parked();
                if !is_held_back {
                    slice.n_bytes += given.n_bytes();
                    is_first = connection.give(given);
                    is_given = true;
                }
            });
        }
        if is_held_back {
            let held_back = connection.held_back.get_or_insert_default();
            for version in [Resp::V2, Resp::V3] {
                what(to, version, &mut |given, _| {
                    held_back.push(Some(version), given.head);
                    if version == Resp::V3 {
                        slice.n_bytes += given.n_bytes();
                        held_back.push(None, given.rest.bytes());
                    }
                    is_given = true;
                });
            }
        }
        if !is_given {
            return;
        }
        slice.n_given += 1;
        let mut has_turn = false;
        let n_waiting = if is_held_back {
            connection.held_back.as_ref().map_or(0, HeldBack::n_bytes)
        } else {
            if is_first {
                self.again.push(place);
            }
            has_turn = connection.writable;
            slice.must_write |= connection.writable && connection.backlog.n_bytes >= WRITE_BYTES;
            connection.backlog.n_bytes
        };
        if n_waiting as u64 > limit {
            // It receives nothing more, and is closed when this notification has been given out.
            connection.close(Closing::AfterReplies);
            self.giving.to_close.push(place);
            if let Some(connection) = self.connections.get(place) {
                self.report_over_limit(connection);
            }
        } else if !has_turn {
            // Otherwise its memory is counted at the end of its turn.
            self.count_memory_at(place);
        }
    }
}
