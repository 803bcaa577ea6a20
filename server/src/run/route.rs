//! The shards that commands need, and whether commands are expected to be long.

use std::ops::Range;

use braid_storage::{
    sync::coordinator::{Route, put_in_order},
    table::hash::{Routed, ShardId},
};
use smallvec::SmallVec;

use crate::{
    catalog::{Flags, Words},
    client::{node::Job, session::Session},
    command::{self, PART_KEYS, Registered, Run},
    notify::subscriptions::TopicKind,
    run::{
        command_lookup,
        script_prediction::{self, Expected},
    },
    shared::server::Server,
};

/// The number of keys above which a command runs on a heavy-work thread.
///
/// That is about 200 µs of expected work.
pub const HEAVY_KEYS: usize = 2000;

/// The same limit for commands that may wait for their keys. Entering one line costs about ten look-ups.
const HEAVY_KEYS_AWAITED: usize = 200;

/// The shards that commands need to hold together.
#[derive(Default)]
pub struct Needs {
    /// The places of their keys, in the order in which the commands name them.
    pub keys: SmallVec<[Routed; 12]>,
    others: SmallVec<[ShardId; 6]>,
    everything: bool,
    /// Whether one of them is a script that is expected to need the lane.
    pub wants_lane: bool,
}

impl Needs {
    /// The shards of some keys.
    pub fn of_keys(keys: &[Routed]) -> Self {
        Self { keys: keys.into(), ..Self::default() }
    }

    /// The needs of a job's next command.
    pub fn of_next(job: &Job, server: &Server) -> Self {
        let mut needs = Needs::default();
        let (command, words) = command_lookup::next(job);
        needs.add(server, &job.session, command, words);
        needs
    }

    /// Adds the needs of a command.
    pub fn add(&mut self, server: &Server, session: &Session, command: &Registered, words: Words<'_>) {
        self.add_unforeseen(server, session, command, words);
        self.foresee(server, command, words);
    }

    /// Adds the needs of a command, without those that [`Needs::foresee`] adds.
    pub fn add_unforeseen(
        &mut self,
        server: &Server,
        session: &Session,
        command: &Registered,
        words: Words<'_>,
    ) {
        match command.spec.run {
            Run::Session(_) | Run::Container => {
                self.everything |= session.queue.is_some() && command.has(Flags::WHOLE_KEYSPACE);
                // Within a transaction the command cannot be given up when it finds that a snapshot was cut
                // meanwhile. So no snapshot is cut.
                if command.has(Flags::WRITE) {
                    self.others.push(ShardId(0));
                }
            }
            Run::Everything(_) | Run::Barrier(_) | Run::EachShard { .. } => self.everything = true,
            Run::Transaction(_) | Run::Own(_) if command::joins_or_leaves_events(command, words) => {
                self.everything = true;
            }
            Run::Transaction(_) if roams(command, words) => self.everything = true,
            Run::Shard(_) | Run::Transaction(_) | Run::Script(_) => {
                self.add_keys(server, command, words, 0..usize::MAX);
            }
            Run::InParts(_) => {
                self.add_keys(server, command, words, session.n_keys_done..session.n_keys_done + PART_KEYS);
            }
            Run::Own(_) => {
                let n_later = session.watched.len().saturating_sub(PART_KEYS);
                self.others.extend(command::watched_routes(&session.watched[n_later..]));
                if command.has(Flags::LEAVES) {
                    self.add_what_is_left(server, session, command, words);
                }
            }
            Run::Queue => {
                self.others.extend(command::watched_routes(&session.watched));
                // An EXEC that refuses runs nothing.
                let queue = session.queue.as_ref().filter(|_| session.exec_refusal.is_none());
                for (queued, words) in queue.into_iter().flat_map(command_lookup::queued) {
                    self.add(server, session, queued, words);
                }
            }
        }
    }

    /// Adds the keys that a script is known to use besides those that it declares.
    ///
    /// Returns the other expectations about it.
    pub fn foresee(&mut self, server: &Server, command: &Registered, words: Words<'_>) -> Expected {
        let Run::Script(from) = command.spec.run else { return Expected::default() };
        let router = server.keyspace.router();
        let expected =
            script_prediction::predict(server, from, words, &mut |key| self.keys.push(router.route(key)));
        self.wants_lane |= expected.wants_lane;
        expected
    }

    /// Adds those keys of a command that `nth` selects.
    fn add_keys(&mut self, server: &Server, command: &Registered, words: Words<'_>, nth: Range<usize>) {
        let router = server.keyspace.router();
        let get = |at| words.get(at);
        let mut n_seen = 0;
        command.spec.keys.positions(words.len(), get, |at, _| {
            if nth.contains(&n_seen) {
                self.keys.push(router.route(words.get(at)));
            }
            n_seen += 1;
        });
    }

    /// Adds the needs of a command that ends subscriptions: those that it names, or all.
    fn add_what_is_left(
        &mut self,
        server: &Server,
        session: &Session,
        command: &Registered,
        words: Words<'_>,
    ) {
        let own = &session.record.topics;
        if own.is_empty() {
            return;
        }
        if words.len() > 1 && !command.spec.keys.0.is_empty() {
            return self.add_keys(server, command, words, 0..usize::MAX);
        }
        self.others.extend(command::subscribed_routes(server, own));
        // A PUBLISH on any shard looks at the patterns, and a change on any shard is an event.
        self.everything |= own.n_of(TopicKind::Pattern) > 0 || own.meet_events();
    }

    /// The route over these shards.
    pub fn route(&self, server: &Server) -> Route {
        let route = Route::new(self.shards(server));
        if self.wants_lane { route.through_lane() } else { route }
    }

    /// The shards, in the order in which they are taken.
    pub fn shards(&self, server: &Server) -> SmallVec<[ShardId; 6]> {
        if self.everything {
            return server.engine.all_shards();
        }
        if let ([key], []) = (&self.keys[..], &self.others[..]) {
            return SmallVec::from_slice(&[key.shard]);
        }
        let mut shards: SmallVec<[ShardId; 6]> = self.keys.iter().map(|key| key.shard).collect();
        shards.extend_from_slice(&self.others);
        put_in_order(&mut shards);
        shards
    }
}

/// Whether a command uses keys that it does not name.
///
/// That includes keys that only its handler can tell from other words.
pub fn roams(command: &Registered, words: Words<'_>) -> bool {
    command.spec.roams.is_some_and(|roams| roams(words)) || command.spec.keys.are_ambiguous(words)
}

/// Whether a command will probably take too long for a socket to wait.
pub fn is_heavy(server: &Server, session: &Session, command: &Registered, words: Words<'_>) -> bool {
    script_prediction::is_long(server, command, words) || is_heavy_beside(server, session, command, words)
}

/// The same, without the prediction for a script of its own.
pub fn is_heavy_beside(server: &Server, session: &Session, command: &Registered, words: Words<'_>) -> bool {
    words.len() > if command.has(Flags::BLOCKING) { HEAVY_KEYS_AWAITED } else { HEAVY_KEYS }
        || roams(command, words)
        || matches!(command.spec.run, Run::Own(_) | Run::Queue) && session.watched.len() > HEAVY_KEYS
        || (command.runs_queue()
            && session.exec_refusal.is_none()
            && session.queue.as_ref().is_some_and(|queue| {
                queue.len() > HEAVY_KEYS
                    || command_lookup::queued(queue).any(|(queued, words)| {
                        words.len() > HEAVY_KEYS
                            || script_prediction::is_long(server, queued, words)
                            || queued.has(Flags::USES_FILES)
                            || adds_up_much(server, queued)
                            || matches!(queued.spec.run, Run::EachShard { .. })
                    })
            }))
}

/// Whether a command adds up the counts of very many tables.
pub fn adds_up_much(server: &Server, command: &Registered) -> bool {
    command.has(Flags::ADDS_UP_TABLES) && server.keyspace.has_many_tables()
}

/// Whether a command must have the lane from its beginning.
///
/// This is an EXEC with a script that may use any key.
///
/// Within a transaction it can neither be given up nor take the lane later.
pub fn needs_lane(server: &Server, session: &Session, command: &Registered) -> bool {
    command.runs_queue()
        && session.exec_refusal.is_none()
        && session.queue.as_ref().is_some_and(|queue| {
            command_lookup::queued(queue)
                .any(|(queued, words)| script_prediction::reaches_anywhere(server, queued, words))
        })
}
