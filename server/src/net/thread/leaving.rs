//! The subscriptions and watched keys of clients that have left, released in steps.

use std::sync::atomic::Ordering;

use braid_storage::sync::{coordinator::Route, executor::Node};

use super::IoThread;
use crate::{
    client::{
        connection::Connection,
        node::{Farewell, Job, Task},
        record::Listens,
    },
    notify::notifications::ConnectionSlot,
    observe::invalidations,
};

/// The number of subscriptions that one step releases, and likewise of watched keys.
const STEP: usize = 512;

impl IoThread {
    /// Releases the subscriptions and watched keys of a closed connection.
    ///
    /// The client counts for PUBLISH until the last step, so it is listed until then. No other connection
    /// gets its slot meanwhile: messages to its channels still go there.
    pub(super) fn bid_farewell(&mut self, slot: ConnectionSlot, mut connection: Connection) {
        let mut node = connection.state.close();
        self.forget_notifications(slot, &mut node);
        let watched = std::mem::take(&mut node.job.session.watched).into_list();
        node.job.clear();
        node.job.task = Task::Goodbye(Farewell { watched, ..Farewell::default() });
        self.go_on_leaving(node);
    }

    /// Takes the next step, or removes the client from the list after the last one.
    pub(super) fn go_on_leaving(&mut self, mut node: Box<Node<Job>>) {
        let server = self.server();
        let index = self.worker.thread.index;
        let Job { session, task: Task::Goodbye(farewell), .. } = &mut node.job else {
            unreachable!("only one who has gone leaves")
        };
        let (slot, topics) = (session.origin.slot, session.record.topics.take_some(STEP));
        if topics.is_empty() && farewell.watched.is_empty() {
            server.clients.remove(session.record.id);
            let _: Option<Box<Connection>> = self.connections.remove(slot);
            return;
        }
        farewell.meets_events = topics.iter().any(|(kind, name)| kind.meets_events(name));
        for (kind, name) in &topics {
            self.subscribers.remove(slot, *kind, name);
            server.pubsub.left(*kind, name, index);
        }
        let of_shards = topics.into_iter().filter_map(|(kind, name)| Some((kind.channel_kind()?, name)));
        farewell.channels = of_shards.collect();
        farewell.n_watched = farewell.watched.len().min(STEP);
        let router = server.keyspace.router();
        let route = if farewell.meets_events {
            server.engine.all_shards()
        } else {
            let channels = farewell.channels.iter().map(|(_, name)| router.route(name).shard);
            channels.chain(farewell.now().iter().map(|watch| watch.key.routed.shard)).collect()
        };
        if route.is_empty() {
            // Other work has its turn nevertheless.
            self.worker.thread.send_home(index, node);
        } else {
            node.set_route(Route::new(route));
            self.worker.submit(node);
        }
    }

    /// Ends MONITOR and CLIENT TRACKING of a closed connection.
    fn forget_notifications(&mut self, place: ConnectionSlot, node: &mut Node<Job>) {
        let server = self.server();
        let thread = self.worker.thread.index;
        if node.job.session.record.listens(Listens::ToCommands) {
            self.subscribers.monitors.remove(&place);
            server.remove_monitor(thread);
        }
        let tracking = node.job.session.tracking.take();
        if let Some(tracking) = tracking {
            self.subscribers.track_no_more(tracking.number);
            server.trackers.remove_prefixes(&tracking.mode.prefixes, thread);
            server.threads[thread].n_trackers.fetch_sub(1, Ordering::Relaxed);
            self.forgetting.add(invalidations::leftover(*tracking, server, thread));
        }
    }
}
