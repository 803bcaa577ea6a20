//! Handing connections over to other threads, and taking them over.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use braid_protocol::request::Limits;
use mio::Token;

use super::IoThread;
use crate::{
    client::{connection::Connection, id::Origin, record::ClientRecord},
    clock::Instant,
    shared::{
        mail::Mail,
        server::{Peer, Server},
        thread_scaling::{self, Time},
    },
    warning_seldom,
};

/// The number of connections that one round of the cron hands over. Each takes the thread some microseconds,
/// and other connections wait meanwhile.
const HAND_OVER_MAX: usize = 200;

impl IoThread {
    /// Uses as many threads for connections as the load needs.
    ///
    /// This thread publishes its processor time, and hands over the connections beyond its share.
    pub(super) fn share_out_connections(&mut self, server: &'static Server) {
        let threads = server.io_threads();
        let index = self.worker.thread.index;
        let time = thread_scaling::time_of_this_thread();
        if let Some(Time { had, wanted }) = time {
            threads[index].nanos_had.store(had, Ordering::Relaxed);
            let before = threads[index].nanos_wanted.swap(wanted, Ordering::Relaxed);
            // The thread does not sleep while it waits for a processor.
            self.worker.thread.stats().busy_nanos.add(wanted.saturating_sub(before));
        }
        if threads.len() == 1 {
            return;
        }
        match time.filter(|_| !self.own.config.io_threads_always_active) {
            Some(_) if index == 0 => {
                let sum = |nanos: fn(&Peer) -> &AtomicU64| {
                    threads.iter().map(|peer| nanos(peer).load(Ordering::Relaxed)).sum()
                };
                let time = Time { had: sum(|peer| &peer.nanos_had), wanted: sum(|peer| &peer.nanos_wanted) };
                let idle = thread_scaling::idle_time_of_the_machine();
                // The saver alternates between work and rest, and these threads walk for it.
                let is_saving = server.saves.is_under_way.load(Ordering::Relaxed);
                self.housekeeping.sampler.adapt(&server.spread, time, idle, is_saving, Instant::now());
            }
            Some(_) => {}
            // The same where the system does not report the needed times.
            None if index == 0 => server.spread.use_all(),
            None => {}
        }
        let n_in_use = server.spread.n_in_use() as u32;
        let n_all: u32 = threads.iter().map(|peer| peer.n_connections()).sum();
        let (share, most) = if (index as u32) < n_in_use {
            let share = n_all.div_ceil(n_in_use);
            // A few more are left alone: other clients may close theirs at any time.
            (share, share + share / 4)
        } else {
            (0, 0)
        };
        let n_own = threads[index].n_connections();
        if n_own > most {
            self.hand_over(server, n_own - share);
        }
    }

    /// Hands over `n` connections, or as many as have nothing under way. The next rounds continue.
    pub(super) fn hand_over(&mut self, server: &'static Server, n: u32) {
        // Notifications are addressed to the listener's thread, so a listener stays.
        let is_at_rest = |connection: &Connection| connection.may_go_on() && !connection.record.is_listener();
        let slots: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, connection)| is_at_rest(connection))
            .map(|(slot, _)| slot)
            .take(HAND_OVER_MAX.min(n as usize))
            .collect();
        for slot in slots {
            let index = server.thread_for_another();
            if index == self.worker.thread.index {
                return;
            }
            let Some(mut connection) = self.connections.remove(slot) else { continue };
            if let Err(error) = self.poller.deregister(&mut connection.stream) {
                warning_seldom!("Handing over a client's socket: {error}");
            }
            self.uncount_memory(&mut connection);
            // From now on, a command that kills the client writes to the other thread.
            connection.record.thread.store(index, Ordering::Relaxed);
            let peer = &server.threads[index];
            peer.n_connections.fetch_add(1, Ordering::Relaxed);
            server.threads[self.worker.thread.index].n_connections.fetch_sub(1, Ordering::Relaxed);
            self.worker.thread.stats().handed_over.add(1);
            peer.send(Mail::Adopt(connection));
        }
    }

    /// Continues a connection that another thread has handed over.
    pub(super) fn adopt(&mut self, mut connection: Box<Connection>) {
        let slot = self.connections.next();
        let registered = self.poller.register(&mut connection.stream, Token(slot));
        connection.state.ready().job.session.origin = Origin { thread: self.worker.thread.index, slot };
        connection.record.place.store(slot, Ordering::Relaxed);
        // The events that the other thread would have received are unknown.
        connection.readable = true;
        connection.writable = true;
        if !connection.parser.holds_memory() {
            let authenticated = connection.parser.limits().authenticated;
            connection.parser.set_limits(Limits { authenticated, ..self.own.limits });
        }
        let id = connection.record.id;
        self.connections.insert(connection);
        self.give_what_came_before(slot, id);
        match registered {
            Ok(()) => self.go_on(slot),
            Err(error) => {
                warning_seldom!("Registering a client's socket: {error}");
                self.drop_connection(slot);
            }
        }
    }

    /// Closes the connection of a killed client.
    pub(super) fn close_killed(&mut self, record: Arc<ClientRecord>) {
        let thread = record.thread.load(Ordering::Relaxed);
        match self.place_of(&record) {
            Some(place) => self.drop_connection(place),
            // It was handed over before this message arrived.
            None if thread != self.worker.thread.index => {
                self.worker.thread.send_mail(thread, Mail::Close(record));
            }
            // It is on its way here, and is found killed on arrival. Or it has left.
            None => {}
        }
    }

    /// The slot of a client's connection, if this thread has it.
    pub(super) fn place_of(&self, record: &ClientRecord) -> Option<usize> {
        let place = record.place.load(Ordering::Relaxed);
        let connection = self.connections.get(place)?;
        (connection.record.id == record.id).then_some(place)
    }
}
