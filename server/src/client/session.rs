//! What a client has agreed on with the server, apart from its socket.

use std::{
    cell::Cell,
    sync::{Arc, atomic::Ordering},
};

use braid_protocol::reply::Resp;
use braid_storage::Db;

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
};

/// One client's state. It travels in the client's node while a command of it waits at a shard, so whoever
/// runs the command may change it.
pub struct Session {
    /// What others may know of the client.
    pub record: Arc<ClientRecord>,
    /// Where its connection is.
    pub origin: Origin,
    /// SELECT.
    pub db: Db,
    /// HELLO.
    pub resp: Resp,
    /// What its user may do: none if that is everything.
    pub rights: Option<Arc<User>>,
    /// As of when it knows that: what [`Attention::rights`](crate::shared::attention::Attention) has said.
    pub rights_as_of: u64,
    /// As of when the commands under way were admitted.
    pub admitted_as_of: u64,
    /// Whether it may run commands.
    pub authenticated: bool,
    /// Whether it may because it has shown a password, or needed none when it came.
    pub has_authenticated: bool,
    /// MULTI.
    pub queue: Option<Queue>,
    /// Why the EXEC that runs next refuses: it must still end the transaction and let go of what is watched.
    pub exec_refusal: Option<CommandError>,
    /// WATCH.
    pub watched: Watches,
    /// The number of keys that earlier parts of the command under way have done: at least one, if there were
    /// such parts.
    pub n_keys_done: usize,
    /// CLIENT TRACKING.
    pub tracking: Option<Box<Tracking>>,
    /// CLIENT REPLY.
    pub replies: Replies,
    /// CLIENT NO-TOUCH.
    pub no_touch: bool,
    /// Set by QUIT and by what ends a connection: it closes when its replies are written.
    pub closing: bool,
    /// More bytes of replies wait than `client-output-buffer-limit` allows: it is `closing`, and gets none of
    /// them.
    pub is_over_limit: bool,
    /// Commands that have run and that its record does not count yet: those of transactions, and those that
    /// ran elsewhere.
    pub n_commands: u64,
    /// A request to do something that only the connection's thread can, looked at after each command.
    pub request: Cell<Option<Request>>,
    /// The threads whose queues its commands have filled, a bit each: they are to empty before it goes on.
    pub floods: Cell<u128>,
    /// How often AUTH has failed in a row.
    pub failed_auths: u32,
    /// What has become of the append-only file that its next command asks for.
    pub log_begun: Option<LogBegun>,
}

/// What has become of an append-only file that CONFIG SET asks for.
#[derive(Clone, Debug)]
pub enum LogBegun {
    /// It is there, and kept as long as this is: the change of the configuration comes next.
    Ready(Arc<()>),
    /// It could not be begun. The server's log says why.
    Failed,
}

/// What a command asks of the thread that has its connection. The later ones include those before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Request {
    /// Wait, before the next command, until the queues that it `floods` have emptied.
    AwaitRoom,
    /// Read what is sent before the reply is written: it goes where it belongs, before or behind the reply.
    ReadNotifications,
    /// Have the saver take a snapshot, and wait for the reply.
    Save {
        /// What for.
        order: SaveOrder,
        /// Whether the saver is to add its reply: the command has none of its own, and the client wants it.
        is_answered: bool,
    },
    /// WAIT and WAITAOF: answer when what the connection has written is where it is to be.
    AwaitSync(AwaitSync),
    /// Hold back everything on this connection for so long, in milliseconds: after failed AUTHs, and for
    /// DEBUG SLEEP.
    Sleep {
        /// Milliseconds.
        millis: u64,
        /// What statistics say of it.
        counts: Counts,
    },
}

/// What WAIT or WAITAOF waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AwaitSync {
    /// Which of them.
    pub answers: SyncAnswer,
    /// Whether its client wants the reply.
    pub is_answered: bool,
    /// Whether the own disk must have it.
    pub is_local: bool,
    /// On how many replicas, or their disks, it must be.
    pub n_replicas: u64,
    /// For how long, in milliseconds.
    pub millis: u64,
}

/// What is answered of where something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncAnswer {
    /// WAIT: how many replicas have it.
    Replicas,
    /// WAITAOF: how many disks, here and of replicas.
    Disks,
}

impl AwaitSync {
    /// Whether it is there; no replica ever has it.
    pub fn is_over(self, is_synced: bool) -> bool {
        (is_synced || !self.is_local) && self.n_replicas == 0
    }
}

/// What the saver is asked for by a command that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SaveOrder {
    /// SAVE: the reply comes with the end.
    Save,
    /// SHUTDOWN, which stops the server when its data is saved; only a failure is answered.
    Shutdown,
    /// SHUTDOWN FORCE, which stops it in any case.
    ForcedShutdown,
    /// SHUTDOWN NOSAVE, and an end without save points, while other orders are being fulfilled: those come
    /// first.
    Stop,
    /// FLUSHALL, where there are save points: the snapshot holds no more than what is there. The reply comes
    /// with its end, whatever that is.
    SaveFlushed,
    /// DEBUG RELOAD: the snapshot is loaded again.
    Reload(Reloading),
    /// DEBUG LOADAOF: the append-only file is loaded again.
    LoadLog,
    /// CONFIG SET appendonly yes: the file is begun. Then the command runs, which knows by its session what
    /// has become of that.
    BeginLog,
    /// CONFIG SET appendonly no: its reply leaves when nothing is logged any more, and what was is on disk.
    EndLog,
}

/// The options of DEBUG RELOAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reloading {
    /// A snapshot is taken before. Else that is loaded which is there (NOSAVE).
    pub saves: bool,
    /// What is held goes. Else what is loaded comes to it (NOFLUSH).
    pub flushes: bool,
    /// What is loaded takes the place of what is held under the same name (MERGE). Else it is refused.
    pub merges: bool,
}

impl SaveOrder {
    /// Whether the server is to stop.
    pub fn is_shutdown(self) -> bool {
        matches!(self, SaveOrder::Shutdown | SaveOrder::ForcedShutdown | SaveOrder::Stop)
    }
}

/// What statistics say of the time that a connection is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counts {
    /// The command took so long.
    AsWork,
    /// The command was over, or waited.
    NotAtAll,
}

/// Which replies the client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// All.
    On,
    /// None.
    Off,
    /// All but that to the command after CLIENT REPLY SKIP.
    SkipNext,
    /// The command that is skipped is under way.
    Skipping,
}

/// What waits for EXEC.
#[derive(Default)]
pub struct Queue {
    requests: Requests,
    commands: Vec<CommandId>,
    /// A command could not be queued, so EXEC refuses.
    pub refused: bool,
}

impl Queue {
    /// Adds a command.
    pub fn push(&mut self, command: CommandId, words: Words<'_>) {
        self.requests.push(words);
        self.commands.push(command);
    }

    /// Adds a command whose bytes [`Queue::adopt`] brings next: there it begins at `start`.
    pub fn push_without_bytes(&mut self, command: CommandId, words: Words<'_>, start: usize) {
        self.requests.push_without_bytes(words, start);
        self.commands.push(command);
    }

    /// Takes the input in which the last command lies.
    pub fn adopt(&mut self, input: Vec<u8>) {
        self.requests.adopt(input);
    }

    /// How many commands wait.
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// How many words they have.
    pub fn n_words(&self) -> usize {
        self.requests.n_words()
    }

    /// How many bytes they take.
    pub fn n_bytes(&self) -> usize {
        self.requests.n_bytes()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// The commands, in order.
    pub fn iter(&self) -> impl Iterator<Item = (CommandId, Words<'_>)> {
        self.commands.iter().copied().zip(self.requests.iter_from(0))
    }
}

impl Session {
    /// The state of a client that just connected, and that is to become a user before it runs anything.
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
        }
    }

    /// Makes it a user's, whose rights are as of a moment.
    pub fn become_user(&mut self, user: &Arc<User>, as_of: u64) {
        self.record.user.store(Arc::new(Identity::from(&**user)));
        self.take_rights(user, as_of);
    }

    /// Keeps what its user may do as of a moment.
    pub fn take_rights(&mut self, user: &Arc<User>, as_of: u64) {
        self.rights = (!user.may_do_everything()).then(|| Arc::clone(user));
        self.rights_as_of = as_of;
    }

    /// Has the connection close as soon as its replies are written.
    pub fn leave(&mut self) {
        self.closing = true;
        self.record.leaves.store(true, Ordering::Relaxed);
    }

    /// Has the connection close without any of its replies.
    #[cold]
    pub fn exceed_limit(&mut self) {
        self.closing = true;
        self.is_over_limit = true;
    }

    /// Publishes what CLIENT LIST shows of the session, while a transaction of so many commands runs or
    /// outside of one.
    pub fn publish(&self, n_in_transaction: Option<usize>) {
        self.publish_dialect();
        self.publish_state(n_in_transaction);
    }

    /// Publishes its dialect. While its node is away, that is the one of what the client has not asked for,
    /// so it must not come before the reply that tells the client.
    #[inline]
    pub fn publish_dialect(&self) {
        self.record.resp.store(if self.resp == Resp::V3 { 3 } else { 2 }, Ordering::Relaxed);
    }

    /// Publishes all but its dialect.
    pub fn publish_state(&self, n_in_transaction: Option<usize>) {
        let record = &self.record;
        let n_queued = n_in_transaction.or_else(|| self.queue.as_ref().map(|queue| queue.len()));
        record.db.store(self.db.0, Ordering::Relaxed);
        record.queued.store(n_queued.map_or(-1, |n| n as i32), Ordering::Relaxed);
        record.watched.store(self.watched.len() as u32, Ordering::Relaxed);
    }

    /// Whether a part of the command under way has taken effect, and the next one is yet to come.
    pub fn is_between_parts(&self) -> bool {
        self.n_keys_done > 0
    }

    /// Notes the memory of what waits for EXEC, and of what is watched.
    #[inline]
    pub fn publish_footprint(&self) {
        let queue_bytes = self.queue.as_ref().map_or(0, |queue| queue.n_bytes());
        let watched_bytes = self.watched.n_bytes(NAME_BYTES);
        self.record.footprint.set(Part::Queue, queue_bytes);
        self.record.footprint.set(Part::Watches, watched_bytes);
    }

    /// Has the record count the commands that it does not count yet. Only the connection's thread may.
    #[cold]
    pub fn count_commands(&mut self) {
        self.record.count_commands(std::mem::take(&mut self.n_commands));
    }

    /// Publishes how much it is subscribed to.
    pub fn publish_subscriptions(&self) {
        for kind in TopicKind::ALL {
            let n = self.record.topics.n_of(kind);
            self.record.subscriptions[kind as usize].store(n as u32, Ordering::Relaxed);
        }
        self.record.footprint.set(Part::Topics, self.record.topics.n_bytes());
        self.record.set_listens(Listens::ToTopics, !self.record.topics.is_empty());
    }

    /// Asks something of the connection's thread.
    pub fn ask(&self, request: Request) {
        self.request.set(self.request.get().max(Some(request)));
    }

    /// CLIENT REPLY OFF and SKIP: takes back what was written from `start` on.
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
