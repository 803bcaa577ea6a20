//! XCLAIM and XAUTOCLAIM.

use braid_protocol::{number::parse_i64, reply::Reply};
use braid_storage::{
    entry::{key::Key, time::Millis},
    keyspace::shard::Shard,
    observers::event::Event,
    types::stream::{Claim, Claimable, Counting, Entry, StreamId, StreamMut, StreamType},
};

use super::{
    groups::no_such_group,
    ids::{Ids, id, range_start, write_id},
    log_words::{Dealt, Served},
    write::write_entry,
};
use crate::catalog::{Args, CommandError, Outcome, shown};

/// The default COUNT of XAUTOCLAIM.
const AUTO_CLAIMED: usize = 100;
/// The greatest COUNT of XAUTOCLAIM.
const AUTO_CLAIMED_MAX: i64 = i64::MAX / 16;

/// Takes an integer. `text` is the error for any other argument.
fn int_or(args: &mut Args<'_>, text: &'static str) -> Result<i64, CommandError> {
    parse_i64(args.next()?).ok_or(CommandError::text(text))
}

/// Returns the stream of a command on a group, both of which must exist.
fn with_group<'s>(shard: &'s mut Shard, key: &Key<'_>, group: &[u8]) -> Result<StreamMut<'s>, CommandError> {
    let stream = shard.counted_value_mut::<StreamType>(key, Event::Claimed)?;
    stream.filter(|stream| stream.stream().group(group).is_some()).ok_or_else(|| no_such_group(key, group))
}

/// The options of XCLAIM after the IDs.
struct ClaimOptions {
    delivered_at: Millis,
    n_deliveries: Option<u64>,
    just_id: bool,
    claimable: Claimable,
    last_id: Option<StreamId>,
}

impl ClaimOptions {
    fn read(mut args: Args<'_>, now: Millis) -> Result<Self, CommandError> {
        let mut options = ClaimOptions {
            delivered_at: now,
            n_deliveries: None,
            just_id: false,
            claimable: Claimable::Pending,
            last_id: None,
        };
        while let Some(word) = args.peek() {
            if args.tag("FORCE") {
                options.claimable = Claimable::Any;
            } else if args.tag("JUSTID") {
                options.just_id = true;
            } else if args.remaining() < 2 {
                return Err(unrecognized(word));
            } else if args.tag("IDLE") {
                let idle = int_or(&mut args, "ERR Invalid IDLE option argument for XCLAIM")?;
                options.delivered_at = sensible((now.0 as i64).wrapping_sub(idle), now);
            } else if args.tag("TIME") {
                let time = int_or(&mut args, "ERR Invalid TIME option argument for XCLAIM")?;
                options.delivered_at = sensible(time, now);
            } else if args.tag("RETRYCOUNT") {
                let n = int_or(&mut args, "ERR Invalid RETRYCOUNT option argument for XCLAIM")?;
                options.n_deliveries = u64::try_from(n).ok();
            } else if args.tag("LASTID") {
                options.last_id = Some(id(args.next()?)?);
            } else {
                return Err(unrecognized(word));
            }
        }
        Ok(options)
    }

    fn counting(&self) -> Counting {
        match (self.n_deliveries, self.just_id) {
            (Some(n), _) => Counting::Exactly(n),
            (None, true) => Counting::AsBefore,
            (None, false) => Counting::OneMore,
        }
    }
}

fn unrecognized(word: &[u8]) -> CommandError {
    CommandError::owned(format!("ERR Unrecognized XCLAIM option '{}'", shown(word)))
}

/// Limits a time from a client's clock to the past.
///
/// At time zero the AOF is loaded, whose times were limited when they were recorded.
fn sensible(unix_ms: i64, now: Millis) -> Millis {
    match u64::try_from(unix_ms) {
        Ok(unix_ms) if unix_ms <= now.0 || now == Millis(0) => Millis(unix_ms),
        _ => now,
    }
}

pub(super) fn xclaim(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (key, group, consumer) = (args.key()?, args.next()?, args.next()?);
    let (now, db, is_logged) = (shard.now(), shard.db(), shard.is_logged());
    let mut stream = with_group(shard, &key, group)?;
    let idle_min = int_or(&mut args, "ERR Invalid min-idle-time argument for XCLAIM")?.max(0) as u64;
    let mut ids = Ids::new();
    // The first word that is no ID begins the options.
    while let Some(known) = args.peek().and_then(|word| id(word).ok()) {
        ids.push(known);
        args.next()?;
    }
    let options = ClaimOptions::read(args, now)?;
    if let Some(last_id) = options.last_id {
        stream.skip_to(group, last_id);
    }
    let claim =
        Claim { group, consumer, idle_min, delivered_at: options.delivered_at, counting: options.counting() };
    let array = reply.array_later();
    let mut n = 0;
    let mut dealt = Dealt { has_moved: options.last_id.is_some(), ..Dealt::default() };
    stream.claim(&claim, &ids, options.claimable, |entry| {
        write_claimed(reply, entry, options.just_id);
        n += 1;
        if is_logged {
            dealt.given.push(entry.id());
        }
    });
    reply.close(array, n);
    if is_logged {
        // Missing entries may have been pending. Acknowledging the others is harmless.
        let entries = stream.stream().entries();
        dealt.released = ids.iter().copied().filter(|&id| entries.get(id).is_none()).collect();
        Served { db, key: key.bytes, group, consumer }.tell(stream.stream(), &dealt);
    }
    Ok(())
}

fn write_claimed(reply: &mut Reply<'_>, entry: &Entry<'_>, just_id: bool) {
    if just_id { write_id(reply, entry.id()) } else { write_entry(reply, entry) }
}

pub(super) fn xautoclaim(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (key, group, consumer) = (args.key()?, args.next()?, args.next()?);
    let idle_min = int_or(&mut args, "ERR Invalid min-idle-time argument for XAUTOCLAIM")?.max(0) as u64;
    let from = range_start(args.next()?)?;
    let (mut n_max, mut just_id) = (AUTO_CLAIMED, false);
    while !args.is_empty() {
        if args.remaining() >= 2 && args.tag("COUNT") {
            let n = args.int().ok().filter(|n| (1..=AUTO_CLAIMED_MAX).contains(n));
            n_max = n.ok_or(CommandError::text("ERR COUNT must be > 0"))? as usize;
        } else if args.tag("JUSTID") {
            just_id = true;
        } else {
            return Err(CommandError::Syntax);
        }
    }
    let (db, is_logged) = (shard.db(), shard.is_logged());
    let mut stream = with_group(shard, &key, group)?;
    let counting = if just_id { Counting::AsBefore } else { Counting::OneMore };
    let claim = Claim { group, consumer, idle_min, delivered_at: stream.now(), counting };
    // The next ID precedes the claimed entries in the reply, but is known only after them.
    let (mut claimed, mut n) = (Vec::new(), 0);
    let mut entries = Reply::new(&mut claimed, reply.version());
    let mut dealt = Dealt::default();
    let done = stream.auto_claim(&claim, from, n_max, |entry| {
        write_claimed(&mut entries, entry, just_id);
        n += 1;
        if is_logged {
            dealt.given.push(entry.id());
        }
    });
    if is_logged {
        dealt.released = done.deleted.clone();
        Served { db, key: key.bytes, group, consumer }.tell(stream.stream(), &dealt);
    }
    reply.array(3);
    write_id(reply, done.next.unwrap_or_default());
    reply.array(n);
    reply.raw(&claimed);
    reply.array(done.deleted.len());
    done.deleted.into_iter().for_each(|id| write_id(reply, id));
    Ok(())
}
