//! EXEC: the commands of a transaction, one after the other, as one unit.

use braid_protocol::reply::Reply;

use crate::{
    access::Context,
    catalog::{CommandError, Denial, Outcome, Words},
    client::{session::Queue, waits::Waiting},
    command::{self, Call, Registered, Run, forget_own_watches},
    observe::invalidations,
    run::{
        command_lookup,
        finish::{FinishedCommand, Measured},
        step,
        timing::{self, Span},
    },
    shared::thread_state::ThreadState,
};

/// Runs the queue, or replies with the reason why not. In either case the transaction is over and no key is
/// watched any more.
pub fn exec(call: &mut Call<'_, '_>, command: &Registered, reply: &mut Reply<'_>) -> Outcome {
    let queue = call.session.queue.take();
    if let Some(refusal) = call.session.exec_refusal.take() {
        forget_own_watches(call);
        let why = refusal.wire_text();
        let why = why.strip_prefix("ERR ").unwrap_or(&why);
        return Err(CommandError::owned(format!("EXECABORT Transaction discarded because of: {why}")));
    }
    let Some(queue) = queue else {
        return Err(CommandError::text("ERR EXEC without MULTI"));
    };
    let unchanged = watches_hold(call);
    forget_own_watches(call);
    if queue.refused {
        return Err(CommandError::text("EXECABORT Transaction discarded because of previous errors."));
    }
    if !unchanged {
        reply.null_array();
        return Ok(());
    }
    // These are the places of all its commands' keys. Each command looks up its own keys.
    call.routed = &[];
    // No other unit may come between its commands, so none of them waits.
    call.waiting = Waiting::MayNot;
    call.n_in_transaction = Some(queue.len());
    call.lift_limits();
    reply.array(queue.len());
    let has_scripts =
        command_lookup::queued(&queue).any(|(command, _)| matches!(command.spec.run, Run::Script(_)));
    let thread = call.thread;
    let kept_back = has_scripts.then(|| thread.keep_back_notifications());
    let span = is_watched(&queue, call.thread).then(|| Span::begin(call.thread));
    for (command, words) in command_lookup::queued(&queue) {
        run_queued(call, command, words, reply);
        if reply.is_over_limit() {
            // The other commands run nevertheless, because it is a transaction.
            reply.cut();
        }
    }
    if let Some(kept_back) = kept_back {
        drop(kept_back);
        thread.charge(call.session);
    }
    if let Some(span) = span {
        timing::end_of_queue(span, command, &queue, call.session, call.thread);
    }
    Ok(())
}

/// Whether the time of a transaction is taken. Each of its commands costs little more than reading the clock.
fn is_watched(queue: &Queue, thread: &ThreadState) -> bool {
    timing::times_each(thread)
        || !thread.serves_sockets()
        || timing::may_be_long(command_lookup::queued(queue).map(|(command, _)| command), queue.n_bytes())
}

/// Runs one command of a transaction. An error is its reply and stops nothing.
fn run_queued(
    call: &mut Call<'_, '_>,
    command: &'static Registered,
    words: Words<'_>,
    reply: &mut Reply<'_>,
) {
    let start = reply.written_bytes();
    if let Some(user) = &call.session.rights
        && let Err(denial) = user.check(&command.asked(words, call.session.db))
    {
        return refuse_queued(call, command, denial, words, reply);
    }
    let measured = Measured::begin(command, call.session, call.thread);
    let outcome = step::execute(call, command, words, None, reply);
    if call.session.tracking.is_some()
        && command.reads_its_keys()
        && let Some(held) = call.access.held()
    {
        invalidations::note_reads(call.server, held, call.session, command.spec.keys, words);
    }
    call.stats.ran(command.id, outcome.is_err());
    call.session.n_commands += 1;
    if let Err(error) = outcome {
        call.stats.error(&error.wire_text());
        reply.truncate(start);
        error.write(reply);
    }
    let reply_bytes = reply.written_bytes() - start;
    let ran = FinishedCommand { command, words, session: call.session, reply_bytes, was_shown: false };
    measured.finish(&ran, call.thread);
    // HELLO may have changed the RESP version for the commands after it.
    reply.set_version(call.session.resp);
}

/// Replies to a command that its user might have run when it was queued.
#[cold]
fn refuse_queued(
    call: &Call<'_, '_>,
    command: &'static Registered,
    denial: Denial,
    words: Words<'_>,
    reply: &mut Reply<'_>,
) {
    command::note_denial(call.session, denial, words, Context::Multi, call.table, call.thread);
    call.stats.commands[command.id.index()].rejected.add(1);
    let error = command::error_in_transaction(denial);
    call.stats.error(&error.wire_text());
    error.write(reply);
}

/// Whether no watched key has been written since it was watched. An expired key counts as written.
fn watches_hold(call: &mut Call<'_, '_>) -> bool {
    let watched = std::mem::take(&mut call.session.watched);
    let hold = watched.iter().all(|watch| {
        let key = watch.key.key();
        let shard = call.shard_in(&key, watch.key.db);
        let has_expired = !watch.had_expired && shard.is_kept_expired(&key);
        !has_expired && !shard.is_written_since(&watch.key, watch.stamp)
    });
    call.session.watched = watched;
    hold
}
