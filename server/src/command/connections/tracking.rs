//! CLIENT TRACKING and related commands.
//!
//! [`crate::observe::invalidations`] describes how invalidations reach tracking clients.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
};

use braid_protocol::reply::Reply;
use braid_storage::observers::read_tracking::Remembered;

use crate::{
    catalog::{Args, CommandError, Outcome, shown},
    client::{
        id::ClientId,
        record::{ClientRecord, Listens},
        session::{Session, SessionRequest},
    },
    command::Call,
    notify::{
        notifications::Notification,
        subscriptions::Name,
        tracking_table::{Interest, Invalidation, Marks, Mode, Tracking, Whom},
    },
    observe::{hearers::PREFIXES, invalidations},
    shared::server::Server,
};

/// The options of CLIENT TRACKING.
#[derive(Default)]
struct Options {
    redirect: Option<ClientId>,
    broadcast: bool,
    opt_in: bool,
    opt_out: bool,
    noloop: bool,
    prefixes: Vec<Name>,
}

impl Options {
    fn parse(server: &Server, mut args: Args<'_>) -> Result<Self, CommandError> {
        let mut options = Options::default();
        while !args.is_empty() {
            if args.remaining() >= 2 && args.tag("REDIRECT") {
                if options.redirect.is_some() {
                    return Err(CommandError::text(
                        "ERR A client can only redirect to a single other client",
                    ));
                }
                let id = ClientId(args.int()? as u64);
                if server.clients.get(id).is_none() {
                    return Err(CommandError::text("ERR The client ID you want redirect to does not exist"));
                }
                options.redirect = Some(id);
            } else if args.remaining() >= 2 && args.tag("PREFIX") {
                options.prefixes.push(args.next()?.into());
            } else if args.tag("BCAST") {
                options.broadcast = true;
            } else if args.tag("OPTIN") {
                options.opt_in = true;
            } else if args.tag("OPTOUT") {
                options.opt_out = true;
            } else if args.tag("NOLOOP") {
                options.noloop = true;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }

    /// Returns the mode of tracking from now on, after the mode `before`.
    fn into_mode(self, before: Option<&Mode>) -> Result<Mode, CommandError> {
        let was = |interest| before.is_some_and(|mode| mode.interest == interest);
        let refusal = if !self.broadcast && !self.prefixes.is_empty() {
            "ERR PREFIX option requires BCAST mode to be enabled"
        } else if before.is_some() && was(Interest::Broadcast) != self.broadcast {
            "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with \
             a different mode."
        } else if self.broadcast && (self.opt_in || self.opt_out) {
            "ERR OPTIN and OPTOUT are not compatible with BCAST"
        } else if self.opt_in && self.opt_out {
            "ERR You can't specify both OPTIN mode and OPTOUT mode"
        } else if self.opt_in && was(Interest::OptOut) || self.opt_out && was(Interest::OptIn) {
            "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with \
             a different mode."
        } else {
            ""
        };
        if !refusal.is_empty() {
            return Err(CommandError::text(refusal));
        }
        let interest = match &self {
            Options { broadcast: true, .. } => Interest::Broadcast,
            Options { opt_in: true, .. } => Interest::OptIn,
            Options { opt_out: true, .. } => Interest::OptOut,
            _ => Interest::Read,
        };
        let prefixes = if self.broadcast { with_new(before, self.prefixes)? } else { Vec::new() };
        Ok(Mode { interest, redirect: self.redirect, noloop: self.noloop, prefixes })
    }
}

/// Returns a client's prefixes together with new ones.
///
/// No key may begin with two of the named prefixes. The empty prefix is added unchecked, as in Redis, if none
/// is named.
fn with_new(before: Option<&Mode>, mut new: Vec<Name>) -> Result<Vec<Name>, CommandError> {
    let old = before.map_or(&[][..], |mode| &mode.prefixes);
    if new.is_empty() {
        new.push(Name::from(&[][..]));
        if old.contains(&new[0]) {
            return Ok(old.to_vec());
        }
        return Ok([&new, old].concat());
    }
    let overlap = |a: &Name, b: &Name| a.starts_with(b) || b.starts_with(a);
    let refusal = |a: &Name, which: &str, b: &Name| {
        let (a, b) = (shown(a), shown(b));
        CommandError::owned(format!(
            "ERR Prefix '{a}' overlaps with {which} prefix '{b}'. Prefixes for a single client must not overlap."
        ))
    };
    // In sorted order, texts with a prefix follow it directly. So if any two overlap, two neighbours do.
    let mut in_order: Vec<&Name> = new.iter().collect();
    in_order.sort_unstable();
    let overlapping: HashSet<&Name> =
        in_order.windows(2).filter(|pair| overlap(pair[0], pair[1])).flatten().copied().collect();
    for (nth, prefix) in new.iter().enumerate() {
        // The old prefixes are sorted, and none begins with another unless the first one is empty.
        let at = old.partition_point(|other| other < prefix);
        let near = old.first().into_iter().chain(&old[at.saturating_sub(1)..old.len().min(at + 1)]);
        if let Some(other) = near.into_iter().find(|other| overlap(prefix, other)) {
            return Err(refusal(prefix, "an existing", other));
        }
        if overlapping.contains(prefix)
            && let Some(other) = new[nth + 1..].iter().find(|other| overlap(prefix, other))
        {
            return Err(refusal(prefix, "another provided", other));
        }
    }
    let mut all = [old, &new].concat();
    all.sort_unstable();
    Ok(all)
}

/// CLIENT TRACKING, with all shards held, so that no change after its reply is missed.
pub(in crate::command) fn track(
    call: &mut Call<'_, '_>,
    mut args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Outcome {
    let switch = args.next()?;
    let options = Options::parse(call.server, args)?;
    if switch.eq_ignore_ascii_case(b"on") {
        let before = call.session.tracking.as_ref().map(|tracking| &*tracking.mode);
        let mode = Arc::new(options.into_mode(before)?);
        start(call, mode);
    } else if switch.eq_ignore_ascii_case(b"off") {
        stop(call);
    } else {
        return Err(CommandError::Syntax);
    }
    reply.ok();
    Ok(())
}

fn start(call: &mut Call<'_, '_>, mode: Arc<Mode>) {
    let before = call.session.tracking.take();
    let thread = call.session.origin.thread;
    let is_known =
        |prefix: &&Name| before.as_ref().is_some_and(|before| before.mode.prefixes.contains(prefix));
    let new: Vec<Name> = mode.prefixes.iter().filter(|prefix| !is_known(prefix)).cloned().collect();
    if !new.is_empty() {
        call.server.trackers.add_prefixes(&new, thread);
        call.each_shard(call.session.db, |shard| shard.hear_all(PREFIXES, true));
    }
    if before.is_none() {
        call.server.threads[thread].n_trackers.fetch_add(1, Ordering::Relaxed);
    }
    let trackers = &call.server.trackers;
    let (number, marks, is_caching) = match before {
        Some(before) => (before.number, before.marks, before.is_caching),
        None => (trackers.next_number(), Marks::none_of(call.server.keyspace.router().n_shards()), false),
    };
    call.session.tracking = Some(Box::new(Tracking { number, mode: Arc::clone(&mode), marks, is_caching }));
    publish(call, Some(&mode));
    let Session { record, origin, .. } = &*call.session;
    call.thread.notify(origin.thread, Notification::Tracks(origin.slot, record.id, number, mode));
}

/// Ends a client's tracking.
pub(in crate::command) fn stop(call: &mut Call<'_, '_>) {
    if let Some(before) = call.session.tracking.take() {
        let thread = call.session.origin.thread;
        call.server.trackers.remove_prefixes(&before.mode.prefixes, thread);
        call.server.threads[thread].n_trackers.fetch_sub(1, Ordering::Relaxed);
        publish(call, None);
        let number = before.number;
        let leftover = Box::new(invalidations::leftover(*before, call.server, thread));
        call.thread.notify(thread, Notification::TracksNoMore(call.session.origin.slot, number, leftover));
    }
}

/// Publishes a client's mode of tracking.
fn publish(call: &mut Call<'_, '_>, mode: Option<&Arc<Mode>>) {
    call.session.ask(SessionRequest::ReadNotifications);
    let record = &call.session.record;
    record.set_listens(Listens::ToChanges, mode.is_some());
    record.has_lost_redirect.store(false, Ordering::Relaxed);
    record.set_tracking(mode.cloned());
}

/// CLIENT CACHING, for the next command of the client.
pub(super) fn caching(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let interest = call.session.tracking.as_ref().map(|tracking| tracking.mode.interest);
    let (asked, refusal) = match args.next()? {
        _ if interest.is_none() => (
            None,
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
        ),
        word if word.eq_ignore_ascii_case(b"yes") => (
            Some(Interest::OptIn),
            "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
        ),
        word if word.eq_ignore_ascii_case(b"no") => (
            Some(Interest::OptOut),
            "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
        ),
        _ => return Err(CommandError::Syntax),
    };
    match &mut call.session.tracking {
        Some(tracking) if interest == asked => tracking.is_caching = true,
        _ => return Err(CommandError::text(refusal)),
    }
    reply.ok();
    Ok(())
}

/// Returns the client that gets a client's invalidations: 0 for itself, -1 without tracking.
pub(super) fn redirection(client: &ClientRecord) -> i64 {
    let mode = client.tracking.load();
    mode.as_ref().map_or(-1, |mode| mode.redirect.map_or(0, |id| id.0 as i64))
}

/// CLIENT GETREDIR, with the same numbers as [`redirection`].
pub(super) fn get_redirection(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    reply.integer(redirection(&call.session.record));
    Ok(())
}

/// CLIENT TRACKINGINFO: the client's flags, redirection and prefixes.
pub(in crate::command) fn describe(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let record = &call.session.record;
    let tracking = call.session.tracking.as_deref();
    let mut flags = vec![if tracking.is_some() { "on" } else { "off" }];
    if let Some(Tracking { mode, is_caching, .. }) = tracking {
        let named = [
            ("bcast", mode.interest == Interest::Broadcast),
            ("optin", mode.interest == Interest::OptIn),
            ("caching-yes", mode.interest == Interest::OptIn && *is_caching),
            ("optout", mode.interest == Interest::OptOut),
            ("caching-no", mode.interest == Interest::OptOut && *is_caching),
            ("noloop", mode.noloop),
            ("broken_redirect", record.has_lost_redirect.load(Ordering::Relaxed)),
        ];
        flags.extend(named.iter().filter(|(_, holds)| *holds).map(|&(name, _)| name));
    }
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"redirect");
    reply.integer(redirection(record));
    reply.bulk(b"prefixes");
    let prefixes = tracking.map_or(&[][..], |tracking| &tracking.mode.prefixes);
    reply.array(prefixes.len());
    prefixes.iter().for_each(|prefix| reply.bulk(prefix));
    Ok(())
}

/// Invalidates the copies of all tracking clients after a flush of a database.
///
/// All shards are held.
pub fn tell_of_flush(call: &mut Call<'_, '_>) {
    let db = call.session.db;
    let mut forgotten = Remembered::default();
    call.each_shard(db, |shard| forgotten += shard.forget_readers());
    call.server.trackers.forgot(forgotten);
    let what = Arc::new(Invalidation { keys: None, author: call.session.record.id });
    for (thread, peer) in call.server.threads.iter().enumerate() {
        if peer.n_trackers.load(Ordering::Relaxed) > 0 {
            call.thread.notify(thread, Notification::Invalidated(Whom::Everybody, Arc::clone(&what)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &[&str]) -> Vec<Name> {
        words.iter().map(|word| Name::from(word.as_bytes())).collect()
    }

    fn mode(prefixes: Vec<Name>) -> Mode {
        Mode { interest: Interest::Broadcast, redirect: None, noloop: false, prefixes }
    }

    #[test]
    fn prefixes_overlap_as_if_each_were_compared_with_each() {
        let words = ["", "a", "ab", "abc", "ac", "b", "ba", "c", "\u{ff}"];
        // All sets of up to three old prefixes, and all lists of up to two new ones.
        for bits in 0..1u32 << words.len() {
            let there: Vec<_> =
                (0..words.len()).filter(|nth| bits >> nth & 1 == 1).map(|nth| words[nth]).collect();
            if there.len() > 3 {
                continue;
            }
            let before = mode(names(&there));
            for one in words {
                for other in words {
                    let new = names(&[one, other]);
                    let overlap = |a: &Name, b: &Name| a.starts_with(b) || b.starts_with(a);
                    let is_free = |old: &[Name]| {
                        old.iter().enumerate().all(|(nth, a)| old[nth + 1..].iter().all(|b| !overlap(a, b)))
                    };
                    if !is_free(&before.prefixes[usize::from(there.first() == Some(&""))..]) {
                        continue;
                    }
                    let is_refused = overlap(&new[0], &new[1])
                        || new.iter().any(|name| before.prefixes.iter().any(|old| overlap(name, old)));
                    assert_eq!(
                        with_new(Some(&before), new).is_err(),
                        is_refused,
                        "{there:?}, {one}, {other}"
                    );
                }
            }
        }
    }
}
