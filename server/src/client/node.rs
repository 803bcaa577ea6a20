//! What a connection leaves with a shard that someone else holds: its session, the commands, and room for the
//! reply.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use braid_journal::{faults::LogFolder, intake::Ticket as JournalTicket, store::Aof};
use braid_storage::{
    Awaits, Change, ChannelKind, Form, Reach, Routed, Shard, Ticket, Uses, Waiter, WatchedKey,
    coordinator::{self, Held, Route},
    entry::EntryBox,
    executor::Node,
    record::Record,
    time::Millis,
};
use crossbeam_utils::atomic::AtomicCell;

use crate::{
    catalog::{CommandId, KeyUse, Requests, Words},
    client::{
        argument_buffer::Room,
        id::Origin,
        session::{Replies, Session},
        sweep::Sweep,
        waits::{Wait, WaitedKey},
        watches::Watch,
    },
    clock::Steady,
    notify::subscriptions::Name,
    telemetry::split::Split,
};

/// The most input and output space that a node keeps between uses, in bytes.
const KEPT_BYTES: usize = 4096;

/// What is to be done with the shards.
#[derive(Default)]
pub enum Task {
    /// Nothing: the node is with its connection.
    #[default]
    Idle,
    /// Run the commands.
    Commands,
    /// Go on with a sweep.
    Sweep(Box<Sweep>),
    /// Nothing but wait until every command that ran before has ended; the reply is written already.
    Barrier,
    /// Have all shards begin to save what they hold.
    Cut(Box<Cut>),
    /// Let go of some of what a closed connection watched and was subscribed to.
    Goodbye(Farewell),
    /// Wait for keys: the node goes to those who may claim it, not home.
    Wait(Arc<Parked>),
    /// The command is served, or has given up, but still stands in lines of keys.
    MustWithdraw(Arc<Parked>),
    /// Leave those lines; then the node goes on with its connection.
    Withdraw(Arc<Parked>),
    /// Make room for an argument of which some has come.
    MakeRoom(Room),
    /// Pin the values of the next command, which is too much for a hold.
    Pin,
    /// Run it on the pinned values, with nothing held: the node stays with its heavy-work thread.
    Offloaded(Box<Offload>),
    /// Store its result and unpin the values.
    Unpin(Box<Offload>),
}

/// The subscriptions and watched keys that a closed connection has yet to let go of.
#[derive(Default)]
pub struct Farewell {
    /// The keys that it still watches.
    pub watched: Vec<Watch>,
    /// The number of them, at the end of the list, that this step lets go of.
    pub n_watched: usize,
    /// The channels that this step leaves.
    pub channels: Vec<(ChannelKind, Name)>,
    /// Whether this step ends a subscription to keyspace events.
    pub meets_events: bool,
}

impl Farewell {
    /// The watched keys that this step lets go of.
    pub fn now(&self) -> &[Watch] {
        &self.watched[self.watched.len() - self.n_watched..]
    }
}

/// What is known of a snapshot once it has begun.
pub struct Cut {
    /// How uses of keys are told in it.
    pub uses: Uses,
    /// How it is written.
    pub form: Form,
    /// Whether some hash has fields with deadlines.
    pub has_field_deadlines: bool,
    /// The texts of the libraries of functions.
    pub libraries: Vec<Box<[u8]>>,
    /// How many changes of keys there had been.
    pub n_changes: u64,
    /// What happens to the log at the same moment.
    pub log: LogCut,
    /// The server is to end with this snapshot: writes wait from this moment on.
    pub is_last: bool,
}

/// What happens to the log where a snapshot begins.
pub enum LogCut {
    /// Nothing.
    None,
    /// It is cut: what comes behind is not in the snapshot.
    Made,
    /// It begins, with this file.
    Begun(Option<Box<Aof<LogFolder>>>),
}

impl Cut {
    /// One that is yet to be made.
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
    /// Which.
    pub command: CommandId,
    /// Where its first key lives, if it has one.
    pub routed: Option<Routed>,
}

/// The work in a node.
pub struct Job {
    /// The client. With the node while it is under way; nobody else has it then.
    pub session: Session,
    /// What to do.
    pub task: Task,
    /// The commands' words.
    pub requests: Requests,
    /// The commands.
    pub commands: Vec<Delegated>,
    /// Where the keys of a single command live, in order, if that was found out before.
    pub routed: Vec<Routed>,
    /// Whether the time of each is measured where it runs; else they have had their share of that of the
    /// batch they were read in.
    pub is_timed: bool,
    /// How many of them have run; the others were held back by CLIENT PAUSE.
    pub n_run: usize,
    /// How often the command that runs next has been given up because it needed more than was held.
    pub n_given_up: u8,
    /// Deadline of the next command, if it has waited before: a command that is run again keeps its first
    /// deadline.
    pub gives_up_at: Option<Steady>,
    /// Monitoring clients have been shown the command that runs next: it began to wait for keys after that.
    pub was_shown: bool,
    /// The command that runs next has been counted: it was offloaded, and is done again.
    pub was_counted: bool,
    /// The replies.
    pub reply: Vec<u8>,
    /// How much of them belongs to commands that have ended.
    pub n_replied_bytes: usize,
    /// The last ticket of what its commands have logged; 0 if they have logged nothing.
    pub ticket: JournalTicket,
    /// The time of the connection's last read.
    pub now: Millis,
    /// Where the time goes that it is under way, if that is asked for.
    pub split: Option<Box<Split>>,
}

impl Job {
    /// A connection's job, with nothing to do.
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

    /// Copies a command in.
    pub fn push(&mut self, command: CommandId, words: Words<'_>, routed: Option<Routed>) {
        self.requests.push(words);
        self.commands.push(Delegated { command, routed });
    }

    /// Adds a command whose bytes [`Requests::adopt`] brings next: there it begins at `start`.
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

    /// Puts others in place of some of the last words of the command that runs next.
    pub fn replace_last_words(&mut self, words: Vec<Option<Vec<u8>>>) {
        self.requests.replace_last_words(self.n_run, words);
    }

    /// Counts a command of the client's, unless the batch that it was read in has counted it.
    pub fn count(&mut self) {
        self.session.n_commands += u64::from(self.is_timed);
        self.session.n_keys_done = 0;
        self.gives_up_at = None;
    }

    /// Forgets the commands; keeps a little of the space.
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

/// Empties a buffer, and gives back its space if that is large.
pub fn empty<T>(buffer: &mut Vec<T>) {
    if buffer.capacity() * size_of::<T>() > KEPT_BYTES {
        *buffer = Vec::new();
    } else {
        buffer.clear();
    }
}

/// A command that waits.
pub struct Parked {
    /// The command's node, until it is claimed. Whoever takes it answers the client.
    node: AtomicCell<Option<Box<Node<Job>>>>,
    is_claimed: AtomicBool,
    /// What it waits for.
    pub wait: Wait,
    /// Its places in the lines.
    ticket: Ticket,
    /// Where the client is served.
    pub origin: Origin,
}

impl std::fmt::Debug for Parked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parked").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Parked {
    /// Puts a job in the lines of the keys it waits for. Its node follows with [`Parked::hand_in`], under the
    /// same hold.
    pub fn enter(origin: Origin, wait: Wait, held: &mut Held<'_, Job>, now: Millis) -> Arc<Self> {
        let parked = Arc::new(Self {
            node: AtomicCell::new(None),
            is_claimed: AtomicBool::new(false),
            wait,
            // Under the holds of all its keys' shards: whoever came first has the lower ticket in each line.
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

    /// Takes the node in, until it is claimed.
    pub fn hand_in(&self, node: Box<Node<Job>>) {
        self.node.store(Some(node));
    }

    /// Takes the node out, if nobody has before.
    pub fn claim(&self) -> Option<Box<Node<Job>>> {
        let node = self.node.take()?;
        self.is_claimed.store(true, Ordering::Relaxed);
        Some(node)
    }

    /// Whether somebody has claimed the node already, as far as is known here.
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

    /// Whether it is served as well when a key is there no longer.
    pub fn hears_of_removal(&self) -> bool {
        self.wait.keys.iter().any(|waited| matches!(waited.awaits, Awaits::Group(_)))
    }

    /// When it gives up.
    pub fn deadline(&self) -> Option<Steady> {
        self.wait.deadline
    }

    /// The shards of the keys it waits for.
    pub fn route(&self) -> Route {
        Route::new(self.wait.keys.iter().map(|waited| waited.key.routed.shard).collect())
    }

    /// Gives up the places in the lines of the shards that are held; says whether those were all.
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
    /// The shard, which nobody else has.
    pub shard: Shard,
    /// The keys whose values are pinned, each once.
    pub keys: Vec<PinnedKey>,
    /// What the command has done there: its result is stored as the same events.
    pub changes: Vec<Change>,
    /// The same for the log.
    pub record: Record,
    /// How long the work took, in nanoseconds.
    pub worked_nanos: u64,
    /// Which replies the client wanted before the command ran: if it is run again, that is one command to
    /// CLIENT REPLY SKIP.
    pub replies: Replies,
}

/// A key whose value is pinned.
pub struct PinnedKey {
    /// Which.
    pub key: WatchedKey,
    /// The command reads what was there.
    pub is_read: bool,
    /// The command may write it.
    pub is_written: bool,
    /// What was there when it was pinned.
    pub shared: Option<EntryBox>,
}

impl PinnedKey {
    /// One that is to be pinned.
    pub fn new(key: WatchedKey) -> PinnedKey {
        PinnedKey { key, is_read: false, is_written: false, shared: None }
    }

    /// Notes what the command does to it, beside what is noted already.
    pub fn add_use(&mut self, used: KeyUse) {
        self.is_read |= !matches!(used, KeyUse::Overwrite | KeyUse::Insert | KeyUse::Delete);
        self.is_written |= !matches!(used, KeyUse::Read | KeyUse::Look);
    }
}

/// The engine that runs jobs.
pub type Engine = Arc<coordinator::Engine<Job>>;
