//! The categories that follow from a command's row.

use crate::{
    catalog::{Categories, Flags, Group},
    command::{CommandSpec, Registered, Run},
};

impl Categories {
    /// Returns the categories of a command.
    pub fn of(command: &Registered) -> Categories {
        let spec = command.spec;
        let mut all = match spec.categories {
            Some(categories) => categories,
            None => of_group(spec),
        };
        // A read-only script is no plain read: as in Redis, `@read` does not include EVAL_RO and related
        // commands.
        if spec.flags.has(Flags::READONLY) && !all.has(Categories::SCRIPTING) {
            all = all.and(Categories::READ);
        }
        let follows = [
            (Flags::WRITE, Categories::WRITE),
            (Flags::ADMIN, Categories::ADMIN.and(Categories::DANGEROUS)),
            (Flags::DANGEROUS, Categories::DANGEROUS),
            (Flags::BLOCKING, Categories::BLOCKING),
        ];
        for (flag, category) in follows {
            if spec.flags.has(flag) {
                all = all.and(category);
            }
        }
        all.and(if spec.flags.has(Flags::FAST) { Categories::FAST } else { Categories::SLOW })
    }
}

/// Returns the categories of a command's group. A container has none, but its subcommands do.
fn of_group(spec: &CommandSpec) -> Categories {
    if matches!(spec.run, Run::Container) {
        return Categories::NONE;
    }
    match spec.group {
        Group::String => Categories::STRING,
        Group::Generic => Categories::KEYSPACE,
        Group::List => Categories::LIST,
        Group::Hash => Categories::HASH,
        Group::Set => Categories::SET,
        Group::SortedSet => Categories::SORTEDSET,
        Group::Geo => Categories::GEO,
        Group::Stream => Categories::STREAM,
        Group::Transactions => Categories::TRANSACTION,
        Group::Scripting => Categories::SCRIPTING,
        Group::Connection => Categories::CONNECTION,
        Group::Bitmap => Categories::BITMAP,
        Group::HyperLogLog => Categories::HYPERLOGLOG,
        Group::PubSub => Categories::PUBSUB,
        // FLUSHALL, SWAPDB and DBSIZE belong to the group `server`, but work on the whole keyspace.
        Group::Server if is_about_keys(spec) && spec.keys.0.is_empty() => Categories::KEYSPACE,
        Group::Server | Group::Cluster => Categories::NONE,
    }
}

fn is_about_keys(spec: &CommandSpec) -> bool {
    spec.flags.has(Flags::READONLY) || spec.flags.has(Flags::WRITE)
}
