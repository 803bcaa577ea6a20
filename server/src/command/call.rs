//! The access of handlers that are not confined to one shard.

use std::sync::Arc;

use arc_swap::Guard;
use braid_protocol::reply::Reply;
use braid_storage::{
    entry::{
        Kind,
        db::Db,
        key::{Key, WatchedKey},
        time::Millis,
    },
    error::StorageError,
    keyspace::shard::Shard,
    observers::waiters::Awaits,
    sync::coordinator::{Held, Route},
    table::hash::Routed,
};

use super::table::CommandTable;
use crate::{
    catalog::{Args, CommandError, Outcome},
    client::{
        node::Job,
        session::Session,
        waits::{Nothing, Wait, WaitedKey, Waiting},
    },
    config::Config,
    scripting::{
        functions::KnownFunctions,
        script_snapshot::Definitions,
        scripts::{Known, Script},
    },
    shared::{server::Server, thread_state::ThreadState},
    telemetry::stats::ThreadStats,
};

/// The shards that a command may use.
pub enum ShardAccess<'a, 'h> {
    /// None: it uses no key.
    None,
    /// The shards that are held for it.
    Held(&'a mut Held<'h, Job>),
    /// A shard of its own with the shared values of its keys: it is [offloaded](crate::run::offload).
    Detached(&'a mut Shard),
}

impl<'h> ShardAccess<'_, 'h> {
    /// The held shards, if there are any.
    pub fn held(&mut self) -> Option<&mut Held<'h, Job>> {
        match self {
            ShardAccess::Held(held) => Some(held),
            ShardAccess::None | ShardAccess::Detached(_) => None,
        }
    }

    /// The held shards of a command whose row asks for some.
    ///
    /// # Panics
    /// If none are held.
    pub fn expect_held(&mut self) -> &mut Held<'h, Job> {
        self.held().expect("the shards that a row asks for are held")
    }
}

/// The access of a command that is not confined to one shard.
pub struct Call<'a, 'h> {
    /// The command table.
    pub table: &'static CommandTable,
    /// The state that all threads share.
    pub server: &'a Server,
    /// The client's session.
    pub session: &'a mut Session,
    /// The shards that it may use.
    pub access: ShardAccess<'a, 'h>,
    /// The command's time.
    pub now: Millis,
    /// The thread that runs it.
    pub thread: &'a ThreadState,
    /// The thread's statistics.
    pub stats: &'a ThreadStats,
    /// The routes of the command's keys, in order, if they were computed before; else empty.
    pub routed: &'a [Routed],
    /// Whether the memory of those keys was prefetched.
    pub is_fetched: bool,
    /// Whether it may wait for keys.
    pub waiting: Waiting,
    /// The number of commands in the transaction that it belongs to, if any.
    pub n_in_transaction: Option<usize>,
    /// The scripts, functions and configuration of that transaction, after their first use.
    pub definitions: Option<Box<Definitions>>,
    /// Whether it is called by a script.
    pub is_in_script: bool,
    /// Whether monitoring clients have already received it.
    pub was_shown: bool,
    /// Set if the command must run again. It has changed nothing yet, unless it stopped [between
    /// parts](GaveUp::BetweenParts).
    pub gave_up: Option<GaveUp>,
}

/// The reason why a command stopped before its end.
pub enum GaveUp {
    /// It has completed a part of its keys and continues with the next ones. The parts need not take effect
    /// together.
    BetweenParts,
    /// It needs shards that others hold.
    Needs(Route),
    /// It writes a pinned key.
    Waits(Box<Wait>),
    /// It takes too long for an I/O thread.
    TooLong,
    /// It is too much work for a hold.
    TooMuch,
    /// The server's last snapshot has been cut, and would lack the command's changes.
    Ending,
}

impl<'a> Call<'a, '_> {
    /// Creates a call that uses no key.
    pub fn of_session(
        table: &'static CommandTable,
        server: &'a Server,
        session: &'a mut Session,
        now: Millis,
        thread: &'a ThreadState,
    ) -> Self {
        Self {
            table,
            server,
            session,
            access: ShardAccess::None,
            now,
            thread,
            stats: thread.stats(),
            routed: &[],
            is_fetched: false,
            waiting: Waiting::MayNot,
            n_in_transaction: None,
            definitions: None,
            is_in_script: false,
            was_shown: false,
            gave_up: None,
        }
    }
}

impl Call<'_, '_> {
    /// Whether it is part of a transaction or a script, and so cannot wait.
    ///
    /// A command that waited for the end of a pause also runs under a hold, but is no part.
    pub fn is_part(&self) -> bool {
        self.n_in_transaction.is_some() || self.is_in_script
    }

    /// Returns the shard of a key of the command, with the session's database selected.
    ///
    /// # Panics
    /// If the command's row does not declare the key.
    pub fn shard_of(&mut self, key: &Key<'_>) -> &mut Shard {
        self.shard_in(key, self.session.db)
    }

    /// Returns the shard of a key of the command, with another database selected.
    pub fn shard_in(&mut self, key: &Key<'_>, db: Db) -> &mut Shard {
        let shard = match &mut self.access {
            ShardAccess::Detached(shard) => shard,
            access => access.expect_held().shard(key.routed.shard),
        };
        shard.begin(db, self.now);
        shard
    }

    /// Returns the known scripts. A transaction sees the same ones until its end.
    pub fn scripts(&mut self) -> Guard<Arc<Known>> {
        match self.definitions() {
            None => self.server.scripts.known(),
            Some(definitions) => Guard::from_inner(Arc::clone(&definitions.scripts)),
        }
    }

    /// Returns the known functions. A transaction sees the same ones until its end.
    pub fn functions(&mut self) -> Guard<Arc<KnownFunctions>> {
        match self.definitions() {
            None => self.server.functions.known(),
            Some(definitions) => Guard::from_inner(Arc::clone(&definitions.functions)),
        }
    }

    /// Returns the configuration. A transaction sees the same one until its end.
    pub fn config(&mut self) -> Guard<Arc<Config>> {
        match self.definitions() {
            None => self.server.config.load(),
            Some(definitions) => Guard::from_inner(Arc::clone(&definitions.config)),
        }
    }

    fn definitions(&mut self) -> Option<&mut Definitions> {
        self.n_in_transaction?;
        Some(self.definitions.get_or_insert_with(|| Box::new(Definitions::now(self.server))))
    }

    /// Makes a new script known to the rest of a transaction.
    pub fn learn(&mut self, script: &Arc<Script>) {
        if let Some(definitions) = &mut self.definitions {
            definitions.learn(script);
        }
    }

    /// Makes the rest of a transaction see its own changes.
    ///
    /// These are changes of functions or the configuration, or a script flush.
    pub fn renew_definitions(&mut self) {
        self.definitions = None;
    }

    /// Lifts the limit of work under the hold.
    pub fn lift_limits(&mut self) {
        if let Some(held) = self.access.held() {
            held.each_shard(Shard::lift_limit);
        }
    }

    /// Calls `each` with every held shard, with database `db` selected.
    pub fn each_shard(&mut self, db: Db, mut each: impl FnMut(&mut Shard)) {
        let now = self.now;
        self.access.expect_held().each_shard(|shard| {
            shard.begin(db, now);
            each(shard);
        });
    }
}

impl Call<'_, '_> {
    /// Whether the command must run again: it waits, or it stopped before its end.
    pub fn must_run_again(&self) -> bool {
        self.gave_up.is_some() || matches!(self.waiting, Waiting::Asked(_))
    }

    /// Makes the command wait. If it must not, writes the reply of a timeout.
    ///
    /// A handler returns after this call.
    pub fn wait_for(&mut self, mut wait: Wait, reply: &mut Reply<'_>) {
        match self.waiting {
            Waiting::MayNot => wait.nothing.write(reply),
            Waiting::May | Waiting::Asked(_) => {
                let now = self.server.clock.steady();
                wait.deadline = wait.timeout.map(|millis| now.after(millis));
                wait.look_at = wait.look_after.map(|millis| now.after(millis));
                self.waiting = Waiting::Asked(Box::new(wait));
            }
        }
    }

    /// Makes the command wait until one of its keys has a value of a kind.
    ///
    /// The keys are the first `n_keys` words of `args`.
    pub fn wait_for_kind(
        &mut self,
        kind: Kind,
        mut args: Args<'_>,
        n_keys: usize,
        timeout: Option<u64>,
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let keys: Result<Vec<WaitedKey>, CommandError> =
            (0..n_keys).map(|_| Ok(self.waited_key(&args.key()?, Awaits::Kind(kind)))).collect();
        self.wait_for(Wait::new(keys?, timeout, Nothing::NullArray), reply);
        Ok(())
    }

    /// Calls `pop` on each key until it replies, or else waits for the keys.
    ///
    /// The words of `args` are keys, and then the timeout.
    pub fn pop_or_wait(
        &mut self,
        kind: Kind,
        args: Args<'_>,
        reply: &mut Reply<'_>,
        mut pop: impl FnMut(&mut Shard, &Key<'_>, &mut Reply<'_>) -> Result<bool, StorageError>,
    ) -> Outcome {
        let n_keys = args.remaining() - 1;
        let timeout = args.skip(n_keys).timeout(self.now)?;
        let mut keys = args;
        for _ in 0..n_keys {
            let key = keys.key()?;
            if let Some(shard) = self.shard_if_held(&key)
                && pop(shard, &key, reply)?
            {
                return Ok(());
            }
        }
        self.wait_for_kind(kind, args, n_keys, timeout, reply)
    }

    /// Returns the shard of a key of the command, if that is held.
    ///
    /// A waiting command may be served under a hold without it. In that case the key has not been written and
    /// is skipped.
    pub fn shard_if_held(&mut self, key: &Key<'_>) -> Option<&mut Shard> {
        let is_held = self.access.held().is_none_or(|held| held.has(key.routed.shard));
        is_held.then(|| self.shard_of(key))
    }

    /// Returns a key of the command in the form that waits need.
    pub fn waited_key(&self, key: &Key<'_>, awaits: Awaits) -> WaitedKey {
        WaitedKey {
            key: WatchedKey { db: self.session.db, bytes: key.bytes.into(), routed: key.routed },
            awaits,
        }
    }
}
