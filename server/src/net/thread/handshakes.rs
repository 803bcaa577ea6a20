//! TLS handshakes: a few in each turn of the loop. Each costs as much as hundreds of commands.

use std::{io, time::Duration};

use super::IoThread;
use crate::{
    client::{
        connection::{Closing, Connection},
        id::ClientId,
        identity::{self, CertificateField},
        state::ConnectionState,
    },
    clock::Instant,
    command::{self, TABLE},
    config::AuthClientsUser,
    net::accept::DENIED,
    notify::notifications::ConnectionSlot,
    sockets::{stream::Stream, tls::Handshake},
    verbose, warning_seldom,
};

/// The time for handshakes in one turn of the loop.
///
/// At least one handshake continues. With an RSA key its single signature may take longer.
const HANDSHAKE_BUDGET: Duration = Duration::from_micros(500);

/// The time that a client has for its part. Waiting for its turn here does not count.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

impl IoThread {
    /// Begins the handshake of a new connection.
    pub(super) fn begin_handshake(&mut self, place: ConnectionSlot, id: ClientId) {
        self.handshakes.deadlines.push_back((Instant::now() + HANDSHAKE_TIMEOUT, place, id));
        self.queue_handshake(place);
    }

    /// Continues a handshake when its turn comes.
    #[cold]
    pub(super) fn queue_handshake(&mut self, place: ConnectionSlot) {
        let Some(connection) = self.connections.get_mut(place) else { return };
        let ConnectionState::Handshake { is_queued, .. } = &mut connection.state else { return };
        // Many events may come before its turn.
        if !std::mem::replace(is_queued, true) {
            self.handshakes.queue.push_back(place);
        }
    }

    /// Does a turn's share of the handshakes.
    pub(super) fn step_handshakes(&mut self) {
        if self.handshakes.queue.is_empty() {
            return;
        }
        let began = Instant::now();
        while let Some(place) = self.handshakes.queue.pop_front() {
            self.step_handshake(place);
            if began.elapsed() > HANDSHAKE_BUDGET {
                return;
            }
        }
    }

    fn step_handshake(&mut self, place: ConnectionSlot) {
        let Some(connection) = self.connections.get_mut(place) else { return };
        let ConnectionState::Handshake { is_queued, .. } = &mut connection.state else { return };
        if !std::mem::take(is_queued) {
            return;
        }
        let Stream::Tls(stream) = &mut connection.stream else { return };
        match stream.go_on_with_handshake(&mut self.buffers.ciphertext) {
            Ok(Handshake::Waits) => {}
            Ok(Handshake::Done) => {
                connection.state.secure();
                connection.readable = true;
                self.worker.thread.stats().handshakes.add(1);
                self.log_in_by_certificate(place);
                self.let_in(place);
            }
            Err(error) => {
                self.report_failed_handshake(place, &error);
                self.drop_connection(place);
            }
        }
    }

    /// Makes a client the user that its certificate names, if `tls-auth-clients-user` says so.
    ///
    /// If there is no such user, or it is off, the client keeps the default user, as in Redis 8.6 and Valkey.
    fn log_in_by_certificate(&mut self, place: ConnectionSlot) {
        let field = match self.own.config.tls_auth_clients_user {
            AuthClientsUser::Off => return,
            AuthClientsUser::Cn => CertificateField::CommonName,
            AuthClientsUser::Uri => CertificateField::Uri,
        };
        let server = self.server();
        let Some(connection) = self.connections.get_mut(place) else { return };
        let Stream::Tls(stream) = &connection.stream else { return };
        let Some(certificate) = stream.client_certificate() else { return };
        let names = identity::names(certificate, field);
        let session = &mut connection.state.ready().job.session;
        if server.become_certified_user(session, &names) {
            connection.parser.set_authenticated(session.authenticated);
        } else if let Some(name) = names.last() {
            command::note_refused_certificate(&connection.record, name, &TABLE, &self.worker.thread);
        }
    }

    /// Continues a client whose handshake is done.
    fn let_in(&mut self, place: ConnectionSlot) {
        let server = self.server();
        let Some(connection) = self.connections.get_mut(place) else { return };
        if server.turns_away(&connection.record.peer) {
            self.worker.thread.stats().refused.add(1);
            connection.send(DENIED);
            connection.close(Closing::AfterReplies);
        }
        self.go_on(place);
    }

    /// Closes connections whose clients do not finish their handshakes.
    pub(super) fn end_overdue_handshakes(&mut self) {
        if self.handshakes.deadlines.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some((_, place, id)) = self.handshakes.deadlines.pop_front_if(|(until, ..)| *until <= now) {
            let Some(connection) = self.connections.of_client(place, id) else { continue };
            let ConnectionState::Handshake { is_queued, .. } = connection.state else { continue };
            if is_queued {
                // The handshake waits for this thread.
                self.handshakes.deadlines.push_back((now + HANDSHAKE_TIMEOUT, place, id));
                continue;
            }
            self.report_failed_handshake(place, &io::ErrorKind::TimedOut.into());
            self.drop_connection(place);
        }
    }

    /// Logs that a handshake has failed, as Redis does.
    fn report_failed_handshake(&mut self, place: ConnectionSlot, error: &io::Error) {
        self.worker.thread.stats().failed_handshakes.add(1);
        let Some(Connection { record, .. }) = self.connections.get(place) else { return };
        if error.kind() != io::ErrorKind::InvalidData {
            verbose!("A client has left in its TLS handshake: {error} (addr={})", record.peer);
            return;
        }
        let (peer, local) = (&record.peer, &record.local);
        warning_seldom!("Error accepting a client connection: {error} (addr={peer} laddr={local})");
    }
}
