//! Client tracking: who keeps copies of keys is told when they change.
//!
//! A shard remembers which clients have read which of its keys, and what has changed since
//! ([`braid_storage::Shard::track`]). While it does, commands on it take the way that looks after such things: behind each, still
//! under the hold, [`announce`] posts the changes to the threads of the clients concerned. Whatever else changes keys, expiry for
//! example, does so when it lets the shard go.
//!
//! A client that has read a key gets the reply first: what is posted to it in the meantime is held back.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use braid_storage::{Change, Effect, Hearer, Reader, Remembered, Shard, coordinator::Held};
use smallvec::SmallVec;

use crate::{
    clients::ClientId,
    command::{Call, Flags, Registered, Words},
    io::ThreadState,
    observe,
    pubsub::{Audiences, Name, Place, Post},
    run::node::Job,
    server::Server,
    session::Session,
};

/// What broadcasts hear of all changes by.
pub const HEARER: Hearer = observe::hearer("tracking");

/// The channel on which clients hear of changes that cannot be sent them otherwise: in RESP2, redirected to a subscriber.
pub const CHANNEL: &[u8] = b"__redis__:invalidate";

/// Of which keys a client hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Those that it has read.
    Read,
    /// Those that it has read with the command behind CLIENT CACHING YES.
    OptIn,
    /// Those that it has read, but for the command behind CLIENT CACHING NO.
    OptOut,
    /// All that begin with one of its prefixes.
    Broadcast,
}

/// What a client has asked for with CLIENT TRACKING.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Of which keys it hears.
    pub interest: Interest,
    /// Another client, which is told in its place.
    pub redirect: Option<ClientId>,
    /// Not of what it changes itself.
    pub noloop: bool,
    /// What keys begin with, if it hears of keys by that; sorted.
    pub prefixes: Vec<Name>,
}

/// CLIENT TRACKING, as a session has it.
#[derive(Clone, Debug)]
pub struct Tracking {
    /// What was asked for.
    pub mode: Arc<Mode>,
    /// CLIENT CACHING was the last command, or the last before MULTI: it takes the next one's keys in, or leaves them out.
    pub is_caching: bool,
}

impl Tracking {
    /// Whether keys that are read now are remembered.
    pub fn remembers(&self) -> bool {
        match self.mode.interest {
            Interest::Read => true,
            Interest::OptIn => self.is_caching,
            Interest::OptOut => !self.is_caching,
            Interest::Broadcast => false,
        }
    }
}

/// What has changed.
#[derive(Debug)]
pub struct Invalidation {
    /// Which keys; none: all of them.
    pub keys: Option<SmallVec<[Box<[u8]>; 1]>>,
    /// Whose command it was; client 0 is none.
    pub author: ClientId,
}

/// Who is to be told.
#[derive(Clone, Debug)]
pub enum Whom {
    /// Clients that have read the key.
    Readers(SmallVec<[ClientId; 2]>),
    /// Those who hear of all keys that begin so.
    Prefix(Name),
    /// All who keep copies of anything.
    Everybody,
    /// A client to which another one's are redirected, where it was when this was posted.
    Redirected(Place, ClientId),
}

/// What all threads share of it.
#[derive(Default)]
pub struct Trackers {
    /// Prefixes that somebody hears of. They are added with all shards held, so who holds one misses none.
    prefixes: Audiences,
    n_keys: AtomicU64,
    n_readers: AtomicU64,
}

impl Trackers {
    /// How many keys are remembered.
    pub fn n_keys(&self) -> u64 {
        self.n_keys.load(Ordering::Relaxed)
    }

    /// How many pairs of a key and a reader are.
    pub fn n_readers(&self) -> u64 {
        self.n_readers.load(Ordering::Relaxed)
    }

    /// How many prefixes there are.
    pub fn n_prefixes(&self) -> usize {
        self.prefixes.len()
    }

    fn remembered(&self, Remembered { n_keys, n_readers }: Remembered) {
        self.n_keys.fetch_add(n_keys, Ordering::Relaxed);
        self.n_readers.fetch_add(n_readers, Ordering::Relaxed);
    }

    fn forgot(&self, Remembered { n_keys, n_readers }: Remembered) {
        self.n_keys.fetch_sub(n_keys, Ordering::Relaxed);
        self.n_readers.fetch_sub(n_readers, Ordering::Relaxed);
    }

    /// A connection of a thread hears of these prefixes from here on. All shards are held.
    pub fn add_prefixes(&self, prefixes: &[Name], thread: usize) {
        prefixes.iter().for_each(|prefix| self.prefixes.add(prefix, thread));
    }

    /// A connection of a thread hears of these prefixes no more.
    pub fn remove_prefixes(&self, prefixes: &[Name], thread: usize) {
        prefixes.iter().for_each(|prefix| self.prefixes.remove(prefix, thread));
    }
}

/// Remembers which keys a client has read with a command that has just run.
#[cold]
pub fn note_reads(call: &mut Call<'_, '_>, command: &Registered, words: Words<'_>) {
    let Call { server, session, held, .. } = call;
    let remembers = session.tracking.as_ref().is_some_and(|tracking| tracking.remembers());
    if let Some(held) = held
        && remembers
        && command.has(Flags::READONLY)
    {
        remember(server, held, reader(session.origin.thread, session.record.id), command, words);
    }
}

/// Ends what CLIENT CACHING has said of the command that has just run, if it was that one, or the transaction around it.
#[cold]
pub fn end_caching(session: &mut Session, command: &Registered) {
    let keeps_caching = command.parent.is_some_and(|parent| parent.flags.has(Flags::KEEPS_CACHING));
    if let Some(tracking) = &mut session.tracking
        && session.queue.is_none()
        && !keeps_caching
    {
        tracking.is_caching = false;
    }
}

/// A client of a thread.
pub fn reader(thread: usize, id: ClientId) -> Reader {
    Reader { listener: thread as u32, client: id.0 }
}

/// Remembers that a client reads the keys of a command, with their shards held.
pub fn remember(
    server: &Server,
    held: &mut Held<'_, Job>,
    reader: Reader,
    command: &Registered,
    words: Words<'_>,
) {
    let get = |at| words.get(at);
    command.spec.keys.positions(words.len(), get, |at, used| {
        if used.is_key() {
            let shard = held.shard(server.keyspace.router().route(words.get(at)).shard);
            server.trackers.remembered(shard.track(words.get(at), reader));
            shard.set_author(reader.client);
        }
    });
}

/// Says whose command changes keys of the held shards from here on.
pub fn set_author(held: &mut Held<'_, Job>, client: ClientId) {
    for index in 0..held.ids().len() {
        let id = held.ids()[index];
        held.shard(id).set_author(client.0);
    }
}

/// Tells of what has changed in a shard that is about to be let go: what nobody has taken at the end of a unit. Nodes that wait for a
/// key are served by the next unit on the shard.
#[cold]
pub fn announce_before_leaving(shard: &mut Shard, thread: &ThreadState) {
    if thread.server().trackers.n_prefixes() == 0 {
        // Who heard of everything may have left: that is noticed here.
        shard.hear_all(HEARER, false);
    }
    shard.set_author(0);
    if shard.has_changes() {
        let changes = shard.take_changes();
        tell(&changes, thread);
        shard.put_back_wakes(changes);
    }
}

/// Tells tracking clients of changes, which come in order.
pub fn tell(changes: &[Change], thread: &ThreadState) {
    tell_of_prefixes(changes, thread);
    let server = thread.server();
    for change in changes.iter().filter(|change| !change.readers.is_empty()) {
        let Change { key: Some(key), author, readers, .. } = change else { continue };
        server.trackers.forgot(Remembered { n_keys: 1, n_readers: readers.len() as u64 });
        let keys = Some(SmallVec::from_iter([key.clone()]));
        let what = Arc::new(Invalidation { keys, author: ClientId(*author) });
        for listener in readers.iter().map(|reader| reader.listener).collect::<BTreeSet<_>>() {
            let of_listener = readers.iter().filter(|reader| reader.listener == listener);
            let whom = Whom::Readers(of_listener.map(|reader| ClientId(reader.client)).collect());
            thread.post(listener as usize, Post::Invalidated(whom, Arc::clone(&what)));
        }
    }
}

fn tell_of_prefixes(changes: &[Change], thread: &ThreadState) {
    let server = thread.server();
    if server.trackers.n_prefixes() == 0 {
        return;
    }
    let prefixes = server.trackers.prefixes.load();
    let modified = || changes.iter().filter(|change| change.effect == Effect::Modified);
    for author in modified().map(|change| change.author).collect::<BTreeSet<_>>() {
        let by_author = || modified().filter(|change| change.author == author);
        for (prefix, audience) in prefixes.iter() {
            let keys = by_author().filter_map(|change| change.key.as_deref());
            let keys: BTreeSet<&[u8]> = keys.filter(|key| key.starts_with(prefix)).collect();
            if keys.is_empty() {
                continue;
            }
            let keys = Some(keys.into_iter().map(Box::from).collect());
            let what = Arc::new(Invalidation { keys, author: ClientId(author) });
            for listener in audience.listeners() {
                let whom = Whom::Prefix(Name::clone(prefix));
                thread.post(listener, Post::Invalidated(whom, Arc::clone(&what)));
            }
        }
    }
}

/// Tells everybody that all their copies are of no use, with all shards held: a database was flushed.
pub fn tell_of_flush(call: &mut Call<'_, '_>) {
    let db = call.session.db;
    let mut forgotten = Remembered::default();
    call.each_shard(db, |shard| {
        let Remembered { n_keys, n_readers } = shard.forget_readers();
        forgotten.n_keys += n_keys;
        forgotten.n_readers += n_readers;
    });
    call.server.trackers.forgot(forgotten);
    let what = Arc::new(Invalidation { keys: None, author: call.session.record.id });
    for (thread, peer) in call.server.threads.iter().enumerate() {
        if peer.n_trackers.load(Ordering::Relaxed) > 0 {
            call.thread.post(thread, Post::Invalidated(Whom::Everybody, Arc::clone(&what)));
        }
    }
}
