//! File descriptors: as many as `maxclients` needs.

#[path = "it/support/mod.rs"]
mod support;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use support::{Client, Server, crowd::ask};

#[test]
fn a_low_soft_limit_of_open_files_keeps_no_client_out() {
    const SOFT: u64 = 128;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the system tells");
    // The server inherits the limit. This process has no other test.
    setrlimit(Resource::RLIMIT_NOFILE, SOFT, hard).expect("a limit may be lowered");
    let server = Server::start(&["--maxclients", "300"]);
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("up to the hard limit it may be raised");
    let mut clients: Vec<Client> = (0..200).map(|_| server.connect()).collect();
    for client in &mut clients {
        assert_eq!(ask(client, "PING"), "+PONG");
    }
    assert_eq!(ask(&mut clients[0], "CONFIG GET maxclients"), "[\"maxclients\" \"300\"]");
}
