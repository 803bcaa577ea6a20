//! Flags and categories that rows of administration share.

use crate::catalog::{Categories, Flags};

pub(super) const ANY_TIME: Flags = Flags::LOADING.and(Flags::STALE);
pub(super) const ADMIN: Flags = ANY_TIME.and(Flags::ADMIN).and(Flags::NOSCRIPT);
pub(super) const DEBUGGING: Flags = ADMIN.and(Flags::DEBUGGING);
pub(super) const SAVING: Flags = Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::NO_ASYNC_LOADING);
pub(super) const REPLICATING: Flags = SAVING.and(Flags::STALE);
pub(super) const ABOUT_SERVER: Option<Categories> = Some(Categories::ADMIN.and(Categories::DANGEROUS));
