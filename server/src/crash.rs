//! Reports of faults in the log: the signal, the place and the call stack (`crash-log-enabled`).
//!
//! A signal may arrive in the middle of anything, so the interrupted thread only records the addresses on its
//! stack. Another thread, which waits for that from the start, resolves their names and writes the report.
//! Then the thread continues with the signal's default action: the process ends, and leaves a core dump where
//! it should.

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

/// The signals of faults. `abort` sends the last one, for example after an uncaught panic.
const SIGNALS: [Signal; 5] =
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGABRT];

/// The maximum of frames that are shown. Of an endless recursion the innermost calls suffice.
const FRAMES_MAX: usize = 100;

/// The time for which the faulting thread waits for the report. It must end even where the report's own data
/// is damaged.
const REPORT_MAX: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Wakes the thread that writes the report.
static BELL: OnceLock<PipeWriter> = OnceLock::new();
/// Whether a thread has met a fault and owns the report.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);
static IS_WRITTEN: AtomicBool = AtomicBool::new(false);

// The facts about the fault. All of them are written before the bell rings, and read after it.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
static ADDRESS: AtomicUsize = AtomicUsize::new(0);
static THREAD: AtomicI32 = AtomicI32::new(0);
static N_FRAMES: AtomicUsize = AtomicUsize::new(0);
static FRAMES: [AtomicUsize; FRAMES_MAX] = [const { AtomicUsize::new(0) }; FRAMES_MAX];

/// Reports faults from now on. Called once, after the process has gone to the background if it does.
pub fn report_faults() -> io::Result<()> {
    let (bell, ringer) = io::pipe()?;
    if BELL.set(ringer).is_err() {
        return Ok(());
    }
    // The report's thread blocks the signals from its start. A signal from another process goes to any thread
    // that does not block it, and this one could not wait for its own report. A fault of its own ends the
    // process at once.
    let signals: SigSet = SIGNALS.into_iter().collect();
    signals.thread_block()?;
    let spawned = thread::Builder::new().name("crash".to_owned()).spawn(move || write_report(bell));
    signals.thread_unblock()?;
    spawned?;
    // A full stack has no space for the handler, so it uses the stack that each thread keeps for this.
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

/// Records the thread's position, and waits for the report.
extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    if log::reports_faults() {
        if IS_TAKEN.swap(true, Ordering::Relaxed) {
            // The report is about the first fault. The process ends with that thread.
            thread::sleep(2 * REPORT_MAX);
        } else {
            note_fault(signal, info);
            let is_rung = BELL.get().is_some_and(|mut bell| bell.write(&[0]).is_ok());
            let mut n_left = REPORT_MAX.as_millis() / LOOK_EVERY.as_millis();
            // Acquire pairs with the Release at the end of `write_report`: the report is in the log.
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
    // The signal is blocked until this returns. A fault would occur again on its own, but not a signal from
    // another process.
    let _ = raise(signal);
}

fn note_fault(signal: c_int, info: *mut siginfo_t) {
    SIGNAL.store(signal, Ordering::Relaxed);
    THREAD.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO. For a signal without an
    // address, the field contains another of its numbers.
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

/// Waits for a fault and reports it, in lines that each make sense alone.
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
    // The innermost frames are the handler's own. The next one is the kernel's call of the handler.
    let is_handler = |frame: &Vec<String>| frame.iter().any(|call| call.contains("on_fault"));
    let n_skipped = frames.iter().rposition(is_handler).map_or(0, |handler| handler + 2);
    for call in frames.iter().skip(n_skipped).flatten() {
        warning!("{call}");
    }
    warning!(
        "=== BRAID BUG REPORT END. Please report it with these lines, the server's configuration and what it was asked to do ==="
    );
    // Release pairs with the Acquire of the waiting thread.
    IS_WRITTEN.store(true, Ordering::Release);
}

/// Returns the calls at an address, innermost first. There are several where some are inlined.
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
