//! The server's binary.

#![deny(unsafe_code)]

mod crash;

use std::{
    env,
    io::{self, Write as _},
    process::ExitCode,
    thread,
};

use braid_server::{
    boot,
    clock::Clock,
    config::{Host, Launch, Supervised, launch},
    persist,
    process::title::Title,
    shared::{memory::Memory, server::Process},
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
