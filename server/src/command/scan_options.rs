//! What follows the cursor in commands that go through the members of one value.

use braid_storage::{
    glob::{self, Case, glob_match},
    packed::Element,
};

use super::{Args, CommandError};

/// How many entries a bucket of a table has room for.
const BUCKET_ENTRIES: usize = 7;

/// MATCH and COUNT.
pub(super) struct ScanOptions<'a> {
    /// MATCH, unless all members match.
    pattern: Option<&'a [u8]>,
    count: usize,
}

impl<'a> ScanOptions<'a> {
    pub fn read(mut args: Args<'a>) -> Result<Self, CommandError> {
        let mut options = ScanOptions { pattern: None, count: 10 };
        while !args.is_empty() {
            if args.tag("COUNT") {
                let count = usize::try_from(args.int()?).ok().filter(|&n| n > 0);
                options.count = count.ok_or(CommandError::Syntax)?;
            } else if args.tag("MATCH") {
                options.pattern = Some(args.next()?).filter(|pattern| !glob::matches_everything(pattern));
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }

    /// Whether a member is to be in the reply.
    pub fn wants(&self, member: Element<'_>) -> bool {
        let matches = |pattern: &[u8]| member.with_text(|text| glob_match(pattern, text, Case::Sensitive));
        self.pattern.is_none_or(matches)
    }

    /// How many buckets have about COUNT entries.
    pub fn n_buckets(&self) -> usize {
        self.count.div_ceil(BUCKET_ENTRIES)
    }
}
