//! A folder for servers with an append-only file that start one after the other.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::{
    Client, Server,
    crowd::{ask, until},
};

/// A folder that outlives the servers that work in it. It belongs to an idle server.
pub struct Home(Server);

impl Home {
    /// Makes an empty folder.
    pub fn new() -> Home {
        Home(Server::start(&[]))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.0.scratch()
    }

    /// Starts a server in the folder.
    pub fn serve(&self, args: &[&str]) -> Server {
        self.try_serve(args).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Starts a server in the folder, or returns the reason why it does not start.
    pub fn try_serve(&self, args: &[&str]) -> Result<Server, String> {
        let path = self.path().to_str().expect("it is UTF-8");
        Server::try_start(&[&["--dir", path, "--appendonly", "yes"], args].concat())
    }

    /// Returns the paths of the parts of its append-only file with a suffix, sorted.
    pub fn parts(&self, suffix: &str) -> Vec<PathBuf> {
        let listed = fs::read_dir(self.path().join("appendonlydir")).expect("there is an append-only file");
        let mut parts: Vec<PathBuf> = listed.map(|file| file.expect("it can be listed").path()).collect();
        parts.retain(|path| path.to_string_lossy().ends_with(suffix));
        parts.sort();
        parts
    }

    /// Returns the reason why a server does not start in the folder.
    pub fn refusal(&self, args: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_braid-server"))
            .args(["--port", "0", "--unixsocket", "braid.sock", "--save", "", "--appendonly", "yes", "--dir"])
            .arg(self.path())
            .args(args)
            .output()
            .expect("it can be run");
        assert!(!output.status.success(), "it has started");
        text_of(&output)
    }

    /// Runs `--check-aof` on its append-only file. Returns the output as an error if there is a fault.
    pub fn check(&self) -> Result<(), String> {
        let manifest = self.path().join("appendonlydir").join("appendonly.aof.manifest");
        let output = Command::new(env!("CARGO_BIN_EXE_braid-server"))
            .arg("--check-aof")
            .arg(manifest)
            .output()
            .expect("it can be run");
        if output.status.success() { Ok(()) } else { Err(text_of(&output)) }
    }

    /// Runs `--check-aof` after a server was killed, which may have cut off its last write.
    ///
    /// # Panics
    /// If there is any other fault.
    pub fn check_after_kill(&self) {
        if let Err(why) = self.check() {
            assert!(why.contains("is torn:") && !why.contains("is damaged"), "{why}");
        }
    }

    /// Kills a server that has the keys `before` and `later`, both 1. It has refused the key `refused`. The
    /// next two servers must find this state. Keys in `unknown` were reported to no client and may be
    /// missing.
    ///
    /// # Panics
    /// If they find less, or more.
    pub fn found_after_kill(&self, server: Server, args: &[&str], unknown: &[&str]) {
        server.stop();
        self.check_after_kill();
        for _ in 0..2 {
            let server = self.serve(args);
            let mut client = server.connect();
            for key in ["before", "later"] {
                if !unknown.contains(&key) {
                    assert_eq!(ask(&mut client, &format!("GET {key}")), "\"1\"", "{key} is lost, {args:?}");
                }
            }
            assert_eq!(ask(&mut client, "EXISTS refused"), ":0", "{args:?}");
            server.stop();
        }
    }
}

/// Waits until writes that cannot be logged are refused.
///
/// # Panics
/// When they never are.
pub fn until_refused(client: &mut Client) {
    until("writes are refused", || ask(client, "PING").starts_with("-MISCONF"));
    assert!(ask(client, "SET refused 1").starts_with("-MISCONF"));
}

/// Waits until writes are accepted again.
///
/// # Panics
/// When they never are.
pub fn until_accepted(client: &mut Client) {
    until("writes are accepted again", || ask(client, "PING") == "+PONG");
}

fn text_of(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}
