//! Commands of missing features: a cluster, modules, replicas.
//!
//! They reply as a redis-server without these features does, or as the Valkey that `announce-as` names.

use braid_protocol::reply::Reply;
use braid_storage::table::hash::hash_slot;

use crate::{
    catalog::{Args, Arity, Categories, CommandError, Deprecation, Flags, Group, Outcome},
    command::{Call, CommandSpec, Run, help::help},
    config::AnnounceAs,
};

const ASKS: Flags = Flags::STALE;
const ASKS_ADMIN: Flags = ASKS.and(Flags::ADMIN);
const CHANGES: Flags = ASKS_ADMIN.and(Flags::NO_ASYNC_LOADING);

const CLUSTER_ROW: CommandSpec = CommandSpec {
    run: Run::Session(no_cluster),
    group: Group::Cluster,
    summary: "Is refused: there is no cluster.",
    ..CommandSpec::ROW
};

const ABOUT_VALKEY: &str = "Has no effect, as in Valkey without a cluster; as Redis it is refused.";

/// Base of commands that a cluster's client sends about its connection.
const CLUSTER_CLIENT: CommandSpec = CommandSpec {
    arity: Arity::Exactly(1),
    since: "3.0.0",
    categories: Some(Categories::CONNECTION),
    ..CLUSTER_ROW
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec { name: "asking", flags: Flags::FAST, ..CLUSTER_CLIENT },
    CommandSpec {
        name: "cluster",
        arity: Arity::AtLeast(2),
        since: "3.0.0",
        group: Group::Cluster,
        summary: "A container for commands about a cluster.",
        complexity: "Depends on subcommand.",
        subcommands: CLUSTER,
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "module",
        arity: Arity::AtLeast(2),
        since: "4.0.0",
        group: Group::Server,
        summary: "A container for commands about modules.",
        complexity: "Depends on subcommand.",
        subcommands: MODULE,
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "readonly",
        flags: Flags::FAST.and(Flags::LOADING).and(Flags::STALE),
        run: Run::Session(read_only_or_not),
        summary: ABOUT_VALKEY,
        ..CLUSTER_CLIENT
    },
    CommandSpec {
        name: "readwrite",
        flags: Flags::FAST.and(Flags::LOADING).and(Flags::STALE),
        run: Run::Session(read_only_or_not),
        summary: ABOUT_VALKEY,
        ..CLUSTER_CLIENT
    },
];

const CLUSTER: &[CommandSpec] = &[
    CommandSpec {
        name: "addslots",
        arity: Arity::AtLeast(3),
        flags: CHANGES,
        since: "3.0.0",
        syntax: "slot [slot ...]",
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "addslotsrange",
        arity: Arity::AtLeast(4),
        flags: CHANGES,
        since: "7.0.0",
        syntax: "start-slot end-slot [start-slot end-slot ...]",
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "bumpepoch",
        arity: Arity::Exactly(2),
        flags: CHANGES,
        since: "3.0.0",
        tips: &["nondeterministic_output"],
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "count-failure-reports",
        arity: Arity::Exactly(3),
        flags: ASKS_ADMIN,
        since: "3.0.0",
        syntax: "node-id",
        tips: &["nondeterministic_output"],
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "countkeysinslot",
        arity: Arity::Exactly(3),
        flags: ASKS,
        since: "3.0.0",
        syntax: "slot",
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "delslots",
        arity: Arity::AtLeast(3),
        flags: CHANGES,
        since: "3.0.0",
        syntax: "slot [slot ...]",
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "delslotsrange",
        arity: Arity::AtLeast(4),
        flags: CHANGES,
        since: "7.0.0",
        syntax: "start-slot end-slot [start-slot end-slot ...]",
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "failover",
        arity: Arity::AtLeast(2),
        flags: CHANGES,
        since: "3.0.0",
        syntax: "[FORCE | TAKEOVER]",
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "flushslots",
        arity: Arity::Exactly(2),
        flags: CHANGES,
        since: "3.0.0",
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "forget",
        arity: Arity::Exactly(3),
        flags: CHANGES,
        since: "3.0.0",
        syntax: "node-id",
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "getkeysinslot",
        arity: Arity::Exactly(4),
        flags: ASKS,
        since: "3.0.0",
        syntax: "slot count",
        tips: &["nondeterministic_output"],
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "help",
        arity: Arity::Exactly(2),
        flags: ASKS.and(Flags::LOADING),
        since: "5.0.0",
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "info",
        arity: Arity::Exactly(2),
        flags: ASKS,
        since: "3.0.0",
        tips: &["nondeterministic_output"],
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "keyslot",
        arity: Arity::Exactly(3),
        flags: ASKS,
        run: Run::Session(key_slot),
        summary: "Returns the hash slot of a key, as Valkey does; as Redis it is refused without a cluster.",
        since: "3.0.0",
        syntax: "key",
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "links",
        arity: Arity::Exactly(2),
        flags: ASKS,
        since: "7.0.0",
        tips: &["nondeterministic_output"],
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "meet",
        arity: Arity::AtLeast(4),
        flags: CHANGES,
        since: "3.0.0",
        syntax: "ip port [cluster-bus-port]",
        ..CLUSTER_ROW
    },
    CommandSpec { name: "myid", arity: Arity::Exactly(2), flags: ASKS, since: "3.0.0", ..CLUSTER_ROW },
    CommandSpec {
        name: "nodes",
        arity: Arity::Exactly(2),
        flags: ASKS,
        since: "3.0.0",
        tips: &["nondeterministic_output"],
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "replicas",
        arity: Arity::Exactly(3),
        flags: ASKS_ADMIN,
        since: "5.0.0",
        syntax: "node-id",
        tips: &["nondeterministic_output"],
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "replicate",
        arity: Arity::Exactly(3),
        flags: CHANGES,
        since: "3.0.0",
        syntax: "node-id",
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "reset",
        arity: Arity::AtLeast(2),
        flags: ASKS_ADMIN.and(Flags::NOSCRIPT),
        since: "3.0.0",
        syntax: "[HARD | SOFT]",
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "saveconfig",
        arity: Arity::Exactly(2),
        flags: CHANGES,
        since: "3.0.0",
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "set-config-epoch",
        arity: Arity::Exactly(3),
        flags: CHANGES,
        since: "3.0.0",
        syntax: "config-epoch",
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "setslot",
        arity: Arity::AtLeast(4),
        flags: CHANGES,
        since: "3.0.0",
        syntax: "slot <IMPORTING node-id | MIGRATING node-id | NODE node-id | STABLE>",
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "shards",
        arity: Arity::Exactly(2),
        flags: ASKS.and(Flags::LOADING),
        since: "7.0.0",
        tips: &["nondeterministic_output"],
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "slaves",
        arity: Arity::Exactly(3),
        flags: ASKS_ADMIN,
        since: "3.0.0",
        syntax: "node-id",
        tips: &["nondeterministic_output"],
        deprecated: Some(Deprecation { since: "5.0.0", replaced_by: "`CLUSTER REPLICAS`" }),
        ..CLUSTER_ROW
    },
    CommandSpec {
        name: "slots",
        arity: Arity::Exactly(2),
        flags: ASKS.and(Flags::LOADING),
        since: "3.0.0",
        tips: &["nondeterministic_output"],
        deprecated: Some(Deprecation { since: "7.0.0", replaced_by: "`CLUSTER SHARDS`" }),
        ..CLUSTER_ROW
    },
];

fn no_cluster(_: &mut Call<'_, '_>, _: Args<'_>, _: &mut Reply<'_>) -> Outcome {
    Err(NO_CLUSTER)
}

const NO_CLUSTER: CommandError = CommandError::text("ERR This instance has cluster support disabled");

/// Succeeds without a cluster if the server is announced as Valkey.
///
/// Valkey marks the connection as one that may read from a replica. There is no replica.
fn read_only_or_not(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    needs_valkey(call)?;
    reply.ok();
    Ok(())
}

/// Computes the slot without a cluster if the server is announced as Valkey.
fn key_slot(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    needs_valkey(call)?;
    reply.integer(hash_slot(args.next()?).into());
    Ok(())
}

/// Fails as Redis does without a cluster, unless the server is announced as Valkey.
fn needs_valkey(call: &mut Call<'_, '_>) -> Outcome {
    if call.config().announce_as == AnnounceAs::Valkey91 { Ok(()) } else { Err(NO_CLUSTER) }
}

const LOADS: CommandSpec = CommandSpec {
    arity: Arity::AtLeast(3),
    flags: Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::NO_ASYNC_LOADING).and(Flags::LOADS_MODULES),
    run: Run::Session(load_module),
    since: "4.0.0",
    group: Group::Server,
    summary: "Is refused: there are no modules.",
    ..CommandSpec::ROW
};

const MODULE: &[CommandSpec] = &[
    CommandSpec { run: Run::Session(module_help), since: "5.0.0", group: Group::Server, ..CommandSpec::HELP },
    CommandSpec {
        name: "list",
        arity: Arity::Exactly(2),
        flags: Flags::ADMIN.and(Flags::NOSCRIPT),
        run: Run::Session(list_modules),
        since: "4.0.0",
        group: Group::Server,
        summary: "Returns an empty list: there are no modules.",
        tips: &["nondeterministic_output_order"],
        ..CommandSpec::ROW
    },
    CommandSpec { name: "load", syntax: "path [arg [arg ...]]", ..LOADS },
    CommandSpec {
        name: "loadex",
        since: "7.0.0",
        syntax: "path [CONFIG name value [CONFIG name value ...]] [ARGS args [args ...]]",
        ..LOADS
    },
    CommandSpec {
        name: "unload",
        arity: Arity::Exactly(3),
        run: Run::Session(unload_module),
        syntax: "name",
        ..LOADS
    },
];

const MODULE_HELP: &[&str] = &[
    "LIST",
    "    Return a list of loaded modules.",
    "LOAD <path> [<arg> ...]",
    "    Load a module library from <path>, passing to it any optional arguments.",
    "LOADEX <path> [[CONFIG NAME VALUE] [CONFIG NAME VALUE]] [ARGS ...]",
    "    Load a module library from <path>, while passing it module configurations and optional arguments.",
    "UNLOAD <name>",
    "    Unload a module.",
];

fn module_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(reply, "MODULE", MODULE_HELP)
}

fn list_modules(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    reply.array(0);
    Ok(())
}

fn load_module(_: &mut Call<'_, '_>, _: Args<'_>, _: &mut Reply<'_>) -> Outcome {
    Err(CommandError::text("ERR Error loading the extension: this server has no modules"))
}

fn unload_module(_: &mut Call<'_, '_>, _: Args<'_>, _: &mut Reply<'_>) -> Outcome {
    Err(CommandError::text("ERR Error unloading module: no such module with that name"))
}
