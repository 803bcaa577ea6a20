//! Running a task during a load.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::client::Client;
use crate::engine::{self, Limit};
use crate::error::BenchError;
use crate::load::Load;
use crate::spawn::Server;

/// Runs a task during a load, and ends the load after it.
///
/// An error reply to a request of the load fails the call.
pub(super) fn beside<T>(
    load: &Load,
    server: &Server,
    what: impl FnOnce(&mut Client) -> Result<T, BenchError>,
) -> Result<(T, engine::Outcome), BenchError> {
    let address: SocketAddr = server.address();
    let target = engine::LoadTarget::plain(address);
    let is_over = Arc::new(AtomicBool::new(false));
    let load = load.until(Limit::Told(Arc::clone(&is_over)));
    let mut client = Client::connect(address)?;
    thread::scope(|scope| {
        let running = scope.spawn(|| load.run(&target, &mut |_| {}));
        let done = what(&mut client);
        is_over.store(true, Ordering::Relaxed);
        let outcome = running.join().expect("a load does not panic")?;
        match outcome.record.errors.keys().next() {
            Some(error) => Err(BenchError::WrongReply { request: "the load".into(), reply: error.clone() }),
            None => Ok((done?, outcome)),
        }
    })
}
