//! The scripts, functions and configuration that a transaction sees.

use std::sync::Arc;

use arc_swap::Guard;

use crate::{
    config::Config,
    scripting::{
        functions::KnownFunctions,
        scripts::{Known, Script},
    },
    shared::server::Server,
};

/// The scripts, the functions and the configuration of one moment.
///
/// They belong to no shard. So a transaction holds nothing that would keep others from changing them, and
/// takes them once.
pub struct Definitions {
    /// The scripts.
    pub scripts: Arc<Known>,
    /// The functions.
    pub functions: Arc<KnownFunctions>,
    /// The configuration.
    pub config: Arc<Config>,
}

impl Definitions {
    /// Those of one moment.
    pub fn now(server: &Server) -> Self {
        loop {
            let all = Self {
                scripts: Guard::into_inner(server.scripts.known()),
                functions: Guard::into_inner(server.functions.known()),
                config: server.config.load_full(),
            };
            // Values that are the same before and after all reads were valid together at one moment.
            if Arc::ptr_eq(&all.scripts, &server.scripts.known())
                && Arc::ptr_eq(&all.functions, &server.functions.known())
            {
                return all;
            }
        }
    }

    /// Adds a script that the transaction itself loads.
    pub fn learn(&mut self, script: &Arc<Script>) {
        Arc::make_mut(&mut self.scripts).add(script);
    }
}
