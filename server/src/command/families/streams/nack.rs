//! XNACK: pending entries that go back to their group.

use braid_protocol::reply::Reply;
use braid_storage::{
    keyspace::shard::Shard,
    observers::event::Event,
    types::stream::{Claimable, HandBack, HandBackMode, StreamType},
};

use super::ids::{Ids, id};
use crate::catalog::{Args, CommandError, Outcome};

/// The arguments after the group.
struct NackOptions {
    mode: HandBackMode,
    ids: Ids,
    n_deliveries: Option<u64>,
    claimable: Claimable,
}

impl NackOptions {
    fn read(mut args: Args<'_>) -> Result<Self, CommandError> {
        let modes =
            [("SILENT", HandBackMode::Silent), ("FAIL", HandBackMode::Fail), ("FATAL", HandBackMode::Fatal)];
        let mode = modes.into_iter().find(|(word, _)| args.tag(word)).map(|(_, mode)| mode);
        let mode = mode.ok_or(CommandError::text("ERR XNACK mode must be SILENT, FAIL, or FATAL"))?;
        if !args.tag("IDS") {
            return Err(CommandError::text("ERR syntax error, expected IDS keyword"));
        }
        let n = usize::try_from(args.int()?).ok().filter(|n| *n > 0);
        let n = n.ok_or(CommandError::text("ERR numids must be positive"))?;
        if n > args.remaining() {
            return Err(CommandError::text("ERR number of IDs doesn't match numids"));
        }
        let ids = (0..n).map(|_| id(args.next()?)).collect::<Result<_, _>>()?;
        let mut options = NackOptions { mode, ids, n_deliveries: None, claimable: Claimable::Pending };
        while !args.is_empty() {
            if args.remaining() >= 2 && args.tag("RETRYCOUNT") {
                let n = u64::try_from(args.int()?);
                options.n_deliveries =
                    Some(n.map_err(|_| CommandError::text("ERR RETRYCOUNT must be >= 0"))?);
            } else if args.tag("FORCE") {
                options.claimable = Claimable::Any;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }
}

pub(super) fn xnack(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (key, group) = (args.key()?, args.next()?);
    let NackOptions { mode, ids, n_deliveries, claimable } = NackOptions::read(args)?;
    let stream = shard.counted_value_mut::<StreamType>(&key, Event::Claimed)?;
    let n = stream
        .map_or(0, |mut stream| stream.hand_back(&HandBack { group, mode, n_deliveries, claimable }, &ids));
    reply.integer(n as i64);
    Ok(())
}
