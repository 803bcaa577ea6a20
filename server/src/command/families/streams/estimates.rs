//! Estimates of the work of commands on streams.

use braid_protocol::number::parse_i64;
use braid_storage::{
    entry::key::Key,
    sync::work::{BYTES_PER_ELEMENT, WORK_MAX},
    types::stream::{Group, Stream, StreamId, StreamRef, TrimTo},
};

use super::{
    ids::{id, range_end, range_start},
    options::{TrimOptions, XaddOptions},
};
use crate::{catalog::Args, command::Look};

/// Entries removed as whole nodes that equal one read entry in work.
const TRIMMED_PER_ELEMENT: usize = 4;

/// Pending entries that XAUTOCLAIM visits for each that it may claim, and its default COUNT.
const ATTEMPTS_PER_CLAIM: usize = 10;
const CLAIMED: usize = 100;

/// Pending entries that XREADGROUP looks at for CLAIM, which equal one read entry in work.
const PENDING_PER_ELEMENT: usize = 4;

/// Returns the work of replying with `n` entries of a stream.
fn given(stream: &StreamRef<'_>, n: usize) -> usize {
    let len = (stream.stream().entries().len() as usize).max(1);
    let bytes = stream.entry().allocated_bytes() / BYTES_PER_ELEMENT;
    n.max((bytes as u128 * n.min(len) as u128 / len as u128) as usize)
}

/// Reads a number of entries.
fn number(text: &[u8]) -> Option<usize> {
    parse_i64(text).and_then(|n| usize::try_from(n).ok())
}

/// Returns the word after an option among the arguments.
fn value_of<'a>(mut args: Args<'a>, name: &str) -> Option<&'a [u8]> {
    while !args.is_empty() {
        if args.tag(name) {
            return args.peek();
        }
        args = args.skip(1);
    }
    None
}

fn between(look: &mut Look<'_, '_>, key: &Key<'_>, from: &[u8], to: &[u8], args: Args<'_>) -> usize {
    let (Ok(from), Ok(to)) = (range_start(from), range_end(to)) else { return 0 };
    let n_max = value_of(args, "COUNT").map_or(usize::MAX, |count| number(count).unwrap_or(0));
    let n = |stream: StreamRef<'_>| {
        // A single entry of a megabyte is recognized by its bytes. A long range need not be counted
        // completely.
        let n = stream.stream().entries().about_between(from, to, n_max.min(WORK_MAX + 1)).min(n_max);
        given(&stream, n)
    };
    look.stream(key, n).unwrap_or(0)
}

/// Estimates XRANGE.
pub(super) fn ranged(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let (Ok(key), Ok(from), Ok(to)) = (args.key(), args.next(), args.next()) else { return 0 };
    between(look, &key, from, to, args)
}

/// Estimates XREVRANGE.
pub(super) fn ranged_backwards(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let (Ok(key), Ok(to), Ok(from)) = (args.key(), args.next(), args.next()) else { return 0 };
    between(look, &key, from, to, args)
}

fn removed(look: &mut Look<'_, '_>, key: &Key<'_>, options: &TrimOptions) -> usize {
    let Some(to) = options.threshold() else { return 0 };
    let n = |stream: StreamRef<'_>| {
        let entries = stream.stream().entries();
        let n = match to {
            TrimTo::Len(len) => entries.len().saturating_sub(len) as usize,
            TrimTo::Id(id) => entries.about_between(StreamId::MIN, id, usize::MAX),
        };
        // Each group may have to be checked for each entry.
        n / TRIMMED_PER_ELEMENT * options.n_times_per_entry(stream.stream().groups().len())
    };
    look.stream(key, n).unwrap_or(0)
}

/// Estimates XTRIM.
pub(super) fn trimmed(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    let mut options = TrimOptions::default();
    while !args.is_empty() {
        if !options.take(&mut args).unwrap_or(false) {
            return 0;
        }
    }
    removed(look, &key, &options)
}

/// Estimates XADD, which can also trim.
pub(super) fn trimmed_by_adding(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    // A word that begins with a letter is an option.
    if !args.peek().and_then(<[u8]>::first).is_some_and(u8::is_ascii_alphabetic) {
        return 0;
    }
    XaddOptions::read(&mut args).map_or(0, |options| removed(look, &key, &options.trim))
}

/// Calls `each` with each key after STREAMS and its ID.
fn streams<'a>(mut args: Args<'a>, mut each: impl FnMut(Key<'a>, &'a [u8])) {
    while !args.is_empty() && !args.tag("STREAMS") {
        args = args.skip(1);
    }
    let n = args.remaining() / 2;
    let mut words = args.skip(n);
    for _ in 0..n {
        let (Ok(key), Ok(word)) = (args.key(), words.next()) else { return };
        each(key, word);
    }
}

/// Estimates XREAD and XREADGROUP.
pub(super) fn read(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    let limit = |name| value_of(args, name).and_then(number).filter(|&n| n > 0).unwrap_or(usize::MAX);
    let n_max = limit("COUNT").min(limit("MAXCOUNT"));
    let claims = value_of(args, "CLAIM").is_some();
    let group_and_consumer = value_of(args, "GROUP").zip(value_of(args, "GROUP").and(behind_group(args)));
    let mut total = 0usize;
    streams(args, |key, word| {
        let n = look.stream(&key, |stream: StreamRef<'_>| {
            let n = match (group_and_consumer, word) {
                (Some((group, _)), b">") if claims => {
                    let n_pending = stream.stream().group(group).map_or(0, Group::n_pending);
                    let n = n_pending.saturating_add(undelivered(stream.stream(), group, n_max));
                    // All pending entries are looked at.
                    return given(&stream, n.min(n_max)).max(n_pending / PENDING_PER_ELEMENT);
                }
                (Some((group, _)), b">") => undelivered(stream.stream(), group, n_max),
                (Some((group, consumer)), _) => {
                    let group = stream.stream().group(group);
                    group
                        .and_then(|group| group.consumer(consumer))
                        .map_or(0, |consumer| consumer.n_pending())
                }
                (None, _) => id(word).map_or(1, |id| {
                    stream.stream().entries().about_between(id, StreamId::MAX, n_max.min(WORK_MAX + 1))
                }),
            };
            given(&stream, n.min(n_max))
        });
        total = total.saturating_add(n.unwrap_or(0));
    });
    total
}

/// Returns the second word after GROUP.
fn behind_group(mut args: Args<'_>) -> Option<&[u8]> {
    while !args.is_empty() {
        if args.tag("GROUP") {
            return args.skip(1).peek();
        }
        args = args.skip(1);
    }
    None
}

fn undelivered(stream: &Stream, group: &[u8], n_max: usize) -> usize {
    let Some(group) = stream.group(group) else { return 0 };
    stream.entries().about_between(group.last_delivered_id(), StreamId::MAX, n_max.min(WORK_MAX + 1))
}

/// Measures the group that a command names after the key.
fn group<R>(
    look: &mut Look<'_, '_>,
    args: &mut Args<'_>,
    measure: impl FnOnce(StreamRef<'_>, &Group) -> R,
) -> Option<R> {
    let (key, name) = (args.key().ok()?, args.next().ok()?);
    look.stream(&key, |stream: StreamRef<'_>| stream.stream().group(name).map(|group| measure(stream, group)))
        .flatten()
}

/// Estimates XPENDING: all consumers, or a range of pending entries. With IDLE it may skip some of them.
pub(super) fn pending(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let options = args.skip(2);
    let is_idle_asked = value_of(options, "IDLE").is_some();
    let at_count = if is_idle_asked { 4 } else { 2 };
    let count = options.skip(at_count).peek().and_then(number);
    let n = group(look, &mut args, |_, group| match count {
        None if options.is_empty() => group.consumers().len(),
        Some(count) if !is_idle_asked => group.n_pending().min(count),
        _ => group.n_pending(),
    });
    n.unwrap_or(0)
}

/// Estimates XAUTOCLAIM.
pub(super) fn claimed(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let count = value_of(args.skip(5), "COUNT").map_or(CLAIMED, |count| number(count).unwrap_or(0));
    let n = group(look, &mut args, |stream, group| {
        let n_pending = group.n_pending();
        given(&stream, n_pending.min(count)).max(n_pending.min(count.saturating_mul(ATTEMPTS_PER_CLAIM)))
    });
    n.unwrap_or(0)
}

/// Estimates XGROUP DESTROY and DELCONSUMER, which remove pending entries.
pub(super) fn all_pending(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    group(look, &mut args, |_, group| group.n_pending()).unwrap_or(0)
}

/// Estimates XDELEX and XACKDEL, which check all groups for each entry.
pub(super) fn dealt_with_by_groups(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    let n_groups = look.stream(&key, |stream: StreamRef<'_>| stream.stream().groups().len());
    n_groups.unwrap_or(0).saturating_mul(args.remaining())
}

/// Estimates XINFO: groups, consumers and, with FULL, entries and pending entries, each up to COUNT.
pub(super) fn shown(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    const SHOWN: usize = 10;
    let Ok(key) = args.key() else { return 0 };
    let is_full = args.tag("FULL");
    let n_max = match value_of(args, "COUNT").and_then(number) {
        Some(0) => usize::MAX,
        Some(n) => n,
        None => SHOWN,
    };
    let shown = |stream: StreamRef<'_>| {
        let mut n = 0;
        for (_, group) in stream.stream().groups() {
            let n_pending = if is_full { 2 * group.n_pending().min(n_max) } else { 0 };
            n += 1 + group.consumers().len() + n_pending;
            if n > WORK_MAX {
                return n;
            }
        }
        if is_full { n + given(&stream, n_max.min(stream.stream().entries().len() as usize)) } else { n }
    };
    look.stream(&key, shown).unwrap_or(0)
}
