//! Installed files: the configuration, the service and the manual fit the server and each other.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use braid_server::config::directives;

const SERVER: &str = env!("CARGO_BIN_EXE_braid-server");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
}

/// Returns the configuration's active lines, and the examples in its comments. Prose begins with a capital
/// letter or a code span.
fn conf() -> (Vec<String>, Vec<String>) {
    let (mut set, mut examples) = (Vec::new(), Vec::new());
    for line in text("packaging/braid.conf").lines() {
        match line.strip_prefix("# ") {
            None if line.is_empty() || line == "#" => {}
            None => set.push(line.to_owned()),
            Some(comment) if comment.starts_with(|first: char| first.is_ascii_lowercase()) => {
                examples.push(comment.to_owned());
            }
            Some(_) => {}
        }
    }
    (set, examples)
}

/// Returns the value of a directive in the configuration.
fn set_to(directive: &str) -> String {
    let (set, _) = conf();
    let value = set.iter().find_map(|line| line.strip_prefix(directive)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("braid.conf sets {directive}")).to_owned()
}

/// Returns the paths in the package, each with its source.
fn installed() -> Vec<(String, String)> {
    let manifest = text("server/Cargo.toml");
    let assets = manifest.split_once("\nassets = [\n").expect("there is a list").1;
    let assets = assets.split_once("\n]").expect("it ends").0;
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split('"').collect();
        let [_, from, _, to, ..] = words[..] else { panic!("an asset: {line}") };
        let name = if to.ends_with('/') { from.rsplit('/').next().expect("it has a name") } else { "" };
        (format!("/{to}{name}"), from.to_owned())
    };
    assets.lines().map(of_line).collect()
}

/// Returns the values of a key in the unit's file.
fn unit(key: &str) -> Vec<String> {
    let text = text("packaging/braid-server.service");
    text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned).collect()
}

#[test]
fn the_configuration_is_accepted_and_names_only_what_has_an_effect() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packaging");
    fs::create_dir_all(&scratch).expect("the build's scratch space is writable");
    let (set, examples) = conf();
    assert!(set.len() > 5 && examples.len() > 5, "{set:?} {examples:?}");
    // The package makes the directories.
    let here = |line: &String| match line.split_once(' ') {
        Some(("dir", _)) => format!("dir {}", scratch.display()),
        Some(("logfile", _)) => format!("logfile {}", scratch.join("log").display()),
        _ => line.clone(),
    };
    let lines: Vec<String> = set.iter().map(here).collect();
    let file = scratch.join("braid.conf");
    fs::write(&file, lines.join("\n")).expect("the folder is writable");
    let checked = Command::new(SERVER).arg(&file).arg("--check-config").output().expect("it runs");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert!(said.contains("supervised systemd"), "{said}");

    for line in set.iter().chain(&examples) {
        let name = line.split(' ').next().expect("a line has a word");
        let row = directives().iter().find(|row| row.name == name);
        let row = row.unwrap_or_else(|| panic!("braid.conf names a directive that is not there: {name}"));
        assert!(row.has_effect() || name == "save", "braid.conf names a directive without effect: {name}");
    }
}

#[test]
fn strangers_are_kept_out_as_the_configuration_comes() {
    assert_eq!(set_to("bind"), "127.0.0.1 -::1");
    assert_eq!(set_to("protected-mode"), "yes");
}

#[test]
fn the_service_runs_what_the_package_installs_as_the_user_that_it_makes() {
    let installed: BTreeSet<String> = installed().into_iter().map(|(path, _)| path).collect();
    let command = unit("ExecStart");
    let [command] = command.as_slice() else { panic!("one command: {command:?}") };
    assert_eq!(command, "/usr/bin/braid-server /etc/braid/braid.conf");
    for path in command.split(' ') {
        assert!(installed.contains(path), "{path} is not in {installed:?}");
    }
    assert_eq!((unit("Type"), set_to("supervised")), (vec!["notify".to_owned()], "systemd".to_owned()));
    let postinst = text("packaging/debian/postinst");
    for user in [unit("User"), unit("Group")].concat() {
        assert!(postinst.contains(&format!("getent passwd {user} ")), "{user}");
    }
    assert_eq!(set_to("dir"), format!("/var/lib/{}", unit("StateDirectory")[0]));
    assert_eq!(unit("WorkingDirectory")[0], set_to("dir"));
    let logs = format!("/var/log/{}", unit("LogsDirectory")[0]);
    assert_eq!(Path::new(&set_to("logfile")).parent(), Some(Path::new(&logs)));
    assert!(text("packaging/debian/braid-server.logrotate").starts_with(&format!("{logs}/*.log {{")));
    for directory in [set_to("dir"), logs] {
        assert!(postinst.contains(&directory), "{directory}");
        assert!(text("packaging/debian/postrm").contains(&directory), "{directory}");
    }
}

#[test]
fn what_the_package_is_made_of_is_there() {
    let installed = installed();
    assert!(installed.len() >= 8, "{installed:?}");
    for (_, from) in installed.iter().filter(|(_, from)| !from.starts_with("target/")) {
        assert!(root().join("server").join(from).exists(), "{from}");
    }
    let manifest = text("server/Cargo.toml");
    let files = manifest.split_once("conf-files = [").expect("there is a list").1;
    for file in files.split_once(']').expect("it ends").0.split('"').skip(1).step_by(2) {
        assert!(installed.iter().any(|(path, _)| path == file), "{file}");
    }
}

#[test]
fn the_manual_says_what_the_help_says() {
    let manual = Command::new(root().join("packaging/manual")).args([SERVER, "8", "one line"]).output();
    let manual = manual.expect("there is a shell");
    assert!(manual.status.success(), "{}", String::from_utf8_lossy(&manual.stderr));
    // As a reader sees it, without roff's escapes.
    let manual = String::from_utf8(manual.stdout).expect("it is text");
    let read = manual.replace("\\-", "-").replace("\\(aq", "'").replace("\\&", "");
    let help = Command::new(SERVER).arg("--help").output().expect("it runs").stdout;
    let help = String::from_utf8(help).expect("it is text");
    assert!(read.contains(help.trim_end()), "{read}");
    let title = format!(".TH BRAID-SERVER 8 \"\" \"Braid server v={}\"", env!("CARGO_PKG_VERSION"));
    assert!(read.starts_with(&title), "{read}");
    // A line that begins with a point or a quote is a request to roff.
    assert!(!manual.lines().any(|line| line.starts_with('\'')), "{manual}");
    assert!(read.contains("/etc/braid/braid.conf"));
}
