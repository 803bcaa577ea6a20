//! A folder for servers with an append-only file that start one after the other.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::Server;

/// A folder that outlives the servers that work in it: that of a server which does nothing.
pub struct Home(Server);

impl Home {
    /// An empty one.
    pub fn new() -> Home {
        Home(Server::start(&[]))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.scratch()
    }

    /// A server that works there.
    pub fn serve(&self, args: &[&str]) -> Server {
        self.try_serve(args).unwrap_or_else(|why| panic!("{why}"))
    }

    /// The same, or why it does not start.
    pub fn try_serve(&self, args: &[&str]) -> Result<Server, String> {
        let path = self.path().to_str().expect("it is UTF-8");
        Server::try_start(&[&["--dir", path, "--appendonly", "yes"], args].concat())
    }

    /// The parts of its append-only file of a kind, by their names.
    pub fn parts(&self, suffix: &str) -> Vec<PathBuf> {
        let listed = fs::read_dir(self.path().join("appendonlydir")).expect("there is an append-only file");
        let mut parts: Vec<PathBuf> = listed.map(|file| file.expect("it can be listed").path()).collect();
        parts.retain(|path| path.to_string_lossy().ends_with(suffix));
        parts.sort();
        parts
    }

    /// Why a server does not start there.
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

    /// Has `--check-aof` look at its append-only file; returns what that prints if it finds a fault.
    pub fn check(&self) -> Result<(), String> {
        let manifest = self.path().join("appendonlydir").join("appendonly.aof.manifest");
        let output = Command::new(env!("CARGO_BIN_EXE_braid-server"))
            .arg("--check-aof")
            .arg(manifest)
            .output()
            .expect("it can be run");
        if output.status.success() { Ok(()) } else { Err(text_of(&output)) }
    }

    /// The same for a server that was killed, which may have cut off its last write.
    ///
    /// # Panics
    /// If more is wrong than that.
    pub fn check_after_kill(&self) {
        if let Err(why) = self.check() {
            assert!(why.contains("is torn:") && !why.contains("is damaged"), "{why}");
        }
    }
}

fn text_of(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}
