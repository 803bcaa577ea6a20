//! Lists, written and read.

use std::iter;

use super::{
    codes::{node, types},
    flaw::Flaw,
    reader::{self, Reader},
    value_builder::{Made, Making},
    walk::{self, Stop, ValueParts},
    writer, ziplist,
};
use crate::{
    entry::{EntryRef, time::Millis},
    types::{
        list::{ListEnd, ListMut, ListType, Part},
        packed::{self, Packed},
        value::ValueRef,
    },
};

/// The types that are read.
pub const TYPES: &[u8] =
    &[types::LIST, types::LIST_ZIPLIST, types::LIST_OF_ZIPLISTS, types::LIST_OF_LISTPACKS];

/// Writes the type and the value.
pub fn write(out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) {
    let list = ValueRef::<ListType>::known(entry, now);
    out.push(types::LIST_OF_LISTPACKS);
    writer::number_of(out, list.parts().count());
    for part in list.parts() {
        match part {
            Part::Packed(packed) => {
                writer::len(out, node::PACKED);
                writer::string(out, packed.bytes());
            }
            Part::Plain(text) => {
                writer::len(out, node::PLAIN);
                writer::string(out, text);
            }
        }
    }
}

/// Walks over a value of one of the [`TYPES`].
pub fn walk(value_type: u8, parts: &mut dyn ValueParts) -> Result<(), Stop> {
    match value_type {
        types::LIST_ZIPLIST => parts.string(),
        types::LIST | types::LIST_OF_ZIPLISTS => walk::strings(parts, 1),
        _ => walk::repeated(parts, |parts| {
            parts.len()?;
            parts.string()
        }),
    }
}

/// Reads a value of one of the [`TYPES`].
pub fn read(value_type: u8, from: &mut Reader<'_>, making: &Making<'_>) -> Option<Made> {
    making.make(|list: &mut ListMut<'_>| fill_list(list, value_type, from))
}

fn fill_list(list: &mut ListMut<'_>, value_type: u8, from: &mut Reader<'_>) -> Option<()> {
    match value_type {
        types::LIST => from.repeated(|from| {
            list.push(ListEnd::Right, iter::once(&*from.string()?));
            Some(())
        })?,
        // Redis leaves what it read of this type large.
        types::LIST_ZIPLIST => return append_ziplist(list, from),
        types::LIST_OF_ZIPLISTS => from.repeated(|from| append_ziplist(list, from))?,
        _ => from.repeated(|from| match from.len()? {
            node::PLAIN => {
                let text = from.string()?;
                list.append(Part::Plain(&text));
                from.require(!text.is_empty(), Flaw::Empty)
            }
            node::PACKED => from.string_as(Flaw::Packed("Listpack"), |packed| {
                append_repacked(list, |each| reader::each_packed(&packed, each))
            }),
            _ => None,
        })?,
    }
    list.settle();
    Some(())
}

fn append_ziplist(list: &mut ListMut<'_>, from: &mut Reader<'_>) -> Option<()> {
    from.string_as(Flaw::Packed("Ziplist"), |packed| {
        append_repacked(list, |each| ziplist::each(&packed, each))
    })
}

/// Appends a piece of a list. It is packed anew: a text may have been packed in more ways than one.
fn append_repacked(
    list: &mut ListMut<'_>,
    read: impl FnOnce(&mut dyn FnMut(&[u8]) -> Option<()>) -> Option<()>,
) -> Option<()> {
    let mut elements = packed::EMPTY.to_vec();
    read(&mut |text| {
        packed::push(&mut elements, text);
        Some(())
    })?;
    list.append(Part::Packed(Packed::new(&elements)));
    Some(())
}
