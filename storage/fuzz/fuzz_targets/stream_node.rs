//! Whatever passes as a node of a stream reads the same from both ends, and stays a node when entries are
//! deleted and added.
#![no_main]

use braid_storage::types::{
    packed::Element,
    stream::{
        Entry, StreamId,
        node::{Fate, PackedNode},
    },
};
use libfuzzer_sys::fuzz_target;

fn shown(entry: Entry<'_>) -> (StreamId, bool, Vec<(Vec<u8>, Vec<u8>)>) {
    let fields = entry.fields().map(|(name, value)| (name.to_vec(), value.to_vec()));
    (entry.id(), entry.is_deleted(), fields.collect())
}

fuzz_target!(|input: &[u8]| {
    let Some((ms, rest)) = input.split_first_chunk() else { return };
    let Some((seq, bytes)) = rest.split_first_chunk() else { return };
    let id = StreamId::new(u64::from_be_bytes(*ms), u64::from_be_bytes(*seq));
    let Some(mut node) = PackedNode::check(bytes.to_vec(), id) else { return };
    let forwards: Vec<_> = node.entries(id).map(shown).collect();
    let mut backwards: Vec<_> = node.entries_backwards(id).map(shown).collect();
    backwards.reverse();
    assert_eq!(forwards, backwards);
    assert_eq!(forwards.len(), node.n_live() + node.n_deleted());
    let mut n = 0;
    let n_gone = node.sift(id, |_| {
        n += 1;
        if n % 2 == 0 { Fate::Goes } else { Fate::Stays }
    });
    // Those that are deleted may be in any order.
    let last = forwards.iter().map(|(id, ..)| *id).max().expect("a node has an entry");
    let Some(next) = last.next() else { return };
    node.push(id, next, &[Element::of(b"name"), Element::of(b"7")]);
    let n_live = forwards.iter().filter(|(_, is_deleted, _)| !is_deleted).count();
    assert_eq!(node.n_live(), n_live - n_gone + 1);
    assert!(PackedNode::check(node.bytes().to_vec(), id).is_some());
});
