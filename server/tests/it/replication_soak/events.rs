//! The events that may happen to the servers.

use std::sync::atomic::Ordering::SeqCst;

use super::{leader::Leader, nodes::N_NODES};
use crate::support::crowd::until;

/// One kind of event.
pub struct Event {
    pub name: &'static str,
    /// How often it comes in a round.
    pub n_a_round: usize,
    /// Causes it. Returns whether it was possible.
    pub run: fn(&mut Leader<'_>) -> bool,
}

pub const EVENTS: &[Event] = &[
    Event { name: "cut a link at a byte", n_a_round: 4, run: cut_at_a_byte },
    Event { name: "cut a link while it stalls", n_a_round: 1, run: stall_and_cut },
    Event { name: "slow a link down", n_a_round: 1, run: slow_down },
    Event { name: "kill a replica", n_a_round: 2, run: kill_a_replica },
    Event { name: "end a replica", n_a_round: 1, run: end_a_replica },
    Event { name: "stop a replica for a while", n_a_round: 1, run: stop_for_a_while },
    Event { name: "kill the primary and promote a replica", n_a_round: 1, run: kill_and_promote },
    Event { name: "kill the primary and start it again", n_a_round: 1, run: kill_and_start_again },
    Event { name: "end the primary and start it again", n_a_round: 1, run: end_and_start_again },
    Event { name: "cut off the primary and promote a replica", n_a_round: 1, run: cut_off_and_promote },
    Event { name: "fail over", n_a_round: 2, run: fail_over },
    Event { name: "let a replica follow another server", n_a_round: 3, run: follow_another },
    Event { name: "pause clients", n_a_round: 1, run: pause },
    Event { name: "rewrite a file", n_a_round: 2, run: rewrite },
    Event { name: "save a snapshot", n_a_round: 1, run: save },
    Event { name: "turn a file on or off", n_a_round: 2, run: toggle_file },
    Event { name: "reload a server", n_a_round: 1, run: reload },
    Event { name: "kill links by command", n_a_round: 1, run: kill_links },
    Event { name: "change the settings of links", n_a_round: 1, run: change_settings },
];

fn any(leader: &mut Leader<'_>) -> usize {
    leader.dice.roll(N_NODES)
}

fn cut_at_a_byte(leader: &mut Leader<'_>) -> bool {
    let replica = leader.pick_replica();
    let n_bytes = if leader.dice.percent(30) { leader.dice.roll(10) } else { leader.dice.roll(20_000) };
    leader.link(replica).cut_after(n_bytes);
    true
}

fn stall_and_cut(leader: &mut Leader<'_>) -> bool {
    let replica = leader.pick_replica();
    leader.link(replica).stall();
    leader.let_clients_work();
    leader.link(replica).cut();
    leader.link(replica).open();
    true
}

fn slow_down(leader: &mut Leader<'_>) -> bool {
    let replica = leader.pick_replica();
    let millis = 1 + leader.dice.roll(10);
    leader.link(replica).delay(millis);
    leader.let_clients_work();
    leader.link(replica).open();
    true
}

fn kill_a_replica(leader: &mut Leader<'_>) -> bool {
    restart_a_replica(leader, Leader::kill)
}

fn end_a_replica(leader: &mut Leader<'_>) -> bool {
    restart_a_replica(leader, Leader::terminate)
}

fn restart_a_replica<'l>(leader: &mut Leader<'l>, end: impl FnOnce(&mut Leader<'l>, usize)) -> bool {
    let replica = leader.pick_replica();
    let upstream = leader.nodes[replica].upstream;
    end(leader, replica);
    leader.unsettle(replica);
    if leader.dice.percent(50) {
        leader.let_clients_work();
    }
    leader.start(replica, upstream);
    true
}

fn stop_for_a_while(leader: &mut Leader<'_>) -> bool {
    let replica = leader.pick_replica();
    leader.nodes[replica].signal("-STOP");
    leader.let_clients_work();
    leader.nodes[replica].signal("-CONT");
    true
}

/// Returns the servers that have a part of a history, and the place up to which they do.
fn heirs(leader: &mut Leader<'_>, id: &str) -> Vec<(u64, usize)> {
    let mut heirs = Vec::new();
    for index in leader.replicas() {
        let info = leader.nodes[index].info();
        if leader.nodes[index].is_settled && info.id() == id && info.offset() > 0 {
            heirs.push((info.offset(), index));
        }
    }
    heirs.sort_unstable();
    heirs
}

/// Waits until no replica has a link to the primary that is gone. Each has then applied what it has read.
fn until_unlinked(leader: &mut Leader<'_>) {
    let primary = leader.primary();
    for index in leader.replicas() {
        if leader.nodes[index].upstream == Some(primary) {
            until("the link is down", || !leader.nodes[index].info().is_up());
        }
    }
}

/// Makes the best of the heirs the primary of all others that run. The old one is out of reach.
fn promote(leader: &mut Leader<'_>, heirs: &[(u64, usize)]) {
    let old = leader.primary();
    let &(_, best) = heirs.last().expect("there is one");
    leader.follow(best, None);
    // A marker is at the primary and at as many others as have acknowledged it.
    leader.lose(N_NODES - 1 - heirs.len(), 0);
    leader.shared.primary.store(best, SeqCst);
    for index in 0..N_NODES {
        if index != best && index != old {
            leader.follow(index, Some(best));
        }
    }
}

fn id_of_primary(leader: &mut Leader<'_>) -> String {
    let primary = leader.primary();
    leader.nodes[primary].info().id().to_owned()
}

fn kill_and_promote(leader: &mut Leader<'_>) -> bool {
    let (id, old) = (id_of_primary(leader), leader.primary());
    leader.kill(old);
    until_unlinked(leader);
    let heirs = heirs(leader, &id);
    if heirs.is_empty() {
        start_alone(leader, old);
        return false;
    }
    promote(leader, &heirs);
    if leader.dice.percent(50) {
        leader.let_clients_work();
    }
    let best = leader.primary();
    leader.start(old, Some(best));
    leader.unsettle(old);
    true
}

/// Starts a killed primary again in its role.
fn start_alone(leader: &mut Leader<'_>, index: usize) {
    let node = &leader.nodes[index];
    let n_kept = if node.whole_after.is_some() { leader.n_durable() } else { 0 };
    leader.lose(N_NODES, n_kept);
    leader.start(index, None);
    (0..N_NODES).filter(|&other| other != index).for_each(|other| leader.unsettle(other));
}

fn kill_and_start_again(leader: &mut Leader<'_>) -> bool {
    let primary = leader.primary();
    leader.kill(primary);
    start_alone(leader, primary);
    true
}

fn end_and_start_again(leader: &mut Leader<'_>) -> bool {
    let primary = leader.primary();
    leader.terminate(primary);
    leader.start(primary, None);
    (0..N_NODES).filter(|&other| other != primary).for_each(|other| leader.unsettle(other));
    true
}

fn cut_off_and_promote(leader: &mut Leader<'_>) -> bool {
    let (id, old) = (id_of_primary(leader), leader.primary());
    let replicas = leader.replicas();
    replicas.iter().for_each(|&index| leader.wire(index, old).block());
    until_unlinked(leader);
    let heirs = heirs(leader, &id);
    if heirs.is_empty() {
        replicas.iter().for_each(|&index| leader.wire(index, old).open());
        return false;
    }
    leader.let_clients_work();
    promote(leader, &heirs);
    leader.let_clients_work();
    replicas.iter().for_each(|&index| leader.wire(index, old).open());
    let best = leader.primary();
    leader.follow(old, Some(best));
    true
}

fn fail_over(leader: &mut Leader<'_>) -> bool {
    let old = leader.primary();
    let direct: Vec<usize> =
        leader.replicas().into_iter().filter(|&index| leader.nodes[index].upstream == Some(old)).collect();
    let target = *leader.dice.pick(&direct);
    let order = format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 2000", leader.nodes[target].port());
    let reply = leader.nodes[old].ask(&order);
    if reply != "+OK" {
        return false;
    }
    until("the failover is over", || leader.nodes[old].info().text("master_failover_state") == "no-failover");
    if !leader.nodes[old].info().is_replica() {
        return false;
    }
    leader.nodes[target].upstream = None;
    leader.shared.primary.store(target, SeqCst);
    // Until now it has followed without a wire.
    leader.follow(old, Some(target));
    true
}

fn follow_another(leader: &mut Leader<'_>) -> bool {
    let replica = leader.pick_replica();
    let mut others: Vec<usize> = (0..N_NODES).collect();
    others.retain(|&other| other != replica && !leader.follows(other, replica));
    let upstream = *leader.dice.pick(&others);
    leader.follow(replica, Some(upstream));
    true
}

fn pause(leader: &mut Leader<'_>) -> bool {
    let index = any(leader);
    let kind = *leader.dice.pick(&["WRITE", "ALL"]);
    let millis = 1 + leader.dice.roll(150);
    leader.nodes[index].ask(&format!("CLIENT PAUSE {millis} {kind}")) == "+OK"
}

fn rewrite(leader: &mut Leader<'_>) -> bool {
    let index = any(leader);
    let reply = leader.nodes[index].ask("BGREWRITEAOF");
    assert!(reply.starts_with("+Background") || reply.starts_with("-ERR Background"), "{reply}");
    true
}

fn save(leader: &mut Leader<'_>) -> bool {
    let index = any(leader);
    let reply = leader.nodes[index].ask("BGSAVE");
    assert!(reply.starts_with("+Background") || reply.starts_with("-ERR"), "{reply}");
    true
}

fn toggle_file(leader: &mut Leader<'_>) -> bool {
    let index = any(leader);
    let node = &mut leader.nodes[index];
    if node.settings.appendonly {
        assert_eq!(node.ask("CONFIG SET appendonly no"), "+OK");
        node.whole_after = None;
    } else {
        // A rewrite in progress is counted a moment after its end, and could pass for the base.
        until("nothing is rewritten", || node.info().number("aof_rewrite_in_progress") == 0);
        let n = node.info().number("aof_rewrites");
        assert_eq!(node.ask("CONFIG SET appendonly yes"), "+OK");
        node.whole_after = Some(n + 1);
    }
    node.settings.appendonly = !node.settings.appendonly;
    true
}

fn reload(leader: &mut Leader<'_>) -> bool {
    let index = any(leader);
    let reply = leader.nodes[index].ask("DEBUG RELOAD");
    if index == leader.primary() {
        // Writes of other clients meanwhile may be lost.
        leader.lose(N_NODES, 0);
    }
    leader.unsettle(index);
    reply == "+OK"
}

fn kill_links(leader: &mut Leader<'_>) -> bool {
    let (primary, replica) = (leader.primary(), leader.pick_replica());
    if leader.dice.percent(50) {
        leader.nodes[primary].ask("CLIENT KILL TYPE replica");
    } else {
        leader.nodes[replica].ask("CLIENT KILL TYPE master");
    }
    true
}

fn change_settings(leader: &mut Leader<'_>) -> bool {
    let index = any(leader);
    for (name, values) in [
        ("repl-backlog-size", &["16kb", "1mb", "16mb"]),
        ("repl-diskless-load", &["disabled", "swapdb", "flush-before-load"]),
        ("repl-diskless-sync", &["yes", "no", "yes"]),
    ] {
        let value = *leader.dice.pick(values);
        assert_eq!(leader.nodes[index].ask(&format!("CONFIG SET {name} {value}")), "+OK");
    }
    true
}
