//! The recent denials, for ACL LOG.

use std::collections::VecDeque;

use braid_storage::entry::time::Millis;

/// The time within which equal denials are one entry.
const MERGED_MILLIS: u64 = 60_000;

/// The number of last entries that are compared with a new one.
const N_COMPARED: usize = 10;

/// The denied right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeniedRight {
    /// Authentication as a user.
    Auth,
    /// A command.
    Command,
    /// A key.
    Key,
    /// A channel.
    Channel,
    /// A database.
    Database,
    /// Authentication as the user that a certificate names.
    TlsCert,
}

impl DeniedRight {
    /// The name in ACL LOG.
    pub fn name(self) -> String {
        match self {
            DeniedRight::TlsCert => "tls-cert".to_owned(),
            _ => format!("{self:?}").to_ascii_lowercase(),
        }
    }
}

/// The context of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// A client's own command.
    Toplevel,
    /// MULTI or EXEC.
    Multi,
    /// A script.
    Script,
}

impl Context {
    /// The name in ACL LOG.
    pub fn name(self) -> &'static str {
        match self {
            Context::Toplevel => "toplevel",
            Context::Multi => "multi",
            Context::Script => "lua",
        }
    }
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialEntry {
    /// The denied right.
    pub reason: DeniedRight,
    /// The context.
    pub context: Context,
    /// The command, the key or the channel.
    pub object: Vec<u8>,
    /// The user.
    pub user: Vec<u8>,
    /// The client's line, as of the last time.
    pub client: String,
    /// The number of denials.
    pub count: u64,
    /// The entry's number.
    pub id: u64,
    /// The time of the first denial.
    pub created: Millis,
    /// The time of the last denial.
    pub updated: Millis,
}

impl DenialEntry {
    /// Creates an entry for a single denial at this moment.
    pub fn new(
        reason: DeniedRight,
        context: Context,
        object: &[u8],
        user: &[u8],
        client: String,
        now: Millis,
    ) -> Self {
        let (object, user) = (object.to_vec(), user.to_vec());
        Self { reason, context, object, user, client, count: 1, id: 0, created: now, updated: now }
    }

    fn is_like(&self, other: &Self) -> bool {
        self.reason == other.reason
            && self.context == other.context
            && self.updated.0.abs_diff(other.updated.0) <= MERGED_MILLIS
            && self.object == other.object
            && self.user == other.user
    }
}

/// The log, with the newest entry first.
#[derive(Debug, Default)]
pub struct Denials {
    entries: VecDeque<DenialEntry>,
    next_id: u64,
}

impl Denials {
    /// Adds a denial to an equal entry, or as a new one. Keeps the newest `max_len` entries.
    pub fn add(&mut self, new: DenialEntry, max_len: usize) {
        let alike = self.entries.iter().take(N_COMPARED).position(|entry| entry.is_like(&new));
        let entry = match alike.and_then(|at| self.entries.remove(at)) {
            Some(entry) => {
                DenialEntry { count: entry.count + 1, client: new.client, updated: new.updated, ..entry }
            }
            None => {
                self.next_id += 1;
                DenialEntry { id: self.next_id - 1, ..new }
            }
        };
        self.entries.push_front(entry);
        self.entries.truncate(max_len);
    }

    /// Forgets all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// The entries, newest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &DenialEntry> {
        self.entries.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(object: &str, at: u64) -> DenialEntry {
        DenialEntry::new(
            DeniedRight::Key,
            Context::Toplevel,
            object.as_bytes(),
            b"alice",
            format!("at {at}"),
            Millis(at),
        )
    }

    fn log(denials: &Denials) -> Vec<(u64, String, u64)> {
        let shown =
            |entry: &DenialEntry| (entry.id, String::from_utf8(entry.object.clone()).unwrap(), entry.count);
        denials.iter().map(shown).collect()
    }

    #[test]
    fn what_is_alike_is_one_entry_for_a_minute_since_the_last() {
        let mut denials = Denials::default();
        for (object, at) in [("a", 0), ("b", 1), ("a", 60_000), ("a", 120_000), ("a", 180_001)] {
            denials.add(denied(object, at), 128);
        }
        assert_eq!(log(&denials), [(2, "a".into(), 1), (0, "a".into(), 3), (1, "b".into(), 1)]);
        let merged = denials.iter().nth(1).unwrap();
        assert_eq!((merged.created, merged.updated), (Millis(0), Millis(120_000)));
        assert_eq!(merged.client, "at 120000");
    }

    #[test]
    fn other_reasons_contexts_and_users_are_other_entries() {
        let mut denials = Denials::default();
        let entry = denied("a", 0);
        denials.add(entry.clone(), 128);
        denials.add(DenialEntry { reason: DeniedRight::Channel, ..entry.clone() }, 128);
        denials.add(DenialEntry { context: Context::Multi, ..entry.clone() }, 128);
        denials.add(DenialEntry { user: b"bob".to_vec(), ..entry }, 128);
        assert_eq!(denials.iter().len(), 4);
    }

    #[test]
    fn only_the_last_ten_are_compared_and_only_so_many_are_kept() {
        let mut denials = Denials::default();
        for object in 0..11 {
            denials.add(denied(&object.to_string(), 0), 128);
        }
        denials.add(denied("1", 0), 128);
        denials.add(denied("0", 0), 128);
        assert_eq!(denials.iter().len(), 12);
        denials.add(denied("new", 0), 5);
        assert_eq!(denials.iter().len(), 5);
        denials.add(denied("newer", 0), 0);
        assert_eq!(denials.iter().len(), 0);
        denials.add(denied("last", 0), 1);
        assert_eq!(log(&denials), [(14, "last".into(), 1)]);
    }
}
