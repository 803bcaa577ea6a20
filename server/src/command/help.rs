//! The reply to `HELP` of a container of subcommands.

use braid_protocol::reply::Reply;

use super::Outcome;

/// Writes the lines in Redis's frame. A subcommand's own line is followed by indented lines that explain it.
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
