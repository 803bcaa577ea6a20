//! Shared options of commands on streams: trimming, and the treatment of consumer groups.

use braid_storage::types::{
    stream::{NewId, Precision, References, Trim, TrimTo},
    thresholds::Thresholds,
};

use super::ids::{Ids, id, new_id};
use crate::catalog::{Args, CommandError};

/// Nodes whose entries are removed at a time by default.
const NODES_TRIMMED: usize = 100;
/// The most entries that are removed at a time by default.
const TRIMMED_MAX: usize = 1_000_000;
/// Entries that are removed at a time by default if nodes have no limit.
const TRIMMED_WITHOUT_BOUND: usize = 10_000;

/// Factor by which trimming takes longer if groups are checked.
///
/// No whole node is removed then.
const TRIMMED_WITH_GROUPS: usize = 4;

/// Takes the treatment of consumer groups, if it is next.
fn take_references(args: &mut Args<'_>) -> Option<References> {
    let words = [("KEEPREF", References::Keep), ("DELREF", References::Delete), ("ACKED", References::Obey)];
    words.into_iter().find(|(word, _)| args.tag(word)).map(|(_, references)| references)
}

/// The options of XTRIM, and those of XADD about trimming.
#[derive(Default)]
pub(super) struct TrimOptions {
    to: Option<(TrimTo, Precision)>,
    limit: Option<u64>,
    references: Option<References>,
}

impl TrimOptions {
    /// Takes the next argument if it is an option.
    pub(super) fn take(&mut self, args: &mut Args<'_>) -> Result<bool, CommandError> {
        // The last word cannot be an option with a value.
        if args.remaining() >= 2 {
            if args.tag("MAXLEN") {
                let precision = self.begin_threshold(args)?;
                let len = u64::try_from(args.int()?)
                    .map_err(|_| CommandError::text("ERR The MAXLEN argument must be >= 0."))?;
                self.to = Some((TrimTo::Len(len), precision));
                return Ok(true);
            }
            if args.tag("MINID") {
                let precision = self.begin_threshold(args)?;
                self.to = Some((TrimTo::Id(id(args.next()?)?), precision));
                return Ok(true);
            }
            if args.tag("LIMIT") {
                let limit = u64::try_from(args.int()?)
                    .map_err(|_| CommandError::text("ERR The LIMIT argument must be >= 0."))?;
                self.limit = Some(limit);
                return Ok(true);
            }
        }
        if self.references.is_none() {
            self.references = take_references(args);
            return Ok(self.references.is_some());
        }
        Ok(false)
    }

    fn begin_threshold(&self, args: &mut Args<'_>) -> Result<Precision, CommandError> {
        if self.to.is_some() {
            return Err(CommandError::text(
                "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
            ));
        }
        let has_sign = args.remaining() >= 2;
        if has_sign && args.tag("~") {
            return Ok(Precision::Nodes);
        }
        if has_sign {
            args.tag("=");
        }
        Ok(Precision::Exact)
    }

    /// Returns the threshold of the entries to remove, if there is one.
    pub(super) fn threshold(&self) -> Option<TrimTo> {
        self.to.map(|(to, _)| to)
    }

    /// Returns how often each entry is looked up with this number of groups.
    pub(super) fn n_times_per_entry(&self, n_groups: usize) -> usize {
        if self.references.unwrap_or_default() == References::Keep {
            1
        } else {
            TRIMMED_WITH_GROUPS * (1 + n_groups)
        }
    }

    /// Returns the requested trim, if there is one.
    pub(super) fn finish(&self, thresholds: &Thresholds) -> Result<Option<Trim>, CommandError> {
        let Some((to, precision)) = self.to else {
            return match self.limit {
                Some(1..) => Err(CommandError::text(
                    "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
                )),
                Some(0) => Err(LIMIT_WITHOUT_NODES),
                None => Ok(None),
            };
        };
        let limit = match (precision, self.limit) {
            (Precision::Exact, Some(_)) => return Err(LIMIT_WITHOUT_NODES),
            (Precision::Exact, None) | (Precision::Nodes, Some(0)) => None,
            (Precision::Nodes, Some(limit)) => Some(limit),
            (Precision::Nodes, None) => Some(usual_limit(thresholds)),
        };
        Ok(Some(Trim { to, precision, limit, references: self.references.unwrap_or_default() }))
    }

    /// Returns the trim of XTRIM, which must request one.
    pub(super) fn finish_some(&self, thresholds: &Thresholds) -> Result<Trim, CommandError> {
        if self.to.is_none() && self.limit.is_none_or(|limit| limit == 0) {
            return Err(CommandError::text(
                "ERR syntax error, XTRIM must be called with a trimming strategy",
            ));
        }
        self.finish(thresholds)?.ok_or(CommandError::Syntax)
    }
}

const LIMIT_WITHOUT_NODES: CommandError =
    CommandError::text("ERR syntax error, LIMIT cannot be used without the special ~ option");

/// Returns how many entries are removed at a time without LIMIT.
fn usual_limit(thresholds: &Thresholds) -> u64 {
    match thresholds.stream_node_max_entries().saturating_mul(NODES_TRIMMED) {
        0 => TRIMMED_WITHOUT_BOUND as u64,
        n => n.min(TRIMMED_MAX) as u64,
    }
}

/// The options of XADD, and the ID.
pub(super) struct XaddOptions {
    pub(super) id: NewId,
    pub(super) creates: bool,
    pub(super) trim: TrimOptions,
}

impl XaddOptions {
    pub(super) fn read(args: &mut Args<'_>) -> Result<Self, CommandError> {
        let mut options = XaddOptions { id: NewId::Auto, creates: true, trim: TrimOptions::default() };
        while let Some(word) = args.peek() {
            if args.tag("*") {
                break;
            } else if options.trim.take(args)? {
                continue;
            } else if args.tag("NOMKSTREAM") {
                options.creates = false;
            } else {
                args.next()?;
                options.id = new_id(word)?;
                break;
            }
        }
        Ok(options)
    }
}

/// The IDs of XDELEX and XACKDEL, and the treatment of consumer groups.
pub(super) struct Doomed {
    pub(super) ids: Ids,
    pub(super) references: References,
}

impl Doomed {
    pub(super) fn read(mut args: Args<'_>) -> Result<Self, CommandError> {
        let (mut references, mut words) = (None, None);
        while !args.is_empty() {
            if args.remaining() >= 2 && args.tag("IDS") {
                let n = args.int().ok().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
                let n = n.ok_or(CommandError::text("ERR Number of IDs must be a positive integer"))?;
                if n > args.remaining() {
                    return Err(CommandError::text(
                        "ERR The `numids` parameter must match the number of arguments",
                    ));
                }
                words = Some(args.rest().take(n));
                for _ in 0..n {
                    args.next()?;
                }
            } else if references.is_none() {
                references = Some(take_references(&mut args).ok_or(CommandError::Syntax)?);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        let ids = words.ok_or(CommandError::Syntax)?.map(id).collect::<Result<_, _>>()?;
        Ok(Doomed { ids, references: references.unwrap_or_default() })
    }
}
