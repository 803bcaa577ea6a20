//! How values are read. Whatever is wrong with one, the answer is `None`.
//!
//! Values are made by their types' own operations on a shard by itself, member by member, so that they are stored as the
//! settings say, whatever they were stored like where they come from.

use std::{borrow::Cow, iter};

use braid_protocol::number;

use super::{
    codes::{encoded, length, node, types},
    lzf, stream_dump, ziplist, zipmap,
};
use crate::{
    Db, Expiry, HashMut, Key, Keyspace, ListEnd, ListMut, SetMut, Shard, SortedSetMut, StringOrigin,
    ValueMut, ValueType,
    entry::{EntryBox, Kind},
    event::Event,
    hashes::Inserted,
    list::Part,
    packed::{self, Element, Packed},
    set::intset::IntSet,
    sorted_set::{AddRule, Added},
    time::{Deadline, Millis},
};

/// The longest string, compressed or not.
const STRING_MAX_BYTES: usize = 1 << 30;

/// The latest deadline that a field may have.
const FIELD_DEADLINE_MAX: u64 = (1 << 48) - 1;

/// The value that is all of the bytes, as an entry for the key; no entry, if all there is in it has expired.
pub fn value(bytes: &[u8], key: &Key<'_>, keyspace: &Keyspace, now: Millis) -> Option<Option<EntryBox>> {
    let mut from = Reader(bytes);
    let value_type = from.byte()?;
    let entry = match value_type {
        types::STRING => {
            let text = from.string()?;
            let encoding = StringOrigin::Written.encoding();
            Some(EntryBox::with_bytes(Kind::String, encoding, key.bytes, &text, None))
        }
        types::LIST | types::LIST_ZIPLIST | types::LIST_OF_ZIPLISTS | types::LIST_OF_LISTPACKS => {
            make(key, keyspace, now, |list: &mut ListMut<'_>| fill_list(list, value_type, &mut from))?
        }
        types::SET | types::SET_INTSET | types::SET_LISTPACK => {
            make(key, keyspace, now, |set: &mut SetMut<'_>| fill_set(set, value_type, &mut from))?
        }
        types::HASH | types::HASH_ZIPMAP | types::HASH_ZIPLIST | types::HASH_LISTPACK => {
            make(key, keyspace, now, |hash: &mut HashMut<'_>| fill_hash(hash, value_type, &mut from))?
        }
        types::HASH_WITH_DEADLINES
        | types::HASH_TRIPLES
        | types::HASH_WITH_DEADLINES_EARLY
        | types::HASH_TRIPLES_EARLY => make(key, keyspace, now, |hash: &mut HashMut<'_>| {
            fill_hash_with_deadlines(hash, value_type, &mut from)
        })?,
        types::SORTED_SET
        | types::SORTED_SET_OF_TEXTS
        | types::SORTED_SET_ZIPLIST
        | types::SORTED_SET_LISTPACK => make(key, keyspace, now, |set: &mut SortedSetMut<'_>| {
            fill_sorted_set(set, value_type, &mut from)
        })?,
        types::STREAM | types::STREAM_2 | types::STREAM_3 => {
            Some(stream_dump::read(key.bytes, value_type, &mut from)?)
        }
        _ => return None,
    };
    // What is behind the value does not matter, as in Redis.
    Some(entry)
}

/// An entry with what `fill` puts into a value, which must not be empty. There is none if all that was put in has expired.
fn make<T: ValueType>(
    key: &Key<'_>,
    keyspace: &Keyspace,
    now: Millis,
    fill: impl FnOnce(&mut ValueMut<'_, T>) -> Option<()>,
) -> Option<Option<EntryBox>> {
    let mut shard: Shard = keyspace.shard_apart();
    shard.start();
    // At that time nothing has expired, so that what comes twice is noticed in any case.
    shard.begin(Db(0), Millis(0));
    let mut value = shard.value_or_create::<T>(key, Event::Made).expect("a new shard has no keys");
    fill(&mut value)?;
    drop(value);
    shard.peek(key)?;
    shard.expire_fields(now, usize::MAX);
    Some(shard.take(key, Event::Made))
}

fn fill_list(list: &mut ListMut<'_>, value_type: u8, from: &mut Reader<'_>) -> Option<()> {
    match value_type {
        types::LIST => from.repeated(|from| {
            list.push(ListEnd::Right, iter::once(&*from.string()?));
            Some(())
        })?,
        // Redis leaves what it read of this type large.
        types::LIST_ZIPLIST => return append_repacked(list, |each| ziplist::each(&from.string()?, each)),
        types::LIST_OF_ZIPLISTS => {
            from.repeated(|from| append_repacked(list, |each| ziplist::each(&from.string()?, each)))?
        }
        _ => from.repeated(|from| match from.len()? {
            node::PLAIN => {
                let text = from.string()?;
                list.append(Part::Plain(&text));
                (!text.is_empty()).then_some(())
            }
            node::PACKED => append_repacked(list, |each| each_packed(&from.string()?, each)),
            _ => None,
        })?,
    }
    list.settle();
    Some(())
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

fn fill_set(set: &mut SetMut<'_>, value_type: u8, from: &mut Reader<'_>) -> Option<()> {
    let mut insert = |member: &[u8]| set.insert(member).then_some(());
    match value_type {
        types::SET => from.repeated(|from| insert(&from.string()?)),
        types::SET_LISTPACK => each_packed(&from.string()?, insert),
        _ => IntSet::check(&from.string()?)?
            .iter()
            .try_for_each(|value| number::format_i64(value, &mut insert)),
    }
}

fn fill_hash(hash: &mut HashMut<'_>, value_type: u8, from: &mut Reader<'_>) -> Option<()> {
    let mut set = |name: &[u8], value: &[u8]| {
        matches!(hash.set(name, value, Expiry::Clear), Inserted::New).then_some(())
    };
    match value_type {
        types::HASH => from.repeated(|from| set(&from.string()?, &from.string()?)),
        types::HASH_ZIPMAP => zipmap::each(&from.string()?, set),
        _ => each_pair(value_type == types::HASH_ZIPLIST, &from.string()?, set),
    }
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
        return each_triple(&from.string()?, set);
    }
    from.repeated(|from| {
        let deadline = match from.len()? {
            0 => 0,
            later => first.checked_add(later - 1)?,
        };
        set(&from.string()?, &from.string()?, deadline)
    })
}

fn fill_sorted_set(set: &mut SortedSetMut<'_>, value_type: u8, from: &mut Reader<'_>) -> Option<()> {
    let mut add = |member: &[u8], score: f64| {
        let is_new = !score.is_nan() && matches!(set.add(member, score, AddRule::default()), Added::New(_));
        is_new.then_some(())
    };
    match value_type {
        types::SORTED_SET => from.repeated(|from| add(&from.string()?, from.double()?)),
        types::SORTED_SET_OF_TEXTS => from.repeated(|from| add(&from.string()?, from.double_in_text()?)),
        _ => each_pair(value_type == types::SORTED_SET_ZIPLIST, &from.string()?, |member, score| {
            add(member, number::parse_f64(score)?)
        }),
    }
}

/// Calls `each` with the elements of a listpack, which is checked before.
fn each_packed(bytes: &[u8], mut each: impl FnMut(&[u8]) -> Option<()>) -> Option<()> {
    Packed::check(bytes)?.iter().try_for_each(|element: Element<'_>| element.with_text(&mut each))
}

/// Calls `each` with the elements of a listpack or a ziplist, two and two.
fn each_pair(is_ziplist: bool, bytes: &[u8], mut each: impl FnMut(&[u8], &[u8]) -> Option<()>) -> Option<()> {
    let (mut first, mut has_first) = (Vec::new(), false);
    let mut take = |text: &[u8]| {
        has_first = !has_first;
        if !has_first {
            return each(&first, text);
        }
        first.clear();
        first.extend_from_slice(text);
        Some(())
    };
    if is_ziplist {
        ziplist::each(bytes, &mut take)?
    } else {
        each_packed(bytes, &mut take)?
    }
    (!has_first).then_some(())
}

/// Calls `each` with the elements of a listpack, three and three, of which the third is a deadline, or 0 for none.
fn each_triple(bytes: &[u8], mut each: impl FnMut(&[u8], &[u8], u64) -> Option<()>) -> Option<()> {
    let mut elements = Packed::check(bytes)?.iter();
    while let Some(name) = elements.next() {
        let (value, deadline) = (elements.next()?, u64::try_from(elements.next()?.integer()?).ok()?);
        name.with_text(|name| value.with_text(|value| each(name, value, deadline)))?;
    }
    Some(())
}

/// What has not been read yet.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(bytes)
    }

    /// So many bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    /// A length, or another number that is mostly small.
    pub fn len(&mut self) -> Option<u64> {
        let first = self.byte()?;
        self.len_from(first)
    }

    fn len_from(&mut self, first: u8) -> Option<u64> {
        Some(match (first >> 6, first) {
            (length::IN_6_BITS, _) => first.into(),
            (length::IN_14_BITS, _) => u16::from_be_bytes([first & 0x3f, self.byte()?]).into(),
            (_, length::IN_32_BITS) => u32::from_be_bytes(self.array()?).into(),
            (_, length::IN_64_BITS) => u64::from_be_bytes(self.array()?),
            _ => return None,
        })
    }

    /// A length of bytes.
    fn size(&mut self) -> Option<usize> {
        usize::try_from(self.len()?).ok().filter(|&size| size <= STRING_MAX_BYTES)
    }

    /// A string, however it is written.
    pub fn string(&mut self) -> Option<Cow<'a, [u8]>> {
        let first = self.byte()?;
        let integer = match first {
            encoded::INT_8 => i8::from_le_bytes(self.array()?).into(),
            encoded::INT_16 => i16::from_le_bytes(self.array()?).into(),
            encoded::INT_32 => i32::from_le_bytes(self.array()?).into(),
            encoded::LZF => {
                let (compressed, len) = (self.size()?, self.size()?);
                return lzf::decompress(self.bytes(compressed)?, len).map(Cow::Owned);
            }
            _ if first >> 6 == length::ENCODED => return None,
            _ => {
                let len = usize::try_from(self.len_from(first)?).ok()?;
                return self.bytes(len).map(Cow::Borrowed);
            }
        };
        Some(Cow::Owned(number::format_i64(integer, <[u8]>::to_vec)))
    }

    /// A point in time.
    pub fn time(&mut self) -> Option<Millis> {
        self.array().map(|bytes| Millis(u64::from_le_bytes(bytes)))
    }

    fn double(&mut self) -> Option<f64> {
        self.array().map(f64::from_le_bytes)
    }

    /// A number as it was written before there were binary ones.
    fn double_in_text(&mut self) -> Option<f64> {
        match self.byte()? {
            253 => None,
            254 => Some(f64::INFINITY),
            255 => Some(f64::NEG_INFINITY),
            len => number::parse_f64(self.bytes(len.into())?),
        }
    }

    /// Calls `each` as often as the length says that comes next. Each call reads something, so a length that is too large
    /// ends with the bytes.
    pub fn repeated(&mut self, mut each: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        for _ in 0..self.len()? {
            each(self)?;
        }
        Some(())
    }
}
