//! What is posted to the thread's subscribers: read in order, and written to each connection at its place among the replies.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
};

use braid_protocol::reply::{Reply, Resp};

use super::IoThread;
use crate::{
    clients::{ClientId, Listens},
    io::connection::Connection,
    pubsub::{Message, Name, Place, Post, TopicKind},
    tracking::{self, Interest, Invalidation, Mode, Whom},
};

/// Which connections of a thread are subscribed to what, as of the last post that was read.
#[derive(Default)]
pub(super) struct Subscribers {
    by_kind: [HashMap<Name, HashSet<Place>>; TopicKind::ALL.len()],
    /// Who looks on (MONITOR).
    monitors: BTreeSet<Place>,
    /// Who keeps copies of keys (CLIENT TRACKING), in which way.
    trackers: HashMap<ClientId, (Place, Arc<Mode>)>,
}

impl Subscribers {
    /// Whether no connection is subscribed to anything.
    pub(super) fn is_empty(&self) -> bool {
        self.by_kind.iter().all(HashMap::is_empty)
    }

    fn add(&mut self, place: Place, kind: TopicKind, name: Name) {
        self.by_kind[kind as usize].entry(name).or_default().insert(place);
    }

    /// Ends a subscription.
    pub(super) fn remove(&mut self, place: Place, kind: TopicKind, name: &[u8]) {
        let topics = &mut self.by_kind[kind as usize];
        let Some(places) = topics.get_mut(name) else { return };
        places.remove(&place);
        if places.is_empty() {
            topics.remove(name);
        }
    }

    fn of(&self, kind: TopicKind, name: &[u8]) -> impl Iterator<Item = Place> {
        self.by_kind[kind as usize].get(name).into_iter().flatten().copied()
    }
}

/// Whose copies a client is told of.
#[derive(Clone, Copy)]
enum Told {
    /// Its own.
    OfOwn,
    /// Those of another, which has it told in its place.
    OfOther,
}

/// A connection that is not in its place because its commands are being run.
pub(super) struct Served<'a> {
    pub(super) place: Place,
    pub(super) connection: &'a mut Connection,
    /// What it is to be sent so far. The reply to the command that ran last is not in it.
    pub(super) out: &'a mut Vec<u8>,
}

/// A message in the form in which it is sent, by dialect; each is made when it is first needed.
struct Encoded<'a> {
    message: &'a Message,
    /// The pattern for whose subscribers it is; none for those of the channel itself.
    pattern: Option<&'a Name>,
    by_version: [Option<Vec<u8>>; 2],
}

impl Encoded<'_> {
    fn bytes(&mut self, version: Resp) -> &[u8] {
        let Self { message, pattern, by_version } = self;
        by_version[usize::from(version == Resp::V3)].get_or_insert_with(|| {
            let mut bytes = Vec::with_capacity(message.channel.len() + message.payload.len() + 64);
            let mut reply = Reply::new(&mut bytes, version);
            match pattern {
                Some(pattern) => {
                    reply.push(4);
                    reply.bulk(b"pmessage");
                    reply.bulk(pattern);
                }
                None => {
                    reply.push(3);
                    reply.bulk(if message.kind == braid_storage::ChannelKind::Sharded {
                        b"smessage"
                    } else {
                        b"message"
                    });
                }
            }
            reply.bulk(&message.channel);
            reply.bulk(&message.payload);
            bytes
        })
    }
}

impl IoThread {
    /// Reads what was posted, and gives it to the connections that it is for. One of them may be `served` at the moment.
    pub(super) fn read_posts(&mut self, mut served: Option<Served<'_>>) {
        let posts = &self.server().threads[self.worker.thread.index].posts;
        while let Some(post) = posts.pop() {
            match post {
                Post::Joined(place, kind, name) => {
                    self.subscribers.add(place, kind, name);
                    self.hold_back(place, &mut served);
                }
                Post::Left(place, kind, name) => {
                    self.subscribers.remove(place, kind, &name);
                    self.hold_back(place, &mut served);
                }
                Post::Published(message) => self.deliver(&message, &mut served),
                Post::LooksOn(place, true) => {
                    self.subscribers.monitors.insert(place);
                    self.hold_back(place, &mut served);
                }
                Post::LooksOn(place, false) => {
                    self.subscribers.monitors.remove(&place);
                    self.hold_back(place, &mut served);
                }
                Post::Observed(author, line) => self.show(author, &line, &mut served),
                Post::Tracks(place, id, mode) => {
                    match mode {
                        Some(mode) => self.subscribers.trackers.insert(id, (place, mode)),
                        None => self.subscribers.trackers.remove(&id),
                    };
                    self.hold_back(place, &mut served);
                }
                Post::Invalidated(whom, what) => self.invalidate(whom, &what, &mut served),
            }
        }
    }

    /// Has what is posted from here on to a connection come behind the reply to its command, which is not written yet.
    fn hold_back(&mut self, place: Place, served: &mut Option<Served<'_>>) {
        let connection = match served {
            Some(served) if served.place == place => &mut *served.connection,
            _ => match self.connections.get_mut(place) {
                Some(Some(connection)) => connection,
                _ => return,
            },
        };
        connection.held_back.get_or_insert_default();
    }

    fn deliver(&mut self, message: &Message, served: &mut Option<Served<'_>>) {
        let by_name = (TopicKind::of_channel(message.kind), &*message.channel, None);
        let by_pattern =
            message.patterns.iter().map(|pattern| (TopicKind::Pattern, &**pattern, Some(pattern)));
        let limit = self.config.client_output_buffer_limit.pubsub.hard();
        for (kind, name, pattern) in std::iter::once(by_name).chain(by_pattern) {
            let mut encoded = Encoded { message, pattern, by_version: [None, None] };
            let places: Vec<Place> = self.subscribers.of(kind, name).collect();
            for place in places {
                // The reply to PUBLISH comes before what the client has published to itself.
                self.give(place, served, limit, |connection| {
                    (encoded.bytes(connection.version()), connection.record.id == message.publisher)
                });
            }
        }
    }

    /// Shows the line of a client's command to those who look on; the client itself has the reply first.
    fn show(&mut self, author: ClientId, line: &[u8], served: &mut Option<Served<'_>>) {
        let limit = self.config.client_output_buffer_limit.normal.hard();
        let places: Vec<Place> = self.subscribers.monitors.iter().copied().collect();
        for place in places {
            self.give(place, served, limit, |connection| (line, connection.record.id == author));
        }
    }

    /// Tells clients that copies they keep are of no use any more.
    fn invalidate(&mut self, whom: Whom, what: &Arc<Invalidation>, served: &mut Option<Served<'_>>) {
        let trackers = &self.subscribers.trackers;
        let by_prefix = |prefix: &Name| {
            let hears = |(_, (_, mode)): &(&ClientId, &(Place, Arc<Mode>))| mode.prefixes.contains(prefix);
            trackers.iter().filter(hears).map(|(&id, _)| id).collect()
        };
        let clients: Vec<ClientId> = match &whom {
            Whom::Readers(clients) => clients.to_vec(),
            Whom::Prefix(prefix) => by_prefix(prefix),
            Whom::Everybody => trackers.keys().copied().collect(),
            Whom::Redirected(place, id) => return self.give_redirected(*place, *id, what, served),
        };
        for id in clients {
            let Some((place, mode)) = self.subscribers.trackers.get(&id).cloned() else { continue };
            // What it had read before it asked for prefixes is not what it wants to hear of.
            let is_outdated = matches!(whom, Whom::Readers(_)) && mode.interest == Interest::Broadcast;
            let is_own = mode.noloop && what.author == id && what.keys.is_some();
            if !is_outdated && !is_own {
                match mode.redirect {
                    None => self.give_invalidation(place, Told::OfOwn, what, served),
                    Some(target) => self.redirect(place, target, what, served),
                }
            }
        }
    }

    /// Tells another client in place of the one that keeps the copies, or that one that there is no such client any more.
    fn redirect(
        &mut self,
        place: Place,
        target: ClientId,
        what: &Arc<Invalidation>,
        served: &mut Option<Served<'_>>,
    ) {
        let server = self.server();
        match server.clients.get(target) {
            Some(record) => {
                let thread = record.thread.load(Ordering::Relaxed);
                let there = record.place.load(Ordering::Relaxed);
                if thread == self.worker.thread.index {
                    return self.give_redirected(there, target, what, served);
                }
                let post = Post::Invalidated(Whom::Redirected(there, target), Arc::clone(what));
                self.worker.thread.post(thread, post);
            }
            None => {
                let limit = self.config.client_output_buffer_limit.normal.hard();
                let mut bytes = Vec::new();
                self.give(place, served, limit, |connection| {
                    connection.record.has_lost_redirect.store(true, Ordering::Relaxed);
                    if connection.version() == Resp::V3 {
                        let mut reply = Reply::new(&mut bytes, Resp::V3);
                        reply.push(2);
                        reply.bulk(b"tracking-redir-broken");
                        reply.integer(target.0 as i64);
                    }
                    (&bytes, connection.waiting.is_none())
                });
            }
        }
    }

    /// Tells a client to which others are redirected, or sends that on if it is served by another thread by now.
    fn give_redirected(
        &mut self,
        place: Place,
        id: ClientId,
        what: &Arc<Invalidation>,
        served: &mut Option<Served<'_>>,
    ) {
        let is_here = match served {
            Some(served) if served.place == place => served.connection.record.id == id,
            _ => match self.connections.get(place) {
                Some(Some(connection)) => connection.record.id == id,
                _ => false,
            },
        };
        if is_here {
            return self.give_invalidation(place, Told::OfOther, what, served);
        }
        if let Some(record) = self.server().clients.get(id)
            && record.thread.load(Ordering::Relaxed) != self.worker.thread.index
        {
            let there = record.place.load(Ordering::Relaxed);
            let post = Post::Invalidated(Whom::Redirected(there, id), Arc::clone(what));
            self.worker.thread.post(record.thread.load(Ordering::Relaxed), post);
        }
    }

    fn give_invalidation(
        &mut self,
        place: Place,
        told: Told,
        what: &Invalidation,
        served: &mut Option<Served<'_>>,
    ) {
        let limit = self.config.client_output_buffer_limit.normal.hard();
        let mut bytes = Vec::new();
        self.give(place, served, limit, |connection| {
            let version = connection.version();
            let mut reply = Reply::new(&mut bytes, version);
            match told {
                _ if version == Resp::V3 => {
                    reply.push(2);
                    reply.bulk(b"invalidate");
                }
                Told::OfOther if connection.record.listens(Listens::ToTopics) => {
                    reply.array(3);
                    reply.bulk(b"message");
                    reply.bulk(tracking::CHANNEL);
                }
                // There is no way to tell it.
                _ => return (&[], false),
            }
            match &what.keys {
                None => reply.null(),
                Some(keys) => {
                    reply.array(keys.len());
                    keys.iter().for_each(|key| reply.bulk(key));
                }
            }
            // Not before the reply in which it reads the key. While it waits for keys it has read what it read before.
            let reads = connection.record.id == what.author || connection.waiting.is_none();
            (&bytes, reads)
        });
    }

    /// Gives a connection something it has not asked for, which comes `after` the reply to a command that is under way; closes it
    /// if more than `limit` bytes wait then.
    fn give<'b>(
        &mut self,
        place: Place,
        served: &mut Option<Served<'_>>,
        limit: u64,
        what: impl FnOnce(&Connection) -> (&'b [u8], bool),
    ) {
        let (connection, out) = match served {
            Some(served) if served.place == place => (&mut *served.connection, Some(&mut *served.out)),
            _ => match self.connections.get_mut(place) {
                Some(Some(connection)) => (&mut **connection, None),
                _ => return,
            },
        };
        if connection.closing {
            return;
        }
        let (bytes, after) = what(connection);
        if bytes.is_empty() {
            return;
        }
        let reply_is_due = connection.is_parked() || out.is_some();
        if connection.held_back.is_some() || after && reply_is_due {
            let held_back = connection.held_back.get_or_insert_default();
            held_back.extend_from_slice(bytes);
            if held_back.len() as u64 <= limit {
                return;
            }
        } else if let Some(out) = out {
            // What it is sent altogether is looked at when it is written.
            return out.extend_from_slice(bytes);
        } else {
            if connection.backlog.is_empty() {
                self.again.push(place);
            }
            connection.send(bytes);
            if connection.backlog.n_bytes as u64 <= limit {
                return;
            }
        }
        if let Some(Some(connection)) = self.connections.get(place) {
            self.report_over_limit(connection);
        }
        self.drop_connection(place);
    }

    /// Lets go of what a connection listened to, apart from its shards' knowledge of that.
    pub(super) fn forget_subscriptions(&mut self, place: Place, connection: &Connection) {
        let server = self.server();
        let thread = self.worker.thread.index;
        if connection.record.is_listener() {
            // What its last command has changed may be among them.
            self.read_posts(None);
        }
        if connection.record.listens(Listens::ToCommands) {
            self.subscribers.monitors.remove(&place);
            server.remove_monitor(thread);
        }
        if let Some((_, mode)) = self.subscribers.trackers.remove(&connection.record.id) {
            server.trackers.remove_prefixes(&mode.prefixes, thread);
            server.threads[thread].n_trackers.fetch_sub(1, Ordering::Relaxed);
        }
        let Some(own) = connection.node.as_ref().and_then(|node| node.job.session.subscriptions.as_ref())
        else {
            return;
        };
        for kind in TopicKind::ALL {
            for name in &own.of(kind) {
                self.subscribers.remove(place, kind, name);
                if kind == TopicKind::Pattern {
                    server.pubsub.patterns.remove(name, thread);
                }
            }
        }
    }
}
