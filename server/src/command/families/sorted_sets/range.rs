//! Ranges of sorted sets: by rank, by score, by text.

use std::ops::Range;

use braid_protocol::{number, reply::Reply};
use braid_storage::{
    keyspace::shard::Shard,
    observers::event::Event,
    sync::work::{BYTES_PER_ELEMENT, WORK_MAX, WORK_MAX_BYTES},
    types::sorted_set::{Gathered, Limit, SortedSetRef, SortedSetType},
};

use super::{store, write_list};
use crate::{
    catalog::{Args, CommandError, Outcome},
    command::{Call, Look, arguments::collection_args::n_bytes},
};

/// The property that orders a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Text,
}

/// The end from which a range is counted and written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Ascending,
    Descending,
}

/// The ends of a range.
#[derive(Clone, Copy)]
enum RangeEnds<'a> {
    /// Ranks from the first end of the order. Negative ones count from the other end.
    Ranks(i64, i64),
    Scores(Limit<f64>, Limit<f64>),
    Texts(Limit<&'a [u8]>, Limit<&'a [u8]>),
}

impl<'a> RangeEnds<'a> {
    fn read(by: By, min: &'a [u8], max: &'a [u8]) -> Result<Self, CommandError> {
        match by {
            By::Rank => {
                let rank = |text| number::parse_i64(text).ok_or(CommandError::NotInteger);
                Ok(RangeEnds::Ranks(rank(min)?, rank(max)?))
            }
            By::Score => {
                let limits = score_limit(min).zip(score_limit(max));
                let (min, max) = limits.ok_or(CommandError::text("ERR min or max is not a float"))?;
                Ok(RangeEnds::Scores(min, max))
            }
            By::Text => {
                let limits = text_limit(min).zip(text_limit(max));
                let not_valid = CommandError::text("ERR min or max not valid string range item");
                let (min, max) = limits.ok_or(not_valid)?;
                Ok(RangeEnds::Texts(min, max))
            }
        }
    }

    /// Returns the ranks of a set's members in the range.
    fn ranks(self, set: SortedSetRef<'_>, order: Order) -> Range<usize> {
        match self {
            RangeEnds::Scores(min, max) => set.score_range(min, max),
            RangeEnds::Texts(min, max) => set.member_range(min, max),
            RangeEnds::Ranks(start, stop) => {
                let len = set.len();
                let ranks = between(start, stop, len);
                match order {
                    Order::Ascending => ranks,
                    Order::Descending => len - ranks.end..len - ranks.start,
                }
            }
        }
    }
}

/// Returns the ranks from `start` to `stop`, inclusive. Negative ones count from the end, -1 being the last.
fn between(start: i64, stop: i64, len: usize) -> Range<usize> {
    let from_beginning = |at: i64| if at < 0 { len as i64 + at } else { at };
    let start = from_beginning(start).max(0) as usize;
    let behind = from_beginning(stop).saturating_add(1).clamp(0, len as i64) as usize;
    if start < behind { start..behind } else { 0..0 }
}

/// Reads a score. A `(` before it excludes the score itself.
fn score_limit(text: &[u8]) -> Option<Limit<f64>> {
    match text {
        [b'(', text @ ..] => scan_double(text).map(Limit::Excluding),
        text => scan_double(text).map(Limit::Including),
    }
}

/// Reads a double as C's `strtod` does, if that consumes all of the text.
///
/// Leading blanks are skipped, an empty text is 0, a zero byte ends the text, and too large a number is
/// infinite.
fn scan_double(text: &[u8]) -> Option<f64> {
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Some(0.0);
    }
    let n_blanks = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    let text = &text[n_blanks..];
    number::parse_f64(text).or_else(|| {
        let value = str::from_utf8(text).ok()?.parse::<f64>().ok()?;
        (!value.is_nan()).then_some(value)
    })
}

/// Reads `-`, `+`, `[text` or `(text`.
fn text_limit(text: &[u8]) -> Option<Limit<&[u8]>> {
    match text {
        b"-" => Some(Limit::First),
        b"+" => Some(Limit::Last),
        [b'[', text @ ..] => Some(Limit::Including(text)),
        [b'(', text @ ..] => Some(Limit::Excluding(text)),
        _ => None,
    }
}

/// The arguments of a range command.
struct RangeQuery<'a> {
    span: RangeEnds<'a>,
    order: Order,
    /// Number of members to skip. A negative one skips all.
    offset: i64,
    /// Greatest number of members. A negative one sets no limit.
    limit: i64,
    with_scores: bool,
}

/// The arguments that a command's name implies.
#[derive(Clone, Copy)]
struct ImpliedOptions {
    by: Option<By>,
    order: Option<Order>,
    stores: bool,
}

impl<'a> RangeQuery<'a> {
    /// Reads a range and the options after it.
    fn read(mut args: Args<'a>, named: ImpliedOptions) -> Result<Self, CommandError> {
        let (min, max) = (args.next()?, args.next()?);
        let ImpliedOptions { mut by, mut order, stores } = named;
        let (mut offset, mut limit, mut with_scores) = (0, -1, false);
        while !args.is_empty() {
            if !stores && args.tag("WITHSCORES") {
                with_scores = true;
            } else if args.remaining() > 2 && args.tag("LIMIT") {
                (offset, limit) = (args.int()?, args.int()?);
            } else if order.is_none() && args.tag("REV") {
                order = Some(Order::Descending);
            } else if by.is_none() && args.tag("BYLEX") {
                by = Some(By::Text);
            } else if by.is_none() && args.tag("BYSCORE") {
                by = Some(By::Score);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        let (by, order) = (by.unwrap_or(By::Rank), order.unwrap_or(Order::Ascending));
        if limit != -1 && by == By::Rank {
            return Err(CommandError::text(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        if by == By::Rank {
            // Redis accepts LIMIT in this case if it sets no limit, and ignores its offset.
            offset = 0;
        }
        if with_scores && by == By::Text {
            return Err(CommandError::text(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ));
        }
        // A descending range names its upper end first. Ranks are counted from that end anyway.
        let (min, max) = if order == Order::Descending && by != By::Rank { (max, min) } else { (min, max) };
        Ok(RangeQuery { span: RangeEnds::read(by, min, max)?, order, offset, limit, with_scores })
    }

    /// Returns the ranks of the members in the result.
    fn ranks(&self, set: SortedSetRef<'_>) -> Range<usize> {
        let ranks = self.span.ranks(set, self.order);
        let n_left_out = usize::try_from(self.offset).unwrap_or(usize::MAX).min(ranks.len());
        let n = usize::try_from(self.limit).unwrap_or(usize::MAX).min(ranks.len() - n_left_out);
        match self.order {
            Order::Ascending => ranks.start + n_left_out..ranks.start + n_left_out + n,
            Order::Descending => ranks.end - n_left_out - n..ranks.end - n_left_out,
        }
    }

    /// Writes the members with these ranks.
    fn write(&self, set: SortedSetRef<'_>, ranks: Range<usize>, reply: &mut Reply<'_>) {
        let members = set.iter(ranks.clone());
        match self.order {
            Order::Ascending => write_list(ranks.len(), members, self.with_scores, reply),
            Order::Descending => write_list(ranks.len(), members.rev(), self.with_scores, reply),
        }
    }
}

/// Replies with the members of a range.
fn give(shard: &mut Shard, mut args: Args<'_>, named: ImpliedOptions, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let query = RangeQuery::read(args, named)?;
    match shard.value::<SortedSetType>(&key)? {
        Some(set) => {
            let ranks = query.ranks(set);
            query.write(set, ranks, reply);
        }
        None => reply.array(0),
    }
    Ok(())
}

const fn named(by: By, order: Order) -> ImpliedOptions {
    ImpliedOptions { by: Some(by), order: Some(order), stores: false }
}

pub(super) fn zrange(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    give(shard, args, ImpliedOptions { by: None, order: None, stores: false }, reply)
}

pub(super) fn zrevrange(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    give(shard, args, named(By::Rank, Order::Descending), reply)
}

pub(super) fn zrangebyscore(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    give(shard, args, named(By::Score, Order::Ascending), reply)
}

pub(super) fn zrevrangebyscore(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    give(shard, args, named(By::Score, Order::Descending), reply)
}

pub(super) fn zrangebylex(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    give(shard, args, named(By::Text, Order::Ascending), reply)
}

pub(super) fn zrevrangebylex(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    give(shard, args, named(By::Text, Order::Descending), reply)
}

/// Stores a range. The source may be the destination, so the result is complete before it is stored.
pub(super) fn zrangestore(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (destination, source) = (args.key()?, args.key()?);
    let query = RangeQuery::read(args, ImpliedOptions { by: None, order: None, stores: true })?;
    let mut gathered = Gathered::new(call.server.keyspace.router());
    if let Some(set) = call.shard_of(&source).value::<SortedSetType>(&source)? {
        let ranks = query.ranks(set);
        for scored in set.iter(ranks) {
            scored.member.with_text(|member| gathered.put(member, |_| scored.score()));
        }
    }
    let n = store(call, &destination, gathered.sort(), Event::ZRangeStore);
    reply.integer(n as i64);
    Ok(())
}

pub(super) fn zcount(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    count(shard, args, By::Score, reply)
}

pub(super) fn zlexcount(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    count(shard, args, By::Text, reply)
}

/// Replies with the number of members in a range.
fn count(shard: &mut Shard, mut args: Args<'_>, by: By, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let span = RangeEnds::read(by, args.next()?, args.next()?)?;
    let set = shard.value::<SortedSetType>(&key)?;
    reply.integer(set.map_or(0, |set| span.ranks(set, Order::Ascending).len()) as i64);
    Ok(())
}

pub(super) fn zremrangebyrank(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    remove(shard, args, (By::Rank, Event::ZRemRangeByRank), reply)
}

pub(super) fn zremrangebyscore(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    remove(shard, args, (By::Score, Event::ZRemRangeByScore), reply)
}

pub(super) fn zremrangebylex(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    remove(shard, args, (By::Text, Event::ZRemRangeByLex), reply)
}

/// Removes the members of a range, and replies with their number.
fn remove(shard: &mut Shard, mut args: Args<'_>, (by, event): (By, Event), reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let span = RangeEnds::read(by, args.next()?, args.next()?)?;
    let mut n_removed = 0;
    if let Some(mut set) = shard.value_mut::<SortedSetType>(&key, event)? {
        let ranks = span.ranks(set.as_ref(), Order::Ascending);
        n_removed = ranks.len();
        set.remove_ranks(ranks);
    }
    reply.integer(n_removed as i64);
    Ok(())
}

/// Number of members up to which each one is measured.
const FEW: usize = 100;

/// Estimates a reply with members. A set that is not large need not be searched twice.
fn given(look: &mut Look<'_, '_>, mut args: Args<'_>, named: ImpliedOptions) -> usize {
    let Ok(key) = args.key() else { return 0 };
    let n = |set: SortedSetRef<'_>| {
        let may_have_long = set.entry().allocated_bytes() > WORK_MAX_BYTES;
        if set.len() <= WORK_MAX / 8 && !may_have_long {
            return 0;
        }
        let ranks = RangeQuery::read(args, named).map_or(0..0, |query| query.ranks(set));
        if ranks.len() <= FEW && may_have_long {
            return set.iter(ranks).map(|scored| n_bytes(scored.member)).sum::<usize>() / BYTES_PER_ELEMENT;
        }
        share(set, ranks.len())
    };
    look.sorted_set(&key, n).unwrap_or(0)
}

/// Returns the work of reading `n` members of a set.
fn share(set: SortedSetRef<'_>, n: usize) -> usize {
    let bytes = set.entry().allocated_bytes() / BYTES_PER_ELEMENT;
    n.max((bytes as u128 * n as u128 / set.len().max(1) as u128) as usize)
}

/// Estimates the number of members that a command removes.
fn removed(look: &mut Look<'_, '_>, mut args: Args<'_>, by: By) -> usize {
    let (Ok(key), Ok(min), Ok(max)) = (args.key(), args.next(), args.next()) else { return 0 };
    let n = |set: SortedSetRef<'_>| {
        if set.len() <= WORK_MAX / 8 {
            return 0;
        }
        RangeEnds::read(by, min, max).map_or(0, |span| span.ranks(set, Order::Ascending).len())
    };
    look.sorted_set(&key, n).unwrap_or(0)
}

pub(super) fn zrange_work(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    given(look, args, ImpliedOptions { by: None, order: None, stores: false })
}

pub(super) fn zrevrange_work(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    given(look, args, named(By::Rank, Order::Descending))
}

pub(super) fn zrangebyscore_work(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    given(look, args, named(By::Score, Order::Ascending))
}

pub(super) fn zrevrangebyscore_work(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    given(look, args, named(By::Score, Order::Descending))
}

pub(super) fn zrangebylex_work(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    given(look, args, named(By::Text, Order::Ascending))
}

pub(super) fn zrevrangebylex_work(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    given(look, args, named(By::Text, Order::Descending))
}

pub(super) fn zrangestore_work(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    given(look, args.skip(1), ImpliedOptions { by: None, order: None, stores: true })
}

pub(super) fn zremrangebyrank_work(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    removed(look, args, By::Rank)
}

pub(super) fn zremrangebyscore_work(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    removed(look, args, By::Score)
}

pub(super) fn zremrangebylex_work(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    removed(look, args, By::Text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_from_either_end() {
        for (start, stop, expected) in [
            (0, -1, 0..5),
            (0, 0, 0..1),
            (1, 2, 1..3),
            (-2, -1, 3..5),
            (-100, 100, 0..5),
            (-100, -5, 0..1),
            (-100, -6, 0..0),
            (5, 10, 0..0),
            (3, 1, 0..0),
            (i64::MIN, i64::MAX, 0..5),
            (i64::MAX, i64::MIN, 0..0),
        ] {
            assert_eq!(between(start, stop, 5), expected, "{start} {stop}");
        }
        assert_eq!(between(0, -1, 0), 0..0);
    }

    #[test]
    fn scores_are_read_as_strtod_reads_them() {
        use Limit::{Excluding, Including};
        for (text, limit) in [
            ("1", Some(Including(1.0))),
            ("(1.5", Some(Excluding(1.5))),
            ("-inf", Some(Including(f64::NEG_INFINITY))),
            ("(+inf", Some(Excluding(f64::INFINITY))),
            ("1e400", Some(Including(f64::INFINITY))),
            ("-1e400", Some(Including(f64::NEG_INFINITY))),
            ("0x10", Some(Including(16.0))),
            ("", Some(Including(0.0))),
            ("(", Some(Excluding(0.0))),
            (" \t1", Some(Including(1.0))),
            ("1\0x", Some(Including(1.0))),
            (" ", None),
            ("1 ", None),
            ("((1", None),
            ("[1", None),
            ("nan", None),
            ("one", None),
        ] {
            assert_eq!(score_limit(text.as_bytes()), limit, "{text:?}");
        }
    }

    #[test]
    fn texts_have_a_sign_that_says_whether_they_are_in_the_range() {
        assert_eq!(text_limit(b"-"), Some(Limit::First));
        assert_eq!(text_limit(b"+"), Some(Limit::Last));
        assert_eq!(text_limit(b"["), Some(Limit::Including(&b""[..])));
        assert_eq!(text_limit(b"(a"), Some(Limit::Excluding(&b"a"[..])));
        for text in ["", "a", "--", "++", "-a"] {
            assert_eq!(text_limit(text.as_bytes()), None, "{text:?}");
        }
    }
}
