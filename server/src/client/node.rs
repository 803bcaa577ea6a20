//! The node of a connection: its session, its delegated commands, and space for the reply.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use braid_journal::{faults::LogFolder, history::ReplicationId, intake, store::Aof};
use braid_storage::{
    entry::{EntryBox, key::WatchedKey, time::Millis},
    keyspace::shard::{
        Shard,
        saving::{Form, Uses},
    },
    observers::{
        channels::ChannelKind,
        ledger::Change,
        record::Record,
        waiters::{Awaits, Reach, Ticket, Waiter},
    },
    sync::{
        coordinator::{self, Held, Route},
        executor::Node,
    },
    table::hash::Routed,
};
use crossbeam_utils::atomic::AtomicCell;

use crate::{
    catalog::{CommandId, KeyUse, Requests, Words},
    client::{
        argument_buffer::Room,
        id::Origin,
        session::{Replies, Session},
        sweep::Sweep,
        waits::{Wait, WaitEnd, WaitedKey},
        watches::Watch,
    },
    clock::Steady,
    notify::subscriptions::Name,
    telemetry::split::Split,
};

/// The input and output space that a node keeps between uses, in bytes.
const KEPT_BYTES: usize = 4096;

/// The work on the shards.
#[derive(Default)]
pub enum Task {
    /// None: the node is with its connection.
    #[default]
    Idle,
    /// Runs the commands.
    Commands,
    /// Continues a sweep.
    Sweep(Box<Sweep>),
    /// Only waits until every earlier command has ended. The reply is written already.
    Barrier,
    /// Makes all shards begin to save their contents.
    Cut(Box<Cut>),
    /// Releases some of the watched keys and subscriptions of a closed connection.
    Goodbye(Farewell),
    /// Waits for keys. The node goes to the threads that may claim it, not home.
    Wait(Arc<Parked>),
    /// The command is served, or has given up, but still stands in lines of keys.
    MustWithdraw(Arc<Parked>),
    /// Leaves those lines. Then the node continues with its connection.
    Withdraw(Arc<Parked>),
    /// Makes room for an argument that has arrived in part.
    MakeRoom(Room),
    /// Pins the values of the next command, which is too much for a hold.
    Pin,
    /// Runs it on the pinned values, with nothing held. The node stays with its heavy-work thread.
    Offloaded(Box<Offload>),
    /// Stores its result and unpins the values.
    Unpin(Box<Offload>),
}

/// The subscriptions and watched keys that a closed connection still has to release.
#[derive(Default)]
pub struct Farewell {
    /// The keys that it still watches.
    pub watched: Vec<Watch>,
    /// The number of them, at the end of the list, that this step releases.
    pub n_watched: usize,
    /// The channels that this step leaves.
    pub channels: Vec<(ChannelKind, Name)>,
    /// Whether this step ends a subscription to keyspace events.
    pub meets_events: bool,
}

impl Farewell {
    /// The watched keys that this step releases.
    pub fn now(&self) -> &[Watch] {
        &self.watched[self.watched.len() - self.n_watched..]
    }
}

/// The facts about a snapshot at its cut.
pub struct Cut {
    /// The representation of uses of keys in it.
    pub uses: Uses,
    /// The form in which it is written.
    pub form: Form,
    /// Whether some hash has fields with deadlines.
    pub has_field_deadlines: bool,
    /// The texts of the libraries of functions.
    pub libraries: Vec<Box<[u8]>>,
    /// The number of changes to keys before the cut.
    pub n_changes: u64,
    /// The effect on the log at the same moment.
    pub log: LogCut,
    /// Whether the server will end with this snapshot. Then writes wait from this moment on.
    pub is_last: bool,
}

/// The effect of a cut on the log.
pub enum LogCut {
    /// No effect.
    None,
    /// The log is cut: later records are not in the snapshot.
    Made,
    /// The log begins, with this file.
    Begun(Option<Box<Aof<LogFolder>>>),
    /// The stream is marked: replicas that get the snapshot get later records.
    Marked {
        /// The mark's ticket.
        mark: intake::Ticket,
        /// The ID of the history at the mark. None if the data is of no history.
        id: Option<ReplicationId>,
    },
}

impl Cut {
    /// Creates a cut that has not been made yet.
    pub fn new(uses: Uses, form: Form, log: LogCut) -> Self {
        Self {
            uses,
            form,
            has_field_deadlines: false,
            libraries: Vec::new(),
            n_changes: 0,
            log,
            is_last: false,
        }
    }
}

/// A command in a node.
#[derive(Clone, Copy)]
pub struct Delegated {
    /// The command.
    pub command: CommandId,
    /// The place of its first key, if it has one.
    pub routed: Option<Routed>,
}

/// The work in a node.
pub struct Job {
    /// The client's session. It is with the node while that is under way, and nowhere else.
    pub session: Session,
    /// The work to do.
    pub task: Task,
    /// The commands' words.
    pub requests: Requests,
    /// The commands.
    pub commands: Vec<Delegated>,
    /// The places of a single command's keys, in order, if they were looked up before.
    pub routed: Vec<Routed>,
    /// Whether each command is timed where it runs. If not, the commands share the time of their batch.
    pub is_timed: bool,
    /// The number of commands that have run. CLIENT PAUSE holds the others back.
    pub n_run: usize,
    /// How often the next command was given up because it needed more shards.
    pub n_given_up: u8,
    /// The deadline of the next command, if it has waited before. A command that runs again keeps its first
    /// deadline.
    pub gives_up_at: Option<Steady>,
    /// Whether monitoring clients have been shown the next command. It then began to wait for keys.
    pub was_shown: bool,
    /// Whether the next command has been counted: it was offloaded, and runs again.
    pub was_counted: bool,
    /// The replies.
    pub reply: Vec<u8>,
    /// The length of the replies to commands that have ended.
    pub n_replied_bytes: usize,
    /// The last ticket of its commands' records; 0 if there are none.
    pub ticket: intake::Ticket,
    /// The time of the connection's last read.
    pub now: Millis,
    /// The division of its time under way, if that is requested.
    pub split: Option<Box<Split>>,
}

impl Job {
    /// Creates a connection's job with nothing to do.
    pub fn new(session: Session) -> Self {
        Self {
            session,
            task: Task::Idle,
            requests: Requests::default(),
            commands: Vec::new(),
            routed: Vec::new(),
            is_timed: false,
            n_run: 0,
            n_given_up: 0,
            gives_up_at: None,
            was_shown: false,
            was_counted: false,
            reply: Vec::new(),
            n_replied_bytes: 0,
            ticket: 0,
            now: Millis(0),
            split: None,
        }
    }

    /// Copies a command into the job.
    pub fn push(&mut self, command: CommandId, words: Words<'_>, routed: Option<Routed>) {
        self.requests.push(words);
        self.commands.push(Delegated { command, routed });
    }

    /// Adds a command whose bytes [`Requests::adopt`] brings next. They begin there at `start`.
    pub fn push_without_bytes(
        &mut self,
        command: CommandId,
        words: Words<'_>,
        routed: Option<Routed>,
        start: usize,
    ) {
        self.requests.push_without_bytes(words, start);
        self.commands.push(Delegated { command, routed });
    }

    /// The commands from `nth` on, with their words.
    pub fn commands_from(&self, nth: usize) -> impl Iterator<Item = (Delegated, Words<'_>)> + Clone {
        self.commands[nth..].iter().copied().zip(self.requests.iter_from(nth))
    }

    /// The command that runs next.
    pub fn next_command(&self) -> (CommandId, Words<'_>) {
        (self.commands[self.n_run].command, self.requests.get(self.n_run))
    }

    /// Replaces some of the last words of the next command.
    pub fn replace_last_words(&mut self, words: Vec<Option<Vec<u8>>>) {
        self.requests.replace_last_words(self.n_run, words);
    }

    /// Counts a command of the client, unless its batch has counted it.
    pub fn count(&mut self) {
        self.session.n_commands += u64::from(self.is_timed);
        self.session.n_keys_done = 0;
        self.gives_up_at = None;
    }

    /// Forgets the commands, and keeps a little of the space.
    pub fn clear(&mut self) {
        self.task = Task::Idle;
        self.is_timed = false;
        self.n_run = 0;
        self.n_given_up = 0;
        self.gives_up_at = None;
        self.was_shown = false;
        self.was_counted = false;
        self.n_replied_bytes = 0;
        self.ticket = 0;
        self.split = None;
        self.requests.clear(KEPT_BYTES);
        empty(&mut self.commands);
        empty(&mut self.routed);
        empty(&mut self.reply);
    }
}

/// Empties a buffer, and frees its space if that is large.
pub fn empty<T>(buffer: &mut Vec<T>) {
    if buffer.capacity() * size_of::<T>() > KEPT_BYTES {
        *buffer = Vec::new();
    } else {
        buffer.clear();
    }
}

/// A command that waits.
pub struct Parked {
    /// The command's node, until it is claimed. The thread that takes it answers the client.
    node: AtomicCell<Option<Box<Node<Job>>>>,
    is_claimed: AtomicBool,
    /// The condition for which it waits.
    pub wait: Wait,
    /// The order of its places in the lines.
    ticket: Ticket,
    /// The place where the client is served.
    pub origin: Origin,
}

impl std::fmt::Debug for Parked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parked").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Parked {
    /// Puts a job in the lines of its keys. Its node follows with [`Parked::hand_in`], under the same hold.
    pub fn enter(origin: Origin, wait: Wait, held: &mut Held<'_, Job>, now: Millis) -> Arc<Self> {
        let parked = Arc::new(Self {
            node: AtomicCell::new(None),
            is_claimed: AtomicBool::new(false),
            wait,
            // Drawn under the holds of all its keys' shards, so the earlier node has the lower ticket in each
            // line.
            ticket: Ticket::next(),
            origin,
        });
        let reach = if parked.wait.destination.is_some() { Reach::Further } else { Reach::Own };
        for WaitedKey { key, awaits } in &parked.wait.keys {
            let shard = held.shard(key.routed.shard);
            shard.begin(key.db, now);
            let waits = (awaits.clone(), reach);
            shard.enter_line(&key.bytes, waits, parked.ticket, Arc::clone(&parked) as Waiter);
        }
        parked
    }

    /// Stores the node, until it is claimed.
    pub fn hand_in(&self, node: Box<Node<Job>>) {
        self.node.store(Some(node));
    }

    /// Takes the node, if no other thread has taken it before.
    pub fn claim(&self) -> Option<Box<Node<Job>>> {
        let node = self.node.take()?;
        self.is_claimed.store(true, Ordering::Relaxed);
        Some(node)
    }

    /// Whether another thread has claimed the node already, as far as is known here.
    pub fn is_claimed(&self) -> bool {
        self.is_claimed.load(Ordering::Relaxed)
    }

    /// Whether the client is blocked by a command that asked for it.
    pub fn is_visible(&self) -> bool {
        self.wait.is_visible()
    }

    /// The keys that it waits for.
    pub fn keys(&self) -> impl Iterator<Item = &WatchedKey> {
        self.wait.keys.iter().map(|waited| &waited.key)
    }

    /// Whether it is served, too, when a key is removed.
    pub fn hears_of_removal(&self) -> bool {
        let is_group = |awaits: &Awaits| matches!(awaits, Awaits::Group(_) | Awaits::GroupOrHandedBack(_));
        self.wait.keys.iter().any(|waited| is_group(&waited.awaits))
    }

    /// The time at which it gives up, or looks again.
    pub fn deadline(&self) -> Option<Steady> {
        [self.wait.deadline, self.wait.look_at].into_iter().flatten().min()
    }

    /// The reason why the wait ends at its [deadline](Parked::deadline), which has passed.
    pub fn end_at_deadline(&self, now: Steady) -> WaitEnd {
        let is_over = self.wait.deadline.is_some_and(|deadline| deadline <= now);
        if is_over { WaitEnd::TimedOut } else { WaitEnd::LooksAgain }
    }

    /// The route over the shards of its keys.
    pub fn route(&self) -> Route {
        Route::new(self.wait.keys.iter().map(|waited| waited.key.routed.shard).collect())
    }

    /// Leaves the lines of the held shards, and returns whether those were all.
    pub fn leave_lines(&self, held: &mut Held<'_, Job>, now: Millis) -> bool {
        let mut all = true;
        for WaitedKey { key, awaits } in &self.wait.keys {
            if !held.has(key.routed.shard) {
                all = false;
                continue;
            }
            let shard = held.shard(key.routed.shard);
            shard.begin(key.db, now);
            shard.leave_line(&key.bytes, awaits, self.ticket);
        }
        all
    }
}

/// A command's values, and the shard where it works on them.
pub struct Offload {
    /// The shard, which no other thread has.
    pub shard: Shard,
    /// The keys whose values are pinned, each once.
    pub keys: Vec<PinnedKey>,
    /// The command's changes there. Its result is stored with the same events.
    pub changes: Vec<Change>,
    /// The record of these changes for the log.
    pub record: Record,
    /// The duration of the work, in nanoseconds.
    pub worked_nanos: u64,
    /// The client's choice of replies before the command ran. A command that runs again counts once for
    /// CLIENT REPLY SKIP.
    pub replies: Replies,
}

/// A key whose value is pinned.
pub struct PinnedKey {
    /// The key.
    pub key: WatchedKey,
    /// Whether the command reads its value.
    pub is_read: bool,
    /// Whether the command may write it.
    pub is_written: bool,
    /// The value at the time of pinning.
    pub shared: Option<EntryBox>,
}

impl PinnedKey {
    /// Creates a key that is not pinned yet.
    pub fn new(key: WatchedKey) -> PinnedKey {
        PinnedKey { key, is_read: false, is_written: false, shared: None }
    }

    /// Adds a use of the key by the command to the recorded ones.
    pub fn add_use(&mut self, used: KeyUse) {
        self.is_read |= !matches!(used, KeyUse::Overwrite | KeyUse::Insert | KeyUse::Delete);
        self.is_written |= !matches!(used, KeyUse::Read | KeyUse::Look);
    }
}

/// The engine that runs jobs.
pub type Engine = Arc<coordinator::Engine<Job>>;
