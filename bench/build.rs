//! Records the revision from which the program was built.

use std::process::Command;

fn main() {
    let described = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let revision = described.ok().filter(|output| output.status.success()).map_or_else(
        || String::from("unknown"),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    );
    println!("cargo::rustc-env=BRAID_BENCH_REVISION={revision}");
    println!("cargo::rerun-if-changed=../.git/HEAD");
    println!("cargo::rerun-if-changed=src");
}
