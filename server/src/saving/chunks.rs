//! Chunks of an append-only file: its commands, parsed ahead and divided by shard among threads.
//!
//! The shards are divided into parts, and one thread at a time works on a part. A command whose keys are all
//! in one part runs there, in order with all others of that part. A command that may reach further runs
//! alone, after all earlier commands and before all later ones.

use std::{
    fs::File,
    ops::Range,
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use braid_journal::reader::{Broken, Reader};
use braid_protocol::{
    number::parse_i64,
    reply::{Reply, Resp},
    request::{Arg, Limits, Parse, RequestParser},
};
use braid_storage::{
    entry::{Handover, db::Db, time::Millis},
    observers::record,
    sync::coordinator::{Held, Worker},
    table::{
        PREFETCH_MAX,
        hash::{Routed, Router, ShardId},
    },
};
use smallvec::SmallVec;

use crate::{
    catalog::{Flags, Words},
    client::{id::Origin, node::Job, record::ClientRecord, session::Session},
    clock::Instant,
    command::{Call, Found, Registered, Run, ShardAccess, TABLE},
    run::step,
    shared::{server::Server, thread_state::ThreadState},
};

/// Bytes and commands at which a chunk ends, after the units that reach either.
const CHUNK_BYTES: usize = 1 << 20;
const CHUNK_COMMANDS: usize = 16_384;

/// Shorter rows run on the thread that has read them. Dividing them would take longer.
const SHARED_FROM: usize = 512;

/// The time after which a hold of the shards ends.
const HELD_FOR: Duration = Duration::from_millis(5);

/// How long a thread sleeps while another thread holds one of its shards. A search for expired keys holds a
/// shard no longer than this.
const BUSY: Duration = Duration::from_micros(200);

/// Commands that were read together.
#[derive(Default)]
pub struct Chunk {
    bytes: Vec<u8>,
    /// Replaces `bytes` in a chunk of one command that is mostly one word.
    long: Option<Handover>,
    args: Vec<Arg>,
    commands: Vec<Logged>,
    /// The number of commands in the chunk that need not run.
    pub n_skipped: u64,
    /// The end of the last chunk. `Ok` is the end of the file, an error the reason why the rest cannot run.
    pub end: Option<Result<(), ReplayFailure>>,
}

/// Why commands of a file cannot be run.
pub enum ReplayFailure {
    /// The file is broken.
    Broken(Broken),
    /// A unit contains no command, or one that cannot run. `at` is the offset of the unit.
    AtCommand { at: u64, why: String },
    /// A command panicked.
    Panicked,
}

/// A command of the file.
struct Logged {
    command: &'static Registered,
    db: Db,
    /// The offset of its unit in the file.
    at: u64,
    bytes: Range<usize>,
    args: Range<usize>,
    /// The place of its first key, if all its keys are known.
    first: Option<Routed>,
    /// The part that has all its keys.
    part: Option<usize>,
}

/// The numbers of commands that have run and that have failed.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplayCounts {
    pub n_run: u64,
    pub n_failed: u64,
}

impl ReplayCounts {
    pub fn add(&mut self, other: ReplayCounts) {
        self.n_run += other.n_run;
        self.n_failed += other.n_failed;
    }
}

type ReplayResult = Result<ReplayCounts, ReplayFailure>;

impl Chunk {
    /// Reads a chunk into the memory of this one. `db` is the selected database before and after it.
    pub fn read(mut self, reader: &mut Reader<File>, db: &mut Db, parts: &ShardDivision) -> Self {
        self.clear();
        while self.bytes.len() < CHUNK_BYTES && self.commands.len() < CHUNK_COMMANDS {
            match reader.next_units() {
                Ok(Some(units)) => {
                    if units.len() >= CHUNK_BYTES && !self.commands.is_empty() {
                        // A chunk of its own need not be copied.
                        reader.keep_units();
                        break;
                    }
                    let at = reader.units_at();
                    let start = self.bytes.len();
                    reader.move_units(&mut self.bytes);
                    if let Err(why) = self.parse(start, at, db, parts) {
                        self.end = Some(Err(ReplayFailure::AtCommand { at, why }));
                    }
                }
                Ok(None) => self.end = Some(Ok(())),
                Err(broken) => self.end = Some(Err(ReplayFailure::Broken(broken))),
            }
            if self.end.is_some() {
                break;
            }
        }
        if let [only] = &mut self.commands[..]
            && self.bytes.len() >= CHUNK_BYTES
        {
            let words = &mut self.args[only.args.clone()];
            match Handover::new(std::mem::take(&mut self.bytes), only.bytes.start, words) {
                Ok(handover) => {
                    only.bytes = 0..handover.bytes().len();
                    self.long = Some(handover);
                }
                Err(bytes) => self.bytes = bytes,
            }
        }
        self
    }

    fn clear(&mut self) {
        self.long = None;
        self.bytes.clear();
        // One unit may have been very large.
        self.bytes.shrink_to(2 * CHUNK_BYTES);
        self.args.clear();
        self.args.shrink_to(16 * CHUNK_COMMANDS);
        self.commands.clear();
        self.n_skipped = 0;
        self.end = None;
    }

    /// Parses the units from `start` on. They begin at offset `at` of the file.
    fn parse(&mut self, start: usize, at: u64, db: &mut Db, parts: &ShardDivision) -> Result<(), String> {
        let limits = Limits { max_bulk_bytes: u64::MAX, authenticated: true };
        let mut parser = RequestParser::new(limits);
        let mut next = start;
        while next < self.bytes.len() {
            let first_arg = self.args.len();
            let consumed = match parser.parse(&mut self.bytes[next..], &mut self.args) {
                Ok(Parse::Request { consumed }) => consumed,
                Ok(Parse::Empty { consumed }) => {
                    next += consumed;
                    continue;
                }
                Ok(Parse::Incomplete { .. }) => return Err("a command is not whole".to_owned()),
                Err(error) => return Err(error.to_string()),
            };
            let (bytes, args) = (next..next + consumed, first_arg..self.args.len());
            next += consumed;
            let words = Words::new(&self.bytes[bytes.clone()], &self.args[args.clone()]);
            let name = words.get(0);
            // No client sees the states in between: to clients the whole loading is one transaction.
            if name.eq_ignore_ascii_case(b"multi") || name.eq_ignore_ascii_case(b"exec") {
                continue;
            }
            let Found::Command(command) = TABLE.find_logged(words) else {
                let name = String::from_utf8_lossy(name).into_owned();
                return Err(format!("Unknown command '{name}' reading the append only file"));
            };
            if !command.spec.arity.admits(words.len()) {
                return Err(format!("'{}' has a wrong number of arguments", command.full_name));
            }
            if !command.spec.may_be_loaded() {
                return Err(format!("'{}' is a command that no append-only file has", command.full_name));
            }
            if name.eq_ignore_ascii_case(b"select") {
                // The commands after a refused SELECT would write to another database.
                *db = parts.database(words.get(1)).ok_or("SELECT of a database beyond 'databases'")?;
                self.n_skipped += 1;
                continue;
            }
            let (first, part) = parts.of(command, words).unzip();
            self.commands.push(Logged { command, db: *db, at, bytes, args, first, part });
        }
        Ok(())
    }

    /// Returns the rows of commands in order, each with whether it is divided among threads.
    fn rows(&self) -> Vec<(bool, Range<u32>)> {
        rows_of(self.commands.iter().map(|logged| logged.part.is_some()))
    }

    /// Runs some commands in order. It holds these shards for about `HELD_FOR` at a time.
    fn run(
        &self,
        commands: &[u32],
        ids: &[ShardId],
        record: &Arc<ClientRecord>,
        worker: &mut Worker<Job>,
    ) -> ReplayResult {
        let origin = Origin { thread: worker.thread.index, slot: 0 };
        let mut session = Session::new(Arc::clone(record), origin);
        let (mut counts, mut rest) = (ReplayCounts::default(), commands);
        while !rest.is_empty() {
            let ran = worker.with_shards(ids, |held, thread| {
                let began = Instant::now();
                // Once a hold and not once a unit: these calls visit each shard, which takes longer than a
                // command. Between two holds, clients may have used the shards, as WATCH does, and moved
                // their time forward.
                let loads_at = thread.server().clock.now();
                for &id in ids {
                    held.shard(id).turn_back_time(loads_at);
                    held.shard(id).lift_limit();
                }
                let groups = rest.chunks(PREFETCH_MAX);
                let run = || {
                    for group in groups {
                        self.prefetch(group, thread.server());
                        counts.add(self.run_group(group, &mut session, held, thread)?);
                        rest = &rest[group.len()..];
                        if began.elapsed() >= HELD_FOR {
                            break;
                        }
                    }
                    Ok(())
                };
                let ran = run();
                // The commands before one that cannot run have changed something, too.
                forget_changes(held);
                ran
            });
            match ran {
                None => thread::sleep(BUSY),
                Some(Ok(ran)) => ran?,
                Some(Err(_)) => return Err(ReplayFailure::Panicked),
            }
        }
        Ok(counts)
    }

    /// Prefetches the memory that a group's look-ups will touch.
    fn prefetch(&self, group: &[u32], server: &Server) {
        let mut keys = SmallVec::<[Routed; PREFETCH_MAX]>::new();
        let db = self.commands[group[0] as usize].db;
        let of_db =
            group.iter().map(|&index| &self.commands[index as usize]).filter(|logged| logged.db == db);
        for first in of_db.filter_map(|logged| logged.first) {
            server.keyspace.prefetch_root(db, first);
            keys.push(first);
        }
        server.keyspace.prefetch(db, &keys);
    }

    fn run_group(
        &self,
        group: &[u32],
        session: &mut Session,
        held: &mut Held<'_, Job>,
        thread: &ThreadState,
    ) -> ReplayResult {
        let (mut counts, mut out) = (ReplayCounts::default(), Vec::new());
        for &index in group {
            let Logged { command, db, at, ref bytes, ref args, first, .. } = self.commands[index as usize];
            let all = self.long.as_ref().map_or(&self.bytes[..], Handover::bytes);
            let words = Words::new(&all[bytes.clone()], &self.args[args.clone()]);
            session.db = db;
            let of_session = Call::of_session(&TABLE, thread.server(), session, Millis(0), thread);
            let mut call = Call { access: ShardAccess::Held(held), ..of_session };
            out.clear();
            // Not counted or timed, unlike a client's command.
            let mut reply = Reply::new(&mut out, Resp::default());
            let mut run = || step::execute(&mut call, command, words, first, &mut reply);
            let outcome = match &self.long {
                None => run(),
                Some(handover) => handover.offer(run),
            };
            if call.must_run_again() || matches!(&outcome, Err(error) if error.is_too_much()) {
                let why = format!("'{}' cannot be run here", command.full_name);
                return Err(ReplayFailure::AtCommand { at, why });
            }
            counts.n_run += 1;
            counts.n_failed += u64::from(outcome.is_err() || out.first() == Some(&b'-'));
        }
        Ok(counts)
    }
}

/// Returns the longest rows of commands that are all divided among threads or all not. A row that is not
/// divided needs all shards held, which takes longer than a command. So a short row between two undivided
/// ones joins them, even if it could be divided.
fn rows_of(can_be_shared: impl Iterator<Item = bool>) -> Vec<(bool, Range<u32>)> {
    let mut rows: Vec<(bool, Range<u32>)> = Vec::new();
    for (index, can_be_shared) in (0..).zip(can_be_shared) {
        match rows.last_mut() {
            Some((is_shared, row)) if *is_shared == can_be_shared => row.end = index + 1,
            _ => {
                close_row(&mut rows);
                rows.push((can_be_shared, index..index + 1));
            }
        }
    }
    close_row(&mut rows);
    rows
}

/// Marks the last row as undivided if it is too short. Then joins it to an undivided row before it.
fn close_row(rows: &mut Vec<(bool, Range<u32>)>) {
    if let Some((is_shared, row)) = rows.last_mut() {
        *is_shared &= row.len() >= SHARED_FROM;
    }
    if let [.., (false, before), (false, last)] = rows.as_mut_slice() {
        before.end = last.end;
        rows.pop();
    }
}

/// Forgets the changes of commands. Nobody is notified of loaded data. Waiting commands are not served here:
/// they check their keys when everything is loaded.
fn forget_changes(held: &mut Held<'_, Job>) {
    record::clear();
    let mut untold = Vec::new();
    held.each_shard(|shard| shard.take_changes(&mut untold));
}

/// The division of the shards among threads.
pub struct ShardDivision {
    router: Router,
    n_dbs: u32,
    /// The shards of each part.
    ids: Vec<Arc<[ShardId]>>,
    all: Vec<ShardId>,
}

impl ShardDivision {
    /// Makes one part for each core. There are at most as many parts as heavy-work threads or shards.
    pub fn new(server: &Server) -> Self {
        let n_cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        let all = server.engine.all_shards().to_vec();
        let n_parts = n_cores.min(server.heavy.len()).min(all.len());
        let of_part = |part: usize| all.iter().copied().skip(part).step_by(n_parts).collect();
        let ids = (0..n_parts).map(of_part).collect();
        let n_dbs = server.keyspace.n_dbs() as u32;
        ShardDivision { router: *server.keyspace.router(), n_dbs, ids, all }
    }

    fn database(&self, number: &[u8]) -> Option<Db> {
        let number = u32::try_from(parse_i64(number)?).ok()?;
        (number < self.n_dbs).then_some(Db(number))
    }

    /// Returns the place of a command's first key, and the part of all its keys. Returns `None` if the
    /// command may touch anything else.
    fn of(&self, command: &Registered, words: Words<'_>) -> Option<(Routed, usize)> {
        let part_of = |routed: Routed| routed.shard.index() % self.ids.len();
        match command.spec.run {
            Run::Shard(_) => {
                let first = self.router.route(words.get(1));
                Some((first, part_of(first)))
            }
            Run::Transaction(_) if command.names_all_keys && command.has(Flags::WRITE) => {
                let mut keys = SmallVec::<[Routed; 8]>::new();
                let get = |at| words.get(at);
                command
                    .spec
                    .keys
                    .positions(words.len(), get, |at, _| keys.push(self.router.route(words.get(at))));
                let first = *keys.first()?;
                keys.iter().all(|key| part_of(*key) == part_of(first)).then(|| (first, part_of(first)))
            }
            _ => None,
        }
    }
}

/// The threads that run chunks: the caller and the heavy-work threads.
pub struct Crew<'w> {
    server: &'static Server,
    pub worker: &'w mut Worker<Job>,
    record: Arc<ClientRecord>,
    pub parts: ShardDivision,
    /// Receives the results of the shares in progress.
    under_way: Option<Receiver<ReplayResult>>,
    pub counts: ReplayCounts,
}

impl<'w> Crew<'w> {
    pub fn new(server: &'static Server, worker: &'w mut Worker<Job>, record: Arc<ClientRecord>) -> Self {
        let parts = ShardDivision::new(server);
        Crew { server, worker, record, parts, under_way: None, counts: ReplayCounts::default() }
    }

    /// Runs a chunk. The last row may still be in progress when this returns.
    ///
    /// # Errors
    /// The reason why it cannot run. Nothing is in progress then.
    pub fn run(&mut self, chunk: &Arc<Chunk>) -> Result<(), ReplayFailure> {
        self.counts.n_run += chunk.n_skipped;
        for (can_be_shared, row) in chunk.rows() {
            self.await_others()?;
            if can_be_shared && self.parts.ids.len() > 1 {
                self.share_out(chunk, row);
            } else {
                let commands: Vec<u32> = row.collect();
                let ran = chunk.run(&commands, &self.parts.all, &self.record, self.worker)?;
                self.counts.add(ran);
            }
        }
        Ok(())
    }

    fn share_out(&mut self, chunk: &Arc<Chunk>, row: Range<u32>) {
        let mut shares = vec![Vec::new(); self.parts.ids.len()];
        for index in row {
            let part = chunk.commands[index as usize].part.expect("the row is of commands with a part");
            shares[part].push(index);
        }
        let (done, under_way) = mpsc::channel();
        for (ids, commands) in self.parts.ids.iter().zip(shares) {
            let (ids, chunk, record) = (Arc::clone(ids), Arc::clone(chunk), Arc::clone(&self.record));
            let done = done.clone();
            self.server.loading.share(Box::new(move |worker| {
                let ran = chunk.run(&commands, &ids, &record, worker);
                // The chunk's memory is reused as soon as all shares are done.
                drop(chunk);
                // The receiver waits for all shares.
                let _ = done.send(ran);
            }));
        }
        self.under_way = Some(under_way);
        self.server.wake_heavy();
    }

    /// Waits until nothing is in progress. Meanwhile the caller runs shares itself.
    ///
    /// # Errors
    /// The reason why a share could not run.
    pub fn await_others(&mut self) -> Result<(), ReplayFailure> {
        let Some(under_way) = self.under_way.take() else { return Ok(()) };
        while let Some(share) = self.server.loading.take_share() {
            share(self.worker);
        }
        let mut stopped = None;
        let mut n_done = 0;
        for ran in under_way {
            n_done += 1;
            match ran {
                Ok(counts) => self.counts.add(counts),
                Err(why) => stopped = stopped.or(Some(why)),
            }
        }
        match stopped {
            Some(why) => Err(why),
            None if n_done < self.parts.ids.len() => Err(ReplayFailure::Panicked),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_too_short_to_be_shared_are_one_with_their_neighbours() {
        let rows = |lengths: &[(bool, usize)]| {
            let commands =
                lengths.iter().flat_map(|&(can_be_shared, n)| std::iter::repeat_n(can_be_shared, n));
            let rows = rows_of(commands).into_iter();
            rows.map(|(is_shared, row)| (is_shared, row.len())).collect::<Vec<_>>()
        };
        let long = SHARED_FROM;
        assert_eq!(rows(&[]), []);
        assert_eq!(rows(&[(true, long)]), [(true, long)]);
        assert_eq!(rows(&[(true, long - 1)]), [(false, long - 1)]);
        // Rows of commands with two keys each, which lie in one part or not: each row used to take all
        // shards.
        assert_eq!(rows(&[(true, 1), (false, 1), (true, 2), (false, 1), (true, 1)]), [(false, 6)]);
        assert_eq!(
            rows(&[(false, 2), (true, 3), (false, 1), (true, long), (true, 1), (false, 4), (true, 5)]),
            [(false, 6), (true, long + 1), (false, 9)]
        );
    }
}
