//! The thread that writes the spool: the part of the change stream that slow replicas have still to read.

use std::{sync::atomic::Ordering, time::Duration};

use braid_journal::{
    disk::Folder,
    spool::{SpoolLimits, SpoolRound, SpoolWriter},
};
use crossbeam_utils::sync::Parker;

use super::replica_link::unknown_command;
use crate::{config::Config, notice, shared::server::Server, warning};

/// The most bytes of the stream that a slow replica keeps in memory. With a smaller history it is fewer.
const MOST_IN_MEMORY: u64 = 8 << 20;

/// How often the stream is checked for more, from often to seldom as nothing comes.
const LEAST_REST: Duration = Duration::from_millis(1);
const MOST_REST: Duration = Duration::from_millis(10);

/// The time after which a disk that has refused bytes is tried again.
const BLOCKED_REST: Duration = Duration::from_millis(100);

/// The bytes of the stream from which on a link moves to the spool.
pub fn most_in_memory(config: &Config) -> u64 {
    if config.repl_spool { config.repl_backlog_size.min(MOST_IN_MEMORY) } else { u64::MAX }
}

/// Writes the spool until the server stops.
pub fn run_spooler(server: &'static Server, parker: &Parker) {
    let spools = &server.replication.spools;
    let mut writer = SpoolWriter::default();
    let mut rest = LEAST_REST;
    let mut last = SpoolRound::Idle;
    while !server.stopping.load(Ordering::Relaxed) {
        let config = server.config.load_full();
        let limits = SpoolLimits { is_on: config.repl_spool, most_bytes: config.repl_spool_max };
        let mut disk = server.durability.folder(Folder::at(config.dir.clone()));
        let reached = server.durability.aof.reached();
        let round = spools.advance(&mut writer, &mut disk, reached, limits, unknown_command);
        tell(&last, &round);
        match &round {
            SpoolRound::Wrote => rest = LEAST_REST,
            SpoolRound::Idle => parker.park(),
            SpoolRound::UpToDate => {
                parker.park_timeout(rest);
                rest = (rest * 2).min(MOST_REST);
            }
            SpoolRound::Blocked(_) => parker.park_timeout(BLOCKED_REST),
        }
        last = round;
    }
}

/// Tells the server log when the spool begins, ends, or takes nothing more.
fn tell(last: &SpoolRound, now: &SpoolRound) {
    match (last, now) {
        (SpoolRound::Idle, SpoolRound::Idle) | (SpoolRound::Blocked(_), SpoolRound::Blocked(_)) => {}
        (_, SpoolRound::Blocked(why)) => warning!("The spool for slow replicas takes nothing more: {why}"),
        (SpoolRound::Idle, _) => notice!("A replica is slow: the change stream goes to the spool for it"),
        (_, SpoolRound::Idle) => notice!("No replica needs the spool any more"),
        (SpoolRound::Blocked(_), _) => notice!("The spool for slow replicas takes the change stream again"),
        _ => {}
    }
}
