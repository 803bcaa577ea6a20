//! The redis-server that Braid is compared with.

use std::io::Write as _;
use std::process::Command;

/// The program that is right.
pub const REFERENCE: &str = "redis-server";

/// Set to 1: without a redis-server 7.0 the test fails. Else it says so, and passes.
const REQUIRE_REDIS: &str = "BRAID_REQUIRE_REDIS";

/// Whether there is a reference. Says so if there is none, also where the output of tests that pass is not
/// shown.
///
/// # Panics
/// When there is none, and there has to be one.
pub fn has_reference(test: &str) -> bool {
    let version = Command::new(REFERENCE).arg("--version").output();
    let version =
        version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    if version.contains(" v=7.0.") {
        return true;
    }
    let why = format!(
        "there is no {REFERENCE} 7.0 to compare Braid with (apt-get install redis-server): {version:?}"
    );
    leave_out(test, &why, REQUIRE_REDIS);
    false
}

/// Says why a test does nothing on this machine, also where the output of tests that pass is not shown.
///
/// # Panics
/// When it has to do something: the variable `required_by` is 1.
pub fn leave_out(test: &str, why: &str, required_by: &str) {
    assert!(std::env::var(required_by).as_deref() != Ok("1"), "{why}");
    writeln!(std::io::stderr(), "{test}: nothing is tested, {why}").expect("standard error is open");
}
