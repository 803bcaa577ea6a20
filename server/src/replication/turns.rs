//! Changes of the history to which the data belongs, told to the change stream and the AOF.

use std::sync::atomic::Ordering;

use braid_journal::{
    history::{History, ReplicationId},
    stream::{Lsn, Turn},
};
use braid_storage::entry::db::Db;

use crate::shared::{server::Server, thread_state::ThreadState};

/// A place in a history to which data belongs.
pub struct ResumePoint {
    /// The ID of the history.
    pub id: ReplicationId,
    /// The place.
    pub lsn: Lsn,
    /// The database that the stream has selected there.
    pub db: Db,
    /// The bytes before, as far as they are known.
    pub recent: Option<History>,
}

impl Server {
    /// The ID of the history, if another server may know it.
    pub fn shared_history(&self) -> Option<ReplicationId> {
        let is_shared =
            self.durability.is_followed() && (!self.replica.is_on() || self.replica.has_history());
        is_shared.then(|| self.replication.lineage().id())
    }

    /// Tells the change stream to which history it belongs from here on, after the lineage or the role has
    /// changed. All shards are held, unless only the ID has changed. `jump` is given if all data was
    /// replaced.
    pub fn tell_history(&self, jump: Option<(Lsn, Db)>, thread: &ThreadState) {
        let turn = Turn {
            id: self.shared_history(),
            is_received: self.replica.is_on(),
            jump: jump.map(|(lsn, db)| (lsn, db.0)),
        };
        self.durability.aof.stream().add_turn(&mut thread.log.borrow_mut(), &turn);
    }

    /// Begins the stream of a server that starts, before anything is recorded: at the place of the loaded
    /// data in its history, if that is known.
    ///
    /// All shards are held, and have begun to record unless this server is a replica.
    pub fn begin_stream(&self, found: Option<ResumePoint>) {
        let is_replica = self.replica.is_on();
        let n_bytes = self.config.load().repl_backlog_size;
        let mut stream = self.durability.aof.stream().take();
        let Some(ResumePoint { id, lsn, db, recent }) = found else {
            if is_replica {
                stream.merger.begin_at(Lsn(0), None, true, Some(History::from(Lsn(0))));
                stream.merger.keep_history(n_bytes);
                self.durability.begin_following();
            }
            return;
        };
        let recent = recent.unwrap_or_else(|| History::from(lsn));
        stream.merger.begin_at(lsn, Some(db.0), is_replica, Some(recent));
        stream.merger.keep_history(n_bytes);
        let mut lineage = self.replication.lineage();
        lineage.adopt(id);
        if is_replica {
            self.replica.note_place(lsn);
        } else {
            lineage.branch(lsn);
        }
        self.durability.begin_following();
        self.replication.is_resumed.store(true, Ordering::Relaxed);
    }

    /// Makes all replicas ask anew.
    pub fn part_with_replicas(&self, thread: &ThreadState) {
        for replica in self.replication.replicas.all() {
            self.kill(replica.client, thread);
        }
    }
}
