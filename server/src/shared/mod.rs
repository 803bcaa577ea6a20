//! The state that all threads share, and the state that each thread has at hand.

pub mod announced;
pub mod attention;
pub mod average_ttls;
pub mod change_log;
pub mod client_limit;
pub mod debug_hooks;
pub mod failover_steps;
pub mod loading;
pub mod mail;
pub mod memory;
pub mod pause;
pub mod rights;
pub mod role_change;
pub mod saves;
pub mod server;
pub mod thread_scaling;
pub mod thread_state;
pub mod user_table;
