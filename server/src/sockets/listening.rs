//! Listening sockets.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use mio::{
    Interest, Registry, Token,
    net::{TcpListener, UnixListener},
};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::{
    client::id::Endpoint,
    config::{BindAddress, BindHost, Config},
    sockets::stream::{Accepted, Speaks, Stream},
    warning, warning_seldom,
};

/// The number of connections that are accepted in one turn of the loop. Hundreds may arrive at once, and
/// other connections wait for the thread.
const ACCEPTED_AT_A_TIME: usize = 64;

/// A socket that accepts connections.
pub enum Listener {
    /// TCP, with the requested address, and the protocol spoken there.
    Tcp(ListenAddress, TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

/// The sockets on which the server listens. One thread accepts connections; CONFIG SET may come on any
/// thread.
pub struct Listening {
    /// The listeners, by the number from which their tokens are counted.
    sockets: Mutex<Vec<(usize, Listener)>>,
    /// The registry of the accepting thread.
    registry: Registry,
    last_id: AtomicUsize,
}

/// An address, and the protocol spoken there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    address: SocketAddr,
    speaks: Speaks,
}

/// A place to listen at.
struct Wanted {
    place: ListenAddress,
    /// Whether the place is skipped if this host does not have it.
    optional: bool,
}

/// Checks that the configuration names a place to listen at.
///
/// If that is a Unix socket, it must be possible there. Binds nothing.
///
/// # Errors
/// The reason against it, in words for the log.
pub fn check(config: &Config) -> Result<(), String> {
    let Some(path) = &config.unixsocket else {
        let has_port = (config.port, config.tls_port) != (0, 0) && !config.bind.is_empty();
        return if has_port { Ok(()) } else { Err("Configured to not listen anywhere, exiting.".to_owned()) };
    };
    SockAddr::unix(path).map_err(|error| not_opened(path, &error))?;
    let place = config.dir.join(path);
    // A link is removed before the socket is bound.
    if place.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return Err(not_opened(path, &io::ErrorKind::IsADirectory.into()));
    }
    if let Some(group) = &config.unixsocketgroup {
        group_of(group).map_err(|error| not_opened(path, &error))?;
    }
    // With a dot at the end, anything but a folder is an error.
    let folder = place.with_file_name(".");
    folder.metadata().map(drop).map_err(|error| not_opened(path, &error))
}

/// Binds all places of a [checked](check) configuration. Port 0 means that there is no TCP.
///
/// # Errors
/// The place that could not be bound, in words for the log.
pub fn bind_all(config: &Config) -> Result<Vec<Listener>, String> {
    let mut listeners = bind_each(&wanted(config)?, config)?;
    for (port, speaks, name) in [(config.port, Speaks::Plain, "TCP"), (config.tls_port, Speaks::Tls, "TLS")] {
        let is_of =
            |listener: &Listener| matches!(listener, Listener::Tcp(place, _) if place.speaks == speaks);
        if port != 0 && !config.bind.is_empty() && !listeners.iter().any(is_of) {
            return Err(format!("Failed listening on port {port} ({name}), aborting."));
        }
    }
    if let Some(path) = &config.unixsocket {
        let listener = bind_unix(path, config).map_err(|error| not_opened(path, &error))?;
        listeners.push(Listener::Unix(listener));
    }
    Ok(listeners)
}

fn not_opened(path: &Path, error: &io::Error) -> String {
    format!("Failed opening Unix socket {}: {error}", path.display())
}

/// The configured places for TCP.
fn wanted(config: &Config) -> Result<Vec<Wanted>, String> {
    let ports = [(config.port, Speaks::Plain), (config.tls_port, Speaks::Tls)];
    let ports = ports.into_iter().filter(|&(port, _)| port != 0);
    let wanted = ports.flat_map(|(port, speaks)| wanted_at(&config.bind, port, speaks));
    wanted.filter_map(Result::transpose).collect()
}

/// The places of a port. An optional place that is missing counts as none.
fn wanted_at(
    hosts: &[BindAddress],
    port: u16,
    speaks: Speaks,
) -> impl Iterator<Item = Result<Option<Wanted>, String>> {
    hosts.iter().map(move |bind| match address_of(&bind.host, port) {
        Ok(address) => Ok(Some(Wanted { place: ListenAddress { address, speaks }, optional: bind.optional })),
        Err(error) if bind.optional && is_not_available(&error) => Ok(None),
        Err(error) => Err(not_bound(&bind.host, port, &error)),
    })
}

/// Binds a separate port, where no clients are served.
///
/// # Errors
/// The place that could not be bound, in words for the log.
pub fn bind_apart(hosts: &[BindAddress], port: u16, config: &Config) -> Result<Vec<TcpListener>, String> {
    let places = wanted_at(hosts, port, Speaks::Plain).collect::<Result<Vec<_>, _>>()?;
    let places: Vec<Wanted> = places.into_iter().flatten().collect();
    let sockets = bind_each(&places, config)?.into_iter().filter_map(|listener| match listener {
        Listener::Tcp(_, socket) => Some(socket),
        Listener::Unix(_) => None,
    });
    Ok(sockets.collect())
}

fn not_bound(host: impl std::fmt::Debug, port: u16, error: &io::Error) -> String {
    format!("Could not create server TCP listening socket {host:?}:{port}: {error}")
}

fn bind_each<'a>(
    wanted: impl IntoIterator<Item = &'a Wanted>,
    config: &Config,
) -> Result<Vec<Listener>, String> {
    let bound = wanted.into_iter().map(|&Wanted { place, optional }| {
        let address = place.address;
        match bind_tcp(address, config.tcp_backlog) {
            Ok(listener) => Ok(Some(Listener::Tcp(place, listener))),
            // As in Redis, an address that this host does not have is skipped where the configuration says
            // `-`.
            Err(error) if optional && is_not_available(&error) => Ok(None),
            Err(error) => Err(not_bound(address.ip(), address.port(), &error)),
        }
    });
    bound.filter_map(Result::transpose).collect()
}

impl Listening {
    /// The highest token. Each socket has its own token, counted down from this one.
    const FIRST_TOKEN: usize = usize::MAX - 1;

    /// Listens on sockets, whose connections `registry` will report.
    ///
    /// # Errors
    /// If a socket cannot be registered.
    pub fn new(registry: Registry, listeners: Vec<Listener>) -> io::Result<Self> {
        let listening = Self { sockets: Mutex::new(Vec::new()), registry, last_id: AtomicUsize::new(0) };
        listening.add(&mut listening.lock(), listeners)?;
        Ok(listening)
    }

    /// Whether a token belongs to a listening socket. Connections have small numbers.
    #[inline]
    pub fn owns(token: Token) -> bool {
        token.0 > usize::MAX / 2
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(usize, Listener)>> {
        self.sockets.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn add(&self, sockets: &mut Vec<(usize, Listener)>, listeners: Vec<Listener>) -> io::Result<()> {
        for mut listener in listeners {
            let id = self.last_id.fetch_add(1, Ordering::Relaxed);
            listener.register(&self.registry, Token(Self::FIRST_TOKEN - id))?;
            sockets.push((id, listener));
        }
        Ok(())
    }

    /// Accepts a turn's share of the connections that wait at a token's socket. It may have been closed
    /// meanwhile.
    ///
    /// Returns whether more may wait.
    pub fn accept(&self, token: Token, welcome: impl FnMut(Accepted)) -> bool {
        let sockets = self.lock();
        let listener = sockets.iter().find(|(id, _)| Self::FIRST_TOKEN - id == token.0);
        listener.is_some_and(|(_, listener)| listener.accept_some(welcome))
    }

    /// The tokens of all sockets. Connections that found no free descriptor wait without another event.
    pub fn tokens(&self) -> Vec<Token> {
        self.lock().iter().map(|(id, _)| Token(Self::FIRST_TOKEN - id)).collect()
    }

    /// Describes the sockets of a kind, as INFO does; none if there are none.
    pub fn shown(&self, kind: &str) -> Option<String> {
        let sockets = self.lock();
        let of_kind =
            || sockets.iter().map(|(_, listener)| listener).filter(|listener| listener.kind() == kind);
        let port = of_kind().next()?.place().map(|place| place.address.port());
        let binds: String = of_kind().map(|listener| format!(",bind={}", listener.address())).collect();
        Some(format!("name={kind}{binds}{}", port.map_or(String::new(), |port| format!(",port={port}"))))
    }

    /// Listens for TCP at the configured places, and nowhere else. Sockets that stay are not touched.
    ///
    /// If a place cannot be bound, the server listens at its previous places.
    ///
    /// # Errors
    /// The place that could not be bound, in words for the log.
    pub fn change(&self, config: &Config) -> Result<(), String> {
        let wanted = wanted(config)?;
        let mut sockets = self.lock();
        let has = |sockets: &[(usize, Listener)], place| {
            sockets.iter().any(|(_, listener)| listener.place() == Some(place))
        };
        let new: Vec<&Wanted> = wanted.iter().filter(|wanted| !has(&sockets, wanted.place)).collect();
        let stays = |listener: &Listener| {
            listener.place().is_none_or(|place| wanted.iter().any(|wanted| wanted.place == place))
        };
        let bind = || bind_each(new.iter().copied(), config);
        let bound = bind().or_else(|error| {
            // A leaving socket may block a new one: one address is part of the address of all interfaces.
            let is_in_the_way = |(_, listener): &(usize, Listener)| {
                !stays(listener)
                    && listener.place().is_some_and(|place| {
                        new.iter().any(|wanted| wanted.place.address.port() == place.address.port())
                    })
            };
            if !sockets.iter().any(is_in_the_way) {
                return Err(error);
            }
            let gone: Vec<_> = sockets.extract_if(.., |(_, listener)| !stays(listener)).collect();
            let left = gone.iter().filter_map(|(_, listener)| listener.place());
            let left: Vec<Wanted> = left.map(|place| Wanted { place, optional: false }).collect();
            drop(gone);
            bind().inspect_err(|_| self.restore(&mut sockets, &left, config))
        })?;
        sockets.retain(|(_, listener)| stays(listener));
        self.add(&mut sockets, bound).map_err(|error| format!("Registering a listening socket: {error}"))
    }

    /// Listens again at places that have been closed.
    fn restore(&self, sockets: &mut Vec<(usize, Listener)>, left: &[Wanted], config: &Config) {
        let restored = bind_each(left, config)
            .and_then(|listeners| self.add(sockets, listeners).map_err(|error| error.to_string()));
        if let Err(error) = restored {
            warning!("The server does not listen any more where it did: {error}");
        }
    }
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

/// Binds a Unix socket. No client can connect before it listens, and by then the file has its configured
/// group and mode.
fn bind_unix(path: &Path, config: &Config) -> io::Result<UnixListener> {
    // A socket file that a crashed server left would prevent the bind.
    let _ = std::fs::remove_file(path);
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    if let Some(group) = &config.unixsocketgroup {
        std::os::unix::fs::chown(path, None, Some(group_of(group)?))?;
    }
    if let Some(mode) = config.unixsocketperm {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    socket.listen(config.tcp_backlog.min(i32::MAX as u32) as i32)?;
    Ok(UnixListener::from_std(socket.into()))
}

/// Returns the number of a group of users.
fn group_of(name: &[u8]) -> io::Result<u32> {
    let shown = String::from_utf8_lossy(name);
    let no_such = || io::Error::new(io::ErrorKind::NotFound, format!("there is no group '{shown}'"));
    let group = nix::unistd::Group::from_name(&shown).map_err(io::Error::from)?;
    group.map(|group| group.gid.as_raw()).ok_or_else(no_such)
}

impl Listener {
    /// Makes `registry` report connections as `token`.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Listener::Tcp(_, listener) => registry.register(listener, token, Interest::READABLE),
            Listener::Unix(listener) => registry.register(listener, token, Interest::READABLE),
        }
    }

    /// The address without the port, or the path.
    fn address(&self) -> String {
        match self {
            Listener::Tcp(place, _) => place.address.ip().to_string(),
            Listener::Unix(listener) => {
                let address = listener.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                path.map(|path| path.display().to_string()).unwrap_or_default()
            }
        }
    }

    /// `tcp`, `tls` or `unix`.
    pub fn kind(&self) -> &'static str {
        match self {
            Listener::Tcp(ListenAddress { speaks: Speaks::Plain, .. }, _) => "tcp",
            Listener::Tcp(ListenAddress { speaks: Speaks::Tls, .. }, _) => "tls",
            Listener::Unix(_) => "unix",
        }
    }

    /// The place where it listens for TCP.
    fn place(&self) -> Option<ListenAddress> {
        match self {
            Listener::Tcp(place, _) => Some(*place),
            Listener::Unix(_) => None,
        }
    }

    /// Accepts a turn's share of waiting connections. Returns whether the share was used up.
    fn accept_some(&self, mut welcome: impl FnMut(Accepted)) -> bool {
        for _ in 0..ACCEPTED_AT_A_TIME {
            match self.accept() {
                Ok(accepted) => welcome(accepted),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // Usually the process is out of descriptors. No event reports free ones, so the cron
                    // tries again.
                    warning_seldom!("Accepting client connection: {error}");
                    return false;
                }
            }
        }
        true
    }

    fn accept(&self) -> io::Result<Accepted> {
        match self {
            Listener::Tcp(place, listener) => {
                let (stream, peer) = listener.accept()?;
                let local = stream.local_addr()?;
                Ok(Accepted {
                    stream: Stream::Tcp(stream),
                    speaks: place.speaks,
                    peer: Endpoint::Inet(unmapped(peer)),
                    local: Endpoint::Inet(unmapped(local)),
                })
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                let path = listener.local_addr()?.as_pathname().map(|path| path.display().to_string());
                let end = Endpoint::Unix(path.unwrap_or_default());
                let speaks = Speaks::Plain;
                Ok(Accepted { stream: Stream::Unix(stream), speaks, peer: end.clone(), local: end })
            }
        }
    }
}

/// An IPv4 address that arrived over an IPv6 socket, as IPv4.
fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
