//! The metrics port's thread: an event loop over a bounded number of connections.
//!
//! A client that sends no request, sends slowly or does not read is closed after some seconds. If there are
//! many such clients, one is closed at once in favour of the next one.

use std::{io, time::Duration};

use mio::{
    Events, Interest, Poll, Token,
    net::{TcpListener, TcpStream},
};
use slab::Slab;

use super::{
    peers::{HttpConnection, Stays},
    site::Site,
};
use crate::{
    client::id::Endpoint, clock::Instant, config::Config, process::descriptors::METRICS_CONNECTIONS_MAX,
    shared::server::Server, sockets::listening::bind_apart, verbose, warning_seldom,
};

/// The time after which a failed accept is repeated. Usually descriptors are missing, and no event reports a
/// free one.
const ACCEPTS_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The metrics port.
pub struct MetricsEndpoint {
    poll: Poll,
    listeners: Vec<TcpListener>,
}

/// Tokens of listening sockets count down from here, those of connections up from 0.
const FIRST_LISTENER: usize = usize::MAX - 1;

impl MetricsEndpoint {
    /// Listens at the configured places. Returns none if there are no such places.
    ///
    /// # Errors
    /// The place that could not be bound, in words for the log.
    pub fn bind(config: &Config) -> Result<Option<Self>, String> {
        if config.metrics_port == 0 {
            return Ok(None);
        }
        let failed = |error: io::Error| format!("Starting the metrics port: {error}");
        let poll = Poll::new().map_err(failed)?;
        let mut listeners = bind_apart(&config.metrics_bind, config.metrics_port, config)?;
        if listeners.is_empty() {
            return Err(format!("Failed listening on port {} (metrics), aborting.", config.metrics_port));
        }
        for (nth, listener) in listeners.iter_mut().enumerate() {
            let token = Token(FIRST_LISTENER - nth);
            poll.registry().register(listener, token, Interest::READABLE).map_err(failed)?;
        }
        Ok(Some(Self { poll, listeners }))
    }

    /// Serves for ever.
    ///
    /// # Errors
    /// If the event loop fails.
    pub fn run(mut self, server: &'static Server) -> io::Result<()> {
        let mut peers = Peers { server, site: Site::new(server), all: Slab::new() };
        let mut events = Events::with_capacity(64);
        let mut accepts_at: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let next = peers.next_due().into_iter().chain(accepts_at).min();
            let wait = next.map(|next| next.saturating_duration_since(now));
            match self.poll.poll(&mut events, wait) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                polled => polled?,
            }
            let now = Instant::now();
            let mut must_accept = accepts_at.take_if(|at| now >= *at).is_some();
            for event in &events {
                match event.token().0 {
                    token if token > FIRST_LISTENER - self.listeners.len() => must_accept = true,
                    index => peers.go_on(index, now),
                }
            }
            peers.attend_due(now);
            if must_accept && !self.accept_all(&mut peers, now) {
                accepts_at = Some(now + ACCEPTS_AGAIN_AFTER);
            }
        }
    }

    /// Accepts all waiting connections, and returns whether that succeeded.
    fn accept_all(&self, peers: &mut Peers, now: Instant) -> bool {
        let mut went_well = true;
        for listener in &self.listeners {
            loop {
                match listener.accept() {
                    Ok((socket, _)) => peers.welcome(socket, &self.poll, now),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        warning_seldom!("Accepting a connection on the metrics port: {error}");
                        went_well = false;
                        break;
                    }
                }
            }
        }
        went_well
    }
}

/// The current connections.
struct Peers {
    server: &'static Server,
    site: Site,
    all: Slab<HttpConnection>,
}

impl Peers {
    fn next_due(&self) -> Option<Instant> {
        self.all.iter().map(|(_, peer)| peer.due()).min()
    }

    /// Adds a connection. If there are too many, the one whose time would end first is removed.
    fn welcome(&mut self, socket: TcpStream, poll: &Poll, now: Instant) {
        let Ok(address) = socket.peer_addr() else { return };
        let address = std::net::SocketAddr::new(address.ip().to_canonical(), address.port());
        if self.server.turns_away(&Endpoint::Inet(address)) {
            verbose!("Protected mode keeps {address} from the metrics port");
            return;
        }
        let tls = match self.server.config.load().metrics_tls {
            false => None,
            // None if CONFIG SET has just turned it off.
            true => match self.server.tls.load_full() {
                None => return,
                Some(tls) => Some(std::sync::Arc::clone(&tls.rules)),
            },
        };
        if self.all.len() >= METRICS_CONNECTIONS_MAX {
            let longest = self.all.iter().min_by_key(|(_, peer)| peer.due());
            if let Some(index) = longest.map(|(index, _)| index) {
                self.all.remove(index);
            }
        }
        // A socket without this option still works.
        let _ = socket.set_nodelay(true);
        let Ok(peer) = HttpConnection::new(socket, address, tls, now) else { return };
        let index = self.all.insert(peer);
        let interest = Interest::READABLE | Interest::WRITABLE;
        if poll.registry().register(self.all[index].socket(), Token(index), interest).is_err() {
            self.all.remove(index);
        }
    }

    /// Continues a connection as far as possible. It may be gone.
    fn go_on(&mut self, index: usize, now: Instant) {
        let Some(peer) = self.all.get_mut(index) else { return };
        if peer.go_on(now, &mut self.site) == Stays::Closed {
            self.all.remove(index);
        }
    }

    /// Continues connections whose time has come: sends answers that have waited, and closes slow clients.
    fn attend_due(&mut self, now: Instant) {
        let due: Vec<usize> =
            self.all.iter().filter(|(_, peer)| now >= peer.due()).map(|(index, _)| index).collect();
        due.into_iter().for_each(|index| self.go_on(index, now));
    }
}
