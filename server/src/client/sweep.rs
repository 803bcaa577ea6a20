//! Commands that visit the shards one after the other: KEYS, SCAN, RANDOMKEY.
//!
//! A sweep goes from shard to shard by [`Sweep::shard_to_visit`], which needs no hold. It skips shards that
//! are empty by their published counts. It works by [`Sweep::step`], which holds one shard for a bounded
//! time. The reply is written in one place, [`Sweep::end`], whichever way the end is reached. Elements are
//! collected in their reply form. When their number is known, the header is put before them.

use std::time::Duration;

use braid_protocol::reply::{Reply, Resp};
use braid_storage::{
    entry::{EntryRef, db::Db, time::Millis},
    glob::{Case, glob_match},
    keyspace::{Keyspace, shard::Shard},
    observers::channels::ChannelKind,
    table::{
        Cursor,
        hash::{Router, ShardId},
    },
    types::kinds::{has_expired, type_name},
};

use crate::random::random;

/// The number of buckets that a step visits: at most 224 keys, about 20 µs.
const STEP_BUCKETS: usize = 32;

/// The capacity of a bucket, in entries.
const BUCKET_ENTRIES: u64 = 7;

/// The size of the pieces in which the reply is collected. So it is never moved as a whole, least of all
/// under a hold.
const PIECE_BYTES: usize = 64 * 1024;

/// The number of keys that RANDOMKEY picks before it gives up. An expired key is no reply.
const RANDOM_TRIES: u32 = 100;

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepProgress {
    /// There may be more to do: [`Sweep::shard_to_visit`] names the next shard, or ends the sweep.
    More,
    /// The reply is complete.
    Done,
}

/// A command that is visiting the shards.
pub struct Sweep {
    /// The position at which it continues; none once the reply is complete.
    at: Option<Cursor>,
    /// The database.
    pub db: Db,
    /// The RESP version of the reply.
    pub resp: Resp,
    seek: Seek,
    n_found: usize,
    /// The elements found, in full pieces and one that is being filled.
    pieces: Vec<Vec<u8>>,
    found: Vec<u8>,
    /// The bytes before the elements, once the reply is complete.
    header: Vec<u8>,
    /// The length of the full pieces, in bytes.
    n_bytes: usize,
    /// The length in bytes above which no client will read the reply.
    limit: usize,
    /// The time for which its thread has worked on it.
    pub worked: Duration,
    /// Whether it runs from start to end under one hold.
    is_whole: bool,
}

/// The target of a sweep.
pub enum Seek {
    /// KEYS.
    Keys {
        /// The glob, unless all keys match.
        pattern: Option<Vec<u8>>,
    },
    /// SCAN.
    Scan {
        /// MATCH, unless all keys match.
        pattern: Option<Vec<u8>>,
        /// The rest of COUNT: entries that remain to be visited.
        count: u64,
        /// The number of buckets that may be visited for them.
        n_buckets: u64,
        /// TYPE, in lower case.
        kind: Option<Vec<u8>>,
    },
    /// PUBSUB CHANNELS and SHARDCHANNELS.
    Channels {
        /// The kind of the channels.
        kind: ChannelKind,
        /// The glob, unless all match.
        pattern: Option<Vec<u8>>,
    },
    /// RANDOMKEY.
    Random {
        /// The number of expired picks so far.
        n_tries: u32,
    },
}

impl Seek {
    /// Creates the target of SCAN.
    ///
    /// As in Redis, SCAN ends before it has seen COUNT entries once it has visited ten times as many buckets.
    pub fn scan(pattern: Option<Vec<u8>>, count: u64, kind: Option<Vec<u8>>) -> Self {
        Seek::Scan { pattern, count, n_buckets: count.saturating_mul(10), kind }
    }

    /// Whether a live entry belongs in the reply.
    fn wants(&self, entry: EntryRef<'_>) -> bool {
        let (pattern, kind) = match self {
            Seek::Keys { pattern } => (pattern, &None),
            Seek::Scan { pattern, kind, .. } => (pattern, kind),
            Seek::Random { .. } | Seek::Channels { .. } => return true,
        };
        kind.as_ref().is_none_or(|kind| kind == type_name(entry.kind()).as_bytes())
            && pattern.as_ref().is_none_or(|pattern| glob_match(pattern, entry.key(), Case::Sensitive))
    }

    /// Whether it has seen enough, at any position.
    fn is_satisfied(&self) -> bool {
        match self {
            Seek::Keys { .. } | Seek::Channels { .. } => false,
            Seek::Scan { count, n_buckets, .. } => *count == 0 || *n_buckets == 0,
            Seek::Random { n_tries } => *n_tries >= RANDOM_TRIES,
        }
    }
}

impl Sweep {
    /// Creates a sweep over a client's database from `at` on. If `at` is none, nothing is left to visit.
    pub fn new(db: Db, resp: Resp, at: Option<Cursor>, seek: Seek) -> Self {
        let mut sweep = Sweep {
            at,
            db,
            resp,
            seek,
            n_found: 0,
            pieces: Vec::new(),
            found: Vec::new(),
            header: Vec::new(),
            n_bytes: 0,
            limit: usize::MAX,
            worked: Duration::ZERO,
            is_whole: false,
        };
        if at.is_none() {
            sweep.end(0);
        }
        sweep
    }

    /// Limits the reply to `bytes`. Beyond them the sweep ends at its position.
    pub fn with_limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Limits the sweep to the work allowed under one hold.
    ///
    /// It then runs from start to end under that hold.
    pub fn under_one_hold(mut self) -> Self {
        self.is_whole = true;
        self
    }

    /// Whether the reply has grown beyond its limit.
    pub fn is_over_limit(&self) -> bool {
        self.n_bytes + self.found.len() > self.limit
    }

    /// Whether the reply is complete.
    pub fn is_complete(&self) -> bool {
        self.at.is_none()
    }

    /// The shard of the next step; none if the reply is complete.
    ///
    /// Ends the sweep, and so completes the reply, when it has seen enough or no shard with keys is left.
    pub fn shard_to_visit(&mut self, keyspace: &Keyspace) -> Option<ShardId> {
        let at = self.at?;
        let next = match self.seek {
            Seek::Random { .. } => random_cursor(keyspace, self.db),
            Seek::Keys { .. } | Seek::Scan { .. } => skip_empty(at, keyspace, self.db),
            Seek::Channels { .. } => Some(at).filter(|at| at.shard.index() < keyspace.router().n_shards()),
        };
        match next {
            Some(next) if !self.seek.is_satisfied() && !self.is_over_limit() => {
                self.at = Some(next);
                if self.found.len() >= PIECE_BYTES / 2 {
                    self.n_bytes += self.found.len();
                    let full = std::mem::replace(&mut self.found, Vec::with_capacity(PIECE_BYTES));
                    self.pieces.push(full);
                }
                Some(next.shard)
            }
            next => {
                self.end(next.map_or(0, |next| next.encode(keyspace.router())));
                None
            }
        }
    }

    /// Does one bounded piece of work on the shard that [`Sweep::shard_to_visit`] named.
    pub fn step(&mut self, shard: &mut Shard) -> SweepProgress {
        match &self.seek {
            Seek::Keys { .. } => {
                self.visit(shard, STEP_BUCKETS);
                SweepProgress::More
            }
            Seek::Scan { count, .. } => {
                let n_buckets = count.div_ceil(BUCKET_ENTRIES).min(STEP_BUCKETS as u64) as usize;
                let n_visited = self.visit(shard, n_buckets);
                // A shard may end with a single bucket, and a shard with keys is progress.
                let is_shards_end = self.at.is_some_and(|at| at.shard != shard.id());
                let n_buckets = if is_shards_end { 1 } else { n_buckets };
                if let Seek::Scan { count, n_buckets: n_left, .. } = &mut self.seek {
                    *count = count.saturating_sub(n_visited);
                    *n_left = n_left.saturating_sub(n_buckets as u64);
                }
                SweepProgress::More
            }
            Seek::Channels { kind, pattern } => {
                let wanted = |name: &&[u8]| {
                    pattern.as_ref().is_none_or(|pattern| glob_match(pattern, name, Case::Sensitive))
                };
                let mut reply = Reply::new(&mut self.found, self.resp);
                for name in shard.channels(*kind).filter(wanted) {
                    reply.bulk(name);
                    self.n_found += 1;
                }
                self.at = Some(Cursor { shard: ShardId(shard.id().0 + 1), ..Cursor::default() });
                SweepProgress::More
            }
            Seek::Random { n_tries } => {
                let n_tries = n_tries + 1;
                let n_keys = shard.n_keys();
                match shard.sample(random()) {
                    Some(entry) if is_alive(entry, shard.now()) => {
                        self.found(entry);
                        self.end(0);
                        return SweepProgress::Done;
                    }
                    Some(expired) => {
                        let key = expired.key().into();
                        shard.expire_met(&[key]);
                    }
                    None => {}
                }
                // While expired keys are removed, their number falls, so this ends.
                if self.is_whole || shard.n_keys() == n_keys {
                    self.seek = Seek::Random { n_tries };
                }
                SweepProgress::More
            }
        }
    }

    /// Collects the wanted entries of some buckets, removes the expired keys there, and moves on.
    ///
    /// Returns how many entries were there.
    fn visit(&mut self, shard: &mut Shard, n_buckets: usize) -> u64 {
        let at = self.at.expect("a sweep that has ended is not stepped");
        let now = shard.now();
        let mut n_visited = 0;
        let mut expired: Vec<Box<[u8]>> = Vec::new();
        let behind = shard.scan(at.position, n_buckets, &mut |entry| {
            n_visited += 1;
            if !is_alive(entry, now) {
                expired.push(entry.key().into());
            } else if self.seek.wants(entry) {
                self.found(entry);
            }
        });
        shard.expire_met(&expired);
        self.at = Some(match behind {
            Some(position) => Cursor { position, ..at },
            None => Cursor { shard: ShardId(at.shard.0 + 1), ..Cursor::default() },
        });
        n_visited
    }

    fn found(&mut self, entry: EntryRef<'_>) {
        Reply::new(&mut self.found, self.resp).bulk(entry.key());
        self.n_found += 1;
    }

    /// Completes the reply. No other function does. `cursor` is SCAN's next position, 0 at the end.
    fn end(&mut self, cursor: u64) {
        let mut reply = Reply::new(&mut self.header, self.resp);
        match self.seek {
            Seek::Keys { .. } | Seek::Channels { .. } => reply.array(self.n_found),
            Seek::Scan { .. } => {
                reply.array(2);
                reply.bulk_integer(cursor as i64);
                reply.array(self.n_found);
            }
            Seek::Random { .. } if self.n_found == 0 => reply.null(),
            Seek::Random { .. } => {}
        }
        self.at = None;
    }

    /// The complete reply, in pieces.
    pub fn take_reply(&mut self) -> Vec<Vec<u8>> {
        debug_assert!(self.is_complete(), "there is no reply before the end");
        let header = std::mem::take(&mut self.header);
        let found = std::mem::take(&mut self.found);
        let pieces = std::mem::take(&mut self.pieces);
        std::iter::once(header).chain(pieces).chain([found]).filter(|piece| !piece.is_empty()).collect()
    }

    /// Ends the sweep early, with an empty reply in which the caller can write an error.
    pub fn fail(&mut self) -> &mut Vec<u8> {
        self.at = None;
        self.pieces.clear();
        self.found.clear();
        self.header.clear();
        &mut self.header
    }
}

fn is_alive(entry: EntryRef<'_>, now: Millis) -> bool {
    !has_expired(entry, now)
}

/// Returns the cursor itself if its shard has keys. Otherwise returns the start of the next shard that has.
fn skip_empty(at: Cursor, keyspace: &Keyspace, db: Db) -> Option<Cursor> {
    let has_keys = |id: &ShardId| keyspace.n_keys_in(db, *id) > 0;
    let shard = shards(keyspace.router()).skip(at.shard.index()).find(has_keys)?;
    Some(if shard == at.shard { at } else { Cursor { shard, ..Cursor::default() } })
}

/// Returns a random shard, weighted by the number of keys. None if there are no keys.
fn random_cursor(keyspace: &Keyspace, db: Db) -> Option<Cursor> {
    let mut rank = random().checked_rem(keyspace.n_keys(db))?;
    let chosen = shards(keyspace.router()).find(|&shard| {
        let n_keys = keyspace.n_keys_in(db, shard);
        let is_chosen = rank < n_keys;
        rank = rank.saturating_sub(n_keys);
        is_chosen
    });
    // If keys were removed between the two counts, no shard may be chosen. Then any remaining keys suffice.
    chosen
        .map(|shard| Cursor { shard, ..Cursor::default() })
        .or_else(|| skip_empty(Cursor::default(), keyspace, db))
}

fn shards(router: &Router) -> impl Iterator<Item = ShardId> {
    (0..router.n_shards()).map(|index| ShardId(index as u16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_storage::{
        entry::{
            key::Key,
            time::{Deadline, Expiry},
        },
        observers::event::Event,
        table::hash::{HashTags, KeyHasher},
    };

    /// Creates a keyspace of eight shards with keys `0`, `1` and so on. Every third key has expired at time
    /// 10.
    fn keyspace(n_keys: usize) -> (Keyspace, Vec<Shard>) {
        keyspace_of(3, n_keys)
    }

    fn keyspace_of(shard_bits: u32, n_keys: usize) -> (Keyspace, Vec<Shard>) {
        let router = Router::new(KeyHasher::with_key(1, 2), shard_bits, HashTags::Honoured);
        let (keyspace, mut shards) = Keyspace::new(router, 1);
        for i in 0..n_keys {
            let bytes = i.to_string().into_bytes();
            let key = Key { bytes: &bytes, routed: router.route(&bytes) };
            let shard = &mut shards[key.routed.shard.index()];
            shard.begin(Db(0), Millis(1));
            let deadline = Deadline::at(5);
            shard.put_string(
                &key,
                b"v",
                if i % 3 == 0 { Expiry::At(deadline) } else { Expiry::Clear },
                Event::Made,
            );
        }
        (keyspace, shards)
    }

    fn sweep(at: Option<Cursor>, seek: Seek) -> Sweep {
        Sweep::new(Db(0), Resp::V2, at, seek)
    }

    fn run(mut sweep: Sweep, keyspace: &Keyspace, shards: &mut [Shard]) -> String {
        while let Some(id) = sweep.shard_to_visit(keyspace) {
            let shard = &mut shards[id.index()];
            shard.begin(Db(0), Millis(10));
            sweep.step(shard);
        }
        assert_eq!(sweep.shard_to_visit(keyspace), None, "an ended sweep stays ended");
        String::from_utf8(sweep.take_reply().concat()).expect("keys are digits")
    }

    fn all(pattern: Option<&[u8]>) -> Seek {
        Seek::Keys { pattern: pattern.map(<[u8]>::to_vec) }
    }

    #[test]
    fn keys_are_those_alive_that_match() {
        let (keyspace, mut shards) = keyspace(1000);
        let reply = run(sweep(Some(Cursor::default()), all(None)), &keyspace, &mut shards);
        assert!(reply.starts_with("*666\r\n$"), "{reply}");
        let reply = run(sweep(Some(Cursor::default()), all(Some(b"99?"))), &keyspace, &mut shards);
        assert!(reply.starts_with("*6\r\n$3\r\n99"), "{reply}");
    }

    #[test]
    fn a_sweep_over_nothing_is_complete() {
        let (keyspace, mut shards) = keyspace(0);
        let mut reply = |at, seek| run(sweep(at, seek), &keyspace, &mut shards);
        let scan = || Seek::scan(None, 10, None);
        assert_eq!(reply(Some(Cursor::default()), all(None)), "*0\r\n");
        assert_eq!(reply(Some(Cursor::default()), scan()), "*2\r\n$1\r\n0\r\n*0\r\n");
        assert_eq!(reply(None, scan()), "*2\r\n$1\r\n0\r\n*0\r\n");
        assert_eq!(reply(Some(Cursor::default()), Seek::Random { n_tries: 0 }), "$-1\r\n");
    }

    #[test]
    fn scans_of_any_count_meet_every_key_once() {
        let (keyspace, mut shards) = keyspace(1000);
        for count in [1, 10, 100, 5000] {
            let mut met = Vec::new();
            let mut cursor = 0u64;
            loop {
                let at = Cursor::decode(cursor, keyspace.router());
                let seek = Seek::scan(None, count, Some(b"string".to_vec()));
                let reply = run(sweep(at, seek), &keyspace, &mut shards);
                let mut lines = reply.split("\r\n");
                cursor = lines.nth(2).unwrap().parse().unwrap();
                met.extend(lines.skip(1).skip(1).step_by(2).map(str::to_owned));
                met.retain(|key| !key.is_empty());
                if cursor == 0 {
                    break;
                }
            }
            met.sort();
            let n_met = met.len();
            met.dedup();
            assert_eq!((met.len(), n_met), (666, 666), "count {count}");
        }
    }

    #[test]
    fn a_scan_of_as_many_keys_as_there_are_is_done_in_one_call() {
        for shard_bits in [0, 3, 10] {
            for n_keys in [40, 200, 1500] {
                let (keyspace, mut shards) = keyspace_of(shard_bits, n_keys);
                let seek = Seek::scan(None, n_keys as u64, None);
                let reply = run(sweep(Some(Cursor::default()), seek), &keyspace, &mut shards);
                let expected = format!("*2\r\n$1\r\n0\r\n*{}\r\n", n_keys - n_keys.div_ceil(3));
                assert!(reply.starts_with(&expected), "{n_keys} keys, 2^{shard_bits} shards: {reply}");
            }
        }
    }

    #[test]
    fn expired_keys_that_are_met_are_removed() {
        let (keyspace, mut shards) = keyspace(100);
        run(sweep(Some(Cursor::default()), Seek::scan(None, 1000, None)), &keyspace, &mut shards);
        assert_eq!((keyspace.n_keys(Db(0)), keyspace.expired()), (66, 34));
    }

    #[test]
    fn random_keys_are_alive_and_differ() {
        let (keyspace, mut shards) = keyspace(100);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..500 {
            let reply =
                run(sweep(Some(Cursor::default()), Seek::Random { n_tries: 0 }), &keyspace, &mut shards);
            let key: usize = reply.lines().nth(1).unwrap().parse().unwrap();
            assert_ne!(key % 3, 0, "{key} has expired");
            seen.insert(key);
        }
        assert!(seen.len() > 50, "{}", seen.len());
    }

    #[test]
    fn random_gives_up_on_a_database_of_expired_keys() {
        let (keyspace, mut shards) = keyspace(1);
        assert_eq!(
            run(sweep(Some(Cursor::default()), Seek::Random { n_tries: 0 }), &keyspace, &mut shards),
            "$-1\r\n"
        );
    }

    #[test]
    fn a_failed_sweep_has_no_reply_and_does_not_go_on() {
        let (keyspace, _shards) = keyspace(10);
        let mut sweep = sweep(Some(Cursor::default()), all(None));
        assert!(sweep.shard_to_visit(&keyspace).is_some());
        sweep.fail();
        assert_eq!((sweep.shard_to_visit(&keyspace), sweep.take_reply().len()), (None, 0));
    }
}
