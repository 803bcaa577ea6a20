//! The server's binary.

#![forbid(unsafe_code)]

use std::{process::ExitCode, thread};

use braid_server::{
    boot,
    config::{Host, Launch, launch},
};
use braid_storage::{
    Allocator,
    glob::{Case, glob_match},
};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

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
        Launch::Serve(config) => match boot::serve(*config, Allocator::return_freed_memory) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                braid_server::warning!("{why}");
                ExitCode::FAILURE
            }
        },
    }
}
