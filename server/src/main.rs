//! The server's binary.

#![deny(unsafe_code)]

mod crash;

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    thread,
};

use braid_server::{
    boot,
    clock::Clock,
    config::{ConvertOrder, Host, Launch, Supervised, launch},
    persist,
    process::title::Title,
    shared::{loading::EverySecond, memory::Memory, server::Process},
};
use nix::libc::{self, c_int};

use braid_storage::{
    glob::{Case, glob_match},
    memory::allocator::Allocator,
};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Runs before the allocator initialises, which is long before `main`.
///
/// Otherwise the first touched memory would be in huge pages, which are resident in whole, and take 4 MiB
/// more.
#[expect(unsafe_code, reason = "a function that runs before `main` needs a section of its own")]
#[used]
// SAFETY: the function in this section is called once, by the C convention, before there are threads. The
// function makes a system call, and needs nothing that is set up later. The number is below 101, with which
// the allocator's own is called.
#[unsafe(link_section = ".init_array.00100")]
static BEFORE_ALLOCATOR: extern "C" fn() = without_huge_pages;

extern "C" fn without_huge_pages() {
    Memory::without_huge_pages();
}

fn main() -> ExitCode {
    let args: Vec<_> = env::args_os().skip(1).collect();
    let mut host = Host {
        program: env::args_os().next().unwrap_or_default(),
        dir: env::current_dir().unwrap_or_default(),
        n_cores: thread::available_parallelism().map_or(1, |cores| cores.get()),
        stdin: &mut io::stdin(),
        glob: |pattern, text| glob_match(pattern, text, Case::Insensitive),
        check: boot::check,
    };
    match launch(&args, &mut host) {
        Launch::Print(text) => {
            // The reader may have closed the pipe: `--help | head`.
            let _ = writeln!(io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Launch::CheckSnapshot(path) => match persist::check(&path, Clock::start().now()) {
            Ok(report) => {
                let _ = writeln!(io::stdout(), "{report}");
                ExitCode::SUCCESS
            }
            Err(why) => {
                eprintln!("{why}");
                ExitCode::FAILURE
            }
        },
        Launch::CheckAof(order) => {
            match persist::check_aof(&order, &mut io::BufReader::new(io::stdin()), &mut io::stdout()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(why) => {
                    // As in redis-check-aof, all output goes to one place.
                    let _ = writeln!(io::stdout(), "{why}");
                    ExitCode::FAILURE
                }
            }
        }
        Launch::ConvertSnapshot(order) => convert(&order),
        Launch::Refuse(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
        Launch::Serve(config) => match boot::serve(*config, process()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                braid_server::warning!("{why}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Converts a snapshot. A terminal shows the progress.
fn convert(order: &ConvertOrder) -> ExitCode {
    let (is_shown, mut every_second) = (io::stderr().is_terminal(), EverySecond::default());
    let mut tell = |progress: persist::Progress| {
        if is_shown && every_second.has_passed() {
            let persist::Progress { n_read, n_bytes, n_keys } = progress;
            let percent = 100.0 * n_read as f64 / n_bytes.max(1) as f64;
            eprint!("\r{percent:.1} % of {n_bytes} bytes, {n_keys} keys");
        }
    };
    let converted = persist::convert(order, &mut tell);
    if is_shown {
        // The next line begins at the left again, and covers the progress.
        eprint!("\r\x1b[K");
    }
    match converted {
        Ok(report) => {
            let _ = writeln!(io::stdout(), "{report}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the operations that the server may use on its process.
fn process() -> Process {
    make_room_for_title();
    ignore_signals();
    Process {
        return_freed_memory: Allocator::return_freed_memory,
        allocator_stats: Allocator::stats,
        report_faults: crash::report_faults,
        supervisor: Supervised::No,
        title: env::args_os().next().and_then(Title::new),
    }
}

/// Signals that end a process by default, although they are no request to end it.
///
/// A terminal closes, a service must read its configuration again, or a timer or a tool expects a handler
/// that does not exist. Or a limit of file sizes or of time is reached.
const IGNORED: [c_int; 12] = [
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGSTKFLT,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
];

/// Ignores signals that are no request to end. They would end the server without a snapshot.
///
/// A write beyond a limit of file sizes then fails.
#[expect(unsafe_code, reason = "ignores signals")]
fn ignore_signals() {
    for signal in IGNORED.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX()) {
        // SAFETY: to ignore a signal installs no handler, so nothing of the program runs when it comes.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Moves the environment away from where the kernel has put it. New values are on the heap.
#[expect(unsafe_code, reason = "changes the environment")]
fn make_room_for_title() {
    for (name, value) in env::vars_os() {
        // SAFETY: no other thread has been started yet, so nobody reads the environment meanwhile.
        unsafe { env::set_var(name, value) };
    }
}
