//! The conversion of templates to the bytes of requests.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::Distribution;
use rand_distr::weighted::WeightedAliasIndex;

use super::definition::{Command, Population, Workload};
use super::keys::{KeyNames, KeySampler, Keys, Pattern};
use super::size::SizeSampler;
use super::template::{self, Argument, NOW_MARKER, Piece};
use crate::error::BenchError;

/// The size of the pool from which values are cut.
const POOL_BYTES: usize = 64 * 1024;
/// The bounds on requests that a connection has under way while keys are loaded.
///
/// The first is a number, the second an approximate size in bytes.
const PRELOAD_PIPELINE: u64 = 64;
const PRELOAD_BYTES: u64 = 256 * 1024;
const NOW_DIGITS: usize = 16;

/// A workload made ready, shared by all generators that draw from it.
#[derive(Debug)]
pub struct Compiled {
    workload: Workload,
    commands: Vec<CompiledCommand>,
    /// The choice by weight; `None` where there is only one command.
    choice: Option<WeightedAliasIndex<f64>>,
    consumers: Vec<Vec<WriteStep>>,
    key_names: KeyNames,
    values: SizeSampler,
    ttl: SizeSampler,
    expire_share: f64,
    /// Whether any command has more than one stage.
    is_staged: bool,
    pool: Vec<u8>,
    next_new: Arc<AtomicU64>,
    /// The first key of a sequence.
    first_key: u64,
}

#[derive(Debug)]
struct CompiledCommand {
    title: String,
    /// The stages of the command.
    ///
    /// There is one, or two where keys are watched. The second is sent when the first is answered.
    stages: Vec<Stage>,
}

/// Requests that are sent together.
#[derive(Debug)]
struct Stage {
    requests: Vec<PreparedRequest>,
    n_replies: u32,
}

/// One request, ready to be written.
#[derive(Debug)]
struct PreparedRequest {
    steps: Vec<WriteStep>,
    /// The same steps without the time to live, where the request has an `{expire}`.
    lasting: Option<Vec<WriteStep>>,
}

/// The next bytes to append.
#[derive(Clone)]
enum WriteStep {
    /// Fixed bytes: headers of RESP, literals, or both.
    Bytes(Vec<u8>),
    /// A piece whose length has already been written.
    Piece(Piece),
    /// An argument whose length is known only once it is written.
    Sized(Vec<Piece>),
    /// A whole request, written from a key's number.
    Written(Arc<WriteRequest>),
}

/// Appends the request of the given number.
type WriteRequest = dyn Fn(u64, &mut Vec<u8>) + Send + Sync;

impl fmt::Debug for WriteStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.debug_tuple("Bytes").field(bytes).finish(),
            Self::Piece(piece) => f.debug_tuple("Piece").field(piece).finish(),
            Self::Sized(pieces) => f.debug_tuple("Sized").field(pieces).finish(),
            Self::Written(_) => f.write_str("Written"),
        }
    }
}

/// The inputs of a request that a generator does not choose.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moment {
    /// The time at which the request is due, in nanoseconds since the run began.
    pub due_nanos: u64,
    /// The connection that sends it.
    pub connection: usize,
}

/// A request that has been appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Issued {
    /// Index of its command among [`Compiled::titles`].
    pub command: usize,
    /// The number of replies that answer it.
    pub n_replies: u32,
    /// The key drawn last, for [`Generator::append_stage`].
    pub key: u64,
}

impl Compiled {
    /// Makes a workload ready.
    ///
    /// # Errors
    /// When a field makes no sense; the error names it.
    pub fn new(workload: &Workload) -> Result<Self, BenchError> {
        Self::of_commands(workload, &workload.weighted_commands())
    }

    /// Makes ready a population's requests for the keys whose numbers are in `keys`.
    ///
    /// # Errors
    /// As [`Compiled::new`].
    pub fn preload(
        workload: &Workload,
        population: &Population,
        keys: Range<u64>,
    ) -> Result<Self, BenchError> {
        let mut sequence = Workload {
            commands: Vec::new(),
            consumers: Vec::new(),
            preload: Vec::new(),
            reconnect_after: None,
            ..workload.clone()
        };
        sequence.keys.pattern = Pattern::Sequential;
        sequence.keys.count = keys.end;
        let largest = workload.values.size.sampler("values.size")?.largest();
        sequence.pipeline = (PRELOAD_BYTES / largest.max(1)).clamp(1, PRELOAD_PIPELINE) as usize;
        let mut compiled = Self::of_commands(&sequence, &[Command::of(&["PING"])])?;
        compiled.first_key = keys.start;
        compiled.key_names = KeyNames::new(&workload.keys)?;
        compiled.commands[0].stages = vec![compiled.stage("preload.requests", &population.requests)?];
        Ok(compiled)
    }

    /// Makes ready a sequence of `n_requests` requests that no template describes.
    ///
    /// `write` appends each by its number. Each is one request with one reply.
    ///
    /// # Errors
    /// When there is no request or no connection.
    pub fn written(
        n_connections: usize,
        n_requests: u64,
        write: impl Fn(u64, &mut Vec<u8>) + Send + Sync + 'static,
    ) -> Result<Self, BenchError> {
        let keys = Keys { count: n_requests, pattern: Pattern::Sequential, ..Keys::default() };
        let pipeline = PRELOAD_PIPELINE as usize;
        let sequence = Workload { connections: n_connections, pipeline, keys, ..Workload::default() };
        let mut compiled = Self::of_commands(&sequence, &[Command::of(&["PING"])])?;
        let request = PreparedRequest { steps: vec![WriteStep::Written(Arc::new(write))], lasting: None };
        compiled.commands[0].stages = vec![Stage { requests: vec![request], n_replies: 1 }];
        Ok(compiled)
    }

    fn of_commands(workload: &Workload, commands: &[Command]) -> Result<Self, BenchError> {
        check(workload)?;
        let choice = WeightedAliasIndex::new(commands.iter().map(|command| command.weight).collect())
            .map_err(|error| {
                BenchError::workload("commands", format!("the weights make no distribution: {error}"))
            })?;
        let mut compiled = Self {
            workload: workload.clone(),
            commands: Vec::new(),
            choice: (commands.len() > 1).then_some(choice),
            consumers: Vec::new(),
            key_names: KeyNames::new(&workload.keys)?,
            values: workload.values.size.sampler("values.size")?,
            ttl: workload.expiry.seconds.sampler("expiry.seconds")?,
            expire_share: workload.expiry.share,
            is_staged: commands.iter().any(|command| !command.watch.is_empty()),
            pool: pool(workload.seed),
            next_new: Arc::new(AtomicU64::new(workload.keys.count)),
            first_key: 0,
        };
        // The sampler is made for its errors and dropped, so that making a generator cannot fail.
        KeySampler::new(&workload.keys, compiled.next_new.clone(), 0, 1)?;
        for (index, population) in workload.preload.iter().enumerate() {
            compiled.stage(&format!("preload[{index}].requests"), &population.requests)?;
        }
        for (index, command) in commands.iter().enumerate() {
            let stages = compiled.stages(&format!("commands[{index}]"), command)?;
            compiled.commands.push(CompiledCommand { title: command.title(), stages });
        }
        for (index, consumer) in workload.consumers.iter().enumerate() {
            let request = compiled.request(&format!("consumers[{index}].args"), &consumer.args)?;
            compiled.consumers.push(request.steps);
        }
        Ok(compiled)
    }

    /// Returns the number of keys that a sequence visits.
    pub fn n_sequence(&self) -> u64 {
        self.workload.keys.count - self.first_key
    }

    /// Returns the workload that was compiled.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Returns the names of the commands.
    pub fn titles(&self) -> impl Iterator<Item = &str> {
        self.commands.iter().map(|command| command.title.as_str())
    }

    fn stages(&self, place: &str, command: &Command) -> Result<Vec<Stage>, BenchError> {
        let Command { args, transaction, watch, reads, .. } = command;
        if args.is_empty() == transaction.is_empty() {
            return Err(BenchError::workload(place, "a command has either args or a transaction"));
        }
        if command.inline {
            let line = WriteStep::Bytes(format!("{}\r\n", args.join(" ")).into_bytes());
            let request = PreparedRequest { steps: vec![line], lasting: None };
            return Ok(vec![Stage { requests: vec![request], n_replies: 1 }]);
        }
        if transaction.is_empty() {
            if !watch.is_empty() || !reads.is_empty() {
                return Err(BenchError::workload(place, "only a transaction watches keys"));
            }
            let request = self.request(&format!("{place}.args"), args)?;
            return Ok(vec![Stage { requests: vec![request], n_replies: 1 }]);
        }
        let between = |first: Vec<String>, middle: &[Vec<String>], last: &[&str]| {
            let last = last.iter().map(|&name| vec![name.to_owned()]);
            std::iter::once(first).chain(middle.iter().cloned()).chain(last).collect::<Vec<_>>()
        };
        let exec = between(vec!["MULTI".to_owned()], transaction, &["EXEC"]);
        let exec = self.stage(&format!("{place}.transaction"), &exec)?;
        if watch.is_empty() {
            return Ok(vec![exec]);
        }
        let mut watched = vec!["WATCH".to_owned()];
        watched.extend(watch.iter().cloned());
        Ok(vec![self.stage(&format!("{place}.watch"), &between(watched, reads, &[]))?, exec])
    }

    fn stage(&self, place: &str, requests: &[Vec<String>]) -> Result<Stage, BenchError> {
        let requests = requests
            .iter()
            .enumerate()
            .map(|(index, args)| self.request(&format!("{place}[{index}]"), args))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Stage { n_replies: requests.len() as u32, requests })
    }

    fn request(&self, place: &str, args: &[String]) -> Result<PreparedRequest, BenchError> {
        let args = template::parse(place, args)?;
        let with = |expiring: bool| {
            let mut arguments = Vec::new();
            for argument in &args {
                match argument {
                    Argument::Pieces(pieces) => arguments.push(pieces.clone()),
                    Argument::Expire if expiring => {
                        arguments.extend([vec![Piece::Literal(b"EX".to_vec())], vec![Piece::Ttl]]);
                    }
                    Argument::Expire => {}
                }
            }
            self.steps(&arguments)
        };
        let may_last = args.contains(&Argument::Expire) && self.expire_share < 1.0;
        Ok(PreparedRequest { steps: with(true), lasting: may_last.then(|| with(false)) })
    }

    fn steps(&self, arguments: &[Vec<Piece>]) -> Vec<WriteStep> {
        let mut steps = vec![WriteStep::Bytes(format!("*{}\r\n", arguments.len()).into_bytes())];
        for pieces in arguments {
            let lengths: Option<Vec<_>> = pieces.iter().map(|piece| self.fixed_len(piece)).collect();
            match lengths {
                None => steps.push(WriteStep::Sized(pieces.clone())),
                Some(lengths) => {
                    push_bytes(&mut steps, format!("${}\r\n", lengths.iter().sum::<usize>()).as_bytes());
                    for piece in pieces {
                        match piece {
                            Piece::Literal(bytes) => push_bytes(&mut steps, bytes),
                            other => steps.push(WriteStep::Piece(other.clone())),
                        }
                    }
                    push_bytes(&mut steps, b"\r\n");
                }
            }
        }
        steps
    }

    /// Returns the piece's length, where it is always the same.
    fn fixed_len(&self, piece: &Piece) -> Option<usize> {
        let makes_new_keys = matches!(self.workload.keys.pattern, Pattern::Latest { .. });
        match piece {
            Piece::Literal(bytes) => Some(bytes.len()),
            Piece::Key | Piece::KeyOf { .. } | Piece::Same => self.key_names.fixed_len(makes_new_keys),
            Piece::NewKey => self.key_names.fixed_len(true),
            Piece::Value => self.values.fixed().map(|size| size as usize),
            Piece::ValueOf(size) => Some(*size as usize),
            Piece::Now => Some(NOW_MARKER.len() + NOW_DIGITS),
            Piece::Int { .. } | Piece::Ttl | Piece::Connection => None,
        }
    }
}

fn check(workload: &Workload) -> Result<(), BenchError> {
    let watches = workload.commands.iter().any(|command| !command.watch.is_empty());
    let mistakes = [
        (workload.connections == 0, "connections", "there must be at least one"),
        (workload.pipeline == 0, "pipeline", "it must be at least 1"),
        (!matches!(workload.protocol, 2 | 3), "protocol", "it is 2 or 3"),
        (workload.reconnect_after == Some(0), "reconnect_after", "it must be at least 1"),
        (workload.duration.is_zero(), "duration", "it must be above 0"),
        (!(0.0..=1.0).contains(&workload.expiry.share), "expiry.share", "it is from 0 to 1"),
        (
            workload.read_share.is_some_and(|share| !(0.0..=1.0).contains(&share)),
            "read_share",
            "it is from 0 to 1",
        ),
        (workload.rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())), "rate", "it must be above 0"),
        (
            workload.consumers.iter().any(|consumer| consumer.message_bytes == Some(0)),
            "consumers.message_bytes",
            "it must be at least 1",
        ),
        (
            workload.consumers.iter().any(|consumer| consumer.repeat && consumer.message_bytes.is_some()),
            "consumers.message_bytes",
            "messages that answer a request are read, not counted by their bytes",
        ),
        (watches && workload.pipeline > 1, "pipeline", "a command that watches keys needs pipeline = 1"),
    ];
    match mistakes.into_iter().find(|(is_wrong, ..)| *is_wrong) {
        Some((_, place, why)) => Err(BenchError::workload(place, why)),
        None => Ok(()),
    }
}

/// Makes letters and digits in random order, which a compressing server can hardly compress.
fn pool(seed: u64) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut random = SmallRng::seed_from_u64(seed);
    (0..POOL_BYTES).map(|_| LETTERS[random.random_range(0..LETTERS.len())]).collect()
}

/// Appends to the last step if it consists of bytes too.
fn push_bytes(steps: &mut Vec<WriteStep>, bytes: &[u8]) {
    match steps.last_mut() {
        Some(WriteStep::Bytes(last)) => last.extend_from_slice(bytes),
        _ => steps.push(WriteStep::Bytes(bytes.to_vec())),
    }
}

/// Draws requests for one worker. Once its buffers have grown, it allocates nothing.
#[derive(Debug)]
pub struct Generator {
    compiled: Arc<Compiled>,
    draws: Draws,
    /// The argument whose length is not known yet.
    scratch: Vec<u8>,
}

/// The state of the random choices.
#[derive(Debug)]
struct Draws {
    random: SmallRng,
    keys: KeySampler,
    key: u64,
}

impl Generator {
    /// Makes the generator of worker `worker` of `n_workers`.
    ///
    /// Each worker has its own choices, and its part of a sequence of keys.
    pub fn new(compiled: &Arc<Compiled>, worker: usize, n_workers: usize) -> Self {
        let workload = &compiled.workload;
        let first = compiled.first_key + worker as u64;
        let keys = KeySampler::new(&workload.keys, compiled.next_new.clone(), first, n_workers as u64)
            .expect("the workload was checked when it was compiled");
        let random = SmallRng::seed_from_u64(workload.seed.wrapping_add(worker as u64 * 0x9E37_79B9));
        Self { compiled: compiled.clone(), draws: Draws { random, keys, key: 0 }, scratch: Vec::new() }
    }

    /// Appends one request, or the first stage of one, to `out`.
    #[inline]
    pub fn append(&mut self, moment: Moment, out: &mut Vec<u8>) -> Issued {
        let command = self.compiled.choice.as_ref().map_or(0, |choice| choice.sample(&mut self.draws.random));
        self.write(command, 0, moment, out)
    }

    /// Whether any command has more than one stage.
    pub fn is_staged(&self) -> bool {
        self.compiled.is_staged
    }

    /// Returns the number of a command's stages.
    pub fn n_stages(&self, command: usize) -> usize {
        self.compiled.commands[command].stages.len()
    }

    /// Appends stage `stage` of `command`, in which `{same}` means `key`.
    ///
    /// # Panics
    /// When the command has no such stage.
    pub fn append_stage(
        &mut self,
        command: usize,
        stage: usize,
        key: u64,
        moment: Moment,
        out: &mut Vec<u8>,
    ) -> Issued {
        self.draws.key = key;
        self.write(command, stage, moment, out)
    }

    /// Appends the request of consumer group `group`.
    pub fn append_consumer(&mut self, group: usize, moment: Moment, out: &mut Vec<u8>) {
        let Self { compiled, draws, scratch } = self;
        draws.write(compiled, &compiled.consumers[group], scratch, moment, out);
    }

    fn write(&mut self, command: usize, stage: usize, moment: Moment, out: &mut Vec<u8>) -> Issued {
        let Self { compiled, draws, scratch } = self;
        let stage = &compiled.commands[command].stages[stage];
        for request in &stage.requests {
            let steps = match &request.lasting {
                Some(lasting) if draws.random.random::<f64>() >= compiled.expire_share => lasting,
                _ => &request.steps,
            };
            draws.write(compiled, steps, scratch, moment, out);
        }
        Issued { command, n_replies: stage.n_replies, key: draws.key }
    }
}

impl Draws {
    fn write(
        &mut self,
        compiled: &Compiled,
        steps: &[WriteStep],
        scratch: &mut Vec<u8>,
        moment: Moment,
        out: &mut Vec<u8>,
    ) {
        for step in steps {
            match step {
                WriteStep::Bytes(bytes) => out.extend_from_slice(bytes),
                WriteStep::Piece(piece) => self.write_piece(compiled, piece, moment, out),
                WriteStep::Written(write) => {
                    self.key = self.keys.sample(&mut self.random);
                    write(self.key, out);
                }
                WriteStep::Sized(pieces) => {
                    scratch.clear();
                    pieces.iter().for_each(|piece| self.write_piece(compiled, piece, moment, scratch));
                    out.push(b'$');
                    braid_protocol::number::write_i64(out, scratch.len() as i64);
                    out.extend_from_slice(b"\r\n");
                    out.extend_from_slice(scratch);
                    out.extend_from_slice(b"\r\n");
                }
            }
        }
    }

    fn write_piece(&mut self, compiled: &Compiled, piece: &Piece, moment: Moment, out: &mut Vec<u8>) {
        match piece {
            Piece::Literal(bytes) => out.extend_from_slice(bytes),
            Piece::Key => {
                self.key = self.keys.sample(&mut self.random);
                compiled.key_names.append(self.key, out);
            }
            Piece::KeyOf { n_keys } => {
                self.key = self.keys.sample(&mut self.random) % n_keys;
                compiled.key_names.append(self.key, out);
            }
            Piece::Same => compiled.key_names.append(self.key, out),
            Piece::NewKey => {
                self.key = self.keys.new_key();
                compiled.key_names.append(self.key, out);
            }
            Piece::Value => {
                let size = compiled.values.sample(&mut self.random);
                self.write_value(&compiled.pool, size, out);
            }
            Piece::ValueOf(size) => self.write_value(&compiled.pool, *size, out),
            Piece::Int { low, high } => {
                braid_protocol::number::write_i64(out, self.random.random_range(*low..=*high));
            }
            Piece::Ttl => {
                let seconds = compiled.ttl.sample(&mut self.random).max(1);
                braid_protocol::number::write_i64(out, seconds as i64);
            }
            Piece::Now => {
                out.extend_from_slice(NOW_MARKER);
                let digit =
                    |at: usize| b"0123456789abcdef"[(moment.due_nanos >> (60 - 4 * at)) as usize & 15];
                out.extend((0..NOW_DIGITS).map(digit));
            }
            Piece::Connection => braid_protocol::number::write_i64(out, moment.connection as i64),
        }
    }

    /// Appends bytes from a random place of the pool, which is a ring.
    #[inline]
    fn write_value(&mut self, pool: &[u8], size: u64, out: &mut Vec<u8>) {
        let mut from = self.random.random_range(0..POOL_BYTES);
        let mut n_missing = size as usize;
        while n_missing > 0 {
            let n_bytes = n_missing.min(POOL_BYTES - from);
            out.extend_from_slice(&pool[from..from + n_bytes]);
            n_missing -= n_bytes;
            from = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_protocol::{Parse, RequestParser};
    use proptest::prelude::*;

    use super::*;
    use crate::workload::{Keys, NAMED, Size, Values};

    fn generator(workload: &Workload) -> Generator {
        Generator::new(&Arc::new(Compiled::new(workload).expect("the workload makes sense")), 0, 1)
    }

    /// The requests in `bytes`, each as its arguments.
    fn requests(mut bytes: Vec<u8>) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let mut args = Vec::new();
            match RequestParser::default().parse(&mut bytes, &mut args).expect("it is RESP") {
                Parse::Request { consumed } => {
                    let text =
                        |arg: &braid_protocol::Arg| String::from_utf8_lossy(arg.of(&bytes)).into_owned();
                    found.push(args.iter().map(text).collect());
                    bytes.drain(..consumed);
                }
                other => panic!("{other:?} in {:?}", String::from_utf8_lossy(&bytes)),
            }
        }
        found
    }

    fn drawn(workload: &Workload, n_requests: usize) -> Vec<Vec<String>> {
        let mut generator = generator(workload);
        let mut out = Vec::new();
        (0..n_requests).for_each(|_| {
            generator.append(Moment::default(), &mut out);
        });
        requests(out)
    }

    fn of_command(command: Command) -> Workload {
        Workload { commands: vec![command], ..Workload::default() }
    }

    #[test]
    fn every_named_workload_makes_the_requests_it_counts() {
        for (name, text) in NAMED {
            let workload = Workload::parse(name, text).expect("it is one of ours");
            let mut generator = generator(&workload);
            let mut out = Vec::new();
            let n_replies: u32 =
                (0..500).map(|_| generator.append(Moment::default(), &mut out).n_replies).sum();
            assert_eq!(requests(out).len(), n_replies as usize, "{name}");
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_requests() {
        let workload = Workload::default();
        assert_eq!(drawn(&workload, 100), drawn(&workload, 100));
        assert_ne!(drawn(&workload, 100), drawn(&Workload { seed: 2, ..workload }, 100));
    }

    #[test]
    fn same_is_the_key_drawn_last() {
        let command = Command::of(&["RENAME", "{key}", "{same}:old"]);
        for request in drawn(&of_command(command), 20) {
            assert_eq!(request[2], format!("{}:old", request[1]));
        }
    }

    #[test]
    fn a_share_of_requests_expires() {
        let mut workload = of_command(Command::of(&["SET", "{key}", "{value}", "{expire}"]));
        workload.expiry.share = 0.25;
        let n_expiring = drawn(&workload, 4000).iter().filter(|request| request.len() == 5).count();
        assert!((900..1100).contains(&n_expiring), "{n_expiring} of 4000");
    }

    #[test]
    fn a_watched_key_is_the_same_in_both_stages() {
        let workload = of_command(Command {
            watch: vec!["{key}".into()],
            reads: vec![vec!["GET".into(), "{same}".into()]],
            transaction: vec![vec!["SET".into(), "{same}".into(), "{value}".into()]],
            ..Command::default()
        });
        let mut generator = generator(&workload);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let issued = generator.append(Moment::default(), &mut first);
        generator.append(Moment::default(), &mut Vec::new());
        let stage = generator.append_stage(issued.command, 1, issued.key, Moment::default(), &mut second);
        assert_eq!((issued.n_replies, stage.n_replies), (2, 3));
        let (first, second) = (requests(first), requests(second));
        assert_eq!((&first[0][1], &first[1][1]), (&second[1][1], &second[1][1]));
        assert_eq!(generator.n_stages(issued.command), 2);
    }

    #[test]
    fn preloading_visits_every_key_once() {
        let request = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let requests_of_key = vec![request(&["SET", "{key}", "{value}"]), request(&["TTL", "{same}"])];
        let population = Population { count: Some(40), requests: requests_of_key };
        let preload = Compiled::preload(&Workload::default(), &population, 10..40).expect("it makes sense");
        let mut generator = Generator::new(&Arc::new(preload), 0, 1);
        let mut out = Vec::new();
        (0..30).for_each(|_| assert_eq!(generator.append(Moment::default(), &mut out).n_replies, 2));
        let names: Vec<_> = requests(out).iter().step_by(2).map(|request| request[1].clone()).collect();
        assert_eq!(names, (10..40).map(|index| format!("key:{index:012}")).collect::<Vec<_>>());
    }

    #[test]
    fn now_is_written_where_it_can_be_found() {
        let mut out = Vec::new();
        let moment = Moment { due_nanos: 0x1234_5678_9abc, connection: 7 };
        generator(&of_command(Command::of(&["PUBLISH", "c{connection}", "{now}"]))).append(moment, &mut out);
        assert_eq!(requests(out), [["PUBLISH", "c7", "@now:0000123456789abc"]]);
    }

    proptest! {
        #[test]
        fn requests_are_well_formed_whatever_the_sizes(
            key_bytes in 0_u64..40,
            value_bytes in 0_u64..200_000,
            varies: bool,
            count in 1_u64..1_000_000,
        ) {
            let size = |size| if varies { Size::Range { min: size / 2, max: size } } else { Size::Fixed(size) };
            let workload = Workload {
                keys: Keys { count, size: size(key_bytes), ..Keys::default() },
                values: Values { size: size(value_bytes) },
                ..of_command(Command::of(&["SET", "{key}", "x{value}", "{new_key}", "{int:1:1000}"]))
            };
            for request in drawn(&workload, 5) {
                prop_assert_eq!(request.len(), 5);
                let n_bytes = request[2].len() as u64 - 1;
                prop_assert!(n_bytes <= value_bytes && (varies || n_bytes == value_bytes));
            }
        }
    }
}
