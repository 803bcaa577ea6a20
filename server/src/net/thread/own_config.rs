//! The parts of the configuration that a thread keeps, so that no command reads what other threads write.

use std::{hint::cold_path, sync::atomic::Ordering};

use braid_protocol::request::Limits;

use super::{IoThread, parts::limits};
use crate::shared::client_limit::clients_limit;

impl IoThread {
    /// Applies a changed configuration at the beginning of a turn. So it holds for all commands that are sent
    /// after the reply to CONFIG SET.
    pub(super) fn heed_config(&mut self) {
        let server = self.server();
        // Acquire pairs with the Release in `Server::set_config`.
        let changes = server.config_changes.load(Ordering::Acquire);
        if changes == self.own.n_changes_seen {
            return;
        }
        cold_path();
        self.own.n_changes_seen = changes;
        self.own.config = server.config.load_full();
        self.own.limits = limits(&self.own.config);
        self.own.clients_limit = clients_limit(&self.own.config);
        self.own.may_be_over = true;
        for connection in self.connections.iter_mut() {
            if !connection.parser.holds_memory() {
                let authenticated = connection.parser.limits().authenticated;
                connection.parser.set_limits(Limits { authenticated, ..self.own.limits });
            }
        }
    }
}
