//! The leader of a round: it causes events, knows who follows whom, and compares.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::atomic::Ordering::SeqCst,
    thread,
    time::{Duration, Instant},
};

use super::{
    Tally, compare,
    events::EVENTS,
    nodes::{Info, N_NODES, Node},
    wires::Wire,
    writers::{N_WANDERERS, N_WRITERS, SoakShared},
};
use crate::support::{
    Client, Dice, PATIENCE,
    crowd::{ask, until},
};

/// The events between two quiet points.
const EVENTS_A_STRETCH: usize = 6;

pub struct Leader<'s> {
    pub nodes: Vec<Node>,
    pub shared: &'s SoakShared,
    pub dice: Dice,
    /// The way from each server to each: `wires[from][to]`.
    wires: Vec<Vec<Wire>>,
    /// The number of markers that are on the primary's disk.
    n_durable: usize,
    n_comparisons: usize,
}

impl<'s> Leader<'s> {
    /// Starts the servers.
    pub fn new(nodes: Vec<Node>, shared: &'s SoakShared, folder: &Path, dice: Dice) -> Leader<'s> {
        let wire = |from, to| Wire::new(folder.join(format!("wire-of-{from}-from-{to}")));
        let wires = (0..N_NODES).map(|from| (0..N_NODES).map(|to| wire(from, to)).collect()).collect();
        let mut leader = Leader { nodes, shared, dice, wires, n_durable: 0, n_comparisons: 0 };
        leader.start(0, None);
        leader.start(1, Some(0));
        let upstream = leader.dice.roll(2);
        leader.start(2, Some(upstream));
        leader
    }

    pub fn primary(&self) -> usize {
        self.shared.primary.load(SeqCst)
    }

    pub fn wire(&self, from: usize, to: usize) -> &Wire {
        &self.wires[from][to]
    }

    /// The wire of a replica's link.
    pub fn link(&self, replica: usize) -> &Wire {
        let upstream = self.nodes[replica].upstream.expect("it follows another");
        self.wire(replica, upstream)
    }

    pub fn replicas(&self) -> Vec<usize> {
        (0..N_NODES).filter(|&index| index != self.primary()).collect()
    }

    pub fn pick_replica(&mut self) -> usize {
        let replicas = self.replicas();
        *self.dice.pick(&replicas)
    }

    pub fn connect_to_primary(&mut self) -> Client {
        let primary = self.primary();
        self.nodes[primary].connect()
    }

    /// Starts a server that does not run.
    pub fn start(&mut self, index: usize, upstream: Option<usize>) {
        let wire = upstream.map(|upstream| (upstream, &self.wires[index][upstream]));
        self.nodes[index].start(wire);
        let port = self.nodes[index].port();
        self.wires.iter().for_each(|wires| wires[index].lead_to(port));
        self.shared.ports[index].store(port, SeqCst);
    }

    fn unlist(&self, index: usize) {
        self.shared.ports[index].store(0, SeqCst);
        self.wires.iter().for_each(|wires| wires[index].lead_to(0));
    }

    pub fn kill(&mut self, index: usize) {
        self.unlist(index);
        self.nodes[index].kill();
    }

    pub fn terminate(&mut self, index: usize) {
        self.unlist(index);
        self.nodes[index].terminate();
    }

    /// Makes a server a replica of another, or the primary.
    pub fn follow(&mut self, index: usize, upstream: Option<usize>) {
        let order = match upstream {
            Some(upstream) => format!("REPLICAOF 127.0.0.1 {}", self.wires[index][upstream].port()),
            None => "REPLICAOF NO ONE".to_owned(),
        };
        let reply = self.nodes[index].ask(&order);
        assert!(reply.starts_with("+OK"), "node {index}: {order}: {reply}");
        self.nodes[index].upstream = upstream;
        if upstream.is_some() {
            self.unsettle(index);
        }
    }

    /// Trusts a server and its replicas no longer until they have been seen with all data.
    pub fn unsettle(&mut self, index: usize) {
        self.nodes[index].is_settled = false;
        for other in 0..N_NODES {
            if self.nodes[other].upstream == Some(index) && other != index {
                self.nodes[other].is_settled = false;
            }
        }
    }

    /// Whether a server follows another, over others perhaps.
    pub fn follows(&self, index: usize, other: usize) -> bool {
        let mut at = index;
        while let Some(upstream) = self.nodes[at].upstream {
            if upstream == other {
                return true;
            }
            at = upstream;
        }
        false
    }

    /// Trusts servers that have all that the primary has had, and notes what is on the primary's disk.
    pub fn look_around(&mut self) {
        let primary = self.primary();
        let of_primary = self.nodes[primary].info();
        for index in self.replicas() {
            let info = self.nodes[index].info();
            let has_all =
                info.is_up() && info.id() == of_primary.id() && info.offset() >= of_primary.offset();
            if has_all {
                self.nodes[index].is_settled = true;
            }
        }
        let is_whole =
            self.nodes[primary].whole_after.is_some_and(|n| of_primary.number("aof_rewrites") >= n);
        if is_whole {
            let n = self.shared.markers.len();
            let mut client = self.connect_to_primary();
            ask(&mut client, "SELECT 9");
            let is_written = ask(&mut client, "SET leader 1") == "+OK";
            if is_written && ask(&mut client, "WAITAOF 1 0 2000").starts_with("[:1") {
                self.n_durable = n;
            }
        }
    }

    /// The number of markers that are on the primary's disk.
    pub fn n_durable(&self) -> usize {
        self.n_durable
    }

    /// Forgets markers that may be gone, as `n_replicas` had them at most.
    pub fn lose(&mut self, n_replicas: usize, n_kept: usize) {
        self.shared.markers.lose(n_replicas, n_kept);
        self.n_durable = 0;
    }

    /// Waits until clients have sent some more commands.
    pub fn let_clients_work(&mut self) {
        let n = self.shared.n_done.load(SeqCst) + 20 + self.dice.roll(1500);
        // A primary that waits for something makes them wait, too.
        let deadline = Instant::now() + Duration::from_secs(3);
        while self.shared.n_done.load(SeqCst) < n && Instant::now() < deadline {
            assert!(!self.shared.is_over.load(SeqCst), "a client has failed");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Causes events, and compares now and then.
    pub fn lead(&mut self, tally: &mut BTreeMap<&'static str, usize>) {
        let mut deck: Vec<usize> = Vec::new();
        for event in EVENTS {
            tally.entry(event.name).or_default();
        }
        deck.extend((0..EVENTS.len()).flat_map(|nth| std::iter::repeat_n(nth, EVENTS[nth].n_a_round)));
        self.until_linked();
        while !deck.is_empty() {
            self.shared.must_rest.store(false, SeqCst);
            for _ in 0..EVENTS_A_STRETCH.min(deck.len()) {
                self.let_clients_work();
                self.look_around();
                let at = self.dice.roll(deck.len());
                let event = &EVENTS[deck.swap_remove(at)];
                let shared = self.shared;
                let before = shared.now();
                let has_happened = (event.run)(self);
                let followed: Vec<_> = self.nodes.iter().map(|node| node.upstream).collect();
                println!(
                    "{before:>10} {}: {has_happened}, primary {}, {followed:?}",
                    event.name,
                    self.primary()
                );
                *tally.get_mut(event.name).expect("it is listed above") += usize::from(has_happened);
            }
            self.let_clients_work();
            self.compare();
        }
    }

    /// Lets clients rest, opens all wires, and waits until all replicas have all data.
    fn become_quiet(&mut self) {
        self.shared.must_rest.store(true, SeqCst);
        until("all clients rest", || {
            assert!(!self.shared.is_over.load(SeqCst), "a client has failed");
            self.shared.n_resting.load(SeqCst) == N_WRITERS + N_WANDERERS
        });
        self.wires.iter().flatten().for_each(Wire::open);
        self.until_linked();
    }

    fn until_linked(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let of_primary = {
                let primary = self.primary();
                self.nodes[primary].info()
            };
            let infos: Vec<Info> = self.replicas().iter().map(|&index| self.nodes[index].info()).collect();
            let have_all = infos.iter().all(|info| {
                info.is_up() && info.id() == of_primary.id() && info.offset() == of_primary.offset()
            });
            if have_all {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "replicas have no link or not all data: {}",
                shown(&of_primary, &infos)
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Compares the three servers, and looks for the markers.
    fn compare(&mut self) {
        self.become_quiet();
        self.n_comparisons += 1;
        let deadline = Instant::now() + Duration::from_secs(20);
        // Keys that expire are removed one after the other, and the replicas learn of it.
        while !self.are_alike() {
            if Instant::now() > deadline {
                self.fail_by_difference();
            }
            thread::sleep(Duration::from_millis(10));
        }
        for node in &mut self.nodes {
            let info = node.info();
            assert_eq!(info.number("unexpected_error_replies"), 0, "node {}", node.index);
        }
        let mut client = self.connect_to_primary();
        ask(&mut client, "SELECT 9");
        for marker in self.shared.markers.all() {
            let found = ask(&mut client, &format!("EXISTS {}", marker.key));
            assert_eq!(found, ":1", "{marker:?} was acknowledged, and is gone from node {}", self.primary());
        }
    }

    fn are_alike(&mut self) -> bool {
        let mut facts = Vec::new();
        for node in &mut self.nodes {
            let mut client = node.connect();
            let mut sizes = Vec::new();
            for db in compare::DBS {
                ask(&mut client, &format!("SELECT {db}"));
                sizes.push(ask(&mut client, "DBSIZE"));
            }
            facts.push(sizes);
        }
        facts.windows(2).all(|pair| pair[0] == pair[1]) && self.differences().is_none()
    }

    fn fail_by_difference(&mut self) {
        let differences = self.differences().unwrap_or_else(|| "only the sizes differ".to_owned());
        let facts: Vec<String> = self.nodes.iter_mut().map(|node| node.ask("INFO keyspace")).collect();
        panic!("the servers differ, and the primary is node {}: {differences}\n{facts:?}", self.primary());
    }

    /// Returns the differences between the data of the primary and of the replicas in words.
    fn differences(&mut self) -> Option<String> {
        let primary = self.primary();
        let of_primary = compare::contents(&mut self.connect_to_primary());
        let mut told = String::new();
        for index in self.replicas() {
            let of_replica = compare::contents(&mut self.nodes[index].connect());
            for ((db, key), ours, theirs) in
                compare::differences(&of_primary, &of_replica).into_iter().take(4)
            {
                let history = self.shared.history(Some(&key), 25).join("\n");
                let key = key.escape_ascii();
                let [ours, theirs] = compare::around_difference(&ours, &theirs);
                told += &format!(
                    "\ndb {db}, {key}:\nnode {primary}, the primary: {ours}\nnode {index}: {theirs}\n{history}\n"
                );
            }
        }
        (!told.is_empty()).then_some(told)
    }

    /// Adds up what the round has done.
    pub fn sum_up(&mut self, tally: &mut Tally) {
        tally.n_commands += self.shared.n_done.load(SeqCst);
        tally.n_markers += self.shared.markers.n_noted();
        tally.n_comparisons += self.n_comparisons;
        for node in &mut self.nodes {
            node.info();
            tally.n_full += node.sum("sync_full");
            tally.n_partial += node.sum("sync_partial_ok");
            let log = node.log();
            for fault in ["panicked", "CRITICAL", "BUG"] {
                let line = log.lines().find(|line| line.contains(fault));
                assert!(line.is_none(), "node {}: {line:?}", node.index);
            }
        }
    }
}

fn shown(of_primary: &Info, infos: &[Info]) -> String {
    let of = |info: &Info| {
        let names = ["role", "master_replid", "master_replid2", "master_repl_offset", "second_repl_offset"];
        let more =
            ["slave_repl_offset", "master_link_status", "master_sync_in_progress", "loading", "master_port"];
        names.iter().chain(&more).map(|name| format!("{name}:{} ", info.text(name))).collect::<String>()
    };
    format!("\n{}\n{}", of(of_primary), infos.iter().map(of).collect::<Vec<_>>().join("\n"))
}
