//! Sorted sets, written and read.

use braid_protocol::number;

use super::{
    codes::types,
    flaw::Flaw,
    reader::{self, Reader},
    value_builder::{Made, Making, Unfinished},
    walk::{self, Stop, ValueParts},
    writer,
};
use crate::{
    entry::{EntryRef, time::Millis},
    table::hash::Router,
    types::{
        sorted_set::{self, Gathered, SortedSetType, ZeroSign},
        value::ValueRef,
    },
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

/// Walks over a value of one of the [`TYPES`].
pub fn walk(value_type: u8, parts: &mut dyn ValueParts) -> Result<(), Stop> {
    match value_type {
        types::SORTED_SET => walk::repeated(parts, |parts| {
            parts.string()?;
            parts.bytes(size_of::<f64>())
        }),
        types::SORTED_SET_OF_TEXTS => walk::repeated(parts, |parts| {
            parts.string()?;
            parts.double_in_text()
        }),
        _ => parts.string(),
    }
}

/// Reads a value of one of the [`TYPES`]. As in Redis, one that was written member by member is large until
/// all of it is there, so it keeps the sign of zeros if it stays large; one that was packed keeps what is in
/// it.
pub fn read(value_type: u8, from: &mut Reader<'_>, making: &Making<'_>) -> Option<Made> {
    let mut gathered = match making.onto.take() {
        Some(Unfinished::Members(gathered)) => gathered,
        _ => Gathered::new(&Router::unsharded(making.hasher)),
    };
    let mut add = |member: &[u8], score: f64| match score.is_nan() {
        true => Err(Flaw::NotANumber),
        false if gathered.insert(member, score) => Ok(()),
        false => Err(Flaw::Twice("zset fields")),
    };
    let zero_sign = match value_type {
        types::SORTED_SET | types::SORTED_SET_OF_TEXTS => {
            let is_text = value_type == types::SORTED_SET_OF_TEXTS;
            from.repeated(|from| {
                let member = from.string()?;
                let score = if is_text { from.double_in_text()? } else { from.double()? };
                match add(&member, score) {
                    Ok(()) => Some(()),
                    Err(flaw) => from.refuse(flaw),
                }
            })?;
            ZeroSign::Dropped
        }
        _ => {
            let is_ziplist = value_type == types::SORTED_SET_ZIPLIST;
            let flaw = Flaw::Packed(if is_ziplist { "Zset ziplist" } else { "Zset listpack" });
            let add = |member: &[u8], score: &[u8]| add(member, number::parse_f64(score)?).ok();
            from.string_as(flaw, |packed| reader::each_pair(is_ziplist, &packed, add))?;
            ZeroSign::Kept
        }
    };
    if making.is_part {
        return Some(Made::Part(Unfinished::Members(gathered)));
    }
    let made = gathered.sort().into_entry_with(zero_sign, making.key, making.thresholds);
    Some(made.map_or(Made::Empty, Made::Entry))
}
