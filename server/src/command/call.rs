//! What a handler may use that is not confined to one shard.

use std::sync::Arc;

use arc_swap::Guard;
use braid_protocol::reply::Reply;
use braid_storage::{
    Awaits, Db, Key, Routed, Shard, StorageError, WatchedKey,
    coordinator::{Held, Route},
    entry::Kind,
    time::Millis,
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

/// What a command that is not confined to one shard may use.
pub struct Call<'a, 'h> {
    /// All commands.
    pub table: &'static CommandTable,
    /// What all threads share.
    pub server: &'a Server,
    /// The client.
    pub session: &'a mut Session,
    /// The shards that are held for the command, if it declared any.
    pub held: Option<&'a mut Held<'h, Job>>,
    /// The shard on which it works in place of those it would hold, if it is
    /// [offloaded](crate::run::offload).
    pub offloaded: Option<&'a mut Shard>,
    /// The command's time.
    pub now: Millis,
    /// The thread that runs it.
    pub thread: &'a ThreadState,
    /// What that counts.
    pub stats: &'a ThreadStats,
    /// Where the command's keys live, in order, if that was found out before; else empty.
    pub routed: &'a [Routed],
    /// Whether what those look-ups touch was fetched just now.
    pub is_fetched: bool,
    /// Whether it may wait for keys.
    pub waiting: Waiting,
    /// How many commands the transaction has that it is part of, if it is.
    pub n_in_transaction: Option<usize>,
    /// What that transaction goes by, once it has asked.
    pub definitions: Option<Box<Definitions>>,
    /// Set when it turned out to be too much work for a hold; nothing of it has happened.
    pub is_too_much: bool,
    /// Whether a script runs it.
    pub is_in_script: bool,
    /// Whether monitoring clients have been shown it already.
    pub was_shown: bool,
    /// Set when it is to run again. Nothing of it has happened, except of one that is [between
    /// parts](GaveUp::BetweenParts).
    pub gave_up: Option<GaveUp>,
}

/// Why a command stopped before its end.
pub enum GaveUp {
    /// It has done a part of its keys, for good, and goes on with the next ones: nobody waits for all of them
    /// together.
    BetweenParts,
    /// It reaches for shards that others hold.
    Needs(Route),
    /// It writes a key that is pinned.
    Waits(Box<Wait>),
    /// It takes too long for a thread that serves sockets.
    TooLong,
    /// The last snapshot has been cut, and would lack what it does.
    Ending,
}

impl<'a> Call<'a, '_> {
    /// A call that touches no key.
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
            held: None,
            offloaded: None,
            now,
            thread,
            stats: thread.stats(),
            routed: &[],
            is_fetched: false,
            waiting: Waiting::MayNot,
            n_in_transaction: None,
            definitions: None,
            is_too_much: false,
            is_in_script: false,
            was_shown: false,
            gave_up: None,
        }
    }
}

impl Call<'_, '_> {
    /// Whether it is part of a transaction or a script, and so can wait for nothing. A command that waited
    /// for the end of a pause runs under a hold as these do, and is not.
    pub fn is_part(&self) -> bool {
        self.n_in_transaction.is_some() || self.is_in_script
    }

    /// The shard where a key of the command lives, with the session's database selected.
    ///
    /// # Panics
    /// If the command's row does not declare the key.
    pub fn shard_of(&mut self, key: &Key<'_>) -> &mut Shard {
        self.shard_in(key, self.session.db)
    }

    /// The shard where a key of the command lives, with another database selected.
    pub fn shard_in(&mut self, key: &Key<'_>, db: Db) -> &mut Shard {
        let shard = match &mut self.offloaded {
            Some(shard) => shard,
            None => {
                let held = self.held.as_mut().expect("a command that reaches for keys runs under a hold");
                held.shard(key.routed.shard)
            }
        };
        shard.begin(db, self.now);
        shard
    }

    /// The scripts that are known to it: within a transaction, to all of it.
    pub fn scripts(&mut self) -> Guard<Arc<Known>> {
        match self.definitions() {
            None => self.server.scripts.known(),
            Some(definitions) => Guard::from_inner(Arc::clone(&definitions.scripts)),
        }
    }

    /// The functions that are known to it: within a transaction, to all of it.
    pub fn functions(&mut self) -> Guard<Arc<KnownFunctions>> {
        match self.definitions() {
            None => self.server.functions.known(),
            Some(definitions) => Guard::from_inner(Arc::clone(&definitions.functions)),
        }
    }

    /// The configuration: within a transaction, that of all of it.
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

    /// Has the rest of a transaction know a script that it has made known.
    pub fn learn(&mut self, script: &Arc<Script>) {
        if let Some(definitions) = &mut self.definitions {
            definitions.learn(script);
        }
    }

    /// Has the rest of a transaction see what it has changed of functions, of the configuration, or by
    /// forgetting all scripts.
    pub fn renew_definitions(&mut self) {
        self.definitions = None;
    }

    /// Has nothing be too much for the hold.
    pub fn lift_limits(&mut self) {
        if let Some(held) = &mut self.held {
            held.each_shard(Shard::lift_limit);
        }
    }

    /// Calls `each` with every held shard, with database `db` selected.
    pub fn each_shard(&mut self, db: Db, mut each: impl FnMut(&mut Shard)) {
        let now = self.now;
        let held = self.held.as_mut().expect("a command over all shards runs under their holds");
        held.each_shard(|shard| {
            shard.begin(db, now);
            each(shard);
        });
    }
}

impl Call<'_, '_> {
    /// Whether what has run is not done: it waits, or is to be run aside.
    pub fn must_run_again(&self) -> bool {
        self.is_too_much || self.gave_up.is_some() || matches!(self.waiting, Waiting::Asked(_))
    }

    /// Has the command wait; where it may not, answers as if it had waited in vain. A handler that has called
    /// this is done.
    pub fn wait_for(&mut self, mut wait: Wait, reply: &mut Reply<'_>) {
        match self.waiting {
            Waiting::MayNot => wait.nothing.write(reply),
            Waiting::May | Waiting::Asked(_) => {
                wait.deadline = wait.timeout.map(|millis| self.server.clock.steady().after(millis));
                self.waiting = Waiting::Asked(Box::new(wait));
            }
        }
    }

    /// Has the command wait until any of the `n_keys` keys that begin `args` holds a value of a type.
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

    /// Has `pop` reply with an element of the first key that holds one, or has the command wait for any of
    /// them. The words of `args` are keys, and then the timeout.
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

    /// The shard where a key of the command lives, unless a blocked command is being served under a hold
    /// without it: then the key has not been written, and is passed over.
    pub fn shard_if_held(&mut self, key: &Key<'_>) -> Option<&mut Shard> {
        let is_held = self.held.as_ref().is_none_or(|held| held.has(key.routed.shard));
        is_held.then(|| self.shard_of(key))
    }

    /// A key of the command, to be waited for.
    pub fn waited_key(&self, key: &Key<'_>, awaits: Awaits) -> WaitedKey {
        WaitedKey {
            key: WatchedKey { db: self.session.db, bytes: key.bytes.into(), routed: key.routed },
            awaits,
        }
    }
}
