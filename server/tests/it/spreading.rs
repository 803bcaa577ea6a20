//! Connections move between threads as the load requires. They lose nothing on the way, and no client
//! notices.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use crate::support::{
    Client, Reply, Resp, Server,
    crowd::{
        AtEnd, ask, await_clients, crowd, figure, move_connections, tell, until, while_connections_move,
    },
    encode,
};

const ALL: &str = "CONFIG SET io-threads-always-active yes";
const AS_NEEDED: &str = "CONFIG SET io-threads-always-active no";

/// Starts a server for whose load in these tests one thread would suffice.
fn server() -> Server {
    Server::start(&["--io-threads", "2", "--io-threads-always-active", "no"])
}

#[test]
fn connections_gather_on_one_thread_and_spread_again() {
    let server = server();
    let mut clients: Vec<Client> = (0..20).map(|_| server.connect()).collect();
    let mut observer = server.connect();
    until("one thread does", || figure(&mut observer, "io_threads_in_use") == 1);
    let mut n_moved = 0;
    for (setting, n_in_use) in [(ALL, 2), (AS_NEEDED, 1), (ALL, 2), (AS_NEEDED, 1)] {
        assert_eq!(ask(&mut observer, setting), "+OK");
        until(&format!("half of the connections have moved after {setting}"), || {
            figure(&mut observer, "io_threads_in_use") == n_in_use
                && figure(&mut observer, "connections_handed_over") >= n_moved + 10
        });
        n_moved = figure(&mut observer, "connections_handed_over");
        assert!(clients.iter_mut().all(|client| ask(client, "PING") == "+PONG"));
    }
}

/// Repeats the work of two clients: whole and cut requests, transactions, waiting. Returns the count of the
/// first one.
fn work(id: usize, client: &mut Client, other: &mut Client, is_over: &AtomicBool) -> i64 {
    let (own, list) = (format!("own:{id}"), format!("list:{id}"));
    let mut n = 0;
    while !is_over.load(Ordering::Relaxed) {
        // Many in a pipeline, the last one cut in two. The part that was read moves with the connection.
        let mut request = Vec::new();
        (0..20).for_each(|_| encode(&["INCR", &own], &mut request));
        let (begin, end) = request.split_at(request.len() - 7);
        client.send_raw(begin);
        for nth in 1..20 {
            assert_eq!(client.receive(), Reply::Integer(n + nth));
        }
        assert_eq!(ask(other, &format!("GET {own}")), format!("\"{}\"", n + 19));
        client.send_raw(end);
        n += 20;
        assert_eq!(client.receive(), Reply::Integer(n));
        // Watched keys and queued commands move, too.
        tell(client, &format!("WATCH {own}"));
        tell(client, "MULTI");
        tell(client, &format!("INCR {own}"));
        let replies: Vec<String> = (0..3).map(|_| client.receive().to_string()).collect();
        assert_eq!(replies, ["+OK", "+OK", "+QUEUED"]);
        let is_disturbed = n % 2 == 0;
        if is_disturbed {
            assert_eq!(ask(other, &format!("INCR {own}")), format!(":{}", n + 1));
        }
        let executed = if is_disturbed { "(nil-array)".to_owned() } else { format!("[:{}]", n + 1) };
        assert_eq!(ask(client, "EXEC"), executed);
        n += 1;
        // A waiting client stays, and continues from there.
        tell(client, &format!("BLPOP {list} 0"));
        assert_eq!(ask(other, &format!("RPUSH {list} a")), ":1");
        assert_eq!(client.receive().to_string(), format!("[\"{list}\" \"a\"]"));
    }
    n
}

#[test]
fn what_is_under_way_goes_on_where_connections_move() {
    const N_CLIENTS: usize = 8;
    let server = server();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _over = AtEnd(&is_over);
            let mut observer = server.connect();
            while figure(&mut observer, "connections_handed_over") < 100 {
                move_connections(&mut observer, 2, || false);
            }
        });
        let counts = crowd(&server, N_CLIENTS, |id, client| {
            let mut other = server.connect();
            work(id, client, &mut other, &is_over)
        });
        let mut observer = server.connect();
        for (id, n) in counts.into_iter().enumerate() {
            assert_eq!(ask(&mut observer, &format!("GET own:{id}")), format!("\"{n}\""));
        }
    });
}

#[test]
fn killed_clients_are_closed_wherever_they_are() {
    let server = server();
    let mut observer = server.connect();
    for _ in 0..6 {
        let mut clients: Vec<Client> = (0..30).map(|_| server.connect()).collect();
        let ids: Vec<String> = clients.iter_mut().map(|client| ask(client, "CLIENT ID")).collect();
        assert_eq!(ask(&mut observer, AS_NEEDED), "+OK");
        // While some move, all are killed. Then moves end: one would close a killed client that was
        // overlooked.
        move_connections(&mut observer, 2, || false);
        assert_eq!(ask(&mut observer, ALL), "+OK");
        for id in ids {
            assert_eq!(ask(&mut observer, &format!("CLIENT KILL ID {}", &id[1..])), ":1");
        }
        for client in &mut clients {
            assert_eq!(client.await_close().expect("the server closes it"), None);
        }
        await_clients(&mut observer, 1);
    }
}

/// An invalidation that is redirected to a moving client waits for it on the new thread.
#[test]
fn a_client_on_the_move_hears_of_all_changes_that_are_redirected_to_it() {
    const N_TARGETS: usize = 16;
    let server = server();
    let mut targets: Vec<Client> = (0..N_TARGETS).map(|_| server.connect()).collect();
    let mut trackers: Vec<Client> = (0..N_TARGETS).map(|_| server.connect()).collect();
    for (target, tracker) in targets.iter_mut().zip(&mut trackers) {
        target.hello(Resp::Three).expect("the server speaks RESP3");
        tracker.hello(Resp::Three).expect("the server speaks RESP3");
        let id = target.id().expect("HELLO tells it");
        assert_eq!(ask(tracker, &format!("CLIENT TRACKING ON REDIRECT {id}")), "+OK");
    }
    let (mut control, mut writer) = (server.connect(), server.connect());
    while_connections_move(&server, 2, || {
        while figure(&mut control, "connections_handed_over") < 600 {
            trackers.iter_mut().for_each(|tracker| drop(ask(tracker, "GET k")));
            assert_eq!(ask(&mut writer, "SET k v"), "+OK");
            for target in &mut targets {
                assert_eq!(target.receive().to_string(), ">[\"invalidate\" [\"k\"]]");
            }
        }
    });
}
