//! The use of the machine by a process, read from /proc: processor time and resident memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{BenchError, Doing};

/// A tick of `utime` and `stime`.
///
/// Linux reports them in hundredths of a second on every platform that this program supports.
const TICK: Duration = Duration::from_millis(10);

/// Processor time that a process had used at one moment, user and system together.
#[derive(Debug, Clone, Copy)]
pub struct CpuSample {
    /// The time of the live threads, in nanoseconds.
    threads: Duration,
    /// The time of the whole process, in ticks of 10 ms, including threads that have ended.
    process: Duration,
}

impl CpuSample {
    /// Samples a process.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn of(pid: u32) -> Result<Self, BenchError> {
        Ok(Self { threads: thread_times(pid)?.into_values().sum(), process: process_time(pid)? })
    }

    /// Returns the processor time used since `earlier`.
    ///
    /// The finer clock counts only threads that live at both samples. If the coarse one shows more than its
    /// own resolution explains, a thread has ended in between and the coarse one is right.
    pub fn since(self, earlier: Self) -> Duration {
        let threads = self.threads.saturating_sub(earlier.threads);
        let process = self.process.saturating_sub(earlier.process);
        if process > threads + 3 * TICK { process } else { threads }
    }
}

/// Returns the processor time of each live thread of a process, by its id.
///
/// # Errors
/// When the process is gone.
pub fn thread_times(pid: u32) -> Result<BTreeMap<u32, Duration>, BenchError> {
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    let mut times = BTreeMap::new();
    for task in fs::read_dir(&tasks).doing(format!("list {}", tasks.display()))? {
        let task = task.doing(format!("list {}", tasks.display()))?;
        let path = task.path().join("schedstat");
        // A thread that ends between the listing and the reading is no error.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let id = task.file_name().to_str().and_then(|name| name.parse().ok());
        let (Some(id), Some(time)) = (id, parse_schedstat(&text)) else { return Err(BenchError::Proc(path)) };
        times.insert(id, time);
    }
    Ok(times)
}

/// Returns the resident memory of a process, in bytes.
///
/// # Errors
/// When the process is gone.
pub fn resident_bytes(pid: u32) -> Result<u64, BenchError> {
    let path = PathBuf::from(format!("/proc/{pid}/status"));
    parse_resident(&read(&path)?).ok_or(BenchError::Proc(path))
}

/// Returns the resident memory of a process and its children's private memory, in bytes.
///
/// # Errors
/// When the process is gone.
pub fn resident_bytes_with_children(pid: u32) -> Result<u64, BenchError> {
    let path = PathBuf::from(format!("/proc/{pid}/task/{pid}/children"));
    let children = read(&path)?;
    // A child that has just ended has no memory.
    let own = |child: &str| {
        read(Path::new(&format!("/proc/{child}/smaps_rollup"))).map_or(0, |text| parse_private(&text))
    };
    Ok(resident_bytes(pid)? + children.split_whitespace().map(own).sum::<u64>())
}

/// Returns the number of files that this process may open.
///
/// # Errors
/// When /proc is not mounted.
pub fn open_files_limit() -> Result<u64, BenchError> {
    let path = PathBuf::from("/proc/self/limits");
    parse_open_files(&read(&path)?).ok_or(BenchError::Proc(path))
}

/// Returns the machine's load average: threads that wanted a core over the last minute.
///
/// # Errors
/// When /proc is not mounted.
pub fn load_average() -> Result<f64, BenchError> {
    let path = PathBuf::from("/proc/loadavg");
    read(&path)?.split_whitespace().next().and_then(|load| load.parse().ok()).ok_or(BenchError::Proc(path))
}

fn process_time(pid: u32) -> Result<Duration, BenchError> {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    parse_stat(&read(&path)?).ok_or(BenchError::Proc(path))
}

fn read(path: &Path) -> Result<String, BenchError> {
    fs::read_to_string(path).doing(format!("read {}", path.display()))
}

/// Reads `/proc/PID/task/TID/schedstat`: nanoseconds run, nanoseconds waited, times scheduled.
fn parse_schedstat(text: &str) -> Option<Duration> {
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Reads `/proc/PID/stat`.
///
/// The program's name may hold blanks and parentheses, so fields count from the last `)`. In proc(5), the
/// name is field 2, and utime and stime are fields 14 and 15.
fn parse_stat(text: &str) -> Option<Duration> {
    let (_, after_name) = text.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some(TICK * (user + system))
}

/// Reads `/proc/PID/status`: "VmRSS:      1656 kB", where kB is 1024 bytes.
fn parse_resident(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Reads `/proc/PID/smaps_rollup`.
///
/// The lines are "Private_Clean:     100 kB" and "Private_Dirty:     200 kB".
fn parse_private(text: &str) -> u64 {
    let lines = text.lines().filter_map(|line| line.strip_prefix("Private_"));
    let kilobytes = lines.filter_map(|line| {
        let (which, rest) = line.split_once(':')?;
        ["Clean", "Dirty"]
            .contains(&which)
            .then_some(rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?)
    });
    kilobytes.sum::<u64>() * 1024
}

/// Reads `/proc/self/limits`: "Max open files            20000                20000                files".
fn parse_open_files(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        soft => soft.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_behind_a_name_with_parentheses() {
        let text = "4399 (redis) (x y) S 4398 4395 2899 0 -1 4194560 30388 0 0 0 302 97 0 0 20 0 5 0 64083 170287104 27230";
        assert_eq!(parse_stat(text), Some(Duration::from_millis(3990)));
        assert_eq!(parse_stat("4399 (redis-server) S 1 2"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn schedstat_begins_with_nanoseconds_run() {
        assert_eq!(parse_schedstat("4000568993 27099946 275\n"), Some(Duration::from_nanos(4_000_568_993)));
        assert_eq!(parse_schedstat(""), None);
    }

    #[test]
    fn resident_memory_is_in_kibibytes() {
        assert_eq!(
            parse_resident("VmPeak:\t  2000 kB\nVmRSS:\t    1656 kB\nRssAnon:\t 112 kB\n"),
            Some(1656 * 1024)
        );
        assert_eq!(parse_resident("State:\tZ (zombie)\n"), None);
    }

    #[test]
    fn a_childs_own_pages_are_the_private_ones() {
        let text = "Rss:  900 kB\nShared_Dirty:  500 kB\nPrivate_Clean:  100 kB\nPrivate_Dirty:  200 kB\nPrivate_Hugetlb: 7 kB\n";
        assert_eq!(parse_private(text), 300 * 1024);
    }

    #[test]
    fn the_soft_limit_of_open_files_comes_first() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
            Max open files            1024                 20000                files\n";
        assert_eq!(parse_open_files(text), Some(1024));
        assert_eq!(parse_open_files("Max open files unlimited unlimited files"), Some(u64::MAX));
    }

    #[test]
    fn ticks_count_only_when_a_thread_has_ended() {
        let sample = |threads, process| CpuSample {
            threads: Duration::from_millis(threads),
            process: Duration::from_millis(process),
        };
        assert_eq!(sample(1234, 1250).since(sample(1000, 1000)), Duration::from_millis(234));
        assert_eq!(sample(1100, 1900).since(sample(1000, 1000)), Duration::from_millis(900));
    }

    #[test]
    fn this_process_can_be_sampled() {
        let pid = std::process::id();
        assert!(resident_bytes(pid).expect("this process is alive") > 0);
        assert!(CpuSample::of(pid).expect("this process is alive").threads > Duration::ZERO);
        assert!(load_average().expect("/proc is mounted") >= 0.0);
    }
}
