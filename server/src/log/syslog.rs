//! Lines for the system's log (`syslog-enabled`), in the RFC 3164 form of C libraries.
//!
//! The `syslog` crate's socket blocks, so a slow system log would hold the server up. Here a line is lost
//! instead.

use std::{
    io,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
};

use time::OffsetDateTime;

use super::{Level, clock_time, month};
use crate::config::SyslogFacility;

/// The path of the system log's socket.
pub const SOCKET: &str = "/dev/log";

/// A connection to the system's log.
#[derive(Debug)]
pub struct Syslog {
    socket: UnixDatagram,
    path: PathBuf,
    facility: u8,
    ident: String,
}

impl Syslog {
    /// Creates a connection to a socket's path, under a name.
    ///
    /// It does not notice whether a log listens there, now or later.
    ///
    /// # Errors
    /// If the process may have no more sockets.
    pub fn new(path: &Path, facility: SyslogFacility, ident: &str) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        // A slow log must not hold clients up: lines that it does not take are lost.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path: path.to_owned(), facility: code(facility), ident: ident.to_owned() })
    }

    /// Writes a line, if the log takes it.
    pub fn line(&self, level: Level, message: &str) {
        let priority = self.facility << 3 | severity(level);
        let now = OffsetDateTime::now_utc();
        let (month, day, time) = (month(now), now.day(), clock_time(now));
        let (ident, pid) = (&self.ident, std::process::id());
        let line = format!("<{priority}>{month} {day:2} {time} {ident}[{pid}]: {message}");
        let _ = self.socket.send_to(line.as_bytes(), &self.path);
    }
}

/// Returns the number of a facility.
fn code(facility: SyslogFacility) -> u8 {
    match facility {
        SyslogFacility::User => 1,
        SyslogFacility::Local0 => 16,
        SyslogFacility::Local1 => 17,
        SyslogFacility::Local2 => 18,
        SyslogFacility::Local3 => 19,
        SyslogFacility::Local4 => 20,
        SyslogFacility::Local5 => 21,
        SyslogFacility::Local6 => 22,
        SyslogFacility::Local7 => 23,
    }
}

/// Returns the severity for a level, as in Redis.
fn severity(level: Level) -> u8 {
    match level {
        Level::Warning => 4,
        Level::Notice => 5,
        Level::Verbose => 6,
        Level::Debug => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_important_it_is_and_whose_and_a_log_that_is_gone_is_no_trouble() {
        let path = std::env::temp_dir().join(format!("braid-syslog-{}", std::process::id()));
        let syslog = Syslog::new(&path, SyslogFacility::Local3, "store").unwrap();
        syslog.line(Level::Warning, "nobody is there yet");
        let log = UnixDatagram::bind(&path).unwrap();
        let pid = std::process::id();
        for (level, priority) in [(Level::Warning, 19 * 8 + 4), (Level::Debug, 19 * 8 + 7)] {
            syslog.line(level, "a sentence");
            let mut line = [0; 200];
            let n = log.recv(&mut line).unwrap();
            let line = String::from_utf8(line[..n].to_vec()).unwrap();
            assert!(line.starts_with(&format!("<{priority}>")), "{line}");
            assert!(line.ends_with(&format!(" store[{pid}]: a sentence")), "{line}");
            // `Nov  3 07:05:09`
            let time = line.split_once('>').unwrap().1.split_at(15).0;
            assert_eq!(time.as_bytes()[3..15].iter().filter(|&&byte| byte == b':').count(), 2, "{line}");
        }
        // A log that takes no more lines does not stop the server.
        (0..10_000).for_each(|_| syslog.line(Level::Notice, "too many"));
        drop(log);
        std::fs::remove_file(&path).unwrap();
        syslog.line(Level::Warning, "nobody is there any more");
    }
}
