//! A copy of the primary's data: received, loaded aside, and adopted.
//!
//! | `repl-diskless-load` | the copy is read | the old data |
//! |---|---|---|
//! | `disabled`, and `on-empty-db` with data | to a file, and then from it | served until the file is complete, then removed |
//! | `on-empty-db` without data, `flush-before-load` | from the socket | removed first |
//! | `swapdb` | from the socket | kept until the new data replaces it, and served if it is of the same history |
//!
//! While no old data is served, clients are told that the server is loading.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    thread,
    time::Duration,
};

use braid_journal::stream::Lsn;
use braid_storage::{
    entry::{db::Db, time::Millis},
    sync::coordinator::{Held, Worker},
};

use super::{
    applying::{NotHeld, on_all_shards},
    channel::{Channel, Heartbeat, LinkEnd},
    payload::{Form, PayloadEnd},
    role::StreamPlace,
};
use crate::{
    client::{node::Job, session::SaveOrder},
    command,
    config::DisklessLoad,
    notice,
    persist::{self, Loaded, litter},
    shared::{server::Server, thread_state::ThreadState},
    warning,
};

/// How often the thread looks whether the saver has rewritten the AOF.
const SAVER_EVERY: Duration = Duration::from_millis(2);

/// The state of the old data during a load.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OldData {
    Served,
    Hidden,
    Removed,
}

/// A copy on its way.
pub struct Copying<'l> {
    /// The server.
    pub server: &'static Server,
    /// The link's worker.
    pub worker: &'l mut Worker<Job>,
    /// The connection.
    pub channel: &'l mut Channel,
    /// The place in the primary's history whose data comes.
    pub place: StreamPlace,
}

impl Copying<'_> {
    /// Receives, loads and adopts the copy.
    ///
    /// `first` are the bytes of the connection after the payload's header. Returns the database that the
    /// stream begins with, and the bytes after the payload.
    ///
    /// # Errors
    /// If the copy breaks off or is invalid, or the role changes.
    pub fn run(mut self, form: &Form, first: Vec<u8>) -> Result<(Db, Vec<u8>), LinkEnd> {
        self.channel.set_heartbeat(Heartbeat::Newline);
        let config = self.server.config.load_full();
        let is_empty = || self.server.keyspace.databases().iter().all(|(_, counts)| counts.n_keys == 0);
        let from_socket = match config.repl_diskless_load {
            DisklessLoad::Disabled => false,
            DisklessLoad::OnEmptyDb => is_empty(),
            DisklessLoad::SwapDb | DisklessLoad::FlushBeforeLoad => true,
        };
        let to = if from_socket { "to parser" } else { "to disk" };
        match form.length() {
            Some(n) => notice!("MASTER <-> REPLICA sync: receiving {n} bytes from master {to}"),
            None => {
                notice!("MASTER <-> REPLICA sync: receiving streamed RDB from master with EOF {to}");
            }
        }
        // Data of another history has no more to do with the primary's than none.
        let old = self.server.replication.lineage().id();
        let is_related = self.server.replica.has_history() && old == self.place.id;
        let old = match config.repl_diskless_load == DisklessLoad::SwapDb {
            true if is_related => OldData::Served,
            true => OldData::Hidden,
            false => OldData::Removed,
        };
        let (loaded, after, shown) = if from_socket {
            self.load_from_socket(form, first, old)?
        } else {
            self.load_from_file(form, first, &config.dir)?
        };
        let db = self.adopt(loaded)?;
        // Clients were told of the load until now.
        drop(shown);
        notice!("MASTER <-> REPLICA sync: Finished with success");
        Ok((db, after))
    }

    fn load_from_socket(
        &mut self,
        form: &Form,
        first: Vec<u8>,
        old: OldData,
    ) -> Result<(Loaded, Vec<u8>, LoadingShown), LinkEnd> {
        let shown = LoadingShown::begin(self.server, old, form.length().unwrap_or(0));
        if old == OldData::Removed {
            self.remove_old()?;
        }
        notice!("MASTER <-> REPLICA sync: Loading DB in memory");
        let mut payload = Payload::new(self.channel, form, first);
        let name = Path::new("the primary's copy");
        let loaded = persist::load_from(self.server, &mut payload, form.length(), name, Millis(0));
        // Its reader may have stopped at the end of the snapshot, before the end of the payload.
        let drained = loaded.map(|loaded| (loaded, io::copy(&mut payload, &mut io::sink())));
        let Payload { failure, after, n_received: n_read, .. } = payload;
        if failure.is_some() {
            warning!("Internal error in RDB reading offset {n_read}, the primary's copy -> Unexpected EOF");
        }
        match (drained, failure) {
            (_, Some(end)) => Err(end),
            (Err(error), None) => Err(LinkEnd::Failed(error.to_string())),
            (Ok((_, Ok(n))), None) if n > 0 => {
                Err(LinkEnd::Failed(format!("The primary's copy goes on for {n} bytes after its end")))
            }
            (Ok((loaded, _)), None) => Ok((loaded, after, shown)),
        }
    }

    fn load_from_file(
        &mut self,
        form: &Form,
        first: Vec<u8>,
        dir: &Path,
    ) -> Result<(Loaded, Vec<u8>, LoadingShown), LinkEnd> {
        let path = dir.join(format!("temp-{}.{}.rdb", self.server.clock.unix_seconds(), std::process::id()));
        let file = TemporaryFile(path);
        let after = self.receive_to(&file.0, form, first)?;
        let length = fs::metadata(&file.0).map_or(0, |metadata| metadata.len());
        let shown = LoadingShown::begin(self.server, OldData::Removed, length);
        self.remove_old()?;
        notice!("MASTER <-> REPLICA sync: Loading DB in memory");
        let opened = File::open(&file.0).map_err(|error| failed(&file.0, "reading", &error))?;
        let mut alive = KeptAlive { source: opened, channel: self.channel, failure: None };
        let loaded = persist::load_from(self.server, &mut alive, Some(length), &file.0, Millis(0));
        match (loaded, alive.failure) {
            (_, Some(end)) => Err(end),
            (Err(error), None) => Err(LinkEnd::Failed(error.to_string())),
            (Ok(loaded), None) => Ok((loaded, after, shown)),
        }
    }

    /// Writes the payload to a file. Returns the bytes after it.
    fn receive_to(&mut self, path: &Path, form: &Form, first: Vec<u8>) -> Result<Vec<u8>, LinkEnd> {
        let wrong = |error: io::Error| failed(path, "writing", &error);
        let mut file = File::create(path).map_err(wrong)?;
        litter::lock(&file);
        let mut payload = Payload::new(self.channel, form, first);
        let mut room = vec![0; 256 << 10];
        loop {
            let n = match payload.read(&mut room) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) => {
                    return Err(payload.failure.unwrap_or_else(|| LinkEnd::Failed(error.to_string())));
                }
            };
            file.write_all(&room[..n]).map_err(wrong)?;
        }
        Ok(payload.after)
    }

    fn remove_old(&mut self) -> Result<(), LinkEnd> {
        notice!("MASTER <-> REPLICA sync: Flushing old data");
        // From here on the data is of no history, whatever comes.
        let (server, role) = (self.server, &self.server.replica);
        let all = self.server.engine.all_shards();
        let generation = self.channel.generation();
        self.replace(|held, thread| {
            if role.generation() != generation {
                return false;
            }
            role.set_has_history(false);
            server.tell_history(None, thread);
            thread.publish_log();
            for &id in all.iter() {
                held.shard(id).flush_all();
            }
            true
        })?;
        self.server.part_with_replicas(&self.worker.thread);
        command::replace_libraries(self.server, &[]).map_err(LinkEnd::Failed)
    }

    /// Makes the loaded data that of the server.
    fn adopt(&mut self, mut loaded: Loaded) -> Result<Db, LinkEnd> {
        let server = self.server;
        let (generation, place) = (self.channel.generation(), self.place);
        let db = loaded.stream_db.unwrap_or_default();
        self.replace(|held, thread| {
            if server.replica.generation() != generation {
                return false;
            }
            loaded.install(held);
            // A promotion after this hold ends this history, and not the one before.
            let lsn = Lsn(place.offset as u64);
            server.replication.lineage().adopt(place.id);
            server.replica.note_place(lsn);
            server.tell_history(Some((lsn, db)), thread);
            thread.publish_log();
            true
        })?;
        server.part_with_replicas(&self.worker.thread);
        command::replace_libraries(server, &loaded.libraries).map_err(LinkEnd::Failed)?;
        server.loading.note_loaded(loaded.n_keys, loaded.n_expired, loaded.n_modules);
        loaded.tell();
        // The old data is freed here.
        drop(loaded);
        self.rewrite_log()?;
        server.measure_memory();
        Ok(db)
    }

    /// Makes the saver write the AOF anew, since the copy was not logged.
    fn rewrite_log(&mut self) -> Result<(), LinkEnd> {
        let server = self.server;
        if !server.durability.aof.is_writing() {
            return Ok(());
        }
        let n_before = server.replica.n_logs_rewritten.load(Ordering::Relaxed);
        server.order_save(SaveOrder::RewriteCopied, None);
        while server.replica.n_logs_rewritten.load(Ordering::Relaxed) == n_before {
            self.channel.keep_alive()?;
            thread::sleep(SAVER_EVERY);
        }
        Ok(())
    }

    /// Does something with all shards held that replaces their data.
    fn replace(&mut self, work: impl FnMut(&mut Held<'_, Job>, &ThreadState) -> bool) -> Result<(), LinkEnd> {
        let (channel, mut ended) = (&mut *self.channel, None);
        let mut pause = || channel.keep_alive().map_err(|end| ended = Some(end)).is_ok();
        match on_all_shards(self.worker, &mut pause, work) {
            Ok(true) => Ok(()),
            Ok(false) => Err(LinkEnd::Superseded),
            Err(NotHeld::GivenUp | NotHeld::Panicked) => Err(ended.unwrap_or(LinkEnd::Superseded)),
        }
    }
}

fn failed(path: &Path, what: &str, error: &io::Error) -> LinkEnd {
    LinkEnd::Failed(format!("The primary's copy is lost while {what} {}: {error}", path.display()))
}

/// A file that is removed when this value drops.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // It may not have been created.
        let _ = fs::remove_file(&self.0);
    }
}

/// The state in which clients are told that the server is loading, or INFO that it loads aside. It ends when
/// this value drops.
struct LoadingShown {
    server: &'static Server,
}

impl LoadingShown {
    fn begin(server: &'static Server, old: OldData, n_bytes: u64) -> Self {
        match old {
            OldData::Served => server.replica.set_loading_aside(true),
            OldData::Hidden | OldData::Removed => {
                server.loading.begin(n_bytes, &server.clock, &server.attention)
            }
        }
        Self { server }
    }
}

impl Drop for LoadingShown {
    fn drop(&mut self) {
        self.server.replica.set_loading_aside(false);
        self.server.loading.end(&self.server.attention);
    }
}

/// The payload of a copy, as a source of bytes.
struct Payload<'c> {
    channel: &'c mut Channel,
    end: PayloadEnd,
    total: u64,
    /// Bytes of the payload that were received and not read.
    ready: Vec<u8>,
    n_given: usize,
    n_received: u64,
    /// The bytes after the payload.
    after: Vec<u8>,
    /// The reason why the connection ended.
    failure: Option<LinkEnd>,
}

impl<'c> Payload<'c> {
    fn new(channel: &'c mut Channel, form: &Form, first: Vec<u8>) -> Self {
        let mut payload = Self {
            channel,
            end: PayloadEnd::new(form.clone()),
            total: form.length().unwrap_or(0),
            ready: Vec::new(),
            n_given: 0,
            n_received: 0,
            after: Vec::new(),
            failure: None,
        };
        payload.begin(&first);
        payload
    }

    /// Takes the bytes that have come with the header.
    fn begin(&mut self, bytes: &[u8]) {
        let n_used = self.end.take(bytes, &mut self.ready);
        self.n_received += n_used as u64;
        self.after.extend_from_slice(&bytes[n_used..]);
        self.channel.note_copied(self.total, self.n_received);
    }
}

impl Read for Payload<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.n_given == self.ready.len() {
            if self.end.is_over() {
                return Ok(0);
            }
            self.ready.clear();
            self.n_given = 0;
            let (end, ready) = (&mut self.end, &mut self.ready);
            let received = self.channel.receive(|bytes| {
                let n_used = end.take(bytes, ready);
                (n_used, bytes[n_used..].to_vec())
            });
            match received {
                Ok((n_used, after)) => {
                    self.n_received += n_used as u64;
                    self.after = after;
                    self.channel.note_copied(self.total, self.n_received);
                }
                Err(end) => {
                    let why = match &end {
                        LinkEnd::Failed(why) => why.clone(),
                        _ => "the link has ended".to_owned(),
                    };
                    self.failure = Some(end);
                    return Err(io::Error::other(why));
                }
            }
        }
        let n = to.len().min(self.ready.len() - self.n_given);
        to[..n].copy_from_slice(&self.ready[self.n_given..self.n_given + n]);
        self.n_given += n;
        Ok(n)
    }
}

/// A file during whose reading the primary is told that this server is alive.
struct KeptAlive<'c> {
    source: File,
    channel: &'c mut Channel,
    failure: Option<LinkEnd>,
}

impl Read for KeptAlive<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if let Err(end) = self.channel.keep_alive() {
            self.failure = Some(end);
            return Err(io::Error::other("the link has ended"));
        }
        self.source.read(to)
    }
}
