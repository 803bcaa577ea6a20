//! Listening sockets, and whom an accepted connection goes to.

use std::{
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::atomic::Ordering,
    time::Duration,
};

use mio::{
    Interest, Registry, Token,
    net::{TcpListener, UnixListener},
};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::{
    clients::Endpoint,
    config::{BindHost, Config},
    io::{
        Mail,
        stream::{Accepted, Stream},
    },
    server::Server,
    verbose, warning,
};

/// What Redis says to a stranger who reaches an unprotected server.
const DENIED: &[u8] = b"-DENIED Braid is running in protected mode because protected mode is enabled and no password is \
set for the default user. In this mode connections are only accepted from the loopback interface. If you want to connect \
from external computers to Braid you may adopt one of the following solutions: 1) Just disable protected mode sending the \
command 'CONFIG SET protected-mode no' from the loopback interface by connecting to Braid from the same host the server is \
running, however MAKE SURE Braid is not publicly accessible from internet if you do so. Use CONFIG REWRITE to make this \
change permanent. 2) Alternatively you can just disable the protected mode by editing the configuration file, and setting \
the protected mode option to 'no', and then restarting the server. 3) If you started the server manually just for testing, \
restart it with the '--protected-mode no' option. 4) Set up an authentication password for the default user. NOTE: You \
only need to do one of the above things in order for the server to start accepting connections from the outside.\r\n";

/// A socket that accepts connections.
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

/// Binds everything that the configuration names. Port 0 means that there is no TCP.
///
/// # Errors
/// What could not be bound, in words for the log.
pub fn bind_all(config: &Config) -> Result<Vec<Listener>, String> {
    let mut listeners = Vec::new();
    if config.port != 0 {
        for bind in &config.bind {
            match address_of(&bind.host, config.port)
                .and_then(|address| bind_tcp(address, config.tcp_backlog))
            {
                Ok(listener) => listeners.push(Listener::Tcp(listener)),
                // As Redis: an address this host does not have is skipped where the configuration says `-`.
                Err(error) if bind.optional && is_not_available(&error) => {}
                Err(error) => {
                    let (host, port) = (&bind.host, config.port);
                    return Err(format!(
                        "Could not create server TCP listening socket {host:?}:{port}: {error}"
                    ));
                }
            }
        }
        if listeners.is_empty() {
            return Err(format!("Failed listening on port {} (TCP), aborting.", config.port));
        }
    }
    if let Some(path) = &config.unixsocket {
        let listener = bind_unix(path, config.unixsocketperm)
            .map_err(|error| format!("Failed opening Unix socket {}: {error}", path.display()))?;
        listeners.push(Listener::Unix(listener));
    }
    if listeners.is_empty() {
        return Err("Configured to not listen anywhere, exiting.".to_owned());
    }
    Ok(listeners)
}

fn address_of(host: &BindHost, port: u16) -> io::Result<SocketAddr> {
    match host {
        BindHost::AnyV4 => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)),
        BindHost::AnyV6 => Ok(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)),
        BindHost::Named(name) => (name.as_str(), port)
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into()),
    }
}

fn is_not_available(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported)
        || error.raw_os_error() == Some(97)
}

fn bind_tcp(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog.min(i32::MAX as u32) as i32)?;
    Ok(TcpListener::from_std(socket.into()))
}

fn bind_unix(path: &Path, mode: Option<u32>) -> io::Result<UnixListener> {
    // A socket file that a crashed server left behind would be in the way.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    if let Some(mode) = mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(listener)
}

/// How accepting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepting {
    /// Nobody waits.
    Done,
    /// Somebody may still wait.
    Failed,
}

impl Listener {
    /// Has `registry` report connections as `token`.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => registry.register(listener, token, Interest::READABLE),
            Listener::Unix(listener) => registry.register(listener, token, Interest::READABLE),
        }
    }

    /// `tcp` or `unix`.
    pub fn kind(&self) -> &'static str {
        match self {
            Listener::Tcp(_) => "tcp",
            Listener::Unix(_) => "unix",
        }
    }

    /// Accepts all that wait and hands each to the thread with the fewest connections.
    pub fn accept_all(&self, server: &Server, stats: &crate::stats::ThreadStats) -> Accepting {
        loop {
            match self.accept() {
                Ok(accepted) => {
                    stats.connections.add(1);
                    welcome(server, stats, accepted);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Accepting::Done,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // Out of descriptors, mostly. No event tells when there are some again, so the cron tries.
                    warning!("Accepting client connection: {error}");
                    return Accepting::Failed;
                }
            }
        }
    }

    fn accept(&self) -> io::Result<Accepted> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                let local = stream.local_addr()?;
                Ok(Accepted {
                    stream: Stream::Tcp(stream),
                    peer: Endpoint::Inet(unmapped(peer)),
                    local: Endpoint::Inet(unmapped(local)),
                })
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                let path = listener.local_addr()?.as_pathname().map(|path| path.display().to_string());
                let end = Endpoint::Unix(path.unwrap_or_default());
                Ok(Accepted { stream: Stream::Unix(stream), peer: end.clone(), local: end })
            }
        }
    }
}

/// An IPv4 address that arrived over an IPv6 socket, as IPv4.
fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Lets a connection in or turns it away.
fn welcome(server: &Server, stats: &crate::stats::ThreadStats, mut accepted: Accepted) {
    let config = server.config.load();
    // Those that are on their way to their thread count, too.
    let n_connections =
        server.io_threads().iter().map(|peer| peer.n_connections.load(Ordering::Relaxed)).sum::<u32>();
    if n_connections >= config.maxclients {
        stats.refused.add(1);
        turn_away(&mut accepted.stream, b"-ERR max number of clients reached\r\n");
        return;
    }
    let is_stranger = matches!(accepted.peer, Endpoint::Inet(peer) if !peer.ip().is_loopback());
    if is_stranger && config.protected_mode && config.requirepass.is_none() {
        stats.refused.add(1);
        turn_away(&mut accepted.stream, DENIED);
        return;
    }
    set_options(&accepted.stream, config.tcp_keepalive);
    let fewest = server
        .io_threads()
        .iter()
        .min_by_key(|peer| peer.n_connections.load(Ordering::Relaxed))
        .expect("there is at least one I/O thread");
    fewest.n_connections.fetch_add(1, Ordering::Relaxed);
    verbose!("Accepted {}", accepted.peer);
    fewest.send(Mail::Serve(Box::new(accepted)));
}

/// Says why, as far as the socket takes it at once, and closes.
fn turn_away(stream: &mut Stream, why: &[u8]) {
    let _ = stream.write(why);
}

fn set_options(stream: &Stream, keepalive: Option<Duration>) {
    let Stream::Tcp(stream) = stream else { return };
    // A socket that cannot have these still works.
    let _ = stream.set_nodelay(true);
    if let Some(interval) = keepalive {
        let third = (interval / 3).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(interval).with_interval(third).with_retries(3);
        let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
    }
}
