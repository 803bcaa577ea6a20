//! MONITOR: a line for each command that ran, for the monitoring clients.
//!
//! While there are such clients, [`Server::attention`](crate::shared::server::Server::attention) is raised.
//! Then no command takes the short path on which a batch runs under one hold. Each ends under its own hold
//! (`run/finish.rs`), so the lines have the order of the holds.

use std::sync::{Arc, atomic::Ordering};

use crate::{
    catalog::{Flags, Words},
    client::{id::Endpoint, session::Session},
    config::quote,
    notify::notifications::Notification,
    observe::secrets::shown,
    shared::{server::Server, thread_state::ThreadState},
};

impl Server {
    /// Whether there are monitoring clients.
    pub fn is_monitored(&self) -> bool {
        self.threads.iter().any(|peer| peer.n_monitors.load(Ordering::Relaxed) > 0)
    }

    /// Counts a monitoring connection of a thread.
    pub fn add_monitor(&self, thread: usize) {
        self.threads[thread].n_monitors.fetch_add(1, Ordering::Relaxed);
        self.attention.raise();
    }

    /// Removes a monitoring connection of a thread from the count.
    pub fn remove_monitor(&self, thread: usize) {
        self.threads[thread].n_monitors.fetch_sub(1, Ordering::Relaxed);
        self.attention.lower();
    }
}

/// Shows a command that has run to the monitoring clients, if there are any. Each unit calls this once, under
/// its holds.
#[inline]
pub fn observe(session: &Session, flags: Flags, words: Words<'_>, thread: &ThreadState) {
    if !thread.server().attention.is_idle(session.rights_as_of) {
        show(session, flags, words, thread);
    }
}

#[cold]
fn show(session: &Session, flags: Flags, words: Words<'_>, thread: &ThreadState) {
    if flags.has(Flags::ADMIN) || flags.has(Flags::SKIP_MONITOR) {
        return;
    }
    let server = thread.server();
    if !server.is_monitored() {
        return;
    }
    send(&line(server, session, Sender::Client, flags, words).into(), session, thread);
}

/// The sender of a command in a line.
#[derive(Clone, Copy)]
pub enum Sender {
    /// The client.
    Client,
    /// A script of the client.
    Script,
}

/// Returns the line of a command, to be sent later.
///
/// There is one if a monitoring client may see it.
#[inline]
pub fn line_for_later(
    session: &Session,
    sender: Sender,
    flags: Flags,
    words: Words<'_>,
    server: &Server,
) -> Option<Arc<[u8]>> {
    let is_wanted = !server.attention.is_idle(session.rights_as_of) && server.is_monitored();
    (is_wanted && !flags.has(Flags::ADMIN)).then(|| line(server, session, sender, flags, words).into())
}

/// Sends a line to all monitoring clients.
pub fn send(line: &Arc<[u8]>, session: &Session, thread: &ThreadState) {
    for (to, peer) in thread.server().threads.iter().enumerate() {
        if peer.n_monitors.load(Ordering::Relaxed) > 0 {
            thread.notify(to, Notification::Observed(session.record.id, Arc::clone(line)));
        }
    }
    thread.charge(session);
}

fn line(server: &Server, session: &Session, sender: Sender, flags: Flags, words: Words<'_>) -> Vec<u8> {
    let micros = server.clock.unix_micros();
    let db = session.db.0;
    let peer = match (&session.record.peer, sender) {
        (_, Sender::Script) => "lua".to_owned(),
        (Endpoint::Inet(address), _) => address.to_string(),
        // The socket's path, because a peer without a name has nothing else.
        (Endpoint::Unix(path), _) => format!("unix:{path}"),
    };
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    let mut line = format!("+{seconds}.{micros:06} [{db} {peer}]").into_bytes();
    for word in shown(flags, 1, words) {
        line.push(b' ');
        line.extend(quote(word));
    }
    line.extend(b"\r\n");
    line
}
