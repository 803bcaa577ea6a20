//! What the log says of a fault: which signal, where, and how the program came there (`crash-log-enabled`).
//!
//! A signal may come in the middle of anything, so the thread that it hits only notes the addresses on its
//! stack. Another one, which waits for that from the start, finds the names for them and writes the report.
//! Then the thread goes on to what the signal does without a handler: the process ends, and leaves a core
//! where it should.

use std::{
    ffi::{c_int, c_void},
    fs,
    io::{self, PipeReader, PipeWriter, Read as _, Write as _},
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use braid_server::{log, shared::server::BRAID_VERSION, warning};
use nix::{
    libc::siginfo_t,
    sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction},
};

/// The signals of faults; `abort` sends the last one, as after a panic that nobody catches.
const SIGNALS: [Signal; 5] =
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGABRT];

/// More of a stack is not shown: of an endless recursion the innermost calls tell enough.
const FRAMES_MAX: usize = 100;

/// The thread that has met a fault waits so long for the report: it must end also where what the report needs
/// is damaged.
const REPORT_MAX: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Wakes who writes the report.
static BELL: OnceLock<PipeWriter> = OnceLock::new();
/// A thread has met a fault, and the report is its.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);
static IS_WRITTEN: AtomicBool = AtomicBool::new(false);

// What is known of the fault. All of it is written before the bell rings, and read after it.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
static ADDRESS: AtomicUsize = AtomicUsize::new(0);
static THREAD: AtomicI32 = AtomicI32::new(0);
static N_FRAMES: AtomicUsize = AtomicUsize::new(0);
static FRAMES: [AtomicUsize; FRAMES_MAX] = [const { AtomicUsize::new(0) }; FRAMES_MAX];

/// Has faults be reported from now on. Called once, when the process has gone to the background if it does.
pub fn report_faults() -> io::Result<()> {
    let (bell, ringer) = io::pipe()?;
    if BELL.set(ringer).is_err() {
        return Ok(());
    }
    // Its thread blocks the signals from its beginning on: what another process sends goes to any thread that
    // does not, and this one could not wait for its own report. A fault of its own ends the process at once.
    let signals: SigSet = SIGNALS.into_iter().collect();
    signals.thread_block()?;
    let spawned = thread::Builder::new().name("crash".to_owned()).spawn(move || write_report(bell));
    signals.thread_unblock()?;
    spawned?;
    // A stack that is full has no room for the handler, which so has the one that each thread keeps for this.
    let flags = SaFlags::SA_ONSTACK | SaFlags::SA_SIGINFO;
    let action = SigAction::new(SigHandler::SigAction(on_fault), flags, SigSet::empty());
    for signal in SIGNALS {
        // SAFETY: the handler makes system calls and touches atomics. It takes no lock, allocates nothing and
        // does not unwind.
        #[expect(unsafe_code, reason = "installs a handler of signals")]
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}

/// Notes where the thread is, and waits for the report.
extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    if log::reports_faults() {
        if IS_TAKEN.swap(true, Ordering::Relaxed) {
            // The report is about the first, with whose thread the process ends.
            thread::sleep(2 * REPORT_MAX);
        } else {
            note_fault(signal, info);
            let is_rung = BELL.get().is_some_and(|mut bell| bell.write(&[0]).is_ok());
            let mut n_left = REPORT_MAX.as_millis() / LOOK_EVERY.as_millis();
            // Acquire pairs with the Release where it is written: the report is in the log.
            while is_rung && n_left > 0 && !IS_WRITTEN.load(Ordering::Acquire) {
                thread::sleep(LOOK_EVERY);
                n_left -= 1;
            }
        }
    }
    let Ok(signal) = Signal::try_from(signal) else { return };
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: there is no handler in it.
    #[expect(unsafe_code, reason = "lets the signal end the process")]
    let _ = unsafe { sigaction(signal, &default) };
    // Blocked until this returns. A fault would come again by itself, but not what another process has sent.
    let _ = raise(signal);
}

fn note_fault(signal: c_int, info: *mut siginfo_t) {
    SIGNAL.store(signal, Ordering::Relaxed);
    THREAD.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    // SAFETY: the kernel gives a handler with SA_SIGINFO what it knows of the signal; of one without an
    // address it is another of its numbers.
    #[expect(unsafe_code, reason = "reads what the kernel passes to a handler")]
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr()) };
    CODE.store(code, Ordering::Relaxed);
    ADDRESS.store(address as usize, Ordering::Relaxed);
    let mut n_frames = 0;
    let note = |frame: &backtrace::Frame| {
        FRAMES[n_frames].store(frame.ip() as usize, Ordering::Relaxed);
        n_frames += 1;
        n_frames < FRAMES_MAX
    };
    // SAFETY: no two threads are here at the same time, as only one takes the report.
    #[expect(unsafe_code, reason = "walks the stack without a lock")]
    unsafe {
        backtrace::trace_unsynchronized(note);
    }
    N_FRAMES.store(n_frames, Ordering::Relaxed);
}

/// Waits for a fault and tells of it, in lines that each make sense for themselves.
fn write_report(mut bell: PipeReader) {
    // The writing end stays open as long as the process lives.
    if bell.read_exact(&mut [0]).is_err() {
        return;
    }
    let number = SIGNAL.load(Ordering::Relaxed);
    let name = Signal::try_from(number).map_or("an unknown signal", Signal::as_str);
    let code = CODE.load(Ordering::Relaxed);
    let tid = THREAD.load(Ordering::Relaxed);
    let thread = fs::read_to_string(format!("/proc/self/task/{tid}/comm")).unwrap_or_default();
    warning!("=== BRAID BUG REPORT START: copy all lines from here to its end ===");
    warning!("Braid {} crashed by signal: {number} ({name}), si_code: {code}", BRAID_VERSION);
    if matches!(number, nix::libc::SIGSEGV | nix::libc::SIGBUS) && code > 0 {
        warning!("Accessing address: {:#x}", ADDRESS.load(Ordering::Relaxed));
    }
    warning!("Thread: {}", thread.trim());
    warning!("------ STACK TRACE ------");
    let frames: Vec<Vec<String>> = FRAMES[..N_FRAMES.load(Ordering::Relaxed)]
        .iter()
        .map(|frame| name_of(frame.load(Ordering::Relaxed)))
        .collect();
    // The innermost are the handler's own, and behind it stands how the kernel has called that.
    let is_handler = |frame: &Vec<String>| frame.iter().any(|call| call.contains("on_fault"));
    let n_skipped = frames.iter().rposition(is_handler).map_or(0, |handler| handler + 2);
    for call in frames.iter().skip(n_skipped).flatten() {
        warning!("{call}");
    }
    warning!(
        "=== BRAID BUG REPORT END. Please report it with these lines, the server's configuration and what it was asked to do ==="
    );
    // Release pairs with the Acquire of who waits for it.
    IS_WRITTEN.store(true, Ordering::Release);
}

/// The calls at an address, innermost first: several where some are inlined.
fn name_of(address: usize) -> Vec<String> {
    let mut calls = Vec::new();
    backtrace::resolve(address as *mut c_void, |symbol| {
        let name = symbol.name().map_or_else(|| "?".to_owned(), |name| format!("{name:#}"));
        let place = match (symbol.filename(), symbol.lineno()) {
            (Some(file), Some(line)) => format!(" at {}:{line}", file.display()),
            _ => String::new(),
        };
        calls.push(format!("{address:#018x} {name}{place}"));
    });
    if calls.is_empty() {
        calls.push(format!("{address:#018x} ?"));
    }
    calls
}
