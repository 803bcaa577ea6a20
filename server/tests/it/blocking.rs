//! Commands that wait, many at once: every pushed element is taken exactly once, in order. This holds for all
//! numbers of threads and shards.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::support::{
    Client, Reply,
    crowd::{ask, crowd, everywhere, tell, until},
};

/// The key and the element that BLPOP returned.
fn popped(reply: &Reply) -> Option<(String, String)> {
    match reply {
        Reply::Array(pair) => Some((pair[0].text().expect("a key"), pair[1].text().expect("an element"))),
        Reply::NilArray | Reply::Null => None,
        other => panic!("not what BLPOP answers: {other:?}"),
    }
}

#[test]
fn every_element_is_taken_once_and_in_the_order_of_its_producer() {
    const N_PRODUCERS: usize = 3;
    const N_MOVERS: usize = 3;
    const N_CONSUMERS: usize = 4;
    const N_ITEMS: usize = 150;
    everywhere(|server| {
        let n_left = AtomicUsize::new(N_PRODUCERS * N_ITEMS);
        let taken = crowd(server, N_PRODUCERS + N_MOVERS + N_CONSUMERS, |id, client| {
            if id < N_PRODUCERS {
                for nth in 0..N_ITEMS {
                    let push = format!("RPUSH queue-{id} {id}:{nth}");
                    match nth % 3 {
                        0 => {
                            ask(client, "MULTI");
                            ask(client, &push);
                            ask(client, "EXEC");
                        }
                        _ => {
                            ask(client, &push);
                        }
                    }
                }
                return Vec::new();
            }
            let mut taken = Vec::new();
            while n_left.load(Ordering::SeqCst) > 0 {
                if id < N_PRODUCERS + N_MOVERS {
                    // A single mover for each queue keeps the order.
                    let from = id - N_PRODUCERS;
                    ask(client, &format!("BLMOVE queue-{from} ready-{} LEFT RIGHT 0.05", from % 2));
                } else if let Some((_, item)) =
                    popped(&client.command(&["BLPOP", "ready-0", "absent", "ready-1", "0.05"]))
                {
                    taken.push(item);
                    n_left.fetch_sub(1, Ordering::SeqCst);
                }
            }
            taken
        });
        let mut count = BTreeMap::<String, usize>::new();
        for items in &taken {
            let mut last = [None; N_PRODUCERS];
            for item in items {
                *count.entry(item.clone()).or_default() += 1;
                let (producer, nth) = item.split_once(':').expect("producer:number");
                let (producer, nth): (usize, usize) = (producer.parse().unwrap(), nth.parse().unwrap());
                assert!(last[producer] < Some(nth), "{item} after {:?}", last[producer]);
                last[producer] = Some(nth);
            }
        }
        assert_eq!(count.len(), N_PRODUCERS * N_ITEMS, "some are lost");
        assert!(count.values().all(|&times| times == 1), "some are taken twice");
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "DBSIZE"), ":0");
    });
}

#[test]
fn the_client_that_waits_longest_is_served_first() {
    everywhere(|server| {
        let mut pusher = server.connect();
        let mut waiting: Vec<Client> = Vec::new();
        for nth in 0..20 {
            let mut client = server.connect();
            match nth % 3 {
                0 => client.send(&["BLPOP", "other", "queue", "0"]),
                1 => client.send(&["BLMOVE", "queue", "moved", "LEFT", "RIGHT", "0"]),
                _ => client.send(&["BLMPOP", "0", "2", "queue", "third", "LEFT"]),
            }
            waiting.push(client);
            until("the client waits", || {
                ask(&mut pusher, "INFO clients").contains(&format!("blocked_clients:{}", nth + 1))
            });
        }
        let items: Vec<String> = (0..20).map(|nth| nth.to_string()).collect();
        let argv: Vec<&str> =
            ["RPUSH", "queue"].into_iter().chain(items.iter().map(String::as_str)).collect();
        assert_eq!(pusher.command(&argv), Reply::Integer(20));
        for (nth, mut client) in waiting.into_iter().enumerate() {
            let got = format!("{:?}", client.receive());
            let expected = format!("{:?}", Reply::Bulk(nth.to_string().into_bytes()));
            assert!(got.contains(&expected), "{nth}: {got}");
        }
        assert_eq!(ask(&mut pusher, "LLEN moved"), ":7");
    });
}

#[test]
fn timeouts_and_unblocking_lose_no_element() {
    const ROUNDS: usize = 60;
    everywhere(|server| {
        let ids: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
        let n_taken = AtomicUsize::new(0);
        crowd(server, 6, |id, client| match id {
            // These clients wait for a short time.
            0..3 => {
                let own = ask(client, "CLIENT ID")[1..].parse().expect("a number");
                ids[id].store(own, Ordering::SeqCst);
                for round in 0..ROUNDS * 3 {
                    let timeout = format!("0.00{}", 1 + round % 3);
                    let got = popped(&client.command(&["BLPOP", "queue", "second", &timeout]));
                    n_taken.fetch_add(got.is_some() as usize, Ordering::SeqCst);
                }
            }
            // This client unblocks them.
            3 => {
                for round in 0..ROUNDS * 3 {
                    ask(client, &format!("CLIENT UNBLOCK {}", ids[round % 3].load(Ordering::SeqCst)));
                }
            }
            _ => {
                for round in 0..ROUNDS {
                    ask(client, if round % 2 == 0 { "RPUSH queue x" } else { "LPUSH second y" });
                }
            }
        });
        let mut client = server.connect();
        let n_left: usize = ["LLEN queue", "LLEN second"]
            .iter()
            .map(|command| ask(&mut client, command)[1..].parse::<usize>().expect("a length"))
            .sum();
        assert_eq!(n_taken.load(Ordering::SeqCst) + n_left, 2 * ROUNDS);
        assert!(ask(&mut client, "INFO clients").contains("blocked_clients:0"));
    });
}

#[test]
fn clients_that_leave_while_they_wait_take_nothing_along() {
    everywhere(|server| {
        let mut pusher = server.connect();
        for _ in 0..10 {
            let mut leaving: Vec<Client> = (0..5).map(|_| server.connect()).collect();
            for client in &mut leaving {
                client.send(&["BLPOP", "a", "b", "c", "0"]);
            }
            until("all wait", || ask(&mut pusher, "INFO clients").contains("blocked_clients:5"));
            drop(leaving);
            until("all have left", || ask(&mut pusher, "INFO clients").contains("blocked_clients:0"));
            assert_eq!(ask(&mut pusher, "RPUSH b x"), ":1");
            assert_eq!(ask(&mut pusher, "LPOP b"), "\"x\"");
        }
    });
}

/// The key is found by a look-up, by a command that visits all keys, or by active expiry.
#[test]
fn a_group_reader_is_told_that_its_stream_has_expired() {
    everywhere(|server| {
        let mut client = server.connect();
        let ways = [
            ("EXISTS stream", 0),
            ("SCAN 0 COUNT 1000", 0),
            ("SCAN 0 COUNT 1000 TYPE string", 0),
            ("KEYS nothing", 0),
            ("PING", 1),
        ];
        for (found_by, active) in ways {
            assert_eq!(ask(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0"), "+OK");
            assert_eq!(ask(&mut client, "XGROUP CREATE stream group $ MKSTREAM"), "+OK");
            assert_eq!(ask(&mut client, "PEXPIRE stream 500000"), ":1");
            let mut reader = server.connect();
            reader.send(&["XREADGROUP", "GROUP", "group", "c", "BLOCK", "0", "STREAMS", "stream", ">"]);
            until("it waits", || ask(&mut client, "INFO clients").contains("blocked_clients:1"));
            assert_eq!(ask(&mut client, "DEBUG ADVANCE-TIME 500001"), "+OK");
            ask(&mut client, found_by);
            assert_eq!(ask(&mut client, &format!("DEBUG SET-ACTIVE-EXPIRE {active}")), "+OK");
            assert!(reader.receive().is_error(), "found by {found_by}");
        }
    });
}

#[test]
fn a_stream_that_expires_under_a_command_that_then_waits_wakes_the_readers_of_its_groups() {
    everywhere(|server| {
        let (mut control, mut reader, mut other) = (server.connect(), server.connect(), server.connect());
        assert_eq!(ask(&mut control, "DEBUG SET-ACTIVE-EXPIRE 0"), "+OK");
        assert_eq!(ask(&mut control, "XGROUP CREATE s g $ MKSTREAM"), "+OK");
        assert_eq!(ask(&mut control, "PEXPIRE s 500000"), ":1");
        tell(&mut reader, "XREADGROUP GROUP g me BLOCK 0 STREAMS s >");
        until("it waits", || ask(&mut control, "INFO clients").contains("blocked_clients:1"));
        assert_eq!(ask(&mut control, "DEBUG ADVANCE-TIME 500001"), "+OK");
        // This command meets the stream's deadline, and it waits, too.
        tell(&mut other, "XREAD BLOCK 0 STREAMS s $");
        let reply = reader.receive();
        assert!(reply.text().is_some_and(|text| text.starts_with("NOGROUP")), "{reply:?}");
        assert_eq!(ask(&mut control, "DEBUG SET-ACTIVE-EXPIRE 1"), "+OK");
    });
}

/// A write to a stream used to check every client that waited for any of its entries. With 2000 readers
/// waiting for later entries, 3000 entries took a second. Nobody else was served meanwhile.
#[test]
fn readers_of_a_stream_are_served_by_the_entries_that_they_wait_for() {
    everywhere(|server| {
        let mut client = server.connect();
        for group in ["one", "other", "late"] {
            ask(&mut client, &format!("XGROUP CREATE s {group} 0 MKSTREAM"));
        }
        ask(&mut client, "XGROUP SETID s late 1-3");
        let waits = [
            "XREAD BLOCK 0 STREAMS s 1-2",
            "XREAD BLOCK 0 STREAMS s 1-1",
            "XREADGROUP GROUP one a BLOCK 0 STREAMS s >",
            "XREADGROUP GROUP one b BLOCK 0 STREAMS s >",
            "XREADGROUP GROUP other a BLOCK 0 STREAMS s >",
            "XREADGROUP GROUP late a BLOCK 0 STREAMS s >",
            "XREAD BLOCK 0 STREAMS s s 1-9 0-0",
        ];
        let mut readers: Vec<(&str, Client)> = Vec::new();
        for line in waits {
            let mut reader = server.connect();
            tell(&mut reader, line);
            readers.push((line, reader));
            let n_blocked = format!("blocked_clients:{}\\r", readers.len());
            until("it waits", || ask(&mut client, "INFO clients").contains(&n_blocked));
        }
        let mut add = |id: &str, n_left: usize| {
            assert_eq!(ask(&mut client, &format!("XADD s {id} f v")), format!("\"{id}\""));
            let n_blocked = format!("blocked_clients:{n_left}\\r");
            until("the others wait on", || ask(&mut client, "INFO clients").contains(&n_blocked));
        };
        let mut served = |id: &str, which: &[usize]| {
            for &nth in which {
                let (line, reader) = &mut readers[nth];
                let reply = reader.receive().to_string();
                assert_eq!(reply, format!("[[\"s\" [[\"{id}\" [\"f\" \"v\"]]]]]"), "{line}");
            }
        };
        add("1-1", 4);
        served("1-1", &[2, 4, 6]);
        add("1-2", 2);
        served("1-2", &[1, 3]);
        add("1-3", 1);
        served("1-3", &[0]);
        add("1-4", 0);
        served("1-4", &[5]);
    });
}

/// SWAPDB used to make all clients that waited for keys check them, in its own order. Later writes then had
/// no effect on the order.
#[test]
fn after_a_swap_those_who_wait_for_different_keys_are_served_in_the_order_of_the_writes() {
    const N_WAITING: usize = 12;
    everywhere(|server| {
        let mut client = server.connect();
        let mut waiting: Vec<Client> = (0..N_WAITING).map(|_| server.connect()).collect();
        for (nth, one) in waiting.iter_mut().enumerate() {
            tell(one, &format!("BLMOVE key-{nth} served LEFT RIGHT 0"));
        }
        until("all wait", || {
            ask(&mut client, "INFO clients").contains(&format!("blocked_clients:{N_WAITING}\\r"))
        });
        // Keys that already exist serve at the swap, before all others.
        for command in ["SELECT 1", "RPUSH key-3 3", "SELECT 0", "MULTI", "SWAPDB 0 1"] {
            ask(&mut client, command);
        }
        let order = [7, 0, 11, 5, 2, 9, 4, 1, 10, 8, 6];
        for nth in order {
            ask(&mut client, &format!("RPUSH key-{nth} {nth}"));
        }
        ask(&mut client, "EXEC");
        let expected: Vec<String> = [3].iter().chain(&order).map(|nth| format!("\"{nth}\"")).collect();
        assert_eq!(ask(&mut client, "LRANGE served 0 -1"), format!("[{}]", expected.join(" ")));
        waiting.iter_mut().for_each(|one| drop(one.receive()));
    });
}

/// Commands write keys for which many clients wait, but serve none. Then a transaction serves them all.
#[test]
fn many_who_wait_for_the_same_keys_are_passed_over_and_then_served_in_order() {
    const N_WAITING: usize = 60;
    const N_KEYS: usize = 80;
    everywhere(|server| {
        let mut client = server.connect();
        let keys: Vec<String> = (0..N_KEYS).map(|nth| format!("key-{nth}")).collect();
        let mut waiting: Vec<Client> = (0..N_WAITING).map(|_| server.connect()).collect();
        for (nth, one) in waiting.iter_mut().enumerate() {
            // Every second client writes to another key when it is served.
            match nth % 2 {
                0 => tell(one, &format!("BLPOP {} 0", keys.join(" "))),
                _ => tell(one, "BLMOVE key-0 served LEFT RIGHT 0"),
            }
            until("it waits", || {
                ask(&mut client, "INFO clients").contains(&format!("blocked_clients:{}\\r", nth + 1))
            });
        }
        let words: Vec<String> = keys.iter().map(|key| format!("{key} x")).collect();
        assert_eq!(ask(&mut client, &format!("MSET {}", words.join(" "))), "+OK");
        assert_eq!(ask(&mut client, &format!("DEL {}", keys.join(" "))), format!(":{N_KEYS}"));
        ask(&mut client, "MULTI");
        for nth in 0..N_WAITING {
            ask(&mut client, &format!("RPUSH key-0 {nth}"));
        }
        ask(&mut client, "EXEC");
        for (nth, one) in waiting.iter_mut().enumerate() {
            let expected = if nth % 2 == 0 { format!("[\"key-0\" \"{nth}\"]") } else { format!("\"{nth}\"") };
            assert_eq!(one.receive().to_string(), expected);
        }
        let moved: Vec<String> = (1..N_WAITING).step_by(2).map(|nth| format!("\"{nth}\"")).collect();
        let served = ask(&mut client, "LRANGE served 0 -1");
        assert_eq!(served.split_whitespace().collect::<String>(), format!("[{}]", moved.concat()));
    });
}
