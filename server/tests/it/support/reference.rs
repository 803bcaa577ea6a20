//! The redis-server with which Braid is compared.

use std::io::Write as _;
use std::process::Command;

/// The program whose behaviour is correct.
pub const REFERENCE: &str = "redis-server";

/// If this is 1, the test fails without a redis-server 7.0. Otherwise it prints a note and passes.
const REQUIRE_REDIS: &str = "BRAID_REQUIRE_REDIS";

/// Whether there is a reference. If there is none, a note is printed even where the output of passing tests
/// is hidden.
///
/// # Panics
/// When there is none, although one is required.
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

/// Reports why a test does nothing on this machine. The note is visible even where the output of passing
/// tests is hidden.
///
/// # Panics
/// When the test is required: the variable `required_by` is 1.
pub fn leave_out(test: &str, why: &str, required_by: &str) {
    assert!(std::env::var(required_by).as_deref() != Ok("1"), "{why}");
    writeln!(std::io::stderr(), "{test}: nothing is tested, {why}").expect("standard error is open");
}
