//! Writes that WAIT has acknowledged, and the rule by which they must not be lost.
//!
//! A marker that `k` replicas have acknowledged is at the primary and at `k` of the two others. If the
//! primary is lost and `c` of the others are whole and of its history, the one of them with the highest
//! offset has the marker, if `k + c` is more than two.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering::SeqCst},
};

/// The database of the markers, which no other command of the soak touches.
pub const DB: usize = 9;

/// A key that must be there.
#[derive(Clone, Debug)]
pub struct Marker {
    pub key: String,
    /// The number of replicas that have it.
    n_replicas: usize,
    /// The number of events before it was written.
    epoch: u64,
}

/// An event after which some markers may be gone.
struct Loss {
    /// It concerns markers up to this epoch,
    until: u64,
    /// that so many replicas have acknowledged at most.
    n_replicas: usize,
}

/// All markers of a soak.
#[derive(Default)]
pub struct Markers {
    epoch: AtomicU64,
    known: Mutex<KnownMarkers>,
}

#[derive(Default)]
struct KnownMarkers {
    markers: Vec<Marker>,
    losses: Vec<Loss>,
    n_noted: usize,
}

impl Markers {
    fn known(&self) -> MutexGuard<'_, KnownMarkers> {
        self.known.lock().expect("nobody panics with it")
    }

    /// Returns the number of events so far. A writer asks before it writes.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    /// Notes a marker that WAIT has acknowledged.
    pub fn note(&self, key: String, n_replicas: usize, epoch: u64) {
        let mut known = self.known();
        let is_lost = |loss: &Loss| epoch <= loss.until && n_replicas <= loss.n_replicas;
        if !known.losses.iter().any(is_lost) {
            known.markers.push(Marker { key, n_replicas, epoch });
            known.n_noted += 1;
        }
    }

    /// The number of markers that are known now.
    pub fn len(&self) -> usize {
        self.known().markers.len()
    }

    /// The number of all markers that were ever known.
    pub fn n_noted(&self) -> usize {
        self.known().n_noted
    }

    /// Returns all markers.
    pub fn all(&self) -> Vec<Marker> {
        self.known().markers.clone()
    }

    /// Forgets the markers of up to `n_replicas` replicas, but for the first `n_kept` of all. Begins an
    /// epoch.
    pub fn lose(&self, n_replicas: usize, n_kept: usize) {
        let mut known = self.known();
        let until = self.epoch.fetch_add(1, SeqCst);
        known.losses.push(Loss { until, n_replicas });
        let mut nth = 0;
        known.markers.retain(|marker| {
            nth += 1;
            nth <= n_kept || marker.n_replicas > n_replicas || marker.epoch > until
        });
    }
}
