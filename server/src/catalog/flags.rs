//! Properties of commands.

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $wire:expr;)*) => {
        /// Properties of a command, a set.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Flags(u64);

        impl Flags {
            $($(#[$doc])* pub const $name: Flags = Flags(1 << $bit);)*

            /// Each flag with the word that `COMMAND INFO` has for it, if it has one.
            pub const NAMES: &[(Flags, Option<&'static str>)] = &[$((Flags::$name, $wire)),*];
        }
    };
}

flags! {
    /// May change keys.
    WRITE = 0, Some("write");
    /// Only reads keys.
    READONLY = 1, Some("readonly");
    /// Refused when memory is short.
    DENYOOM = 2, Some("denyoom");
    /// Administrative.
    ADMIN = 3, Some("admin");
    /// Publishes or subscribes.
    PUBSUB = 22, Some("pubsub");
    /// Not for scripts.
    NOSCRIPT = 4, Some("noscript");
    /// Allowed while a data set is being loaded.
    LOADING = 5, Some("loading");
    /// Allowed on a replica with stale data.
    STALE = 6, Some("stale");
    /// Constant or logarithmic time.
    FAST = 7, Some("fast");
    /// Allowed before authentication.
    NO_AUTH = 8, Some("no_auth");
    /// Not allowed between MULTI and EXEC.
    NO_MULTI = 9, Some("no_multi");
    /// Its keys cannot be found by position alone.
    MOVABLE_KEYS = 10, Some("movablekeys");
    /// Not shown by MONITOR.
    SKIP_MONITOR = 11, Some("skip_monitor");
    /// Not in the slow log.
    SKIP_SLOWLOG = 12, Some("skip_slowlog");
    /// Allowed while a script runs for too long.
    ALLOW_BUSY = 13, Some("allow_busy");
    /// Runs at once inside MULTI instead of being queued.
    IMMEDIATE = 14, None;
    /// Changes how what follows on the connection is read or run, so nothing is parsed ahead of it.
    PARSE_STOP = 15, None;
    /// In the `dangerous` category.
    DANGEROUS = 16, None;
    /// Tells of the whole keyspace: between MULTI and EXEC it needs all shards held.
    WHOLE_KEYSPACE = 17, None;
    /// Deprecated.
    DEPRECATED = 18, None;
    /// In the `blocking` category, may wait.
    BLOCKING = 19, Some("blocking");
    /// Not allowed while a data set is being loaded in the background.
    NO_ASYNC_LOADING = 20, Some("no_async_loading");
    /// Reads, and may change how a value is stored: CLIENT PAUSE holds it back together with writes.
    MAY_REPLICATE = 21, None;
    /// Allowed on a connection that is subscribed to something and cannot tell messages from replies.
    WHILE_SUBSCRIBED = 23, None;
    /// Ends subscriptions of the client: those to the channels that it names, or all.
    LEAVES = 24, None;
    /// It may be called without any of the keys that it can name.
    NO_MANDATORY_KEYS = 25, Some("no_mandatory_keys");
    /// Touches keys in another database than the selected one, or selects another.
    OTHER_DATABASES = 26, None;
    /// Writes files, or waits for another command of its kind: within EXEC, which holds shards, no thread
    /// with sockets runs it.
    USES_FILES = 30, None;
    /// MONITOR and the slow log show its name only: every other word may be a secret.
    SECRET = 27, None;
    /// They hide the two words after each `AUTH` among its words: a user and a password.
    SECRET_AFTER_AUTH = 28, None;
    /// They hide the word after the name of a directive that is a secret.
    SECRET_DIRECTIVES = 31, None;
    /// What CLIENT CACHING has said holds beyond it. A container's flag is for all its subcommands.
    KEEPS_CACHING = 29, None;
    /// Only for those whom `enable-debug-command` lets use DEBUG.
    DEBUGGING = 32, None;
    /// Only for those whom `enable-module-command` lets load modules.
    LOADS_MODULES = 33, None;
    /// Adds up what all tables count: no thread with sockets runs it where there are [very
    /// many](braid_storage::Keyspace::has_many_tables).
    ADDS_UP_TABLES = 34, None;
    /// No pause holds it back: it ends them.
    ENDS_PAUSES = 35, None;
}

impl Flags {
    /// No properties.
    pub const NONE: Flags = Flags(0);

    /// Those of which each has a directive that says for whom it is.
    pub const PROTECTED: Flags = Flags::DEBUGGING.and(Flags::LOADS_MODULES);

    /// Both.
    pub const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Those that are not in `other`.
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// Whether all of `other` are in `self`.
    #[inline(always)]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is in `self`.
    #[inline(always)]
    pub const fn has_any(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }
}
