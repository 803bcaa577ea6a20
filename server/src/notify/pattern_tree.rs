//! Patterns of channels and prefixes of keys, with the listeners to each.
//!
//! These names belong to no shard.
//!
//! A publisher reads all of them under a hold, so it takes no lock: it sees an immutable tree. A change
//! replaces the tree by one that shares all nodes except those on the path to the name. A change costs the
//! same with ten names and with a million.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use arc_swap::ArcSwap;
use braid_storage::{glob::literal_len, observers::channels::Audience, table::hash::KeyHasher};

use crate::{notify::subscriptions::Name, random};

/// The number of bits of a name's hash that choose the branch at one level.
const BITS: u32 = 4;
const N_BRANCHES: usize = 1 << BITS;
/// The number of names at which a leaf becomes a branch. Where the hash has no bits left, leaves have no
/// limit.
const LEAF_MAX: usize = 16;

/// The listeners to each of some names.
pub struct Audiences {
    tree: ArcSwap<Tree>,
    /// The number of names in the tree, readable without it.
    n_names: AtomicUsize,
    hasher: KeyHasher,
    n_begun: AtomicU64,
}

/// The names at one moment.
#[derive(Clone, Default)]
pub struct Tree {
    root: Arc<Node>,
}

/// A name with listeners.
#[derive(Clone)]
pub struct Heard {
    /// The name.
    pub name: Name,
    /// The listeners.
    pub audience: Audience,
    /// The length of its literal start, if it is a pattern.
    pub n_literal: usize,
    /// Its place in the order in which the names were added.
    pub begun: u64,
    hash: u64,
}

enum Node {
    Leaf(Vec<Heard>),
    Branch([Arc<Node>; N_BRANCHES]),
}

impl Default for Node {
    fn default() -> Self {
        Node::Leaf(Vec::new())
    }
}

impl Default for Audiences {
    fn default() -> Self {
        Self {
            tree: ArcSwap::default(),
            n_names: AtomicUsize::new(0),
            hasher: random::key_hasher(),
            n_begun: AtomicU64::new(0),
        }
    }
}

impl Audiences {
    /// The number of names. It is exact for a holder of a shard, if names change with all shards held.
    pub fn len(&self) -> usize {
        self.n_names.load(Ordering::Relaxed)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The current names.
    pub fn load(&self) -> arc_swap::Guard<Arc<Tree>> {
        self.tree.load()
    }

    /// The listeners to a name, as of the time when the names were loaded.
    pub fn find<'t>(&self, tree: &'t Tree, name: &[u8]) -> Option<&'t Audience> {
        tree.root.find(self.hash(name), name)
    }

    fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash(name).0
    }

    /// Adds a name to which a connection of a thread listens.
    pub fn add(&self, name: &Name, thread: usize) {
        let begun = self.n_begun.fetch_add(1, Ordering::Relaxed);
        let hash = self.hash(name);
        let mut n_new = 0;
        self.tree.rcu(|tree| {
            n_new = 0;
            let root =
                tree.root.with(hash, 0, |all| match all.iter_mut().find(|heard| heard.name == *name) {
                    Some(heard) => heard.audience.add(thread),
                    None => {
                        let mut audience = Audience::default();
                        audience.add(thread);
                        let n_literal = literal_len(name);
                        all.push(Heard { name: Arc::clone(name), audience, n_literal, begun, hash });
                        n_new = 1;
                    }
                });
            Tree { root: Arc::new(root) }
        });
        self.n_names.fetch_add(n_new, Ordering::Relaxed);
    }

    /// Removes a name to which a connection of a thread no longer listens.
    pub fn remove(&self, name: &Name, thread: usize) {
        let hash = self.hash(name);
        let mut n_gone = 0;
        self.tree.rcu(|tree| {
            n_gone = 0;
            let root = tree.root.with(hash, 0, |all| {
                let Some(at) = all.iter().position(|heard| heard.name == *name) else { return };
                all[at].audience.remove(thread);
                if all[at].audience.is_empty() {
                    all.swap_remove(at);
                    n_gone = 1;
                }
            });
            Tree { root: Arc::new(root) }
        });
        self.n_names.fetch_sub(n_gone, Ordering::Relaxed);
    }
}

impl Tree {
    /// Visits all names, in no order.
    pub fn each(&self, mut visit: impl FnMut(&Heard)) {
        self.root.each(&mut visit);
    }
}

impl Node {
    /// Returns a copy of the tree from here on, with changed names in the leaf for `hash`.
    ///
    /// `depth` is the depth here.
    fn with(&self, hash: u64, depth: u32, change: impl FnOnce(&mut Vec<Heard>)) -> Node {
        match self {
            Node::Leaf(all) => {
                let mut all = all.clone();
                change(&mut all);
                if all.len() <= LEAF_MAX || depth * BITS >= u64::BITS {
                    Node::Leaf(all)
                } else {
                    split(all, depth)
                }
            }
            Node::Branch(children) => {
                let mut children = children.clone();
                let child = &mut children[branch_of(hash, depth)];
                *child = Arc::new(child.with(hash, depth + 1, change));
                merged(&children).map_or(Node::Branch(children), Node::Leaf)
            }
        }
    }

    fn find(&self, hash: u64, name: &[u8]) -> Option<&Audience> {
        let mut node = self;
        let mut depth = 0;
        loop {
            match node {
                Node::Leaf(all) => {
                    return all.iter().find(|heard| *heard.name == *name).map(|heard| &heard.audience);
                }
                Node::Branch(children) => node = &children[branch_of(hash, depth)],
            }
            depth += 1;
        }
    }

    fn each(&self, visit: &mut impl FnMut(&Heard)) {
        match self {
            Node::Leaf(all) => all.iter().for_each(visit),
            Node::Branch(children) => children.iter().for_each(|child| child.each(visit)),
        }
    }
}

/// Returns the branch that replaces a full leaf.
fn split(all: Vec<Heard>, depth: u32) -> Node {
    let mut leaves: [Vec<Heard>; N_BRANCHES] = Default::default();
    all.into_iter().for_each(|heard| leaves[branch_of(heard.hash, depth)].push(heard));
    Node::Branch(leaves.map(|leaf| Arc::new(Node::Leaf(leaf))))
}

/// Returns the names of a branch that fit in a leaf. Then readers visit no empty nodes.
fn merged(children: &[Arc<Node>; N_BRANCHES]) -> Option<Vec<Heard>> {
    let mut n_names = 0;
    for child in children {
        let Node::Leaf(all) = &**child else { return None };
        n_names += all.len();
        // Half, so that adding and removing one name does not split and merge each time.
        if n_names > LEAF_MAX / 2 {
            return None;
        }
    }
    let mut all = Vec::with_capacity(n_names);
    children.iter().for_each(|child| child.each(&mut |heard| all.push(heard.clone())));
    Some(all)
}

fn branch_of(hash: u64, depth: u32) -> usize {
    (hash >> (depth * BITS)) as usize % N_BRANCHES
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Node {
        /// The number of nodes, and of names in leaves, that only another tree has.
        fn n_new(&self, other: &Arc<Node>) -> usize {
            match (self, &**other) {
                (_, Node::Leaf(all)) => 1 + all.len(),
                (Node::Branch(old), Node::Branch(new)) => {
                    let changed = old.iter().zip(new).filter(|(old, new)| !Arc::ptr_eq(old, new));
                    1 + N_BRANCHES + changed.map(|(old, new)| old.n_new(new)).sum::<usize>()
                }
                (Node::Leaf(_), Node::Branch(new)) => {
                    1 + N_BRANCHES + new.iter().map(|new| self.n_new(new)).sum::<usize>()
                }
            }
        }

        fn n_nodes(&self) -> usize {
            match self {
                Node::Leaf(_) => 1,
                Node::Branch(children) => 1 + children.iter().map(|child| child.n_nodes()).sum::<usize>(),
            }
        }
    }

    fn name(n: usize) -> Name {
        Name::from(format!("name:{n}").as_bytes())
    }

    fn names(audiences: &Audiences) -> Vec<Name> {
        let mut all = Vec::new();
        audiences.load().each(|heard| all.push((heard.begun, Arc::clone(&heard.name))));
        all.sort_unstable();
        all.into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn names_are_found_until_their_last_listener_leaves() {
        const N: usize = 5000;
        let audiences = Audiences::default();
        for thread in 0..2 {
            (0..N).for_each(|n| audiences.add(&name(n), thread));
        }
        assert_eq!(
            names(&audiences),
            (0..N).map(name).collect::<Vec<_>>(),
            "in the order in which they came"
        );
        (0..N).for_each(|n| audiences.remove(&name(n), 0));
        assert_eq!(audiences.len(), N);
        let found = audiences.load();
        let listeners = |name: &Name| audiences.find(&found, name).map(|audience| audience.len());
        assert!((0..N).all(|n| listeners(&name(n)) == Some(1)) && listeners(&name(N)).is_none());
        (0..N).filter(|n| n % 100 > 0).for_each(|n| audiences.remove(&name(n), 1));
        audiences.remove(&name(1), 1);
        assert_eq!(names(&audiences), (0..N).step_by(100).map(name).collect::<Vec<_>>());
        (0..N).step_by(100).for_each(|n| audiences.remove(&name(n), 1));
        assert!(audiences.is_empty());
        assert_eq!(audiences.load().root.n_nodes(), 1, "nothing is left to visit");
    }

    /// Checks against a list that is copied at each change, which costs n steps for the n-th.
    #[test]
    fn a_change_copies_no_more_with_many_names_than_with_few() {
        let audiences = Audiences::default();
        let mut most = 0;
        let mut change = |change: &dyn Fn()| {
            let before = Tree::clone(&audiences.load());
            change();
            most = most.max(before.root.n_new(&audiences.load().root));
        };
        (0..20_000).for_each(|n| change(&|| audiences.add(&name(n), 0)));
        (0..20_000).for_each(|n| change(&|| audiences.remove(&name(n), 0)));
        assert!(most < 400, "{most} nodes and names are copied for one change");
    }
}
