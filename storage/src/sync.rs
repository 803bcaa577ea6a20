//! Exclusive holds: the executor of each shard, and the coordinator of jobs on several shards.

mod atomics;
pub mod coordinator;
pub mod executor;
pub mod work;
