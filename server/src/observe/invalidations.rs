//! Client tracking: clients that cache keys are told when they change.
//!
//! A shard remembers which clients have read which of its keys, and which keys have changed since
//! ([`braid_storage::keyspace::shard::Shard::track`]). While it does, commands on it take the path that
//! checks for observers. After each command, still under the hold, [`tell`] sends the changes to the threads
//! of the clients concerned. Other changes to keys, such as expiry, are sent when the shard is released.
//!
//! A client that has read a key receives the reply first. Notifications to it are held back in the meantime.

use std::{collections::BTreeSet, sync::Arc};

use braid_storage::{
    keyspace::shard::Shard,
    observers::{
        channels::Audience,
        ledger::{Change, Effect},
        read_tracking::{Reader, Remembered},
    },
    sync::coordinator::Held,
};
use smallvec::SmallVec;

use crate::{
    catalog::{Keys, Words},
    client::{id::ClientId, node::Job, session::Session},
    notify::{
        notifications::Notification,
        pattern_tree::Heard,
        subscriptions::Name,
        tracking_table::{Interest, Invalidation, Leftover, Marks, TrackerNumber, Tracking, Whom},
    },
    observe::{self, hearers::PREFIXES},
    shared::{server::Server, thread_state::ThreadState},
};

/// The channel for invalidations that cannot be sent otherwise: in RESP2, redirected to a subscriber.
pub const CHANNEL: &[u8] = b"__redis__:invalidate";

/// Remembers the keys that a client has read with a command that has just run. Their shards are held.
#[cold]
pub fn note_reads(
    server: &Server,
    held: &mut Held<'_, Job>,
    session: &Session,
    keys: Keys,
    words: Words<'_>,
) {
    let remembers = session.tracking.as_ref().is_some_and(|tracking| tracking.remembers());
    if remembers {
        remember(server, held, session, keys, words);
    }
}

/// Returns the state on the shards of a client that no longer tracks.
pub fn leftover(tracking: Tracking, server: &Server, thread: usize) -> Leftover {
    if tracking.mode.interest == Interest::Broadcast && server.trackers.n_prefixes() == 0 {
        let shards = Marks::all_of(server.keyspace.router().n_shards());
        return Leftover { reader: None, shards };
    }
    Leftover { reader: Some(reader(thread, tracking.number)), shards: tracking.marks }
}

/// Returns a client of a thread as a reader.
fn reader(thread: usize, number: TrackerNumber) -> Reader {
    Reader { listener: thread as u32, number: number.0 }
}

/// Remembers that a client reads the keys of a command on held shards.
///
/// All of them are held, except for a command that has waited and is served. All its keys were remembered
/// when it began to wait. They are remembered again when it leaves their lines, before its client receives
/// anything.
pub fn remember(server: &Server, held: &mut Held<'_, Job>, session: &Session, keys: Keys, words: Words<'_>) {
    let Some(tracking) = &session.tracking else { return };
    let reader = reader(session.origin.thread, tracking.number);
    let get = |at| words.get(at);
    keys.positions(words.len(), get, |at, used| {
        if used.is_key() {
            let id = server.keyspace.router().route(words.get(at)).shard;
            if !held.has(id) {
                return;
            }
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

/// Sets the client whose command changes keys of the held shards from here on.
pub fn set_author(held: &mut Held<'_, Job>, client: ClientId) {
    held.each_shard(|shard| shard.set_author(client.0));
}

/// Announces the remaining changes of a shard before its release.
///
/// They are those that no unit has taken at its end.
///
/// Nodes that wait for a key are served by the next unit on the shard.
#[cold]
pub fn announce_before_leaving(shard: &mut Shard, thread: &ThreadState) {
    if shard.is_heard_by(PREFIXES) && thread.server().trackers.n_prefixes() == 0 {
        // The last client that tracks prefixes may have left. It is noticed here.
        shard.hear_all(PREFIXES, false);
    }
    shard.set_author(0);
    if shard.has_changes() {
        let mut changes = thread.changes.take();
        shard.take_untold(&mut changes);
        observe::tell(&changes, thread);
        thread.keep_room(changes);
    }
}

/// Tells tracking clients of changes, in order.
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
