//! The rights of visitors: the users of access control, by HTTP basic authentication.

use std::{net::SocketAddr, sync::Arc, sync::atomic::Ordering, time::Duration};

use super::http::{Code, Credentials};
use crate::{
    access::{Context, DenialEntry, DeniedRight, User},
    command::{may_run, rest_after},
    shared::server::Server,
};

/// The parts of the status that a visitor may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// The slow log, for users who may run SLOWLOG GET.
    pub slow_log: bool,
    /// The hot keys, for users who may run HOTKEYS GET.
    pub hot_keys: bool,
}

/// The refusal of a visitor.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The code of the answer.
    pub code: Code,
    /// The reason.
    pub why: &'static str,
    /// The time for which the answer waits.
    pub rest: Duration,
}

/// Returns the parts of the status that a visitor may see.
///
/// A visitor without a name and password is the default user, if that one needs no password. Metrics are for
/// users who may run INFO.
pub fn admit(
    server: &Server,
    credentials: Option<&Credentials>,
    from: SocketAddr,
    n_failures: &mut u32,
) -> Result<Sight, Refusal> {
    let users = server.accounts.users();
    let user = match credentials {
        None => Some(users.default_user()).filter(|user| user.is_open()).ok_or(Refusal {
            code: Code::Unauthorized,
            why: "A name and a password are needed.",
            rest: Duration::ZERO,
        }),
        Some(Credentials { user, password }) => match users.admitted(user, password) {
            Some(user) => {
                *n_failures = 0;
                Ok(user)
            }
            None => {
                note_failure(server, user, from);
                *n_failures = n_failures.saturating_add(1);
                Err(Refusal {
                    code: Code::Unauthorized,
                    why: "Name and password do not fit, or the user is disabled.",
                    rest: Duration::from_millis(rest_after(*n_failures)),
                })
            }
        },
    }?;
    sight(user).ok_or(Refusal {
        // Another user may see them.
        code: if credentials.is_some() { Code::Forbidden } else { Code::Unauthorized },
        why: "Metrics are for users who may run INFO.",
        rest: Duration::ZERO,
    })
}

fn sight(user: &Arc<User>) -> Option<Sight> {
    may_run(user, "info")
        .then(|| Sight { slow_log: may_run(user, "slowlog get"), hot_keys: may_run(user, "hotkeys get") })
}

/// Counts a wrong password, and logs it like those of AUTH.
fn note_failure(server: &Server, user: &[u8], from: SocketAddr) {
    server.failed_logins.fetch_add(1, Ordering::Relaxed);
    let client = format!("addr={from} name= cmd=metrics");
    let now = server.clock.now();
    server.note_denial(DenialEntry::new(DeniedRight::Auth, Context::Toplevel, b"metrics", user, client, now));
}
