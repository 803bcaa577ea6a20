//! Histories that go on: after a promotion, after a restart in either role, and through replicas of replicas.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
};

use super::played::{field, until_up};
use crate::support::{
    Client, PATIENCE, Server,
    crowd::{ask, figure, until},
    home::Home,
};

/// The options of all servers here: no waiting for more replicas, and a PING only where a test wants one.
const COMMON: [&str; 6] =
    ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "3600", "--appendonly", "no"];

/// A server on a folder of its own, which may be started again.
struct Member {
    home: Home,
    args: Vec<String>,
    server: Option<Server>,
}

impl Member {
    fn new(more: &[&str], primary: Option<&Member>) -> Self {
        let mut args: Vec<String> = COMMON.iter().map(|&arg| arg.to_owned()).collect();
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        if let Some(primary) = primary {
            args.extend(["--replicaof".to_owned(), "127.0.0.1".to_owned(), primary.port().to_string()]);
        }
        let mut member = Self { home: Home::new(), args, server: None };
        member.start();
        if primary.is_some() {
            until_up(&mut member.client());
        }
        member
    }

    fn start(&mut self) {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        self.server = Some(self.home.serve(&args));
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs")
    }

    fn port(&self) -> u16 {
        self.server().port()
    }

    fn client(&self) -> Client {
        self.server().connect()
    }

    fn kill(&mut self) {
        self.server.take().expect("it runs").kill();
    }

    fn end(&mut self) {
        let mut client = self.client();
        client.send(&["SHUTDOWN"]);
        let status = self.server.take().expect("it runs").await_end();
        assert!(status.success());
    }

    fn follow(&self, other: &Member) {
        let mut client = self.client();
        assert_eq!(ask(&mut client, &format!("REPLICAOF 127.0.0.1 {}", other.port())), "+OK");
        until_up(&mut client);
    }

    fn digest(&self) -> String {
        ask(&mut self.client(), "DEBUG DIGEST")
    }
}

/// Writes of several kinds, in several databases.
fn write(client: &mut Client, from: usize) {
    for number in from..from + 100 {
        ask(client, &format!("SELECT {}", number % 3));
        ask(client, &format!("INCR counter:{}", number % 7));
        ask(client, &format!("RPUSH list {number}"));
        ask(client, "MULTI");
        ask(client, &format!("ZINCRBY zset 1.5 member:{}", number % 5));
        ask(client, &format!("HSET hash field:{number} {number}"));
        ask(client, "EXEC");
    }
    ask(client, "SELECT 0");
}

/// Waits until servers have the same data.
fn until_equal(first: &Member, others: &[&Member]) {
    for other in others {
        until("they have the same data", || first.digest() == other.digest());
    }
}

fn full_copies(of: &Member) -> usize {
    figure(&mut of.client(), "sync_full")
}

fn resumed(of: &Member) -> usize {
    figure(&mut of.client(), "sync_partial_ok")
}

#[test]
fn after_a_promotion_the_other_replicas_go_on_with_the_new_primary_and_so_does_the_old_one() {
    for more in [&[][..], &["--appendonly", "yes"]] {
        let first = Member::new(more, None);
        write(&mut first.client(), 0);
        let (second, third) = (Member::new(more, Some(&first)), Member::new(more, Some(&first)));
        write(&mut first.client(), 100);
        until_equal(&first, &[&second, &third]);
        let id = field(&mut first.client(), "master_replid");
        let mut client = second.client();
        assert_eq!(ask(&mut client, "REPLICAOF NO ONE"), "+OK");
        assert_eq!(field(&mut client, "master_replid2"), id);
        write(&mut client, 200);
        third.follow(&second);
        first.follow(&second);
        write(&mut client, 300);
        until_equal(&second, &[&first, &third]);
        assert_eq!((full_copies(&second), resumed(&second)), (0, 2));
        let new = field(&mut client, "master_replid");
        for member in [&first, &third] {
            assert_eq!(field(&mut member.client(), "master_replid"), new);
            assert_eq!(
                field(&mut member.client(), "master_repl_offset"),
                field(&mut client, "master_repl_offset")
            );
        }
    }
}

#[test]
fn a_replica_hands_on_what_it_receives_and_nothing_of_its_own() {
    let first = Member::new(&[], None);
    let middle = Member::new(&["--replica-read-only", "no", "--appendonly", "yes"], Some(&first));
    let last = Member::new(&[], Some(&middle));
    write(&mut first.client(), 0);
    ask(&mut middle.client(), "SET own 1");
    ask(&mut first.client(), "SELECT 2");
    write(&mut first.client(), 100);
    assert_eq!(ask(&mut first.client(), "PUBLISH nobody listens"), ":0");
    ask(&mut middle.client(), "PUBLISH nobody hears");
    until_equal(&first, &[&last]);
    assert_eq!(ask(&mut last.client(), "EXISTS own"), ":0");
    let offset = |member: &Member| field(&mut member.client(), "master_repl_offset");
    until("all are equally far", || offset(&first) == offset(&last) && offset(&first) == offset(&middle));
    // The last one may go on with the first, because the bytes are the same.
    last.follow(&first);
    write(&mut first.client(), 200);
    until_equal(&first, &[&last]);
    assert_eq!((full_copies(&first), resumed(&first)), (1, 1));
}

#[test]
fn a_replica_that_starts_again_goes_on_from_its_files() {
    let save = ["--save", "3600 100000"];
    for (more, is_killed) in
        [(&["--appendonly", "yes"][..], true), (&["--appendonly", "yes"], false), (&save[..], false)]
    {
        let first = Member::new(&[], None);
        write(&mut first.client(), 0);
        let mut replica = Member::new(more, Some(&first));
        write(&mut first.client(), 100);
        ask(&mut first.client(), "SET gone 1 PX 1");
        until_equal(&first, &[&replica]);
        if is_killed {
            replica.kill()
        } else {
            replica.end()
        }
        write(&mut first.client(), 200);
        replica.start();
        until_up(&mut replica.client());
        until_equal(&first, &[&replica]);
        write(&mut first.client(), 300);
        until_equal(&first, &[&replica]);
        assert_eq!((full_copies(&first), resumed(&first)), (1, 1), "{more:?} {is_killed}");
    }
}

#[test]
fn the_replicas_of_a_primary_that_starts_again_go_on() {
    let save = ["--save", "3600 100000"];
    for (more, is_killed) in
        [(&["--appendonly", "yes"][..], true), (&["--appendonly", "yes"], false), (&save[..], false)]
    {
        let mut first = Member::new(more, None);
        write(&mut first.client(), 0);
        let replica = Member::new(&[], Some(&first));
        write(&mut first.client(), 100);
        // It expires while the server is down, and the replica learns of that.
        ask(&mut first.client(), "SET gone 1 PX 1");
        // Only replicas get these.
        assert_eq!(ask(&mut first.client(), "WAIT 1 0"), ":1");
        assert_eq!(ask(&mut first.client(), "PUBLISH nobody listens"), ":0");
        let id = field(&mut first.client(), "master_replid");
        let offset = || field(&mut first.client(), "master_repl_offset");
        until("it has everything", || field(&mut replica.client(), "slave_repl_offset") == offset());
        if is_killed {
            first.kill()
        } else {
            first.end()
        }
        first.start();
        replica.follow(&first);
        write(&mut first.client(), 200);
        until_equal(&first, &[&replica]);
        assert_eq!((full_copies(&first), resumed(&first)), (0, 1), "{more:?} {is_killed}");
        assert_eq!(field(&mut first.client(), "master_replid2"), id);
        let changed = field(&mut first.client(), "master_replid");
        assert_ne!(changed, id);
        assert_eq!(field(&mut replica.client(), "master_replid"), changed);
    }
}

/// A primary that was killed has the bytes of the stream in its file: a replica that was behind gets them.
#[test]
fn a_replica_that_is_behind_a_killed_primary_gets_the_rest_from_its_file() {
    let mut first = Member::new(&["--appendonly", "yes"], None);
    write(&mut first.client(), 0);
    let id = {
        let _replica = Member::new(&[], Some(&first));
        field(&mut first.client(), "master_replid")
    };
    // The file begins anew, and says so.
    let mut client = first.client();
    ask(&mut client, "BGREWRITEAOF");
    until("it is rewritten", || ask(&mut client, "INFO persistence").contains("aof_rewrites:1"));
    let offset: u64 = field(&mut client, "master_repl_offset").parse().expect("a number");
    for line in ["SET a 1", "PUBLISH nobody listens", "SET b 2", "SET c 3"] {
        ask(&mut client, line);
    }
    first.kill();
    first.start();
    let mut link = BufReader::new(TcpStream::connect(("127.0.0.1", first.port())).expect("it listens"));
    link.get_ref().set_read_timeout(Some(PATIENCE)).expect("a socket");
    let asked = format!("REPLCONF capa psync2\r\nPSYNC {id} {}\r\n", offset + 1);
    link.get_mut().write_all(asked.as_bytes()).expect("it reads");
    let mut words = Vec::new();
    while words.last().is_none_or(|word| word != "3") {
        let mut line = String::new();
        assert!(link.read_line(&mut line).expect("the stream goes on") > 0);
        words.push(line.trim_end().to_owned());
    }
    let text = words.join(" ");
    assert!(text.starts_with("+OK +CONTINUE "), "{text}");
    assert!(text.contains("$3 SET $1 a $1 1") && text.contains("$3 SET $1 b $1 2"), "{text}");
    assert_eq!(full_copies(&first), 0);
}

/// A history ends if another program has written, and the replica gets a copy.
#[test]
fn a_history_ends_where_its_writes_are_in_no_stream() {
    let mut first = Member::new(&["--appendonly", "yes"], None);
    write(&mut first.client(), 0);
    let replica = Member::new(&[], Some(&first));
    until_equal(&first, &[&replica]);
    first.kill();
    // Another program has written to the file.
    let increment = first.home.parts(".incr.aof").pop().expect("an increment");
    let mut file = std::fs::File::options().append(true).open(increment).expect("it is there");
    file.write_all(b"*3\r\n$3\r\nSET\r\n$5\r\nother\r\n$1\r\n1\r\n").expect("there is room");
    first.start();
    replica.follow(&first);
    until("the replica is given a copy", || ask(&mut replica.client(), "EXISTS other") == ":1");
    until_equal(&first, &[&replica]);
    assert_eq!((full_copies(&first), resumed(&first)), (1, 0));
}
