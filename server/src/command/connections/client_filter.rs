//! The conditions of CLIENT LIST and CLIENT KILL on clients.

use std::sync::atomic::Ordering;

use braid_protocol::number;

use crate::{
    catalog::{Args, CommandError, shown},
    client::{
        id::{ClientId, Endpoint},
        record::{ClientRecord, Identity, Listens},
    },
    notify::tracking_table::Interest,
    shared::server::Server,
};

/// The letters of flags in CLIENT LIST, of Redis and Valkey. Those of missing features are never set.
const FLAGS: &[u8] = b"AbBcdeEiIMNOPrRStTuUx";

/// Returns one letter for each remarkable state.
pub(super) fn flags_of(client: &ClientRecord) -> String {
    let tracking = client.tracking.load();
    let states = [
        ('M', client.is_primary.load(Ordering::Relaxed)),
        ('S', client.listens(Listens::ToStream)),
        ('O', client.listens(Listens::ToCommands)),
        ('P', client.listens(Listens::ToTopics)),
        ('t', tracking.is_some()),
        ('R', client.has_lost_redirect.load(Ordering::Relaxed)),
        ('B', tracking.as_ref().is_some_and(|mode| mode.interest == Interest::Broadcast)),
        ('x', client.queued.load(Ordering::Relaxed) >= 0),
        ('d', client.is_watch_lost.load(Ordering::Relaxed)),
        ('b', client.blocked.load(Ordering::Relaxed)),
        ('U', matches!(client.peer, Endpoint::Unix(_))),
        ('e', client.no_evict.load(Ordering::Relaxed)),
        ('T', client.no_touch.load(Ordering::Relaxed)),
    ];
    let flags: String = states.iter().filter(|(_, holds)| *holds).map(|&(letter, _)| letter).collect();
    if flags.is_empty() { "N".to_owned() } else { flags }
}

/// A class of clients. No client is the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Normal,
    Primary,
    Replica,
    Pubsub,
}

impl Class {
    fn parse(name: &[u8]) -> Result<Class, CommandError> {
        match &name.to_ascii_lowercase()[..] {
            b"normal" => Ok(Class::Normal),
            b"master" | b"primary" => Ok(Class::Primary),
            b"replica" | b"slave" => Ok(Class::Replica),
            b"pubsub" => Ok(Class::Pubsub),
            _ => {
                let name = shown(name);
                Err(CommandError::owned(format!("ERR Unknown client type '{name}'")))
            }
        }
    }

    fn of(client: &ClientRecord) -> Class {
        if client.is_primary.load(Ordering::Relaxed) {
            Class::Primary
        } else if client.listens(Listens::ToStream) {
            Class::Replica
        } else if client.listens(Listens::ToTopics) {
            Class::Pubsub
        } else {
            Class::Normal
        }
    }
}

/// A condition on a client.
#[derive(Debug, PartialEq, Eq)]
enum ClientCondition<'a> {
    Id(Vec<ClientId>),
    Addr(&'a [u8]),
    Laddr(&'a [u8]),
    Ip(&'a [u8]),
    Type(Class),
    User(Identity),
    Name(&'a [u8]),
    LibName(&'a [u8]),
    LibVer(&'a [u8]),
    /// It has been silent for at least these milliseconds.
    Idle(u64),
    /// It has been connected for at least these milliseconds.
    MaxAge(u64),
    /// It has all of these flags.
    Flags(&'a [u8]),
    Db(u32),
    /// It has all of these capabilities.
    Capa(&'a [u8]),
}

/// The names of conditions, without NOT.
const NAMES: &[&[u8]] = &[
    b"ADDR",
    b"CAPA",
    b"DB",
    b"FLAGS",
    b"ID",
    b"IDLE",
    b"IP",
    b"LADDR",
    b"LIB-NAME",
    b"LIB-VER",
    b"MAXAGE",
    b"NAME",
    b"SKIPME",
    b"TYPE",
    b"USER",
];

/// Whether a word begins a condition.
pub(super) fn begins_condition(word: &[u8]) -> bool {
    let word = word.to_ascii_uppercase();
    NAMES.contains(&word.strip_prefix(b"NOT-").unwrap_or(&word))
}

impl<'a> ClientCondition<'a> {
    /// Reads the name of a condition and its value. Returns `None` if the next word names none.
    fn read(args: &mut Args<'a>, server: &Server) -> Result<Option<(Self, Negated)>, CommandError> {
        let mut named = *args;
        let word = named.next()?.to_ascii_uppercase();
        let (name, negated) = match word.strip_prefix(b"NOT-") {
            Some(name) => (name, Negated(true)),
            None => (&word[..], Negated(false)),
        };
        if named.is_empty() {
            return Err(CommandError::Syntax);
        }
        let condition = match name {
            b"ID" => ClientCondition::Id(read_ids(&mut named)?),
            b"ADDR" => ClientCondition::Addr(named.next()?),
            b"LADDR" => ClientCondition::Laddr(named.next()?),
            b"IP" => ClientCondition::Ip(named.next()?),
            b"TYPE" => ClientCondition::Type(Class::parse(named.next()?)?),
            b"USER" => ClientCondition::User(known_user(named.next()?, server)?),
            b"NAME" => ClientCondition::Name(named.next()?),
            b"LIB-NAME" => ClientCondition::LibName(named.next()?),
            b"LIB-VER" => ClientCondition::LibVer(named.next()?),
            b"IDLE" if !negated.0 => ClientCondition::Idle(seconds("idle", named.next()?)?),
            b"MAXAGE" if !negated.0 => ClientCondition::MaxAge(seconds("maxage", named.next()?)?),
            b"FLAGS" => ClientCondition::Flags(letters("flags", FLAGS, named.next()?)?),
            b"DB" => ClientCondition::Db(database(named.next()?, server)?),
            b"CAPA" => ClientCondition::Capa(letters("capa", b"r", named.next()?)?),
            _ => return Ok(None),
        };
        *args = named;
        Ok(Some((condition, negated)))
    }

    fn holds(&self, client: &ClientRecord, uptime_millis: u64) -> bool {
        let since = |time: u64| uptime_millis.saturating_sub(time);
        match self {
            ClientCondition::Id(ids) => ids.contains(&client.id),
            ClientCondition::Addr(addr) => client.peer.to_string().as_bytes() == *addr,
            ClientCondition::Laddr(addr) => client.local.to_string().as_bytes() == *addr,
            ClientCondition::Ip(ip) => match &client.peer {
                Endpoint::Inet(address) => address.ip().to_string().as_bytes() == *ip,
                Endpoint::Unix(path) => path.as_bytes() == *ip,
            },
            ClientCondition::Type(class) => Class::of(client) == *class,
            ClientCondition::User(user) => **client.user.load() == *user,
            ClientCondition::Name(name) => !name.is_empty() && client.said().name.as_bytes() == *name,
            ClientCondition::LibName(name) => !name.is_empty() && client.said().lib_name.as_bytes() == *name,
            ClientCondition::LibVer(version) => {
                !version.is_empty() && client.said().lib_ver.as_bytes() == *version
            }
            ClientCondition::Idle(millis) => since(client.active_at.load(Ordering::Relaxed)) >= *millis,
            ClientCondition::MaxAge(millis) => since(client.connected_at) >= *millis,
            ClientCondition::Flags(letters) => {
                let flags = flags_of(client);
                letters.iter().all(|letter| flags.as_bytes().contains(letter))
            }
            ClientCondition::Db(db) => client.db.load(Ordering::Relaxed) == *db,
            ClientCondition::Capa(letters) => letters.is_empty() || client.said().handles_redirects,
        }
    }
}

/// Whether a condition must not hold (`NOT-…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Negated(bool);

/// The conditions of CLIENT LIST or CLIENT KILL.
pub(super) struct Filter<'a> {
    /// The last condition of each kind counts, with and without NOT apart.
    conditions: Vec<(ClientCondition<'a>, Negated)>,
    /// Whether the client that asks is left out.
    pub(super) spares_asker: bool,
}

impl<'a> Filter<'a> {
    /// Reads conditions, and SKIPME. `spares_asker` stands for SKIPME where that is missing.
    pub(super) fn parse(
        mut args: Args<'a>,
        spares_asker: bool,
        server: &Server,
    ) -> Result<Self, CommandError> {
        let mut filter = Filter { conditions: Vec::new(), spares_asker };
        while !args.is_empty() {
            if args.remaining() < 2 {
                return Err(CommandError::Syntax);
            }
            if args.tag("SKIPME") {
                filter.spares_asker = yes_or_no(&mut args)?;
                continue;
            }
            let (condition, negated) =
                ClientCondition::read(&mut args, server)?.ok_or(CommandError::Syntax)?;
            let kind = std::mem::discriminant(&condition);
            filter
                .conditions
                .retain(|(one, is_negated)| std::mem::discriminant(one) != kind || *is_negated != negated);
            filter.conditions.push((condition, negated));
        }
        Ok(filter)
    }

    /// The only clients that the filter may admit, if it names some.
    pub(super) fn ids(&self) -> Option<&[ClientId]> {
        self.conditions.iter().find_map(|(condition, negated)| match condition {
            ClientCondition::Id(ids) if !negated.0 => Some(&ids[..]),
            _ => None,
        })
    }

    /// Whether all conditions allow a client.
    pub(super) fn admits(&self, client: &ClientRecord, asker: ClientId, uptime_millis: u64) -> bool {
        let holds = |(condition, negated): &(ClientCondition<'_>, Negated)| {
            condition.holds(client, uptime_millis) != negated.0
        };
        !(self.spares_asker && client.id == asker) && self.conditions.iter().all(holds)
    }
}

/// Reads one number of a client, and as many more as follow.
fn read_ids(args: &mut Args<'_>) -> Result<Vec<ClientId>, CommandError> {
    let mut ids = Vec::new();
    loop {
        let mut next = *args;
        let word = if next.is_empty() { &b""[..] } else { next.next()? };
        let Some(id) = number::parse_i64(word) else { break };
        if id <= 0 {
            return Err(NOT_AN_ID);
        }
        ids.push(ClientId(id as u64));
        *args = next;
    }
    if ids.is_empty() { Err(NOT_AN_ID) } else { Ok(ids) }
}

const NOT_AN_ID: CommandError = CommandError::text("ERR client-id should be greater than 0");

fn known_user(name: &[u8], server: &Server) -> Result<Identity, CommandError> {
    let users = server.accounts.users();
    let user = users.get(name);
    user.map(|user| Identity::from(&**user))
        .ok_or_else(|| CommandError::owned(format!("ERR No such user '{}'", shown(name))))
}

fn yes_or_no(args: &mut Args<'_>) -> Result<bool, CommandError> {
    let yes = args.tag("YES");
    if yes || args.tag("NO") { Ok(yes) } else { Err(CommandError::Syntax) }
}

/// Reads a duration in seconds, and returns milliseconds.
fn seconds(name: &str, word: &[u8]) -> Result<u64, CommandError> {
    match number::parse_i64(word) {
        None => Err(CommandError::owned(format!("ERR {name} is not an integer or out of range"))),
        Some(..=0) => Err(CommandError::owned(format!("ERR {name} should be greater than 0"))),
        Some(seconds) => Ok((seconds as u64).saturating_mul(1000)),
    }
}

/// Reads letters, each of which must be known.
fn letters<'a>(name: &str, known: &[u8], word: &'a [u8]) -> Result<&'a [u8], CommandError> {
    if word.iter().all(|letter| known.contains(letter)) {
        return Ok(word);
    }
    let word = shown(word);
    Err(CommandError::owned(format!("ERR Unknown {name} found in the provided filter: {word}")))
}

/// Reads the number of a database that exists.
fn database(word: &[u8], server: &Server) -> Result<u32, CommandError> {
    let db = number::parse_i64(word).ok_or(CommandError::text("ERR DB is not an integer or out of range"))?;
    let n_databases = server.keyspace.n_dbs() as u32;
    u32::try_from(db).ok().filter(|&db| db < n_databases).ok_or_else(|| {
        let last = n_databases - 1;
        CommandError::owned(format!("ERR DB number should be between 0 and {last}"))
    })
}
