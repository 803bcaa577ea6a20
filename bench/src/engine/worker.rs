//! One worker thread of the load.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use super::arrivals::{Arrivals, Schedule};
use super::connection::{Connection, Reply};
use super::outcome::{Slice, WorkerUse};
use super::recorder::{Record, histogram};
use super::settings::{Limit, LoadTarget, Plan};
use crate::error::{BenchError, Doing};
use crate::workload::{Compiled, Generator, Moment};

const BUFFER_BYTES: usize = 256 * 1024;
const SECOND: u64 = 1_000_000_000;
/// The longest wait for the last replies after the end.
const DRAIN_NANOS: u64 = 10 * SECOND;
/// The time after the end of an open loop in which due requests may still be sent.
///
/// Requests of the last moments fall due while the worker is busy with others or asleep. Requests that are
/// still unsent after this time have been delayed by the server.
const GRACE_NANOS: u64 = SECOND / 20;
/// Consecutive broken connections, without a reply in between, after which the server counts as gone.
const MAX_BROKEN: u32 = 100;
const TIMER: Token = Token(usize::MAX);

/// A thread's connections and all that it counts.
#[derive(Debug)]
pub(super) struct Worker {
    target: LoadTarget,
    poll: Poll,
    timer: OwnedFd,
    connections: Vec<Connection>,
    lanes: Vec<Lane>,
    /// Lanes without an unanswered request, ordered by when their next one is due.
    idle: BinaryHeap<Reverse<(u64, usize)>>,
    generator: Generator,
    buffer: Vec<u8>,
    batch: usize,
    reconnect_after: u64,
    cpus: Vec<usize>,
    tally: Tally,
    phases: Phases,
    /// Ends the load when it is set.
    told: Option<Arc<AtomicBool>>,
    /// Requests that may still be sent.
    n_left: u64,
    n_waiting: usize,
    n_broken: u32,
    start: Instant,
}

/// The state of a connection that outlives its socket.
#[derive(Debug)]
struct Lane {
    /// The connection's number among the connections of all workers.
    number: usize,
    /// The schedule; `None` in a closed loop.
    schedule: Option<Schedule>,
    /// The time of its last reply, in nanoseconds since the run began.
    free_since: u64,
}

/// The interval in which requests count, in nanoseconds since the run began.
#[derive(Debug, Clone, Copy)]
struct Phases {
    counts_from: u64,
    ends: u64,
}

impl Phases {
    /// Whether a request that was due at `due` may be sent at `now`. In a closed loop both are the same.
    fn may_send(self, due: u64, now: u64) -> bool {
        due < self.ends && now < self.ends.saturating_add(GRACE_NANOS)
    }
}

/// The counts, and those of the current second.
#[derive(Debug)]
struct Tally {
    record: Record,
    second: u64,
    n_done: u64,
    n_errors: u64,
    response: Histogram<u64>,
    cpu: Duration,
    last_reply_nanos: u64,
}

/// The results of a worker.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) record: Record,
    pub(super) used: WorkerUse,
}

impl Worker {
    /// Opens the connections of worker `index` of `n_workers`.
    pub(super) fn connect(
        target: &LoadTarget,
        compiled: &Arc<Compiled>,
        plan: &Plan,
        index: usize,
        n_workers: usize,
    ) -> Result<Self, BenchError> {
        let workload = compiled.workload();
        let poll = Poll::new().doing("create a poll")?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)
            .map_err(io::Error::from)
            .doing("create a timer")?;
        poll.registry()
            .register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)
            .doing("register a timer")?;
        let lane = |number| Lane {
            number,
            schedule: match plan.arrivals {
                Arrivals::Closed => None,
                Arrivals::Open { rate, shape } => Some(Schedule::new(
                    shape,
                    rate,
                    workload.pipeline,
                    number,
                    workload.connections,
                    workload.seed,
                )),
            },
            free_since: 0,
        };
        let lanes: Vec<_> = (index..workload.connections).step_by(n_workers).map(lane).collect();
        let connections = (0..lanes.len())
            .map(|lane| Connection::open(target, poll.registry(), Token(lane)))
            .collect::<Result<_, _>>()?;
        let endless = Phases { counts_from: 0, ends: u64::MAX };
        let (phases, n_left) = match plan.limit {
            Limit::Requests(n_requests) => {
                (endless, n_requests.saturating_sub(index as u64).div_ceil(n_workers as u64))
            }
            Limit::Told(_) => (endless, u64::MAX),
            Limit::Time { warmup, measured } => {
                let counts_from = warmup.as_nanos() as u64;
                (Phases { counts_from, ends: counts_from + measured.as_nanos() as u64 }, u64::MAX)
            }
        };
        Ok(Self {
            target: target.clone(),
            poll,
            timer,
            connections,
            lanes,
            idle: BinaryHeap::new(),
            generator: Generator::new(compiled, index, n_workers),
            buffer: vec![0; BUFFER_BYTES],
            batch: workload.pipeline,
            reconnect_after: workload.reconnect_after.unwrap_or(u64::MAX),
            cpus: plan.cpus.clone(),
            tally: Tally::new(compiled),
            phases,
            told: match &plan.limit {
                Limit::Told(told) => Some(Arc::clone(told)),
                Limit::Time { .. } | Limit::Requests(_) => None,
            },
            n_left,
            n_waiting: 0,
            n_broken: 0,
            start: Instant::now(),
        })
    }

    /// Runs from `start` to the end, and sends each second's counts when it is over.
    pub(super) fn run(
        &mut self,
        start: Instant,
        slices: mpsc::Sender<Slice>,
    ) -> Result<Finished, BenchError> {
        pin(&self.cpus)?;
        self.start = start;
        std::thread::sleep(start.saturating_duration_since(Instant::now()));
        let mut usage = Usage::default();
        let mut usage_at_end = None;
        if self.phases.counts_from == 0 {
            usage = Usage::now();
        }
        self.begin()?;
        let mut events = Events::with_capacity(self.connections.len().clamp(64, 4096));
        loop {
            let now = self.now();
            if self.told.as_ref().is_some_and(|told| told.load(Ordering::Relaxed)) {
                self.phases.ends = self.phases.ends.min(now);
            }
            if now >= self.phases.counts_from && usage.is_unset() {
                usage = Usage::now();
            }
            if now >= self.phases.ends && usage_at_end.is_none() {
                usage_at_end = Some(Usage::now());
            }
            self.tally.turn_over(now, &slices);
            if self.is_over(now) {
                break;
            }
            self.send_due(now)?;
            self.wait(&mut events)?;
            for event in &events {
                if event.token() != TIMER {
                    self.serve(event.token().0, event.is_read_closed())?;
                }
            }
        }
        self.tally.hand_over(&slices);
        let used = usage_at_end.unwrap_or_else(Usage::now).since(usage, self.measured_time());
        self.count_rest();
        Ok(Finished { record: self.tally.record.clone(), used })
    }

    #[inline]
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn measured_time(&self) -> Duration {
        let until = if self.phases.ends == u64::MAX { self.tally.last_reply_nanos } else { self.phases.ends };
        Duration::from_nanos(until.saturating_sub(self.phases.counts_from).max(1))
    }

    fn is_over(&self, now: u64) -> bool {
        let is_ended = self.n_left == 0 || (now >= self.phases.ends && self.next_due(now).is_none());
        is_ended && (self.n_waiting == 0 || now >= self.phases.ends.saturating_add(DRAIN_NANOS))
    }

    /// Returns the time of the next due request on a free connection, if it may be sent.
    fn next_due(&self, now: u64) -> Option<u64> {
        let due = self.idle.peek().map(|Reverse((due, _))| *due);
        due.filter(|&due| self.n_left > 0 && self.phases.may_send(due, now))
    }

    /// Sends the first requests, or leaves that to the schedules.
    fn begin(&mut self) -> Result<(), BenchError> {
        for lane in 0..self.lanes.len() {
            match &self.lanes[lane].schedule {
                Some(schedule) => self.idle.push(Reverse((schedule.due(), lane))),
                None => {
                    let now = self.now();
                    self.start_batch(lane, now, now)?;
                }
            }
        }
        Ok(())
    }

    /// Sends the due requests of free connections.
    fn send_due(&mut self, now: u64) -> Result<(), BenchError> {
        while self.next_due(now).is_some_and(|due| due <= now)
            && let Some(Reverse((due, lane))) = self.idle.pop()
        {
            let now = self.now();
            self.start_batch(lane, due, now)?;
        }
        Ok(())
    }

    /// Waits for an event, the next due request or the end of the second.
    fn wait(&mut self, events: &mut Events) -> Result<(), BenchError> {
        let now = self.now();
        let end_of_second = (self.tally.second + 1) * SECOND;
        let next_due = self.next_due(now).unwrap_or(u64::MAX);
        let next =
            end_of_second.min(next_due).min(if now < self.phases.ends { self.phases.ends } else { u64::MAX });
        let timeout = if next <= now { Some(Duration::ZERO) } else { None };
        if timeout.is_none() {
            let nanos = next - now;
            let in_time = Timespec { tv_sec: (nanos / SECOND) as i64, tv_nsec: (nanos % SECOND) as i64 };
            let once = Itimerspec { it_interval: Timespec::default(), it_value: in_time };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)
                .map_err(io::Error::from)
                .doing("set a timer")?;
        }
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error).doing("poll"),
            _ => Ok(()),
        }
    }

    /// Sends the next batch of a connection, unless no request may be sent any more.
    fn start_batch(&mut self, lane: usize, due: u64, now: u64) -> Result<(), BenchError> {
        let n_requests = (self.batch as u64).min(self.n_left);
        if n_requests == 0 || !self.phases.may_send(due, now) {
            return Ok(());
        }
        self.n_left -= n_requests;
        if self.connections[lane].n_requests >= self.reconnect_after {
            self.tally.record.n_reconnects += 1;
            self.reopen(lane)?;
        }
        let Lane { number, schedule, free_since } = &mut self.lanes[lane];
        let moment = Moment { due_nanos: due, connection: *number };
        let connection = &mut self.connections[lane];
        connection.n_requests += n_requests;
        let (output, batch) = connection.output();
        batch.reset(due, now);
        (0..n_requests).for_each(|_| batch.push(self.generator.append(moment, output)));
        if let Some(schedule) = schedule {
            schedule.advance();
        }
        self.n_waiting += 1;
        if due >= self.phases.counts_from {
            self.tally.record.n_sent += n_requests;
            let slip = now - due.max(*free_since).min(now);
            self.tally.record.slip.saturating_record_n(slip, n_requests);
        }
        self.flush(lane)
    }

    fn flush(&mut self, lane: usize) -> Result<(), BenchError> {
        match self.connections[lane].flush() {
            Ok(n_bytes) => {
                self.tally.record.n_bytes_sent += n_bytes;
                Ok(())
            }
            Err(_) => self.recover(lane),
        }
    }

    /// Handles an event on a connection. `is_closed` says that the server sends nothing more.
    fn serve(&mut self, lane: usize, is_closed: bool) -> Result<(), BenchError> {
        self.flush(lane)?;
        while self.connections[lane].is_waiting() {
            let n_bytes = match self.connections[lane].receive(&mut self.buffer) {
                Ok(Some(n_bytes)) => n_bytes,
                Ok(None) => return Ok(()),
                Err(_) => return self.recover(lane),
            };
            self.accept(lane, n_bytes)?;
            // The event is edge-triggered. Bytes that arrive after a read that did not fill the buffer raise
            // another edge (epoll(7)). The end of the stream raises none if this event has announced it, so
            // it must be read.
            if n_bytes < BUFFER_BYTES && !is_closed {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Counts the replies in the buffer, and continues when the batch is answered.
    fn accept(&mut self, lane: usize, n_bytes: usize) -> Result<(), BenchError> {
        let now = self.now();
        self.n_broken = 0;
        let connection = &mut self.connections[lane];
        let was_waiting = connection.batch.n_waiting() > 0;
        let (due, sent) = (connection.batch.due_nanos, connection.batch.sent_nanos);
        let is_staged = self.generator.is_staged();
        let counts = due >= self.phases.counts_from;
        let in_time = now < self.phases.ends;
        let mut run = Run { command: 0, n_requests: 0, response: now - due, service: now - sent, in_time };
        let tally = &mut self.tally;
        tally.record.n_bytes_received += n_bytes as u64;
        let mut saw_null = false;
        connection.accept(&self.buffer[..n_bytes], |reply, answered| {
            let is_null = reply == Reply::Null;
            saw_null |= is_null;
            if let Reply::Error(errors) = reply {
                tally.n_errors += 1;
                if counts {
                    errors.for_each(|text| tally.record.note_error(text));
                }
            }
            let Some(answered) = answered.filter(|_| !is_staged) else { return };
            tally.record.n_answered += 1;
            if !counts {
                return;
            }
            let record = &mut tally.record.commands[answered.command];
            record.n_nulls += u64::from(is_null);
            if answered.failed {
                record.n_errors += 1;
                return;
            }
            if run.command != answered.command {
                tally.count(&mut run);
                run.command = answered.command;
            }
            run.n_requests += 1;
        })?;
        tally.count(&mut run);
        if !was_waiting || self.connections[lane].batch.n_waiting() > 0 {
            return Ok(());
        }
        self.tally.last_reply_nanos = now;
        if is_staged { self.next_stage(lane, now, saw_null, counts) } else { self.finish(lane, now) }
    }

    /// Continues a transaction that watches keys: its second stage, the first again, or its end.
    fn next_stage(&mut self, lane: usize, now: u64, saw_null: bool, counts: bool) -> Result<(), BenchError> {
        let batch = &self.connections[lane].batch;
        let (issued, due, sent, stage) = (batch.requests[0], batch.due_nanos, batch.sent_nanos, batch.stage);
        let failed = batch.failed();
        let has_next = self.generator.n_stages(issued.command) > stage + 1;
        let conflicts = stage > 0 && saw_null && !failed;
        if (has_next || conflicts) && !failed {
            let next = if conflicts { 0 } else { stage + 1 };
            self.tally.record.n_conflicts += u64::from(conflicts && counts);
            let moment = Moment { due_nanos: due, connection: self.lanes[lane].number };
            let (output, batch) = self.connections[lane].output();
            batch.reset(due, sent);
            batch.stage = next;
            batch.push(self.generator.append_stage(issued.command, next, issued.key, moment, output));
            return self.flush(lane);
        }
        self.tally.record.n_answered += 1;
        if counts && failed {
            self.tally.record.commands[issued.command].n_errors += 1;
        } else if counts {
            let in_time = now < self.phases.ends;
            let run = Run {
                command: issued.command,
                n_requests: 1,
                response: now - due,
                service: now - sent,
                in_time,
            };
            self.tally.count(&mut { run });
        }
        self.finish(lane, now)
    }

    /// Ends an answered batch: sends the next one, or leaves that to the schedule.
    fn finish(&mut self, lane: usize, now: u64) -> Result<(), BenchError> {
        self.n_waiting -= 1;
        self.lanes[lane].free_since = now;
        match self.lanes[lane].schedule.as_ref().map(Schedule::due) {
            None => self.start_batch(lane, now, now),
            Some(due) if due <= now && self.phases.may_send(due, now) => self.start_batch(lane, due, now),
            Some(due) => {
                self.idle.push(Reverse((due, lane)));
                Ok(())
            }
        }
    }

    /// Replaces a broken connection. Its unanswered requests have failed.
    fn recover(&mut self, lane: usize) -> Result<(), BenchError> {
        self.n_broken += 1;
        if self.n_broken > MAX_BROKEN {
            return Err(BenchError::Machine(format!("{} closes every connection", self.target.address)));
        }
        let batch = &mut self.connections[lane].batch;
        let (n_lost, due) = (batch.n_waiting() as u64, batch.due_nanos);
        batch.reset(due, due);
        if due >= self.phases.counts_from {
            self.tally.record.n_unanswered += n_lost;
        }
        self.tally.record.n_reconnects += 1;
        self.reopen(lane)?;
        let now = self.now();
        if n_lost > 0 { self.finish(lane, now) } else { self.flush(lane) }
    }

    fn reopen(&mut self, lane: usize) -> Result<(), BenchError> {
        self.connections[lane]
            .reopen(&self.target, self.poll.registry(), Token(lane))
            .doing(format!("connect to {} again", self.target.address))
    }

    /// Counts the unanswered requests, and those that were due and not sent.
    fn count_rest(&mut self) {
        let Phases { counts_from, ends } = self.phases;
        for (connection, lane) in self.connections.iter().zip(&mut self.lanes) {
            if connection.batch.due_nanos >= counts_from {
                self.tally.record.n_unanswered += connection.batch.n_waiting() as u64;
            }
            let Some(schedule) = lane.schedule.as_mut().filter(|_| ends < u64::MAX) else { continue };
            while schedule.due() < ends {
                self.tally.record.n_unsent += u64::from(schedule.due() >= counts_from) * self.batch as u64;
                schedule.advance();
            }
        }
    }
}

/// Requests of one command that were answered together.
#[derive(Debug)]
struct Run {
    command: usize,
    n_requests: u64,
    response: u64,
    service: u64,
    in_time: bool,
}

impl Tally {
    fn new(compiled: &Compiled) -> Self {
        Self {
            record: Record::new(compiled.titles()),
            second: 0,
            n_done: 0,
            n_errors: 0,
            response: histogram(),
            cpu: Duration::ZERO,
            last_reply_nanos: 0,
        }
    }

    /// Counts a run, and empties it.
    #[inline]
    fn count(&mut self, run: &mut Run) {
        let n_requests = std::mem::take(&mut run.n_requests);
        if n_requests == 0 {
            return;
        }
        let command = &mut self.record.commands[run.command];
        command.n_done += n_requests;
        command.n_done_in_time += if run.in_time { n_requests } else { 0 };
        command.response.saturating_record_n(run.response, n_requests);
        self.record.service.saturating_record_n(run.service, n_requests);
        self.n_done += n_requests;
        self.response.saturating_record_n(run.response, n_requests);
    }

    /// Sends the current second's counts if the second is over.
    fn turn_over(&mut self, now: u64, slices: &mpsc::Sender<Slice>) {
        while now >= (self.second + 1) * SECOND {
            self.hand_over(slices);
        }
    }

    fn hand_over(&mut self, slices: &mpsc::Sender<Slice>) {
        let cpu = thread_cpu();
        let slice = Slice {
            second: self.second,
            n_done: std::mem::take(&mut self.n_done),
            n_errors: std::mem::take(&mut self.n_errors),
            response: std::mem::replace(&mut self.response, histogram()),
            cpu: cpu.saturating_sub(std::mem::replace(&mut self.cpu, cpu)),
        };
        // The receiver outlives the workers, unless one of them has failed. Then the counts are not needed.
        let _ = slices.send(slice);
        self.second += 1;
    }
}

/// The processor time of this thread so far, and its waits for a core.
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    cpu: Duration,
    starved: Duration,
}

impl Usage {
    fn now() -> Self {
        // Nanoseconds run, nanoseconds waited for a core, times scheduled. Without that file the wait is
        // unknown and counts as zero.
        let waited = fs::read_to_string("/proc/thread-self/schedstat")
            .ok()
            .and_then(|text| text.split_whitespace().nth(1)?.parse().ok())
            .unwrap_or(0);
        Self { cpu: thread_cpu(), starved: Duration::from_nanos(waited) }
    }

    fn is_unset(self) -> bool {
        self.cpu.is_zero()
    }

    fn since(self, earlier: Self, wall: Duration) -> WorkerUse {
        WorkerUse { cpu: self.cpu - earlier.cpu, starved: self.starved - earlier.starved, wall }
    }
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Restricts this thread to some cores.
fn pin(cpus: &[usize]) -> Result<(), BenchError> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    sched_setaffinity(None, &set).map_err(io::Error::from).doing("keep a thread on its cores")
}
