//! The server's title in the output of `ps`.

use crate::support::{Server, crowd::ask};

fn shown(server: &Server) -> String {
    let shown = std::fs::read(format!("/proc/{}/cmdline", server.pid())).expect("the server runs");
    String::from_utf8(shown).expect("a title is text").trim_end_matches('\0').to_owned()
}

#[test]
fn the_title_says_what_the_configuration_says() {
    let server = Server::start(&["--proc-title-template", "{title} at {listen-addr}"]);
    let port = server.port();
    let title = shown(&server);
    assert!(title.ends_with(&format!("braid-server at 127.0.0.1:{port}")), "{title}");
    let mut client = server.connect();
    // Longer than the arguments that it replaces.
    let long = "long ".repeat(40);
    let template = format!("{long}{{port}}");
    let reply = client.command(&["CONFIG", "SET", "proc-title-template", &template]);
    assert_eq!(reply.to_string(), "+OK");
    assert_eq!(shown(&server), format!("{long}{port}"));
    let refused = client.command(&["CONFIG", "SET", "proc-title-template", "{nobody}"]).to_string();
    assert!(refused.contains("template format is invalid or contains unknown variables"), "{refused}");
    assert_eq!(shown(&server), format!("{long}{port}"));
}

#[test]
fn the_title_stays_what_it_was_if_that_is_wanted() {
    let server = Server::start(&["--set-proc-title", "no", "--proc-title-template", "{port}"]);
    let title = shown(&server);
    assert!(title.contains("--set-proc-title"), "{title}");
    assert_eq!(ask(&mut server.connect(), "PING"), "+PONG");
}
