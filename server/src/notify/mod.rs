//! Publish and subscribe, and invalidations of cached copies: subscribers and their notifications.

pub mod notifications;
pub mod pattern_tree;
pub mod publishing;
pub mod pushed;
pub mod subscriptions;
pub mod tracking_table;
