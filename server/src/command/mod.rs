//! Commands: the table, how a command reads its arguments, and the families.

mod args;
mod category;
mod condition;
mod digest;
mod each_key;
mod error;
mod expire_options;
mod help;
mod lcs;
mod members;
mod requests;
mod spec;
mod sweep;
mod syntax;
mod table;
mod work;

mod bitmaps;
mod client;
mod connection;
mod dump;
mod field_expiry;
mod geo;
mod hashes;
mod hyperloglog;
mod introspection;
mod keys;
mod lists;
mod pubsub;
mod server;
mod sets;
mod sort;
mod sorted_sets;
mod streams;
mod strings;
mod tracking;
mod transactions;

use braid_storage::{Db, Routed, Shard, coordinator::Held, time::Millis};

use crate::{
    io::ThreadState,
    run::{blocking::Waiting, node::Job},
    server::Server,
    session::Session,
    stats::ThreadStats,
};

pub use args::{Args, Words};
pub use braid_storage::Key;
pub use category::Categories;
pub use error::{CommandError, Outcome, shown};
pub(crate) use pubsub::{is_confined, leave_channel, subscribed_routes};
pub use requests::Requests;
pub use spec::{
    Arity, BeginSweep, CommandSpec, Deprecation, Flags, Group, KeySpec, KeyUse, Keys, KeysAt, MembersAt, Run,
};
pub use sweep::{Step, Sweep};
pub use table::{CommandTable, Found, Registered, TABLE};
pub(crate) use transactions::{forget_watches, watched_routes};
pub(crate) use work::Budget;
pub use work::{Estimate, Look, Method, Work};

/// The families' rows: the whole command table.
const FAMILIES: &[&[CommandSpec]] = &[
    strings::COMMANDS,
    bitmaps::COMMANDS,
    hyperloglog::COMMANDS,
    sets::COMMANDS,
    lists::COMMANDS,
    hashes::COMMANDS,
    field_expiry::COMMANDS,
    sorted_sets::COMMANDS,
    geo::COMMANDS,
    streams::COMMANDS,
    sort::COMMANDS,
    keys::COMMANDS,
    dump::COMMANDS,
    transactions::COMMANDS,
    pubsub::COMMANDS,
    connection::COMMANDS,
    client::COMMANDS,
    server::COMMANDS,
    introspection::COMMANDS,
];

/// What a command that is not confined to one shard may use.
pub struct Call<'a, 'h> {
    /// What all threads share.
    pub server: &'a Server,
    /// The client.
    pub session: &'a mut Session,
    /// The shards that are held for the command, if it declared any.
    pub held: Option<&'a mut Held<'h, Job>>,
    /// The shard on which it works in place of those it would hold, if it is [offloaded](crate::run::offload).
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
    /// Set when it turned out to be too much work for a hold; nothing of it has happened.
    pub is_too_much: bool,
}

impl<'a> Call<'a, '_> {
    /// A call that touches no key.
    pub fn of_session(
        server: &'a Server,
        session: &'a mut Session,
        now: Millis,
        thread: &'a ThreadState,
    ) -> Self {
        Self {
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
            is_too_much: false,
        }
    }
}

impl Call<'_, '_> {
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

    /// Has nothing be too much for the hold.
    pub fn lift_limits(&mut self) {
        if let Some(held) = &mut self.held {
            for index in 0..held.ids().len() {
                let id = held.ids()[index];
                held.shard(id).lift_limit();
            }
        }
    }

    /// Calls `each` with every held shard, with database `db` selected.
    pub fn each_shard(&mut self, db: Db, mut each: impl FnMut(&mut Shard)) {
        let now = self.now;
        let held = self.held.as_mut().expect("a command over all shards runs under their holds");
        for index in 0..held.ids().len() {
            let id = held.ids()[index];
            let shard = held.shard(id);
            shard.begin(db, now);
            each(shard);
        }
    }
}
