//! Facts about commands for the analysis of scripts.

use braid_script::analysis::{self, Command, Commands, Reach};

use crate::{
    catalog::{Flags, KeySpec, KeysAt},
    command::{Run, table::CommandTable},
};

/// The command table as the analysis reads it.
pub(in crate::command) struct Rows(pub &'static CommandTable);

impl Commands for Rows {
    fn command(&self, name: &[u8], subcommand: Option<&[u8]>) -> Option<Command> {
        let command = self.0.command(name)?;
        let row = match subcommand {
            Some(subcommand) if command.has_subcommands() => self.0.subcommand(command, subcommand)?,
            // It may be any subcommand, and their keys are in different positions.
            None if command.has_subcommands() => {
                return Some(Command { writes: true, reach: Reach::Keyspace });
            }
            _ => command,
        };
        let spec = row.spec;
        let everywhere = matches!(spec.run, Run::Everything(_) | Run::EachShard { .. } | Run::Barrier(_))
            || row.has(Flags::WHOLE_KEYSPACE)
            || spec.roams.is_some();
        let reach = if everywhere {
            Reach::Keyspace
        } else {
            Reach::Arguments(spec.keys.0.iter().filter_map(told).collect())
        };
        Some(Command { writes: row.has(Flags::WRITE) || row.has(Flags::MAY_REPLICATE), reach })
    }
}

/// Returns the positions of keys; none if the data decides their names.
fn told(keys: &KeySpec) -> Option<analysis::KeysAt> {
    Some(match keys.at {
        KeysAt::Range { first, last, step } => {
            analysis::KeysAt::Range { first: first.into(), last: last.into(), step: step.into() }
        }
        KeysAt::Counted { count, step } => {
            analysis::KeysAt::Counted { count: count.into(), step: step.into() }
        }
        KeysAt::Behind { word, from } | KeysAt::LastBehind { word, from } => {
            analysis::KeysAt::After { word, from: from.into() }
        }
        KeysAt::HalfBehind { keyword, from, .. } => {
            analysis::KeysAt::HalfAfter { word: keyword, from: from.into() }
        }
        KeysAt::InData => return None,
    })
}
