//! The switches with which DEBUG makes rare states last, so that tests and operators can watch them.

use std::sync::atomic::{AtomicBool, AtomicU32};

use crate::shared::change_log::RecordedChanges;

/// The switches of DEBUG. All but one are off at the start.
pub struct DebugHooks {
    /// Whether expired keys are removed although no command uses them (DEBUG SET-ACTIVE-EXPIRE).
    pub active_expire: AtomicBool,
    /// Whether the threads' crons rest (DEBUG PAUSE-CRON).
    pub pauses_cron: AtomicBool,
    /// Whether scripts may run commands that are forbidden to them (DEBUG SET-DISABLE-DENY-SCRIPTS).
    pub allows_all_in_scripts: AtomicBool,
    /// Whether checksums of payloads and snapshots are not compared (DEBUG SET-SKIP-CHECKSUM-VALIDATION).
    pub skips_checksums: AtomicBool,
    /// Whether changes are recorded (DEBUG RECORD-CHANGES).
    pub records_changes: AtomicBool,
    /// The recorded changes.
    pub recorder: RecordedChanges,
    /// Whether offloaded work waits while its values are pinned (DEBUG HOLD-OFFLOADED).
    pub holds_offloaded: AtomicBool,
    /// Whether heavy-work threads begin nothing new (DEBUG HOLD-HEAVY).
    pub holds_heavy: AtomicBool,
    /// Whether the next command that pins values panics (DEBUG PANIC-WHILE-PINNING).
    pub panics_while_pinning: AtomicBool,
    /// Whether the next command that unpins values panics (DEBUG PANIC-WHILE-UNPINNING).
    pub panics_while_unpinning: AtomicBool,
    /// The number of next steps of a snapshot that panic (DEBUG PANIC-WHILE-SAVING).
    pub panics_while_saving: AtomicU32,
}

impl Default for DebugHooks {
    fn default() -> Self {
        Self {
            active_expire: AtomicBool::new(true),
            pauses_cron: AtomicBool::default(),
            allows_all_in_scripts: AtomicBool::default(),
            skips_checksums: AtomicBool::default(),
            records_changes: AtomicBool::default(),
            recorder: RecordedChanges::default(),
            holds_offloaded: AtomicBool::default(),
            holds_heavy: AtomicBool::default(),
            panics_while_pinning: AtomicBool::default(),
            panics_while_unpinning: AtomicBool::default(),
            panics_while_saving: AtomicU32::default(),
        }
    }
}
