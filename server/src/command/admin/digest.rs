//! DEBUG DIGEST and DIGEST-VALUE.

use braid_protocol::reply::Reply;
use braid_storage::{
    entry::EntryRef,
    table::Position,
    types::{
        digest::Digest,
        kinds::{digest_of, has_expired},
    },
};

use crate::{
    catalog::{Args, Outcome},
    command::{Call, admin::debug::debug_args},
};

/// Replies with the digest of all databases: zeros if there are no keys.
pub(super) fn debug_digest(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 0)?;
    let mut digest = Digest::default();
    for (db, _) in call.server.keyspace.databases() {
        call.each_shard(db, |shard| {
            let now = shard.now();
            let mut visit = |entry: EntryRef<'_>| {
                if !has_expired(entry, now) {
                    let of_key = Digest::default().then_number(u64::from(db.0)).then(entry.key());
                    digest = digest.and(of_key.and_then(&digest_of(entry, now)));
                }
            };
            shard.scan(Position::START, usize::MAX, &mut visit);
        });
    }
    reply.simple(&digest.to_string());
    Ok(())
}

/// Replies with the digest of each key's value: zeros for a missing key.
pub(super) fn debug_digest_value(
    call: &mut Call<'_, '_>,
    mut args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Outcome {
    debug_args(args, args.remaining())?;
    reply.array(args.remaining());
    while !args.is_empty() {
        let key = args.key()?;
        let shard = call.shard_of(&key);
        let now = shard.now();
        let digest = shard.inspect(&key).map(|entry| digest_of(entry, now));
        reply.simple(&digest.unwrap_or_default().to_string());
    }
    Ok(())
}
