//! Members chosen by chance: SPOP and SRANDMEMBER.
//!
//! Random numbers are the caller's. Every choice is uniform, as far as [`Table::sample`] is.

use std::collections::HashSet;

use super::{
    Element, HASHTABLE, IS_OBJECT, MemberTable, SetBuilder, SetMut, SetRef, View, intset, members_mut,
    packed_bytes,
};
use crate::{entry::EntryBox, memory::reclaim, table::Table, types::packed};

/// Up to this many times more members are popped one by one than stay; else those that stay are moved out of
/// a large set.
const POP_BY_ONE_MAX: usize = 5;

/// From this many times more members than are wanted on, those of a large set are drawn; else all are gone
/// through.
const DRAW_MIN: usize = 3;

/// An index below `n` by a random number.
#[inline]
fn below(random: u64, n: usize) -> usize {
    ((u128::from(random) * n as u128) >> 64) as usize
}

/// Chooses some of many things in one walk, each choice as likely as any other. (Knuth, "The Art of Computer
/// Programming", section 3.4.2, algorithm S.)
struct Selection {
    n_wanted: usize,
    n_left: usize,
}

impl Selection {
    /// Whether the next thing is chosen.
    fn takes(&mut self, random: u64) -> bool {
        let takes = below(random, self.n_left) < self.n_wanted;
        self.n_left -= 1;
        self.n_wanted -= usize::from(takes);
        takes
    }
}

impl<'a> SetRef<'a> {
    /// A random member; `None` if there are none.
    pub fn sample(self, random: u64) -> Option<Element<'a>> {
        match View::of(self.entry()) {
            View::Integers(ints) if ints.is_empty() => None,
            View::Integers(ints) => Some(Element::Integer(ints.get(below(random, ints.len())))),
            View::Packed(packed) => packed.nth(below(random, packed.len()) as i64).map(|at| packed.get(at)),
            View::Table(table) => table.sample(random).map(|entry| Element::Text(entry.key())),
        }
    }

    /// Random members without end, each independent of the others; none if there are none.
    pub fn samples(self, mut random: impl FnMut() -> u64) -> impl Iterator<Item = Element<'a>> {
        // Packed members are found by walking to them: once for all.
        let packed: Vec<Element<'a>> = match View::of(self.entry()) {
            View::Packed(packed) => packed.iter().collect(),
            View::Integers(_) | View::Table(_) => Vec::new(),
        };
        std::iter::from_fn(move || {
            let random = random();
            if packed.is_empty() { self.sample(random) } else { Some(packed[below(random, packed.len())]) }
        })
    }

    /// Calls `each` with `n` different members, chosen by chance, in an order that is not.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn choose(self, n: usize, random: &mut dyn FnMut() -> u64, each: &mut dyn FnMut(Element<'a>)) {
        let len = self.len();
        assert!(n <= len, "there are {len} members");
        if let View::Table(table) = View::of(self.entry())
            && n.saturating_mul(DRAW_MIN) <= len
        {
            return draw(table, n, random, each);
        }
        let mut selection = Selection { n_wanted: n, n_left: len };
        self.iter().filter(|_| selection.takes(random())).for_each(each);
    }
}

/// Calls `each` with `n` different members of many more.
fn draw<'a>(table: &'a Table, n: usize, random: &mut dyn FnMut() -> u64, each: &mut dyn FnMut(Element<'a>)) {
    // Members are told apart by where they lie.
    let mut drawn = HashSet::with_capacity(n);
    while drawn.len() < n {
        let member = table.sample(random()).expect("there are more members").key();
        if drawn.insert(member.as_ptr()) {
            each(Element::Text(member));
        }
    }
}

impl MemberTable {
    /// Removes a random member, and returns the result of `with` for it.
    fn pop<R>(&mut self, random: u64, with: impl FnOnce(Element<'_>) -> R) -> R {
        let entry = self.0.remove_sample(random).expect("the set has members");
        let result = with(Element::Text(entry.as_ref().key()));
        reclaim::free(entry);
        result
    }
}

impl SetMut<'_> {
    /// Removes a random member, and returns the result of `with` for it.
    ///
    /// # Panics
    /// If there are none.
    pub fn pop<R>(&mut self, random: u64, with: impl FnOnce(Element<'_>) -> R) -> R {
        self.mark_changed();
        if self.entry().encoding() != HASHTABLE {
            return self.arrange(|entry| pop(entry, random, with));
        }
        self.arrange_object(|members: &mut MemberTable| members.pop(random, with)).expect(IS_OBJECT)
    }

    /// Removes `n` random members, and calls `each` with each of them. Some must stay: removing all needs no
    /// chance.
    ///
    /// # Panics
    /// If there are no more than `n`.
    pub fn pop_many(&mut self, n: usize, random: &mut dyn FnMut() -> u64, each: &mut dyn FnMut(Element<'_>)) {
        let len = self.as_ref().len();
        assert!(n < len, "there are {len} members");
        let n_kept = len - n;
        self.mark_all_changed(n);
        if self.entry().encoding() != HASHTABLE {
            self.change(|entry| split(entry, n, random, each));
        } else if n / POP_BY_ONE_MAX < n_kept {
            self.change(|entry| (0..n).for_each(|_| pop(entry, random(), &mut *each)));
        } else {
            self.pop_all_but(n_kept, random, each);
        }
    }

    /// Removes all members of a large set but some, which become a set anew. It may be small.
    fn pop_all_but(
        &mut self,
        n_kept: usize,
        random: &mut dyn FnMut() -> u64,
        each: &mut dyn FnMut(Element<'_>),
    ) {
        let thresholds = self.thresholds();
        let old = self.change(|entry| {
            let hasher = members_mut(entry).0.router().hasher();
            let mut kept = SetBuilder::packed(entry.as_ref().key(), thresholds, hasher);
            for _ in 0..n_kept {
                pop(entry, random(), |member| kept.insert(member));
            }
            let old = entry.as_ref();
            View::of(old).iter().for_each(&mut *each);
            let mut kept = kept.build().expect("some members stay");
            kept.set_deadline(old.deadline());
            kept.as_ref().set_access_clock(old.access_clock());
            std::mem::replace(entry, kept)
        });
        reclaim::free(old);
    }
}

fn pop<R>(entry: &mut EntryBox, random: u64, with: impl FnOnce(Element<'_>) -> R) -> R {
    match View::of(entry.as_ref()) {
        View::Table(_) => members_mut(entry).pop(random, with),
        View::Packed(packed) => {
            let at = packed.nth(below(random, packed.len()) as i64).expect("the set has members");
            let result = with(packed.get(at));
            packed::remove(entry, at, 1);
            result
        }
        View::Integers(ints) => {
            let index = below(random, ints.len());
            let result = with(Element::Integer(ints.get(index)));
            intset::remove(entry, index);
            result
        }
    }
}

/// Removes `n` members of a small set at a stroke.
fn split(entry: &mut EntryBox, n: usize, random: &mut dyn FnMut() -> u64, each: &mut dyn FnMut(Element<'_>)) {
    let set = View::of(entry.as_ref());
    let mut selection = Selection { n_wanted: n, n_left: set.len() };
    let mut stays = |member| {
        let goes = selection.takes(random());
        if goes {
            each(member);
        }
        !goes
    };
    let kept = match set {
        View::Packed(packed) => packed_bytes(packed.iter().filter(|&member| stays(member))),
        View::Integers(ints) => {
            let kept = ints.iter().filter(|&value| stays(Element::Integer(value)));
            intset::of_ascending(&kept.collect::<Vec<_>>())
        }
        View::Table(_) => unreachable!("a table is not rewritten"),
    };
    entry.set_bytes(&kept);
}
