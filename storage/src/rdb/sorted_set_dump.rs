//! Sorted sets, written and read.

use braid_protocol::number;

use super::{
    codes::types,
    making::Making,
    reader::{self, Reader},
    writer,
};
use crate::{
    entry::{EntryBox, EntryRef},
    sorted_set::{self, AddRule, Added, SortedSetMut, SortedSetType},
    time::Millis,
    value::ValueRef,
};

/// The types that are read.
pub const TYPES: &[u8] =
    &[types::SORTED_SET, types::SORTED_SET_OF_TEXTS, types::SORTED_SET_ZIPLIST, types::SORTED_SET_LISTPACK];

/// Writes the type and the value. A large one is written from the highest score on, as Redis does.
pub fn write(out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) {
    let set = ValueRef::<SortedSetType>::known(entry, now);
    if sorted_set::encoding_name(entry) == "listpack" {
        out.push(types::SORTED_SET_LISTPACK);
        return writer::string(out, entry.bytes().expect("a packed value is bytes"));
    }
    out.push(types::SORTED_SET);
    writer::number_of(out, set.len());
    for scored in set.iter(0..set.len()).rev() {
        writer::element(out, scored.member);
        out.extend_from_slice(&scored.score().to_le_bytes());
    }
}

/// Reads a value of one of the [`TYPES`].
pub fn read(value_type: u8, from: &mut Reader<'_>, making: &Making<'_>) -> Option<Option<EntryBox>> {
    making.make(|set: &mut SortedSetMut<'_>| fill_sorted_set(set, value_type, from)).map(Some)
}

fn fill_sorted_set(set: &mut SortedSetMut<'_>, value_type: u8, from: &mut Reader<'_>) -> Option<()> {
    let mut add = |member: &[u8], score: f64| {
        let is_new = !score.is_nan() && matches!(set.add(member, score, AddRule::default()), Added::New(_));
        is_new.then_some(())
    };
    match value_type {
        types::SORTED_SET => from.repeated(|from| add(&from.string()?, from.double()?)),
        types::SORTED_SET_OF_TEXTS => from.repeated(|from| add(&from.string()?, from.double_in_text()?)),
        _ => reader::each_pair(value_type == types::SORTED_SET_ZIPLIST, &from.string()?, |member, score| {
            add(member, number::parse_f64(score)?)
        }),
    }
}
