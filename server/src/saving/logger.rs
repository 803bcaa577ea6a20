//! The thread that syncs the append-only file. It also writes to it where I/O threads must not.

use std::{sync::atomic::Ordering, time::Duration};

use crossbeam_utils::sync::Parker;

use crate::shared::server::Server;

/// How often it checks for a due sync, and for space on a full disk.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Syncs until the server stops.
pub fn run_logger(server: &'static Server, parker: &Parker) {
    let mut has_failed = false;
    while !server.stopping.load(Ordering::Relaxed) {
        server.durability.aof.do_chores();
        let has_advanced = server.durability.aof.sync_if_due();
        if has_advanced {
            server.wake_who_awaits_log();
        }
        // A lost increment needs a rewrite by the saver. While the file has failed, commands check whether
        // they may write.
        if server.durability.aof.has_lost() && !has_failed {
            server.saver().wake_if_asleep();
        }
        let fails = server.durability.aof.has_failed();
        match (std::mem::replace(&mut has_failed, fails), fails) {
            (false, true) => server.attention.raise(),
            (true, false) => server.attention.lower(),
            _ => {}
        }
        if !server.durability.aof.is_writing() {
            parker.park();
        } else if let Some(time) = server.durability.aof.gather(has_advanced) {
            parker.park_timeout(time);
        } else if !has_advanced {
            parker.park_timeout(LOOK_EVERY);
        }
    }
}
