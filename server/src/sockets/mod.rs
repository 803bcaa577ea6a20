//! Sockets: listening, plain and TLS streams, certificates.

pub mod certificate_facts;
pub mod certificates;
pub mod ciphers;
pub mod listening;
pub mod outgoing;
pub mod poller;
#[cfg(test)]
pub mod simulated;
pub mod stream;
pub mod tls;
