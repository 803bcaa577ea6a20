//! The thread that keeps the link to the primary.
//!
//! ```text
//! no primary ─ REPLICAOF ─▶ connect ─▶ handshake ─▶ (copy) ─▶ stream ─┐
//!                              ▲                                      │
//!                              └──── at once, or after a second ◀─────┘
//! ```
//!
//! Each attempt belongs to one generation of the role. It ends when REPLICAOF begins the next.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use braid_journal::{history::ReplicationId, stream::Lsn};
use braid_storage::{
    entry::db::Db,
    memory::allocator,
    sync::coordinator::{Weight, Worker},
    table::flush_retired,
};
use crossbeam_utils::sync::Parker;

use super::{
    applying::{Applier, NotApplied, on_all_shards},
    channel::{Channel, Heartbeat, LinkEnd},
    copying::Copying,
    greeting::{Greeting, GreetingEvent, Introduction},
    payload::Form,
    role::{LinkState, ReplicaRole, StreamPlace},
    units::{UnitContent, UnitReader},
};
use crate::{
    client::node::Job,
    clock::Instant,
    command,
    config::PrimaryAddress,
    notice,
    replication::{failover::FailoverStep, lineage},
    shared::{failover_steps::FailoverMove, server::Server, thread_state::ThreadState},
    warning,
};

/// The pause before the next attempt to connect.
const RETRY: Duration = Duration::from_secs(1);
/// The pause while the server still loads its own data.
const LOADING: Duration = Duration::from_millis(5);
/// The pause while other threads still have records of the role before.
const SETTLING: Duration = Duration::from_micros(200);
/// The pause between two looks at a failover: an acknowledgement ends it.
const FAILING_OVER: Duration = Duration::from_millis(10);
/// How often garbage is returned while there is no primary.
const HOUSEKEEPING: Duration = Duration::from_secs(3600);

/// Keeps the link to the primary until the server stops, whenever there is a primary.
pub fn run_link(server: &'static Server, index: usize, parker: &Parker) {
    let state = ThreadState::new(index, server);
    let worker = Worker::new(Arc::clone(&server.engine), Weight::Heavy, state);
    let mut link = Link { server, worker, index, db: Db::default(), asked: None };
    while !server.stopping.load(Ordering::Relaxed) {
        link.turn(parker);
    }
}

struct Link {
    server: &'static Server,
    worker: Worker<Job>,
    /// The number of this thread.
    index: usize,
    /// The database that the stream has selected, at the place up to which it was applied.
    db: Db,
    /// The place that the handshake under way has asked to go on from.
    asked: Option<StreamPlace>,
}

/// The place of a copy whose primary says none: a history that nobody else knows. So no later link goes on
/// there.
fn history_of_one_link() -> StreamPlace {
    StreamPlace { id: lineage::random_id(), offset: 0 }
}

/// How the stream is to be followed after a handshake.
enum Agreed {
    /// From a copy on.
    Copy(StreamPlace, Form),
    /// From the present place on.
    Continue(Option<ReplicationId>),
}

impl Link {
    fn role(&self) -> &'static ReplicaRole {
        &self.server.replica
    }

    fn note_state(&self, state: LinkState, generation: u64) {
        self.role().note_state(state, generation, self.server.clock.uptime_millis());
    }

    /// Makes one attempt at a link, or waits for a primary.
    fn turn(&mut self, parker: &Parker) {
        let generation = self.role().generation();
        let Some(primary) = self.role().primary() else {
            if self.server.replication.failover.step() == FailoverStep::WaitsForSync {
                return self.fail_over(parker);
            }
            flush_retired();
            allocator::settle_before_sleep();
            return parker.park_timeout(HOUSEKEEPING);
        };
        if self.server.loading.is_on() {
            return parker.park_timeout(LOADING);
        }
        notice!("Connecting to MASTER {primary}");
        let began = Instant::now();
        let end = match self.attempt(&primary, generation) {
            Ok(never) => match never {},
            Err(end) => end,
        };
        // All others wait for these records: their tickets are taken.
        self.worker.thread.publish_log();
        let was_up = self.role().state() == LinkState::Connected;
        self.note_state(LinkState::Connect, generation);
        flush_retired();
        allocator::settle_before_sleep();
        // The primary may have closed the link because this server is no replica any more.
        if self.role().generation() != generation {
            return;
        }
        match end {
            LinkEnd::Superseded | LinkEnd::Stopping => return,
            LinkEnd::Killed => notice!("The link to the master was closed by CLIENT KILL"),
            LinkEnd::Failed(why) => warning!("{why}"),
        }
        if was_up {
            notice!("Caching the disconnected master state.");
            notice!("Reconnecting to MASTER {primary}");
        }
        // After an unbroken link the backlog is still there, so the next attempt begins at once.
        let pause = if was_up { Duration::ZERO } else { RETRY };
        while let Some(rest) = pause.checked_sub(began.elapsed()).filter(|rest| !rest.is_zero()) {
            if self.role().generation() != generation || self.server.stopping.load(Ordering::Relaxed) {
                return;
            }
            parker.park_timeout(rest);
        }
    }

    /// Goes on with a failover that waits for a replica.
    fn fail_over(&mut self, parker: &Parker) {
        let server = self.server;
        self.worker.thread.publish_log();
        if server.durability.aof.advance() {
            server.wake_who_awaits_log();
        }
        match server.next_of_failover() {
            FailoverMove::Wait => return parker.park_timeout(FAILING_OVER),
            FailoverMove::GiveUp => {
                server.tell_aborted_failover("Replica never caught up before timeout");
                server.end_failover(&self.worker.thread);
            }
            FailoverMove::Follow(target) => {
                let failover = &server.replication.failover;
                let done = self.change_role(Some(&target), || {
                    let waits = failover.step() == FailoverStep::WaitsForSync;
                    if waits {
                        failover.set_step(FailoverStep::InProgress);
                    }
                    waits
                });
                if done {
                    command::end_waits(server, &self.worker.thread);
                }
            }
        }
        self.worker.thread.send_wakes();
    }

    /// Ends a failover whose target does not take over: this server is the primary again.
    fn give_up_failover(&mut self) {
        let server = self.server;
        server.tell_aborted_failover("Failover target rejected psync request");
        let failover = &server.replication.failover;
        if self.change_role(None, || failover.step() == FailoverStep::InProgress) {
            server.end_failover(&self.worker.thread);
            self.worker.thread.send_wakes();
        }
    }

    /// Changes the role with all shards held, if `is_due` then. Returns whether it has.
    fn change_role(&mut self, primary: Option<&PrimaryAddress>, is_due: impl Fn() -> bool) -> bool {
        let server = self.server;
        let mut pause = || !server.stopping.load(Ordering::Relaxed);
        let changed = on_all_shards(&mut self.worker, &mut pause, |held, thread| {
            let is_due = is_due();
            if is_due {
                server.change_primary(primary.cloned(), held, thread);
            }
            is_due
        });
        self.worker.thread.publish_log();
        changed == Ok(true)
    }

    /// Makes a link and follows the stream until the link ends.
    fn attempt(
        &mut self,
        primary: &PrimaryAddress,
        generation: u64,
    ) -> Result<std::convert::Infallible, LinkEnd> {
        self.note_state(LinkState::Connecting, generation);
        self.settle()?;
        let mut channel = Channel::connect(self.server, primary, generation, self.index)?;
        notice!("MASTER <-> REPLICA sync started");
        self.note_state(LinkState::Handshake, generation);
        let (agreed, rest) = self.agree(&mut channel)?;
        // The target of a failover has taken over.
        self.server.end_failover(&self.worker.thread);
        self.worker.thread.send_wakes();
        let rest = match agreed {
            Agreed::Continue(id) => {
                self.go_on(id, generation)?;
                notice!("MASTER <-> REPLICA sync: Master accepted a Partial Resynchronization.");
                rest
            }
            Agreed::Copy(place, form) => {
                self.role().note_copied(form.length().unwrap_or(0), 0);
                self.note_state(LinkState::Copying, generation);
                let (server, worker) = (self.server, &mut self.worker);
                let copying = Copying { server, worker, channel: &mut channel, place };
                let (db, rest) = copying.run(&form, rest)?;
                self.db = db;
                rest
            }
        };
        self.follow(channel, rest)
    }

    /// Brings the change stream to its end, and takes over its place: what a transaction or an earlier role
    /// has added is there.
    ///
    /// # Errors
    /// If the server stops.
    fn settle(&mut self) -> Result<(), LinkEnd> {
        let (server, durability) = (self.server, &self.server.durability);
        let stream = durability.aof.stream();
        self.worker.thread.publish_log();
        stream.take().merger.keep_history(server.config.load().repl_backlog_size);
        let last = durability.last_ticket();
        let place = loop {
            let (merged, place) = stream.merged_end();
            if merged >= last {
                break place;
            }
            if server.stopping.load(Ordering::Relaxed) {
                return Err(LinkEnd::Stopping);
            }
            if durability.aof.advance() {
                server.wake_who_awaits_log();
            }
            std::thread::sleep(SETTLING);
        };
        self.asked = None;
        if self.role().has_history() {
            self.role().note_place(place);
            self.db = stream.selected_db().map_or(Db::default(), Db);
            let id = server.replication.lineage().id_to_ask_by(place);
            self.asked = Some(StreamPlace { id, offset: place.0 as i64 });
        }
        Ok(())
    }

    /// Notes that the primary goes on from the place that was asked for. `id` is its ID of the history, if it
    /// says one.
    fn go_on(&mut self, id: Option<ReplicationId>, generation: u64) -> Result<(), LinkEnd> {
        let server = self.server;
        let Some(asked) = self.asked else {
            return Err(LinkEnd::Failed(
                "The master goes on with a history that was not asked for".to_owned(),
            ));
        };
        // A promotion takes all shards, too. After it the history is this server's own, and must not get the
        // primary's ID: both would go on with the same one.
        let mut pause = || !server.stopping.load(Ordering::Relaxed);
        let done = on_all_shards(&mut self.worker, &mut pause, |_, thread| {
            if server.replica.generation() != generation {
                return false;
            }
            let place = Lsn(asked.offset as u64);
            if server.replication.lineage().go_on(asked.id, id.unwrap_or(asked.id), place) {
                server.tell_history(None, thread);
                // They learn the ID when they come back.
                server.part_with_replicas(thread);
            }
            true
        });
        self.worker.thread.publish_log();
        self.worker.thread.send_wakes();
        if done == Ok(true) { Ok(()) } else { Err(LinkEnd::Superseded) }
    }

    /// Speaks with the primary up to the payload or the stream. Returns what they agreed on, and the bytes
    /// that came after that.
    fn agree(&mut self, channel: &mut Channel) -> Result<(Agreed, Vec<u8>), LinkEnd> {
        let config = self.server.config.load_full();
        let introduction = Introduction {
            user: config.masteruser.clone(),
            password: config.masterauth.clone(),
            port: config.replica_announce_port.unwrap_or_else(|| config.replication_port()),
            address: config.replica_announce_ip.clone(),
            place: self.asked,
            is_failover: self.server.replication.failover.step() == FailoverStep::InProgress,
        };
        let mut events = Vec::new();
        let mut handshake = Greeting::new(introduction, &mut events);
        let (mut copied, mut rest) = (None, Vec::new());
        loop {
            for event in events.drain(..) {
                match event {
                    GreetingEvent::Send(bytes) => channel.send(&bytes)?,
                    GreetingEvent::Note(text) => notice!("{text}"),
                    GreetingEvent::Refused(why) => return Err(LinkEnd::Failed(why)),
                    GreetingEvent::FullCopy(place) => {
                        channel.set_heartbeat(Heartbeat::Newline);
                        copied = Some(place);
                    }
                    GreetingEvent::Payload(form) => {
                        let place = copied.take().expect("the place comes before the payload");
                        // A primary without offsets may not know acknowledgements either. One that sends a
                        // copy without a length waits for the first.
                        channel.set_acknowledging(place.is_some() || form.length().is_none());
                        let place = place.unwrap_or_else(history_of_one_link);
                        return Ok((Agreed::Copy(place, form), rest));
                    }
                    GreetingEvent::Continue(id) => return Ok((Agreed::Continue(id), rest)),
                    GreetingEvent::Rejected => {
                        self.give_up_failover();
                        return Err(LinkEnd::Superseded);
                    }
                }
            }
            rest = channel.receive(|bytes| {
                let n_used = handshake.feed(bytes, &mut events);
                bytes[n_used..].to_vec()
            })?;
        }
    }

    /// Applies the stream from the present place on, until the link ends. `first` are its first bytes.
    fn follow(&mut self, mut channel: Channel, first: Vec<u8>) -> Result<std::convert::Infallible, LinkEnd> {
        let (role, generation) = (self.role(), channel.generation());
        channel.set_heartbeat(Heartbeat::Ack);
        let mut applier = Applier::new(Arc::clone(&channel.record), self.index, self.db);
        let mut units = UnitReader::new(role.applied());
        self.note_state(LinkState::Connected, generation);
        channel.acknowledge()?;
        let mut read = role.applied() + first.len() as i64;
        role.note_read(read);
        units.feed(&first);
        loop {
            self.apply_all(&mut units, &mut applier, &mut channel)?;
            read += channel.receive(|bytes| {
                units.feed(bytes);
                bytes.len() as i64
            })?;
            role.note_read(read);
        }
    }

    /// Applies all units that are complete.
    fn apply_all(
        &mut self,
        units: &mut UnitReader,
        applier: &mut Applier,
        channel: &mut Channel,
    ) -> Result<(), LinkEnd> {
        let (role, generation) = (self.role(), channel.generation());
        loop {
            let unit = match units.next_unit() {
                Ok(Some(unit)) => unit,
                Ok(None) => break,
                Err(bad) => {
                    // Only a copy can mend it.
                    role.set_has_history(false);
                    return Err(LinkEnd::Failed(format!("The link to the master ends: {}", bad.0)));
                }
            };
            let mut ended = None;
            let mut pause = || channel.keep_alive().map_err(|end| ended = Some(end)).is_ok();
            let applied = applier.apply(&unit, generation, &mut self.worker, &mut pause);
            match applied {
                Ok(()) => {}
                Err(NotApplied::GivenUp) => return Err(ended.unwrap_or(LinkEnd::Superseded)),
                Err(NotApplied::Impossible(why)) => {
                    return Err(LinkEnd::Failed(format!("The link to the master ends: {why}")));
                }
            }
            self.db = applier.db();
            if matches!(unit.content, UnitContent::GetAck) {
                channel.acknowledge()?;
            } else {
                channel.keep_alive()?;
            }
        }
        let mut ended = None;
        let mut pause = || channel.keep_alive().map_err(|end| ended = Some(end)).is_ok();
        applier.end_batch(&mut self.worker, &mut pause);
        ended.map_or(Ok(()), Err)
    }
}
