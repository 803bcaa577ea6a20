//! Loads a file: one thread cuts it into entries, and others build them. These threads put the entries into
//! shards of their own.
//!
//! ```text
//! calling thread            read, sum, cut, route ──▶ batches by owner
//! builders, one a core      own a range of the shards each: build the values, put them in
//! ```
//!
//! These shards stay outside of the keyspace until everything is loaded. So nothing is held meanwhile, and a
//! damaged file leaves the keyspace as it was. Then [`Loaded::install`] makes the keyspace's shards adopt the
//! contents.

use std::{
    collections::HashSet,
    fmt,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    thread,
    time::Duration,
};

use braid_journal::{disk::open_file_or_pipe, history::ReplicationId, stream::Lsn};
use braid_protocol::number::parse_i64;
use braid_storage::{
    entry::{
        db::Db,
        key::Key,
        time::{Deadline, Millis},
    },
    keyspace::{Keyspace, shard::Shard},
    memory::allocator,
    rdb::{
        Checksums, Made, Unfinished,
        file::{FileError, Item, Problem, RawEntry, Recency, SnapshotReader},
    },
    sync::coordinator::Held,
    table::{
        flush_retired,
        hash::{Routed, Router, ShardId},
    },
};

use crate::{
    client::node::Job,
    log, notice,
    shared::{loading::EverySecond, server::Server},
    warning,
};

/// Bytes and entries at which a batch is sent to its builder.
const BATCH_BYTES: usize = 256 << 10;
const BATCH_ENTRIES: usize = 2048;

/// From this length on, the thread that has read a value builds it. Another copy would cost more.
const LARGE_BYTES: usize = 16 << 20;

/// The most batches that wait for a builder.
const BATCHES_AHEAD: usize = 4;

/// The most builders. More would wait for the one thread that reads.
const BUILDERS_MAX: usize = 8;

/// The most keys without a value that are reported one by one. Further ones are only counted.
const EMPTY_TOLD_MAX: u64 = 10;

/// The most keys with values of modules that are reported one by one. Further ones are only counted.
const MODULES_TOLD_MAX: u64 = 10;

/// Bytes after which progress is noted.
const NOTED_EVERY_BYTES: u64 = 2 << 20;

/// The lengths of one sleep where `key-load-delay` is configured.
const LEAST_REST: Duration = Duration::from_millis(1);
const MOST_REST: Duration = Duration::from_millis(20);

/// The reason why a file was not loaded.
#[derive(Debug)]
pub struct LoadError {
    path: PathBuf,
    why: Why,
}

#[derive(Debug)]
enum Why {
    /// It cannot be opened.
    Io(io::Error),
    /// It is damaged, or contains something that cannot be read.
    File(FileError),
    /// It has keys in a database that does not exist.
    Database { offset: u64, db: u64, n_dbs: usize },
    /// It has a key twice.
    Twice { offset: u64, db: Db, key: Vec<u8> },
    /// The server is stopping.
    Stopped,
}

impl Why {
    /// Returns the offset of the error in the file. The error with the smallest offset is reported.
    fn offset(&self) -> u64 {
        match self {
            Why::Io(_) | Why::Stopped => 0,
            Why::File(error) => error.offset,
            Why::Database { offset, .. } | Why::Twice { offset, .. } => *offset,
        }
    }
}

impl From<FileError> for Why {
    fn from(error: FileError) -> Self {
        Why::File(error)
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loading {} failed", self.path.display())?;
        match &self.why {
            Why::Io(error) => write!(f, ": {error}"),
            Why::File(error) => write!(f, " {error}"),
            Why::Database { offset, db, n_dbs } => write!(
                f,
                " at byte {offset}: it has keys in database {db}, and there are {n_dbs} databases: set 'databases' to {} or more",
                db + 1
            ),
            Why::Twice { offset, db, key } => {
                write!(
                    f,
                    " at byte {offset}: database {} has the key '{}' twice",
                    db.index(),
                    log::shown(key)
                )
            }
            Why::Stopped => write!(f, ": the server is stopping"),
        }
    }
}

/// Loaded data, outside of the keyspace.
pub struct Loaded {
    shards: Vec<Shard>,
    /// The texts of libraries of functions.
    pub libraries: Vec<Vec<u8>>,
    /// The number of keys that were loaded.
    pub n_keys: u64,
    /// Keys that had expired and were left out.
    pub n_expired: u64,
    /// Keys without a value, which were left out, too.
    pub n_empty: u64,
    /// Values, records and metadata of modules that were left out.
    pub n_modules: u64,
    /// The database that the stream of its writer had selected, if the file says so.
    pub stream_db: Option<Db>,
    /// The place of the data in a history, if the file says so.
    pub place: Option<(ReplicationId, Lsn)>,
    /// The length of the file in bytes.
    pub n_bytes: u64,
}

impl Loaded {
    /// Writes a summary to the server log.
    pub fn tell(&self) {
        notice!(
            "Done loading RDB, keys loaded: {}, keys expired: {}, empty keys skipped: {}.",
            self.n_keys,
            self.n_expired,
            self.n_empty
        );
        if self.n_modules > 0 {
            warning!(
                "Data of modules was left out {} times, as 'rdb-skip-module-data yes' says. The next snapshot will be without it",
                self.n_modules
            );
        }
    }

    /// Replaces all present data with the loaded data. All shards are held.
    pub fn install(&mut self, held: &mut Held<'_, Job>) {
        for (loaded, index) in self.shards.iter_mut().zip(0..) {
            held.shard(ShardId(index)).adopt(loaded);
        }
    }

    /// Returns a key that is both loaded and present. All shards are held.
    pub fn key_that_is_there(&self, held: &mut Held<'_, Job>, router: &Router) -> Option<Box<[u8]>> {
        let mut shards = self.shards.iter().zip(0..);
        shards.find_map(|(loaded, index)| held.shard(ShardId(index)).key_in_both(loaded, router))
    }

    /// Adds loaded data to a held shard. It replaces values under the same keys.
    pub fn merge_into(&mut self, shard: &mut Shard, router: &Router) {
        shard.merge(&mut self.shards[shard.id().index()], router);
    }
}

/// Loads a file. Keys whose deadline has passed at `as_of` are left out.
///
/// # Errors
/// If it cannot be read or is invalid, or the server is stopping.
pub fn load(server: &Server, path: &Path, as_of: Millis) -> Result<Loaded, LoadError> {
    let failed = |error| LoadError { path: path.to_owned(), why: Why::Io(error) };
    let file = open_file_or_pipe(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    // The length of a pipe is unknown until it ends.
    let total = metadata.is_file().then_some(metadata.len());
    load_from(server, file, total, path, as_of)
}

/// Whether a file tells the place of its data in a history. The source of a pipe is not read for that.
pub fn tells_place(path: &Path) -> bool {
    let Ok(file) = open_file_or_pipe(path) else { return false };
    let Some(total) =
        file.metadata().ok().filter(|metadata| metadata.is_file()).map(|metadata| metadata.len())
    else {
        return false;
    };
    let Ok(mut reader) = SnapshotReader::new(file, Some(total), false) else { return false };
    loop {
        match reader.next_item() {
            Ok(Item::Aux(name, _)) if *name == *b"repl-id" => return true,
            Ok(Item::Aux(..)) => {}
            _ => return false,
        }
    }
}

/// Loads a snapshot from any source, of length `total` if that is known. `path` names it in messages.
///
/// # Errors
/// If it cannot be read or is invalid, or the server is stopping.
pub fn load_from(
    server: &Server,
    source: impl Read,
    total: Option<u64>,
    path: &Path,
    as_of: Millis,
) -> Result<Loaded, LoadError> {
    let failed = |why| LoadError { path: path.to_owned(), why };
    let mut shards = server.keyspace.aside();
    let n_builders = thread::available_parallelism().map_or(1, |cores| cores.get());
    let n_builders = n_builders.min(BUILDERS_MAX).min(shards.len());
    let n_owned = shards.len().div_ceil(n_builders);
    let (now, n_empty) = (server.clock.now(), AtomicU64::new(0));
    let making = Making { keyspace: &server.keyspace, as_of, n_empty: &n_empty, path };
    let (read, built) = thread::scope(|scope| {
        let (give_back, given_back) = channel();
        let (mut outlets, mut builders) = (Vec::new(), Vec::new());
        for (nth, owned) in shards.chunks_mut(n_owned).enumerate() {
            let (outlet, inlet) = sync_channel(BATCHES_AHEAD);
            let (first, give_back) = (nth * n_owned, give_back.clone());
            let builder = Builder { owned, first, making, now, give_back };
            let named = thread::Builder::new().name(format!("load-{nth}"));
            let run = move || {
                let built = builder.run(&inlet);
                allocator::settle_before_sleep();
                built
            };
            builders.push(named.spawn_scoped(scope, run).map_err(Why::Io)?);
            outlets.push(Outlet { batch: EntryBatch::default(), to: outlet });
        }
        let libraries = Vec::new();
        let mut reading = Reading {
            server,
            now,
            making,
            n_owned,
            outlets,
            given_back,
            libraries,
            n_expired: 0,
            stream_db: None,
            id: None,
            lsn: None,
            modules: SkippedModules::default(),
            so_far: None,
            owed: Duration::ZERO,
        };
        let read = reading.run(source, total);
        let (libraries, n_expired) = (std::mem::take(&mut reading.libraries), reading.n_expired);
        let (n_modules, stream_db) = (reading.modules.n, reading.stream_db);
        let place = reading.id.zip(reading.lsn);
        // The builders end when the senders of batches are dropped.
        drop(reading);
        let built: Vec<_> =
            builders.into_iter().map(|builder| builder.join().expect("a builder does not panic")).collect();
        Ok((read.map(|n_bytes| (libraries, n_expired, n_modules, (stream_db, place), n_bytes)), built))
    })
    .map_err(failed)?;
    let whys = read.as_ref().err().into_iter().chain(built.iter().filter_map(|built| built.as_ref().err()));
    if whys.clone().next().is_some() {
        let wrong = built.into_iter().filter_map(Result::err).chain(read.err());
        // A reader whose builder is gone has no error of its own.
        let first = wrong.min_by_key(|why| (matches!(why, Why::Stopped), why.offset()));
        return Err(failed(first.expect("there is one")));
    }
    let (libraries, n_expired, n_modules, (stream_db, place), n_bytes) = read.map_err(failed)?;
    let tallies = built.into_iter().flatten();
    let (n_keys, n_over) = tallies.fold((0, 0), |sum, tally| (sum.0 + tally.n_keys, sum.1 + tally.n_over));
    let n_empty = n_empty.into_inner();
    let n_expired = n_expired + n_over;
    Ok(Loaded { shards, libraries, n_keys, n_expired, n_empty, n_modules, stream_db, place, n_bytes })
}

/// Entries of one builder's shards.
#[derive(Default)]
struct EntryBatch {
    /// Keys and values, one after the other.
    bytes: Vec<u8>,
    entries: Vec<EntryHead>,
    /// Entries that are already built, because their long values were read straight to their places.
    built: Vec<Built>,
}

/// An entry that is already built.
struct Built {
    key: Vec<u8>,
    routed: Routed,
    db: Db,
    recency: Option<Recency>,
    made: Made,
    offset: u64,
}

/// The properties of an entry in a batch, besides its bytes.
struct EntryHead {
    routed: Routed,
    db: Db,
    deadline: Option<Deadline>,
    recency: Option<Recency>,
    value_type: u8,
    key_len: usize,
    value_len: usize,
    offset: u64,
}

/// The way to a builder: its next batch, and the channel.
struct Outlet {
    batch: EntryBatch,
    to: SyncSender<EntryBatch>,
}

/// The thread that cuts the file into entries.
struct Reading<'s> {
    server: &'s Server,
    now: Millis,
    making: Making<'s>,
    /// The number of shards of each builder.
    n_owned: usize,
    outlets: Vec<Outlet>,
    /// Batches that builders no longer need.
    given_back: Receiver<EntryBatch>,
    libraries: Vec<Vec<u8>>,
    n_expired: u64,
    stream_db: Option<Db>,
    /// The history of the data, and its place there, as far as the file has said them.
    id: Option<ReplicationId>,
    lsn: Option<Lsn>,
    modules: SkippedModules,
    /// The parts of the present value that are built.
    so_far: Option<Unfinished>,
    /// The part of `key-load-delay` that is still to come.
    owed: Duration,
}

impl Reading<'_> {
    fn run(&mut self, source: impl Read, total: Option<u64>) -> Result<u64, Why> {
        let config = self.server.config.load();
        let checks = config.rdbchecksum && self.server.payload_checksums() == Checksums::Compared;
        let mut reader = SnapshotReader::new(source, total, checks)?;
        reader.divide();
        if reader.is_of_later_version() {
            let (version, path) = (reader.version(), self.making.path.display());
            notice!(
                "{path} has RDB version {version}, a later one than is known. It is read by the types of its values"
            );
        }
        if config.rdb_skip_module_data {
            reader.skip_modules();
        }
        let (mut db, mut noted, mut every_second) = (Db(0), 0, EverySecond::default());
        let mut is_delayed = config.key_load_delay.is_some();
        loop {
            let offset = reader.offset();
            if offset >= noted + NOTED_EVERY_BYTES {
                noted = offset;
                self.note(offset, total.unwrap_or(0), &mut every_second)?;
                is_delayed = self.server.config.load().key_load_delay.is_some();
            }
            match reader.next_item()? {
                Item::Entry(entry) => {
                    self.take(db, &entry)?;
                    is_delayed = is_delayed && self.rest()?;
                }
                Item::Select(selected) => db = self.database(selected, offset)?,
                Item::Aux(name, value) if *name == *b"repl-stream-db" => {
                    let selected = parse_i64(&value).and_then(|db| u64::try_from(db).ok());
                    self.stream_db = selected.and_then(|db| self.database(db, offset).ok());
                }
                Item::Aux(name, value) if *name == *b"repl-id" => self.id = ReplicationId::parse(&value),
                Item::Aux(name, value) if *name == *b"repl-offset" => {
                    let lsn = parse_i64(&value).and_then(|lsn| u64::try_from(lsn).ok());
                    self.lsn = lsn.map(Lsn);
                }
                Item::Aux(name, value) => note_fact(&name, &value, self.now),
                Item::Library(code) => self.libraries.push(code.into_owned()),
                Item::Sizes(..) | Item::Other => {}
                Item::ModuleRecord { module, is_empty } => self.modules.note_record(module, is_empty),
                Item::ModuleValue { key, module } => self.modules.note_value(&key, &module),
                Item::End { .. } => {
                    self.outlets.iter_mut().try_for_each(Outlet::send)?;
                    self.modules.n += reader.n_metadata();
                    return Ok(reader.offset());
                }
            }
        }
    }

    /// Rests for one key, unless the configuration changes. Returns whether the next one is delayed, too.
    #[cold]
    fn rest(&mut self) -> Result<bool, Why> {
        self.owed += self.server.config.load().key_load_delay.unwrap_or_default();
        while self.owed >= LEAST_REST {
            if self.server.stopping.load(Ordering::Relaxed) {
                return Err(Why::Stopped);
            }
            if self.server.config.load().key_load_delay.is_none() {
                return Ok(false);
            }
            let part = self.owed.min(MOST_REST);
            thread::sleep(part);
            self.owed -= part;
        }
        Ok(true)
    }

    /// Notes the progress, and fails if the server is stopping.
    fn note(&self, offset: u64, n_bytes: u64, every_second: &mut EverySecond) -> Result<(), Why> {
        if self.server.stopping.load(Ordering::Relaxed) {
            return Err(Why::Stopped);
        }
        self.server.loading.note(offset);
        if every_second.has_passed() {
            let percent = 100.0 * offset as f64 / n_bytes.max(1) as f64;
            notice!("Loading DB: {percent:.1} % of {n_bytes} bytes");
        }
        // Large data should be in huge pages.
        self.server.measure_memory();
        Ok(())
    }

    fn database(&self, selected: u64, offset: u64) -> Result<Db, Why> {
        let n_dbs = self.server.keyspace.n_dbs();
        let db = u32::try_from(selected).ok().filter(|&db| (db as usize) < n_dbs).map(Db);
        db.ok_or(Why::Database { offset, db: selected, n_dbs })
    }

    /// Sends an entry that is already built to its builder.
    fn take_built(
        &mut self,
        db: Db,
        key: Vec<u8>,
        made: Made,
        recency: Option<Recency>,
        offset: u64,
    ) -> Result<(), Why> {
        let routed = self.server.keyspace.router().route(&key);
        let outlet = &mut self.outlets[routed.shard.index() / self.n_owned];
        outlet.batch.built.push(Built { key, routed, db, recency, made, offset });
        outlet.send()
    }

    /// Puts an entry into the batch of its builder.
    fn take(&mut self, db: Db, entry: &RawEntry<'_>) -> Result<(), Why> {
        if entry.has_expired(self.making.as_of) {
            self.n_expired += u64::from(!entry.is_part);
            return Ok(());
        }
        if entry.is_part {
            if let Made::Part(so_far) = self.making.build(entry, self.so_far.take())? {
                self.so_far = Some(so_far);
            }
            return Ok(());
        }
        if self.so_far.is_some() || !entry.apart.is_empty() || entry.value.len() >= LARGE_BYTES {
            let made = self.making.build(entry, self.so_far.take())?;
            return self.take_built(db, entry.key.to_vec(), made, entry.recency, entry.offset);
        }
        let routed = self.server.keyspace.router().route(&entry.key);
        let outlet = &mut self.outlets[routed.shard.index() / self.n_owned];
        let RawEntry { deadline, recency, value_type, offset, .. } = *entry;
        let (key_len, value_len) = (entry.key.len(), entry.value.len());
        outlet.batch.bytes.extend_from_slice(&entry.key);
        outlet.batch.bytes.extend_from_slice(entry.value);
        let cut = EntryHead { routed, db, deadline, recency, value_type, key_len, value_len, offset };
        outlet.batch.entries.push(cut);
        if outlet.batch.bytes.len() < BATCH_BYTES && outlet.batch.entries.len() < BATCH_ENTRIES {
            return Ok(());
        }
        outlet.send()?;
        if let Ok(batch) = self.given_back.try_recv() {
            outlet.batch = batch;
        }
        Ok(())
    }
}

impl Outlet {
    /// Sends the batch to the builder. A builder that is gone has found an error and reports it itself.
    fn send(&mut self) -> Result<(), Why> {
        self.to.send(std::mem::take(&mut self.batch)).map_err(|_| Why::Stopped)
    }
}

/// Data of modules that is left out.
#[derive(Default)]
struct SkippedModules {
    /// The number of values and of records with contents.
    n: u64,
    /// The modules whose records were told.
    told: HashSet<String>,
}

impl SkippedModules {
    fn note_record(&mut self, module: String, is_empty: bool) {
        self.n += u64::from(!is_empty);
        if !self.told.contains(&module) {
            let what = if is_empty { "an empty record" } else { "a record" };
            notice!("The file has {what} of the module '{module}', which is left out");
            self.told.insert(module);
        }
    }

    fn note_value(&mut self, key: &[u8], module: &str) {
        self.n += 1;
        if self.n <= MODULES_TOLD_MAX {
            warning!("The key '{}' is left out: it holds data of the module '{module}'", log::shown(key));
        }
    }
}

/// Logs a fact of the file about itself, as Redis does.
fn note_fact(name: &[u8], value: &[u8], now: Millis) {
    let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
    match name {
        b"redis-ver" | b"valkey-ver" | b"braid-ver" => {
            notice!("Loading RDB produced by version {}", value.escape_ascii());
        }
        b"ctime" => {
            if let Some(made) = number() {
                notice!("RDB age {} seconds", (now.0 / 1000).saturating_sub(made));
            }
        }
        b"used-mem" => {
            if let Some(bytes) = number() {
                notice!("RDB memory usage when created {:.2} Mb", bytes as f64 / f64::from(1 << 20));
            }
        }
        _ => {}
    }
}

/// The parameters for building entries.
#[derive(Clone, Copy)]
struct Making<'s> {
    keyspace: &'s Keyspace,
    as_of: Millis,
    /// The number of keys without a value.
    n_empty: &'s AtomicU64,
    /// The file, for the log.
    path: &'s Path,
}

impl Making<'_> {
    fn build(&self, raw: &RawEntry<'_>, onto: Option<Unfinished>) -> Result<Made, Why> {
        raw.build(self.keyspace, self.as_of, onto).map_err(|malformed| {
            // Several threads may find a malformed value. The error that ends the loading names the first.
            let (shown, offset, path) = (log::shown(&raw.key), raw.offset, self.path.display());
            warning!("The key '{shown}' at byte {offset} of {path} is refused: {malformed} of its value");
            let key = Some(raw.key.to_vec());
            Why::File(FileError { offset, key, problem: Problem::Value(malformed) })
        })
    }
}

/// The counts of a builder.
#[derive(Default)]
struct Tally {
    n_keys: u64,
    /// Hashes whose fields had all expired.
    n_over: u64,
}

/// A thread that builds entries.
struct Builder<'s> {
    /// The shards that it fills.
    owned: &'s mut [Shard],
    /// The number of the first.
    first: usize,
    making: Making<'s>,
    now: Millis,
    give_back: Sender<EntryBatch>,
}

impl Builder<'_> {
    fn run(mut self, batches: &Receiver<EntryBatch>) -> Result<Tally, Why> {
        let mut tally = Tally::default();
        for mut batch in batches {
            self.build(&batch, &mut tally)?;
            for Built { key, routed, db, recency, made, offset } in batch.built.drain(..) {
                self.put((db, &Key { bytes: &key, routed }), made, recency, offset, &mut tally)?;
            }
            flush_retired();
            // A very long value has made it large.
            if batch.bytes.capacity() <= 4 * BATCH_BYTES {
                batch.bytes.clear();
                batch.entries.clear();
                // The reader drops its end once everything is read.
                let _ = self.give_back.send(batch);
            }
        }
        Ok(tally)
    }

    fn build(&mut self, batch: &EntryBatch, tally: &mut Tally) -> Result<(), Why> {
        let mut rest = &batch.bytes[..];
        for cut in &batch.entries {
            let (key, behind) = rest.split_at(cut.key_len);
            let (value, behind) = behind.split_at(cut.value_len);
            rest = behind;
            let &EntryHead { db, routed, deadline, recency, value_type, offset, .. } = cut;
            let raw = RawEntry {
                key: key.into(),
                deadline,
                recency,
                value_type,
                value,
                apart: &[],
                is_part: false,
                n_left: 0,
                offset,
            };
            let made = self.making.build(&raw, None)?;
            self.put((db, &Key { bytes: key, routed }), made, recency, offset, tally)?;
        }
        Ok(())
    }

    /// Puts a built entry into its shard. `offset` is the entry's place in the file.
    fn put(
        &mut self,
        (db, key): (Db, &Key<'_>),
        made: Made,
        recency: Option<Recency>,
        offset: u64,
        tally: &mut Tally,
    ) -> Result<(), Why> {
        match made {
            Made::Entry(entry) => {
                let shard = &mut self.owned[key.routed.shard.index() - self.first];
                let loaded = shard.load((db, key), entry, recency, self.now);
                loaded.map_err(|_| Why::Twice { offset, db, key: key.bytes.to_vec() })?;
                tally.n_keys += 1;
            }
            Made::Over => tally.n_over += 1,
            Made::Part(_) => unreachable!("parts are put together before they are put anywhere"),
            Made::Empty => {
                if self.making.n_empty.fetch_add(1, Ordering::Relaxed) < EMPTY_TOLD_MAX {
                    let (shown, path) = (log::shown(key.bytes), self.making.path.display());
                    warning!("While loading {path}: skipping empty key: {shown}");
                }
            }
        }
        Ok(())
    }
}
