//! The programs in `examples/`. The server of each has enough threads and shards for clients to get in each
//! other's way.

#[expect(dead_code, reason = "its main reads the command line")]
#[path = "../../../examples/lock.rs"]
mod lock;
#[expect(dead_code, reason = "its main reads the command line")]
#[path = "../../../examples/watch.rs"]
mod watch;

use crate::support::{
    Server,
    crowd::{LAYOUTS, laid_out},
};
use redis::RedisResult;

fn everywhere(example: fn(&str) -> RedisResult<usize>) {
    for layout in LAYOUTS {
        let server: Server = laid_out(layout);
        let n = example(&format!("redis://127.0.0.1:{}", server.port())).expect("the server answers");
        assert!(n > 0);
    }
}

#[test]
fn the_lock_loses_no_addition() {
    everywhere(lock::run);
}

#[test]
fn the_watch_loop_pops_each_member_once() {
    everywhere(watch::run);
}
