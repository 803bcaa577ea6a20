//! Client tracking: who keeps copies of keys is told when they change.
//!
//! A shard remembers which clients have read which of its keys, and what has changed since
//! ([`braid_storage::Shard::track`]). While it does, commands on it take the way that looks after such things: behind each, still
//! under the hold, [`tell`] sends the changes to the threads of the clients concerned. Whatever else changes keys, expiry for
//! example, does so when it lets the shard go.
//!
//! A client that has read a key gets the reply first: what is sent to it in the meantime is held back.

use std::{
    cell::Cell,
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use braid_storage::{
    Audience, Change, Effect, Hearer, Reader, Remembered, Shard, ShardId, coordinator::Held,
};
use smallvec::SmallVec;

use crate::{
    audiences::{Audiences, Heard},
    clients::ClientId,
    command::{Call, Flags, Registered, Words},
    io::ThreadState,
    observe,
    pubsub::{Name, Notification},
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
#[derive(Debug)]
pub struct Tracking {
    /// The number under which what it reads is remembered. It is new each time a client begins to track.
    pub number: TrackerNumber,
    /// What was asked for.
    pub mode: Arc<Mode>,
    /// The shards that remember what it has read.
    pub marks: Marks,
    /// CLIENT CACHING was the last command, or the last before MULTI: it takes the next one's keys in, or leaves them out.
    pub is_caching: bool,
}

/// A number that is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrackerNumber(pub u64);

/// Some shards, a bit each.
#[derive(Clone, Debug, Default)]
pub struct Marks(Box<[Cell<u64>]>);

impl Marks {
    /// No shard of so many.
    pub fn none_of(n_shards: usize) -> Self {
        Self(vec![Cell::new(0); n_shards.div_ceil(64)].into())
    }

    /// All shards of so many.
    pub fn all_of(n_shards: usize) -> Self {
        let all = Self::none_of(n_shards);
        (0..n_shards).for_each(|shard| all.add(ShardId(shard as u16)));
        all
    }

    /// Adds a shard.
    pub fn add(&self, shard: ShardId) {
        let word = &self.0[usize::from(shard.0) / 64];
        word.set(word.get() | 1 << (shard.0 % 64));
    }

    /// Takes a shard away.
    pub fn remove(&self, shard: ShardId) {
        let word = &self.0[usize::from(shard.0) / 64];
        word.set(word.get() & !(1 << (shard.0 % 64)));
    }

    /// The first shard from `from` on.
    pub fn first_from(&self, from: usize) -> Option<ShardId> {
        let mut from = from;
        while let Some(word) = self.0.get(from / 64) {
            let rest = word.get() >> (from % 64);
            if rest != 0 {
                return Some(ShardId(from as u16 + rest.trailing_zeros() as u16));
            }
            from = (from / 64 + 1) * 64;
        }
        None
    }
}

/// What shards know of a client that is told of no more changes.
#[derive(Debug)]
pub struct Leftover {
    /// What it has read; or that somebody hears of all changes, if nobody does any more.
    pub reader: Option<Reader>,
    /// Where.
    pub shards: Marks,
}

impl Tracking {
    /// What is left of it on the shards.
    pub fn leftover(self, server: &Server, thread: usize) -> Leftover {
        if self.mode.interest == Interest::Broadcast && server.trackers.n_prefixes() == 0 {
            let shards = Marks::all_of(server.keyspace.router().n_shards());
            return Leftover { reader: None, shards };
        }
        Leftover { reader: Some(reader(thread, self.number)), shards: self.marks }
    }

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
    Readers(SmallVec<[TrackerNumber; 2]>),
    /// Those who hear of all keys that begin so.
    Prefix(Name),
    /// All who keep copies of anything.
    Everybody,
    /// A client to which another one's are redirected.
    Redirected(ClientId),
}

/// What all threads share of it.
#[derive(Default)]
pub struct Trackers {
    /// Prefixes that somebody hears of. They are added with all shards held, so who holds one misses none.
    prefixes: Audiences,
    n_keys: AtomicU64,
    n_readers: AtomicU64,
    n_begun: AtomicU64,
    /// `tracking-table-max-keys`; 0 if there is no limit.
    max_keys: AtomicU64,
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

    /// The number of a client that begins to track.
    pub fn next_number(&self) -> TrackerNumber {
        TrackerNumber(self.n_begun.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Sets how many keys may be remembered.
    pub fn set_max_keys(&self, max: Option<usize>) {
        self.max_keys.store(max.unwrap_or(0) as u64, Ordering::Relaxed);
    }

    /// Above how many keys there are too many; they may be remembered for a moment.
    pub fn max_keys(&self) -> Option<u64> {
        Some(self.max_keys.load(Ordering::Relaxed)).filter(|&max| max > 0)
    }

    /// Whether so many are remembered that one must go for one that comes: the limit is kept within a tenth, between threads that
    /// remember keys at the same time.
    fn is_full(&self) -> bool {
        self.max_keys().is_some_and(|max| self.n_keys() > max + max / 16)
    }

    fn remembered(&self, Remembered { n_keys, n_readers }: Remembered) {
        self.n_keys.fetch_add(n_keys, Ordering::Relaxed);
        self.n_readers.fetch_add(n_readers, Ordering::Relaxed);
    }

    /// Notes that so much is forgotten.
    pub fn forgot(&self, Remembered { n_keys, n_readers }: Remembered) {
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
        remember(server, held, session, command, words);
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
fn reader(thread: usize, number: TrackerNumber) -> Reader {
    Reader { listener: thread as u32, number: number.0 }
}

/// Remembers that a client reads the keys of a command, with their shards held.
pub fn remember(
    server: &Server,
    held: &mut Held<'_, Job>,
    session: &Session,
    command: &Registered,
    words: Words<'_>,
) {
    let Some(tracking) = &session.tracking else { return };
    let reader = reader(session.origin.thread, tracking.number);
    let get = |at| words.get(at);
    command.spec.keys.positions(words.len(), get, |at, used| {
        if used.is_key() {
            let id = server.keyspace.router().route(words.get(at)).shard;
            let shard = held.shard(id);
            let remembered = shard.track(words.get(at), reader);
            tracking.marks.add(id);
            server.trackers.remembered(remembered);
            if remembered.n_keys > 0 && server.trackers.is_full() {
                shard.evict_readers();
            }
            shard.set_author(session.record.id.0);
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
            let whom = Whom::Readers(of_listener.map(|reader| TrackerNumber(reader.number)).collect());
            thread.notify(listener as usize, Notification::Invalidated(whom, Arc::clone(&what)));
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
        let mut met: Vec<(u64, Name, Audience, BTreeSet<&[u8]>)> = Vec::new();
        prefixes.each(|Heard { name, audience, begun, .. }| {
            let keys = by_author().filter_map(|change| change.key.as_deref());
            let keys: BTreeSet<&[u8]> = keys.filter(|key| key.starts_with(name)).collect();
            if !keys.is_empty() {
                met.push((*begun, Arc::clone(name), audience.clone(), keys));
            }
        });
        met.sort_unstable_by_key(|&(begun, ..)| begun);
        for (_, prefix, audience, keys) in met {
            let keys = Some(keys.into_iter().map(Box::from).collect());
            let what = Arc::new(Invalidation { keys, author: ClientId(author) });
            for listener in audience.listeners() {
                let whom = Whom::Prefix(Arc::clone(&prefix));
                thread.notify(listener, Notification::Invalidated(whom, Arc::clone(&what)));
            }
        }
    }
}

/// Tells everybody that all their copies are of no use, with all shards held: a database was flushed.
pub fn tell_of_flush(call: &mut Call<'_, '_>) {
    let db = call.session.db;
    let mut forgotten = Remembered::default();
    call.each_shard(db, |shard| forgotten += shard.forget_readers());
    call.server.trackers.forgot(forgotten);
    let what = Arc::new(Invalidation { keys: None, author: call.session.record.id });
    for (thread, peer) in call.server.threads.iter().enumerate() {
        if peer.n_trackers.load(Ordering::Relaxed) > 0 {
            call.thread.notify(thread, Notification::Invalidated(Whom::Everybody, Arc::clone(&what)));
        }
    }
}
