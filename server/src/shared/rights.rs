//! Changes of users, and how sessions learn their users' new rights.
//!
//! A session keeps the rights of its user ([`Session::rights`]: none if the user may do everything), with the
//! version of these rights. A change is a barrier, as CLIENT KILL is. The new users are stored, and the
//! number of changes in [`Attention`](super::attention::Attention) moves. The reply waits until all shards
//! have been taken once. So any command after the reply finds, under its hold, that its session's rights are
//! out of date, and looks them up again. A change costs nothing for clients that send nothing, however many a
//! user has.

use std::{convert::Infallible, sync::Arc};

use crate::{
    access::{Commands, DenialEntry, User, Users},
    client::{id::Endpoint, record::ClientRecord, session::Session},
    notify::subscriptions::TopicKind,
    shared::{server::Server, thread_state::ThreadState},
};

impl Server {
    /// Changes the users for a client, one change at a time.
    ///
    /// `change` edits a copy, which replaces the users unless it fails.
    ///
    /// # Errors
    /// The error of `change`. Then nothing has changed.
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

    /// Closes the connections of removed users, and those with subscriptions that their users have lost.
    ///
    /// A client that subscribes meanwhile checks its own rights ([`Server::may_stay_subscribed`]).
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
                // It receives its reply first.
                own.closing = true;
            } else {
                self.kill(record.id, thread);
            }
        }
    }

    /// Whether a client that has just subscribed may stay subscribed. Its user may have lost the right after
    /// the check.
    pub fn may_stay_subscribed(&self, session: &mut Session) -> bool {
        self.attention.rights() == session.rights_as_of
            || self.renew_rights(session)
                && session.rights.as_ref().is_none_or(|user| may_listen(user, &session.record))
    }

    /// Looks up the current rights of a session's user. Returns whether the user exists.
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

    /// Makes a session the default user's, like that of a new connection.
    pub fn become_default_user(&self, session: &mut Session) {
        let as_of = self.attention.rights();
        let users = self.accounts.users();
        let user = users.default_user();
        session.become_user(user, as_of);
        session.has_authenticated = user.is_open();
        session.authenticated = user.is_open();
    }

    /// Makes a session a user's, if the password is right. Returns whether it is.
    pub fn authenticate(&self, session: &mut Session, name: &[u8], password: &[u8]) -> bool {
        // Read first, so that the next command sees a change that comes in between.
        let as_of = self.attention.rights();
        let users = self.accounts.users();
        let Some(user) = users.admitted(name, password) else { return false };
        session.become_user(user, as_of);
        session.has_authenticated = true;
        session.authenticated = true;
        true
    }

    /// Makes a session that of the first enabled user among the names, without a password.
    ///
    /// The certificate's authority vouches for the name. Returns whether there is such a user.
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

    /// Whether protected mode refuses a peer.
    pub fn turns_away(&self, peer: &Endpoint) -> bool {
        let is_stranger = matches!(peer, Endpoint::Inet(peer) if !peer.ip().is_loopback());
        is_stranger
            && self.config.load().protected_mode
            && self.accounts.users().default_user().needs_no_password()
    }

    /// Logs a denial.
    pub fn note_denial(&self, entry: DenialEntry) {
        let max_len = self.config.load().acllog_max_len;
        self.accounts.denials().add(entry, max_len);
    }

    /// Sets a single password, or none, for the default user (`requirepass`).
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

/// Whether a user may use all channels and patterns of a client's subscriptions.
fn may_listen(user: &User, record: &ClientRecord) -> bool {
    record.topics.all(|kind, name| user.allows_channel(name, kind == TopicKind::Pattern))
}
