//! The waits of another client during a load: a few connections send a short request now and then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_protocol::Value;

use crate::client::{Client, wrong_reply};
use crate::engine::LoadTarget;
use crate::error::BenchError;

/// A question, and how often it is sent.
pub struct Prober<'a> {
    /// Connections that ask in turn.
    ///
    /// A server that distributes connections over several threads has some on each.
    pub n_connections: usize,
    /// The pause between an answer and the next question.
    pub pace: Duration,
    /// Returns the question of a number, counted from 0.
    pub question: &'a (dyn Fn(usize) -> Vec<Vec<u8>> + Sync),
    /// Whether a reply answers the question.
    pub is_answer: fn(&Value) -> bool,
}

impl Prober<'_> {
    /// Asks until `is_over`, and at least once. Calls `between` after each answer; returns the longest wait.
    ///
    /// # Errors
    /// When a connection fails, a reply is an error or no answer, or `between` fails.
    pub fn longest_wait(
        &self,
        target: &LoadTarget,
        is_over: &AtomicBool,
        mut between: impl FnMut() -> Result<(), BenchError>,
    ) -> Result<Duration, BenchError> {
        let connect = |_| Client::greet(&target.address, &target.greeting);
        let mut clients = (0..self.n_connections).map(connect).collect::<Result<Vec<_>, _>>()?;
        let mut longest = Duration::ZERO;
        for nth in 0.. {
            let question = (self.question)(nth);
            let began = Instant::now();
            let reply = clients[nth % self.n_connections].call(&question)?;
            longest = longest.max(began.elapsed());
            if !(self.is_answer)(&reply) {
                return Err(wrong_reply(&question, &reply));
            }
            between()?;
            if is_over.load(Ordering::SeqCst) {
                break;
            }
            thread::sleep(self.pace);
        }
        Ok(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::null_server::NullServer;

    #[test]
    fn a_prober_asks_in_turns_until_it_is_over() {
        let server = NullServer::start(None).expect("loopback can be listened on");
        let target = LoadTarget::plain(server.address());
        let is_over = AtomicBool::new(false);
        let question = |nth: usize| vec![b"GET".to_vec(), format!("k{nth}").into_bytes()];
        let prober =
            Prober { n_connections: 2, pace: Duration::ZERO, question: &question, is_answer: Value::is_null };
        let mut n_asked = 0;
        let longest = prober.longest_wait(&target, &is_over, || {
            n_asked += 1;
            is_over.store(n_asked == 3, Ordering::SeqCst);
            Ok(())
        });
        assert!(longest.expect("the null server answers") > Duration::ZERO);
        assert_eq!(n_asked, 3);
        let strict = Prober { is_answer: |reply| !reply.is_null(), ..prober };
        let error = strict.longest_wait(&target, &is_over, || Ok(())).expect_err("null is no answer");
        assert!(error.to_string().contains("GET k0"), "{error}");
    }
}
