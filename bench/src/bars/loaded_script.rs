//! A script that a server has loaded: running it, and checking its results.

use braid_protocol::Value;

use crate::client::{Client, wrong_reply};
use crate::error::BenchError;

/// The command that runs a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunBy {
    /// The command EVALSHA.
    Digest,
    /// The command EVAL, which sends the whole text each time.
    Text,
}

/// A script that a server has loaded.
pub(super) struct Script {
    /// The command, and the digest or the text of the script.
    command: [String; 2],
}

impl Script {
    pub(super) fn load(client: &mut Client, text: &str, run_by: RunBy) -> Result<Self, BenchError> {
        let digest = match client.call(&["SCRIPT", "LOAD", text])? {
            Value::Bulk(digest) => String::from_utf8_lossy(&digest).into_owned(),
            reply => return Err(wrong_reply(&["SCRIPT", "LOAD"], &reply)),
        };
        Ok(Self::new(text, digest, run_by))
    }

    fn new(text: &str, digest: String, run_by: RunBy) -> Self {
        let command = match run_by {
            RunBy::Digest => ["EVALSHA".to_owned(), digest],
            RunBy::Text => ["EVAL".to_owned(), text.to_owned()],
        };
        Self { command }
    }

    /// Returns the request that runs the script. The arguments begin with the number of keys.
    pub(super) fn request<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        self.command.iter().map(String::as_str).chain(arguments.iter().copied()).collect()
    }

    /// Runs the script and checks its reply.
    pub(super) fn expect(
        &self,
        client: &mut Client,
        arguments: &[&str],
        expected: &Value,
    ) -> Result<(), BenchError> {
        expect(client, &self.request(arguments), expected)
    }
}

/// Sends a request and checks its reply.
pub(super) fn expect(client: &mut Client, request: &[&str], expected: &Value) -> Result<(), BenchError> {
    match client.call(request)? {
        reply if reply == *expected => Ok(()),
        reply => Err(wrong_reply(request, &reply)),
    }
}

/// Makes a bulk string.
pub(super) fn bulk(text: impl Into<String>) -> Value {
    Value::Bulk(text.into().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_script_or_sends_it() {
        let request_by = |run_by| {
            let script = Script::new("return 1", "abc".to_owned(), run_by);
            script.request(&["1", "k"]).join(" ")
        };
        assert_eq!(request_by(RunBy::Digest), "EVALSHA abc 1 k");
        assert_eq!(request_by(RunBy::Text), "EVAL return 1 1 k");
    }
}
