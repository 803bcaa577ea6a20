//! The types of the settings that Braid acts on.

use std::fmt;
use std::time::Duration;

/// The place of a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrimaryAddress {
    /// Its host name or address, as it was given.
    pub host: Vec<u8>,
    /// Its port.
    pub port: u16,
}

impl fmt::Display for PrimaryAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", String::from_utf8_lossy(&self.host), self.port)
    }
}

/// An enum of the words that a directive takes.
pub(super) trait Word {
    /// Finds the variant of a word that the directive's row declares.
    fn named(word: &str) -> Self;
}

/// Declares an enum whose variants are the words of a directive.
macro_rules! words {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// The words, in the order in which errors list them.
            pub const WORDS: &'static [&'static str] = &[$($word,)*];
        }

        impl Word for $name {
            fn named(word: &str) -> Self {
                match word {
                    $($word => Self::$variant,)*
                    other => unreachable!("{other} is not among the words that its row declares"),
                }
            }
        }
    };
}

words! {
    /// The least severe level that the server log contains.
    pub enum LogLevel {
        /// Everything, including messages for debugging.
        Debug = "debug",
        /// Much that is rarely useful.
        Verbose = "verbose",
        /// The level for production.
        #[default]
        Notice = "notice",
        /// Important messages only.
        Warning = "warning",
        /// No messages.
        Nothing = "nothing",
    }
}

words! {
    /// The consequence of an error reply to a command of the primary, or of the append-only file.
    pub enum PropagationErrors {
        /// It is counted and logged.
        #[default]
        Ignore = "ignore",
        /// The server ends: the data may differ from that of the other side.
        Panic = "panic",
        /// A replica that refuses clients' writes ends. For the file it is as `ignore`.
        PanicOnReplicas = "panic-on-replicas",
    }
}

words! {
    /// How a replica loads the copy of its primary's data.
    pub enum DisklessLoad {
        /// It receives the copy to a file, and then replaces its data from there.
        #[default]
        Disabled = "disabled",
        /// It loads from the socket if it has no data, and otherwise from a file.
        OnEmptyDb = "on-empty-db",
        /// It keeps and serves its data until the new data is complete.
        SwapDb = "swapdb",
        /// It removes its data first, and loads from the socket.
        FlushBeforeLoad = "flush-before-load",
    }
}

words! {
    /// The form of the server log's lines.
    pub enum LogFormat {
        /// The form of Redis.
        #[default]
        Legacy = "legacy",
        /// Fields as `name=value`.
        Logfmt = "logfmt",
        /// An object of JSON.
        Json = "json",
    }
}

words! {
    /// The form of the times in the server log.
    pub enum LogTimestampFormat {
        /// The form of Redis.
        #[default]
        Legacy = "legacy",
        /// The form of ISO 8601.
        Iso8601 = "iso8601",
        /// Milliseconds since 1970.
        Milliseconds = "milliseconds",
    }
}

words! {
    /// The clients that may use a dangerous feature.
    pub enum Access {
        /// No client.
        #[default]
        No = "no",
        /// Every client.
        Yes = "yes",
        /// Clients on the loopback interface or a Unix socket.
        Local = "local",
    }
}

words! {
    /// The choice of the keys that are evicted when memory is full.
    pub enum MaxmemoryPolicy {
        /// The least recently used of the keys with an expiry.
        VolatileLru = "volatile-lru",
        /// The least frequently used of the keys with an expiry.
        VolatileLfu = "volatile-lfu",
        /// A random key with an expiry.
        VolatileRandom = "volatile-random",
        /// The key that expires first.
        VolatileTtl = "volatile-ttl",
        /// The least recently used key.
        AllkeysLru = "allkeys-lru",
        /// The least frequently used key.
        AllkeysLfu = "allkeys-lfu",
        /// A random key.
        AllkeysRandom = "allkeys-random",
        /// No key: writes are refused.
        #[default]
        Noeviction = "noeviction",
        /// The least recently changed of the keys with an expiry.
        VolatileLrm = "volatile-lrm",
        /// The least recently changed key.
        AllkeysLrm = "allkeys-lrm",
    }
}

impl MaxmemoryPolicy {
    /// Whether the choice depends on how recently or how often keys were used.
    pub fn is_by_use(self) -> bool {
        use MaxmemoryPolicy::{AllkeysLfu, AllkeysLrm, AllkeysLru, VolatileLfu, VolatileLrm, VolatileLru};
        matches!(self, VolatileLru | VolatileLfu | VolatileLrm | AllkeysLru | AllkeysLfu | AllkeysLrm)
    }
}

/// An amount of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Amount {
    /// Not set: there is no limit.
    #[default]
    Unsaid,
    /// A number of bytes.
    Bytes(u64),
    /// A share of `maxmemory`, in percent.
    OfMaxmemory(u64),
}

words! {
    /// The supervisor that started the server.
    pub enum Supervised {
        /// Upstart, which waits for a stop signal.
        Upstart = "upstart",
        /// systemd, which waits for a notification.
        Systemd = "systemd",
        /// The supervisor that the environment shows, if any.
        Auto = "auto",
        /// No supervisor.
        #[default]
        No = "no",
    }
}

words! {
    /// The program whose format snapshots and payloads have.
    pub enum RdbWriteFormat {
        /// Redis 7.0, or 7.4 if fields of hashes have deadlines.
        #[default]
        Auto = "auto",
        /// Redis 7.0. Deadlines of fields are refused.
        Redis70 = "redis-7.0",
        /// Redis 7.4.
        Redis74 = "redis-7.4",
        /// Valkey 9.
        Valkey9 = "valkey-9",
    }
}

words! {
    /// The time at which the AOF is synced.
    pub enum AppendFsync {
        /// Once a second.
        #[default]
        Everysec = "everysec",
        /// Before the reply to a write is sent.
        Always = "always",
        /// Whenever the operating system chooses.
        No = "no",
    }
}

words! {
    /// The channels of a user without a rule about channels.
    pub enum AclPubsubDefault {
        /// All channels.
        Allchannels = "allchannels",
        /// No channels.
        #[default]
        Resetchannels = "resetchannels",
    }
}

words! {
    /// Whether clients must show a certificate (TLS).
    pub enum AuthClients {
        /// Clients are not asked for a certificate.
        No = "no",
        /// A client without a valid certificate is refused.
        #[default]
        Yes = "yes",
        /// A certificate is optional, but must be valid if there is one.
        Optional = "optional",
    }
}

words! {
    /// The part of a client's certificate that names its user (TLS).
    pub enum AuthClientsUser {
        /// No part: clients are not logged in by certificate.
        #[default]
        Off = "off",
        /// The subject's common name.
        Cn = "CN",
        /// The URIs among the alternative names.
        Uri = "URI",
    }
}

words! {
    /// How the process's score for the out-of-memory killer is adjusted.
    pub enum OomScoreAdj {
        /// Not at all.
        #[default]
        No = "no",
        /// Relative to the score at the start.
        Yes = "yes",
        /// The same as `yes`, which replaces it.
        Relative = "relative",
        /// To the configured score.
        Absolute = "absolute",
    }
}

words! {
    /// The server that Braid says it is.
    pub enum AnnounceAs {
        /// Redis 7.4.
        #[default]
        Redis74 = "redis-7.4",
        /// Redis 8.2.
        Redis82 = "redis-8.2",
        /// Valkey 9.1.
        Valkey91 = "valkey-9.1",
    }
}

words! {
    /// The facility of the server's lines in syslog.
    pub enum SyslogFacility {
        /// Programs of users.
        User = "user",
        /// The first of eight facilities for local use.
        #[default]
        Local0 = "local0",
        /// The second facility for local use.
        Local1 = "local1",
        /// The third facility for local use.
        Local2 = "local2",
        /// The fourth facility for local use.
        Local3 = "local3",
        /// The fifth facility for local use.
        Local4 = "local4",
        /// The sixth facility for local use.
        Local5 = "local5",
        /// The seventh facility for local use.
        Local6 = "local6",
        /// The eighth facility for local use.
        Local7 = "local7",
    }
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindAddress {
    /// The host part of the address.
    pub host: BindHost,
    /// Whether the server starts even without this address (`-` before it).
    pub optional: bool,
}

/// The host part of an address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindHost {
    /// All IPv4 interfaces (`*`).
    AnyV4,
    /// All IPv6 interfaces, and these only (`::*`).
    AnyV6,
    /// An address or a host name. It is an IPv6 address exactly if it has a colon.
    Named(String),
}

/// Prints the address as the configuration file writes it.
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

/// A condition for a snapshot: at least `changes` within `seconds`.
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

/// Limits on unread replies, above which a client is disconnected.
///
/// 0 bytes set no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimit {
    /// Bytes above which a client is disconnected at once.
    pub hard_bytes: u64,
    /// Bytes above which a client is disconnected after `soft_time`.
    pub soft_bytes: u64,
    /// Time for which the output must stay above `soft_bytes` without a break.
    pub soft_time: Duration,
}

impl OutputLimit {
    /// Returns the hard limit in bytes, or `u64::MAX` if there is none.
    pub fn hard(&self) -> u64 {
        if self.hard_bytes == 0 { u64::MAX } else { self.hard_bytes }
    }
}

/// Output limits by class of client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimits {
    /// Clients that are neither replicas nor subscribers, monitoring clients included.
    pub normal: OutputLimit,
    /// Replicas.
    pub replica: OutputLimit,
    /// Clients with at least one subscription.
    pub pubsub: OutputLimit,
}

impl OutputLimits {
    /// Returns the limit of the class with this lowercase name.
    pub(super) fn of_class(&mut self, name: &[u8]) -> Option<&mut OutputLimit> {
        match name {
            b"normal" => Some(&mut self.normal),
            b"replica" | b"slave" => Some(&mut self.replica),
            b"pubsub" => Some(&mut self.pubsub),
            _ => None,
        }
    }
}

/// Prints limits as `CONFIG GET` does: with the old name of replicas, which clients parse.
impl fmt::Display for OutputLimits {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let classes = [("normal", self.normal), (" slave", self.replica), (" pubsub", self.pubsub)];
        for (name, limit) in classes {
            write!(out, "{name} {} {} {}", limit.hard_bytes, limit.soft_bytes, limit.soft_time.as_secs())?;
        }
        Ok(())
    }
}

/// Classes of keyspace events to publish, as a set of bits.
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
    /// `m`: reads of missing keys; not part of `A`.
    pub const KEY_MISS: KeyspaceEvents = KeyspaceEvents(1 << 11);
    /// `d`: types of modules.
    pub const MODULE: KeyspaceEvents = KeyspaceEvents(1 << 12);
    /// `n`: new keys; not part of `A`.
    pub const NEW: KeyspaceEvents = KeyspaceEvents(1 << 13);
    /// `o`: values that replace others; not part of `A`.
    pub const OVERWRITTEN: KeyspaceEvents = KeyspaceEvents(1 << 14);
    /// `c`: values of another type than those that they replace; not part of `A`.
    pub const TYPE_CHANGED: KeyspaceEvents = KeyspaceEvents(1 << 15);

    /// The classes that `A` stands for: the letters `g$lshzxetd`.
    const ALL: u16 = 0b1_0111_1111_1100;
    /// Classes by letter, in the order in which they are printed.
    const LETTERS: [(char, KeyspaceEvents); 16] = [
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
        ('o', Self::OVERWRITTEN),
        ('c', Self::TYPE_CHANGED),
        ('K', Self::KEYSPACE),
        ('E', Self::KEYEVENT),
        ('m', Self::KEY_MISS),
    ];

    /// Reads letters. Returns `None` at a letter that is no class.
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

    /// Returns these classes without `classes`.
    pub fn without(self, classes: KeyspaceEvents) -> KeyspaceEvents {
        KeyspaceEvents(self.0 & !classes.0)
    }

    /// Returns the set as a word that can be stored atomically.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// Returns the set that [`KeyspaceEvents::bits`] made into a word.
    pub fn of_bits(bits: u16) -> KeyspaceEvents {
        KeyspaceEvents(bits)
    }

    /// Whether no class is published.
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
            // Redis prints `n` only where it prints the classes one by one, so its `AKE` can hide an `n`.
            // This code prints `n` after `A` too, so that CONFIG REWRITE keeps it.
            let in_all = class.0 & Self::ALL != 0;
            if self.contains(class) && !(all && in_all) {
                write!(out, "{letter}")?;
            }
        }
        Ok(())
    }
}

/// The options of a SHUTDOWN that a signal causes.
///
/// With neither `save` nor `nosave`, it saves exactly if there are save points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShutdownOptions {
    /// Save even without save points.
    pub save: bool,
    /// Do not save.
    pub nosave: bool,
    /// Do not wait for replicas.
    pub now: bool,
    /// Continue after errors.
    pub force: bool,
}

impl ShutdownOptions {
    /// The words, in the order in which errors list them.
    ///
    /// `safe` and `failover` are Valkey's, for nodes of a cluster.
    pub const WORDS: &'static [&'static str] =
        &["default", "save", "nosave", "now", "force", "safe", "failover"];

    pub(super) fn named(words: &[&str]) -> Self {
        let has = |word| words.contains(&word);
        ShutdownOptions { save: has("save"), nosave: has("nosave"), now: has("now"), force: has("force") }
    }
}

/// A `user` line: the user's name and the rules for access control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserLine {
    /// The user's name.
    pub name: Vec<u8>,
    /// The rules in the order given.
    pub rules: Vec<Vec<u8>>,
}

/// A `rename-command` line.
///
/// The table of commands checks whether the command exists and whether the new name is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenamedCommand {
    /// The command's name.
    pub from: Vec<u8>,
    /// The name that replaces it; `None` removes the command.
    pub to: Option<Vec<u8>>,
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
