//! The average remaining lifetime of keys with a deadline, by database: `avg_ttl` of INFO.
//!
//! Expiry meets such keys on its way. Each of its cycles moves the average by a fiftieth toward the average
//! of the met keys, as in Redis.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard},
};

use braid_storage::{entry::db::Db, table::Lasting};

/// The averages, in milliseconds.
#[derive(Default)]
pub struct AverageTtls(Mutex<HashMap<Db, u64>>);

impl AverageTtls {
    fn lock(&self) -> MutexGuard<'_, HashMap<Db, u64>> {
        self.0.lock().expect("nobody panics with it")
    }

    /// Updates the averages with the keys that a cycle of expiry has met.
    pub fn follow(&self, met: &BTreeMap<Db, Lasting>) {
        let mut averages = self.lock();
        for (&db, lasting) in met.iter().filter(|(_, lasting)| lasting.n > 0) {
            let now = lasting.millis / lasting.n;
            averages.entry(db).and_modify(|average| *average = *average / 50 * 49 + now / 50).or_insert(now);
        }
    }

    /// The averages of the databases in which keys with deadlines were met.
    ///
    /// The averages of other databases are forgotten.
    pub fn of_those(&self, has_deadlines: impl Fn(Db) -> bool) -> HashMap<Db, u64> {
        let mut averages = self.lock();
        averages.retain(|&db, _| has_deadlines(db));
        averages.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cycle_gives_the_average_and_the_others_move_it() {
        let averages = AverageTtls::default();
        let met = |n, millis| BTreeMap::from([(Db(3), Lasting { n, millis })]);
        let all = || averages.of_those(|_| true);
        averages.follow(&met(2, 10_000));
        assert_eq!(all(), HashMap::from([(Db(3), 5_000)]));
        averages.follow(&met(1, 10_000));
        assert_eq!(all()[&Db(3)], 5_100);
        averages.follow(&met(0, 0));
        assert_eq!(all()[&Db(3)], 5_100, "nothing was met");
        averages.of_those(|_| false);
        assert!(all().is_empty(), "they have no deadlines any more");
    }
}
