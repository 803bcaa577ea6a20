//! Changes of this server's role, and the settings that depend on it.

use crate::{
    config::{Config, PrimaryAddress},
    shared::server::Server,
};

impl Server {
    /// Makes this server a replica of another, or of none, and stores that in the configuration.
    ///
    /// The caller is a barrier: commands that begin after its reply see the new role. The link's thread
    /// applies nothing for the old role after that.
    pub fn change_primary(&self, primary: Option<PrimaryAddress>) {
        let _writer = self.config_writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let was_on = self.replica.is_on();
        self.replica.set_primary(primary.clone());
        match (was_on, primary.is_some()) {
            (false, true) => self.attention.raise(),
            (true, false) => self.attention.lower(),
            _ => {}
        }
        let mut config = Config::clone(&self.config.load());
        config.set_primary(primary);
        // This also applies the limit of memory that belongs to the role.
        self.set_config(config);
        self.settle_expiry();
        self.replica.wake_link();
    }

    /// Whether keys expire only when the primary says so, or not at all during a pause.
    pub fn holds_expiry(&self) -> bool {
        self.is_paused() || self.replica.is_on()
    }

    /// The limit of memory that applies in the present role.
    pub fn memory_limit(&self, config: &Config) -> Option<u64> {
        if self.replica.is_on() && config.replica_ignore_maxmemory { None } else { config.maxmemory }
    }
}
