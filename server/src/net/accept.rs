//! The choice of a thread for an accepted connection.

use std::{
    io::Write,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};

use crate::{
    shared::{mail::Mail, server::Server},
    sockets::{
        stream::{Accepted, Speaks, Stream},
        tls::TlsStream,
    },
    telemetry::stats::ThreadStats,
    verbose, warning_seldom,
};

/// The reply of Redis to a remote client of an unprotected server.
pub(super) const DENIED: &[u8] = b"-DENIED Braid is running in protected mode because protected mode is enabled and no password is \
set for the default user. In this mode connections are only accepted from the loopback interface. If you want to connect \
from external computers to Braid you may adopt one of the following solutions: 1) Just disable protected mode sending the \
command 'CONFIG SET protected-mode no' from the loopback interface by connecting to Braid from the same host the server is \
running, however MAKE SURE Braid is not publicly accessible from internet if you do so. Use CONFIG REWRITE to make this \
change permanent. 2) Alternatively you can just disable the protected mode by editing the configuration file, and setting \
the protected mode option to 'no', and then restarting the server. 3) If you started the server manually just for testing, \
restart it with the '--protected-mode no' option. 4) Set up an authentication password for the default user. NOTE: You \
only need to do one of the above things in order for the server to start accepting connections from the outside.\r\n";

/// Accepts a connection or turns it away. It goes to the thread in use with the fewest connections.
pub fn welcome(server: &Server, stats: &ThreadStats, mut accepted: Accepted) {
    let config = server.config.load();
    // Connections on their way to their thread count, too.
    let n_connections = server.io_threads().iter().map(|peer| peer.n_connections()).sum::<u32>();
    if n_connections >= config.maxclients {
        stats.refused.add(1);
        if accepted.speaks == Speaks::Plain {
            turn_away(&mut accepted.stream, b"-ERR max number of clients reached\r\n");
        }
        return;
    }
    // Over TLS nothing is sent before the handshake.
    if accepted.speaks == Speaks::Plain && server.turns_away(&accepted.peer) {
        stats.refused.add(1);
        turn_away(&mut accepted.stream, DENIED);
        return;
    }
    set_options(&accepted.stream, config.tcp_keepalive);
    if accepted.speaks == Speaks::Tls {
        match begin_tls(server, accepted.stream) {
            Some(stream) => accepted.stream = stream,
            None => return,
        }
    }
    let fewest = &server.threads[server.thread_for_another()];
    fewest.n_connections.fetch_add(1, Ordering::Relaxed);
    verbose!("Accepted {}", accepted.peer);
    fewest.send(Mail::Serve(Box::new(accepted)));
}

/// Sends the reason, as far as the socket takes it at once, and closes.
///
/// Over TLS nothing is sent, because there has been no handshake.
fn turn_away(stream: &mut Stream, why: &[u8]) {
    let _ = match stream {
        Stream::Tcp(stream) => stream.write(why),
        Stream::Unix(stream) => stream.write(why),
        _ => return,
    };
}

/// Makes a socket speak TLS.
fn begin_tls(server: &Server, stream: Stream) -> Option<Stream> {
    let Stream::Tcp(socket) = stream else { return None };
    // None if CONFIG SET has just turned it off.
    let rules = Arc::clone(&server.tls.load().as_ref()?.rules);
    match TlsStream::new(socket, rules) {
        Ok(stream) => Some(Stream::Tls(Box::new(stream))),
        Err(error) => {
            warning_seldom!("Beginning a TLS session: {error}");
            None
        }
    }
}

fn set_options(stream: &Stream, keepalive: Option<Duration>) {
    let Stream::Tcp(stream) = stream else { return };
    // A socket without these options still works.
    let _ = stream.set_nodelay(true);
    if let Some(interval) = keepalive {
        let third = (interval / 3).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(interval).with_interval(third).with_retries(3);
        let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
    }
}
