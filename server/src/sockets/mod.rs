//! Sockets: listening, plain and TLS streams, certificates.

pub mod certificates;
pub mod ciphers;
pub mod listening;
pub mod stream;
pub mod tls;
