//! Servers whose clock is set while they run. Deadlines are wall time, and waits use a clock that cannot be
//! set.
//!
//! The library of `faketime` makes the server read another wall clock. `make crash` requires it
//! (`BRAID_REQUIRE_FAKETIME=1`). Otherwise the tests print a note and pass where it is not installed.

use std::{
    ffi::OsStr,
    fs,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::support::{
    Client, Server,
    crowd::{ask, figure, tell, until},
    home::Home,
    reference::leave_out,
};

/// If this is 1, the tests fail where the clock cannot be set.
const REQUIRE_FAKETIME: &str = "BRAID_REQUIRE_FAKETIME";

/// How far the clock is set, in seconds.
const FAR: i64 = 7200;

/// A wall clock that can be set.
struct Wall {
    library: PathBuf,
    /// The file with the clock's offset in seconds.
    file: PathBuf,
    _folder: Home,
}

impl Wall {
    /// Makes a clock with the right time, or none if the library is missing.
    fn right() -> Option<Wall> {
        let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
        let mut paths = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
        let Some(library) = paths.find(|path| path.exists()) else {
            leave_out(
                "clocks that are set",
                "faketime is missing: apt-get install faketime",
                REQUIRE_FAKETIME,
            );
            return None;
        };
        let folder = Home::new();
        let wall = Wall { library, file: folder.path().join("ahead"), _folder: folder };
        wall.write(0);
        Some(wall)
    }

    fn write(&self, ahead: i64) {
        // It is read at any time, so it is replaced as a whole.
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{ahead:+}\n")).expect("the folder is writable");
        fs::rename(&new, &self.file).expect("the folder is writable");
    }

    /// Sets the clock to `ahead` seconds after the real time. Waits until the server's time follows.
    fn set(&self, ahead: i64, client: &mut Client) {
        self.write(ahead);
        until("the server's clock follows", || (time_of(client) - real_time() - ahead).abs() <= 2);
    }

    /// Starts a server that uses this clock.
    fn serve(&self, args: &[&str]) -> Server {
        let is_set = OsStr::new("1");
        let variables = [
            ("LD_PRELOAD", self.library.as_os_str()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.as_os_str()),
            ("FAKETIME_NO_CACHE", is_set),
            ("DONT_FAKE_MONOTONIC", is_set),
            ("FAKETIME_DONT_FAKE_MONOTONIC", is_set),
        ];
        Server::start_with(&variables, args)
    }
}

fn real_time() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970").as_secs() as i64
}

/// Returns the seconds of TIME.
fn time_of(client: &mut Client) -> i64 {
    let reply = ask(client, "TIME");
    let seconds = reply.split('"').nth(1).and_then(|seconds| seconds.parse().ok());
    seconds.unwrap_or_else(|| panic!("{reply} is no time"))
}

fn number(client: &mut Client, line: &str) -> i64 {
    let reply = ask(client, line);
    reply.trim_start_matches(':').parse().unwrap_or_else(|_| panic!("{line}: {reply} is no number"))
}

/// Expects a number that has decreased a little since it was set.
#[track_caller]
fn assert_near(found: i64, expected: i64) {
    assert!((expected - 60..=expected + 3).contains(&found), "{found} is not about {expected}");
}

/// Few and many threads and shards.
const LAYOUTS: [[&str; 4]; 2] =
    [["--io-threads", "1", "--shards", "1"], ["--io-threads", "4", "--shards", "1024"]];

#[test]
fn a_clock_that_is_set_forward_is_followed_everywhere() {
    let Some(wall) = Wall::right() else { return };
    for layout in LAYOUTS {
        wall.write(0);
        let server = wall.serve(&layout);
        let mut client = server.connect();
        for line in ["SET short v EX 600", "SET long v EX 100000", "SET forever v", "XADD s * f v"] {
            assert!(!ask(&mut client, line).starts_with('-'), "{line}");
        }
        ask(&mut client, "HSET h short v long v");
        assert_eq!(ask(&mut client, "HEXPIRE h 600 FIELDS 1 short"), "[:1]");
        assert_eq!(ask(&mut client, "HEXPIRE h 100000 FIELDS 1 long"), "[:1]");
        ask(&mut client, "CONFIG SET slowlog-log-slower-than 0");
        wall.set(FAR, &mut client);
        assert_eq!(ask(&mut client, "GET short"), "(nil)");
        assert_near(number(&mut client, "TTL long"), 100_000 - FAR);
        assert_eq!(ask(&mut client, "HMGET h short long"), "[(nil) \"v\"]");
        let now = real_time() + FAR;
        assert_eq!(ask(&mut client, &format!("EXPIREAT forever {}", now + 100)), ":1");
        assert_near(number(&mut client, "TTL forever"), 100);
        assert_eq!(ask(&mut client, &format!("SET past v EXAT {}", now - 10)), "+OK");
        assert_eq!(ask(&mut client, "EXISTS past"), ":0");
        assert_eq!(ask(&mut client, &format!("SET k v PXAT {}", (now + 50) * 1000)), "+OK");
        assert_near(number(&mut client, "TTL k"), 50);
        assert_eq!(ask(&mut client, "SET k v EX 50"), "+OK");
        assert_near(number(&mut client, "EXPIRETIME k"), now + 50 + 3);
        let id = ask(&mut client, "XADD s * f v");
        let millis: i64 = id.trim_matches('"').split('-').next().unwrap().parse().unwrap();
        assert_near(millis / 1000, now + 3);
        let lua = client.command(&["EVAL", "return tonumber(redis.call('TIME')[1])", "0"]);
        assert_near(lua.integer().expect("seconds"), now + 3);
        let slow = ask(&mut client, "SLOWLOG GET 1");
        assert!(slow.contains(&format!(":{}", &now.to_string()[..7])), "{slow}");
        assert_eq!(ask(&mut client, "SAVE"), "+OK");
        assert_near(number(&mut client, "LASTSAVE"), now + 3);
        assert!(
            figure(&mut client, "uptime_in_seconds") < FAR as usize,
            "the server has not run for so long"
        );
        assert_eq!(server.log().matches("The system's clock was set forward").count(), 1, "{}", server.log());
        assert_eq!(server.log().matches("The system's clock was set").count(), 1);
    }
}

#[test]
fn a_clock_that_is_set_back_is_followed_everywhere_and_keys_live_longer() {
    let Some(wall) = Wall::right() else { return };
    for layout in LAYOUTS {
        wall.write(FAR);
        let server = wall.serve(&[&layout[..], &["--maxmemory-policy", "allkeys-lru"]].concat());
        let (mut client, mut other) = (server.connect(), server.connect());
        for n in 0..50 {
            ask(&mut client, &format!("SET k{n} v EX 100"));
        }
        ask(&mut client, "HSET h f v");
        assert_eq!(ask(&mut client, "HEXPIRE h 100 FIELDS 1 f"), "[:1]");
        let first = ask(&mut client, "XADD s * f v");
        let is_parked = "XREAD BLOCK 0 STREAMS other $";
        tell(&mut other, is_parked);
        until("it waits", || figure(&mut client, "blocked_clients") == 1);
        wall.set(0, &mut client);
        for n in 0..50 {
            assert_near(number(&mut client, &format!("TTL k{n}")), 100 + FAR);
        }
        let ttl = ask(&mut client, "HTTL h FIELDS 1 f");
        assert_near(ttl.trim_matches(['[', ']', ':']).parse().unwrap(), 100 + FAR);
        let second = ask(&mut client, "XADD s * f v");
        let parts =
            |id: &str| id.trim_matches('"').split_once('-').map(|(ms, n)| (ms.to_owned(), n.to_owned()));
        let (first, second) = (parts(&first).unwrap(), parts(&second).unwrap());
        assert_eq!((&first.0, &first.1[..], &second.1[..]), (&second.0, "0", "1"), "ids never go back");
        assert_eq!(ask(&mut client, "OBJECT IDLETIME k1"), ":0", "what was used in the future is not idle");
        let now = real_time();
        assert_eq!(ask(&mut client, &format!("SET k v EXAT {}", now + 100)), "+OK");
        assert_near(number(&mut client, "TTL k"), 100);
        assert_eq!(ask(&mut client, "SET k v EX 100"), "+OK");
        assert_near(number(&mut client, "EXPIRETIME k"), now + 100 + 3);
        // A command that began to wait earlier has the new time when it is served.
        ask(&mut client, "XADD other * f v");
        assert!(other.receive().to_string().contains("other"));
        assert_eq!(ask(&mut client, "SET k2 v EX 100"), "+OK");
        assert_near(number(&mut client, "EXPIRETIME k2"), now + 100 + 3);
        assert_eq!(server.log().matches("The system's clock was set back").count(), 1, "{}", server.log());
    }
}

#[test]
fn what_only_waits_does_not_go_by_the_wall() {
    let Some(wall) = Wall::right() else { return };
    let server = wall.serve(&["--io-threads", "2"]);
    let (mut control, mut short, mut long, mut paused) =
        (server.connect(), server.connect(), server.connect(), server.connect());
    let patient: Vec<Client> =
        ["BLPOP l 3000", "BLMOVE l m LEFT LEFT 3000", "XREAD BLOCK 3000000 STREAMS s $", "WAIT 1 3000000"]
            .into_iter()
            .map(|line| {
                let mut client = server.connect();
                tell(&mut client, line);
                client
            })
            .collect();
    tell(&mut long, "BZPOPMIN z 3000");
    until("they wait", || figure(&mut control, "blocked_clients") == 5);
    wall.set(FAR, &mut control);
    assert_eq!(figure(&mut control, "blocked_clients"), 5, "nothing gives up early");
    let listed = ask(&mut control, "CLIENT LIST");
    for part in ["age=", "idle="] {
        let seconds =
            listed.split(part).skip(1).map(|rest| rest.split(' ').next().unwrap().parse::<i64>().unwrap());
        assert!(seconds.max().unwrap() < FAR, "{listed}");
    }
    drop(patient);
    tell(&mut short, "BLPOP none 0.5");
    tell(&mut paused, "CLIENT PAUSE 500 WRITE");
    wall.set(-FAR, &mut control);
    assert_eq!(short.receive().to_string(), "(nil-array)", "a wait ends after a step back, too");
    assert_eq!(paused.receive().to_string(), "+OK");
    assert_eq!(ask(&mut control, "SET k v"), "+OK", "and so does a pause");
}

#[test]
fn a_clock_that_is_set_within_a_transaction_and_a_script_holds_for_what_follows() {
    let Some(wall) = Wall::right() else { return };
    for (before, after) in [(0, FAR), (FAR, 0)] {
        for layout in LAYOUTS {
            wall.write(before);
            let server = wall.serve(&layout);
            let (mut client, mut control) = (server.connect(), server.connect());
            for line in ["MULTI", "SET k v EX 100", "TTL k"] {
                ask(&mut client, line);
            }
            wall.set(after, &mut control);
            assert!(ask(&mut client, "EXEC").starts_with("[+OK"));
            assert_near(number(&mut client, "EXPIRETIME k"), real_time() + after + 100 + 3);
            wall.set(before, &mut control);
            // It runs until the clock is set, and a little longer.
            let text = "redis.call('SET', KEYS[1], 'v') local t = tonumber(redis.call('TIME')[1]) \
                        while math.abs(tonumber(redis.call('TIME')[1]) - t) < 3600 do end \
                        redis.call('SET', KEYS[1], 'w', 'EX', 100) return redis.call('TTL', KEYS[1])";
            let n_before = n_times(&mut control);
            client.send(&["EVAL", text, "1", "k"]);
            // If the clock were set before the script first reads it, the script would wait for ever.
            until("the script has looked at the clock", || n_times(&mut control) > n_before);
            wall.write(after);
            assert_eq!(client.receive().integer(), Some(100));
            wall.set(after, &mut control);
            // No shard keeps the time of the script.
            assert_eq!(ask(&mut client, "SET k v EX 100"), "+OK");
            assert_near(number(&mut client, "EXPIRETIME k"), real_time() + after + 100 + 3);
        }
    }
}

/// Returns the number of calls of TIME by clients and scripts.
fn n_times(control: &mut Client) -> u64 {
    let info = control.command(&["INFO", "commandstats"]).text().expect("INFO answers text");
    let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_time:calls=")?.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

#[test]
fn snapshots_and_the_file_mean_wall_time_across_restarts() {
    let Some(wall) = Wall::right() else { return };
    for keeps_log in ["no", "yes"] {
        for (before, after, is_over) in [(0, FAR, true), (0, -FAR, false)] {
            let home = Home::new();
            let path = home.path().to_str().expect("it is UTF-8").to_owned();
            let args = ["--dir", &path, "--appendonly", keeps_log, "--aof-timestamp-enabled", "yes"];
            wall.write(before);
            let server = wall.serve(&args);
            let mut client = server.connect();
            ask(&mut client, "SET k v EX 600");
            ask(&mut client, "HSET h f v stays v");
            ask(&mut client, "HEXPIRE h 600 FIELDS 1 f");
            if keeps_log == "no" {
                assert_eq!(ask(&mut client, "SAVE"), "+OK");
            } else {
                // The file was written under two clocks.
                wall.set(after / 2, &mut client);
                ask(&mut client, "SET later v EX 600");
            }
            server.stop();
            wall.write(after);
            let server = wall.serve(&args);
            let mut client = server.connect();
            if is_over {
                assert_eq!(ask(&mut client, "EXISTS k later"), ":0");
                assert_eq!(ask(&mut client, "HGETALL h"), "[\"stays\" \"v\"]");
            } else {
                assert_near(number(&mut client, "TTL k"), 600 - after);
                let ttl = ask(&mut client, "HTTL h FIELDS 1 f");
                assert_near(ttl.trim_matches(['[', ']', ':']).parse().unwrap(), 600 - after);
            }
            assert_eq!(ask(&mut client, "SET new v EX 100"), "+OK");
            assert_near(number(&mut client, "EXPIRETIME new"), real_time() + after + 100 + 3);
        }
    }
}

#[test]
fn save_points_do_not_go_by_the_wall() {
    let Some(wall) = Wall::right() else { return };
    let server = wall.serve(&["--save", "7000 1"]);
    let mut client = server.connect();
    ask(&mut client, "SET k v");
    wall.set(FAR, &mut client);
    assert_eq!(ask(&mut client, "SET k w"), "+OK");
    assert_eq!(figure(&mut client, "rdb_saves"), 0, "the seconds of the save point have not passed");
    assert_eq!(figure(&mut client, "rdb_bgsave_in_progress"), 0);

    wall.set(-FAR, &mut client);
    assert_eq!(client.command(&["CONFIG", "SET", "save", "1 1"]).to_string(), "+OK");
    until("the save point is reached", || figure(&mut client, "rdb_saves") == 1);
    assert_eq!(ask(&mut client, "GET k"), "\"w\"");
}
