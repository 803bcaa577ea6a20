//! Rules and files of users. Any text is either refused without a change, or makes users that can be written
//! and read back.

use braid_server::{access::Users, command::TABLE};

/// Returns the users of a server at its start.
fn users() -> Users {
    Users::new(false, &*TABLE)
}

/// Gives a user the rules in a text, one in each line.
pub fn check_rules(text: &[u8]) {
    let rules: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
    let mut users = users();
    users.set(b"bob", &["on", ">pw", "~a*", "+@read"], &*TABLE).expect("these are rules");
    let before = users.to_text();
    match users.set(b"bob", &rules, &*TABLE) {
        Ok(_) => reads_back(&users),
        Err(why) => {
            assert!(!why.to_string().is_empty());
            assert_eq!(users.to_text(), before, "what is refused changes nothing");
        }
    }
}

/// Reads a file of users.
pub fn check_file(text: &[u8]) {
    match users().read(text, "file", &*TABLE) {
        Ok(read) => reads_back(&read),
        Err(why) => assert!(why.contains("no change to the previously active ACL rules"), "{why}"),
    }
}

fn reads_back(users: &Users) {
    let written = users.to_text();
    let shown = String::from_utf8_lossy(&written);
    let read = users.read(&written, "written", &*TABLE).unwrap_or_else(|why| panic!("{why}\n{shown}"));
    assert_eq!(String::from_utf8_lossy(&read.to_text()), shown);
    assert_eq!(read.all().len(), users.all().len());
    for user in users.all() {
        assert!(read.get(user.name()).is_some_and(|again| again.is_like(user)), "{shown}");
    }
}
