//! Playing a transcript against a server.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use super::pattern::{Captures, Pattern, expand};
use super::{Action, ClientNumber, Release, ServerFamily, Transcript, TranscriptStep};
use crate::support::{Client, PATIENCE, Reply, Resp, Server};

/// The result of playing a transcript.
#[derive(Default)]
pub struct Outcome {
    pub n_run: usize,
    /// Steps of blocks that do not apply to the server.
    pub n_skipped: usize,
    /// One text a mismatch.
    pub mismatches: Vec<String>,
    /// The lines of expected replies that are wrong, and the actual replies.
    pub corrections: Vec<(Range<usize>, String)>,
}

/// A server for transcripts, which are played one after the other.
pub struct Environment {
    pub server: Server,
    pub release: Release,
    /// A connection that is not part of any transcript.
    control: Client,
}

impl Environment {
    /// Starts a server with the settings of a transcript, and `args`.
    pub fn start(settings: &[(String, String)], args: &[&str]) -> Environment {
        let flags: Vec<(String, &String)> =
            settings.iter().map(|(name, value)| (format!("--{name}"), value)).collect();
        let flags = flags.iter().flat_map(|(flag, value)| [flag.as_str(), value.as_str()]);
        let args: Vec<&str> = args.iter().copied().chain(flags).collect();
        let server = Server::start(&args);
        let mut control = server.connect();
        if let Some((_, password)) = settings.iter().find(|(name, _)| name == "requirepass") {
            control.command(&["AUTH", password]);
        }
        let release = release_of(&mut control);
        Environment { server, release, control }
    }

    /// Plays a transcript. The keyspace is empty at first and no other client is connected.
    ///
    /// # Errors
    /// When the server cannot continue. The message contains the results so far.
    pub fn play(&mut self, transcript: &Transcript, resp: Resp) -> Result<Outcome, String> {
        let mut outcome = Outcome::default();
        if !transcript.scope.includes(self.release, resp) {
            outcome.n_skipped = transcript.steps().count();
            return Ok(outcome);
        }
        self.await_solitude().map_err(|error| self.broken(transcript, &error))?;
        let reply =
            self.control.try_command(&["FLUSHALL"]).map_err(|error| self.broken(transcript, &error))?;
        if reply.is_error() {
            return Err(format!("FLUSHALL before {}: {reply}", transcript.name));
        }
        let mut session =
            Session { environment: self, resp, clients: HashMap::new(), captures: Captures::new() };
        for block in &transcript.blocks {
            if !block.scope.includes(session.environment.release, resp) {
                outcome.n_skipped += block.steps.len();
                continue;
            }
            for step in &block.steps {
                outcome.n_run += 1;
                match session.play(step) {
                    Ok(None) => {}
                    Ok(Some(got)) => {
                        outcome.mismatches.push(describe(transcript, step, resp, &got));
                        if step.action.has_replies() {
                            outcome.corrections.push((step.expected_lines.clone(), got));
                        }
                    }
                    // The next steps would only repeat the trouble.
                    Err(error) => {
                        outcome.mismatches.push(describe(transcript, step, resp, &format!("({error})")));
                        return Ok(outcome);
                    }
                }
            }
        }
        Ok(outcome)
    }

    /// Waits until the clients of the previous transcript have left, because their subscriptions would count.
    fn await_solitude(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let list = self.control.try_command(&["CLIENT", "LIST"])?.text().unwrap_or_default();
            if list.lines().count() <= 1 {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("clients stay:\n{list}")));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn broken(&self, transcript: &Transcript, error: &io::Error) -> String {
        format!("the server is gone before {}: {error}\n{}", transcript.name, self.server.log_tail())
    }
}

fn release_of(control: &mut Client) -> Release {
    let family_if_named = |name: &str| match name {
        "valkey" => ServerFamily::Valkey,
        _ => ServerFamily::Redis,
    };
    if Server::compat_program().is_none() {
        return Release { family: ServerFamily::Braid, version: (0, 0) };
    }
    let info = control.command(&["INFO", "server"]).text().expect("INFO is a text");
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let family = field("server_name").map_or(ServerFamily::Redis, family_if_named);
    let version = match family {
        ServerFamily::Valkey => field("valkey_version"),
        _ => field("redis_version"),
    };
    let mut numbers = version.unwrap_or("0.0").split('.').map(|number| number.parse().unwrap_or(0));
    Release { family, version: (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) }
}

/// One playing of one transcript.
struct Session<'a> {
    environment: &'a mut Environment,
    resp: Resp,
    clients: HashMap<ClientNumber, Client>,
    captures: Captures,
}

impl Session<'_> {
    /// Plays a step. Returns the actual replies if the transcript expects others.
    fn play(&mut self, step: &TranscriptStep) -> io::Result<Option<String>> {
        match &step.action {
            Action::Command(number, argv) => {
                let argv = self.expand_all(argv);
                self.client(*number)?.try_send(&argv)?;
                self.receive(*number, step, Some(&argv))
            }
            Action::Send(number, argv) => {
                let argv = self.expand_all(argv);
                self.client(*number)?.try_send(&argv)?;
                Ok(None)
            }
            Action::Receive(number) => self.receive(*number, step, None),
            Action::Raw(number, bytes) => {
                let bytes = expand(bytes, &self.captures);
                self.client(*number)?.try_send_raw(&bytes)?;
                self.receive(*number, step, None)
            }
            Action::FinishSending(number) => {
                self.client(*number)?.finish_sending();
                Ok(None)
            }
            Action::AwaitClose(number) => {
                let bytes = self.client(*number)?.await_close()?;
                Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
            }
            Action::Reconnect(number) => {
                self.clients.remove(number);
                self.client(*number)?;
                Ok(None)
            }
            Action::AwaitBlocked(number) => self.await_blocked(*number),
            Action::Advance { milliseconds } => {
                let control = &mut self.environment.control;
                let reply = control.try_command(&["DEBUG", "ADVANCE-TIME", &milliseconds.to_string()])?;
                Ok(reply.is_error().then(|| reply.to_string()))
            }
        }
    }

    fn expand_all(&self, argv: &[Vec<u8>]) -> Vec<Vec<u8>> {
        argv.iter().map(|arg| expand(arg, &self.captures)).collect()
    }

    fn client(&mut self, number: ClientNumber) -> io::Result<&mut Client> {
        if !self.clients.contains_key(&number) {
            let mut client = Client::try_connect(self.environment.server.port())?;
            client.hello(self.resp)?;
            self.clients.insert(number, client);
        }
        Ok(self.clients.get_mut(&number).expect("it was inserted just now"))
    }

    /// Receives the expected number of replies, and compares. A command without expectations has one reply.
    fn receive(
        &mut self,
        number: ClientNumber,
        step: &TranscriptStep,
        argv: Option<&[Vec<u8>]>,
    ) -> io::Result<Option<String>> {
        let expected = step.expected_of(self.environment.release);
        let patterns: Vec<&Pattern> =
            expected.iter().filter(|pattern| !matches!(pattern, Pattern::Nothing)).collect();
        let n_replies = if expected.is_empty() && argv.is_some() { 1 } else { patterns.len() };
        let mut all_match = n_replies == patterns.len();
        let mut got = String::new();
        for index in 0..n_replies {
            let client = self.client(number)?;
            let reply = client.try_receive()?;
            if let Some(argv) = argv {
                note_version(client, argv, &reply);
            }
            let resp = client.resp();
            let matches =
                patterns.get(index).is_some_and(|pattern| pattern.matches(&reply, resp, &mut self.captures));
            all_match &= matches;
            writeln!(got, "{reply}").expect("writing to a String cannot fail");
        }
        Ok((!all_match).then_some(got))
    }

    /// Waits until the server lists a client as blocked. There is no other sign of that.
    fn await_blocked(&mut self, number: ClientNumber) -> io::Result<Option<String>> {
        let Some(id) = self.client(number)?.id() else {
            return Ok(Some("(the client has no id)".to_owned()));
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let reply = self.environment.control.try_command(&["CLIENT", "LIST", "ID", &id.to_string()])?;
            let text = reply.text().unwrap_or_default();
            let flags = text.split(' ').find_map(|field| field.strip_prefix("flags="));
            if flags.is_some_and(|flags| flags.contains('b')) {
                return Ok(None);
            }
            if Instant::now() > deadline {
                return Ok(Some(format!("{reply}\n")));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Follows the connection's version through HELLO and RESET.
fn note_version(client: &mut Client, argv: &[Vec<u8>], reply: &Reply) {
    let name = argv[0].to_ascii_uppercase();
    match (name.as_slice(), argv.get(1).map(Vec::as_slice), reply) {
        (b"HELLO", _, Reply::Error(_) | Reply::Status(_)) => {}
        (b"HELLO", Some(b"2"), _) => client.set_resp(Resp::Two),
        (b"HELLO", Some(b"3"), _) => client.set_resp(Resp::Three),
        (b"RESET", _, Reply::Status(text)) if text == b"RESET" => client.set_resp(Resp::Two),
        _ => {}
    }
}

fn describe(transcript: &Transcript, step: &TranscriptStep, resp: Resp, got: &str) -> String {
    let expected: Vec<String> = std::fs::read_to_string(&transcript.path)
        .unwrap_or_default()
        .lines()
        .skip(step.expected_lines.start)
        .take(step.expected_lines.len())
        .map(|line| format!("      {line}"))
        .collect();
    let got: Vec<String> = got.lines().map(|line| format!("      {line}")).collect();
    format!(
        "{}.txt:{} (RESP {resp:?}): {}\n    expected\n{}\n    got\n{}",
        transcript.name,
        step.line,
        step.source,
        expected.join("\n"),
        got.join("\n")
    )
}
