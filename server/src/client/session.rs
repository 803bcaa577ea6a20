//! The state that a client has agreed on with the server, apart from its socket.

use std::{
    cell::Cell,
    sync::{Arc, atomic::Ordering},
};

use braid_protocol::reply::Resp;
use braid_storage::entry::db::Db;

use crate::{
    access::User,
    catalog::{CommandError, CommandId, Requests, Words},
    client::{
        footprint::{NAME_BYTES, Part},
        id::Origin,
        record::{ClientRecord, Identity, Listens},
        watches::Watches,
    },
    notify::{subscriptions::TopicKind, tracking_table::Tracking},
    replication::{replica_link::ReplicaLink, replicas::Replica},
};

/// One client's state.
///
/// It travels in the client's node while a command waits at a shard. So the thread that runs the command may
/// change it.
pub struct Session {
    /// The data about the client that other threads may see.
    pub record: Arc<ClientRecord>,
    /// The place of its connection.
    pub origin: Origin,
    /// SELECT.
    pub db: Db,
    /// HELLO.
    pub resp: Resp,
    /// The rights of its user; none if the user may do everything.
    pub rights: Option<Arc<User>>,
    /// The version of these rights, as [`Attention::rights`](crate::shared::attention::Attention) returned
    /// it.
    pub rights_as_of: u64,
    /// The version of the rights under which the commands under way were admitted.
    pub admitted_as_of: u64,
    /// Whether it may run commands.
    pub authenticated: bool,
    /// Whether it may because it has given a password, or needed none when it connected.
    pub has_authenticated: bool,
    /// MULTI.
    pub queue: Option<Queue>,
    /// The reason why the next EXEC refuses. It must still end the transaction and release its watched keys.
    pub exec_refusal: Option<CommandError>,
    /// WATCH.
    pub watched: Watches,
    /// The number of keys that earlier parts of the command under way have handled. It is at least one if
    /// there were such parts.
    pub n_keys_done: usize,
    /// CLIENT TRACKING.
    pub tracking: Option<Box<Tracking>>,
    /// CLIENT REPLY.
    pub replies: Replies,
    /// CLIENT NO-TOUCH.
    pub no_touch: bool,
    /// Set by QUIT and by other ends of a connection. It closes when its replies are written.
    pub closing: bool,
    /// Whether more bytes of replies wait than `client-output-buffer-limit` allows. It is `closing` then, and
    /// receives none of them.
    pub is_over_limit: bool,
    /// Commands that have run and that its record does not count yet. They ran in transactions or on other
    /// threads.
    pub n_commands: u64,
    /// A request to the connection's thread, checked after each command.
    pub request: Cell<Option<SessionRequest>>,
    /// The threads whose queues its commands have filled, one bit each. They must empty before it continues.
    pub floods: Cell<u128>,
    /// The number of failed AUTHs in a row.
    pub failed_auths: u32,
    /// The result of starting the append-only file that its next command requests.
    pub log_begun: Option<LogBegun>,
    /// The replica that it is, if it says so.
    pub replica: Option<Arc<Replica>>,
    /// The later output of its connection, until that takes it.
    pub link: Option<Box<ReplicaLink>>,
}

/// The result of starting an append-only file for CONFIG SET.
#[derive(Clone, Debug)]
pub enum LogBegun {
    /// The file exists, and is kept while this value lives. The change of the configuration comes next.
    Ready(Arc<()>),
    /// The file could not be started. The server's log has the reason.
    Failed,
}

/// A command's request to its connection's thread. Each later variant includes the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SessionRequest {
    /// Send what its `link` has from now on. Later requests include that, too.
    Follow,
    /// Wait, before the next command, until the queues that it `floods` have emptied.
    AwaitRoom,
    /// Read earlier notifications before the reply is written. Each is put before or after the reply.
    ReadNotifications,
    /// Make the saver take a snapshot, and wait for the reply.
    Save {
        /// The order to the saver.
        order: SaveOrder,
        /// Whether the saver must add its reply. The command has none of its own, and the client wants it.
        is_answered: bool,
    },
    /// WAIT and WAITAOF: reply when the connection's writes have reached the requested copies.
    AwaitSync(AwaitSync),
    /// Hold back everything on this connection for a time, for failed AUTHs and DEBUG SLEEP.
    Sleep {
        /// The time in milliseconds.
        millis: u64,
        /// The effect on statistics.
        counts: TimeAccounting,
    },
}

/// The condition of WAIT or WAITAOF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AwaitSync {
    /// The form of the reply.
    pub answers: SyncAnswer,
    /// Whether its client wants the reply.
    pub is_answered: bool,
    /// Whether the local disk must have the writes.
    pub is_local: bool,
    /// The number of replicas, or of their disks, that must have the writes.
    pub n_replicas: u64,
    /// The timeout in milliseconds.
    pub millis: u64,
}

/// The reply to WAIT or WAITAOF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncAnswer {
    /// WAIT: the number of replicas that have the writes.
    Replicas,
    /// WAITAOF: the number of disks, here and on replicas.
    Disks,
}

impl AwaitSync {
    /// Whether the writes have reached the requested copies.
    pub fn is_over(self, is_synced: bool, n_replicas: u64) -> bool {
        (is_synced || !self.is_local) && n_replicas >= self.n_replicas
    }
}

/// The order of a command to the saver, for which the command waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SaveOrder {
    /// SAVE: the reply comes with the end.
    Save,
    /// SHUTDOWN, which stops the server when its data is saved. Only a failure is answered.
    Shutdown,
    /// SHUTDOWN FORCE, which stops the server in any case.
    ForcedShutdown,
    /// SHUTDOWN NOSAVE, and a shutdown without save points, while other orders are being fulfilled. Those
    /// come first.
    Stop,
    /// FLUSHALL, where there are save points: the snapshot holds only the remaining data. The reply comes
    /// with its end, whether it succeeds or fails.
    SaveFlushed,
    /// DEBUG RELOAD: the snapshot is loaded again.
    Reload(Reloading),
    /// DEBUG LOADAOF: the append-only file is loaded again.
    LoadLog,
    /// A replica has copied its primary's data: the append-only file begins anew from it.
    RewriteCopied,
    /// CONFIG SET appendonly yes: the file is started. Then the command runs, and finds the result in its
    /// session.
    BeginLog,
    /// CONFIG SET appendonly no: logging ends. The reply leaves when all logged data is on disk.
    EndLog,
}

/// The options of DEBUG RELOAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reloading {
    /// Whether a snapshot is taken first. If not, the existing file is loaded (NOSAVE).
    pub saves: bool,
    /// Whether the current data is removed. If not, the loaded data is added to it (NOFLUSH).
    pub flushes: bool,
    /// Whether loaded data replaces existing data of the same name (MERGE). If not, it is refused.
    pub merges: bool,
}

impl SaveOrder {
    /// Whether the server must stop.
    pub fn is_shutdown(self) -> bool {
        matches!(self, SaveOrder::Shutdown | SaveOrder::ForcedShutdown | SaveOrder::Stop)
    }
}

/// The effect on statistics of the time for which a connection is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimeAccounting {
    /// The time counts as the command's duration.
    AsWork,
    /// The command was over, or waited.
    NotAtAll,
}

/// The client's choice of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// All.
    On,
    /// None.
    Off,
    /// All except the reply to the command after CLIENT REPLY SKIP.
    SkipNext,
    /// The skipped command is under way.
    Skipping,
}

/// The commands that are queued for EXEC.
#[derive(Default)]
pub struct Queue {
    requests: Requests,
    commands: Vec<CommandId>,
    /// Whether a command could not be queued, so that EXEC refuses.
    pub refused: bool,
    /// The database that the last queued SELECT will select.
    pub selects: Option<Db>,
}

impl Queue {
    /// Adds a command.
    pub fn push(&mut self, command: CommandId, words: Words<'_>) {
        self.requests.push(words);
        self.commands.push(command);
    }

    /// Adds a command whose bytes [`Queue::adopt`] brings next. They begin there at `start`.
    pub fn push_without_bytes(&mut self, command: CommandId, words: Words<'_>, start: usize) {
        self.requests.push_without_bytes(words, start);
        self.commands.push(command);
    }

    /// Takes the input that contains the last command.
    pub fn adopt(&mut self, input: Vec<u8>) {
        self.requests.adopt(input);
    }

    /// The number of queued commands.
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// The number of their words.
    pub fn n_words(&self) -> usize {
        self.requests.n_words()
    }

    /// The length of their bytes.
    pub fn n_bytes(&self) -> usize {
        self.requests.n_bytes()
    }

    /// Whether no command is queued.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// The commands, in order.
    pub fn iter(&self) -> impl Iterator<Item = (CommandId, Words<'_>)> {
        self.commands.iter().copied().zip(self.requests.iter_from(0))
    }
}

impl Session {
    /// The database that is selected when the next command runs, also within a transaction.
    #[inline]
    pub fn next_db(&self) -> Db {
        self.queue.as_ref().and_then(|queue| queue.selects).unwrap_or(self.db)
    }

    /// Creates the state of a client that just connected. It must become a user before it runs anything.
    pub fn new(record: Arc<ClientRecord>, origin: Origin) -> Self {
        Self {
            record,
            origin,
            db: Db::default(),
            resp: Resp::V2,
            rights: None,
            rights_as_of: 0,
            admitted_as_of: 0,
            authenticated: false,
            has_authenticated: false,
            queue: None,
            exec_refusal: None,
            watched: Watches::default(),
            tracking: None,
            replies: Replies::On,
            no_touch: false,
            closing: false,
            is_over_limit: false,
            n_commands: 0,
            n_keys_done: 0,
            request: Cell::new(None),
            floods: Cell::new(0),
            failed_auths: 0,
            log_begun: None,
            replica: None,
            link: None,
        }
    }

    /// Makes it a user's session. The user's rights are as of a version.
    pub fn become_user(&mut self, user: &Arc<User>, as_of: u64) {
        self.record.user.store(Arc::new(Identity::from(&**user)));
        self.take_rights(user, as_of);
    }

    /// Stores its user's rights as of a version.
    pub fn take_rights(&mut self, user: &Arc<User>, as_of: u64) {
        self.rights = (!user.may_do_everything()).then(|| Arc::clone(user));
        self.rights_as_of = as_of;
    }

    /// Makes the connection close as soon as its replies are written.
    pub fn leave(&mut self) {
        self.closing = true;
        self.record.leaves.store(true, Ordering::Relaxed);
    }

    /// Makes the connection close without any of its replies.
    #[cold]
    pub fn exceed_limit(&mut self) {
        self.closing = true;
        self.is_over_limit = true;
    }

    /// Publishes the session's part of CLIENT LIST.
    ///
    /// `n_in_transaction` is the number of commands in the transaction that runs, if one does.
    pub fn publish(&self, n_in_transaction: Option<usize>) {
        self.publish_dialect();
        self.publish_state(n_in_transaction);
    }

    /// Publishes its RESP version.
    ///
    /// While its node is away, notifications use this version. So it must not be published before the reply
    /// that tells the client.
    #[inline]
    pub fn publish_dialect(&self) {
        self.record.resp.store(if self.resp == Resp::V3 { 3 } else { 2 }, Ordering::Relaxed);
    }

    /// Publishes all but its RESP version.
    pub fn publish_state(&self, n_in_transaction: Option<usize>) {
        let record = &self.record;
        let n_queued = n_in_transaction.or_else(|| self.queue.as_ref().map(|queue| queue.len()));
        record.db.store(self.db.0, Ordering::Relaxed);
        record.queued.store(n_queued.map_or(-1, |n| n as i32), Ordering::Relaxed);
        record.watched.store(self.watched.len() as u32, Ordering::Relaxed);
    }

    /// Whether a part of the command under way has taken effect and another part follows.
    pub fn is_between_parts(&self) -> bool {
        self.n_keys_done > 0
    }

    /// Publishes the memory of the queue for EXEC and of the watched keys.
    #[inline]
    pub fn publish_footprint(&self) {
        let queue_bytes = self.queue.as_ref().map_or(0, |queue| queue.n_bytes());
        let watched_bytes = self.watched.n_bytes(NAME_BYTES);
        self.record.footprint.set(Part::Queue, queue_bytes);
        self.record.footprint.set(Part::Watches, watched_bytes);
    }

    /// Adds the commands that the record does not count yet. Only the connection's thread may do this.
    #[cold]
    pub fn count_commands(&mut self) {
        self.record.count_commands(std::mem::take(&mut self.n_commands));
    }

    /// Publishes the number of its subscriptions.
    pub fn publish_subscriptions(&self) {
        for kind in TopicKind::ALL {
            let n = self.record.topics.n_of(kind);
            self.record.subscriptions[kind as usize].store(n as u32, Ordering::Relaxed);
        }
        self.record.footprint.set(Part::Topics, self.record.topics.n_bytes());
        self.record.set_listens(Listens::ToTopics, !self.record.topics.is_empty());
    }

    /// Makes a request to the connection's thread.
    pub fn ask(&self, request: SessionRequest) {
        self.request.set(self.request.get().max(Some(request)));
    }

    /// CLIENT REPLY OFF and SKIP: removes the bytes written from `start` on.
    #[cold]
    pub fn drop_unwanted(&mut self, start: usize, out: &mut Vec<u8>) {
        match self.replies {
            Replies::On => {}
            Replies::Off => out.truncate(start),
            Replies::SkipNext => {
                out.truncate(start);
                self.replies = Replies::Skipping;
            }
            Replies::Skipping => {
                out.truncate(start);
                self.replies = Replies::On;
            }
        }
    }
}
