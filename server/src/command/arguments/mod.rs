//! Arguments that several families of commands take.

pub(super) mod collection_args;
pub(super) mod condition;
pub(super) mod each_key;
pub(super) mod expire_options;
pub(super) mod source_keys;
