//! Random commands of every type, broken links, kills and changes of role among three servers. At quiet
//! points all three must be equal, and no write may be gone that WAIT has acknowledged.
//!
//! A round begins with three empty servers whose settings are chosen at random. Links pass through wires that
//! can be cut at any byte. The leader causes one event after the other while clients write, and lets all rest
//! now and then to compare. The seed decides on all choices, though not on the order in which threads run.
//!
//! | variable | is |
//! |---|---|
//! | `BRAID_SEED` | the seed |
//! | `BRAID_SOAK_SECONDS` | the time after which no more rounds begin; a fixed number of rounds if not set |
//!
//! A failure names the seed and the folder with the servers' files and logs, what has passed through the
//! wires, and the clients' last commands.
//! `make soak` runs it for long.

mod commands;
mod compare;
mod events;
mod leader;
mod markers;
mod nodes;
mod wires;
mod writers;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::support::{Dice, crowd::AtEnd, dice};
use leader::Leader;
use nodes::{N_NODES, Node};
use writers::{N_WANDERERS, N_WRITERS, SoakShared, Writer};

/// The number of rounds if there is no time to fill.
const N_ROUNDS: u64 = 5;

/// The folder of a round. It stays if the round fails.
struct RoundFolder<'s> {
    path: PathBuf,
    seed: u64,
    shared: &'s SoakShared,
}

impl RoundFolder<'_> {
    fn new(seed: u64, shared: &SoakShared) -> RoundFolder<'_> {
        let name = format!("soak-{}-{seed}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("the scratch space is writable");
        RoundFolder { path, seed, shared }
    }
}

impl Drop for RoundFolder<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("the soak has failed: BRAID_SEED={}, files in {}", self.seed, self.path.display());
            let history = self.shared.history(None, usize::MAX).join("\n");
            // The test fails anyway.
            let _ = fs::write(self.path.join("commands.txt"), history);
        } else {
            // A leftover directory is in the scratch space and does no harm.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// The numbers of a soak's events, commands and comparisons.
#[derive(Debug, Default)]
struct Tally {
    events: BTreeMap<&'static str, usize>,
    n_commands: usize,
    n_markers: usize,
    n_full: u64,
    n_partial: u64,
    n_comparisons: usize,
}

fn play(seed: u64, tally: &mut Tally) {
    println!("BRAID_SEED={seed}");
    let mut dice = Dice(seed);
    let shared = SoakShared::new();
    let folder = RoundFolder::new(seed, &shared);
    let nodes: Vec<Node> = (0..N_NODES).map(|index| Node::new(index, &folder.path, &mut dice)).collect();
    let mut leader = Leader::new(nodes, &shared, &folder.path, Dice(dice.roll(1 << 40) as u64));
    let names = commands::names(&mut leader.connect_to_primary());
    thread::scope(|scope| {
        // Clients end with the leader, even if it panics.
        let _over = AtEnd(&shared.is_over);
        for nth in 0..N_WRITERS + N_WANDERERS {
            let (shared, names, dice) = (&shared, &names, Dice(dice.roll(1 << 40) as u64));
            scope.spawn(move || {
                let _over = AtEnd(&shared.is_over);
                Writer::new(shared, nth, names, dice).work();
            });
        }
        leader.lead(&mut tally.events);
    });
    leader.sum_up(tally);
}

/// Every kind of event comes about in the rounds of the default seed, or this test would show less than it
/// says.
#[test]
fn servers_are_equal_after_whatever_happens_and_have_what_was_acknowledged() {
    let seed = dice::seed();
    let seconds = std::env::var("BRAID_SOAK_SECONDS").ok();
    let seconds: Option<u64> = seconds.map(|text| text.parse().expect("BRAID_SOAK_SECONDS is a number"));
    let mut tally = Tally::default();
    let begun = Instant::now();
    for nth in 0.. {
        let is_enough = match seconds {
            Some(seconds) => begun.elapsed() >= Duration::from_secs(seconds),
            None => nth >= N_ROUNDS,
        };
        if is_enough {
            break;
        }
        play(seed.wrapping_add(nth), &mut tally);
    }
    println!("{tally:?}");
    for (name, n) in &tally.events {
        assert_ne!(*n, 0, "no {name}: {tally:?}");
    }
    assert!(tally.n_commands > 20_000 && tally.n_markers > 20, "{tally:?}");
    assert!(tally.n_full > 10 && tally.n_partial > 10 && tally.n_comparisons >= 10, "{tally:?}");
}
