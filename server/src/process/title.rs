//! The title of the process, which `ps` shows in place of its arguments (`set-proc-title`,
//! `proc-title-template`).
//!
//! The kernel shows the memory where it has put the arguments, and continues into the environment after them
//! if the last argument has no end there. So the title is written there, in memory without another use.
//! Arguments are read when the process starts, and the environment must be moved away first ([`Title::new`]).

use std::{
    ffi::OsString,
    fs::{self, OpenOptions},
    io::{Seek, SeekFrom, Write},
    ops::Range,
    os::unix::ffi::OsStrExt,
};

use crate::config::Config;

/// The memory of the title, and the name under which the process was started.
#[derive(Debug)]
pub struct Title {
    /// Addresses of this process.
    room: Range<u64>,
    /// Its first argument.
    name: OsString,
}

impl Title {
    /// Creates the title of a process whose environment variables were moved away.
    ///
    /// The kernel's original place for them is free then.
    ///
    /// They may be overwritten there. None if the system does not report the addresses.
    pub fn new(name: OsString) -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        Some(Self { room: room_in(&stat)?, name })
    }

    /// Shows the configured title. If the system does not allow it, nothing happens.
    pub fn show(&self, config: &Config) {
        if config.set_proc_title {
            let _ = self.write(&expand(config, self.name.as_bytes()));
        }
    }

    fn write(&self, title: &[u8]) -> std::io::Result<()> {
        let n_room = (self.room.end - self.room.start) as usize;
        let mut text = title[..title.len().min(n_room - 1)].to_vec();
        text.resize(n_room, 0);
        let mut memory = OpenOptions::new().write(true).open("/proc/self/mem")?;
        memory.seek(SeekFrom::Start(self.room.start))?;
        memory.write_all(&text)
    }
}

/// Returns the range from the first argument to the end of the environment.
///
/// It is read from a process's line in /proc.
fn room_in(stat: &str) -> Option<Range<u64>> {
    // The name in brackets may contain blanks and brackets. The fields after it count from 3; see proc(5).
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut fields = behind_name.split_ascii_whitespace().skip(48 - 3).map(|field| field.parse::<u64>());
    let mut next = || fields.next()?.ok();
    let (arguments, _, _, environment_end) = (next()?, next()?, next()?, next()?);
    (arguments > 0 && arguments < environment_end).then_some(arguments..environment_end)
}

/// Returns the template with its variables filled in. Other variables were refused before.
fn expand(config: &Config, name: &[u8]) -> Vec<u8> {
    let mut title = Vec::new();
    let mut rest = &config.proc_title_template[..];
    while let Some(open) = rest.iter().position(|&byte| byte == b'{') {
        title.extend_from_slice(&rest[..open]);
        rest = &rest[open + 1..];
        let Some(close) = rest.iter().position(|&byte| byte == b'}') else { break };
        match &rest[..close] {
            b"title" => title.extend_from_slice(name),
            b"listen-addr" => title.extend(listening_at(config)),
            b"port" => title.extend(config.port.to_string().bytes()),
            b"tls-port" => title.extend(config.tls_port.to_string().bytes()),
            b"unixsocket" => {
                title.extend(config.unixsocket.iter().flat_map(|path| path.as_os_str().as_bytes()))
            }
            b"config-file" => {
                title.extend(config.file().into_iter().flat_map(|path| path.as_os_str().as_bytes()))
            }
            // server-mode is empty for a server that is neither a sentinel nor part of a cluster.
            _ => {}
        }
        rest = &rest[close + 1..];
    }
    title.extend_from_slice(rest);
    title.trim_ascii().to_vec()
}

/// Returns the first address, or the Unix socket if there is no port.
fn listening_at(config: &Config) -> Vec<u8> {
    if config.main_port() == 0 {
        return config.unixsocket.iter().flat_map(|path| path.as_os_str().as_bytes()).copied().collect();
    }
    let host = config.bind.first().map_or_else(|| "*".to_owned(), |address| address.to_string());
    format!("{host}:{}", config.main_port()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Host, Launch, launch};

    #[test]
    fn the_room_is_from_the_arguments_to_the_end_of_the_environment() {
        let fields: Vec<String> = (3..=52).map(|field| (field * 1000).to_string()).collect();
        let stat = format!("7 (a) b) {}\n", fields.join(" "));
        assert_eq!(room_in(&stat), Some(48_000..51_000));
        assert_eq!(room_in("7 (a) S 1 2"), None);
        let own = fs::read_to_string("/proc/self/stat").expect("the system tells of this process");
        let room = room_in(&own).expect("it has arguments");
        let n_bytes: usize = std::env::args_os().map(|arg| arg.len() + 1).sum();
        assert!(room.end - room.start >= n_bytes as u64, "{room:?} has no room for {n_bytes} bytes");
    }

    #[test]
    fn templates_are_filled_in() {
        let config = |template: &str, port: u16| {
            let port = port.to_string();
            let args = ["--port", &port, "--unixsocket", "/tmp/s", "--proc-title-template", template];
            let args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
            let glob = |pattern: &[u8], text: &[u8]| pattern == text;
            let mut host = Host {
                program: "".into(),
                dir: "/".into(),
                n_cores: 1,
                stdin: &mut std::io::empty(),
                glob,
                check: |_| Ok(()),
            };
            match launch(&args, &mut host) {
                Launch::Serve(config) => *config,
                _ => panic!("refused: {args:?}"),
            }
        };
        let shown = |template, port| String::from_utf8(expand(&config(template, port), b"braid")).unwrap();
        assert_eq!(shown("{title} {listen-addr} {server-mode}", 7), "braid 127.0.0.1:7");
        assert_eq!(shown("{port} a{tls-port}b {unixsocket} {config-file}", 7), "7 a0b /tmp/s");
        assert_eq!(shown("at {listen-addr}", 0), "at /tmp/s");
    }
}
