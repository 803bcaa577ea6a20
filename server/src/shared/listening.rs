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
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    client::{
        id::Endpoint,
        stream::{Accepted, Stream},
    },
    config::{BindHost, Config},
    warning,
};

/// A socket that accepts connections.
pub enum Listener {
    /// TCP, and the address that it was asked for.
    Tcp(SocketAddr, TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

/// The sockets on which the server listens. One thread hears of connections; CONFIG SET may come on any.
pub struct Listening {
    /// By what their tokens count from.
    sockets: Mutex<Vec<(usize, Listener)>>,
    /// That thread's.
    registry: Registry,
    last_id: AtomicUsize,
}

/// An address to listen on.
struct Wanted {
    address: SocketAddr,
    /// It is done without if this host does not have it.
    optional: bool,
}

/// Binds everything that the configuration names. Port 0 means that there is no TCP.
///
/// # Errors
/// What could not be bound, in words for the log.
pub fn bind_all(config: &Config) -> Result<Vec<Listener>, String> {
    let mut listeners = bind_each(&wanted(config)?, config)?;
    if listeners.is_empty() && config.port != 0 && !config.bind.is_empty() {
        return Err(format!("Failed listening on port {} (TCP), aborting.", config.port));
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

/// Where the configuration says to listen for TCP.
fn wanted(config: &Config) -> Result<Vec<Wanted>, String> {
    let hosts = config.bind.iter().filter(|_| config.port != 0);
    let wanted = hosts.map(|bind| match address_of(&bind.host, config.port) {
        Ok(address) => Ok(Some(Wanted { address, optional: bind.optional })),
        Err(error) if bind.optional && is_not_available(&error) => Ok(None),
        Err(error) => Err(not_bound(&bind.host, config.port, &error)),
    });
    wanted.filter_map(Result::transpose).collect()
}

fn not_bound(host: impl std::fmt::Debug, port: u16, error: &io::Error) -> String {
    format!("Could not create server TCP listening socket {host:?}:{port}: {error}")
}

fn bind_each<'a>(
    wanted: impl IntoIterator<Item = &'a Wanted>,
    config: &Config,
) -> Result<Vec<Listener>, String> {
    let bound = wanted.into_iter().map(|&Wanted { address, optional }| {
        match bind_tcp(address, config.tcp_backlog) {
            Ok(listener) => Ok(Some(Listener::Tcp(address, listener))),
            // As Redis: an address this host does not have is skipped where the configuration says `-`.
            Err(error) if optional && is_not_available(&error) => Ok(None),
            Err(error) => Err(not_bound(address.ip(), address.port(), &error)),
        }
    });
    bound.filter_map(Result::transpose).collect()
}

impl Listening {
    /// The highest number of a token: each socket has one of its own, counted down from it.
    const FIRST_TOKEN: usize = usize::MAX - 1;

    /// Listens on sockets, whose connections `registry` is to report.
    ///
    /// # Errors
    /// If a socket cannot be registered.
    pub fn new(registry: Registry, listeners: Vec<Listener>) -> io::Result<Self> {
        let listening = Self { sockets: Mutex::new(Vec::new()), registry, last_id: AtomicUsize::new(0) };
        listening.add(&mut listening.lock(), listeners)?;
        Ok(listening)
    }

    /// Whether a token is that of a listening socket. Connections have small numbers.
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

    /// Accepts what waits at the socket of a token, which may have been closed meanwhile.
    pub fn accept(&self, token: Token, welcome: impl FnMut(Accepted)) {
        let sockets = self.lock();
        if let Some((_, listener)) = sockets.iter().find(|(id, _)| Self::FIRST_TOKEN - id == token.0) {
            listener.accept_all(welcome);
        }
    }

    /// Accepts what waits at any socket: connections that found no descriptor free wait without another event.
    pub fn accept_everywhere(&self, mut welcome: impl FnMut(Accepted)) {
        self.lock().iter().for_each(|(_, listener)| listener.accept_all(&mut welcome));
    }

    /// Listens for TCP where a configuration says, and nowhere else. Sockets that stay are not touched. If anything cannot be
    /// bound, it listens where it did before.
    ///
    /// # Errors
    /// What could not be bound, in words for the log.
    pub fn change(&self, config: &Config) -> Result<(), String> {
        let wanted = wanted(config)?;
        let mut sockets = self.lock();
        let has = |sockets: &[(usize, Listener)], address| {
            sockets.iter().any(|(_, listener)| listener.address() == Some(address))
        };
        let new: Vec<&Wanted> = wanted.iter().filter(|wanted| !has(&sockets, wanted.address)).collect();
        let stays = |listener: &Listener| {
            listener.address().is_none_or(|address| wanted.iter().any(|wanted| wanted.address == address))
        };
        let bind = || bind_each(new.iter().copied(), config);
        let bound = bind().or_else(|error| {
            // One that goes may be in the way of one that comes: an address is in that of all addresses.
            let is_in_the_way = |(_, listener): &(usize, Listener)| {
                !stays(listener)
                    && listener.address().is_some_and(|address| {
                        new.iter().any(|wanted| wanted.address.port() == address.port())
                    })
            };
            if !sockets.iter().any(is_in_the_way) {
                return Err(error);
            }
            let gone: Vec<_> = sockets.extract_if(.., |(_, listener)| !stays(listener)).collect();
            let left = gone.iter().filter_map(|(_, listener)| listener.address());
            let left: Vec<Wanted> = left.map(|address| Wanted { address, optional: false }).collect();
            drop(gone);
            bind().inspect_err(|_| self.restore(&mut sockets, &left, config))
        })?;
        sockets.retain(|(_, listener)| stays(listener));
        self.add(&mut sockets, bound).map_err(|error| format!("Registering a listening socket: {error}"))
    }

    /// Listens again where sockets have been closed.
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

fn bind_unix(path: &Path, mode: Option<u32>) -> io::Result<UnixListener> {
    // A socket file that a crashed server left behind would be in the way.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    if let Some(mode) = mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(listener)
}

impl Listener {
    /// Has `registry` report connections as `token`.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Listener::Tcp(_, listener) => registry.register(listener, token, Interest::READABLE),
            Listener::Unix(listener) => registry.register(listener, token, Interest::READABLE),
        }
    }

    /// `tcp` or `unix`.
    pub fn kind(&self) -> &'static str {
        match self {
            Listener::Tcp(..) => "tcp",
            Listener::Unix(_) => "unix",
        }
    }

    /// The address of TCP.
    fn address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(address, _) => Some(*address),
            Listener::Unix(_) => None,
        }
    }

    /// Accepts all that wait.
    fn accept_all(&self, mut welcome: impl FnMut(Accepted)) {
        loop {
            match self.accept() {
                Ok(accepted) => welcome(accepted),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // Out of descriptors, mostly. No event tells when there are some again, so the cron tries.
                    warning!("Accepting client connection: {error}");
                    return;
                }
            }
        }
    }

    fn accept(&self) -> io::Result<Accepted> {
        match self {
            Listener::Tcp(_, listener) => {
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
