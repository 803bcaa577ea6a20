//! The states of a connection, and the changes between them.
//!
//! A state says whether the connection is read and its commands run, and where its node is: the session and
//! the commands under way. The node is in exactly one place. It is in the state, except while the work in it
//! is [elsewhere](ConnectionState::Away).
//!
//! Two other facts are no part of the state, because they are true in several of them: the connection may be
//! [closing](super::connection::Ending), and its replies may wait for the AOF.

use std::sync::Arc;

use braid_storage::sync::executor::Node;

use super::node::{Job, Parked};

/// The state of a connection.
pub enum ConnectionState {
    /// A TLS handshake is under way.
    Handshake {
        /// The node.
        node: Box<Node<Job>>,
        /// Whether the handshake waits for its turn on the thread.
        is_queued: bool,
    },
    /// It may be read, and its commands may run.
    Ready(Box<Node<Job>>),
    /// Its input waits for notifications that were sent earlier: its thread must read them first.
    InputAwaitsNotifications(Box<Node<Job>>),
    /// Its input waits until queues of notifications have emptied, which its commands have filled.
    InputAwaitsRoom(Box<Node<Job>>),
    /// The node is at the shards, with the saver, in a heavy-work thread, or in its thread's hands.
    Away,
    /// A command waits for keys. Its node is with the keys, or with the thread that has claimed it.
    AwaitsKeys(Arc<Parked>),
    /// CLIENT PAUSE holds commands back.
    Postponed {
        /// The node.
        node: Box<Node<Job>>,
        /// Its number among those that were ever held back, in the order of their arrival.
        nth: u64,
    },
    /// A command waits for a time.
    Resting(Box<Node<Job>>),
    /// WAIT or WAITAOF waits.
    AwaitsSync(Box<Node<Job>>),
    /// Replies in the node wait for notifications that were sent earlier.
    ReplyAwaitsNotifications(Box<Node<Job>>),
}

/// The name of a state, without its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StateName {
    /// See [`ConnectionState::Handshake`].
    Handshake,
    /// See [`ConnectionState::Ready`].
    Ready,
    /// See [`ConnectionState::InputAwaitsNotifications`].
    InputAwaitsNotifications,
    /// See [`ConnectionState::InputAwaitsRoom`].
    InputAwaitsRoom,
    /// See [`ConnectionState::Away`].
    Away,
    /// See [`ConnectionState::AwaitsKeys`].
    AwaitsKeys,
    /// See [`ConnectionState::Postponed`].
    Postponed,
    /// See [`ConnectionState::Resting`].
    Resting,
    /// See [`ConnectionState::AwaitsSync`].
    AwaitsSync,
    /// See [`ConnectionState::ReplyAwaitsNotifications`].
    ReplyAwaitsNotifications,
}

/// A reason for another state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StateChange {
    /// The TLS handshake is done.
    Secured,
    /// Input has arrived after notifications that its thread has not read.
    NotificationsCameFirst,
    /// Commands have filled queues of notifications.
    QueuesFilled,
    /// Those queues have emptied.
    QueuesEmptied,
    /// The node leaves with commands, or is taken in hand to continue.
    Departed,
    /// The command under way waits for keys.
    KeysAwaited,
    /// The command that waited for keys has left their lines.
    KeysLeft,
    /// A pause holds the commands back.
    PauseBegan,
    /// A command waits for a time.
    RestBegan,
    /// WAIT or WAITAOF waits.
    SyncAwaited,
    /// The replies are complete, and notifications were sent before them.
    NotificationsPrecede,
    /// The thread has read the notifications that were sent earlier.
    NotificationsRead,
    /// The node is back with its replies.
    Returned,
    /// The connection closes with its node.
    Closed,
}

impl StateName {
    /// Returns the state after a change, or `None` if the change is impossible here.
    ///
    /// [`StateChange::Closed`] leads to [`StateName::Away`]: the node continues alone. It releases what the
    /// client has watched and subscribed to.
    pub fn after(self, change: StateChange) -> Option<StateName> {
        use StateName::*;
        let next = match (self, change) {
            (Handshake, StateChange::Secured) => Ready,
            (Ready, StateChange::NotificationsCameFirst) => InputAwaitsNotifications,
            (Ready, StateChange::QueuesFilled) => InputAwaitsRoom,
            (InputAwaitsNotifications, StateChange::NotificationsRead) => Ready,
            (InputAwaitsRoom, StateChange::QueuesEmptied) => Ready,
            (Ready | Postponed | Resting | AwaitsSync, StateChange::Departed) => Away,
            (Away, StateChange::KeysAwaited) => AwaitsKeys,
            (AwaitsKeys, StateChange::KeysLeft) => Away,
            (Away, StateChange::PauseBegan) => Postponed,
            (Away, StateChange::RestBegan) => Resting,
            (Away, StateChange::SyncAwaited) => AwaitsSync,
            (Away, StateChange::NotificationsPrecede) => ReplyAwaitsNotifications,
            (ReplyAwaitsNotifications, StateChange::NotificationsRead) => Away,
            (Away, StateChange::Returned) => Ready,
            (
                Handshake | Ready | InputAwaitsNotifications | InputAwaitsRoom | Postponed,
                StateChange::Closed,
            ) => Away,
            _ => return None,
        };
        Some(next)
    }
}

impl ConnectionState {
    /// The state's name.
    pub fn name(&self) -> StateName {
        match self {
            Self::Handshake { .. } => StateName::Handshake,
            Self::Ready(_) => StateName::Ready,
            Self::InputAwaitsNotifications(_) => StateName::InputAwaitsNotifications,
            Self::InputAwaitsRoom(_) => StateName::InputAwaitsRoom,
            Self::Away => StateName::Away,
            Self::AwaitsKeys(_) => StateName::AwaitsKeys,
            Self::Postponed { .. } => StateName::Postponed,
            Self::Resting(_) => StateName::Resting,
            Self::AwaitsSync(_) => StateName::AwaitsSync,
            Self::ReplyAwaitsNotifications(_) => StateName::ReplyAwaitsNotifications,
        }
    }

    /// Whether commands may run.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ready(_))
    }

    /// Whether commands are under way, or their replies are not written yet.
    #[inline]
    pub fn is_parked(&self) -> bool {
        !matches!(
            self,
            Self::Ready(_)
                | Self::Handshake { .. }
                | Self::InputAwaitsNotifications(_)
                | Self::InputAwaitsRoom(_)
        )
    }

    /// The node of a connection whose commands may run.
    ///
    /// # Panics
    /// In any other state.
    #[inline(always)]
    pub fn ready(&mut self) -> &mut Node<Job> {
        let Self::Ready(node) = self else { unreachable!("commands run in the state Ready only") };
        node
    }

    /// The node, unless commands are under way.
    #[inline]
    pub fn node(&self) -> Option<&Node<Job>> {
        match self {
            Self::Ready(node)
            | Self::Handshake { node, .. }
            | Self::InputAwaitsNotifications(node)
            | Self::InputAwaitsRoom(node) => Some(node),
            _ => None,
        }
    }

    /// Does the same as [`ConnectionState::node`], for changes.
    #[inline]
    pub fn node_mut(&mut self) -> Option<&mut Node<Job>> {
        match self {
            Self::Ready(node)
            | Self::Handshake { node, .. }
            | Self::InputAwaitsNotifications(node)
            | Self::InputAwaitsRoom(node) => Some(node),
            _ => None,
        }
    }

    /// The command that waits for keys.
    pub fn awaits_keys(&self) -> Option<&Arc<Parked>> {
        match self {
            Self::AwaitsKeys(parked) => Some(parked),
            _ => None,
        }
    }

    /// Whether it may be closed now. In other states it closes when its node returns.
    pub fn may_close(&self) -> bool {
        self.name().after(StateChange::Closed).is_some()
    }

    /// Enters a state, and returns the one before.
    fn enter(&mut self, change: StateChange, next: Self) -> Self {
        #[cfg(test)]
        taken::note(self.name(), change);
        debug_assert_eq!(self.name().after(change), Some(next.name()), "{:?}, {change:?}", self.name());
        std::mem::replace(self, next)
    }

    /// Takes the node of a connection that is ready, postponed, resting, or waits for the disk.
    pub fn depart(&mut self) -> Box<Node<Job>> {
        self.enter(StateChange::Departed, Self::Away).into_node()
    }

    /// Takes the node of a connection that closes. See [`ConnectionState::may_close`].
    pub fn close(&mut self) -> Box<Node<Job>> {
        self.enter(StateChange::Closed, Self::Away).into_node()
    }

    /// Returns the node with its replies.
    pub fn give_back(&mut self, node: Box<Node<Job>>) {
        self.enter(StateChange::Returned, Self::Ready(node));
    }

    /// Ends the TLS handshake.
    pub fn secure(&mut self) {
        self.change_in_place(StateChange::Secured, Self::Ready);
    }

    /// Makes the input wait for notifications.
    pub fn await_notifications(&mut self) {
        self.change_in_place(StateChange::NotificationsCameFirst, Self::InputAwaitsNotifications);
    }

    /// Makes the input wait for room in queues of notifications.
    pub fn await_room(&mut self) {
        self.change_in_place(StateChange::QueuesFilled, Self::InputAwaitsRoom);
    }

    /// Ends the wait of input for notifications.
    pub fn notifications_were_read(&mut self) {
        self.change_in_place(StateChange::NotificationsRead, Self::Ready);
    }

    /// Ends the wait of input for room.
    pub fn room_was_made(&mut self) {
        self.change_in_place(StateChange::QueuesEmptied, Self::Ready);
    }

    /// Records that the command under way waits for keys.
    pub fn await_keys(&mut self, parked: Arc<Parked>) {
        self.enter(StateChange::KeysAwaited, Self::AwaitsKeys(parked));
    }

    /// Ends a wait for keys, and returns the command. Returns `None` if none waits.
    pub fn leave_keys(&mut self) -> Option<Arc<Parked>> {
        let Self::AwaitsKeys(_) = self else { return None };
        match self.enter(StateChange::KeysLeft, Self::Away) {
            Self::AwaitsKeys(parked) => Some(parked),
            _ => None,
        }
    }

    /// Keeps a node that a pause holds back.
    pub fn postpone(&mut self, node: Box<Node<Job>>, nth: u64) {
        self.enter(StateChange::PauseBegan, Self::Postponed { node, nth });
    }

    /// Keeps a node for a time.
    pub fn rest(&mut self, node: Box<Node<Job>>) {
        self.enter(StateChange::RestBegan, Self::Resting(node));
    }

    /// Keeps a node that waits for copies of its writes.
    pub fn await_sync(&mut self, node: Box<Node<Job>>) {
        self.enter(StateChange::SyncAwaited, Self::AwaitsSync(node));
    }

    /// Keeps a node whose replies wait for notifications.
    pub fn hold_reply(&mut self, node: Box<Node<Job>>) {
        self.enter(StateChange::NotificationsPrecede, Self::ReplyAwaitsNotifications(node));
    }

    /// Takes the node whose replies have waited for notifications. Returns `None` in any other state.
    pub fn release_reply(&mut self) -> Option<Box<Node<Job>>> {
        let Self::ReplyAwaitsNotifications(_) = self else { return None };
        Some(self.enter(StateChange::NotificationsRead, Self::Away).into_node())
    }

    /// Enters a state with the same node.
    fn change_in_place(&mut self, change: StateChange, next: fn(Box<Node<Job>>) -> Self) {
        let node = std::mem::replace(self, Self::Away);
        let (name, node) = (node.name(), node.into_node());
        #[cfg(test)]
        taken::note(name, change);
        *self = next(node);
        debug_assert_eq!(name.after(change), Some(self.name()), "{name:?}, {change:?}");
    }

    fn into_node(self) -> Box<Node<Job>> {
        match self {
            Self::Handshake { node, .. }
            | Self::Ready(node)
            | Self::InputAwaitsNotifications(node)
            | Self::InputAwaitsRoom(node)
            | Self::Postponed { node, .. }
            | Self::Resting(node)
            | Self::AwaitsSync(node)
            | Self::ReplyAwaitsNotifications(node) => node,
            Self::Away | Self::AwaitsKeys(_) => unreachable!("the node is elsewhere in this state"),
        }
    }
}

#[cfg(test)]
pub mod taken;
#[cfg(test)]
mod tests;
