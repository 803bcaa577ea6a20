//! The command line: parsing the process's arguments.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::configuration::{Config, Glob};
use super::directive::DirectiveFlags;
use super::directives::{DIRECTIVES, REDIS_VERSION};
use super::file::{FatalConfigError, Loader, read};
use super::settings::RdbWriteFormat;
use super::value::{path_of, refusal};
use super::words;

/// The task of `main`.
#[derive(Debug, PartialEq)]
pub enum Launch {
    /// Serve with this configuration, after logging its [`Config::notices`].
    Serve(Box<Config>),
    /// Print this to the standard output, and end with success.
    Print(String),
    /// Check this snapshot and print its contents. A fault goes to the standard error, with code 1.
    CheckSnapshot(PathBuf),
    /// Check this append-only file. End with code 0, or 1 if it is not valid.
    CheckAof(AofOrder),
    /// Convert this snapshot. End with code 0, or 1 if that fails.
    ConvertSnapshot(ConvertOrder),
    /// Print this and a line end to the standard error, and end with code 1.
    Refuse(String),
}

/// A check or repair of an append-only file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AofOrder {
    /// Its manifest, or a file of commands.
    pub path: PathBuf,
    /// The change to the file.
    pub work: AofWork,
}

/// A conversion of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertOrder {
    /// The snapshot.
    pub from: PathBuf,
    /// The new file.
    pub to: PathBuf,
    /// Its format.
    pub format: RdbWriteFormat,
    /// Whether data of modules is left out.
    pub skips_modules: bool,
}

/// The change that a check makes to an append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AofWork {
    /// No change.
    Check,
    /// An incomplete end is cut off, if the user confirms.
    Fix,
    /// Commands after this time, in seconds since 1970, are cut off.
    CutAfter(u64),
}

/// The environment of a launch.
pub struct Host<'a> {
    /// The name by which the program was started.
    pub program: OsString,
    /// The absolute working directory.
    pub dir: PathBuf,
    /// Number of available cores.
    pub n_cores: usize,
    /// The input that `-` reads a configuration from.
    pub stdin: &'a mut dyn Read,
    /// The matcher for the patterns of `include`.
    pub glob: Glob,
    /// Checks users and renamed commands, for which the commands must be known.
    ///
    /// Returns why the configuration is refused.
    pub check: fn(&Config) -> Result<(), String>,
}

/// Reads the command line, without the program's name, and the files that it names.
///
/// It is parsed as in Redis:
///
/// - A first argument without a leading `-` is the configuration file.
/// - A last argument `-` reads more configuration from the standard input.
/// - Every `--name` begins a directive, and the words up to the next one are its values. They are read after
///   the file, as if they were its last lines.
///
/// Under the name of `redis-check-aof` or `redis-check-rdb` the program behaves as that program. Under the
/// name of a Sentinel it refuses to start.
pub fn launch(args: &[OsString], host: &mut Host<'_>) -> Launch {
    let mut args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
    let named = |name: &[u8]| host.program.as_bytes().ends_with(name);
    if named(b"redis-check-aof") {
        args.insert(0, b"--check-aof");
    } else if named(b"redis-check-rdb") {
        args.insert(0, b"--check-rdb");
    }
    let n_args = args.len();
    args.retain(|arg| *arg != b"--check-config");
    let checks_only = args.len() < n_args;
    match args.as_slice() {
        [b"-v" | b"--version"] => return Launch::Print(version()),
        [b"-h" | b"--help"] => return Launch::Print(help()),
        [b"--check-rdb", path] => return Launch::CheckSnapshot(host.dir.join(path_of(path))),
        [b"--check-rdb", ..] => {
            return Launch::Refuse("Usage: braid-server --check-rdb <rdb-file-name>".into());
        }
        [b"--check-aof", words @ ..] => return check_aof(words),
        [b"--convert-rdb", words @ ..] => return convert_snapshot(words, &host.dir),
        [b"--test-memory", ..] => {
            return Launch::Refuse("Braid has no memory test: memtester does this.".into());
        }
        [b"--check-system", ..] => return Launch::Refuse("Braid has no system check.".into()),
        _ if named(b"-sentinel") || args.contains(&&b"--sentinel"[..]) => {
            return Launch::Refuse(
                "Braid has no Sentinel of its own. Use redis-sentinel (package redis-sentinel) or valkey-sentinel \
                 (package valkey-sentinel): they watch Braid as they watch Redis, see docs/replication.md."
                    .into(),
            );
        }
        _ => {}
    }
    let loaded = load(&args, host).map_err(|error| error.to_string());
    match loaded.and_then(|config| (host.check)(&config).map(|()| config)) {
        Ok(config) if checks_only => Launch::Print(check_report(&config)),
        Ok(config) => Launch::Serve(Box::new(config)),
        Err(why) => Launch::Refuse(why),
    }
}

fn check_aof(words: &[&[u8]]) -> Launch {
    let (work, path) = match words {
        [b"--fix", path] => (AofWork::Fix, path),
        [b"--truncate-to-timestamp", seconds, path] => {
            match std::str::from_utf8(seconds).ok().and_then(|seconds| seconds.parse().ok()) {
                Some(seconds) => (AofWork::CutAfter(seconds), path),
                None => return Launch::Refuse("Invalid timestamp, aborting...".into()),
            }
        }
        [path] if !path.starts_with(b"--") => (AofWork::Check, path),
        _ => {
            let usage = "Usage: braid-server --check-aof [--fix | --truncate-to-timestamp <seconds>] <file.manifest | file.aof>";
            return Launch::Refuse(usage.into());
        }
    };
    Launch::CheckAof(AofOrder { path: path_of(path).to_owned(), work })
}

fn convert_snapshot(words: &[&[u8]], dir: &Path) -> Launch {
    let usage = || {
        Launch::Refuse(
            "Usage: braid-server --convert-rdb <rdb-file-name> <new-file-name> --to <redis-7.0 | redis-7.4 | valkey-9> \
             [--rdb-skip-module-data <yes | no>]"
                .into(),
        )
    };
    let ([from, to, b"--to", format], options) = words.split_at(words.len().min(4)) else { return usage() };
    let skips_modules = match options {
        [] | [b"--rdb-skip-module-data", b"no"] => false,
        [b"--rdb-skip-module-data", b"yes"] => true,
        _ => return usage(),
    };
    let format = match *format {
        b"redis-7.0" => RdbWriteFormat::Redis70,
        b"redis-7.4" => RdbWriteFormat::Redis74,
        b"valkey-9" => RdbWriteFormat::Valkey9,
        _ => return usage(),
    };
    let (from, to) = (dir.join(path_of(from)), dir.join(path_of(to)));
    Launch::ConvertSnapshot(ConvertOrder { from, to, format, skips_modules })
}

fn load(mut args: &[&[u8]], host: &mut Host<'_>) -> Result<Config, FatalConfigError> {
    let mut config = Config::new(host.n_cores, host.dir.clone());
    let mut text = Vec::new();
    if let [file, options @ ..] = args
        && !file.starts_with(b"-")
    {
        let path = host.dir.join(path_of(file));
        text.extend(read(&path)?);
        config.file = Some(path);
        args = options;
    }
    if let [options @ .., b"-"] = args {
        let unreadable =
            |error: std::io::Error| FatalConfigError::Unreadable { path: "-".into(), why: refusal(&error) };
        if !text.is_empty() && !text.ends_with(b"\n") {
            text.push(b'\n');
        }
        host.stdin.read_to_end(&mut text).map_err(unreadable)?;
        args = options;
    }
    if !args.is_empty() {
        text.push(b'\n');
        text.extend(options_as_lines(args));
    }
    Loader::new(&mut config, host.glob).load(&text)?;
    config.check_at_start()?;
    Ok(config)
}

/// Writes options as the lines of a file.
///
/// The word after a name is a value even if it begins with `--`, unless the argument of the name contains its
/// values (`"--hz 44"`). Only `--save` may stand without a value, and then it removes the save points.
fn options_as_lines(args: &[&[u8]]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut needs_value = false;
    for (index, arg) in args.iter().enumerate() {
        match arg.strip_prefix(b"--") {
            Some(name) if !needs_value => {
                if !text.is_empty() {
                    text.push(b'\n');
                }
                text.extend(name);
                let next_is_name = args.get(index + 1).is_none_or(|next| next.starts_with(b"--"));
                let is_bare_save = name.eq_ignore_ascii_case(b"save") && next_is_name;
                if is_bare_save {
                    text.extend(b" \"\"");
                }
                needs_value = !is_bare_save && !name.contains(&b' ');
            }
            _ => {
                text.push(b' ');
                text.extend(words::quote(arg));
                needs_value = false;
            }
        }
    }
    text
}

fn version() -> String {
    format!("Braid server v={} redis={REDIS_VERSION} bits={}\n", env!("CARGO_PKG_VERSION"), usize::BITS)
}

fn help() -> String {
    format!(
        "\
Braid {braid}: a Redis server that runs every command on every core.
It speaks RESP2 and RESP3 and answers as Redis {REDIS_VERSION} does, so clients, redis-cli and redis.conf files work unchanged.

Usage: braid-server [/path/to/redis.conf] [options] [-]
       braid-server - (read the configuration from the standard input)
       braid-server [/path/to/redis.conf] [options] --check-config
       braid-server --check-rdb <file>
       braid-server --check-aof [--fix | --truncate-to-timestamp <seconds>] <file>
       braid-server --convert-rdb <file> <new file> --to <format> [--rdb-skip-module-data yes]
       braid-server -v or --version
       braid-server -h or --help

Options are the directives of redis.conf with two dashes before them. They override the file.
With '-' as the last argument, more configuration is read from the standard input, after the file.

  --check-config        Read the configuration, print what it sets and which directives Braid
                        accepts without acting on them, and why, and end: with code 0, or 1 if it is refused.
  --check-rdb <file>    Read a snapshot, print what is in it, and end: with code 0, or 1 and what is
                        wrong with it, and where.
  --check-aof <file>    Read an append-only file by its manifest, or one file of it, and end: with code 0,
                        or 1 and what is wrong with it, where, and what would be lost if it were cut there.
                        With --fix, ask whether to cut it there. With --truncate-to-timestamp, cut off what
                        was written after a time, in seconds since 1970 (see aof-timestamp-enabled).
                        No server may write to the file meanwhile.
  --convert-rdb <file> <new file> --to <format>
                        Write a snapshot of Redis or Valkey again as redis-7.0, redis-7.4 or valkey-9 reads it,
                        and end: with code 0, or 1 and what is wrong, and where. No file is overwritten.

Started as redis-check-rdb or redis-check-aof, the program does what these do.

Directives of Braid's own:
  --io-threads <n>      Threads that serve clients and run commands, 1 to 128.
                        Default: the cores available.
  --shards <n>          Parts of the keyspace that threads work on independently: a power of two,
                        1 to 16384. Default: 1024.
  --hash-tags <yes|no>  Whether keys with the same {{tag}} lie in one shard, which makes commands over
                        several of them cheaper. 'no' suits data where most keys share one tag.
                        Default: yes.

Unlike Redis, Braid listens on the loopback interface only unless --bind says otherwise.

Examples:
       braid-server (run the server with the default configuration)
       echo 'maxmemory 128mb' | braid-server -
       braid-server /etc/redis/redis.conf --check-config
       braid-server --port 7777
       braid-server --port 7777 --bind 0.0.0.0 --requirepass secret
       braid-server --save \"\" --io-threads 4 --maxmemory 2gb --maxmemory-policy allkeys-lru
       braid-server /etc/redis/redis.conf --loglevel verbose -
",
        braid = env!("CARGO_PKG_VERSION"),
    )
}

/// Returns the text that `--check-config` prints for an accepted configuration.
fn check_report(config: &Config) -> String {
    let mut report = String::from("The configuration is accepted.\n\nSet, other than the default:\n");
    for (row, value) in config.not_default() {
        let text = match row.flags.contains(DirectiveFlags::SENSITIVE) {
            true => "(not shown)".into(),
            false => String::from_utf8_lossy(&row.kind.print(value)).replace('\n', "; "),
        };
        let note = match row.has_effect() {
            true => String::new(),
            false => format!("  (no effect: {})", row.why_idle()),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(report, "  {} {text}{note}", row.name);
    }
    report.push_str("\nAccepted, but without effect, and why:\n");
    for row in DIRECTIVES.iter().filter(|row| !row.has_effect()) {
        let _ = writeln!(report, "  {}: {}", row.name, row.why_idle());
    }
    report
}

#[cfg(test)]
mod tests {
    use super::super::configuration::tests::star;
    use super::*;

    fn run_as(program: &str, args: &[&str], stdin: &str) -> Launch {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        let mut stdin = stdin.as_bytes();
        launch(
            &args,
            &mut Host {
                program: program.into(),
                dir: "/".into(),
                n_cores: 2,
                stdin: &mut stdin,
                glob: star,
                check: |_| Ok(()),
            },
        )
    }

    fn run(args: &[&str], stdin: &str) -> Launch {
        run_as("/usr/bin/braid-server", args, stdin)
    }

    fn serve(args: &[&str], stdin: &str) -> Box<Config> {
        match run(args, stdin) {
            Launch::Serve(config) => config,
            other => panic!("{other:?}"),
        }
    }

    fn refused(args: &[&str]) -> String {
        match run(args, "") {
            Launch::Refuse(why) => why,
            other => panic!("{other:?}"),
        }
    }

    fn value(config: &Config, name: &str) -> String {
        String::from_utf8(config.get(&[name.as_bytes()], star).remove(0).1).unwrap()
    }

    #[test]
    fn without_arguments_the_defaults_serve() {
        let config = serve(&[], "");
        assert_eq!(*config, Config::new(2, "/".into()));
        assert_eq!(config.file(), None);
    }

    #[test]
    fn options_are_directives_with_their_values() {
        let config = serve(&["--port", "7777", "--save", "", "--bind", "127.0.0.1", "::1", "--HZ", "20"], "");
        assert_eq!((config.port, config.hz), (7777, 20));
        assert_eq!(value(&config, "bind"), "127.0.0.1 ::1");
        assert_eq!(value(&config, "save"), "");
    }

    #[test]
    fn save_may_stand_bare_and_other_names_take_the_next_word() {
        assert_eq!(value(&serve(&["--save"], ""), "save"), "");
        let config = serve(&["--save", "--appendonly", "no", "--requirepass", "--x"], "");
        assert_eq!(value(&config, "save"), "");
        assert_eq!(config.requirepass.as_deref(), Some(&b"--x"[..]));
        assert_eq!(
            value(&serve(&["--save", "1", "2", "3", "4", "--save", "5", "6"], ""), "save"),
            "1 2 3 4 5 6"
        );
    }

    #[test]
    fn an_option_may_be_one_argument() {
        assert_eq!(serve(&["--hz 44", "--bind", "127.0.0.1 -::1"], "").hz, 44);
    }

    #[test]
    fn the_standard_input_is_read_before_the_options() {
        assert_eq!(serve(&["-"], "port 1\nhz 22\n").hz, 22);
        let config = serve(&["--hz", "30", "-"], "timeout 5\nhz 22");
        assert_eq!((config.hz, value(&config, "timeout")), (30, "5".into()));
    }

    #[test]
    fn refused_options_are_numbered_as_in_redis() {
        assert!(refused(&["--port"]).ends_with("at line 2\n>>> 'port'\nwrong number of arguments"));
        assert!(refused(&["--port", "0", "1"]).contains("at line 2\n>>> 'port \"0\" \"1\"'\n"));
        assert!(refused(&["--port", "--5"]).contains(">>> 'port \"--5\"'\nargument couldn't be parsed"));
        let bad = ">>> 'bogus'\nBad directive or wrong number of arguments";
        assert!(refused(&["--port", "0", "--bogus"]).ends_with(bad));
        assert!(refused(&["--hz", "1", "--save", "--bogus"]).contains("at line 4"));
        assert!(refused(&["-x"]).contains(">>> '\"-x\"'"));
    }

    #[test]
    fn a_missing_file_is_named() {
        let why = "Fatal error, can't open config file '/nonexistent.conf': No such file or directory";
        assert_eq!(refused(&["nonexistent.conf"]), why);
    }

    #[test]
    fn what_braid_has_not_is_said() {
        for name in ["redis-sentinel", "/usr/bin/valkey-sentinel"] {
            let Launch::Refuse(why) = run_as(name, &["a.conf"], "") else { panic!("{name} starts") };
            assert_eq!(why, refused(&["a.conf", "--sentinel"]));
            assert!(why.contains("Use redis-sentinel (package redis-sentinel)"), "{why}");
        }
        assert!(refused(&["--test-memory", "10"]).contains("memory"));
    }

    #[test]
    fn version_and_help_are_printed() {
        let Launch::Print(version) = run(&["-v"], "") else { panic!() };
        assert!(version.starts_with("Braid server v="));
        let Launch::Print(help) = run(&["--help"], "") else { panic!() };
        for word in ["Usage:", "--shards", "--hash-tags", "--io-threads", "{tag}", "--check-config"] {
            assert!(help.contains(word), "{word}");
        }
    }

    #[test]
    fn a_snapshot_to_check_is_named() {
        assert_eq!(run(&["--check-rdb", "a.rdb"], ""), Launch::CheckSnapshot("/a.rdb".into()));
        assert!(refused(&["--check-rdb"]).starts_with("Usage:"));
        let order = |format, skips_modules| {
            let (from, to) = ("/a".into(), "/b".into());
            Launch::ConvertSnapshot(ConvertOrder { from, to, format, skips_modules })
        };
        let words = ["--convert-rdb", "a", "b", "--to", "valkey-9", "--rdb-skip-module-data", "yes"];
        assert_eq!(run(&words, ""), order(RdbWriteFormat::Valkey9, true));
        assert_eq!(run(&words[..5], ""), order(RdbWriteFormat::Valkey9, false));
        for wrong in [&words[..4], &words[..6], &["--convert-rdb", "a", "b", "--to", "auto"]] {
            assert!(refused(wrong).starts_with("Usage:"));
        }
    }

    #[test]
    fn an_append_only_file_to_check_is_named() {
        let order = |work| Launch::CheckAof(AofOrder { path: "a.aof".into(), work });
        assert_eq!(run(&["--check-aof", "a.aof"], ""), order(AofWork::Check));
        assert_eq!(run(&["--check-aof", "--fix", "a.aof"], ""), order(AofWork::Fix));
        let until = ["--check-aof", "--truncate-to-timestamp", "12", "a.aof"];
        assert_eq!(run(&until, ""), order(AofWork::CutAfter(12)));
        for words in [&["--check-aof"][..], &["--check-aof", "--fix"], &["--check-aof", "a", "b"]] {
            assert!(refused(words).starts_with("Usage:"), "{words:?}");
        }
        let why = refused(&["--check-aof", "--truncate-to-timestamp", "x", "a"]);
        assert_eq!(why, "Invalid timestamp, aborting...");
    }

    #[test]
    fn under_the_name_of_a_program_that_checks_files_it_is_that_program() {
        let (aof, rdb) = ("/usr/bin/redis-check-aof", "redis-check-rdb");
        assert_eq!(run_as(aof, &["--fix", "a"], ""), run(&["--check-aof", "--fix", "a"], ""));
        assert_eq!(run_as(rdb, &["a"], ""), run(&["--check-rdb", "a"], ""));
    }

    #[test]
    fn checking_prints_what_is_set_and_what_is_kept_but_no_secrets() {
        let args = ["--check-config", "--port", "7", "--requirepass", "hush", "--activedefrag", "yes"];
        let Launch::Print(report) = run(&args, "") else { panic!() };
        assert!(report.contains("\n  port 7\n"), "{report}");
        assert!(
            report.contains("\n  activedefrag yes  (no effect: the allocator cannot move values together)\n"),
            "{report}"
        );
        assert!(report.contains("\n  requirepass (not shown)\n"), "{report}");
        assert!(!report.contains("hush"));
        assert!(matches!(run(&["--port", "x", "--check-config"], ""), Launch::Refuse(_)));
    }
}
