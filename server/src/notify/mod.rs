//! Publish and subscribe, and invalidations of copies: subscribers and their notifications.

pub mod audiences;
pub mod copies;
pub mod given;
pub mod notifications;
pub mod publishing;
pub mod subscriptions;
