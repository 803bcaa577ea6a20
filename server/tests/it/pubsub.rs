//! Publishers, subscribers and monitoring clients, many at once and on all threads. The tests check their
//! messages, and the order of these.

use std::{
    collections::HashMap,
    io::ErrorKind,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use crate::support::{
    Client, Dice, Reply, Resp, Server,
    crowd::{AtEnd, Meeting, ask, crowd, everywhere, figure, tell, until, while_connections_move},
    dice::seed,
};

/// Returns the parts of a push, or of an array in RESP2, as texts. Null becomes an empty text.
fn parts(reply: &Reply) -> Vec<String> {
    match reply {
        Reply::Push(items) | Reply::Array(items) => items.iter().map(text).collect(),
        other => panic!("neither a message nor a confirmation: {other}"),
    }
}

fn text(reply: &Reply) -> String {
    reply.text().or_else(|| Some(reply.integer()?.to_string())).unwrap_or_default()
}

/// Returns the payload of a message of any kind.
fn payload(reply: &Reply) -> String {
    let parts = parts(reply);
    assert!(["message", "pmessage", "smessage"].contains(&&*parts[0]), "no message: {parts:?}");
    parts.last().expect("a message has a payload").clone()
}

/// Sends a command that changes a single subscription. Returns the messages before its confirmation.
fn change(client: &mut Client, line: &str) -> Vec<String> {
    tell(client, line);
    until_confirmed(client, line)
}

fn until_confirmed(client: &mut Client, line: &str) -> Vec<String> {
    let name = line.split(' ').next().expect("a command has a name").to_ascii_lowercase();
    let mut heard = Vec::new();
    loop {
        let reply = client.receive();
        if parts(&reply)[0] == name {
            return heard;
        }
        heard.push(payload(&reply));
    }
}

/// Returns the publisher and the number of a message.
fn signed(payload: &str) -> (usize, usize) {
    let (publisher, nth) = payload.split_once(':').unwrap_or_else(|| panic!("not signed: {payload}"));
    (publisher.parse().expect("a publisher's number"), nth.parse().expect("a message's number"))
}

/// The ways to subscribe to channel `c`, each with its command to unsubscribe and to publish.
const BY_NAME: [&str; 3] = ["SUBSCRIBE c", "UNSUBSCRIBE c", "PUBLISH c"];
const BY_PATTERN: [&str; 3] = ["PSUBSCRIBE *", "PUNSUBSCRIBE *", "PUBLISH c"];
const IN_SHARD: [&str; 3] = ["SSUBSCRIBE c", "SUNSUBSCRIBE c", "SPUBLISH c"];

#[test]
fn all_subscribers_of_a_channel_hear_the_same_in_the_same_order() {
    everywhere(|server| {
        hear_in_order(server, &[BY_NAME, BY_PATTERN]);
        hear_in_order(server, &[IN_SHARD]);
    });
}

fn hear_in_order(server: &Server, ways: &[[&str; 3]]) {
    const N_PUBLISHERS: usize = 4;
    const N_SUBSCRIBERS: usize = 12;
    const N_MESSAGES: usize = 240;
    let meeting = Meeting::of(N_PUBLISHERS + N_SUBSCRIBERS);
    let heard = crowd(server, N_PUBLISHERS + N_SUBSCRIBERS, |id, client| {
        if id < N_PUBLISHERS {
            meeting.wait();
            publish_in_several_ways(client, ways[0][2], id, N_MESSAGES, N_SUBSCRIBERS as i64);
            return Vec::new();
        }
        if id % 3 == 0 {
            client.hello(Resp::Three).expect("the server speaks RESP3");
        }
        change(client, ways[id % ways.len()][0]);
        meeting.wait();
        (0..N_PUBLISHERS * N_MESSAGES).map(|_| payload(&client.receive())).collect()
    });
    let order = &heard[N_PUBLISHERS];
    for other in &heard[N_PUBLISHERS..] {
        assert_eq!(other, order, "two subscribers disagree");
    }
    for publisher in 0..N_PUBLISHERS {
        let own = order.iter().map(|payload| signed(payload)).filter(|&(of, _)| of == publisher);
        let own: Vec<usize> = own.map(|(_, nth)| nth).collect();
        assert_eq!(own, (0..N_MESSAGES).collect::<Vec<_>>(), "messages of publisher {publisher}");
    }
}

/// Subscribers stay on their threads, whatever the others do.
#[test]
fn subscribers_hear_all_while_connections_move() {
    let server = Server::start(&["--io-threads", "4", "--io-threads-always-active", "no"]);
    while_connections_move(&server, 4, || {
        for _ in 0..4 {
            hear_in_order(&server, &[BY_NAME, BY_PATTERN]);
            come_and_go(&server, &[BY_NAME, BY_PATTERN]);
            come_and_go(&server, &[IN_SHARD]);
        }
    });
}

/// Commands of thousands of channels run on a thread that serves no connections.
#[test]
fn thousands_of_channels_at_once() {
    const N_CHANNELS: usize = 2500;
    everywhere(|server| {
        let names: Vec<String> = (0..N_CHANNELS).map(|n| format!("channel-{n}")).collect();
        let with = |name: &str| -> Vec<String> {
            [name].into_iter().map(str::to_owned).chain(names.iter().cloned()).collect()
        };
        let mut subscribers: Vec<Client> = (0..3).map(|_| server.connect()).collect();
        let mut publisher = server.connect();
        for subscriber in &mut subscribers {
            subscriber.send(&with("SUBSCRIBE"));
            for (n, name) in names.iter().enumerate() {
                let expected = ["subscribe", name, &(n + 1).to_string()];
                assert_eq!(parts(&subscriber.receive()), expected);
            }
        }
        let numbers = publisher.command(&[vec!["PUBSUB".to_owned()], with("NUMSUB")].concat());
        let expected = names.iter().flat_map(|name| [Reply::Bulk(name.clone().into()), Reply::Integer(3)]);
        assert_eq!(numbers, Reply::Array(expected.collect()));
        // A transaction of the same length.
        tell(&mut publisher, "MULTI");
        names.iter().for_each(|name| tell(&mut publisher, &format!("PUBLISH {name} {name}")));
        tell(&mut publisher, "EXEC");
        (0..=N_CHANNELS).for_each(|_| drop(publisher.receive()));
        assert_eq!(publisher.receive(), Reply::Array(vec![Reply::Integer(3); N_CHANNELS]));
        for subscriber in &mut subscribers {
            for name in &names {
                assert_eq!(payload(&subscriber.receive()), *name);
            }
            subscriber.send(&with("UNSUBSCRIBE"));
            for (n, name) in names.iter().enumerate() {
                let expected = ["unsubscribe", name, &(N_CHANNELS - n - 1).to_string()];
                assert_eq!(parts(&subscriber.receive()), expected);
            }
            assert_eq!(ask(subscriber, "ECHO end"), "\"end\"");
        }
        assert!(nobody_listens(&mut publisher));
    });
}

/// Publishes numbered messages alone, three in a pipeline and two in a transaction, in turn.
fn publish_in_several_ways(
    client: &mut Client,
    publish: &str,
    id: usize,
    n_messages: usize,
    n_subscribers: i64,
) {
    let mut numbers = (0..n_messages).map(|nth| format!("{publish} {id}:{nth}"));
    let expected = Reply::Integer(n_subscribers);
    while let Some(line) = numbers.next() {
        assert_eq!(ask(client, &line), expected.to_string());
        let pipeline: Vec<String> = numbers.by_ref().take(3).collect();
        pipeline.iter().for_each(|line| tell(client, line));
        for _ in &pipeline {
            assert_eq!(client.receive(), expected);
        }
        let transaction: Vec<String> = numbers.by_ref().take(2).collect();
        assert_eq!(ask(client, "MULTI"), "+OK");
        for line in &transaction {
            assert_eq!(ask(client, line), "+QUEUED");
        }
        let replies = client.command(&["EXEC"]);
        assert_eq!(replies, Reply::Array(vec![expected.clone(); transaction.len()]));
    }
}

#[test]
fn a_client_with_several_subscriptions_hears_a_message_once_for_each() {
    everywhere(|server| {
        let mut subscriber = server.connect();
        for line in ["SUBSCRIBE news", "PSUBSCRIBE n*", "PSUBSCRIBE *s", "PSUBSCRIBE x*", "SSUBSCRIBE news"] {
            change(&mut subscriber, line);
        }
        let mut publisher = server.connect();
        for nth in 0..20 {
            assert_eq!(ask(&mut publisher, &format!("PUBLISH news {nth}")), ":3");
            let mut kinds: Vec<String> =
                (0..3).map(|_| subscriber.receive()).map(|reply| parts(&reply)[0].clone()).collect();
            kinds.sort();
            assert_eq!(kinds, ["message", "pmessage", "pmessage"]);
        }
    });
}

/// The numbers of a publisher's messages that were sent so far, and that were answered.
#[derive(Default)]
struct Progress {
    n_sent: AtomicUsize,
    n_answered: AtomicUsize,
}

/// Counts down when dropped, also by a panic.
struct LeavesWhenDropped<'a>(&'a AtomicUsize);

impl Drop for LeavesWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn a_subscriber_receives_what_is_published_while_it_is_subscribed_and_nothing_else() {
    everywhere(|server| {
        come_and_go(server, &[BY_NAME, BY_PATTERN]);
        come_and_go(server, &[IN_SHARD]);
    });
}

fn come_and_go(server: &Server, ways: &[[&str; 3]]) {
    const N_PUBLISHERS: usize = 3;
    const N_SUBSCRIBERS: usize = 5;
    const N_ROUNDS: usize = 60;
    let progress: Vec<Progress> = (0..N_PUBLISHERS).map(|_| Progress::default()).collect();
    let n_subscribers = AtomicUsize::new(N_SUBSCRIBERS);
    crowd(server, N_PUBLISHERS + N_SUBSCRIBERS, |id, client| {
        if let Some(progress) = progress.get(id) {
            for nth in 0.. {
                if n_subscribers.load(Ordering::SeqCst) == 0 {
                    return;
                }
                progress.n_sent.store(nth + 1, Ordering::SeqCst);
                ask(client, &format!("{} {id}:{nth}", ways[0][2]));
                progress.n_answered.store(nth + 1, Ordering::SeqCst);
            }
        }
        let _leaves = LeavesWhenDropped(&n_subscribers);
        let mut dice = Dice(seed() ^ (id as u64));
        for _ in 0..N_ROUNDS {
            stay_a_while(client, ways[id % ways.len()], &mut dice, &progress);
        }
    });
}

/// Subscribes, receives some messages and unsubscribes. Checks which messages have come.
fn stay_a_while(
    client: &mut Client,
    [subscribe, unsubscribe, _]: [&str; 3],
    dice: &mut Dice,
    progress: &[Progress],
) {
    let n_sent = || progress.iter().map(|of| of.n_sent.load(Ordering::SeqCst)).collect::<Vec<_>>();
    let n_answered = || progress.iter().map(|of| of.n_answered.load(Ordering::SeqCst)).collect::<Vec<_>>();
    let answered_before = n_answered();
    let mut heard = Vec::new();
    let (sent_at_first, answered_at_last) = if dice.percent(25) {
        // In one pipeline: any messages may come in between.
        tell(client, subscribe);
        tell(client, unsubscribe);
        assert_eq!(until_confirmed(client, subscribe), [""; 0], "messages before the confirmation");
        (None, None)
    } else {
        assert_eq!(change(client, subscribe), [""; 0], "messages before the confirmation");
        let sent = n_sent();
        heard.extend((0..1 + dice.roll(8)).map(|_| payload(&client.receive())));
        let answered = n_answered();
        tell(client, unsubscribe);
        (Some(sent), Some(answered))
    };
    heard.extend(until_confirmed(client, unsubscribe));
    let sent_behind = n_sent();
    assert_eq!(ask(client, "ECHO end"), "\"end\"", "nothing comes after the confirmation");
    let mut by_publisher = vec![Vec::new(); progress.len()];
    for (publisher, nth) in heard.iter().map(|payload| signed(payload)) {
        by_publisher[publisher].push(nth);
    }
    for (publisher, numbers) in by_publisher.into_iter().enumerate() {
        let context = format!("publisher {publisher}: {numbers:?}");
        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "gaps: {context}");
        if let (Some(&first), Some(&last)) = (numbers.first(), numbers.last()) {
            assert!(first >= answered_before[publisher], "older than the subscription: {context}");
            assert!(last < sent_behind[publisher], "not sent yet: {context}");
        }
        let (Some(sent), Some(answered)) = (&sent_at_first, &answered_at_last) else { continue };
        let (sent, answered) = (sent[publisher], answered[publisher]);
        let missed: Vec<usize> = (sent..answered).filter(|nth| !numbers.contains(nth)).collect();
        assert_eq!(missed, [0; 0], "missed: {context}");
    }
}

/// A subscriber in RESP3 sends other commands, too. Messages have their place among the replies.
#[test]
fn what_is_published_before_a_command_is_sent_comes_before_its_reply() {
    const LINES: [&str; 7] = [
        "PING",
        "SET c v",
        "MGET a b c d e f",
        "KEYS none",
        "PUBSUB CHANNELS none",
        "XREAD STREAMS s 0",
        "DBSIZE",
    ];
    const N_PAIRS: usize = 4;
    const N_ROUNDS: usize = 70;
    everywhere(|server| {
        crowd(server, N_PAIRS, |id, publisher| {
            let mut subscriber = server.connect();
            subscriber.hello(Resp::Three).expect("the server speaks RESP3");
            for way in ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"] {
                change(&mut subscriber, &format!("{way} {id}"));
            }
            for nth in 0..N_ROUNDS {
                assert_eq!(ask(publisher, &format!("PUBLISH {id} {nth}")), ":2");
                assert_eq!(ask(publisher, &format!("SPUBLISH {id} {nth}")), ":1");
                tell(&mut subscriber, LINES[nth % LINES.len()]);
                let kinds: Vec<String> =
                    (0..3).map(|_| subscriber.receive()).map(|reply| parts(&reply)[0].clone()).collect();
                assert_eq!(kinds, ["message", "pmessage", "smessage"]);
                let reply = subscriber.receive();
                assert!(!matches!(reply, Reply::Push(_)), "a reply is due: {reply}");
            }
        });
    });
}

#[test]
fn a_client_that_receives_a_message_of_a_transaction_sees_what_the_transaction_has_done() {
    const N_ROUNDS: usize = 50;
    const N_SUBSCRIBERS: usize = 4;
    everywhere(|server| {
        let meeting = Meeting::of(1 + N_SUBSCRIBERS);
        crowd(server, 1 + N_SUBSCRIBERS, |id, client| {
            if id == 0 {
                meeting.wait();
                for nth in 0..N_ROUNDS {
                    // The message is published first, but arrives when the whole transaction is done.
                    for line in ["MULTI", &format!("PUBLISH c {nth}"), &format!("SET key {nth}"), "EXEC"] {
                        tell(client, line);
                    }
                    (0..3).for_each(|_| drop(client.receive()));
                    assert_eq!(client.receive().to_string(), format!("[:{N_SUBSCRIBERS} +OK]"));
                }
                return;
            }
            let mut reader = server.connect();
            change(client, if id % 2 == 0 { "SUBSCRIBE c" } else { "PSUBSCRIBE c*" });
            meeting.wait();
            for nth in 0..N_ROUNDS {
                assert_eq!(payload(&client.receive()), nth.to_string());
                let seen: usize = text(&reader.command(&["GET", "key"])).parse().expect("a number");
                assert!(seen >= nth, "message {nth} has come, and the key is still {seen}");
            }
        });
    });
}

/// Whether PUBSUB reports no subscriber at all.
fn nobody_listens(client: &mut Client) -> bool {
    let lines = ["CHANNELS", "SHARDCHANNELS", "NUMPAT", "NUMSUB c d", "SHARDNUMSUB c"];
    let replies = lines.map(|line| ask(client, &format!("PUBSUB {line}")));
    replies == ["[]", "[]", ":0", "[\"c\" :0 \"d\" :0]", "[\"c\" :0]"]
}

const ALL_KINDS: [&str; 4] = ["SUBSCRIBE c", "SUBSCRIBE d", "PSUBSCRIBE *", "SSUBSCRIBE c"];

#[test]
fn a_client_that_leaves_no_longer_counts() {
    const N_CLIENTS: usize = 6;
    everywhere(|server| {
        let mut observer = server.connect();
        for way in ["close", "kill", "quit", "reset"] {
            let mut clients: Vec<Client> = (0..N_CLIENTS).map(|_| server.connect()).collect();
            for client in &mut clients {
                ALL_KINDS.iter().for_each(|line| drop(change(client, line)));
            }
            assert_eq!(ask(&mut observer, "PUBSUB NUMSUB c d"), "[\"c\" :6 \"d\" :6]");
            assert_eq!(ask(&mut observer, "PUBSUB SHARDNUMSUB c"), "[\"c\" :6]");
            assert_eq!(ask(&mut observer, "PUBSUB NUMPAT"), ":1");
            match way {
                "close" => clients.clear(),
                "kill" => assert_eq!(ask(&mut observer, "CLIENT KILL TYPE pubsub"), ":6"),
                "quit" => clients.iter_mut().for_each(|client| assert_eq!(ask(client, "QUIT"), "+OK")),
                _ => clients.iter_mut().for_each(|client| assert_eq!(ask(client, "RESET"), "+RESET")),
            }
            if way == "reset" {
                assert!(nobody_listens(&mut observer), "RESET is answered when it has ended all");
            }
            until(&format!("nobody listens after {way}"), || nobody_listens(&mut observer));
            assert_eq!(ask(&mut observer, "PUBLISH c x"), ":0");
            assert_eq!(ask(&mut observer, "SPUBLISH c x"), ":0");
        }
    });
}

/// All subscriptions of a client used to be removed at once, with all their shards held. 200,000 channels
/// took a third of a second. Now this happens in steps. Before the last one no other client may take the
/// client's place.
#[test]
fn a_client_with_thousands_of_subscriptions_leaves_nothing_to_those_that_come() {
    const N: usize = 3000;
    let names = |kind: &str| (0..N).map(|n| format!("{kind}:{n}")).collect::<Vec<_>>();
    everywhere(|server| {
        let mut observer = server.connect();
        let mut leaver = server.connect();
        for (command, kind) in
            [("SUBSCRIBE", "c"), ("PSUBSCRIBE", "p*"), ("SSUBSCRIBE", "s"), ("PSUBSCRIBE", "__key*")]
        {
            let names = names(kind);
            let words = std::iter::once(command).chain(names.iter().map(String::as_str));
            leaver.send(&words.collect::<Vec<_>>());
            (0..N).for_each(|_| drop(leaver.receive()));
        }
        // A client that watches may not be subscribed in RESP2.
        let mut watcher = server.connect();
        let watched = names("w");
        let words = std::iter::once("WATCH").chain(watched.iter().map(String::as_str));
        assert_eq!(watcher.command(&words.collect::<Vec<_>>()).to_string(), "+OK");
        assert_eq!(figure(&mut observer, "total_watched_keys"), N);
        assert_eq!(ask(&mut observer, "PUBSUB NUMPAT"), format!(":{}", 2 * N));
        drop((leaver, watcher));
        until("nothing is left", || {
            let mut newcomer = server.connect();
            assert_eq!(change(&mut newcomer, "SUBSCRIBE own"), [""; 0]);
            for name in ["c:1", "p:1", "c:2999"] {
                ask(&mut observer, &format!("PUBLISH {name} x"));
            }
            ask(&mut observer, "SPUBLISH s:1 x");
            assert_eq!(ask(&mut observer, "PUBLISH own message"), ":1");
            assert_eq!(payload(&newcomer.receive()), "message", "it hears nothing of another's");
            assert_eq!(change(&mut newcomer, "UNSUBSCRIBE own"), [""; 0]);
            nobody_listens(&mut observer) && figure(&mut observer, "total_watched_keys") == 0
        });
        until("both are listed no more", || figure(&mut observer, "connected_clients") == 1);
    });
}

/// Connections close while their commands are in progress, and others take their places at once.
#[test]
fn a_client_that_leaves_in_the_middle_of_subscribing_no_longer_counts() {
    const N_CLIENTS: usize = 6;
    const N_ROUNDS: usize = 30;
    everywhere(|server| {
        let is_over = AtomicBool::new(false);
        let n_left = AtomicUsize::new(N_CLIENTS);
        let mut observer = server.connect();
        let n_before = figure(&mut observer, "total_connections_received");
        crowd(server, 1 + N_CLIENTS, |id, client| {
            if id == 0 {
                // One client keeps the shards busy.
                while !is_over.load(Ordering::SeqCst) && n_left.load(Ordering::SeqCst) > 0 {
                    ask(client, "PUBLISH c x");
                    ask(client, "MSET c 1 d 2 e 3");
                }
                return;
            }
            let _leaves = LeavesWhenDropped(&n_left);
            for _ in 0..N_ROUNDS {
                let mut passer_by = server.connect();
                ALL_KINDS.iter().for_each(|line| tell(&mut passer_by, line));
                tell(&mut passer_by, "UNSUBSCRIBE d");
            }
        });
        let _over = AtEnd(&is_over);
        // The last ones may not have been accepted yet. They would subscribe for a moment.
        let n_connected = n_before + 1 + N_CLIENTS + N_CLIENTS * N_ROUNDS;
        until("all were accepted", || figure(&mut observer, "total_connections_received") >= n_connected);
        until("all have left", || figure(&mut observer, "connected_clients") == 1);
        until("nobody listens", || nobody_listens(&mut observer));
        // A new subscriber receives only its own messages.
        let mut subscriber = server.connect();
        assert_eq!(change(&mut subscriber, "SUBSCRIBE c"), [""; 0]);
        assert_eq!(ask(&mut observer, "PUBLISH c end"), ":1");
        assert_eq!(payload(&subscriber.receive()), "end");
    });
}

#[test]
fn a_subscriber_that_does_not_read_is_closed_and_others_go_on() {
    // More than the kernel buffers for both sides of a connection.
    const N_MESSAGES: usize = 2000;
    let message = "x".repeat(100_000);
    for io_threads in ["1", "4"] {
        for [subscribe, _, publish] in [BY_NAME, BY_PATTERN, IN_SHARD] {
            let limit = "pubsub 1mb 0 0";
            let server = Server::start(&["--io-threads", io_threads, "--client-output-buffer-limit", limit]);
            let mut idle = server.connect();
            let mut readers: Vec<Client> = (0..4).map(|_| server.connect()).collect();
            change(&mut idle, subscribe);
            readers.iter_mut().for_each(|reader| drop(change(reader, subscribe)));
            let mut publisher = server.connect();
            let mut n_published = 0;
            let mut is_closed = false;
            while !is_closed && n_published < N_MESSAGES {
                let n = publisher
                    .command(&[publish.trim_end_matches(" c"), "c", &message])
                    .integer()
                    .expect("a count");
                n_published += 1;
                is_closed = n == 4;
                assert!(is_closed || n == 5, "{n} subscribers");
                for reader in &mut readers {
                    assert_eq!(payload(&reader.receive()).len(), message.len());
                }
            }
            assert!(is_closed, "it may have more than the limit waiting for it");
            let mut n_received = 0;
            let end = loop {
                match idle.try_receive() {
                    Ok(_) => n_received += 1,
                    Err(error) => break error,
                }
            };
            assert_ne!(end.kind(), ErrorKind::TimedOut, "the connection is still open");
            assert!(n_received < n_published, "what waited for it is not sent");
            drop(readers);
            until("nobody listens", || nobody_listens(&mut publisher));
        }
    }
}

/// Returns a line of MONITOR without time, database and address.
fn shown(line: &Reply) -> String {
    let line = text(line);
    line.split_once("] ").unwrap_or_else(|| panic!("no line of MONITOR: {line}")).1.to_owned()
}

/// Reads lines up to the one that shows `ECHO end`. Returns the tokens that were appended, by key.
fn appended(monitor: &mut Client) -> HashMap<String, Vec<String>> {
    let mut by_key: HashMap<String, Vec<String>> = HashMap::new();
    loop {
        let line = shown(&monitor.receive());
        let words: Vec<&str> = line.split(' ').map(|word| word.trim_matches('"')).collect();
        match words[..] {
            ["ECHO", "end"] => return by_key,
            ["APPEND", key, token] => {
                by_key.entry(key.to_owned()).or_default().push(token.trim_end_matches(',').to_owned());
            }
            ["MULTI" | "EXEC" | "RESET"] => {}
            _ => panic!("nobody has sent {line}"),
        }
    }
}

/// Every client appends tokens to keys, so each value shows the order in which the commands took effect.
#[test]
fn monitor_shows_commands_on_a_key_in_the_order_in_which_they_took_effect() {
    const N_CLIENTS: usize = 5;
    const N_ROUNDS: usize = 40;
    const KEYS: [&str; 3] = ["one", "two", "three"];
    everywhere(|server| {
        let meeting = Meeting::of(N_CLIENTS + 1);
        let mut early: Vec<Client> = (0..2).map(|_| server.connect()).collect();
        let mut late = server.connect();
        let mut gone = server.connect();
        for client in early.iter_mut().chain([&mut gone]) {
            assert_eq!(ask(client, "MONITOR"), "+OK");
        }
        std::thread::scope(|scope| {
            // It must see no command that ran before the reply, and every later one.
            scope.spawn(|| {
                meeting.wait();
                assert_eq!(ask(&mut late, "MONITOR"), "+OK");
                tell(&mut gone, "RESET");
                while gone.receive() != Reply::Status(b"RESET".to_vec()) {}
            });
            crowd(server, N_CLIENTS, |id, client| {
                let token = |nth: usize| format!("{id}:{nth},");
                for nth in 0..N_ROUNDS {
                    if nth == N_ROUNDS / 4 {
                        meeting.wait();
                    }
                    let lines = KEYS.map(|key| format!("APPEND {key} {}", token(nth)));
                    if nth % 3 == 0 {
                        tell(client, "MULTI");
                    }
                    lines.iter().for_each(|line| tell(client, line));
                    if nth % 3 == 0 {
                        tell(client, "EXEC");
                    }
                    let n_replies = if nth % 3 == 0 { lines.len() + 2 } else { lines.len() };
                    (0..n_replies).for_each(|_| assert!(!client.receive().is_error()));
                }
            });
        });
        let mut last = server.connect();
        assert_eq!(ask(&mut last, "ECHO end"), "\"end\"");
        assert_eq!(ask(&mut gone, "ECHO here"), "\"here\"", "a client that has left sees nothing more");
        let seen: Vec<_> = early.iter_mut().map(appended).collect();
        let seen_late = appended(&mut late);
        for key in KEYS {
            let value = text(&last.command(&["GET", key]));
            let order: Vec<&str> = value.split_terminator(',').collect();
            assert_eq!(order.len(), N_CLIENTS * N_ROUNDS);
            for seen in &seen {
                assert_eq!(seen[key], order, "of {key}");
            }
            let late = seen_late.get(key).map_or(&[][..], Vec::as_slice);
            assert_eq!(late, &order[order.len() - late.len()..], "the end of {key}'s order");
        }
    });
}

#[test]
fn monitor_shows_a_command_that_has_waited_once() {
    const N_WAITERS: usize = 6;
    const N_ROUNDS: usize = 20;
    everywhere(|server| {
        let mut monitor = server.connect();
        assert_eq!(ask(&mut monitor, "MONITOR"), "+OK");
        crowd(server, 2 * N_WAITERS, |id, client| {
            for nth in 0..N_ROUNDS {
                if id < N_WAITERS {
                    // An element for it may come to either key, and the other waiters may take it.
                    client.command(&["BLPOP", "a", "b", "0"]);
                } else {
                    ask(client, &format!("RPUSH {} {id}:{nth}", if nth % 2 == 0 { "a" } else { "b" }));
                }
            }
        });
        assert_eq!(ask(&mut server.connect(), "ECHO end"), "\"end\"");
        let mut n_shown = HashMap::new();
        loop {
            let line = shown(&monitor.receive());
            let name = line.split(' ').next().expect("a line has words").to_owned();
            if name == "\"ECHO\"" {
                break;
            }
            *n_shown.entry(name).or_insert(0) += 1;
        }
        let expected = N_WAITERS * N_ROUNDS;
        assert_eq!(n_shown, HashMap::from([("\"BLPOP\"".into(), expected), ("\"RPUSH\"".into(), expected)]));
    });
}
