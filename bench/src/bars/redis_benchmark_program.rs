//! Running the real redis-benchmark and reading its output.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{BenchError, Doing};

/// The result that redis-benchmark reports for one test.
#[derive(Debug, Clone, PartialEq)]
pub struct Throughput {
    /// The test, or the command line that was given.
    pub test: String,
    /// Requests a second.
    pub per_second: f64,
}

/// The redis-benchmark program.
#[derive(Debug, Clone)]
pub struct RedisBenchmark {
    binary: PathBuf,
}

impl RedisBenchmark {
    /// Names the program to run.
    pub fn new(binary: &Path) -> Self {
        Self { binary: binary.to_owned() }
    }

    /// Runs one test with `-q` against a server and waits for its end.
    ///
    /// # Errors
    /// When it cannot be run, fails, saw an error reply, or printed no result.
    pub fn run(&self, address: SocketAddr, arguments: &[&str]) -> Result<Throughput, BenchError> {
        let mut command = Command::new(&self.binary);
        command
            .args(["-h", &address.ip().to_string(), "-p", &address.port().to_string(), "-q"])
            .args(arguments)
            .stdin(Stdio::null());
        let output = command.output().doing(format!("run {}", self.binary.display()))?;
        let printed =
            [String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)].join("\n");
        let complained = printed.contains("Error from server");
        match parse(&printed) {
            Some(throughput) if output.status.success() && !complained => Ok(throughput),
            _ => Err(BenchError::RedisBenchmark {
                command: format!("{command:?}"),
                output: last_characters(&printed, 200),
            }),
        }
    }
}

/// Finds the last result.
///
/// Progress is overwritten by `\r`, so a result begins after the last `\r` on its line:
/// `SET: 561225.12 requests per second, p50=1.343 msec`.
fn parse(printed: &str) -> Option<Throughput> {
    let result = printed.split(['\r', '\n']).rfind(|line| line.contains(" requests per second"))?;
    let (before, _) = result.split_once(" requests per second")?;
    let (test, per_second) = before.rsplit_once(": ")?;
    Some(Throughput { test: test.trim().to_owned(), per_second: per_second.trim().parse().ok()? })
}

fn last_characters(text: &str, n_characters: usize) -> String {
    let text = text.trim().replace(['\r', '\n'], " ");
    let n_skipped = text.chars().count().saturating_sub(n_characters);
    text.chars().skip(n_skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_found_behind_the_progress() {
        let printed = "SET: rps=0.0 (overall: -nan) avg_msec=-nan (overall: -nan)\r   \r\
            SET: rps=491537.9 (overall: 528892.2) avg_msec=1.430 (overall: 1.336)\r      \r\
            SET: 529100.56 requests per second, p50=1.343 msec                    \n\n";
        assert_eq!(parse(printed), Some(Throughput { test: "SET".into(), per_second: 529_100.56 }));
    }

    #[test]
    fn a_command_line_names_its_test() {
        let printed = " \rincr key:__rand_int__: 675675.69 requests per second, p50=1.047 msec\n";
        assert_eq!(parse(printed).map(|result| result.test), Some("incr key:__rand_int__".into()));
    }

    #[test]
    fn no_result_is_no_result() {
        assert_eq!(parse("Could not connect to Redis at 127.0.0.1:1: Connection refused\n"), None);
        assert_eq!(parse("SET: fast requests per second"), None);
    }
}
