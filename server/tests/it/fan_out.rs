//! Many messages to many subscribers: the backlog stays bounded, and other clients are served meanwhile. A
//! closed subscriber takes no message from the others.

use std::thread;

use crate::support::{
    Client, Reply, Server,
    crowd::{ask, await_clients, figure, tell, until},
    encode,
};

/// Connects a client that is subscribed to some channels.
fn subscriber(server: &Server, channels: &[&str]) -> Client {
    let mut client = server.connect();
    client.send(&[&["SUBSCRIBE"], channels].concat());
    channels.iter().for_each(|_| drop(client.receive()));
    client
}

/// Receives the payload of the next message.
fn payload(client: &mut Client) -> String {
    let (Reply::Array(parts) | Reply::Push(parts)) = client.receive() else { panic!("no message") };
    assert_eq!(parts[0].text().as_deref(), Some("message"));
    parts[2].text().expect("a payload is text")
}

/// Publishes in one transaction, so that all messages wait for delivery at once.
fn publish_at_once(client: &mut Client, messages: impl Iterator<Item = (&'static str, String)>) -> Vec<i64> {
    let mut request = Vec::new();
    encode(&["MULTI"], &mut request);
    let mut n_messages = 0;
    for (channel, message) in messages {
        encode(&["PUBLISH", channel, &message], &mut request);
        n_messages += 1;
    }
    encode(&["EXEC"], &mut request);
    client.send_raw(&request);
    (0..=n_messages).for_each(|_| assert!(matches!(client.receive(), Reply::Status(_))));
    let Reply::Array(counts) = client.receive() else { panic!("EXEC answers an array") };
    counts.iter().map(|count| count.integer().expect("a count")).collect()
}

/// Makes a message of a hundred bytes.
fn numbered(n: usize) -> String {
    format!("{n:0100}")
}

/// A connection used to be closed in the middle of a message. That read the next messages, one level deeper
/// for each connection.
#[test]
fn closing_thousands_of_subscribers_at_once_neither_overflows_the_stack_nor_disturbs_others() {
    const N_CLOSED: usize = 2000;
    const N_MESSAGES: usize = 3000;
    let limit = ["--client-output-buffer-limit", "pubsub 64kb 0 0"];
    let server = Server::start(&[&["--io-threads", "1"], &limit[..]].concat());
    let mut readers: Vec<Client> = (0..3).map(|_| subscriber(&server, &["c"])).collect();
    let mut closed: Vec<Client> = (0..N_CLOSED).map(|_| subscriber(&server, &["c", "large"])).collect();
    let large = "x".repeat(100_000);
    let mut publisher = server.connect();
    let messages = (0..N_MESSAGES).flat_map(|n| {
        let too_much = (n == 300).then(|| ("large", large.clone()));
        too_much.into_iter().chain([("c", numbered(n))])
    });
    let receiving = thread::scope(|scope| {
        let receiving: Vec<_> = readers
            .iter_mut()
            .map(|reader| scope.spawn(move || (0..N_MESSAGES).all(|n| payload(reader) == numbered(n))))
            .collect();
        publish_at_once(&mut publisher, messages);
        receiving.into_iter().map(|thread| thread.join().expect("all messages come")).collect::<Vec<bool>>()
    });
    assert_eq!(receiving, [true; 3], "in order");
    await_clients(&mut publisher, 4);
    // It receives the messages from before it had too large a backlog, and nothing later.
    let mut n_received = 0;
    while closed[0].try_receive().is_ok() {
        n_received += 1;
    }
    assert!(n_received <= 301, "{n_received} messages");
    assert_eq!(ask(&mut publisher, "PUBLISH c end"), ":3");
    readers.iter_mut().for_each(|reader| assert_eq!(payload(reader), "end"));
}

#[test]
fn a_stranger_is_served_while_messages_wait_to_be_given_out() {
    const N_MESSAGES: usize = 30_000;
    let limit = ["--client-output-buffer-limit", "pubsub 0 0 0"];
    let server = Server::start(&[&["--io-threads", "1"], &limit[..]].concat());
    let mut subscribers: Vec<Client> = (0..50).map(|_| subscriber(&server, &["c"])).collect();
    let mut stranger = server.connect();
    let mut n_rounds = 0;
    let mut has_waited = false;
    // All messages may have been delivered between two checks of the stranger. Then more are sent.
    while !has_waited {
        n_rounds += 1;
        assert!(n_rounds < 20, "no stranger is answered while something waits");
        has_waited = thread::scope(|scope| {
            let publishing = scope.spawn(|| {
                publish_at_once(&mut server.connect(), (0..N_MESSAGES).map(|n| ("c", numbered(n))));
            });
            loop {
                let is_over = publishing.is_finished();
                let has_waited = figure(&mut stranger, "mem_notifications") > 0;
                if is_over || has_waited {
                    break has_waited;
                }
            }
        });
    }
    for subscriber in &mut subscribers[..2] {
        for n in (0..n_rounds).flat_map(|_| 0..N_MESSAGES) {
            assert_eq!(payload(subscriber), numbered(n));
        }
    }
    until("all is given out", || figure(&mut stranger, "mem_notifications") == 0);
}

/// Sends publications in one piece, and reads their replies.
fn publish_in_a_row(client: &mut Client, n_messages: usize) {
    let mut request = Vec::new();
    (0..n_messages).for_each(|n| encode(&["PUBLISH", "c", &numbered(n)], &mut request));
    client.send_raw(&request);
    (0..n_messages).for_each(|_| assert!(client.receive().integer().is_some()));
}

#[test]
fn publishing_takes_the_pace_of_giving_out() {
    const N_MESSAGES: usize = 40_000;
    const N_SUBSCRIBERS: usize = 60;
    // A queue holds this much and one more message for each publisher: the command that fills it is not cut.
    const MOST_BYTES: usize = (1 << 20) + (1 << 16);
    for n_threads in [1, 2] {
        let limit = ["--client-output-buffer-limit", "pubsub 0 0 0", "--io-threads-always-active", "yes"];
        let server = Server::start(&[&["--io-threads", &n_threads.to_string()], &limit[..]].concat());
        let mut subscribers: Vec<Client> = (0..N_SUBSCRIBERS).map(|_| subscriber(&server, &["c"])).collect();
        let mut stranger = server.connect();
        // A publisher may be a subscriber, too.
        let mut publishers = [server.connect(), server.connect()];
        let mut n_rounds = 0;
        let mut most = 0;
        // All messages may have been delivered between two checks of the stranger. Then more are sent.
        while most == 0 {
            n_rounds += 1;
            assert!(n_rounds < 20, "something waits");
            thread::scope(|scope| {
                let publishing: Vec<_> = publishers
                    .iter_mut()
                    .map(|client| scope.spawn(|| publish_in_a_row(client, N_MESSAGES)))
                    .collect();
                while publishing.iter().any(|thread| !thread.is_finished()) {
                    most = most.max(figure(&mut stranger, "mem_notifications"));
                }
            });
        }
        assert!(most <= n_threads * MOST_BYTES, "{most} bytes have waited");
        let subscriber = &mut subscribers[N_SUBSCRIBERS - 1];
        for _ in 0..n_rounds {
            let mut next = [0; 2];
            for _ in 0..2 * N_MESSAGES {
                let n: usize = payload(subscriber).parse().expect("a number");
                let of =
                    next.iter().position(|&next| next == n).unwrap_or_else(|| panic!("{n} after {next:?}"));
                next[of] += 1;
            }
        }
    }
}

/// Writes in one piece, and reads the replies.
fn write_in_a_row(client: &mut Client, n_writes: usize) {
    let mut request = Vec::new();
    (0..n_writes).for_each(|n| encode(&["SET", &format!("key{}", n % 100), &numbered(n)], &mut request));
    client.send_raw(&request);
    (0..n_writes).for_each(|_| assert_eq!(client.receive().to_string(), "+OK"));
}

/// Lets two clients write while others listen. The listeners' backlog must be counted, and stay bounded.
fn assert_writing_takes_the_pace_of_listeners(listen: impl Fn(&mut Client)) {
    const N_WRITES: usize = 20_000;
    const N_LISTENERS: usize = 60;
    // The same bound as for published messages.
    const MOST_BYTES: usize = (1 << 20) + (1 << 16);
    for n_threads in [1, 2] {
        let threads = n_threads.to_string();
        let server = Server::start(&["--io-threads", &threads, "--io-threads-always-active", "yes"]);
        let mut stranger = server.connect();
        let mut listeners: Vec<Client> = (0..N_LISTENERS).map(|_| server.connect()).collect();
        listeners.iter_mut().for_each(&listen);
        let mut writers = [server.connect(), server.connect()];
        let (mut n_rounds, mut most) = (0, 0);
        // All lines may have been delivered between two checks of the stranger. Then more are written.
        while most == 0 {
            n_rounds += 1;
            assert!(n_rounds < 20, "something waits");
            thread::scope(|scope| {
                let writing: Vec<_> = writers
                    .iter_mut()
                    .map(|client| scope.spawn(|| write_in_a_row(client, N_WRITES)))
                    .collect();
                while writing.iter().any(|thread| !thread.is_finished()) {
                    most = most.max(figure(&mut stranger, "mem_notifications"));
                }
            });
        }
        assert!(most <= n_threads * MOST_BYTES, "{most} bytes have waited");
        drop(listeners);
        until("nothing waits", || figure(&mut stranger, "mem_notifications") == 0);
    }
}

#[test]
fn what_waits_for_monitoring_clients_is_counted_and_bounded() {
    let monitor = |client: &mut Client| assert_eq!(ask(client, "MONITOR"), "+OK");
    assert_writing_takes_the_pace_of_listeners(monitor);
}

#[test]
fn a_command_that_makes_its_client_wait_for_listeners_runs_once() {
    const N_WRITES: usize = 1000;
    const N_LISTENERS: usize = 12;
    // A line of MONITOR has four characters for each such byte, so a pipeline of these soon fills the queue.
    let piece = "\0".repeat(1000);
    let server = Server::start(&["--io-threads", "1"]);
    let mut listeners: Vec<Client> = (0..N_LISTENERS).map(|_| server.connect()).collect();
    listeners.iter_mut().for_each(|client| assert_eq!(ask(client, "MONITOR"), "+OK"));
    let mut writer = server.connect();
    let mut request = Vec::new();
    (0..N_WRITES).for_each(|_| encode(&["APPEND", "key", &piece], &mut request));
    writer.send_raw(&request);
    for n in 1..=N_WRITES {
        assert_eq!(writer.receive(), Reply::Integer((n * piece.len()) as i64));
    }
    assert_eq!(ask(&mut writer, "PING"), "+PONG", "there is a reply to each and no more");
}

#[test]
fn what_waits_for_tracking_clients_is_counted_and_bounded() {
    let track = |client: &mut Client| {
        client.hello(crate::support::Resp::Three).expect("the server speaks RESP3");
        assert_eq!(ask(client, "CLIENT TRACKING ON BCAST"), "+OK");
    };
    assert_writing_takes_the_pace_of_listeners(track);
}

#[test]
fn a_publisher_that_hears_itself_goes_on() {
    const N_MESSAGES: usize = 30_000;
    let server = Server::start(&["--io-threads", "1", "--client-output-buffer-limit", "pubsub 0 0 0"]);
    let mut others: Vec<Client> = (0..20).map(|_| subscriber(&server, &["c"])).collect();
    let mut publisher = server.connect();
    publisher.hello(crate::support::Resp::Three).expect("the server speaks RESP3");
    tell(&mut publisher, "SUBSCRIBE c");
    publisher.receive();
    let mut request = Vec::new();
    (0..N_MESSAGES).for_each(|n| encode(&["PUBLISH", "c", &numbered(n)], &mut request));
    publisher.send_raw(&request);
    for n in 0..N_MESSAGES {
        assert_eq!(publisher.receive(), Reply::Integer(21));
        assert_eq!(payload(&mut publisher), numbered(n), "after the reply");
    }
    let other = &mut others[0];
    (0..N_MESSAGES).for_each(|n| assert_eq!(payload(other), numbered(n)));
}

/// Returns how many PUBLISH commands have run so far.
fn n_publications(client: &mut Client) -> usize {
    let info = client.command(&["INFO", "commandstats"]).text().expect("INFO answers text");
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_publish:calls="));
    line.map_or(0, |line| line.split(',').next().expect("a number").parse().expect("a number"))
}

#[test]
fn publishers_that_wait_can_be_killed_and_can_leave() {
    const N_MESSAGES: usize = 2000;
    let server = Server::start(&["--io-threads", "2", "--client-output-buffer-limit", "pubsub 0 0 0"]);
    let subscribers: Vec<Client> = (0..100).map(|_| subscriber(&server, &["c"])).collect();
    let mut control = server.connect();
    let mut request = Vec::new();
    (0..N_MESSAGES).for_each(|n| encode(&["PUBLISH", "c", &numbered(n)], &mut request));
    for round in 0..4 {
        let mut publishers: Vec<Client> = (0..10).map(|_| server.connect()).collect();
        await_clients(&mut control, subscribers.len() + 1 + publishers.len());
        let mut n_sent = n_publications(&mut control);
        until("something waits", || {
            // All messages may have been delivered between two checks. Then more are sent.
            if n_publications(&mut control) >= n_sent {
                publishers.iter_mut().for_each(|publisher| publisher.send_raw(&request));
                n_sent += publishers.len() * N_MESSAGES;
            }
            figure(&mut control, "mem_notifications") > 0
        });
        if round % 2 == 0 {
            let me = ask(&mut control, "CLIENT ID");
            let n_killed = control.command(&["CLIENT", "KILL", "TYPE", "normal"]).integer();
            assert_eq!(n_killed, Some(10), "all but {me} and the subscribers");
        }
        drop(publishers);
        await_clients(&mut control, subscribers.len() + 1);
        until("all is given out", || figure(&mut control, "mem_notifications") == 0);
    }
    assert_eq!(ask(&mut control, "PUBLISH c end"), ":100");
}

/// The end of one client must not cause a new attempt of the others' commands.
#[test]
fn clients_are_killed_one_by_one_while_a_pause_holds_them_back() {
    const N_CLIENTS: usize = 1000;
    let server = Server::start(&["--io-threads", "2"]);
    let mut control = server.connect();
    let mut clients: Vec<Client> = (0..N_CLIENTS).map(|_| server.connect()).collect();
    let ids: Vec<String> =
        clients.iter_mut().map(|client| ask(client, "CLIENT ID")[1..].to_owned()).collect();
    assert_eq!(ask(&mut control, "CLIENT PAUSE 100000 WRITE"), "+OK");
    clients.iter_mut().for_each(|client| tell(client, "INCR n"));
    until("all are held back", || figure(&mut control, "blocked_clients") == N_CLIENTS);
    let (killed, spared) = ids.split_at(N_CLIENTS / 2);
    for id in killed {
        assert_eq!(ask(&mut control, &format!("CLIENT KILL ID {id}")), ":1");
    }
    await_clients(&mut control, spared.len() + 1);
    assert_eq!(ask(&mut control, "GET n"), "(nil)");
    assert_eq!(ask(&mut control, "CLIENT UNPAUSE"), "+OK");
    for client in &mut clients[killed.len()..] {
        assert!(client.receive().integer().is_some());
    }
    assert_eq!(ask(&mut control, "GET n"), format!("\"{}\"", spared.len()));
}
