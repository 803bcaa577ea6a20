//! The beginning of a link: from the first byte on a new connection to the copy or the stream.
//!
//! ```text
//! PING ─▶ AUTH ─▶ REPLCONF listening-port, ip-address, capa, version ─▶ PSYNC
//!                                                                      ├─ +CONTINUE ─▶ the stream
//!                                                                      ├─ +FULLRESYNC ─▶ $… ─▶ the payload
//!                                                                      └─ -ERR ─▶ SYNC ─▶ $… ─▶ the payload
//! ```
//!
//! SYNC is the older form of PSYNC. A primary that knows only SYNC has no offsets, so each link begins with a
//! copy.
//!
//! Bytes come in and events go out. The caller has the socket and the clock.

use braid_journal::history::ReplicationId;

use super::{payload::Form, role::StreamPlace};

/// The version that the replica announces. Valkey then sends the forms of its version 9, which are read.
const ANNOUNCED_VERSION: &[u8] = b"9.0.0";

/// The longest line that is accepted. No primary sends a longer one.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The facts about this server that the primary learns.
#[derive(Clone, Debug, Default)]
pub struct Introduction {
    /// The user to log in as.
    pub user: Option<Vec<u8>>,
    /// The password.
    pub password: Option<Vec<u8>>,
    /// The port for clients.
    pub port: u16,
    /// The announced address.
    pub address: Option<Vec<u8>>,
    /// The place where the data is, if it belongs to a history.
    pub place: Option<StreamPlace>,
    /// Whether the other server must become the primary.
    pub is_failover: bool,
}

/// An event of the handshake.
#[derive(Debug, PartialEq, Eq)]
pub enum GreetingEvent {
    /// Send these bytes.
    Send(Vec<u8>),
    /// Write a line to the server log.
    Note(String),
    /// The primary sends a copy of its data at this place of its history. `None`: it says no place.
    FullCopy(Option<StreamPlace>),
    /// The payload of the copy follows in this form. The handshake is over.
    Payload(Form),
    /// The target of a failover does not take over.
    Rejected,
    /// The stream continues, perhaps under a new name of the history. The handshake is over.
    Continue(Option<ReplicationId>),
    /// The link ends for a reason.
    Refused(String),
}

/// The reply that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Ping,
    Auth,
    Port,
    Address,
    Capabilities,
    Version,
    Psync,
    Header,
    Nothing,
}

/// A handshake under way.
pub struct Greeting {
    introduction: Introduction,
    awaited: Awaited,
    /// The beginning of a line.
    line: Vec<u8>,
}

impl Greeting {
    /// Begins a handshake. The first events are its own.
    pub fn new(introduction: Introduction, events: &mut Vec<GreetingEvent>) -> Self {
        events.push(GreetingEvent::Send(request(&[b"PING"])));
        Self { introduction, awaited: Awaited::Ping, line: Vec::new() }
    }

    /// Takes bytes of the primary, and adds the events that follow from them.
    ///
    /// Returns how many bytes belong to the handshake. The rest belongs to the payload or the stream.
    pub fn feed(&mut self, bytes: &[u8], events: &mut Vec<GreetingEvent>) -> usize {
        let mut n_used = 0;
        while self.awaited != Awaited::Nothing && n_used < bytes.len() {
            let rest = &bytes[n_used..];
            let end = rest.iter().position(|&byte| byte == b'\n');
            let taken = end.map_or(rest.len(), |end| end + 1);
            self.line.extend_from_slice(&rest[..taken]);
            n_used += taken;
            if self.line.len() > LINE_BYTES_MAX {
                self.refuse(format!("The primary sends a line of more than {LINE_BYTES_MAX} bytes"), events);
            } else if end.is_some() {
                let line = std::mem::take(&mut self.line);
                self.take(line.trim_ascii_end(), events);
            }
        }
        n_used
    }

    fn refuse(&mut self, why: String, events: &mut Vec<GreetingEvent>) {
        self.awaited = Awaited::Nothing;
        events.push(GreetingEvent::Refused(why));
    }

    fn take(&mut self, line: &[u8], events: &mut Vec<GreetingEvent>) {
        // The primary shows in this way that it is alive, while it prepares a copy.
        if line.is_empty() {
            return;
        }
        let is_error = line[0] == b'-';
        let text = String::from_utf8_lossy(line).into_owned();
        match self.awaited {
            Awaited::Ping => {
                const LEAVE: [&[u8]; 3] = [b"-NOAUTH", b"-NOPERM", b"-ERR operation not permitted"];
                if line[0] != b'+' && !LEAVE.iter().any(|error| line.starts_with(error)) {
                    return self.refuse(format!("Error reply to PING from master: '{text}'"), events);
                }
                events.push(note("Master replied to PING, replication can continue..."));
                events.push(GreetingEvent::Send(self.introduce()));
                self.awaited = match self.introduction.password {
                    Some(_) => Awaited::Auth,
                    None => Awaited::Port,
                };
            }
            Awaited::Auth if is_error => self.refuse(format!("Unable to AUTH to MASTER: {text}"), events),
            Awaited::Auth => self.awaited = Awaited::Port,
            Awaited::Port => {
                note_refused("listening-port", is_error, &text, events);
                self.awaited = match self.introduction.address {
                    Some(_) => Awaited::Address,
                    None => Awaited::Capabilities,
                };
            }
            Awaited::Address => {
                note_refused("ip-address", is_error, &text, events);
                self.awaited = Awaited::Capabilities;
            }
            Awaited::Capabilities => {
                note_refused("capa", is_error, &text, events);
                self.awaited = Awaited::Version;
            }
            // Redis does not know this option.
            Awaited::Version => {
                self.ask(events);
                self.awaited = Awaited::Psync;
            }
            Awaited::Psync => self.take_reply(line, &text, events),
            Awaited::Header => self.take_header(line, &text, events),
            Awaited::Nothing => unreachable!("nothing is read any more"),
        }
    }

    /// The requests between PING and PSYNC.
    fn introduce(&self) -> Vec<u8> {
        let Introduction { user, password, port, address, .. } = &self.introduction;
        let mut requests = Vec::new();
        match (user, password) {
            (Some(user), Some(password)) => requests.extend(request(&[b"AUTH", user, password])),
            (None, Some(password)) => requests.extend(request(&[b"AUTH", password])),
            (_, None) => {}
        }
        let port = port.to_string();
        requests.extend(request(&[b"REPLCONF", b"listening-port", port.as_bytes()]));
        if let Some(address) = address {
            requests.extend(request(&[b"REPLCONF", b"ip-address", address]));
        }
        requests.extend(request(&[b"REPLCONF", b"capa", b"eof", b"capa", b"psync2"]));
        requests.extend(request(&[b"REPLCONF", b"version", ANNOUNCED_VERSION]));
        requests
    }

    /// Asks for the stream from the present place on, or for a copy.
    fn ask(&self, events: &mut Vec<GreetingEvent>) {
        let (replid, offset) = match &self.introduction.place {
            Some(place) => {
                let (replid, offset) = (place.id.as_str(), place.offset + 1);
                events
                    .push(note(&format!("Trying a partial resynchronization (request {replid}:{offset}).")));
                (replid, offset)
            }
            None => {
                events.push(note("Partial resynchronization not possible (no cached master)"));
                ("?", -1)
            }
        };
        let offset = offset.to_string();
        let mut words = vec![&b"PSYNC"[..], replid.as_bytes(), offset.as_bytes()];
        if self.introduction.is_failover {
            words.push(b"FAILOVER");
        }
        events.push(GreetingEvent::Send(request(&words)));
    }

    /// Takes the reply to PSYNC.
    fn take_reply(&mut self, line: &[u8], text: &str, events: &mut Vec<GreetingEvent>) {
        if let Some(rest) = word_after(line, b"+FULLRESYNC") {
            let Some(place) = place(rest) else {
                return self.refuse(
                    format!("The primary announces a copy without a valid id and offset: '{text}'"),
                    events,
                );
            };
            events.push(note(&format!("Full resync from master: {}:{}", place.id.as_str(), place.offset)));
            events.push(GreetingEvent::FullCopy(Some(place)));
            self.awaited = Awaited::Header;
        } else if let Some(rest) = word_after(line, b"+CONTINUE") {
            if self.introduction.place.is_none() {
                return self.refuse("The primary continues a stream that was not begun".to_owned(), events);
            }
            let id = match rest.trim_ascii() {
                b"" => None,
                id => match ReplicationId::parse(id) {
                    Some(id) => Some(id),
                    None => {
                        return self
                            .refuse(format!("The primary continues with an invalid id: '{text}'"), events);
                    }
                },
            };
            events.push(note("Successful partial resynchronization with master."));
            if let Some(id) = &id
                && self.introduction.place.is_some_and(|asked| asked.id != *id)
            {
                events.push(note(&format!("Master replication ID changed to {id}")));
            }
            events.push(GreetingEvent::Continue(id));
            self.awaited = Awaited::Nothing;
        } else if self.introduction.is_failover {
            events.push(note(&format!("Unexpected reply to PSYNC from master: {text}")));
            events.push(GreetingEvent::Rejected);
            self.awaited = Awaited::Nothing;
        } else if line.starts_with(b"-NOMASTERLINK") || line.starts_with(b"-LOADING") {
            self.refuse(
                format!("Master is currently unable to PSYNC but should be in the future: {text}"),
                events,
            );
        } else {
            events.push(note(&if line.starts_with(b"-ERR") {
                format!("Master does not support PSYNC or is in error state (reply: {text})")
            } else {
                format!("Unexpected reply to PSYNC from master: {text}")
            }));
            events.push(note("Retrying with SYNC..."));
            events.push(GreetingEvent::Send(request(&[b"SYNC"])));
            events.push(GreetingEvent::FullCopy(None));
            self.awaited = Awaited::Header;
        }
    }

    /// Takes the line before the payload.
    fn take_header(&mut self, line: &[u8], text: &str, events: &mut Vec<GreetingEvent>) {
        if line[0] == b'-' {
            return self.refuse(format!("MASTER aborted replication with an error: {}", &text[1..]), events);
        }
        let Some(form) = Form::of(line) else {
            return self.refuse(
                format!(
                    "Bad protocol from MASTER: the copy begins with '{text}', and not with its length or its \
                     end mark. Is the server at this host and port one that replicates?"
                ),
                events,
            );
        };
        self.awaited = Awaited::Nothing;
        events.push(GreetingEvent::Payload(form));
    }
}

fn note(text: &str) -> GreetingEvent {
    GreetingEvent::Note(text.to_owned())
}

fn note_refused(option: &str, is_error: bool, text: &str, events: &mut Vec<GreetingEvent>) {
    if is_error {
        events.push(note(&format!("(Non critical) Master does not understand REPLCONF {option}: {text}")));
    }
}

/// Returns the rest of a line after its first word, if it begins with that.
fn word_after<'l>(line: &'l [u8], word: &[u8]) -> Option<&'l [u8]> {
    line.strip_prefix(word).filter(|rest| rest.is_empty() || rest[0] == b' ')
}

fn place(rest: &[u8]) -> Option<StreamPlace> {
    let mut words = rest.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let id = ReplicationId::parse(words.next()?)?;
    let offset = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    (words.next().is_none() && (0..i64::MAX / 2).contains(&offset)).then_some(StreamPlace { id, offset })
}

/// A request in its wire format.
pub fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    braid_protocol::request::write_words(&mut bytes, words.len(), words.iter().copied());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef01234567";

    fn at(offset: i64) -> StreamPlace {
        StreamPlace { id: ReplicationId::parse(ID.as_bytes()).expect("an ID"), offset }
    }

    fn introduction(place: Option<StreamPlace>) -> Introduction {
        Introduction { port: 6380, place, ..Introduction::default() }
    }

    /// Plays the primary's bytes, cut after every `n` bytes. Returns the events, and the bytes left over.
    fn play(introduction: &Introduction, input: &[u8], n: usize) -> (Vec<GreetingEvent>, usize) {
        let mut events = Vec::new();
        let mut handshake = Greeting::new(introduction.clone(), &mut events);
        let mut n_left = 0;
        for piece in input.chunks(n) {
            n_left += piece.len() - handshake.feed(piece, &mut events);
        }
        (events, n_left)
    }

    /// The events without lines for the log, the same for every way in which the bytes may be cut.
    fn events(introduction: &Introduction, input: &[u8]) -> Vec<GreetingEvent> {
        let (whole, n_left) = play(introduction, input, input.len());
        for n in 1..input.len() {
            let (cut, n_left_of_cut) = play(introduction, input, n);
            assert_eq!((&cut, n_left_of_cut), (&whole, n_left), "cut after each {n} bytes");
        }
        whole.into_iter().filter(|event| !matches!(event, GreetingEvent::Note(_))).collect()
    }

    fn sent(events: &[GreetingEvent]) -> String {
        let sent = events.iter().map(|event| match event {
            GreetingEvent::Send(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        });
        sent.collect::<String>().replace("\r\n", " ")
    }

    #[test]
    fn a_replica_without_data_asks_for_a_copy() {
        let input = format!("+PONG\r\n+OK\r\n+OK\r\n-ERR what\r\n\n\n+FULLRESYNC {ID} 14\r\n\n$88\r\n");
        let events = events(&introduction(None), input.as_bytes());
        assert_eq!(
            sent(&events),
            "*1 $4 PING *3 $8 REPLCONF $14 listening-port $4 6380 *5 $8 REPLCONF $4 capa $3 eof $4 capa $6 psync2 \
             *3 $8 REPLCONF $7 version $5 9.0.0 *3 $5 PSYNC $1 ? $2 -1 "
        );
        assert_eq!(
            events[events.len() - 2..],
            [GreetingEvent::FullCopy(Some(at(14))), GreetingEvent::Payload(Form::Length(88))]
        );
    }

    #[test]
    fn it_logs_in_and_names_its_address() {
        let introduction = Introduction {
            user: Some(b"u".to_vec()),
            password: Some(b"p".to_vec()),
            address: Some(b"h".to_vec()),
            ..introduction(None)
        };
        let input = "-NOAUTH Authentication required.\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n";
        let sent = sent(&events(&introduction, input.as_bytes()));
        assert!(sent.contains("*3 $4 AUTH $1 u $1 p "), "{sent}");
        assert!(sent.contains("*3 $8 REPLCONF $10 ip-address $1 h "), "{sent}");
        assert!(sent.ends_with("*3 $5 PSYNC $1 ? $2 -1 "), "{sent}");
    }

    #[test]
    fn a_wrong_password_ends_the_link() {
        let introduction = Introduction { password: Some(b"p".to_vec()), ..introduction(None) };
        let events = events(&introduction, b"+PONG\r\n-WRONGPASS invalid\r\n+OK\r\n");
        let why = "Unable to AUTH to MASTER: -WRONGPASS invalid".to_owned();
        assert_eq!(events.last(), Some(&GreetingEvent::Refused(why)));
    }

    #[test]
    fn a_replica_with_data_continues_after_it() {
        let input = "+PONG\r\n+OK\r\n+OK\r\n+OK\r\n+CONTINUE\r\n*1\r\n";
        let events = events(&introduction(Some(at(99))), input.as_bytes());
        assert!(sent(&events).ends_with(&format!("*3 $5 PSYNC $40 {ID} $3 100 ")));
        assert_eq!(events.last(), Some(&GreetingEvent::Continue(None)));
        assert_eq!(play(&introduction(Some(at(99))), input.as_bytes(), 1000).1, 4);
    }

    #[test]
    fn a_new_name_of_the_history_is_taken_over() {
        let other = "f".repeat(40);
        let input = format!("+PONG\r\n+OK\r\n+OK\r\n+OK\r\n+CONTINUE {other}\r\n");
        let events = events(&introduction(Some(at(1))), input.as_bytes());
        let other = ReplicationId::parse(other.as_bytes());
        assert_eq!(events.last(), Some(&GreetingEvent::Continue(other)));
    }

    #[test]
    fn a_primary_without_psync_is_asked_by_sync() {
        for (reply, why) in [
            (
                "-ERR unknown command 'PSYNC'",
                "Master does not support PSYNC or is in error state (reply: -ERR",
            ),
            ("-NOPERM no", "Unexpected reply to PSYNC from master: -NOPERM no"),
            ("+CONTINUED", "Unexpected reply to PSYNC from master: +CONTINUED"),
        ] {
            let input = format!("+PONG\r\n+OK\r\n+OK\r\n-ERR what\r\n{reply}\r\n\n$88\r\nREDIS");
            for place in [None, Some(at(99))] {
                let events = events(&introduction(place), input.as_bytes());
                assert!(sent(&events).ends_with(" *1 $4 SYNC "), "{reply}: {}", sent(&events));
                let last = &events[events.len() - 2..];
                assert_eq!(last, [GreetingEvent::FullCopy(None), GreetingEvent::Payload(Form::Length(88))]);
                let (all, n_left) = play(&introduction(place), input.as_bytes(), 1000);
                assert_eq!(n_left, b"REDIS".len());
                let is_said = |event: &GreetingEvent| matches!(event, GreetingEvent::Note(text) if text.starts_with(why));
                assert!(all.iter().any(is_said), "{reply}: {all:?}");
            }
        }
    }

    #[test]
    fn refusals_say_why() {
        let before = "+PONG\r\n+OK\r\n+OK\r\n+OK\r\n";
        for (reply, expected) in [
            ("-NOMASTERLINK Can't SYNC\r\n", "unable to PSYNC but should be in the future: -NOMASTERLINK"),
            ("-LOADING wait\r\n", "unable to PSYNC but should be in the future: -LOADING wait"),
            ("-ERR no\r\n-ERR no SYNC\r\n", "aborted replication with an error: ERR no SYNC"),
            ("+FULLRESYNC x 1\r\n", "without a valid id and offset"),
            (&format!("+FULLRESYNC {ID} -4\r\n"), "without a valid id and offset"),
            (&format!("+FULLRESYNC {ID} 4 4\r\n"), "without a valid id and offset"),
            ("+CONTINUE\r\n", "a stream that was not begun"),
            ("+CONTINUED\r\n-ERR no SYNC\r\n", "aborted replication with an error: ERR no SYNC"),
            (&format!("+FULLRESYNC {ID} 4\r\n-ERR full\r\n"), "aborted replication with an error: ERR full"),
            (&format!("+FULLRESYNC {ID} 4\r\n+what\r\n"), "Bad protocol from MASTER"),
            (&"x".repeat(LINE_BYTES_MAX + 1), "a line of more than"),
        ] {
            let (events, _) = play(&introduction(None), format!("{before}{reply}").as_bytes(), 1 << 20);
            let Some(GreetingEvent::Refused(why)) = events.last() else { panic!("{reply}: {events:?}") };
            assert!(why.contains(expected), "{reply}: {why}");
        }
        let (events, _) = play(&introduction(None), b"-ERR unknown command 'PING'\r\n", 1 << 20);
        assert!(matches!(events.last(), Some(GreetingEvent::Refused(_))));
    }
}
