//! Clients of a simulated server, which know the replies that they must receive.
//!
//! A client's own keys are written by no other, so it knows their values. Of the keys that all share it knows
//! less: the replies to INCR of one counter are all different and rise, an element of a list is popped once,
//! and the messages of a publisher arrive in order and without a gap. When all is over, the counter and the
//! list must agree with the replies.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use braid_protocol::value::{ReplyParser, Value};

use crate::{random::random_below, sockets::simulated::ClientEnd};

/// The commands that a client plans at most.
const COMMANDS_MAX: usize = 24;
/// The longest value, in bytes. It is longer than most simulated sockets take at once.
const VALUE_MAX: usize = 3000;
/// The private keys of a client.
const N_KEYS: usize = 3;

/// The facts that the clients of a schedule share.
#[derive(Default)]
pub(super) struct Shared {
    schedule: u64,
    n_clients: usize,
    /// The server's numbers of the clients.
    ids: Vec<i64>,
    /// The numbers of clients that some client has tried to kill.
    killed: BTreeSet<i64>,
    /// The replies to INCR of the shared counter.
    counts: BTreeSet<i64>,
    /// The INCRs whose replies were never received.
    n_unknown_counts: usize,
    /// The pushed elements: whether the reply was received.
    pushed: BTreeMap<String, bool>,
    popped: BTreeSet<String>,
    /// The pops whose replies were never received.
    n_unknown_pops: usize,
}

impl Shared {
    pub(super) fn new(schedule: u64) -> Self {
        Self { schedule, ..Self::default() }
    }

    /// Notes that a client may be closed.
    pub(super) fn note_kill(&mut self, id: u64) {
        self.killed.insert(id as i64);
    }

    fn key(&self, name: &str) -> String {
        format!("{name}:{}", self.schedule)
    }

    /// Compares the replies with the shared counter and the shared list at the end.
    pub(super) fn check(&self, counter: i64, list: &[String]) {
        let most = self.counts.len() + self.n_unknown_counts;
        let counted = counter as usize;
        assert!((self.counts.len()..=most).contains(&counted), "{counter} counted, {:?}", self.counts);
        let left: BTreeSet<&String> = list.iter().collect();
        assert_eq!(left.len(), list.len(), "an element is there twice: {list:?}");
        let twice: Vec<_> = left.iter().filter(|element| self.popped.contains(**element)).collect();
        assert!(twice.is_empty(), "popped, and still there: {twice:?}");
        let is_gone = |element: &String| !left.contains(element) && !self.popped.contains(element);
        let gone: Vec<_> =
            self.pushed.iter().filter(|(element, acked)| **acked && is_gone(element)).collect();
        assert!(gone.len() <= self.n_unknown_pops, "lost: {gone:?} of {} pops", self.n_unknown_pops);
        let unknown = |element: &&String| !self.pushed.contains_key(*element);
        assert_eq!(self.popped.iter().chain(list).find(unknown), None, "this was never pushed");
    }
}

/// A reply that a client expects.
#[derive(Debug)]
enum Expected {
    /// This value.
    Is(Value),
    /// Some integer.
    Integer,
    /// The reply to HELLO, with the client's number.
    Hello,
    /// The next value of the shared counter.
    Count,
    /// An element was pushed.
    Pushed(String),
    /// An element of the shared list, or nothing in time.
    Popped,
    /// An array of so many elements.
    Array(usize),
    /// The replies of a transaction, or nothing if a watched key has changed.
    OfTransaction,
    /// The confirmation of a subscription, or of its end.
    Confirmation(&'static str),
    /// The last reply before the server closes.
    Goodbye,
}

/// The reply OK.
fn ok() -> Option<Expected> {
    Some(Expected::Is(Value::Simple(b"OK".into())))
}

/// A client.
pub(super) struct SimulatedClient {
    end: ClientEnd,
    name: usize,
    id: Option<i64>,
    n_planned: usize,
    unsent: VecDeque<u8>,
    received: Vec<u8>,
    parser: ReplyParser,
    expected: VecDeque<Expected>,
    /// The values of its own keys.
    values: [Option<Vec<u8>>; N_KEYS],
    counter: i64,
    last_count: i64,
    is_subscribed: bool,
    /// Whether it has ever subscribed. Then it may be closed for messages that it does not read.
    has_subscribed: bool,
    /// The last message of each publisher.
    heard: BTreeMap<String, u64>,
    n_published: u64,
    /// Whether it has left, or the server may close it.
    may_close: bool,
    has_left: bool,
}

impl SimulatedClient {
    pub(super) fn new(end: ClientEnd, shared: &mut Shared) -> Self {
        let name = shared.n_clients;
        shared.n_clients += 1;
        let mut client = Self {
            end,
            name,
            id: None,
            n_planned: 0,
            unsent: VecDeque::new(),
            received: Vec::new(),
            parser: ReplyParser::default(),
            expected: VecDeque::new(),
            values: Default::default(),
            counter: 0,
            last_count: 0,
            is_subscribed: false,
            has_subscribed: false,
            heard: BTreeMap::new(),
            n_published: 0,
            may_close: false,
            has_left: false,
        };
        client.send(&["HELLO", "3"], Some(Expected::Hello));
        client
    }

    /// Queues a command, and its reply if it has one.
    fn send(&mut self, words: &[&str], reply: Option<Expected>) {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.send_bytes(&words, reply);
    }

    fn send_bytes(&mut self, words: &[&[u8]], reply: Option<Expected>) {
        self.unsent.extend(format!("*{}\r\n", words.len()).bytes());
        for word in words {
            self.unsent.extend(format!("${}\r\n", word.len()).bytes());
            self.unsent.extend(*word);
            self.unsent.extend(b"\r\n");
        }
        self.expected.extend(reply);
    }

    /// Takes one decision.
    pub(super) fn act(&mut self, shared: &mut Shared) {
        if self.has_left {
            return;
        }
        match random_below(16) {
            0 if random_below(8) == 0 => self.go(shared),
            0..6 if self.n_planned < COMMANDS_MAX && !self.may_close => self.plan(shared),
            6..11 => {
                let n = random_below(self.unsent.len().min(200) + 1);
                let n = if random_below(2) == 0 { self.unsent.len() } else { n };
                self.send_some(n);
            }
            _ => {
                let most = 1 << random_below(13);
                self.receive(most, shared);
            }
        }
    }

    /// Leaves in the middle of everything.
    fn go(&mut self, shared: &mut Shared) {
        if random_below(2) == 0 {
            self.end.end();
            // Bytes that have arrived by now were sent before.
            self.receive(usize::MAX, shared);
        } else {
            self.end.reset();
        }
        self.has_left = true;
        self.count_unknown(shared);
    }

    /// Counts the commands whose effects are not known.
    fn count_unknown(&mut self, shared: &mut Shared) {
        for expected in self.expected.drain(..) {
            match expected {
                Expected::Count => shared.n_unknown_counts += 1,
                Expected::Popped => shared.n_unknown_pops += 1,
                _ => {}
            }
        }
    }

    fn send_some(&mut self, n: usize) {
        if n > 0 {
            let bytes: Vec<u8> = self.unsent.drain(..n).collect();
            self.end.send(&bytes);
        }
    }

    /// Chooses a command.
    fn plan(&mut self, shared: &mut Shared) {
        self.n_planned += 1;
        match random_below(32) {
            0..13 => self.plan_for_own_keys(shared),
            13 => self.plan_transaction(shared),
            14..21 => self.plan_for_shared_keys(shared),
            21..25 => self.plan_for_channels(shared),
            25..31 => self.plan_for_connections(shared),
            _ if random_below(4) == 0 => {
                self.may_close = true;
                self.send(&["QUIT"], Some(Expected::Goodbye));
            }
            _ => self.send(&["PING"], Some(Expected::Is(Value::Simple(b"PONG".into())))),
        }
    }

    /// Chooses a command on keys that no other client uses.
    fn plan_for_own_keys(&mut self, shared: &Shared) {
        let at = random_below(N_KEYS);
        let own = format!("own:{}:{}:{at}", shared.schedule, self.name);
        match random_below(12) {
            0..4 => {
                let value = vec![b'a' + at as u8; random_below(VALUE_MAX)];
                self.send_bytes(&[b"SET", own.as_bytes(), &value], ok());
                self.values[at] = Some(value);
            }
            4..8 => {
                let value = self.values[at].clone().map_or(Value::Null, Value::Bulk);
                self.send(&["GET", &own], Some(Expected::Is(value)));
            }
            8 => {
                let n = self.values[at].take().map_or(0, |_| 1);
                self.send(&["DEL", &own], Some(Expected::Is(Value::Integer(n))));
            }
            9..11 => {
                let counter = format!("counter:{}:{}", shared.schedule, self.name);
                self.counter += 1;
                let reply = Some(Expected::Is(Value::Integer(self.counter)));
                if random_below(2) == 0 {
                    self.send(&["INCR", &counter], reply);
                } else {
                    self.send(&["EVAL", "return redis.call('INCR', KEYS[1])", "1", &counter], reply);
                }
            }
            _ => {
                let n = self.values.iter().flatten().count();
                let pattern = format!("own:{}:{}:*", shared.schedule, self.name);
                self.send(&["KEYS", &pattern], Some(Expected::Array(n)));
            }
        }
    }

    /// Chooses a command on the shared counter or the shared list.
    fn plan_for_shared_keys(&mut self, shared: &mut Shared) {
        match random_below(7) {
            0..3 => self.send(&["INCR", &shared.key("shared")], Some(Expected::Count)),
            3..5 => {
                let element = format!("{}:{}", self.name, self.n_planned);
                shared.pushed.insert(element.clone(), false);
                let reply = Some(Expected::Pushed(element.clone()));
                self.send(&["RPUSH", &shared.key("list"), &element], reply);
            }
            _ => {
                let timeout = format!("0.{:03}", 1 + random_below(99));
                self.send(&["BLPOP", &shared.key("list"), &timeout], Some(Expected::Popped));
            }
        }
    }

    /// Publishes, subscribes, or ends the subscription.
    fn plan_for_channels(&mut self, shared: &Shared) {
        if random_below(2) == 0 {
            let word = if self.is_subscribed { "unsubscribe" } else { "subscribe" };
            self.is_subscribed = !self.is_subscribed;
            self.has_subscribed = true;
            return self.send(&[word, &shared.key("channel")], Some(Expected::Confirmation(word)));
        }
        // Several long messages in a row fill the queue of a subscriber's thread.
        let (n, n_bytes) = if random_below(3) == 0 { (12, VALUE_MAX) } else { (1, 1) };
        for _ in 0..n {
            self.n_published += 1;
            let message = format!("{}:{}:{:n_bytes$}", self.name, self.n_published, 0);
            self.send(&["PUBLISH", &shared.key("channel"), &message], Some(Expected::Integer));
        }
    }

    /// Chooses a command that changes how connections continue.
    fn plan_for_connections(&mut self, shared: &mut Shared) {
        match random_below(6) {
            0 => {
                let scope = ["WRITE", "ALL"][random_below(2)];
                self.send(&["CLIENT", "PAUSE", "20", scope], ok());
            }
            1 if !shared.ids.is_empty() => {
                let id = shared.ids[random_below(shared.ids.len())];
                if random_below(2) == 0 {
                    shared.killed.insert(id);
                    self.send(&["CLIENT", "KILL", "ID", &id.to_string()], Some(Expected::Integer));
                } else {
                    self.send(&["CLIENT", "UNBLOCK", &id.to_string()], Some(Expected::Integer));
                }
            }
            2 => self.send(&["DEBUG", "SLEEP", "0.002"], ok()),
            3 => self.send(&["WAIT", "1", "5"], Some(Expected::Is(Value::Integer(0)))),
            4 => {
                let mode = ["ON", "OFF"][random_below(2)];
                self.send(&["CLIENT", "TRACKING", mode], ok());
            }
            _ => {
                self.send(&["CLIENT", "REPLY", "SKIP"], None);
                self.send(&["PING"], None);
            }
        }
    }

    fn plan_transaction(&mut self, shared: &Shared) {
        let queued = || Some(Expected::Is(Value::Simple(b"QUEUED".into())));
        let watches = random_below(2) == 0;
        if watches {
            self.send(&["WATCH", &shared.key("shared")], ok());
        }
        self.send(&["MULTI"], ok());
        self.send(&["GET", &shared.key("shared")], queued());
        self.send(&["LLEN", &shared.key("list")], queued());
        self.send(&["EXEC"], Some(if watches { Expected::OfTransaction } else { Expected::Array(2) }));
    }

    /// Receives up to `most` bytes, and compares the replies that are complete.
    fn receive(&mut self, most: usize, shared: &mut Shared) {
        self.received.extend(self.end.receive(most));
        let mut at = 0;
        while let Some((value, n)) =
            self.parser.parse(&self.received[at..]).unwrap_or_else(|error| panic!("{error}: {self}"))
        {
            at += n;
            self.compare(value, shared);
        }
        self.received.drain(..at);
    }

    fn compare(&mut self, value: Value, shared: &mut Shared) {
        if let Value::Push(parts) = &value {
            let text = |at: usize| match parts.get(at) {
                Some(Value::Bulk(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
                _ => String::new(),
            };
            match &*text(0) {
                "invalidate" => {}
                "message" => self.hear(&text(2)),
                word => {
                    let expected = self.expected.pop_front();
                    assert!(
                        matches!(expected, Some(Expected::Confirmation(expected)) if expected == word),
                        "{word} in place of {expected:?}: {self}"
                    );
                    self.heard.clear();
                }
            }
            return;
        }
        let Some(expected) = self.expected.pop_front() else { panic!("a reply too many: {value:?}: {self}") };
        match (&expected, &value) {
            (Expected::Is(expected), value) if expected == value => {}
            (Expected::Integer, Value::Integer(_)) | (Expected::Goodbye, Value::Simple(_)) => {}
            (Expected::Hello, Value::Map(pairs)) => {
                let id = pairs.iter().find(|(name, _)| *name == Value::Bulk(b"id".into()));
                if let Some((_, Value::Integer(id))) = id {
                    self.id = Some(*id);
                    shared.ids.push(*id);
                }
            }
            (Expected::Count, Value::Integer(count)) => {
                assert!(*count > self.last_count, "{count} after {}: {self}", self.last_count);
                assert!(shared.counts.insert(*count), "{count} twice: {self}");
                self.last_count = *count;
            }
            (Expected::Pushed(element), Value::Integer(_)) => {
                shared.pushed.insert(element.clone(), true);
            }
            (Expected::Popped, Value::Array(parts)) => {
                let [_, Value::Bulk(element)] = &parts[..] else { panic!("{value:?}: {self}") };
                let element = String::from_utf8_lossy(element).into_owned();
                assert!(shared.popped.insert(element), "{value:?} twice: {self}");
            }
            (Expected::Popped | Expected::OfTransaction, Value::Null) => {}
            (Expected::Array(n), Value::Array(parts)) if *n == parts.len() => {}
            (Expected::OfTransaction, Value::Array(parts)) if parts.len() == 2 => {}
            _ => panic!("{value:?} in place of {expected:?}: {self}"),
        }
    }

    /// Compares a message with the one before it of the same publisher.
    fn hear(&mut self, message: &str) {
        let mut parts = message.split(':');
        let (Some(publisher), Some(number)) = (parts.next(), parts.next()) else {
            panic!("{message}: {self}")
        };
        let number: u64 = number.parse().expect("a message has a number");
        let before = self.heard.insert(publisher.to_owned(), number);
        assert!(before.is_none_or(|before| before + 1 == number), "{message} after {before:?}: {self}");
    }

    /// Sends and receives everything.
    pub(super) fn finish(&mut self, shared: &mut Shared) {
        if self.has_left {
            return;
        }
        self.send_some(self.unsent.len());
        self.receive(usize::MAX, shared);
        if self.end.is_over() {
            let is_killed = self.id.is_none_or(|id| shared.killed.contains(&id));
            assert!(is_killed || self.may_close || self.has_subscribed, "the server has closed it: {self}");
            self.has_left = true;
            self.count_unknown(shared);
        }
    }

    /// Whether it has received all that it must.
    pub(super) fn is_satisfied(&self) -> bool {
        self.has_left || self.expected.is_empty() && self.unsent.is_empty() && !self.may_close
    }

    /// Leaves when all is over.
    pub(super) fn leave(self) {
        if random_below(2) == 0 {
            self.end.end();
        } else {
            self.end.reset();
        }
    }

    /// The counter and the list at the end, as an uninvolved client reads them.
    pub(super) fn plan_audit(&mut self, shared: &Shared) {
        self.n_planned = COMMANDS_MAX;
        self.send(&["GET", &shared.key("shared")], None);
        self.send(&["LRANGE", &shared.key("list"), "0", "-1"], None);
        // The next schedule begins without data.
        self.send(&["FLUSHALL"], None);
    }

    /// The two replies of the audit, if they are there.
    pub(super) fn audit(&mut self) -> Option<(i64, Vec<String>)> {
        self.send_some(self.unsent.len());
        self.received.extend(self.end.receive(usize::MAX));
        let mut parser = ReplyParser::default();
        let (mut values, mut at) = (Vec::new(), 0);
        while let Ok(Some((value, n))) = parser.parse(&self.received[at..]) {
            values.push(value);
            at += n;
        }
        let [_, counter, Value::Array(elements), _] = &values[..] else { return None };
        let text = |value: &Value| match value {
            Value::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::from("0"),
        };
        let counter = text(counter).parse().expect("a counter is a number");
        Some((counter, elements.iter().map(text).collect()))
    }
}

impl std::fmt::Display for SimulatedClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "client {} (id {:?}, {} bytes unsent) expects {:?}",
            self.name,
            self.id,
            self.unsent.len(),
            self.expected
        )
    }
}
