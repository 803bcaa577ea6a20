//! Sets, written and read.

use braid_protocol::number;

use super::{
    codes::types,
    flaw::Flaw,
    reader::{self, Reader},
    value_builder::{Made, Making},
    walk::{self, Stop, ValueParts},
    writer,
};
use crate::{
    entry::{EntryRef, time::Millis},
    types::{
        set::{self, SetMut, SetType, intset::IntSet},
        value::ValueRef,
    },
};

/// The types that are read.
pub const TYPES: &[u8] = &[types::SET, types::SET_INTSET, types::SET_LISTPACK];

/// Writes the type and the value. A packed set is written member by member: its own type is newer than the
/// version that is written.
pub fn write(out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) {
    let members = ValueRef::<SetType>::known(entry, now);
    if set::encoding_name(entry) == "intset" {
        out.push(types::SET_INTSET);
        return writer::string(out, entry.bytes().expect("a packed value is bytes"));
    }
    out.push(types::SET);
    writer::number_of(out, members.len());
    for member in members.iter() {
        writer::element(out, member);
    }
}

/// Walks over a value of one of the [`TYPES`].
pub fn walk(value_type: u8, parts: &mut dyn ValueParts) -> Result<(), Stop> {
    if value_type == types::SET { walk::strings(parts, 1) } else { parts.string() }
}

/// Reads a value of one of the [`TYPES`].
pub fn read(value_type: u8, from: &mut Reader<'_>, making: &Making<'_>) -> Option<Made> {
    making.make(|set: &mut SetMut<'_>| fill_set(set, value_type, from))
}

fn fill_set(set: &mut SetMut<'_>, value_type: u8, from: &mut Reader<'_>) -> Option<()> {
    let mut insert = |member: &[u8]| set.insert(member).then_some(());
    match value_type {
        types::SET => {
            from.repeated(|from| from.string_as(Flaw::Twice("set members"), |member| insert(&member)))
        }
        types::SET_LISTPACK => {
            from.string_as(Flaw::Packed("Set listpack"), |packed| reader::each_packed(&packed, insert))
        }
        _ => from.string_as(Flaw::Packed("Intset"), |packed| {
            IntSet::check(&packed)?.iter().try_for_each(|value| number::format_i64(value, &mut insert))
        }),
    }
}
