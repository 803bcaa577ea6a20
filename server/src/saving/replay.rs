//! Loads an append-only file: its base, and then the commands of its increments. They run as if a client sent
//! them at a time when nothing expires.
//!
//! Expirations before the file was written were logged as removals. Keys that have expired since then are
//! removed once the time is known again. A logged command must find the key that it found before.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use braid_journal::{
    disk::{Disk, Folder, open_regular},
    faults::LogFolder,
    history::History,
    manifest::{Manifest, part_named},
    reader::{Broken, Reader},
    store::{self, Aof, End, ManifestError},
    stream::Lsn,
};
use braid_storage::{
    entry::{db::Db, time::Millis},
    keyspace::shard::saving::Form,
    observers::record,
    rdb,
    sync::coordinator::{Held, Worker},
};

use super::{
    chunks::{Chunk, Crew, ReplayCounts, ReplayFailure},
    snapshot_output::{begin_commands, begin_snapshot},
};
use crate::{
    client::{
        id::{ClientId, Endpoint, Origin},
        node::Job,
        record::ClientRecord,
    },
    clock::Instant,
    command,
    config::PropagationErrors,
    durability::Durability,
    notice,
    persist::{self, EntriesWriter, Purpose, litter},
    replication::turns::ResumePoint,
    shared::{loading::EverySecond, server::Server, thread_state::ThreadState},
    warning,
};

/// The reason why an append-only file is not loaded, in words for the server log.
#[derive(Debug)]
pub struct ReplayError(String);

impl fmt::Display for ReplayError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

fn failed(path: &Path, why: impl fmt::Display) -> ReplayError {
    ReplayError(format!("The append-only file {} cannot be used: {why}", path.display()))
}

/// An append-only file as found at the start.
pub struct FoundAof {
    folder: Folder,
    path: PathBuf,
    name: String,
    manifest: Option<Manifest>,
}

impl FoundAof {
    /// Looks for an append-only file and locks its folder. No other server has the file while this value
    /// exists, or the one that [`open`](FoundAof::open) makes of it.
    ///
    /// # Errors
    /// If it cannot be read, its manifest is invalid, or another server has it.
    pub fn look(server_dir: &Path, folder: &Path, name: &str) -> Result<Self, ReplayError> {
        Self::look_in(Folder::locked(folder.to_owned(), name), server_dir, folder, name)
    }

    /// Looks for the append-only file that this server has open.
    ///
    /// # Errors
    /// If it cannot be read, or its manifest is invalid.
    pub fn look_again(server_dir: &Path, folder: &Path, name: &str) -> Result<Self, ReplayError> {
        Self::look_in(Folder::new(folder.to_owned()), server_dir, folder, name)
    }

    fn look_in(
        folder: io::Result<Folder>,
        server_dir: &Path,
        path: &Path,
        name: &str,
    ) -> Result<Self, ReplayError> {
        let path = path.to_owned();
        let mut folder = folder.map_err(|error| failed(&path, error))?;
        let manifest = store::manifest_in(&folder, name).map_err(|error| match error {
            ManifestError::Io(error) => failed(&path, format!("its manifest: {error}")),
            ManifestError::Invalid(invalid) => failed(&path, format!("its manifest: {invalid}")),
        })?;
        let is_of_single_file = manifest.as_ref().is_none_or(|found| {
            found.increments.is_empty()
                && found.base.as_ref().is_some_and(|base| base.name == name.as_bytes())
                && !folder.path_of(name.as_bytes()).exists()
        });
        let adopted = match is_of_single_file {
            true => adopt_single_file(server_dir, &path, &mut folder, name).map_err(|e| failed(&path, e))?,
            false => None,
        };
        let manifest = manifest.or(adopted);
        Ok(Self { folder, path, name: name.to_owned(), manifest })
    }

    /// Whether there is none yet.
    pub fn is_new(&self) -> bool {
        self.manifest.is_none()
    }

    /// Warns of parts that are not read because there is no manifest.
    pub fn tell_unread(&self) {
        let names = self.folder.names().unwrap_or_default();
        let parts: Vec<_> = names.iter().filter(|name| part_named(name, &self.name).is_some()).collect();
        if self.is_new() && !parts.is_empty() {
            let shown: Vec<_> = parts.iter().map(|name| String::from_utf8_lossy(name)).collect();
            warning!(
                "{} holds parts of an append-only file, but no {}.manifest that names them: {}. They are not read, and are left alone. If the manifest was \
                 lost, stop this server, write it anew and start again",
                self.path.display(),
                self.name,
                shown.join(", ")
            );
        }
    }

    /// Returns the path to check with `--check-aof`. This is the manifest, or the single file of versions
    /// without manifests.
    fn to_check(&self) -> PathBuf {
        let manifest = self.path.join(format!("{}.manifest", self.name));
        if manifest.exists() { manifest } else { self.path.join(&self.name) }
    }

    /// Returns the length of all its files in bytes.
    pub fn n_bytes(&self) -> u64 {
        let length = |name: &[u8]| std::fs::metadata(self.folder.path_of(name)).map_or(0, |file| file.len());
        let parts = self.manifest.iter().flat_map(|found| found.base.iter().chain(&found.increments));
        parts.map(|part| length(&part.name)).sum()
    }

    /// Begins an append-only file whose base is a copy of a snapshot. The snapshot is still to be loaded.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn begin_from(&mut self, snapshot: &Path) -> Result<(), ReplayError> {
        self.begin(Form::Snapshot, |base| {
            open_regular(snapshot)?;
            std::fs::copy(snapshot, base).map(|_| ())
        })
    }

    /// Begins an append-only file with an empty base.
    fn begin_from_nothing(&mut self, server: &Server) -> Result<(), ReplayError> {
        let config = server.config.load();
        if !config.aof_use_rdb_preamble {
            return self.begin(Form::Commands, |base| {
                let commands = begin_commands(File::create(base)?, &config);
                EntriesWriter::Commands(commands).finish().map(|_| ())
            });
        }
        self.begin(Form::Snapshot, |base| {
            let writer = begin_snapshot(File::create(base)?, Purpose::Base, None, false, &config, server)?;
            writer.finish().map(|_| ())
        })
    }

    fn begin(&mut self, form: Form, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), ReplayError> {
        let begin = || {
            let mut manifest = store::new_manifest(&self.folder, &self.name)?;
            let base = &manifest.begin_base(&self.name, form == Form::Snapshot, 0).name;
            // Under its final name, a base that was cut off would look like a part whose manifest was lost.
            let aside = format!("{UNFINISHED}{}.rdb", std::process::id());
            let path = self.folder.path_of(aside.as_bytes());
            write(&path).and_then(|()| File::open(&path)?.sync_all())?;
            self.folder.rename(aside.as_bytes(), base)?;
            self.manifest = Some(manifest);
            Ok(())
        };
        begin().map_err(|error: io::Error| failed(&self.path, error))
    }

    /// Opens it to continue at its end.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn open(self, end: End, durability: &Durability) -> Result<Aof<LogFolder>, ReplayError> {
        // Leftover files do no harm, but take space.
        if let Err(error) = litter::remove_from_log(&self.path, &self.name) {
            warning!("What is left over in {} cannot be removed: {error}", self.path.display());
        }
        let found = self.manifest.map(|manifest| (manifest, end));
        Aof::open(durability.folder(self.folder), &self.name, found)
            .map_err(|error| failed(&self.path, error))
    }
}

/// The prefix of a base's name while it is being written.
pub const UNFINISHED: &str = "temp-rewriteaof-";

/// The use of an append-only file after it has been loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// New records are appended to it. The server starts, and goes on in the history that the file tells.
    Begin,
    /// New records are appended to it.
    Log,
    /// It stays as it is.
    LogNothing,
}

/// Loads an append-only file, and continues it if `then` says so. Nothing is logged meanwhile.
///
/// # Errors
/// If it cannot be loaded, or the disk refuses. A stop of the server is no error.
pub fn replay(
    server: &'static Server,
    worker: &mut Worker<Job>,
    mut found: FoundAof,
    then: Then,
) -> Result<(), ReplayError> {
    let (began, is_new, n_bytes) = (Instant::now(), found.is_new(), found.n_bytes());
    let mut replay = Replay::new(server, worker);
    let end = match replay.run(&found) {
        Err(_) if server.stopping.load(Ordering::Relaxed) => return Ok(()),
        ran => ran?,
    };
    let mut resumed = replay.place.take();
    if !is_new {
        notice!("DB loaded from append only file: {:.3} seconds", began.elapsed().as_secs_f64());
    }
    if then == Then::LogNothing {
        server.measure_memory();
        return Ok(());
    }
    if is_new {
        found.begin_from_nothing(server)?;
    }
    let mut aof = Some(found.open(end, &server.durability)?);
    let all = server.engine.all_shards();
    let mut begin = |held: &mut Held<'_, Job>, thread: &mut ThreadState| {
        for &id in all.iter() {
            held.shard(id).hear_all(record::LOG, true);
        }
        let aof = aof.take().expect("it is begun once");
        if then == Then::Begin {
            server.begin_stream(resumed.take());
        }
        let history = server.shared_history();
        server.durability.begin(aof, n_bytes, history, &mut thread.log.borrow_mut());
        // No other thread would publish it: everything that follows waits for the cut.
        thread.publish_log();
        server.durability.wake_syncer();
    };
    while worker.with_shards(&all, &mut begin).is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    // The process before this one may have ended before it had tidied.
    server.durability.aof.order_tidying();
    server.measure_memory();
    Ok(())
}

/// Adopts the single file of Redis before version 7 as the base. The file moves to the folder of the parts.
fn adopt_single_file(
    server_dir: &Path,
    path: &Path,
    folder: &mut Folder,
    name: &str,
) -> io::Result<Option<Manifest>> {
    let (old, new) = (server_dir.join(name), path.join(name));
    if old.is_file() {
        notice!("Moving the append-only file {} of an older version to {}", old.display(), new.display());
        std::fs::rename(&old, &new)?;
        folder.sync_folder()?;
    }
    Ok(new.is_file().then(|| Manifest::of_single_file(name)))
}

/// A loading of an append-only file in progress.
pub struct Replay<'w> {
    server: &'static Server,
    crew: Crew<'w>,
    /// The selected database.
    db: Db,
    /// The path to check if it cannot be loaded: the manifest.
    checked: PathBuf,
    /// The place of the data in a history, if the files tell it.
    place: Option<ResumePoint>,
    /// Bytes of the files before the one that is read.
    n_bytes_before: u64,
    every_second: EverySecond,
}

impl<'w> Replay<'w> {
    /// Makes one that runs on a thread's worker.
    pub fn new(server: &'static Server, worker: &'w mut Worker<Job>) -> Self {
        let origin = Origin { thread: worker.thread.index, slot: 0 };
        let nowhere = || Endpoint::Unix(String::new());
        let users = server.accounts.users();
        let user = users.default_user();
        let record = Arc::new(ClientRecord::new(ClientId(0), origin, nowhere(), nowhere(), -1, 0, user));
        Self {
            server,
            crew: Crew::new(server, worker, record),
            db: Db::default(),
            checked: PathBuf::new(),
            place: None,
            n_bytes_before: 0,
            every_second: EverySecond::default(),
        }
    }

    /// Loads all of an append-only file. Returns its end.
    ///
    /// # Errors
    /// If it is damaged, torn where that is not allowed, or contains an invalid command.
    pub fn run(&mut self, found: &FoundAof) -> Result<End, ReplayError> {
        let mut end = End::default();
        let Some(manifest) = &found.manifest else { return Ok(end) };
        self.checked = found.to_check();
        if let Some(base) = &manifest.base {
            let path = found.folder.path_of(&base.name);
            let from = if is_snapshot(&path).map_err(|error| failed(&path, error))? {
                self.load_snapshot(&path)?
            } else {
                0
            };
            // If the base has frames, they do not belong to the stream of the increments.
            let read = self.replay(&path, from, manifest.increments.is_empty())?;
            cut(&path, read.n_bytes).map_err(|error| failed(&path, error))?;
        }
        for (nth, increment) in manifest.increments.iter().enumerate() {
            let path = found.folder.path_of(&increment.name);
            let is_last = nth + 1 == manifest.increments.len();
            let before = end.offset;
            end = self.replay(&path, 0, is_last)?;
            end.offset = end.offset.max(before);
        }
        let ReplayCounts { n_run, n_failed } = self.crew.counts;
        if n_failed > 0 {
            self.server.replica.n_unexpected_errors.fetch_add(n_failed, Ordering::Relaxed);
            let why = format!(
                "{n_failed} of {n_run} commands of the append-only file have failed, as they may have when they were logged"
            );
            if self.server.config.load().propagation_error_behavior == PropagationErrors::Panic {
                return Err(ReplayError(format!("{why}, and 'propagation-error-behavior' is 'panic'")));
            }
            warning!("{why}");
        }
        Ok(end)
    }

    /// Loads a snapshot. Returns its length in bytes.
    fn load_snapshot(&mut self, path: &Path) -> Result<u64, ReplayError> {
        let mut loaded =
            persist::load(self.server, path, Millis(0)).map_err(|error| ReplayError(error.to_string()))?;
        command::replace_libraries(self.server, &loaded.libraries).map_err(|why| failed(path, why))?;
        loaded.tell();
        let all = self.server.engine.all_shards();
        let mut install = |held: &mut Held<'_, Job>| {
            loaded.install(held);
            // On a replica the shards record for its own replicas, which are not told of this.
            record::clear();
        };
        while self.crew.worker.with_shards(&all, |held, _| install(held)).is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        self.server.loading.note_loaded(loaded.n_keys, 0, loaded.n_modules);
        let db = loaded.stream_db.unwrap_or_default();
        self.place = loaded.place.map(|(id, lsn)| ResumePoint { id, lsn, db, recent: None });
        Ok(loaded.n_bytes)
    }

    /// Runs the commands of a file from an offset on.
    fn replay(&mut self, path: &Path, from: u64, is_last: bool) -> Result<End, ReplayError> {
        let file = open_regular(path).map_err(|error| failed(path, error))?;
        let n_bytes = file.metadata().map_err(|error| failed(path, error))?.len();
        let mut reader = Reader::from_offset(file, from).map_err(|error| failed(path, error))?;
        reader.keep_recent(self.recent());
        let (mut last, mut room) = (Arc::default(), Chunk::default());
        loop {
            // The end of the last chunk is still in progress.
            let chunk = Arc::new(room.read(&mut reader, &mut self.db, &self.crew.parts));
            let mut ran = self.crew.await_others();
            room = Arc::try_unwrap(std::mem::replace(&mut last, Arc::clone(&chunk))).unwrap_or_default();
            ran = ran.and_then(|()| self.crew.run(&chunk));
            if chunk.end.is_some() {
                ran = ran.and_then(|()| self.crew.await_others());
            }
            ran.map_err(|stopped| failed(path, self.advise(path, &stopped)))?;
            self.note(self.n_bytes_before + reader.position());
            match &chunk.end {
                None => {}
                Some(Ok(())) => break,
                Some(Err(ReplayFailure::Broken(Broken::Torn { at }))) if is_last => {
                    self.accept_torn(path, *at, n_bytes)?;
                    self.note_place(&mut reader);
                    let offset = reader.stream_offset().unwrap_or(0);
                    return Ok(End { n_bytes: *at, previous: reader.previous_sum(), offset });
                }
                Some(Err(stopped)) => return Err(failed(path, self.advise(path, stopped))),
            }
            if self.server.stopping.load(Ordering::Relaxed) {
                // The result no longer matters.
                let _ = self.crew.await_others();
                return Err(failed(path, "the server is stopping"));
            }
        }
        self.n_bytes_before += n_bytes;
        self.note_place(&mut reader);
        let offset = reader.stream_offset().unwrap_or(0);
        Ok(End { n_bytes: reader.position(), previous: reader.previous_sum(), offset })
    }

    /// The bytes of the change stream that the files before have.
    fn recent(&mut self) -> History {
        let mut recent = self.place.as_mut().and_then(|place| place.recent.take());
        let recent = recent.get_or_insert_with(|| History::from(Lsn(0)));
        recent.limit(self.server.config.load().repl_backlog_size);
        std::mem::replace(recent, History::from(Lsn(0)))
    }

    /// Notes the place to which the data has come after a file. A file without commands leaves it where it
    /// was.
    fn note_place(&mut self, reader: &mut Reader<File>) {
        let recent = reader.take_recent();
        match reader.place() {
            Some((id, lsn)) => self.place = Some(ResumePoint { id, lsn, db: self.db, recent }),
            None if reader.has_units() => self.place = None,
            None => {}
        }
    }

    fn accept_torn(&self, path: &Path, at: u64, n_bytes: u64) -> Result<(), ReplayError> {
        if !self.server.config.load().aof_load_truncated {
            return Err(failed(
                path,
                format!(
                    "Unexpected end of file reading the append only file: it ends in the middle of what begins at byte {at} of \
                     {n_bytes}. You can: 1) make a copy of it and run \
                     'braid-server --check-aof --fix {}', which cuts it there, or 2) set 'aof-load-truncated yes' and start again",
                    self.checked.display()
                ),
            ));
        }
        warning!(
            "The append-only file {} ends in the middle of what begins at byte {at}: {} bytes, which were not written whole \
             when the server stopped, are dropped (aof-load-truncated is set)",
            path.display(),
            n_bytes - at
        );
        Ok(())
    }

    fn advise(&self, path: &Path, stopped: &ReplayFailure) -> String {
        match stopped {
            ReplayFailure::Broken(broken) => format!(
                "Bad file format reading the append only file: it {broken}. Nothing is served from it: what is behind may build on what is lost. Put another copy of {} in its \
                 place, or make a copy and run 'braid-server --check-aof --fix {}', which says what would be lost and asks before \
                 it cuts",
                path.display(),
                self.checked.display()
            ),
            ReplayFailure::AtCommand { at, why } => format!("at byte {at}: {why}"),
            ReplayFailure::Panicked => "a command of it panicked".to_owned(),
        }
    }

    fn note(&mut self, n_bytes: u64) {
        self.server.loading.note(n_bytes);
        if self.every_second.has_passed() {
            notice!("Loading the append-only file: {n_bytes} bytes, {} commands", self.crew.counts.n_run);
            self.server.measure_memory();
        }
    }
}

/// Cuts a base to the bytes that were read. Nothing is appended to a base, but increments follow it, and then
/// it must be whole.
fn cut(path: &Path, n_bytes: u64) -> io::Result<()> {
    if std::fs::metadata(path)?.len() == n_bytes {
        return Ok(());
    }
    let file = File::options().write(true).open(path)?;
    file.set_len(n_bytes)?;
    file.sync_all()
}

/// Bytes that tell a snapshot from commands.
const HEAD_BYTES: u64 = 8;

fn is_snapshot(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    open_regular(path)?.take(HEAD_BYTES).read_to_end(&mut head)?;
    Ok(rdb::file::is_snapshot(&head))
}
