//! CONFIG: directives read, changed and written to the configuration file.

use std::{
    fs,
    io::{self, Write},
    path::Path,
    sync::{Arc, atomic::Ordering},
};

use braid_journal::disk::read_regular;
use braid_protocol::reply::Reply;
use braid_storage::{
    glob::{Case, glob_match},
    memory::reclaim,
};

use super::row_flags::ADMIN;
use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, Outcome, Words},
    client::session::{LogBegun, SaveOrder, SessionRequest},
    command::{Call, CommandSpec, Run, connections::acl, help::help},
    config::{Appended, Config, SameUser, UserLine},
    log,
    observe::events,
    process::{descriptors::room_for_clients, oom_score},
    shared::server::Server,
    sockets::{
        certificates::{self, Certificates},
        outgoing,
    },
    warning_later,
};

pub(super) const CONFIG: CommandSpec = CommandSpec {
    name: "config",
    arity: Arity::AtLeast(2),
    since: "2.0.0",
    group: Group::Server,
    summary: "A container for server configuration commands.",
    complexity: "Depends on subcommand.",
    subcommands: SUBCOMMANDS,
    ..CommandSpec::ROW
};

const CONFIG_ROW: CommandSpec = CommandSpec { flags: ADMIN, group: Group::Server, ..CommandSpec::ROW };

const SUBCOMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "get",
        arity: Arity::AtLeast(3),
        run: Run::Session(config_get),
        since: "2.0.0",
        syntax: "parameter [parameter ...]",
        summary: "Returns the effective values of configuration parameters.",
        complexity: "O(N) when N is the number of configuration parameters provided",
        ..CONFIG_ROW
    },
    CommandSpec { run: Run::Session(config_help), since: "5.0.0", group: Group::Server, ..CommandSpec::HELP },
    CommandSpec {
        name: "resetstat",
        arity: Arity::Exactly(2),
        run: Run::Session(config_resetstat),
        since: "2.0.0",
        summary: "Resets the server's statistics.",
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        ..CONFIG_ROW
    },
    CommandSpec {
        name: "rewrite",
        arity: Arity::Exactly(2),
        flags: ADMIN.and(Flags::USES_FILES),
        run: Run::Session(config_rewrite),
        since: "2.8.0",
        summary: "Persists the effective configuration to file.",
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        ..CONFIG_ROW
    },
    CommandSpec {
        name: "set",
        arity: Arity::AtLeast(4),
        flags: ADMIN.and(Flags::USES_FILES).and(Flags::SECRET_DIRECTIVES),
        run: Run::Barrier(config_set),
        since: "2.0.0",
        syntax: "parameter value [parameter value ...]",
        summary: "Sets configuration parameters in-flight.",
        complexity: "O(N) when N is the number of configuration parameters provided",
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        ..CONFIG_ROW
    },
];

const CONFIG_HELP: &[&str] = &[
    "GET <pattern> [<pattern> ...]",
    "    Return the parameters that match, and their values.",
    "SET <directive> <value> [<directive> <value> ...]",
    "    Change parameters, all or none.",
    "RESETSTAT",
    "    Start the statistics of INFO over.",
    "REWRITE",
    "    Write the configuration that holds to the configuration file.",
];

fn config_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(reply, "CONFIG", CONFIG_HELP)
}

fn config_get(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let patterns: Vec<&[u8]> = args.rest().collect();
    let found = call.config().get(&patterns, matches);
    reply.map(found.len());
    for (name, value) in found {
        // A parameter that is named exactly is returned in the client's spelling.
        let asked = patterns.iter().find(|pattern| pattern.eq_ignore_ascii_case(name.as_bytes()));
        reply.bulk(asked.copied().unwrap_or(name.as_bytes()));
        reply.bulk(&value);
    }
    Ok(())
}

fn matches(pattern: &[u8], text: &[u8]) -> bool {
    glob_match(pattern, text, Case::Insensitive)
}

fn config_set(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let words: Vec<&[u8]> = args.rest().collect();
    let (pairs, []) = words.as_chunks::<2>() else { return Err(CommandError::Syntax) };
    let pairs: Vec<(&[u8], &[u8])> = pairs.iter().map(|&[name, value]| (name, value)).collect();
    let server = call.server;
    let _writer = server.config_writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut config = Config::clone(&server.config.load());
    let refused = |error| CommandError::owned(format!("ERR {error}"));
    let changed = config.set(&pairs, call.session.record.peer.asker()).map_err(refused)?;
    config.check_at_run_time(&changed).map_err(refused)?;
    // While this value exists, the new AOF is kept.
    let log_begun = call.session.log_begun.take();
    if let (Some(LogBegun::Failed), true) = (&log_begun, config.appendonly) {
        return Err(CommandError::text(
            "ERR CONFIG SET failed (possibly related to argument 'appendonly') - Unable to turn on AOF. Check server logs.",
        ));
    }
    for directive in changed.iter().filter(|directive| !directive.has_effect()) {
        warning_later!("CONFIG SET: '{}' has no effect: {}", directive.name, directive.why_idle());
    }
    find_descriptors(&config, server)?;
    adjust_oom_score(&config, server)?;
    let listens = read_certificates(&config, &pairs).and_then(|tls| {
        // Certificates are in place before the first client that needs them can connect.
        let tls_before = tls.map(|tls| server.tls.swap(tls));
        listen_where(&config, server).inspect_err(|_| {
            if let Some(before) = tls_before {
                server.tls.store(before);
            }
        })
    });
    if let Err(error) = listens {
        let present = server.config.load();
        if sets_oom_score(&config, &present) {
            // It was possible before.
            let _ = oom_score::adjust(&present);
        }
        return Err(error);
    }
    log::configure(&config);
    let password = config.requirepass.clone();
    let has_changed = password != server.config.load().requirepass;
    let (did_log, logs) = (server.config.load().appendonly, config.appendonly);
    server.set_config(config);
    call.renew_definitions();
    if has_changed {
        server.set_default_password(password.as_deref(), call.table, call.session, call.thread);
    }
    if let Some(held) = call.access.held() {
        events::settle(server, held);
    }
    server.limit_clients(call.thread);
    reply.ok();
    // The reply, or that of EXEC, waits until the change stream is on disk and the AOF's directory is free.
    if !logs && (did_log || server.durability.aof.has_file()) {
        call.session.ask(SessionRequest::Save { order: SaveOrder::EndLog, is_answered: false });
    }
    Ok(())
}

/// Whether a CONFIG SET with these words turns the AOF on.
///
/// The AOF is then begun before the command runs. Within a transaction it is begun afterwards, as in Redis.
pub(crate) fn turns_log_on(words: Words<'_>, server: &Server) -> bool {
    let is_set = |word: &[u8], name: &[u8]| word.eq_ignore_ascii_case(name);
    words.len() > 3
        && is_set(words.get(0), b"config")
        && is_set(words.get(1), b"set")
        && (2..words.len() - 1)
            .step_by(2)
            .any(|at| is_set(words.get(at), b"appendonly") && is_set(words.get(at + 1), b"yes"))
        && !server.config.load().appendonly
}

/// Whether a configuration asks for another score for the out-of-memory killer than an old one.
fn sets_oom_score(new: &Config, old: &Config) -> bool {
    let asked = |one: &Config| (one.oom_score_adj, one.oom_score_adj_values);
    asked(new) != asked(old)
}

/// Adjusts the score for the out-of-memory killer, if a CONFIG SET changes that.
fn adjust_oom_score(new: &Config, server: &Server) -> Outcome {
    if !sets_oom_score(new, &server.config.load()) {
        return Ok(());
    }
    oom_score::adjust(new).map_err(|error| {
        warning_later!("The score for the out-of-memory killer cannot be adjusted: {error}");
        CommandError::text(
            "ERR CONFIG SET failed (possibly related to argument 'oom-score-adj') - Failed to apply new oom_score_adj configuration, \
             check server logs.",
        )
    })
}

/// Ensures descriptors for as many clients as a new configuration admits.
fn find_descriptors(new: &Config, server: &Server) -> Outcome {
    if new.maxclients <= server.config.load().maxclients {
        return Ok(());
    }
    let n_possible = room_for_clients(new.maxclients, server.threads.len(), new);
    if n_possible < new.maxclients {
        return Err(CommandError::owned(format!(
            "ERR CONFIG SET failed (possibly related to argument 'maxclients') - The operating system is not able to handle the \
             specified number of clients, try with {n_possible}"
        )));
    }
    Ok(())
}

/// Reads certificates and keys if a CONFIG SET names a TLS directive.
///
/// It does so even if the value is the present one, as the files may have changed. Returns the replacement of
/// the present certificates, if there is one.
fn read_certificates(
    new: &Config,
    pairs: &[(&[u8], &[u8])],
) -> Result<Option<Option<Arc<Certificates>>>, CommandError> {
    let name = |(name, _): &(&[u8], &[u8])| name.to_ascii_lowercase();
    let Some(name) = pairs.iter().map(name).find(|name| name.starts_with(b"tls-")) else { return Ok(None) };
    let serves = new.tls_port != 0 || new.metrics_tls;
    let read = outgoing::check(new).and_then(|()| serves.then(|| certificates::read(new)).transpose());
    read.map(Some).map_err(|why| {
        let name = String::from_utf8_lossy(&name);
        warning_later!("Failed to configure TLS: {why}");
        CommandError::owned(format!(
            "ERR CONFIG SET failed (possibly related to argument '{name}') - Unable to update TLS configuration. {why}"
        ))
    })
}

/// Listens on the addresses of a new configuration.
///
/// It is the last step that may fail, so after a failure nothing has changed.
fn listen_where(new: &Config, server: &Server) -> Outcome {
    let old = server.config.load();
    let (name, why) = if old.port != new.port {
        ("port", "Unable to listen on this port. Check server logs.")
    } else if old.tls_port != new.tls_port {
        ("tls-port", "Unable to listen on this port. Check server logs.")
    } else if old.bind != new.bind {
        ("bind", "Failed to bind to specified addresses.")
    } else {
        return Ok(());
    };
    server.listening.change(new).map_err(|error| {
        warning_later!("{error}");
        CommandError::owned(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
    })
}

fn config_resetstat(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    for peer in &call.server.threads {
        peer.stats.reset();
    }
    call.server.keyspace.reset_stats();
    call.server.scripts.reset_stats();
    let (replication, replica) = (&call.server.replication, &call.server.replica);
    for count in [
        &replication.n_full,
        &replication.n_partial,
        &replication.n_partial_refused,
        &replica.n_unexpected_errors,
        &replica.link_bytes_in,
        &replica.link_bytes_out,
    ] {
        count.store(0, Ordering::Relaxed);
    }
    reclaim::reset_reclaimed();
    reply.ok();
    Ok(())
}

fn config_rewrite(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    rewrite_config(call, Appended::Changed, reply)
}

pub(super) fn rewrite_config(call: &Call<'_, '_>, appended: Appended, reply: &mut Reply<'_>) -> Outcome {
    let server = call.server;
    let _writer = server.config_writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut config = Config::clone(&server.config.load());
    config.set_users(&acl::user_lines(server, &config, call.table));
    let path = config.file().ok_or(CommandError::text("ERR The server is running without a config file"))?;
    let is_same_user = |one: &UserLine, other: &UserLine| acl::is_same_user(one, other, &config, call.table);
    if let Err(error) = rewrite_file(path, &config, appended, &is_same_user) {
        warning_later!("CONFIG REWRITE failed: {error}");
        return Err(CommandError::owned(format!("ERR Rewriting config file: {error}")));
    }
    warning_later!("CONFIG REWRITE executed with success.");
    reply.ok();
    Ok(())
}

/// Replaces a file atomically.
///
/// Readers, even after a crash, see the whole old or the whole new file.
fn rewrite_file(
    path: &Path,
    config: &Config,
    appended: Appended,
    is_same_user: SameUser<'_>,
) -> io::Result<()> {
    let original = match read_regular(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let text = config.rewrite(&original, appended, matches, is_same_user).map_err(io::Error::other)?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = Path::new(&temporary);
    let written = write_whole(temporary, &text).and_then(|()| {
        if let Ok(old) = fs::metadata(path) {
            fs::set_permissions(temporary, old.permissions())?;
        }
        fs::rename(temporary, path)
    });
    if written.is_err() {
        // A partial file is useless.
        let _ = fs::remove_file(temporary);
    }
    written
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
