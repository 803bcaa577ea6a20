//! Properties of commands.

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $wire:expr;)*) => {
        /// A set of properties of a command.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Flags(u64);

        impl Flags {
            $($(#[$doc])* pub const $name: Flags = Flags(1 << $bit);)*

            /// Each flag with its word in `COMMAND INFO`, if it has one.
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
    /// Not allowed in scripts.
    NOSCRIPT = 4, Some("noscript");
    /// Allowed while a data set is loaded.
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
    /// Omitted by MONITOR.
    SKIP_MONITOR = 11, Some("skip_monitor");
    /// Omitted from the slow log.
    SKIP_SLOWLOG = 12, Some("skip_slowlog");
    /// Allowed while a script runs for too long.
    ALLOW_BUSY = 13, Some("allow_busy");
    /// Runs at once inside MULTI instead of being queued.
    IMMEDIATE = 14, None;
    /// Changes how later input is parsed or run, so nothing is parsed ahead.
    PARSE_STOP = 15, None;
    /// In the `dangerous` category.
    DANGEROUS = 16, None;
    /// Uses the whole keyspace. Between MULTI and EXEC it needs all shards held.
    WHOLE_KEYSPACE = 17, None;
    /// Deprecated.
    DEPRECATED = 18, None;
    /// In the `blocking` category; may wait for keys.
    BLOCKING = 19, Some("blocking");
    /// Not allowed while a data set is loaded in the background.
    NO_ASYNC_LOADING = 20, Some("no_async_loading");
    /// Reads, and may change how a value is stored. CLIENT PAUSE postpones it together with writes.
    MAY_REPLICATE = 21, None;
    /// Allowed on a subscribed connection that cannot tell messages from replies.
    WHILE_SUBSCRIBED = 23, None;
    /// Ends subscriptions of the client: those to the named channels, or all.
    LEAVES = 24, None;
    /// May be called without any of its possible keys.
    NO_MANDATORY_KEYS = 25, Some("no_mandatory_keys");
    /// Touches keys in another database than the selected one, or selects another.
    OTHER_DATABASES = 26, None;
    /// Writes files, or waits for another command of its kind.
    ///
    /// An EXEC with such a command holds shards meanwhile, so no I/O thread runs it.
    USES_FILES = 30, None;
    /// A secret: MONITOR and the slow log show only the name.
    SECRET = 27, None;
    /// MONITOR and the slow log hide the user and password after each `AUTH`.
    SECRET_AFTER_AUTH = 28, None;
    /// MONITOR and the slow log hide the word after the name of a secret directive.
    SECRET_DIRECTIVES = 31, None;
    /// The effect of CLIENT CACHING outlasts it. A container's flag applies to all its subcommands.
    KEEPS_CACHING = 29, None;
    /// Only for clients that `enable-debug-command` allows to use DEBUG.
    DEBUGGING = 32, None;
    /// Only for clients that `enable-module-command` allows to load modules.
    LOADS_MODULES = 33, None;
    /// Sums the counters of all tables. No I/O thread runs it if there are [very
    /// many](braid_storage::keyspace::Keyspace::has_many_tables) tables.
    ADDS_UP_TABLES = 34, None;
    /// Never postponed by a pause, because it ends pauses.
    ENDS_PAUSES = 35, None;
    /// Makes its connection the link of a replica.
    MAKES_LINK = 36, None;
}

impl Flags {
    /// No properties.
    pub const NONE: Flags = Flags(0);

    /// The flags of commands whose clients a directive restricts.
    pub const PROTECTED: Flags = Flags::DEBUGGING.and(Flags::LOADS_MODULES);

    /// Returns both sets together.
    pub const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Returns the flags that are not in `other`.
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
