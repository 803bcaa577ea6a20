//! HOTKEYS: the keys that cost the most, whichever threads serve them and however their commands run.

use std::thread;

use crate::support::{
    Client, Reply, Server,
    crowd::{ask, everywhere, laid_out, until, while_connections_move},
};

const N_CLIENTS: usize = 4;
const N_PIPELINES: usize = 40;

/// Returns the keys of a report with their costs, the hottest first.
fn hot(client: &mut Client, name: &str) -> Vec<(String, i64)> {
    let Reply::Array(reports) = client.command(&["HOTKEYS", "GET"]) else { panic!("no report") };
    let [Reply::Array(fields)] = &reports[..] else { panic!("a report is a list of fields") };
    let named = fields.chunks(2).find(|field| field[0].text().as_deref() == Some(name));
    let Some([_, Reply::Array(keys)]) = named else { panic!("no {name}") };
    let pairs = keys.chunks(2).map(|pair| (pair[0].text().unwrap(), pair[1].integer().unwrap()));
    pairs.collect()
}

/// Sends pipelines in which every third command uses the key `hot`. The others use keys of their own.
fn skewed_load(client: &mut Client, nth: usize) {
    for pipeline in 0..N_PIPELINES {
        for command in 0..30 {
            let key = match command % 3 {
                0 => "hot".to_owned(),
                _ => format!("cold-{nth}-{pipeline}-{command}"),
            };
            client.send(&["SET", &key, "value"]);
        }
        for _ in 0..30 {
            assert_eq!(client.receive().to_string(), "+OK");
        }
    }
}

fn skewed_loads(server: &Server) {
    thread::scope(|scope| {
        for nth in 0..N_CLIENTS {
            scope.spawn(move || skewed_load(&mut server.connect(), nth));
        }
    });
}

#[test]
fn the_hot_key_of_a_skewed_load_comes_first() {
    everywhere(|server| {
        let mut control = server.connect();
        assert_eq!(ask(&mut control, "HOTKEYS START METRICS 2 CPU NET COUNT 64"), "+OK");
        skewed_loads(server);
        let by_bytes = hot(&mut control, "by-net-bytes");
        // `SET hot value` has 33 bytes, and its reply has 5.
        let n_sets = (N_CLIENTS * N_PIPELINES * 10) as i64;
        assert_eq!(by_bytes[0], ("hot".to_owned(), n_sets * (33 + 5)));
        assert_eq!(by_bytes.len(), 64);
        assert!(by_bytes[1].1 < 100, "{by_bytes:?}");
        // A thread may lose its processor while it sets a cold key, which then costs more time.
        assert!(hot(&mut control, "by-cpu-time-us").iter().any(|(key, _)| key == "hot"));
        assert_eq!(ask(&mut control, "HOTKEYS STOP"), "+OK");
        // Later commands are not counted.
        skewed_loads(server);
        assert_eq!(hot(&mut control, "by-net-bytes"), by_bytes);
    });
}

#[test]
fn it_is_found_by_samples_too() {
    let server = laid_out((2, 16));
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "HOTKEYS START METRICS 1 NET SAMPLE 20 COUNT 1"), "+OK");
    until("samples show it", || {
        skewed_loads(&server);
        hot(&mut control, "by-net-bytes").first().is_some_and(|(key, bytes)| key == "hot" && *bytes > 38 * 50)
    });
}

#[test]
fn commands_count_once_however_they_run() {
    for layout in [(2, 1), (2, 16), (8, 1024)] {
        let server = laid_out(layout);
        let (mut control, mut waiting) = (server.connect(), server.connect());
        assert_eq!(ask(&mut control, "HOTKEYS START METRICS 1 NET COUNT 20"), "+OK");
        while_connections_move(&server, 2, || {
            assert_eq!(ask(&mut control, "HOTKEYS STOP"), "+OK");
            assert_eq!(ask(&mut control, "HOTKEYS START METRICS 1 NET COUNT 20"), "+OK");
            let id = ask(&mut waiting, "CLIENT ID");
            waiting.send(&["BLPOP", "list", "0"]);
            until("it waits", || {
                let line = control.command(&["CLIENT", "LIST", "ID", &id[1..]]).text().unwrap();
                line.contains("cmd=blpop") && line.contains("flags=b")
            });
            assert_eq!(ask(&mut control, "RPUSH list x"), ":1");
            assert_eq!(waiting.receive().to_string(), "[\"list\" \"x\"]");
            assert_eq!(ask(&mut control, "MULTI"), "+OK");
            assert_eq!(ask(&mut control, "GET none"), "+QUEUED");
            assert_eq!(ask(&mut control, "EXEC"), "[(nil)]");
            assert_eq!(ask(&mut control, "SUNIONSTORE to from-1 from-2"), ":0");
        });
        let mut found = hot(&mut control, "by-net-bytes");
        found.sort();
        let expected = [
            ("from-1", (54 + 4) / 3),
            ("from-2", (54 + 4) / 3),
            // RPUSH, and BLPOP with its two words.
            ("list", 32 + 4 + 32 + 21),
            ("none", 23 + 5),
            ("to", (54 + 4) / 3),
        ];
        assert_eq!(found.len(), expected.len());
        for ((key, bytes), (named, about)) in found.iter().zip(expected) {
            assert_eq!(key, named);
            assert!((about - 3..=about + 3).contains(bytes), "{key}: {bytes} bytes, and not about {about}");
        }
    }
}
