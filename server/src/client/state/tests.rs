use std::fmt::Write;

use super::{
    StateName,
    taken::{CHANGES, STATES},
};

#[test]
fn the_table_of_changes_is_known() {
    let mut table = String::new();
    for state in STATES {
        for change in CHANGES {
            if let Some(next) = state.after(change) {
                writeln!(table, "{state:?} + {change:?} = {next:?}").unwrap();
            }
        }
    }
    let expected = "\
Handshake + Secured = Ready
Handshake + Closed = Away
Ready + NotificationsCameFirst = InputAwaitsNotifications
Ready + QueuesFilled = InputAwaitsRoom
Ready + Departed = Away
Ready + Closed = Away
InputAwaitsNotifications + NotificationsRead = Ready
InputAwaitsNotifications + Closed = Away
InputAwaitsRoom + QueuesEmptied = Ready
InputAwaitsRoom + Closed = Away
Away + KeysAwaited = AwaitsKeys
Away + PauseBegan = Postponed
Away + RestBegan = Resting
Away + SyncAwaited = AwaitsSync
Away + NotificationsPrecede = ReplyAwaitsNotifications
Away + Returned = Ready
AwaitsKeys + KeysLeft = Away
Postponed + Departed = Away
Postponed + Closed = Away
Resting + Departed = Away
AwaitsSync + Departed = Away
ReplyAwaitsNotifications + NotificationsRead = Away
";
    assert_eq!(table, expected);
}

#[test]
fn every_state_is_left_again_and_reached_from_the_first() {
    for first in [StateName::Handshake, StateName::Ready] {
        let mut reached = vec![first];
        let mut at = 0;
        while let Some(&state) = reached.get(at) {
            let nexts: Vec<StateName> = CHANGES.iter().filter_map(|&change| state.after(change)).collect();
            assert!(!nexts.is_empty(), "nothing leads out of {state:?}");
            for next in nexts {
                if !reached.contains(&next) {
                    reached.push(next);
                }
            }
            at += 1;
        }
        let n_others = usize::from(first == StateName::Ready);
        assert_eq!(reached.len(), STATES.len() - n_others, "from {first:?}: {reached:?}");
    }
}
