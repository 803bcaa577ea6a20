//! A lock that many programs share, as Redis's page on SETNX tells it: with SETNX, GET and GETSET, and a time
//! after which a lock whose holder has crashed goes to another one.
//!
//! Run it with `cargo run -p braid-server --example lock -- redis://127.0.0.1:6379`. Threads take the lock in
//! turns and each adds one to a counter in two steps, GET and SET. Without the lock, additions would be lost.
//! Some of them crash while they hold it.

use std::{
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use redis::{Client, Commands, Connection, RedisResult};

const N_THREADS: usize = 6;
const N_ROUNDS: usize = 50;

/// How long a holder may work before others take it for crashed. Nobody in this example works for as long.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// A lock that is held.
struct Lock {
    name: &'static str,
    expires: u128,
}

impl Lock {
    /// Waits until nobody holds the lock, and takes it.
    fn acquire(redis: &mut Connection, name: &'static str) -> RedisResult<Lock> {
        loop {
            let expires = now() + TIMEOUT.as_millis();
            // The key holds the time at which its holder counts as crashed. Only one client can be the first
            // to set it.
            if redis.set_nx(name, expires.to_string())? {
                return Ok(Lock { name, expires });
            }
            let seen: Option<String> = redis.get(name)?;
            // If it is gone by now, or held by one that is alive, it is tried again.
            if !seen.is_some_and(|seen| has_passed(&seen)) {
                thread::yield_now();
                continue;
            }
            // The holder has crashed. Several clients may see that, and all of them come here. The one that
            // still gets the old time back was the first; the others get the time of the first, which has not
            // passed, and try again. That they have moved its time by a little does no harm.
            let old: Option<String> = redis.getset(name, expires.to_string())?;
            if old.is_none_or(|old| has_passed(&old)) {
                return Ok(Lock { name, expires });
            }
        }
    }

    /// Gives the lock back, unless its time is over: then it may be another's.
    fn release(self, redis: &mut Connection) -> RedisResult<()> {
        if now() < self.expires { redis.del(self.name) } else { Ok(()) }
    }

    /// Leaves behind what a holder leaves that has crashed a while ago.
    fn crash(self, redis: &mut Connection) -> RedisResult<()> {
        redis.set(self.name, (now() - 1).to_string())
    }
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_millis()
}

fn has_passed(time: &str) -> bool {
    time.parse::<u128>().expect("the key holds a time") < now()
}

/// What the lock protects: nobody else may come between the two commands.
fn add_one(redis: &mut Connection) -> RedisResult<()> {
    let count: Option<usize> = redis.get("count")?;
    redis.set("count", count.unwrap_or(0) + 1)
}

/// Has all threads count, and returns how far they came.
///
/// # Errors
/// When the server cannot be reached or refuses a command.
///
/// # Panics
/// When an addition was lost.
pub fn run(address: &str) -> RedisResult<usize> {
    let client = Client::open(address)?;
    let mut redis = client.get_connection()?;
    let () = redis.del(&["lock", "count"])?;
    thread::scope(|scope| {
        let count = |id: usize| -> RedisResult<()> {
            let mut redis = client.get_connection()?;
            for round in 0..N_ROUNDS {
                let lock = Lock::acquire(&mut redis, "lock")?;
                add_one(&mut redis)?;
                if (id + round).is_multiple_of(5) {
                    lock.crash(&mut redis)?
                } else {
                    lock.release(&mut redis)?
                }
            }
            Ok(())
        };
        let threads: Vec<_> = (0..N_THREADS).map(|id| scope.spawn(move || count(id))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread does not panic"))
    })?;
    let count: usize = redis.get("count")?;
    assert_eq!(count, N_THREADS * N_ROUNDS, "an addition was lost");
    Ok(count)
}

fn main() -> RedisResult<()> {
    let address = std::env::args().nth(1).unwrap_or("redis://127.0.0.1:6379".to_owned());
    println!("{N_THREADS} threads have counted to {} under one lock", run(&address)?);
    Ok(())
}
