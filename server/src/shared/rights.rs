//! What changes users, and how sessions learn what theirs may do.
//!
//! A session keeps what its user may do ([`Session::rights`]: nothing, if that is everything) and as of when
//! it knows that. A change is a barrier, as CLIENT KILL is: the new users are stored, the number of changes
//! in [`Attention`](super::attention::Attention) moves, and the answer waits until all shards have been taken
//! once. So whatever runs after the answer finds, under its hold, that its session's rights are outdated, and
//! looks them up again. A change costs nothing for clients that send nothing, however many are of one user.

use std::{convert::Infallible, sync::Arc};

use crate::{
    access::{Commands, Entry, User, Users},
    client::{id::Endpoint, record::ClientRecord, session::Session},
    notify::subscriptions::TopicKind,
    shared::{server::Server, thread_state::ThreadState},
};

impl Server {
    /// Changes the users for a client, one change at a time. What `change` makes of a copy holds from here
    /// on, unless it fails.
    ///
    /// # Errors
    /// What `change` returns. Then nothing has changed.
    pub fn change_users<T, E>(
        &self,
        session: &mut Session,
        thread: &ThreadState,
        change: impl FnOnce(&mut Users) -> Result<T, E>,
    ) -> Result<T, E> {
        self.accounts.change(change, |before, after| {
            self.attention.change_rights();
            self.end_clients_of_others(before, after, session, thread);
        })
    }

    /// Ends the connections of users who are gone, and those that are subscribed to what their users may not
    /// use any more.
    ///
    /// One that subscribes meanwhile looks itself ([`Server::may_stay_subscribed`]).
    fn end_clients_of_others(&self, before: &Users, after: &Users, own: &mut Session, thread: &ThreadState) {
        let is_left_alone = |user: &Arc<User>| {
            after.get(user.name()).is_some_and(|now| {
                Arc::ptr_eq(now, user) || now.serial() == user.serial() && now.keeps_channels_of(user)
            })
        };
        if before.all().all(is_left_alone) {
            return;
        }
        for record in self.clients.all() {
            let user = record.user.load();
            let now = after.get(&user.name).filter(|now| now.serial() == user.serial);
            if now.is_some_and(|now| may_listen(now, &record)) {
                continue;
            }
            if record.id == own.record.id {
                // It has its answer first.
                own.closing = true;
            } else {
                self.kill(record.id, thread);
            }
        }
    }

    /// Whether a client that has just subscribed to something may be. Its user may have lost the right after
    /// that was checked.
    pub fn may_stay_subscribed(&self, session: &mut Session) -> bool {
        self.attention.rights() == session.rights_as_of
            || self.renew_rights(session)
                && session.rights.as_ref().is_none_or(|user| may_listen(user, &session.record))
    }

    /// Looks up what a session's user may do now. Returns whether there is the user.
    #[cold]
    pub fn renew_rights(&self, session: &mut Session) -> bool {
        let as_of = self.attention.rights();
        let users = self.accounts.users();
        let user = session.record.user.load();
        let Some(user) = users.get(&user.name).filter(|now| now.serial() == user.serial) else {
            return false;
        };
        session.take_rights(user, as_of);
        session.authenticated = session.has_authenticated || users.default_user().is_open();
        true
    }

    /// Makes a session one of the default user's, as a new connection is.
    pub fn become_default_user(&self, session: &mut Session) {
        let as_of = self.attention.rights();
        let users = self.accounts.users();
        let user = users.default_user();
        session.become_user(user, as_of);
        session.has_authenticated = user.is_open();
        session.authenticated = user.is_open();
    }

    /// Makes a session one of a user's, if the password fits. Returns whether it does.
    pub fn authenticate(&self, session: &mut Session, name: &[u8], password: &[u8]) -> bool {
        // First, so that a change that comes between is seen by the next command.
        let as_of = self.attention.rights();
        let users = self.accounts.users();
        let Some(user) = users.admitted(name, password) else { return false };
        session.become_user(user, as_of);
        session.has_authenticated = true;
        session.authenticated = true;
        true
    }

    /// Makes a session one of the first of these users who is on, without a password: their authority vouches
    /// for it. Returns whether there is one.
    pub fn become_certified_user(&self, session: &mut Session, names: &[Vec<u8>]) -> bool {
        let as_of = self.attention.rights();
        let users = self.accounts.users();
        let Some(user) = names.iter().filter_map(|name| users.get(name)).find(|user| user.is_on()) else {
            return false;
        };
        session.become_user(user, as_of);
        session.has_authenticated = true;
        session.authenticated = true;
        true
    }

    /// Whether protected mode keeps somebody out who connects.
    pub fn turns_away(&self, peer: &Endpoint) -> bool {
        let is_stranger = matches!(peer, Endpoint::Inet(peer) if !peer.ip().is_loopback());
        is_stranger
            && self.config.load().protected_mode
            && self.accounts.users().default_user().needs_no_password()
    }

    /// Logs what was denied.
    pub fn note_denial(&self, entry: Entry) {
        let max_len = self.config.load().acllog_max_len;
        self.accounts.denials().add(entry, max_len);
    }

    /// Gives the default user this password alone, or none (`requirepass`).
    pub fn set_default_password(
        &self,
        password: Option<&[u8]>,
        commands: &dyn Commands,
        session: &mut Session,
        thread: &ThreadState,
    ) {
        let Ok(()) = self.change_users::<_, Infallible>(session, thread, |users| {
            users.set_default_password(password, commands);
            Ok(())
        });
    }
}

/// Whether a user may use all that a client is subscribed to.
fn may_listen(user: &User, record: &ClientRecord) -> bool {
    record.topics.all(|kind, name| user.allows_channel(name, kind == TopicKind::Pattern))
}
