//! Hashes, written and read.

use super::{
    codes::types,
    flaw::Flaw,
    reader::{self, Reader},
    value_builder::{Made, Making},
    walk::{self, Stop, ValueParts},
    write_format::Whole,
    writer, zipmap,
};
use crate::{
    entry::{
        EntryRef,
        time::{Deadline, Expiry, Millis},
    },
    types::{
        hashes::{self, HashMut, HashRef, HashType, Inserted},
        packed::Packed,
        value::ValueRef,
    },
};

/// The latest deadline that a field may have.
const FIELD_DEADLINE_MAX: u64 = (1 << 48) - 1;

/// What is wrong with a hash that has a field twice.
const TWICE: Flaw = Flaw::Twice("hash fields");

/// The types that are read.
pub const TYPES: &[u8] = &[
    types::HASH,
    types::HASH_ZIPMAP,
    types::HASH_ZIPLIST,
    types::HASH_LISTPACK,
    types::HASH_WITH_DEADLINES,
    types::HASH_TRIPLES,
    types::HASH_WITH_DEADLINES_EARLY,
    types::HASH_TRIPLES_EARLY,
    types::HASH_OF_VALKEY,
];

/// Stands in Valkey's hashes for the deadline of a field that has none.
pub(super) const NO_DEADLINE: i64 = -1;

/// Writes the type and the value. Fields whose deadline has passed are left out.
pub fn write(out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) {
    let hash = ValueRef::<HashType>::known(entry, now);
    if hashes::encoding_name(entry) == "listpack" {
        out.push(types::HASH_LISTPACK);
        return writer::string(out, entry.bytes().expect("a packed value is bytes"));
    }
    match hash.iter().filter_map(|field| field.deadline).min() {
        Some(first) => hash_with_deadlines(out, hash, first),
        None => {
            out.push(types::HASH);
            writer::number_of(out, hash.iter().count());
            for field in hash.iter() {
                writer::element(out, field.name);
                writer::element(out, field.value);
            }
        }
    }
}

/// Writes a hash of which the first deadline is `first`: its triples as they are stored, or field by field,
/// with what each deadline is later than the first, and one more, since 0 stands for none.
fn hash_with_deadlines(out: &mut Vec<u8>, hash: HashRef<'_>, first: Deadline) {
    let triples = hash.live_triples();
    out.push(if triples.is_some() { types::HASH_TRIPLES } else { types::HASH_WITH_DEADLINES });
    out.extend_from_slice(&first.0.0.to_le_bytes());
    if let Some(triples) = triples {
        return writer::string(out, &triples);
    }
    writer::number_of(out, hash.iter().count());
    for field in hash.iter() {
        writer::len(out, field.deadline.map_or(0, |deadline| deadline.0.0 - first.0.0 + 1));
        writer::element(out, field.name);
        writer::element(out, field.value);
    }
}

/// Calls `each` with every field of a hash with deadlines, however it is written: name, value and deadline in
/// milliseconds, or 0 for none.
fn each_field(value_type: u8, from: &mut Reader<'_>, mut each: impl FnMut(&[u8], &[u8], u64)) -> Option<()> {
    if value_type == types::HASH_OF_VALKEY {
        return from.repeated(|from| {
            let (name, value, deadline) = (from.string()?, from.string()?, i64::from_le_bytes(from.array()?));
            match deadline {
                NO_DEADLINE => each(&name, &value, 0),
                // Zero would stand for none, and both have passed long ago.
                _ => match u64::try_from(deadline) {
                    Ok(deadline @ ..=FIELD_DEADLINE_MAX) => each(&name, &value, deadline.max(1)),
                    _ => return from.refuse(Flaw::Deadline),
                },
            }
            Some(())
        });
    }
    let is_early = matches!(value_type, types::HASH_WITH_DEADLINES_EARLY | types::HASH_TRIPLES_EARLY);
    let first = if is_early { 1 } else { from.time()?.0 };
    if matches!(value_type, types::HASH_TRIPLES | types::HASH_TRIPLES_EARLY) {
        return from.string_as(Flaw::Packed("Hash listpack"), |packed| {
            each_triple(&packed, |name, value, deadline| {
                each(name, value, deadline);
                (deadline <= FIELD_DEADLINE_MAX).then_some(())
            })
        });
    }
    from.repeated(|from| {
        let deadline = deadline_from(first, from.len()?);
        let Some(deadline) = deadline else { return from.refuse(Flaw::Deadline) };
        let (name, value) = (from.string()?, from.string()?);
        each(&name, &value, deadline);
        Some(())
    })
}

/// The deadline that is written as a distance from the first, and one more; 0 stands for none.
fn deadline_from(first: u64, distance: u64) -> Option<u64> {
    match distance {
        0 => Some(0),
        later => first.checked_add(later - 1).filter(|&deadline| deadline <= FIELD_DEADLINE_MAX),
    }
}

/// Writes a hash with deadlines as Valkey does. Returns the type.
pub fn rewrite_for_valkey(out: &mut Vec<u8>, value_type: u8, from: &mut Reader<'_>) -> Option<u8> {
    let (mut fields, mut n) = (Vec::new(), 0);
    each_field(value_type, from, |name, value, deadline| {
        n += 1;
        writer::string(&mut fields, name);
        writer::string(&mut fields, value);
        let deadline = if deadline == 0 { NO_DEADLINE } else { deadline as i64 };
        fields.extend_from_slice(&deadline.to_le_bytes());
    })?;
    writer::number_of(out, n);
    out.extend_from_slice(&fields);
    Some(types::HASH_OF_VALKEY)
}

/// Writes a hash with deadlines as Redis does. Returns the type.
pub fn rewrite_for_redis(
    out: &mut Vec<u8>,
    value_type: u8,
    from: &mut Reader<'_>,
    whole: Whole,
) -> Option<u8> {
    let mut fields = Vec::new();
    each_field(value_type, from, |name, value, deadline| {
        fields.push((name.to_vec(), value.to_vec(), deadline));
    })?;
    let first = match whole {
        Whole::Yes => fields.iter().map(|field| field.2).filter(|&deadline| deadline > 0).min().unwrap_or(1),
        // The first of all is not known yet, and must be the same for all parts.
        Whole::Part => 1,
    };
    out.extend_from_slice(&first.to_le_bytes());
    writer::number_of(out, fields.len());
    for (name, value, deadline) in fields {
        writer::len(out, if deadline == 0 { 0 } else { deadline - first + 1 });
        writer::string(out, &name);
        writer::string(out, &value);
    }
    Some(types::HASH_WITH_DEADLINES)
}

/// Walks over a value of one of the [`TYPES`].
pub fn walk(value_type: u8, parts: &mut dyn ValueParts) -> Result<(), Stop> {
    if matches!(value_type, types::HASH_WITH_DEADLINES | types::HASH_TRIPLES) {
        parts.bytes(size_of::<Millis>())?;
    }
    match value_type {
        types::HASH => walk::strings(parts, 2),
        types::HASH_WITH_DEADLINES | types::HASH_WITH_DEADLINES_EARLY => walk::repeated(parts, |parts| {
            parts.len()?;
            parts.string()?;
            parts.string()
        }),
        types::HASH_OF_VALKEY => walk::repeated(parts, |parts| {
            parts.string()?;
            parts.string()?;
            parts.bytes(size_of::<i64>())
        }),
        _ => parts.string(),
    }
}

/// Reads a value of one of the [`TYPES`]. There is none if all its fields have expired.
pub fn read(value_type: u8, from: &mut Reader<'_>, making: &Making<'_>) -> Option<Made> {
    let fill = |hash: &mut HashMut<'_>| match value_type {
        types::HASH | types::HASH_ZIPMAP | types::HASH_ZIPLIST | types::HASH_LISTPACK => {
            fill_hash(hash, value_type, from)
        }
        types::HASH_OF_VALKEY => fill_hash_of_valkey(hash, from),
        _ => fill_hash_with_deadlines(hash, value_type, from),
    };
    making.make_then(fill, |hash| {
        hash.expire(usize::MAX);
    })
}

fn fill_hash(hash: &mut HashMut<'_>, value_type: u8, from: &mut Reader<'_>) -> Option<()> {
    let mut set = |name: &[u8], value: &[u8]| {
        matches!(hash.set(name, value, Expiry::Clear), Inserted::New).then_some(())
    };
    match value_type {
        types::HASH => from.repeated(|from| {
            let (name, value) = (from.string()?, from.string()?);
            set(&name, &value).or_else(|| from.refuse(TWICE))
        }),
        types::HASH_ZIPMAP => from.string_as(Flaw::Packed("Zipmap"), |packed| zipmap::each(&packed, set)),
        types::HASH_ZIPLIST => {
            from.string_as(Flaw::Packed("Hash ziplist"), |packed| reader::each_pair(true, &packed, set))
        }
        _ => from.string_as(Flaw::Packed("Hash listpack"), |packed| reader::each_pair(false, &packed, set)),
    }
}

/// Valkey writes each field with its deadline in milliseconds, or [`NO_DEADLINE`].
fn fill_hash_of_valkey(hash: &mut HashMut<'_>, from: &mut Reader<'_>) -> Option<()> {
    hash.admit_deadlines();
    from.repeated(|from| {
        let (name, value) = (from.string()?, from.string()?);
        let expiry = match i64::from_le_bytes(from.array()?) {
            NO_DEADLINE => Expiry::Clear,
            deadline => match u64::try_from(deadline) {
                Ok(deadline @ ..=FIELD_DEADLINE_MAX) => Expiry::At(Deadline::at(deadline)),
                _ => return from.refuse(Flaw::Deadline),
            },
        };
        let set = hash.set(&name, &value, expiry);
        from.require(matches!(set, Inserted::New), TWICE)
    })
}

/// Early types have no first deadline in front, and write the deadlines themselves.
fn fill_hash_with_deadlines(hash: &mut HashMut<'_>, value_type: u8, from: &mut Reader<'_>) -> Option<()> {
    hash.admit_deadlines();
    let mut set = |name: &[u8], value: &[u8], deadline: u64| {
        let expiry = match deadline {
            0 => Expiry::Clear,
            1..=FIELD_DEADLINE_MAX => Expiry::At(Deadline::at(deadline)),
            _ => return None,
        };
        matches!(hash.set(name, value, expiry), Inserted::New).then_some(())
    };
    let is_early = matches!(value_type, types::HASH_WITH_DEADLINES_EARLY | types::HASH_TRIPLES_EARLY);
    let first = if is_early { 1 } else { from.time()?.0 };
    if matches!(value_type, types::HASH_TRIPLES | types::HASH_TRIPLES_EARLY) {
        return from.string_as(Flaw::Packed("Hash listpack"), |packed| each_triple(&packed, set));
    }
    from.repeated(|from| {
        let deadline = deadline_from(first, from.len()?);
        let Some(deadline) = deadline else { return from.refuse(Flaw::Deadline) };
        let (name, value) = (from.string()?, from.string()?);
        set(&name, &value, deadline).or_else(|| from.refuse(TWICE))
    })
}

/// Calls `each` with the elements of a listpack, three and three, of which the third is a deadline, or 0 for
/// none.
fn each_triple(bytes: &[u8], mut each: impl FnMut(&[u8], &[u8], u64) -> Option<()>) -> Option<()> {
    let mut elements = Packed::check(bytes)?.iter();
    while let Some(name) = elements.next() {
        let (value, deadline) = (elements.next()?, u64::try_from(elements.next()?.integer()?).ok()?);
        name.with_text(|name| value.with_text(|value| each(name, value, deadline)))?;
    }
    Some(())
}
