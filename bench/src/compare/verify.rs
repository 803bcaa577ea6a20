//! Checks whether two servers give the same replies to the same requests.

use std::fmt;
use std::sync::Arc;

use braid_protocol::Value;
use serde::Serialize;

use crate::client::Client;
use crate::endpoint::Endpoint;
use crate::error::BenchError;
use crate::load::Load;
use crate::quantity::thousands;
use crate::workload::{Generator, Moment};

/// The number of requests whose replies are compared.
const N_REQUESTS: u64 = 1000;
/// The length of a shown reply, in bytes.
const SHOWN_BYTES: usize = 120;

/// The outcome for one server against the reference.
#[derive(Debug, Serialize)]
pub struct Verified {
    /// The number of replies compared.
    pub n_replies: u64,
    /// The number of those that differ.
    ///
    /// The order of elements and the moment in a stream's id do not count.
    pub n_different: u64,
    /// The first two replies that differ.
    pub example: Option<[String; 2]>,
}

/// Sends the same requests to both, one after the other, and compares the replies.
pub fn verify(load: &Load, reference: &Endpoint, other: &Endpoint) -> Result<Verified, BenchError> {
    let connect = |endpoint: &Endpoint| Client::greet(&endpoint.target.address, &endpoint.target.greeting);
    let mut clients = [connect(reference)?, connect(other)?];
    let mut generator = Generator::new(&Arc::clone(&load.compiled), 0, 1);
    let mut verified = Verified { n_replies: 0, n_different: 0, example: None };
    let mut requests = Vec::new();
    for _ in 0..N_REQUESTS {
        requests.clear();
        let issued = generator.append(Moment::default(), &mut requests);
        for client in &mut clients {
            client.send(&requests)?;
        }
        for _ in 0..issued.n_replies {
            let [first, second] = &mut clients;
            let replies = [first.receive()?, second.receive()?];
            verified.note(&replies);
        }
    }
    Ok(verified)
}

impl Verified {
    fn note(&mut self, replies: &[Value; 2]) {
        self.n_replies += 1;
        let [first, second] = replies;
        if first != second && canonical(first) != canonical(second) {
            self.n_different += 1;
            self.example.get_or_insert_with(|| {
                replies.each_ref().map(|reply| {
                    let text = format!("{reply:?}");
                    text.chars().take(SHOWN_BYTES).collect()
                })
            });
        }
    }
}

/// Returns the reply as text, with its elements sorted.
///
/// Parts that differ from run to run are replaced.
fn canonical(reply: &Value) -> String {
    match reply {
        Value::Array(elements) | Value::Set(elements) => {
            let mut texts: Vec<_> = elements.iter().map(canonical).collect();
            texts.sort_unstable();
            format!("[{}]", texts.join(","))
        }
        Value::Map(pairs) => {
            let mut texts: Vec<_> =
                pairs.iter().map(|(key, value)| format!("{}:{}", canonical(key), canonical(value))).collect();
            texts.sort_unstable();
            format!("{{{}}}", texts.join(","))
        }
        // Only the code of an error is fixed.
        Value::Error(text) => {
            let text = String::from_utf8_lossy(text);
            format!("error {}", text.split(' ').next().unwrap_or_default())
        }
        Value::Bulk(bytes) if is_stream_id(bytes) => String::from("id"),
        other => format!("{other:?}"),
    }
}

/// Whether the text is milliseconds of the current time, a dash and a number.
fn is_stream_id(bytes: &[u8]) -> bool {
    let Some(dash) = bytes.iter().position(|&byte| byte == b'-') else { return false };
    let is_digits = |bytes: &[u8]| !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit);
    dash == 13 && is_digits(&bytes[..dash]) && is_digits(&bytes[dash + 1..])
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n_replies, n_different, example } = self;
        write!(f, "{} replies compared, {n_different} differ", thousands(*n_replies as f64))?;
        if let Some([first, second]) = example {
            write!(f, ", such as {first} and {second}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(first: Value, second: Value) -> u64 {
        let mut verified = Verified { n_replies: 0, n_different: 0, example: None };
        verified.note(&[first, second]);
        verified.n_different
    }

    fn bulk(text: &str) -> Value {
        Value::Bulk(text.as_bytes().to_vec())
    }

    #[test]
    fn order_and_moments_make_no_difference() {
        assert_eq!(
            note(Value::Array(vec![bulk("a"), bulk("b")]), Value::Array(vec![bulk("b"), bulk("a")])),
            0
        );
        assert_eq!(note(bulk("1795244917191-0"), bulk("1795244917205-1")), 0);
        assert_eq!(note(Value::Error(b"ERR a".to_vec()), Value::Error(b"ERR b".to_vec())), 0);
    }

    #[test]
    fn values_and_types_do() {
        assert_eq!(note(bulk("a"), bulk("b")), 1);
        assert_eq!(note(Value::Integer(1), bulk("1")), 1);
        assert_eq!(note(Value::Error(b"ERR".to_vec()), Value::Error(b"WRONGTYPE".to_vec())), 1);
        assert_eq!(note(Value::NullBulk, Value::NullArray), 1);
    }
}
