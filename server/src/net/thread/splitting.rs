//! `latency-split`: follows input from its read until its reply has left.
//!
//! It shows where the time goes.

use braid_storage::sync::executor::Node;

use super::{IoThread, batch::ParsedCommand};
use crate::{
    client::{connection::Connection, node::Job},
    clock::Instant,
    command::Found,
    telemetry::split::{Phase, Split},
};

impl IoThread {
    /// Begins to follow the input of a read, unless earlier input is still followed.
    #[cold]
    pub(super) fn begin_split(&self, connection: &mut Connection, now: Instant) {
        let Some(woke_at) = self.serving.woke_at else { return };
        match &mut connection.split {
            Some(split) => split.pass(Phase::Socket, now),
            None => {
                let mut split = Split::begin(woke_at);
                split.pass(Phase::Queue, now);
                connection.split = Some(Box::new(split));
            }
        }
    }

    /// Stops following, if the socket has taken all replies and nothing is under way.
    #[cold]
    pub(super) fn end_split(&self, connection: &mut Connection) {
        if connection.is_parked() || !connection.backlog.is_empty() || connection.stream.has_unsent() {
            return;
        }
        // An incomplete request has nothing to record.
        if let Some(mut split) = connection.split.take()
            && let Some(family) = split.family
        {
            split.pass(Phase::Socket, Instant::now());
            self.worker.thread.stats().splits.record(family, split.nanos());
        }
    }
}

/// Records that a batch of followed input has run, as far as it got.
pub(super) fn ran(split: &mut Split, first: &ParsedCommand, now: Instant) {
    if split.family.is_none()
        && let Found::Command(command) = first.found
    {
        split.family = Some(command.spec.group);
    }
    split.pass(Phase::Run, now);
}

/// Follows a node that leaves for shards, if its connection is followed.
pub(super) fn follow(node: &mut Node<Job>, connection: &Connection) {
    node.job.split = connection.split.is_some().then(|| Box::new(Split::begin(Instant::now())));
}

/// Takes the times of a returned node.
///
/// If the node was not followed all the way, nothing is recorded. It may have waited for keys or for a pause,
/// or visited all shards.
#[cold]
pub(super) fn take_back(connection: &mut Connection, part: Option<Box<Split>>) {
    match (&mut connection.split, part) {
        (Some(split), Some(part)) => split.take_back(*part, Instant::now()),
        (split, _) => *split = None,
    }
}
