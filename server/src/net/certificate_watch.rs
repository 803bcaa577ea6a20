//! Reloading certificates and keys whose files have changed (`tls-auto-reload-interval`).
//!
//! A heavy-work thread does this between its works: files may be slow, and checking keys takes milliseconds.

use std::sync::{Arc, PoisonError};

use crate::{
    clock::Instant,
    notice,
    shared::server::Server,
    sockets::certificates::{self, TlsFilesDigest},
    warning,
};

/// The time of the last check, and the contents that must not be read again.
pub(super) struct CertificateWatch {
    looked_at: Instant,
    /// Contents that could not be used. The fault has been logged, and they stay refused until something
    /// changes.
    refused: Option<TlsFilesDigest>,
}

impl CertificateWatch {
    /// Starts as if the files had just been checked.
    pub(super) fn new() -> Self {
        Self { looked_at: Instant::now(), refused: None }
    }

    /// Checks the files when the interval has passed.
    ///
    /// If they have changed and can be used, new connections use them.
    pub(super) fn look(&mut self, server: &Server) {
        let config = server.config.load_full();
        let Some(interval) = config.tls_auto_reload_interval else { return };
        if self.looked_at.elapsed() < interval {
            return;
        }
        self.looked_at = Instant::now();
        let Some(before) = server.tls.load_full() else { return };
        let contents = TlsFilesDigest::read(&config);
        if contents == before.contents || Some(contents) == self.refused {
            return;
        }
        match certificates::read(&config) {
            Ok(read) => {
                let _writer = server.config_writer.lock().unwrap_or_else(PoisonError::into_inner);
                // CONFIG SET may have read other files meanwhile, or have turned TLS off.
                if server.tls.load().as_ref().is_some_and(|now| Arc::ptr_eq(now, &before)) {
                    server.tls.store(Some(read));
                    notice!("TLS materials reloaded successfully: certificates or keys have changed");
                }
                self.refused = None;
            }
            // A certificate may have been replaced and its key not yet. The next check decides.
            Err(why) => {
                warning!("Certificates or keys have changed and cannot be used, those of before stay: {why}");
                self.refused = Some(contents);
            }
        }
    }
}
