//! The contents of the metrics port, by path.

use std::{net::IpAddr, sync::atomic::Ordering, time::Duration};

use super::{
    exposition,
    http::{Answer, Code, HttpRequest},
    login::{self, Sight},
    peers::{Answers, Visitor},
    snapshot::Snapshots,
};
use crate::{
    config::{BindAddress, BindHost},
    shared::server::Server,
};

/// The status page. It fetches `/status.json`, and nothing else.
const PAGE: &str = include_str!("page.html");
/// The permissions of the page: only its own code, and nothing from elsewhere.
const PAGE_RULES: &str = "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
     connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
     Referrer-Policy: no-referrer\r\n";
/// Makes a browser ask for a name and a password.
const ASKS_FOR_PASSWORD: &str = "WWW-Authenticate: Basic realm=\"Braid\", charset=\"UTF-8\"\r\n";

/// The contents of the metrics port.
pub struct Site {
    server: &'static Server,
    snapshots: Snapshots,
}

impl Site {
    /// Creates the contents for a server.
    pub fn new(server: &'static Server) -> Self {
        Self { server, snapshots: Snapshots::default() }
    }

    fn page(&mut self, path: &str, sight: Sight) -> Answer {
        let html = "text/html; charset=utf-8";
        match path {
            "/" => Answer { code: Code::Ok, content_type: html, headers: PAGE_RULES, body: PAGE.to_owned() },
            "/metrics" => Answer {
                code: Code::Ok,
                content_type: "text/plain; version=0.0.4; charset=utf-8",
                headers: "",
                body: exposition::text(self.server),
            },
            "/status.json" => Answer {
                code: Code::Ok,
                content_type: "application/json",
                headers: "",
                body: self.snapshots.take(self.server, sight),
            },
            _ => Answer::text(Code::NotFound, "There is /, /metrics and /healthz."),
        }
    }

    /// Whether the host in a request is a name of this server.
    ///
    /// An attacker may lead a browser here under the attacker's own name, which now has this address. The
    /// answer would be visible to the attacker.
    fn is_known_as(&self, host: &str, visitor: &Visitor) -> bool {
        let config = self.server.config.load();
        let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        let is_bound = |bind: &BindAddress| matches!(&bind.host, BindHost::Named(name) if name.eq_ignore_ascii_case(host));
        host == "localhost"
            || address.is_some_and(|address| address.is_loopback() || Some(address) == visitor.to)
            || config.metrics_bind.iter().any(is_bound)
            || config.metrics_hosts.iter().any(|known| known == "*" || known.eq_ignore_ascii_case(host))
    }

    /// Reports whether the server is serving. Any client may know.
    fn health(&self) -> Answer {
        match self.server.stopping.load(Ordering::Relaxed) {
            false => Answer::text(Code::Ok, "ok"),
            true => Answer::text(Code::Unavailable, "stopping"),
        }
    }
}

impl Answers for Site {
    fn answer(&mut self, request: &HttpRequest, visitor: &mut Visitor) -> (Answer, Duration) {
        if request.path == "/healthz" {
            return (self.health(), Duration::ZERO);
        }
        if let Some(host) = &request.host
            && !self.is_known_as(host, visitor)
        {
            let why = "The server is not known by that name: see 'metrics-hosts'.";
            return (Answer::text(Code::Misdirected, why), Duration::ZERO);
        }
        match login::admit(self.server, request.credentials.as_ref(), visitor.from, &mut visitor.n_failures) {
            Ok(sight) => (self.page(&request.path, sight), Duration::ZERO),
            Err(refusal) => {
                let headers = if refusal.code == Code::Unauthorized { ASKS_FOR_PASSWORD } else { "" };
                (Answer { headers, ..Answer::text(refusal.code, refusal.why) }, refusal.rest)
            }
        }
    }
}
