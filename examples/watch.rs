//! A transaction that is tried again until nobody has interfered: popping the least member of a sorted set
//! with WATCH, MULTI and EXEC, as Redis's page on transactions tells it.
//!
//! Run it with `cargo run -p braid-server --example watch -- redis://127.0.0.1:6379`. Threads pop from one
//! sorted set until it is empty. Each member must be popped once, and each thread must see the scores rise.

use std::thread;

use redis::{Client, Commands, Connection, RedisResult, cmd, pipe};

const N_THREADS: usize = 6;
const N_MEMBERS: usize = 300;

/// Takes the member with the least score out of a sorted set, and counts that it did. `None` if there is
/// none.
fn pop(redis: &mut Connection, key: &str) -> RedisResult<Option<usize>> {
    loop {
        // From here on, EXEC does nothing if anybody changes the key.
        let () = cmd("WATCH").arg(key).query(redis)?;
        let least: Vec<usize> = redis.zrange(key, 0, 0)?;
        let Some(&member) = least.first() else {
            let () = cmd("UNWATCH").query(redis)?;
            return Ok(None);
        };
        let done: Option<(usize, usize)> =
            pipe().atomic().zrem(key, member).incr("popped", 1).query(redis)?;
        match done {
            Some((n_removed, _)) => {
                assert_eq!(n_removed, 1, "somebody else has popped {member}, and EXEC ran all the same");
                return Ok(Some(member));
            }
            // Somebody was faster: the transaction did not run.
            None => continue,
        }
    }
}

/// Has all threads pop until nothing is left, and returns how many members there were.
///
/// # Errors
/// When the server cannot be reached or refuses a command.
///
/// # Panics
/// When a member was popped twice, not at all, or out of order.
pub fn run(address: &str) -> RedisResult<usize> {
    let client = Client::open(address)?;
    let mut redis = client.get_connection()?;
    let () = redis.del(&["queue", "popped"])?;
    let members: Vec<(usize, usize)> = (0..N_MEMBERS).map(|member| (member, member)).collect();
    let () = redis.zadd_multiple("queue", &members)?;
    let popped = thread::scope(|scope| {
        let pop_all = || -> RedisResult<Vec<usize>> {
            let mut redis = client.get_connection()?;
            std::iter::from_fn(|| pop(&mut redis, "queue").transpose()).collect()
        };
        let threads: Vec<_> = (0..N_THREADS).map(|_| scope.spawn(pop_all)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread does not panic"))
            .collect::<RedisResult<Vec<_>>>()
    })?;
    for of_one_thread in &popped {
        assert!(of_one_thread.is_sorted(), "popped out of order: {of_one_thread:?}");
    }
    let mut all = popped.concat();
    all.sort_unstable();
    assert_eq!(all, (0..N_MEMBERS).collect::<Vec<_>>(), "each member is popped once");
    let n_popped: usize = redis.get("popped")?;
    assert_eq!(n_popped, N_MEMBERS, "a transaction ran by half");
    Ok(n_popped)
}

fn main() -> RedisResult<()> {
    let address = std::env::args().nth(1).unwrap_or("redis://127.0.0.1:6379".to_owned());
    println!("{N_THREADS} threads have popped {} members, each once", run(&address)?);
    Ok(())
}
