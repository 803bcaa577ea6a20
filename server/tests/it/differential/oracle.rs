//! The servers with which Braid is compared, and the known differences between them.
//!
//! Braid follows redis-server 7.0, and takes what Redis 8.2 and Valkey 9.1 take beyond it. Where these three
//! differ among themselves, Braid can agree with one of them only: [`KNOWN`] names each such difference.
//! Commands that meet a fault of a server are not sent, so every other difference is a fault of the server
//! under test.

use std::process::Command;

use crate::support::{
    Reply,
    reference::{REFERENCE, leave_out},
    values::Argv,
};

/// A release to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OracleRelease {
    Redis70,
    Redis82,
    Valkey91,
}

use OracleRelease::{Redis70, Redis82, Valkey91};

/// A server to compare with.
#[derive(Clone, Debug)]
pub struct Oracle {
    pub program: String,
    pub release: OracleRelease,
}

impl Oracle {
    /// Returns the server that `BRAID_DIFF_ORACLE` names, or redis-server 7.0. Prints a note if the machine
    /// does not have it.
    ///
    /// # Panics
    /// When the variable names a server that does not run here or has another version. Also when
    /// `BRAID_REQUIRE_REDIS` is 1 and there is none.
    pub fn of_environment() -> Option<Oracle> {
        let named = std::env::var("BRAID_DIFF_ORACLE").ok();
        let program = named.clone().unwrap_or_else(|| REFERENCE.to_owned());
        let output = Command::new(&program).arg("--version").output();
        let version = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let version = version.unwrap_or_default();
        let release = match () {
            () if version.contains("Valkey") && version.contains(" v=9.1.") => Some(Valkey91),
            () if version.contains(" v=7.0.") => Some(Redis70),
            () if version.contains(" v=8.2.") => Some(Redis82),
            () => None,
        };
        assert!(
            named.is_none() || release.is_some(),
            "BRAID_DIFF_ORACLE={program} is no redis-server 7.0 or 8.2 and no valkey-server 9.1: {version:?}"
        );
        if let Some(release) = release.filter(|release| named.is_some() || *release == Redis70) {
            return Some(Oracle { program, release });
        }
        let why = format!(
            "there is no {REFERENCE} 7.0 to compare Braid with (apt-get install redis-server): {version:?}"
        );
        leave_out("differential", &why, "BRAID_REQUIRE_REDIS");
        None
    }

    /// Returns commands that are not sent between MULTI and EXEC.
    ///
    /// A nested MULTI or WATCH ends the transaction in Valkey. Redis 8.2 keeps the reply of EXEC back if an
    /// AUTH in it fails.
    pub fn avoided_in_transactions(&self) -> &'static [&'static str] {
        match self.release {
            Redis70 => &[],
            Redis82 => &["auth"],
            Valkey91 => &["multi", "watch"],
        }
    }

    /// Returns the name of an event, where the servers have several for one change.
    ///
    /// In Valkey a key with a past deadline has expired. In Redis it was deleted.
    pub fn event(&self, event: String) -> String {
        if self.release == Valkey91 && event == "expired" { "del".to_owned() } else { event }
    }

    /// Whether a command may give a key a deadline that is over.
    ///
    /// Redis keeps such a key after SET, and expires it later. Its events differ from then on. Braid deletes
    /// the key at once, as Valkey does.
    pub fn sets_a_past_deadline(&self, argv: &Argv) -> bool {
        let is = |word: &[u8], name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        self.release != Valkey91
            && is(&argv[0], "set")
            && argv.iter().any(|word| is(word, "pxat") || is(word, "exat"))
    }

    /// Returns the known difference that explains two replies to a command.
    pub fn known_difference(
        &self,
        argv: &Argv,
        ours: &Reply,
        theirs: &Reply,
    ) -> Option<&'static KnownDifference> {
        let name = String::from_utf8_lossy(&argv[0]).to_ascii_lowercase();
        let explains = |known: &&KnownDifference| {
            known.releases.contains(&self.release)
                && (known.commands.is_empty() || known.commands.contains(&&name[..]))
                && known.theirs.is(theirs)
                && known.ours.is(ours)
                && (known.when)(argv)
        };
        KNOWN.iter().find(explains)
    }
}

/// A difference between the servers themselves.
pub struct KnownDifference {
    /// The releases that answer in a way of their own.
    releases: &'static [OracleRelease],
    /// The commands' names; none for any command.
    commands: &'static [&'static str],
    /// A condition on the words.
    when: fn(&Argv) -> bool,
    ours: KnownReply,
    theirs: KnownReply,
    /// Whether the data, or the state of a client, may differ afterwards.
    pub parts: bool,
}

/// A kind of reply.
enum KnownReply {
    Any,
    /// An error that begins with this text.
    Error(&'static str),
    /// Anything but an error.
    Success,
    /// One of these texts.
    Text(&'static [&'static str]),
}

impl KnownReply {
    fn is(&self, reply: &Reply) -> bool {
        match self {
            KnownReply::Any => true,
            KnownReply::Error(start) => {
                matches!(reply, Reply::Error(text) if text.starts_with(start.as_bytes()))
            }
            KnownReply::Success => !reply.is_error(),
            KnownReply::Text(texts) => reply.text().is_some_and(|text| texts.contains(&&text[..])),
        }
    }
}

/// The differences between the servers. Those of texts alone come first.
const KNOWN: &[KnownDifference] = &[
    // Valkey names the member that is missing.
    KnownDifference {
        releases: &[Valkey91],
        commands: &[],
        when: always,
        ours: KnownReply::Error("ERR could not decode requested zset member"),
        theirs: KnownReply::Error("ERR member "),
        parts: false,
    },
    // Valkey names BYPOLYGON among the areas.
    KnownDifference {
        releases: &[Valkey91],
        commands: &["geosearch", "geosearchstore"],
        when: always,
        ours: KnownReply::Error("ERR exactly one of BYRADIUS"),
        theirs: KnownReply::Error("ERR exactly one of BYRADIUS"),
        parts: false,
    },
    // CLIENT UNBLOCK of Valkey does not count its words.
    KnownDifference {
        releases: &[Valkey91],
        commands: &["client"],
        when: always,
        ours: KnownReply::Error("ERR unknown subcommand or wrong number of arguments for '"),
        theirs: KnownReply::Any,
        parts: false,
    },
    // Since 7.2 SINTERSTORE overwrites its destination in the words of COMMAND, as the other two do.
    KnownDifference {
        releases: &[Redis70],
        commands: &["command"],
        when: |argv| argv.get(2).is_some_and(|name| name.eq_ignore_ascii_case(b"sinterstore")),
        ours: KnownReply::Success,
        theirs: KnownReply::Success,
        parts: false,
    },
    // Valkey tells the last of several destinations only.
    KnownDifference {
        releases: &[Valkey91],
        commands: &["command"],
        when: |argv| argv.get(2).is_some_and(|name| name.to_ascii_lowercase().starts_with(b"georadius")),
        ours: KnownReply::Success,
        theirs: KnownReply::Success,
        parts: false,
    },
    // Each release has its own length from which a string is no longer embedded in its key.
    KnownDifference {
        releases: &[Redis82, Valkey91],
        commands: &["object"],
        when: always,
        ours: KnownReply::Text(&["raw", "embstr"]),
        theirs: KnownReply::Text(&["raw", "embstr"]),
        parts: false,
    },
    // The later two take some names of clients with bytes that are no text.
    KnownDifference {
        releases: &[Redis82, Valkey91],
        commands: &["client"],
        when: always,
        ours: KnownReply::Error("ERR Client names cannot contain"),
        theirs: KnownReply::Success,
        parts: true,
    },
    // Valkey checks the time of GETEX before it looks for the key.
    KnownDifference {
        releases: &[Valkey91],
        commands: &["getex"],
        when: always,
        ours: KnownReply::Any,
        theirs: KnownReply::Error("ERR "),
        parts: false,
    },
    // Valkey refuses names that are no type.
    KnownDifference {
        releases: &[Valkey91],
        commands: &["scan"],
        when: always,
        ours: KnownReply::Success,
        theirs: KnownReply::Error("ERR unknown type name"),
        parts: false,
    },
    // Valkey counts a nested MULTI or WATCH as a fault of the transaction, which it then gives up.
    KnownDifference {
        releases: &[Valkey91],
        commands: &["multi", "watch"],
        when: always,
        ours: KnownReply::Any,
        theirs: KnownReply::Error("ERR Command '"),
        parts: true,
    },
    // The later two take no bounds in hexadecimal digits or after a blank.
    KnownDifference {
        releases: &[Redis82, Valkey91],
        commands: &[],
        when: always,
        ours: KnownReply::Any,
        theirs: KnownReply::Error("ERR min or max is not a float"),
        parts: true,
    },
    // Valkey takes no numbers in hexadecimal digits.
    KnownDifference {
        releases: &[Valkey91],
        commands: &[],
        when: always,
        ours: KnownReply::Any,
        theirs: KnownReply::Error("ERR value is not a valid float"),
        parts: true,
    },
    // Valkey ignores a negative offset in a skip list.
    KnownDifference {
        releases: &[Valkey91],
        commands: &[
            "zrangebylex",
            "zrevrangebylex",
            "zrangebyscore",
            "zrevrangebyscore",
            "zrange",
            "zrangestore",
        ],
        when: |argv| {
            let limits =
                |pair: &[Vec<u8>]| pair[0].eq_ignore_ascii_case(b"limit") && pair[1].starts_with(b"-");
            argv.windows(2).any(limits)
        },
        ours: KnownReply::Success,
        theirs: KnownReply::Success,
        parts: true,
    },
    // The later two refuse the lowest integer as a number of elements.
    KnownDifference {
        releases: &[Redis82, Valkey91],
        commands: &["lrem"],
        when: always,
        ours: KnownReply::Any,
        theirs: KnownReply::Error("ERR value is out of range, value must between"),
        parts: true,
    },
    // In the later two the lowest and the highest integer as an index overflow, and name an element.
    KnownDifference {
        releases: &[Redis82, Valkey91],
        commands: &["lset"],
        when: |argv| {
            let extremes = [i64::MIN, i64::MAX].map(|index| index.to_string().into_bytes());
            argv.get(2).is_some_and(|index| extremes.contains(index))
        },
        ours: KnownReply::Error("ERR index out of range"),
        theirs: KnownReply::Success,
        parts: true,
    },
];

fn always(_: &Argv) -> bool {
    true
}

/// Whether a command would meet a fault of the servers themselves.
///
/// SORT by numbers, in redis-server 7.0 and in Valkey, refuses a number if `errno` says that one was out of
/// range, and does not clear it before. Any earlier command, such as `SCAN 18446744073709551616`, may have
/// left it set. Then valid values are refused with "One or more scores can't be converted into double".
pub fn has_a_fault(argv: &Argv) -> bool {
    sorts_by_numbers(argv)
}

/// Whether this is a SORT without ALPHA, whatever its other words.
fn sorts_by_numbers(argv: &Argv) -> bool {
    let is = |word: &[u8], name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    if !is(&argv[0], "SORT") && !is(&argv[0], "SORT_RO") {
        return false;
    }
    let mut words = argv.iter().skip(2);
    while let Some(word) = words.next() {
        if is(word, "ALPHA") {
            return false;
        }
        let n_arguments = match () {
            () if is(word, "LIMIT") => 2,
            () if ["BY", "GET", "STORE"].iter().any(|name| is(word, name)) => 1,
            () => 0,
        };
        words.by_ref().take(n_arguments).for_each(drop);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_difference_explains_its_replies_only() {
        let explains = |release, line: &str, ours: Reply, theirs: Reply| {
            let argv = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            Oracle { program: String::new(), release }.known_difference(&argv, &ours, &theirs).is_some()
        };
        let error = |text: &str| Reply::Error(text.into());
        let ok = || Reply::Status(b"OK".to_vec());
        let float = "ERR min or max is not a float";
        assert!(explains(Valkey91, "zcount k 0x1 2", Reply::Integer(1), error(float)));
        assert!(!explains(Redis70, "zcount k 0x1 2", Reply::Integer(1), error(float)));
        assert!(!explains(Valkey91, "zcount k 0x1 2", error(float), Reply::Integer(1)));
        let lowest = "LSET k -9223372036854775808 v";
        assert!(explains(Redis82, lowest, error("ERR index out of range"), ok()));
        assert!(!explains(Redis82, "LSET k -9 v", error("ERR index out of range"), ok()));
        assert!(!explains(Redis82, lowest, ok(), ok()));
    }

    #[test]
    fn only_sorting_by_numbers_is_avoided() {
        let has = |line: &str| has_a_fault(&line.split(' ').map(|word| word.as_bytes().to_vec()).collect());
        for line in
            ["SORT k", "sort k desc", "SORT k GET alpha", "SORT k LIMIT alpha 1", "SORT_RO k STORE ALPHA"]
        {
            assert!(has(line), "{line}");
        }
        for line in
            ["SORT k ALPHA", "sort k LIMIT 0 1 GET # alpha", "SORT_RO k ALPHA STORE x", "GET k", "SORTED k"]
        {
            assert!(!has(line), "{line}");
        }
    }
}
