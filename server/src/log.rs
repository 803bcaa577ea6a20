//! Log lines in Redis's shape: `pid:role date level message`.

use std::{
    cell::RefCell,
    fs::OpenOptions,
    io::{self, Write},
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
};

use crate::clock::Instant;

pub mod syslog;

use time::OffsetDateTime;

use self::syslog::Syslog;
use crate::config::{Config, LogFormat, LogLevel, LogTimestampFormat};

/// The importance of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// For developers.
    Debug,
    /// Rarely useful.
    Verbose,
    /// For operators.
    Notice,
    /// Important.
    Warning,
}

static THRESHOLD: AtomicU8 = AtomicU8::new(Level::Notice as u8);
/// The forms of lines and of times, as [`LogFormat`] and [`LogTimestampFormat`].
static FORM: [AtomicU8; 2] = [const { AtomicU8::new(0) }; 2];
static REPORTS_FAULTS: AtomicBool = AtomicBool::new(true);
static HIDES_USER_DATA: AtomicBool = AtomicBool::new(false);
static FILE: OnceLock<PathBuf> = OnceLock::new();
static SYSLOG: OnceLock<Syslog> = OnceLock::new();

/// The maximum of lines that are held back. A script may write any number.
const HELD_BACK_MAX: usize = 1000;

/// Whether lines of a level are written.
pub fn is_shown(level: Level) -> bool {
    level as u8 >= THRESHOLD.load(Ordering::Relaxed)
}

/// Whether faults of the program are reported (`crash-log-enabled`).
pub fn reports_faults() -> bool {
    REPORTS_FAULTS.load(Ordering::Relaxed)
}

/// Applies the configuration of the log.
///
/// It sets the lowest level that is written (`loglevel`), the form of the lines, and whether faults are
/// reported.
pub fn configure(config: &Config) {
    REPORTS_FAULTS.store(config.crash_log_enabled, Ordering::Relaxed);
    HIDES_USER_DATA.store(config.hide_user_data_from_log, Ordering::Relaxed);
    FORM[0].store(config.log_format as u8, Ordering::Relaxed);
    FORM[1].store(config.log_timestamp_format as u8, Ordering::Relaxed);
    let level = match config.loglevel {
        LogLevel::Debug => Level::Debug as u8,
        LogLevel::Verbose => Level::Verbose as u8,
        LogLevel::Notice => Level::Notice as u8,
        LogLevel::Warning => Level::Warning as u8,
        LogLevel::Nothing => u8::MAX,
    };
    THRESHOLD.store(level, Ordering::Relaxed);
}

/// Returns the path of the log file. A relative one begins at `dir`, as in Redis once the server runs.
fn path(config: &Config) -> Option<PathBuf> {
    config.logfile.as_ref().map(|path| config.dir.join(path))
}

/// Checks that lines can be written to their place. A missing file stays missing.
///
/// # Errors
/// The reason why they cannot, in words: a server without a usable log does not start.
pub fn check(config: &Config) -> Result<(), String> {
    let Some(path) = path(config) else { return Ok(()) };
    let mut options = OpenOptions::new();
    options.append(true);
    let opened = match options.open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A link may lead to a place where a file can be created.
            options.create(true).open(&path).and_then(|_| std::fs::remove_file(path.canonicalize()?))
        }
        opened => opened.map(drop),
    };
    opened.map_err(|error| format!("Can't open the log file {}: {error}", path.display()))
}

/// Sends the lines to a file (`logfile`) instead of standard output.
pub fn set_file(config: &Config) {
    if let Some(path) = path(config) {
        // A second call changes nothing: the file of a running server is fixed.
        let _ = FILE.set(path);
    }
}

/// Sends the lines to the system's log, too (`syslog-enabled`).
pub fn set_syslog(syslog: Syslog) {
    // A second call changes nothing, as with the file.
    let _ = SYSLOG.set(syslog);
}

thread_local! {
    static HELD_BACK: RefCell<Vec<(Level, String)>> = const { RefCell::new(Vec::new()) };
}

/// Formats a key for a line. Of a long one the beginning is shown, and nothing under
/// `hide-user-data-from-log`.
pub fn shown(key: &[u8]) -> impl std::fmt::Display {
    const SHOWN_BYTES: usize = 128;
    if HIDES_USER_DATA.load(Ordering::Relaxed) {
        return "*redacted*".to_owned();
    }
    let rest = if key.len() > SHOWN_BYTES { "…" } else { "" };
    format!("{}{rest}", key[..key.len().min(SHOWN_BYTES)].escape_ascii())
}

/// Writes one line when the thread next holds no shard.
pub fn line_later(level: Level, message: std::fmt::Arguments<'_>) {
    if !is_shown(level) {
        return;
    }
    let n_lines = HELD_BACK.with_borrow_mut(|lines| {
        lines.push((level, message.to_string()));
        lines.len()
    });
    if n_lines >= HELD_BACK_MAX {
        write_held_back();
    }
}

/// Writes the lines that the thread has held back. Called while it holds no shard.
#[inline]
pub fn write_held_back() {
    HELD_BACK.with_borrow_mut(|lines| {
        for (level, message) in lines.drain(..) {
            line(level, format_args!("{message}"));
        }
    });
}

/// Writes one line. Never called while a shard is held.
pub fn line(level: Level, message: std::fmt::Arguments<'_>) {
    if !is_shown(level) {
        return;
    }
    let [format, timestamp_format] = [0, 1].map(|which| FORM[which].load(Ordering::Relaxed));
    let message = message.to_string();
    let time = timestamp(OffsetDateTime::now_utc(), timestamp_format);
    let line = formatted(level, &time, &message, format);
    if let Some(syslog) = SYSLOG.get() {
        syslog.line(level, &message);
    }
    // A log that cannot be written must not end the server.
    let _ = match FILE.get() {
        None => std::io::stdout().lock().write_all(line.as_bytes()),
        Some(path) => OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .and_then(|mut file| file.write_all(line.as_bytes())),
    };
}

/// A kind of line that any client can cause as often as it likes. One line is written in an interval, and
/// says how many were left out.
pub struct Seldom {
    /// Time from which the next line may be written, in milliseconds. It counts from the first line of any
    /// kind.
    free_at: AtomicU64,
    n_left_out: AtomicU64,
}

impl Seldom {
    /// The interval in milliseconds.
    const EVERY: u64 = 10_000;

    /// Creates a kind of which no line was written yet.
    #[expect(clippy::new_without_default, reason = "each is a static")]
    pub const fn new() -> Self {
        Self { free_at: AtomicU64::new(0), n_left_out: AtomicU64::new(0) }
    }

    /// Writes a line of this kind, or counts it. Never called while a shard is held.
    pub fn line(&self, level: Level, message: std::fmt::Arguments<'_>) {
        static FIRST: OnceLock<Instant> = OnceLock::new();
        if !is_shown(level) {
            return;
        }
        let now = FIRST.get_or_init(Instant::now).elapsed().as_millis() as u64;
        let free_at = self.free_at.load(Ordering::Relaxed);
        let next = now + Self::EVERY;
        // If several threads get here, one writes.
        let is_free = now >= free_at
            && self.free_at.compare_exchange(free_at, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !is_free {
            self.n_left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        match self.n_left_out.swap(0, Ordering::Relaxed) {
            0 => line(level, message),
            n => line(level, format_args!("{message} (and {n} more of this kind before it)")),
        }
    }
}

/// Returns a line in a form of [`LogFormat`], with its end.
///
/// As in Valkey, logfmt replaces what would end its quoted text or its line.
fn formatted(level: Level, time: &str, message: &str, format: u8) -> String {
    let pid = std::process::id();
    let word = ["debug", "info", "notice", "warning"][level as usize];
    if format == LogFormat::Json as u8 {
        let message = json_text(message);
        let head = format!(r#"{{"pid":{pid},"role":"primary","timestamp":"{time}","level":"{word}""#);
        return format!("{head},\"message\":{message}}}\n");
    }
    if format == LogFormat::Logfmt as u8 {
        let message = message.replace('"', "'").replace(['\n', '\r'], " ");
        let head = format!(r#"pid={pid} role=primary timestamp="{time}" level={word}"#);
        return format!("{head} message=\"{message}\"\n");
    }
    let mark = ['.', '-', '*', '#'][level as usize];
    format!("{pid}:M {time} {mark} {message}\n")
}

/// Returns a text as a string of JSON.
fn json_text(text: &str) -> String {
    let mut json = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => json.extend(['\\', letter]),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            letter if letter < ' ' => json.push_str(&format!("\\u{:04x}", letter as u32)),
            letter => json.push(letter),
        }
    }
    json.push('"');
    json
}

/// Returns a time in UTC in a form of [`LogTimestampFormat`], by default as `20 Nov 2026 23:55:25.123`.
fn timestamp(now: OffsetDateTime, format: u8) -> String {
    let (day, year, time, millis) = (now.day(), now.year(), clock_time(now), now.millisecond());
    if format == LogTimestampFormat::Milliseconds as u8 {
        return (now.unix_timestamp_nanos() / 1_000_000).to_string();
    }
    if format == LogTimestampFormat::Iso8601 as u8 {
        let month = now.month() as u8;
        return format!("{year:04}-{month:02}-{day:02}T{time}.{millis:03}+00:00");
    }
    format!("{day:02} {} {year} {time}.{millis:03}", month(now))
}

/// Returns the month in three letters.
fn month(moment: OffsetDateTime) -> String {
    let mut name = moment.month().to_string();
    name.truncate(3);
    name
}

/// Returns the time of day, as `23:55:25`.
fn clock_time(moment: OffsetDateTime) -> String {
    let (hour, minute, second) = moment.to_hms();
    format!("{hour:02}:{minute:02}:{second:02}")
}

/// Logs for operators.
#[macro_export]
macro_rules! notice {
    ($($arg:tt)*) => { $crate::log::line($crate::log::Level::Notice, format_args!($($arg)*)) };
}

/// Logs an important message.
#[macro_export]
macro_rules! warning {
    ($($arg:tt)*) => { $crate::log::line($crate::log::Level::Warning, format_args!($($arg)*)) };
}

/// Logs an important message that any client can cause, at most once in an interval.
///
/// Each place in the code is a kind of its own.
#[macro_export]
macro_rules! warning_seldom {
    ($($arg:tt)*) => {{
        static KIND: $crate::log::Seldom = $crate::log::Seldom::new();
        KIND.line($crate::log::Level::Warning, format_args!($($arg)*))
    }};
}

/// Logs an important message once no shard is held. It may be called under a hold.
#[macro_export]
macro_rules! warning_later {
    ($($arg:tt)*) => { $crate::log::line_later($crate::log::Level::Warning, format_args!($($arg)*)) };
}

/// Logs a message once no shard is held. It may be called under a hold.
#[macro_export]
macro_rules! notice_later {
    ($($arg:tt)*) => { $crate::log::line_later($crate::log::Level::Notice, format_args!($($arg)*)) };
}

/// Logs details once no shard is held. It may be called under a hold.
#[macro_export]
macro_rules! verbose_later {
    ($($arg:tt)*) => { $crate::log::line_later($crate::log::Level::Verbose, format_args!($($arg)*)) };
}

/// Logs details.
#[macro_export]
macro_rules! verbose {
    ($($arg:tt)*) => { $crate::log::line($crate::log::Level::Verbose, format_args!($($arg)*)) };
}

#[cfg(test)]
mod tests {
    use time::{Date, Month, Time};

    use super::*;

    #[test]
    fn moments_are_written_as_redis_writes_them() {
        let date = Date::from_calendar_date(2000, Month::February, 29).expect("a leap year");
        let moment = date.with_time(Time::from_hms(3, 4, 5).expect("a time")).assume_utc();
        assert_eq!((month(moment).as_str(), clock_time(moment).as_str()), ("Feb", "03:04:05"));
        let times = [0, 1, 2].map(|format| timestamp(moment, format));
        assert_eq!(times, ["29 Feb 2000 03:04:05.000", "2000-02-29T03:04:05.000+00:00", "951793445000"]);
    }

    #[test]
    fn lines_are_written_as_valkey_writes_them() {
        let line = |format| formatted(Level::Verbose, "T", "a \"b\"\n\u{1}\\", format);
        let pid = std::process::id();
        assert_eq!(line(0), format!("{pid}:M T - a \"b\"\n\u{1}\\\n"));
        let logfmt = "role=primary timestamp=\"T\" level=info message=\"a 'b' \u{1}\\\"\n";
        assert_eq!(line(1), format!("pid={pid} {logfmt}"));
        let json = r#""role":"primary","timestamp":"T","level":"info","message":"a \"b\"\n\u0001\\"}"#;
        assert_eq!(line(2), format!("{{\"pid\":{pid},{json}\n"));
    }
}
