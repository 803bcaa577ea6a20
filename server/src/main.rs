//! The server's binary.

// One call into the allocator is all: `return_freed_memory`.
#![deny(unsafe_code)]

use std::{process::ExitCode, thread};

use braid_server::{
    boot,
    config::{Host, Launch, launch},
};
use braid_storage::glob::{Case, glob_match};
use mimalloc::MiMalloc;

/// Size classes that fit entries closely, and frees from other threads without a lock.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let mut host = Host {
        dir: std::env::current_dir().unwrap_or_default(),
        n_cores: thread::available_parallelism().map_or(1, |cores| cores.get()),
        stdin: &mut std::io::stdin(),
        glob: |pattern, text| glob_match(pattern, text, Case::Insensitive),
    };
    match launch(&args, &mut host) {
        Launch::Print(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Launch::Refuse(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
        Launch::Serve(config) => match boot::serve(*config, return_freed_memory) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                braid_server::warning!("{why}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Gives pages that have been free for a while back to the system.
///
/// The allocator does it in the course of allocations only, so a server that is idle after a load, or a flush, would keep
/// them. Only the calling thread's own heap is walked, and what all threads' heaps have given up.
#[allow(unsafe_code)]
fn return_freed_memory() {
    // SAFETY: the call has no precondition but an initialised allocator, which every Rust program with this global
    // allocator has before `main`.
    unsafe { libmimalloc_sys::mi_collect(false) };
}
