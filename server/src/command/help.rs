//! The reply to `HELP` of a container, and the error for misused subcommands.

use braid_protocol::reply::Reply;

use crate::catalog::{Args, CommandError, Outcome, shown};

/// Returns the error for a subcommand with wrong arguments, whatever their number.
pub(super) fn misused(container: &str, args: Args<'_>) -> CommandError {
    let sub = args.words().get(1);
    let sub = shown(&sub[..sub.len().min(128)]);
    CommandError::owned(format!(
        "ERR unknown subcommand or wrong number of arguments for '{sub}'. Try {container} HELP."
    ))
}

/// Writes the lines in Redis's frame. Indented lines after a subcommand's line explain it.
pub(super) fn help(reply: &mut Reply<'_>, container: &str, lines: &[&str]) -> Outcome {
    reply.array(lines.len() + 3);
    reply.simple(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for line in lines {
        reply.simple(line);
    }
    reply.simple("HELP");
    reply.simple("    Prints this help.");
    Ok(())
}
