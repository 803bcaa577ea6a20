//! SORT and SORT_RO.

use std::cmp::Ordering;

use braid_protocol::{number, reply::Reply};
use braid_storage::{
    entry::{EntryRef, Kind, key::Key, time::Millis},
    error::StorageError,
    memory::reclaim,
    observers::event::Event,
    types::{
        hashes::HashType,
        list::{ListEnd, ListRef, ListType},
        packed::Element,
        set::SetRef,
        sorted_set::SortedSetRef,
    },
};
use smallvec::SmallVec;

use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, KeySpec, KeyUse, Keys, KeysAt, Outcome, Words},
    command::{Call, CommandSpec, Found, Log, Run, Work, connections::acl, log_rewrite, work},
};

const SYNTAX: &str =
    "key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA]";
const COMPLEXITY: &str = "O(N+M*log(M)) where N is the number of elements and M that of those that are given";

const ROW: CommandSpec = CommandSpec {
    arity: Arity::AtLeast(2),
    roams: Some(has_key_pattern),
    group: Group::Generic,
    complexity: COMPLEXITY,
    categories: Some(
        crate::catalog::Categories::SET
            .and(crate::catalog::Categories::SORTEDSET)
            .and(crate::catalog::Categories::LIST)
            .and(crate::catalog::Categories::DANGEROUS),
    ),
    ..CommandSpec::ROW
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "sort",
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::MOVABLE_KEYS),
        keys: Keys(&[
            Keys::SORTED[0],
            Keys::SORTED[1],
            KeySpec { at: KeysAt::LastBehind { word: "STORE", from: 2 }, used: KeyUse::Overwrite },
        ]),
        log: Log::As(log_rewrite::lists),
        run: Run::Transaction(sort),
        work: Work::pinned(work::sorted),
        since: "1.0.0",
        syntax: "key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA] [STORE destination]",
        summary: "Sorts a list, a set or a sorted set, by its elements or by other keys, and gives or stores the result.",
        ..ROW
    },
    CommandSpec {
        name: "sort_ro",
        flags: Flags::READONLY.and(Flags::MOVABLE_KEYS),
        keys: Keys(&Keys::SORTED),
        run: Run::Transaction(sort_ro),
        work: Work::pinned(work::sorted),
        since: "7.0.0",
        syntax: SYNTAX,
        summary: "Sorts a list, a set or a sorted set, by its elements or by other keys, and gives the result.",
        ..ROW
    },
];

/// Whether BY or GET contains a pattern of keys, which may be in any shard.
fn has_key_pattern(words: Words<'_>) -> bool {
    (2..words.len()).any(|at| {
        let option = words.get(at - 1);
        let takes_pattern = option.eq_ignore_ascii_case(b"by") || option.eq_ignore_ascii_case(b"get");
        takes_pattern && words.get(at).contains(&b'*')
    })
}

/// Whether the client may read the keys of BY and GET, which may be any.
fn may_read_others(call: &Call<'_, '_>, words: Words<'_>) -> bool {
    match call.table.find(words) {
        Found::Command(command) => acl::may_read_any_key(call.session, command, words),
        Found::Unknown | Found::UnknownSubcommand(_) => unreachable!("it is running"),
    }
}

/// The arguments of SORT.
struct SortQuery<'a> {
    by: Option<&'a [u8]>,
    get: SmallVec<[&'a [u8]; 4]>,
    limit: Option<(i64, i64)>,
    descending: bool,
    alpha: bool,
    store: Option<Key<'a>>,
}

impl<'a> SortQuery<'a> {
    fn read(call: &Call<'_, '_>, mut args: Args<'a>, may_store: bool) -> Result<Self, CommandError> {
        let mut request = SortQuery {
            by: None,
            get: SmallVec::new(),
            limit: None,
            descending: false,
            alpha: false,
            store: None,
        };
        while !args.is_empty() {
            let n_behind = args.remaining() - 1;
            if args.tag("ASC") {
                request.descending = false;
            } else if args.tag("DESC") {
                request.descending = true;
            } else if args.tag("ALPHA") {
                request.alpha = true;
            } else if n_behind >= 2 && args.tag("LIMIT") {
                request.limit = Some((args.int()?, args.int()?));
            } else if may_store && n_behind >= 1 && args.tag("STORE") {
                request.store = Some(args.key()?);
            } else if n_behind >= 1 && args.tag("BY") {
                let pattern = args.next()?;
                if pattern.contains(&b'*') && !may_read_others(call, args.words()) {
                    return Err(CommandError::text(
                        "ERR BY option of SORT denied due to insufficient ACL permissions.",
                    ));
                }
                request.by = Some(pattern);
            } else if n_behind >= 1 && args.tag("GET") {
                if !may_read_others(call, args.words()) {
                    return Err(CommandError::text(
                        "ERR GET option of SORT denied due to insufficient ACL permissions.",
                    ));
                }
                request.get.push(args.next()?);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(request)
    }

    /// Whether the order stays, as with `BY nosort` or any other word without a star.
    fn keeps_order(&self) -> bool {
        self.by.is_some_and(|pattern| !pattern.contains(&b'*'))
    }

    /// Returns the positions among `n` sorted elements that LIMIT selects.
    fn places(&self, n: usize) -> std::ops::Range<usize> {
        let Some((offset, count)) = self.limit else { return 0..n };
        let start = usize::try_from(offset.max(0)).unwrap_or(usize::MAX).min(n);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        start..start.saturating_add(count).min(n)
    }
}

fn sort(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let request = SortQuery::read(call, args, true)?;
    run(call, &key, &request, reply)
}

fn sort_ro(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let request = SortQuery::read(call, args, false)?;
    run(call, &key, &request, reply)
}

fn run(call: &mut Call<'_, '_>, key: &Key<'_>, request: &SortQuery<'_>, reply: &mut Reply<'_>) -> Outcome {
    let now = call.now;
    let source = match call.shard_of(key).read(key) {
        None => None,
        Some(entry) if !matches!(entry.kind(), Kind::List | Kind::Set | Kind::SortedSet) => {
            return Err(StorageError::WrongType.into());
        }
        Some(entry) => Some(entry.share()),
    };
    let elements = match &source {
        Some(source) => elements(source.as_ref(), now)?,
        None => Vec::new(),
    };
    let sorted = sorted(call, request, source.as_ref().map(|source| source.as_ref().kind()), elements)?;
    match &request.store {
        None => write(call, request, &sorted, reply),
        Some(destination) => {
            let n = store(call, request, destination, &sorted)?;
            reply.integer(n as i64);
        }
    }
    drop(sorted);
    if let Some(source) = source {
        reclaim::release(source);
    }
    Ok(())
}

/// Returns the elements of a list, a set or a sorted set, in its order.
fn elements(entry: EntryRef<'_>, now: Millis) -> Result<Vec<Element<'_>>, StorageError> {
    Ok(match entry.kind() {
        Kind::List => ListRef::of(entry, now)?.elements_from(0).collect(),
        Kind::Set => SetRef::of(entry, now)?.iter().collect(),
        _ => {
            let set = SortedSetRef::of(entry, now)?;
            set.iter(0..set.len()).map(|scored| scored.member).collect()
        }
    })
}

/// Sorts the elements, and keeps those that LIMIT selects.
fn sorted<'e>(
    call: &mut Call<'_, '_>,
    request: &SortQuery<'_>,
    kind: Option<Kind>,
    mut elements: Vec<Element<'e>>,
) -> Result<Vec<Element<'e>>, CommandError> {
    // A stored result must not depend on the order of elements within a set.
    let must_be_the_same = request.store.is_some() || call.is_in_script;
    let must_sort = kind == Some(Kind::Set) && must_be_the_same && request.keeps_order();
    let by = request.by.filter(|pattern| pattern.contains(&b'*'));
    if must_sort {
        elements.sort_by(|one, other| compare_texts(*one, *other));
    } else if request.keeps_order() {
        if request.descending && kind == Some(Kind::SortedSet) {
            elements.reverse();
        }
    } else if request.alpha {
        sort_by_text(call, by, request.descending, &mut elements);
    } else {
        sort_by_number(call, by, request.descending, &mut elements)?;
    }
    let places = request.places(elements.len());
    elements.truncate(places.end);
    elements.drain(..places.start);
    Ok(elements)
}

fn compare_texts(one: Element<'_>, other: Element<'_>) -> Ordering {
    one.with_text(|one| other.with_text(|other| one.cmp(other)))
}

fn directed(order: Ordering, descending: bool) -> Ordering {
    if descending { order.reverse() } else { order }
}

/// Sorts by text. Missing texts come first.
fn sort_by_text(
    call: &mut Call<'_, '_>,
    by: Option<&[u8]>,
    descending: bool,
    elements: &mut Vec<Element<'_>>,
) {
    let Some(pattern) = by else {
        elements.sort_by(|one, other| directed(compare_texts(*one, *other), descending));
        return;
    };
    let mut weighted: Vec<_> =
        elements.iter().map(|element| (look_up(call, pattern, *element), *element)).collect();
    weighted.sort_by(|(one, _), (other, _)| directed(one.cmp(other), descending));
    elements.clear();
    elements.extend(weighted.into_iter().map(|(_, element)| element));
}

/// Sorts by number. Missing numbers count as 0, and equal ones are ordered by the elements' texts.
fn sort_by_number(
    call: &mut Call<'_, '_>,
    by: Option<&[u8]>,
    descending: bool,
    elements: &mut Vec<Element<'_>>,
) -> Outcome {
    let mut weighted = Vec::with_capacity(elements.len());
    for &element in elements.iter() {
        let weight = match by {
            None => weight_of(element),
            Some(pattern) => {
                look_up(call, pattern, element).map_or(Some(0.0), |text| weight_of(Element::of(&text)))
            }
        };
        let weight =
            weight.ok_or(CommandError::text("ERR One or more scores can't be converted into double"))?;
        weighted.push((weight, element));
    }
    weighted.sort_by(|(one, text), (other, other_text)| {
        let order = one.total_cmp(other);
        // Zeros are equal, regardless of their sign.
        let order = if one == other { compare_texts(*text, *other_text) } else { order };
        directed(order, descending)
    });
    elements.clear();
    elements.extend(weighted.into_iter().map(|(_, element)| element));
    Ok(())
}

/// Returns a text as a number, as C reads it.
///
/// It ends at a zero byte, leading blanks are skipped, and an empty text is 0. A subnormal number is out of
/// range.
fn weight_of(element: Element<'_>) -> Option<f64> {
    match element {
        Element::Integer(integer) => Some(integer as f64),
        Element::Text(text) => match text.split(|&byte| byte == 0).next() {
            None | Some(b"") => Some(0.0),
            Some(text) => number::parse_f64(text.trim_ascii_start()).filter(|weight| !weight.is_subnormal()),
        },
    }
}

/// Returns the text that a pattern selects for an element.
///
/// It is a string, or the field of a hash after `->`.
fn look_up(call: &mut Call<'_, '_>, pattern: &[u8], element: Element<'_>) -> Option<Vec<u8>> {
    if pattern == b"#" {
        return Some(element.to_vec());
    }
    let star = pattern.iter().position(|&byte| byte == b'*')?;
    let (before, behind) = (&pattern[..star], &pattern[star + 1..]);
    let arrow = behind.windows(2).position(|two| two == b"->").filter(|at| at + 2 < behind.len());
    let (behind, field) = match arrow {
        Some(at) => (&behind[..at], Some(&behind[at + 2..])),
        None => (behind, None),
    };
    let bytes = element.with_text(|text| [before, text, behind].concat());
    let key = Key { bytes: &bytes, routed: call.server.keyspace.router().route(&bytes) };
    let shard = call.shard_of(&key);
    match field {
        None => shard.string(&key).ok()?.map(<[u8]>::to_vec),
        Some(field) => shard.value::<HashType>(&key).ok()??.get(field).map(Element::to_vec),
    }
}

/// Writes the elements, or the texts that GET selects for them.
fn write(call: &mut Call<'_, '_>, request: &SortQuery<'_>, sorted: &[Element<'_>], reply: &mut Reply<'_>) {
    reply.array(sorted.len() * request.get.len().max(1));
    for &element in sorted {
        if request.get.is_empty() {
            element.with_text(|text| reply.bulk(text));
        }
        for pattern in &request.get {
            match look_up(call, pattern, element) {
                Some(text) => reply.bulk(&text),
                None => reply.null(),
            }
        }
    }
}

/// Stores the result as a list that replaces the key's value, and returns its length.
fn store(
    call: &mut Call<'_, '_>,
    request: &SortQuery<'_>,
    destination: &Key<'_>,
    sorted: &[Element<'_>],
) -> Result<usize, CommandError> {
    let mut texts: Vec<Vec<u8>> = Vec::with_capacity(sorted.len() * request.get.len().max(1));
    for &element in sorted {
        if request.get.is_empty() {
            texts.push(element.to_vec());
        }
        for pattern in &request.get {
            texts.push(look_up(call, pattern, element).unwrap_or_default());
        }
    }
    let shard = call.shard_of(destination);
    if texts.is_empty() {
        shard.remove(destination, Event::Del);
    } else {
        let mut list = shard.replace_value::<ListType>(destination, Event::SortStore);
        list.push(ListEnd::Right, texts.iter().map(Vec::as_slice));
    }
    Ok(texts.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_cut_to_what_there_is() {
        let places = |limit, n| {
            SortQuery {
                by: None,
                get: SmallVec::new(),
                limit: Some(limit),
                descending: false,
                alpha: false,
                store: None,
            }
            .places(n)
        };
        for (limit, n, expected) in [
            ((0, 2), 5, 0..2),
            ((3, 9), 5, 3..5),
            ((-2, 2), 5, 0..2),
            ((1, -1), 5, 1..5),
            ((9, 2), 5, 5..5),
            ((0, 0), 5, 0..0),
            ((i64::MAX, i64::MAX), 5, 5..5),
            ((i64::MIN, i64::MIN), 5, 0..5),
        ] {
            assert_eq!(places(limit, n), expected, "{limit:?} of {n}");
        }
    }
}
