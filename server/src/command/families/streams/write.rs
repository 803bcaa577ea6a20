//! Stream entries in replies.

use braid_protocol::reply::Reply;
use braid_storage::types::stream::{Deletion, Entry};

use super::ids::write_id;

/// Writes an entry: its ID, and its fields' names and values in turn.
pub(super) fn write_entry(reply: &mut Reply<'_>, entry: &Entry<'_>) {
    reply.array(2);
    write_parts(reply, entry);
}

fn write_parts(reply: &mut Reply<'_>, entry: &Entry<'_>) {
    write_id(reply, entry.id());
    reply.array(2 * entry.n_fields());
    for (name, value) in entry.fields() {
        name.with_text(|text| reply.bulk(text));
        value.with_text(|text| reply.bulk(text));
    }
}

/// Writes an entry that is delivered, with the time since its last delivery and the number of deliveries.
pub(super) fn write_entry_with_deliveries(
    reply: &mut Reply<'_>,
    entry: &Entry<'_>,
    idle: u64,
    n_deliveries: u64,
) {
    reply.array(4);
    write_parts(reply, entry);
    reply.integer(idle as i64);
    reply.integer(n_deliveries as i64);
}

/// Writes up to `n_max` entries, and returns their number.
pub(super) fn write_entries<'a>(
    reply: &mut Reply<'_>,
    entries: impl Iterator<Item = Entry<'a>>,
    n_max: Option<usize>,
) -> usize {
    let array = reply.array_later();
    let mut n = 0;
    for entry in entries.take(n_max.unwrap_or(usize::MAX)) {
        write_entry(reply, &entry);
        n += 1;
    }
    reply.close(array, n);
    n
}

/// Writes the result for an entry, in the numbers of XDELEX and XACKDEL.
pub(super) fn write_deletion(reply: &mut Reply<'_>, deletion: Deletion) {
    reply.integer(match deletion {
        Deletion::Missing => -1,
        Deletion::Done => 1,
        Deletion::Referenced => 2,
    });
}
