//! The settings that Braid acts on, in the types that its parts use.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Declares an enum whose variants are the words of a directive.
macro_rules! words {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// The words, in the order in which errors list them.
            pub const WORDS: &'static [&'static str] = &[$($word,)*];

            /// Finds the variant of one of [`Self::WORDS`].
            pub(super) fn named(word: &str) -> Self {
                match word {
                    $($word => Self::$variant,)*
                    other => unreachable!("{other} is not among the words that its row declares"),
                }
            }
        }
    };
}

words! {
    /// How much the log says.
    pub enum LogLevel {
        /// Everything.
        Debug = "debug",
        /// Much that is rarely useful.
        Verbose = "verbose",
        /// What one wants to see in production.
        #[default]
        Notice = "notice",
        /// Only what is important.
        Warning = "warning",
    }
}

words! {
    /// Who may use a dangerous feature.
    pub enum Access {
        /// Nobody.
        #[default]
        No = "no",
        /// Everybody.
        Yes = "yes",
        /// Connections over the loopback interface or a Unix socket.
        Local = "local",
    }
}

words! {
    /// What is removed when memory is full.
    pub enum MaxmemoryPolicy {
        /// The least recently used of the keys with an expiry.
        VolatileLru = "volatile-lru",
        /// The least frequently used of the keys with an expiry.
        VolatileLfu = "volatile-lfu",
        /// Any of the keys with an expiry.
        VolatileRandom = "volatile-random",
        /// Of the keys with an expiry, the one that expires first.
        VolatileTtl = "volatile-ttl",
        /// The least recently used key.
        AllkeysLru = "allkeys-lru",
        /// The least frequently used key.
        AllkeysLfu = "allkeys-lfu",
        /// Any key.
        AllkeysRandom = "allkeys-random",
        /// Nothing: writes are refused.
        #[default]
        Noeviction = "noeviction",
    }
}

words! {
    /// Which supervisor started the server.
    pub enum Supervised {
        /// Upstart, which waits for a stop signal.
        Upstart = "upstart",
        /// systemd, which waits for a notification.
        Systemd = "systemd",
        /// Whichever the environment shows.
        Auto = "auto",
        /// None.
        #[default]
        No = "no",
    }
}

words! {
    /// Which channels a user may use before a rule says so.
    pub enum AclPubsubDefault {
        /// All.
        Allchannels = "allchannels",
        /// None.
        #[default]
        Resetchannels = "resetchannels",
    }
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindAddress {
    /// What to listen on.
    pub host: BindHost,
    /// Whether the server starts even if this address does not exist on the machine (`-` before it).
    pub optional: bool,
}

/// What to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindHost {
    /// All IPv4 interfaces (`*`).
    AnyV4,
    /// All IPv6 interfaces, and these only (`::*`).
    AnyV6,
    /// An address or a host name. It is an IPv6 address exactly if it has a colon.
    Named(String),
}

/// As it is written in the file.
impl fmt::Display for BindAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match &self.host {
            BindHost::AnyV4 => "*",
            BindHost::AnyV6 => "::*",
            BindHost::Named(name) => name,
        };
        write!(out, "{}{host}", if self.optional { "-" } else { "" })
    }
}

impl BindAddress {
    pub(super) fn parse(word: &[u8]) -> Self {
        let (word, optional) = match word.strip_prefix(b"-") {
            Some(rest) => (rest, true),
            None => (word, false),
        };
        let host = match word {
            b"*" => BindHost::AnyV4,
            b"::*" => BindHost::AnyV6,
            name => BindHost::Named(String::from_utf8_lossy(name).into_owned()),
        };
        BindAddress { host, optional }
    }
}

/// A snapshot is due after `seconds` if there were `changes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavePoint {
    /// Seconds since the last snapshot, at least 1.
    pub seconds: u64,
    /// Changes since the last snapshot.
    pub changes: u64,
}

impl fmt::Display for SavePoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.seconds, self.changes)
    }
}

/// When a client that does not read its replies is disconnected. 0 bytes: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimit {
    /// Disconnected at once above so many bytes.
    pub hard_bytes: u64,
    /// Disconnected above so many bytes …
    pub soft_bytes: u64,
    /// … for so long without a break.
    pub soft_time: Duration,
}

impl OutputLimit {
    /// The most bytes that may wait, whatever the number zero stands for.
    pub fn hard(&self) -> u64 {
        if self.hard_bytes == 0 { u64::MAX } else { self.hard_bytes }
    }
}

/// Output limits by class of client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimits {
    /// All that are neither replicas nor subscribers, MONITOR included.
    pub normal: OutputLimit,
    /// Replicas.
    pub replica: OutputLimit,
    /// Clients with at least one subscription.
    pub pubsub: OutputLimit,
}

impl OutputLimits {
    /// The limit of the class of this (lowercase) name.
    pub(super) fn of_class(&mut self, name: &[u8]) -> Option<&mut OutputLimit> {
        match name {
            b"normal" => Some(&mut self.normal),
            b"replica" | b"slave" => Some(&mut self.replica),
            b"pubsub" => Some(&mut self.pubsub),
            _ => None,
        }
    }
}

/// As `CONFIG GET` prints them: with the old name of replicas, which clients parse.
impl fmt::Display for OutputLimits {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let classes = [("normal", self.normal), (" slave", self.replica), (" pubsub", self.pubsub)];
        for (name, limit) in classes {
            write!(out, "{name} {} {} {}", limit.hard_bytes, limit.soft_bytes, limit.soft_time.as_secs())?;
        }
        Ok(())
    }
}

/// Classes of keyspace events to publish: a set of the bits below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceEvents(u16);

impl KeyspaceEvents {
    /// `K`: publish on `__keyspace@…__` channels.
    pub const KEYSPACE: KeyspaceEvents = KeyspaceEvents(1);
    /// `E`: publish on `__keyevent@…__` channels.
    pub const KEYEVENT: KeyspaceEvents = KeyspaceEvents(1 << 1);
    /// `g`: commands for all types, such as DEL.
    pub const GENERIC: KeyspaceEvents = KeyspaceEvents(1 << 2);
    /// `$`: strings.
    pub const STRING: KeyspaceEvents = KeyspaceEvents(1 << 3);
    /// `l`: lists.
    pub const LIST: KeyspaceEvents = KeyspaceEvents(1 << 4);
    /// `s`: sets.
    pub const SET: KeyspaceEvents = KeyspaceEvents(1 << 5);
    /// `h`: hashes.
    pub const HASH: KeyspaceEvents = KeyspaceEvents(1 << 6);
    /// `z`: sorted sets.
    pub const ZSET: KeyspaceEvents = KeyspaceEvents(1 << 7);
    /// `x`: expired keys.
    pub const EXPIRED: KeyspaceEvents = KeyspaceEvents(1 << 8);
    /// `e`: evicted keys.
    pub const EVICTED: KeyspaceEvents = KeyspaceEvents(1 << 9);
    /// `t`: streams.
    pub const STREAM: KeyspaceEvents = KeyspaceEvents(1 << 10);
    /// `m`: keys asked for and not found; not part of `A`.
    pub const KEY_MISS: KeyspaceEvents = KeyspaceEvents(1 << 11);
    /// `d`: types of modules.
    pub const MODULE: KeyspaceEvents = KeyspaceEvents(1 << 12);
    /// `n`: keys that are new; not part of `A`.
    pub const NEW: KeyspaceEvents = KeyspaceEvents(1 << 13);

    /// What `A` stands for: the letters `g$lshzxetd`.
    const ALL: u16 = 0b1_0111_1111_1100;
    /// Classes by letter, in the order in which they are printed.
    const LETTERS: [(char, KeyspaceEvents); 14] = [
        ('g', Self::GENERIC),
        ('$', Self::STRING),
        ('l', Self::LIST),
        ('s', Self::SET),
        ('h', Self::HASH),
        ('z', Self::ZSET),
        ('x', Self::EXPIRED),
        ('e', Self::EVICTED),
        ('t', Self::STREAM),
        ('d', Self::MODULE),
        ('n', Self::NEW),
        ('K', Self::KEYSPACE),
        ('E', Self::KEYEVENT),
        ('m', Self::KEY_MISS),
    ];

    /// Reads letters. `None` at a letter that is no class.
    pub(super) fn parse(letters: &[u8]) -> Option<Self> {
        let mut events = 0;
        for &letter in letters {
            events |= match letter {
                b'A' => Self::ALL,
                _ => Self::LETTERS.iter().find(|(known, _)| *known == char::from(letter))?.1.0,
            };
        }
        Some(KeyspaceEvents(events))
    }

    /// Whether every class of `classes` is published.
    pub fn contains(self, classes: KeyspaceEvents) -> bool {
        self.0 & classes.0 == classes.0
    }

    /// Whether nothing is published.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for KeyspaceEvents {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0 & Self::ALL == Self::ALL;
        if all {
            out.write_str("A")?;
        }
        for (letter, class) in Self::LETTERS {
            // Redis prints `n` only where it spells the classes out, so a reading of `AKEn` is not exact there; here
            // `n` is printed after `A` too, so that CONFIG REWRITE keeps it.
            let in_all = class.0 & Self::ALL != 0;
            if self.contains(class) && !(all && in_all) {
                write!(out, "{letter}")?;
            }
        }
        Ok(())
    }
}

/// What a signal asks of SHUTDOWN. With neither `save` nor `nosave`, saves exactly if save points are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShutdownOptions {
    /// Save even without save points.
    pub save: bool,
    /// Do not save.
    pub nosave: bool,
    /// Do not wait for replicas.
    pub now: bool,
    /// Go on after errors.
    pub force: bool,
}

impl ShutdownOptions {
    /// The words, in the order in which errors list them.
    pub const WORDS: &'static [&'static str] = &["default", "save", "nosave", "now", "force"];

    pub(super) fn named(words: &[&str]) -> Self {
        let has = |word| words.contains(&word);
        ShutdownOptions { save: has("save"), nosave: has("nosave"), now: has("now"), force: has("force") }
    }
}

/// A `user` line: the user's name, then its rules, to be read by access control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserLine {
    /// The user's name.
    pub name: Vec<u8>,
    /// The rules in the order given.
    pub rules: Vec<Vec<u8>>,
}

/// A `rename-command` line. Whether the command exists and the new name is free is checked where commands are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenamedCommand {
    /// The command's name.
    pub from: Vec<u8>,
    /// The name that replaces it; `None` takes the command away.
    pub to: Option<Vec<u8>>,
}

/// Every setting that Braid acts on. Read-only outside this module: [`super::Config`] keeps it equal to the values that
/// `CONFIG GET` shows. A field has its directive's name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    // Listening.
    /// TCP port; 0 listens on no TCP port.
    pub port: u16,
    /// Addresses for TCP; none listens on no TCP port.
    pub bind: Vec<BindAddress>,
    /// Path of the Unix socket.
    pub unixsocket: Option<PathBuf>,
    /// File mode of the Unix socket; `None` leaves what the process's mask gives.
    pub unixsocketperm: Option<u32>,
    /// Length of the queue of connections that wait to be accepted.
    pub tcp_backlog: u32,
    /// Refuse connections from other machines while there is no password.
    pub protected_mode: bool,

    // Clients.
    /// Password of the default user.
    pub requirepass: Option<Vec<u8>>,
    /// Users declared in the configuration.
    pub users: Vec<UserLine>,
    /// File with users.
    pub aclfile: Option<PathBuf>,
    /// Channels of users without a rule about channels.
    pub acl_pubsub_default: AclPubsubDefault,
    /// Entries that ACL LOG keeps.
    pub acllog_max_len: usize,
    /// Commands that have another name, or none.
    pub renamed_commands: Vec<RenamedCommand>,
    /// Connections at a time.
    pub maxclients: u32,
    /// Idle clients are disconnected after this time.
    pub timeout: Option<Duration>,
    /// Period of TCP keepalive probes.
    pub tcp_keepalive: Option<Duration>,
    /// Bytes of the longest argument.
    pub proto_max_bulk_len: usize,
    /// Bytes of unparsed input that a client may have.
    pub client_query_buffer_limit: usize,
    /// Bytes of replies that a client may leave unread.
    pub client_output_buffer_limit: OutputLimits,
    /// Keys that client-side caching remembers; `None` sets no limit.
    pub tracking_table_max_keys: Option<usize>,

    // Threads and data.
    /// Threads that serve sockets and run commands.
    pub io_threads: usize,
    /// Whether all of them serve connections, however little there is to do.
    pub io_threads_always_active: bool,
    /// Shards: a power of two.
    pub shards: usize,
    /// Whether keys with the same `{tag}` meet in one shard.
    pub hash_tags: bool,
    /// Databases that SELECT can reach.
    pub databases: usize,
    /// Background rounds per second, 1 to 500.
    pub hz: u32,
    /// Memory for data, in bytes.
    pub maxmemory: Option<u64>,
    /// What is removed when it is full.
    pub maxmemory_policy: MaxmemoryPolicy,
    /// Keys looked at for each removal.
    pub maxmemory_samples: usize,
    /// How slowly the frequency counter grows.
    pub lfu_log_factor: u32,
    /// Minutes after which the frequency counter decays by one; 0: never.
    pub lfu_decay_time: u32,
    /// Effort to remove expired keys early, 1 to 10.
    pub active_expire_effort: u32,
    /// Classes of events that are published.
    pub notify_keyspace_events: KeyspaceEvents,

    // Encodings.
    /// Fields of the largest packed hash.
    pub hash_max_listpack_entries: usize,
    /// Bytes of the longest field or value in a packed hash.
    pub hash_max_listpack_value: usize,
    /// Size of a list's node: entries if positive, else a size class (-1: 4 KiB … -5: 64 KiB).
    pub list_max_listpack_size: i32,
    /// Nodes at each end of a list that stay uncompressed; 0: all.
    pub list_compress_depth: u32,
    /// Members of the largest set of integers.
    pub set_max_intset_entries: usize,
    /// Members of the largest packed set.
    pub set_max_listpack_entries: usize,
    /// Bytes of the longest member of a packed set.
    pub set_max_listpack_value: usize,
    /// Members of the largest packed sorted set.
    pub zset_max_listpack_entries: usize,
    /// Bytes of the longest member of a packed sorted set.
    pub zset_max_listpack_value: usize,
    /// Bytes of a stream's node.
    pub stream_node_max_bytes: usize,
    /// Entries of a stream's node.
    pub stream_node_max_entries: usize,
    /// Bytes of the largest sparse HyperLogLog.
    pub hll_sparse_max_bytes: usize,

    // What can be observed.
    /// How much the log says.
    pub loglevel: LogLevel,
    /// Where the log goes; `None` is the standard output.
    pub logfile: Option<PathBuf>,
    /// Leave what clients sent out of the log.
    pub hide_user_data_from_log: bool,
    /// Show the logo at start even if the log is not a terminal.
    pub always_show_logo: bool,
    /// Commands that took longer are kept in the slow log; `None` turns it off.
    pub slowlog_log_slower_than: Option<Duration>,
    /// Entries that the slow log keeps.
    pub slowlog_max_len: usize,
    /// Whether latencies of commands are collected.
    pub latency_tracking: bool,
    /// Percentiles that INFO reports.
    pub latency_tracking_info_percentiles: Vec<f64>,
    /// Events that took at least this long are kept by LATENCY; `None` turns it off.
    pub latency_monitor_threshold: Option<Duration>,
    /// Scripts and functions that run longer can be killed, and others are told BUSY; `None`: never.
    pub busy_reply_threshold: Option<Duration>,

    // The process.
    /// Working directory: absolute, and it exists. Relative paths in other settings start here.
    pub dir: PathBuf,
    /// File to write the process's id to.
    pub pidfile: Option<PathBuf>,
    /// Supervisor to report to.
    pub supervised: Supervised,
    /// Whether the process's title shows the address.
    pub set_proc_title: bool,
    /// What it shows.
    pub proc_title_template: Vec<u8>,
    /// How long SHUTDOWN waits for replicas.
    pub shutdown_timeout: Duration,
    /// What SIGINT asks for.
    pub shutdown_on_sigint: ShutdownOptions,
    /// What SIGTERM asks for.
    pub shutdown_on_sigterm: ShutdownOptions,
    /// Who may use DEBUG.
    pub enable_debug_command: Access,
    /// Who may change protected settings.
    pub enable_protected_configs: Access,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_prefix_and_two_wildcards() {
        let parse = |word: &str| BindAddress::parse(word.as_bytes());
        assert_eq!(parse("*"), BindAddress { host: BindHost::AnyV4, optional: false });
        for word in ["*", "-::*", "127.0.0.1", "-::1"] {
            assert_eq!(parse(word).to_string(), word);
        }
        assert_eq!(parse("-::*"), BindAddress { host: BindHost::AnyV6, optional: true });
        assert_eq!(parse("-::1"), BindAddress { host: BindHost::Named("::1".into()), optional: true });
    }

    #[test]
    fn events_print_as_redis_prints_them() {
        let cases = [("", ""), ("KEA", "AKE"), ("g$lshzxetd", "A"), ("AKEm", "AKEm"), ("mKnEtx$", "$xtnKEm")];
        for (letters, printed) in cases {
            assert_eq!(KeyspaceEvents::parse(letters.as_bytes()).unwrap().to_string(), printed);
        }
        assert_eq!(KeyspaceEvents::parse(b"Kg A"), None);
        assert_eq!(KeyspaceEvents::parse(b"A\xe9"), None);
    }

    #[test]
    fn a_means_its_letters() {
        assert_eq!(KeyspaceEvents::parse(b"g$lshzxetd"), Some(KeyspaceEvents(KeyspaceEvents::ALL)));
    }
}
