//! Full copies for replicas, which the saver makes.

use std::{
    io::{self, Write},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use braid_journal::{follower::Follower, intake::Kind, stream::Cursor};
use braid_protocol::request::write_words;
use braid_storage::{
    keyspace::shard::saving::{Form, Uses},
    observers::record,
    sync::coordinator::Held,
};

use super::{
    saver::{BUSY_REST, Failure, Saver},
    snapshot_output::Snapshot,
};
use crate::{
    client::node::{Cut, Job, LogCut},
    clock::Instant,
    config::{Config, RdbWriteFormat},
    notice,
    persist::{Purpose, SnapshotPlace},
    replication::{
        copy_payload::{CopyPayload, PayloadProgress},
        full_copy::{CopyStart, FullCopy},
        lineage::{self, ReplicationId},
        replicas::{CopyFilter, Replica, ReplicaSaid, ReplicaState},
    },
    shared::{mail::Mail, server::Server, thread_state::ThreadState},
    warning,
};

/// How often the end of the server checks whether replicas have everything.
const ACK_PATIENCE: Duration = Duration::from_millis(10);

/// The length at which parts of a copy are handed over, in bytes.
const PART_BYTES: usize = 64 << 10;

/// Writes a snapshot to a copy's payload.
struct CopyWriter {
    copy: Arc<FullCopy>,
    buffer: Vec<u8>,
    server: &'static Server,
}

impl Write for CopyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PART_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.copy.payload.append(&self.buffer)?;
        self.buffer.clear();
        self.server.wake_who_awaits_log();
        Ok(())
    }
}

/// The forms in which a replica reads a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
struct CopyForm {
    format: RdbWriteFormat,
    filter: CopyFilter,
}

impl CopyForm {
    fn of(said: &ReplicaSaid, config: &Config) -> Self {
        let format = match (config.rdb_write_format, said.version) {
            _ if said.is_braid => RdbWriteFormat::Auto,
            // Redis says no version, and Valkey does since 8.0. From 9.0 on it has deadlines of fields.
            (RdbWriteFormat::Auto, Some([major, ..])) if major >= 9 => RdbWriteFormat::Valkey9,
            (RdbWriteFormat::Auto, _) => RdbWriteFormat::Redis70,
            (chosen, _) => chosen,
        };
        Self { format, filter: said.filter }
    }
}

/// The place of a cut's data in its history. None if it is of no history.
pub(super) fn place_of(cut: &Cut, start: &Follower) -> Option<SnapshotPlace> {
    let LogCut::Marked { id, .. } = cut.log else { return None };
    let (lsn, db) = (start.lsn(), start.db().unwrap_or_default());
    id.map(|id| SnapshotPlace { id, lsn, db })
}

impl Saver {
    /// Makes the copy for which replicas have waited long enough. Returns whether there was one.
    pub(super) fn serve_replicas(&mut self) -> bool {
        self.end_history_in_time();
        let (server, config) = (self.server, self.server.config.load_full());
        let n_bytes = config.repl_backlog_size;
        if server.durability.is_followed() && std::mem::replace(&mut self.history_bytes, n_bytes) != n_bytes {
            server.durability.aof.stream().take().merger.keep_history(n_bytes);
        }
        if server.loading.is_on() {
            return false;
        }
        let mut waiting = server.replication.replicas.all();
        waiting.retain(|replica| replica.state() == ReplicaState::AwaitsCopy);
        let Some(first) = waiting.first() else { return false };
        let form = CopyForm::of(&first.said(), &config);
        let waited = server.clock.uptime_millis().saturating_sub(first.asked_at());
        waiting.retain(|replica| CopyForm::of(&replica.said(), &config) == form);
        let (delay, most) = (config.repl_diskless_sync_delay, config.repl_diskless_sync_max_replicas);
        let is_crowd = most > 0 && waiting.len() >= most;
        if config.repl_diskless_sync && !is_crowd && waited < delay.as_millis() as u64 {
            return false;
        }
        self.copy(&waiting, form, &config);
        true
    }

    /// Makes a full copy for some replicas.
    fn copy(&mut self, replicas: &[Arc<Replica>], form: CopyForm, config: &Config) {
        let server = self.server;
        let began = Instant::now();
        let is_marked = config.repl_diskless_sync;
        let target = if is_marked { "replicas sockets" } else { "disk" };
        notice!("Starting BGSAVE for SYNC with target: {target}");
        let stream = server.durability.aof.stream();
        if !server.durability.fills_stream() {
            // No stream has the writes until now.
            server.replication.lineage().begin_anew();
        }
        stream.take().merger.keep_history(config.repl_backlog_size);
        let cursor = stream.subscribe();
        self.begin_snapshot();
        let uses = Uses::left_out();
        let made = self.cut(uses.clone(), Form::Snapshot, LogCut::Marked { mark: 0, id: None });
        let Some(cut) = made else { return server.durability.end_snapshot() };
        let start = match self.find_mark(cursor, &cut) {
            Some(start) => start,
            None => {
                self.give_up_walk();
                return server.durability.end_snapshot();
            }
        };
        let place = place_of(&cut, &start);
        let copy = Arc::new(FullCopy {
            replicas: replicas.to_vec(),
            id: place.map_or(ReplicationId::NONE, |place| place.id),
            offset: start.lsn().0,
            mark: lineage::random_id(),
            is_marked,
            payload: CopyPayload::new(&config.dir),
            start: CopyStart::at(start),
        });
        self.begin_copying(&copy);
        for peer in server.io_threads() {
            peer.send(Mail::Copy(Arc::clone(&copy)));
        }
        let written = self.write_copy(&copy, (&cut, place), form, &uses, config);
        copy.tell_end();
        self.end_copying();
        if let Err(failure) = &written {
            self.give_up_walk();
            let why = match failure {
                Failure::Io(what, error) => format!("while {what}: {error}"),
                Failure::GivenUp => "because it was given up".to_owned(),
            };
            warning!("The copy for replicas failed {why}");
        } else {
            notice!(
                "Background RDB transfer terminated with success: {} bytes in {:.3} seconds",
                copy.payload.n_bytes(),
                began.elapsed().as_secs_f64()
            );
        }
        copy.payload.end(if written.is_ok() { PayloadProgress::Whole } else { PayloadProgress::Failed });
        server.wake_who_awaits_log();
        server.durability.end_snapshot();
    }

    /// Waits until the mark of a cut is in the stream. Returns the follower that begins there.
    pub(super) fn find_mark(&mut self, mut cursor: Cursor, cut: &Cut) -> Option<Follower> {
        let LogCut::Marked { mark, .. } = cut.log else { unreachable!("it was marked") };
        let server = self.server;
        loop {
            cursor = match Follower::at_mark(cursor, mark) {
                Ok(follower) => return Some(follower),
                Err(cursor) => cursor,
            };
            if server.stopping.load(Relaxed) {
                return None;
            }
            // This thread may have made the cut itself.
            self.worker.thread.publish_log();
            if server.durability.aof.advance() {
                server.wake_who_awaits_log();
            }
            std::thread::sleep(BUSY_REST);
        }
    }

    fn write_copy(
        &mut self,
        copy: &Arc<FullCopy>,
        (cut, place): (&Cut, Option<SnapshotPlace>),
        form: CopyForm,
        uses: &Uses,
        config: &Config,
    ) -> Result<(), Failure> {
        let out = CopyWriter {
            copy: Arc::clone(copy),
            buffer: Vec::with_capacity(PART_BYTES),
            server: self.server,
        };
        let failed = |error| Failure::Io("writing", error);
        self.check_marks()?;
        let has_functions = form.filter != CopyFilter::Everything;
        let purpose = Purpose::Copy { has_functions, format: form.format };
        let mut snapshot =
            Snapshot::begin(out, purpose, cut, place.as_ref(), config, self.server).map_err(failed)?;
        if form.filter == CopyFilter::None {
            self.walk(Some((&mut snapshot, uses)))?;
        } else {
            self.give_up_walk();
        }
        let (mut out, _) = snapshot.finish().map_err(failed)?;
        out.flush().map_err(failed)
    }

    /// Before the server ends, waits until all replicas have the whole change stream, as long as
    /// `shutdown-timeout` allows.
    pub(super) fn await_replicas(&mut self, round: u64) {
        let server = self.server;
        let began = Instant::now();
        let timeout = server.config.load().shutdown_timeout;
        server.replication.replicas.set_end(Some(server.clock.uptime_millis() + timeout.as_millis() as u64));
        notice!("Waiting for replicas before shutting down.");
        server.durability.add(&mut self.worker.thread.log.borrow_mut(), |to| {
            write_words(to, 3, [&b"REPLCONF"[..], b"GETACK", b"*"].into_iter());
            Kind::ForFollowers
        });
        while server.has_replica_behind()
            && began.elapsed() < timeout
            && !server.saves.ending.is_called_off(round)
            && !server.stopping.load(Relaxed)
        {
            self.worker.thread.publish_log();
            if server.durability.aof.advance() {
                server.wake_who_awaits_log();
            }
            self.read_orders();
            self.sleep(ACK_PATIENCE, false);
        }
        server.replication.replicas.set_end(None);
    }

    /// Makes all replicas ask for a copy again, and keeps nothing for them: all data is about to be replaced.
    /// A replica loads the data again that it has.
    pub(super) fn part_with_replicas(&mut self) {
        if self.server.durability.is_followed() && !self.server.replica.is_on() {
            self.server.part_with_replicas(&self.worker.thread);
            self.worker.thread.send_wakes();
            self.end_following();
        }
    }

    /// Keeps no history any more once there has been no replica for `repl-backlog-ttl`.
    fn end_history_in_time(&mut self) {
        let (server, ttl) = (self.server, self.server.config.load().repl_backlog_ttl);
        // A replica keeps it for the day on which it is promoted.
        if !server.durability.is_followed() || server.replica.is_on() {
            return;
        }
        let absent =
            Duration::from_millis(server.replication.replicas.absent_for(server.clock.uptime_millis()));
        if ttl.is_zero() || absent < ttl {
            return;
        }
        notice!("Replication backlog freed after {} seconds without connected replicas.", ttl.as_secs());
        self.end_following();
    }

    /// Keeps nothing for replicas any more. None can go on where it is now.
    fn end_following(&mut self) {
        let server = self.server;
        let all = server.engine.all_shards();
        let end = |held: &mut Held<'_, Job>, thread: &mut ThreadState| {
            if server.replica.is_on() {
                return;
            }
            server.replication.lineage().begin_anew();
            let keeps = server.durability.end_following();
            server.tell_history(None, thread);
            thread.publish_log();
            for &id in all.iter() {
                held.shard(id).hear_all(record::LOG, keeps);
            }
        };
        while self.worker.with_shards(&all, end).is_none() {
            std::thread::sleep(BUSY_REST);
        }
        if !server.durability.is_followed() {
            server.durability.aof.stream().take().merger.end_history();
        }
    }
}
