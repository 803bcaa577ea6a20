//! Replicas that are slow: the change stream waits for them in files.

use super::*;

/// Bytes that a slow replica may keep in memory beside the backlog.
const BESIDE_BACKLOG: usize = 16 << 20;

/// Overwrites a few keys until so many bytes are in the stream.
fn write(client: &mut Client, n_bytes: usize) {
    const LONG: usize = 256 << 10;
    let value = "x".repeat(LONG);
    for nth in 0..n_bytes / LONG {
        client.command(&["SET", &format!("key:{}", nth % 4), &value]);
        client.command(&["RPUSH", "order", &nth.to_string()]);
    }
}

/// Writes until the spool has a part of the stream, beyond the part that sockets take.
fn fill_spool(client: &mut Client) {
    until("the stream goes to the spool", || {
        write(client, 1 << 20);
        figure(client, "repl_spool_bytes") > 4 << 20
    });
    await_spooled(client);
}

/// Waits until the stream for slow replicas is in the spool.
fn await_spooled(client: &mut Client) {
    until("it is not in memory", || figure(client, "mem_clients_slaves") < 1 << 20);
}

fn await_online(client: &mut Client, n: usize) {
    until("they are online", || ask(client, "INFO replication").matches("state=online").count() == n);
}

/// A replica that is online and reads nothing, with its copy.
fn idle_replica(server: &Server) -> (PlayedReplica, Copy) {
    let (replica, copy) = PlayedReplica::synchronize(server);
    await_online(&mut server.connect(), 1);
    (replica, copy)
}

/// A server whose spool has a part of the stream for a replica.
fn with_spool() -> (Server, Client, PlayedReplica, Copy) {
    let server = primary(&["--repl-backlog-size", "16kb"]);
    let mut client = server.connect();
    let (replica, copy) = idle_replica(&server);
    fill_spool(&mut client);
    (server, client, replica, copy)
}

/// Reads the rest of the stream, and compares the data that it makes of the copy with the server's.
fn check_data(server: &Server, replica: &mut PlayedReplica, copy: &Copy) {
    let mut client = server.connect();
    ask(&mut client, "SET the-end 1");
    replica.read_until("the-end\r\n$1\r\n1\r\n");
    let loaded = server_with(copy, server.scratch());
    let mut applying = loaded.connect();
    applying.send_raw(&std::mem::take(&mut replica.read));
    until("the stream is applied", || ask(&mut loaded.connect(), "GET the-end") == "\"1\"");
    assert_eq!(digest(&loaded), digest(server));
}

#[test]
fn a_replica_that_stops_amid_the_copy_gets_the_stream_from_the_spool() {
    let server = primary(&["--rdb-key-save-delay", "1000", "--repl-backlog-size", "1mb"]);
    let mut client = server.connect();
    ask(&mut client, "DEBUG POPULATE 20000");
    let mut replica = PlayedReplica::connect(&server);
    replica.introduce();
    replica.send("PSYNC ? -1");
    replica.read_announcement();
    write(&mut client, 96 << 20);
    until("the stream is in the spool", || figure(&mut client, "repl_spool_bytes") > 90 << 20);
    until("it is not in memory", || figure(&mut client, "mem_clients_slaves") < 8 << 20);
    let most = (1 << 20) + BESIDE_BACKLOG;
    assert!(figure(&mut client, "mem_total_replication_buffers") < most);
    assert!(ask(&mut client, "INFO replication").contains("state=wait_bgsave"));
    ask(&mut client, "CONFIG SET rdb-key-save-delay 0");
    let copy = replica.read_copy();
    replica.acknowledge();
    check_data(&server, &mut replica, &copy);
    assert_eq!(figure(&mut client, "sync_full"), 1);
    until("nobody needs it", || figure(&mut client, "repl_spool_bytes") == 0);
    let log = server.log();
    for line in ["the change stream goes to the spool for it", "No replica needs the spool any more"] {
        assert!(log.contains(line), "{line}");
    }
    assert!(!log.contains("output buffer limits"));
}

#[test]
fn slow_replicas_at_several_places_share_the_spool_and_leave_it_one_by_one() {
    let server = primary(&["--repl-backlog-size", "16kb", "--client-output-buffer-limit", "replica 4mb 0 0"]);
    let mut client = server.connect();
    let (mut first, copy) = idle_replica(&server);
    write(&mut client, 16 << 20);
    let (mut second, later_copy) = PlayedReplica::synchronize(&server);
    await_online(&mut client, 2);
    let (third, _) = PlayedReplica::synchronize(&server);
    await_online(&mut client, 3);
    fill_spool(&mut client);
    write(&mut client, 16 << 20);
    await_spooled(&mut client);
    drop(third);
    check_data(&server, &mut first, &copy);
    check_data(&server, &mut second, &later_copy);
    until("nobody needs it", || figure(&mut client, "repl_spool_bytes") == 0);
    assert_eq!(figure(&mut client, "sync_full"), 3);
}

#[test]
fn a_replica_goes_on_at_a_place_that_only_the_spool_has() {
    let server = primary(&["--repl-backlog-size", "16kb"]);
    let mut client = server.connect();
    let (idle, _) = idle_replica(&server);
    let (mut replica, copy) = PlayedReplica::synchronize(&server);
    await_online(&mut client, 2);
    fill_spool(&mut client);
    ask(&mut client, "SET marker 1");
    write(&mut client, 4 << 20);
    await_spooled(&mut client);
    replica.read_until("marker\r\n$1\r\n1\r\n");
    let first_in_backlog = figure(&mut client, "repl_backlog_first_byte_offset") as u64;
    assert!(replica.offset < first_in_backlog);
    let (id, offset, read) = (replica.id.clone(), replica.offset, std::mem::take(&mut replica.read));
    drop(replica);
    replica = PlayedReplica::connect(&server);
    replica.introduce();
    assert_eq!(replica.ask(&format!("PSYNC {id} {}", offset + 1)), format!("+CONTINUE {id}"));
    (replica.offset, replica.read) = (offset, read);
    check_data(&server, &mut replica, &copy);
    drop(idle);
}

#[test]
fn a_replica_is_closed_as_before_if_the_spool_may_not_take_the_stream() {
    let limits = ["--client-output-buffer-limit", "replica 4mb 0 0", "--repl-backlog-size", "16kb"];
    for (more, why) in [
        (["--repl-spool-max", "2mb"], Some("repl-spool-max is 2097152")),
        (["--dir", "gone"], Some("No such file or directory")),
        (["--repl-spool", "no"], None),
    ] {
        let folder = folder_to_lose(&more);
        let more = [more[0], folder.as_deref().unwrap_or(more[1])];
        let server = primary(&[&limits[..], &more].concat());
        let mut client = server.connect();
        let (_idle, _) = idle_replica(&server);
        if let Some(folder) = &folder {
            fs::remove_dir(folder).expect("it is empty");
        }
        write(&mut client, 32 << 20);
        until("the link is closed", || ask(&mut client, "INFO replication").contains("connected_slaves:0"));
        let log = server.log();
        assert!(log.contains("overcoming of output buffer limits"), "{log}");
        match why {
            Some(why) => assert!(log.contains(why), "{log}"),
            None => assert!(!log.contains("spool"), "{log}"),
        }
        until("it is freed", || figure(&mut client, "repl_spool_bytes") == 0);
    }
}

/// The folder that the server is to lose, if it is.
fn folder_to_lose(options: &[&str; 2]) -> Option<String> {
    if options != &["--dir", "gone"] {
        return None;
    }
    let folder = std::env::temp_dir().join(format!("braid-spool-gone-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    Some(folder.to_str().expect("text").to_owned())
}

#[test]
fn the_spool_goes_on_when_the_disk_has_room_again() {
    let (server, mut client, mut replica, copy) = with_spool();
    ask(&mut client, "DEBUG AOF-FAIL write ENOSPC 1 1000000");
    write(&mut client, 16 << 20);
    assert!(figure(&mut client, "mem_clients_slaves") > 8 << 20);
    until("the log has it", || server.log().contains("The spool for slow replicas takes nothing more"));
    ask(&mut client, "DEBUG AOF-FAIL write none 1 1");
    await_spooled(&mut client);
    assert!(figure(&mut client, "repl_spool_bytes") > 20 << 20);
    check_data(&server, &mut replica, &copy);
}

#[test]
fn a_spool_that_is_turned_off_is_read_to_its_end() {
    let (server, mut client, mut replica, copy) = with_spool();
    assert_eq!(ask(&mut client, "CONFIG SET repl-spool no"), "+OK");
    write(&mut client, 8 << 20);
    check_data(&server, &mut replica, &copy);
    until("nobody needs it", || figure(&mut client, "repl_spool_bytes") == 0);
}

#[test]
fn a_change_in_the_spool_that_a_replica_does_not_know_ends_its_link() {
    let (server, mut client, mut replica, _) = with_spool();
    ask(&mut client, "HSET hash field value");
    ask(&mut client, "HPEXPIRE hash 100000000 FIELDS 1 field");
    write(&mut client, 1 << 20);
    await_spooled(&mut client);
    let mut rest = Vec::new();
    replica.stream.read_to_end(&mut rest).expect("the server closes the link");
    assert!(!rest.windows(10).any(|window| window == b"HPEXPIREAT"));
    assert!(server.log().contains("cannot know HPEXPIREAT"));
}

#[test]
fn replicas_that_must_ask_anew_free_the_spool_and_shutdown_waits_for_others() {
    let mut server = primary(&["--repl-backlog-size", "16kb", "--shutdown-timeout", "1000"]);
    let mut client = server.connect();
    let (mut parted, _) = idle_replica(&server);
    fill_spool(&mut client);
    assert_eq!(ask(&mut client, "DEBUG RELOAD"), "+OK");
    assert!(parted.is_closed());
    until("it is freed", || figure(&mut client, "repl_spool_bytes") == 0);
    let (mut replica, _) = idle_replica(&server);
    fill_spool(&mut client);
    client.send(&["SHUTDOWN", "NOSAVE"]);
    replica.read_until("GETACK\r\n$1\r\n*\r\n");
    server.await_end();
    assert!(server.log().contains("1 of 1 replicas are in sync"), "{}", server.log());
}
