//! Plays the transcripts of `tests/transcripts` against a server, in RESP2 and in RESP3.
//!
//! Braid is tested with several numbers of threads and shards. `BRAID_COMPAT_SERVER=redis-server` plays the
//! same files against that program instead, which must answer alike. `BRAID_TRANSCRIPT=get` selects the files
//! whose names contain `get`. With a compat server, `BRAID_TRANSCRIPT_CORRECT=1` replaces wrong expectations
//! in the files with that server's replies. This is a way to write a transcript, to be proofread afterwards.
//!
//! `support/transcript/mod.rs` explains the notation.

use std::fs;

use crate::support::transcript::{Action, Captures, Environment, Outcome, Transcript, parse_reply};
use crate::support::{Reply, Resp, Server};

macro_rules! matrix {
    ($($name:ident: $threads:literal threads, $shards:literal shards;)*) => {$(
        #[test]
        fn $name() {
            if Server::compat_program().is_some() {
                return; // There, a_real_server_answers_alike does the work.
            }
            play_all(&["--io-threads", $threads, "--shards", $shards]);
        }
    )*};
}

matrix! {
    one_thread_one_shard: "1" threads, "1" shards;
    one_thread_many_shards: "1" threads, "1024" shards;
    two_threads_one_shard: "2" threads, "1" shards;
    two_threads_many_shards: "2" threads, "1024" shards;
    eight_threads_one_shard: "8" threads, "1" shards;
    eight_threads_many_shards: "8" threads, "1024" shards;
}

#[test]
fn a_real_server_answers_alike() {
    if Server::compat_program().is_some() {
        play_all(&[]);
    }
}

#[test]
fn every_file_parses() {
    for transcript in transcripts() {
        assert!(transcript.steps().next().is_some(), "{}.txt has no commands", transcript.name);
        for step in transcript.steps() {
            let wants_reply = matches!(step.action, Action::Command(..) | Action::Receive(_));
            assert!(
                !wants_reply || !step.expected.is_empty(),
                "{}.txt:{}: {} has no expected reply; (none) means none",
                transcript.name,
                step.line,
                step.source
            );
        }
    }
}

/// The comparison itself. Without this test, a transcript that matches everything would pass for a correct
/// server.
#[test]
fn the_notation_tells_replies_apart() {
    let holds = |pattern: &str, resp, wire: &[u8]| {
        let pattern = parse_reply(pattern).unwrap_or_else(|why| panic!("{pattern}: {why}"));
        let reply = Reply::read(&mut &wire[..]).expect("the test's own bytes are RESP");
        pattern.matches(&reply, resp, &mut Captures::new())
    };
    // Each notation with its bytes in RESP2 and in RESP3.
    let alike: [(&str, &[u8], &[u8]); 18] = [
        ("+OK", b"+OK\r\n", b"+OK\r\n"),
        ("-ERR no", b"-ERR no\r\n", b"-ERR no\r\n"),
        (":7", b":7\r\n", b":7\r\n"),
        ("\"a\\r\\x00\"", b"$3\r\na\r\0\r\n", b"$3\r\na\r\0\r\n"),
        ("(nil)", b"$-1\r\n", b"_\r\n"),
        ("(nil-array)", b"*-1\r\n", b"_\r\n"),
        ("[:1 [\"a\"]]", b"*2\r\n:1\r\n*1\r\n$1\r\na\r\n", b"*2\r\n:1\r\n*1\r\n$1\r\na\r\n"),
        (",2.50", b"$3\r\n2.5\r\n", b",2.5\r\n"),
        ("#t", b":1\r\n", b"#t\r\n"),
        ("(12345678901234567890)", b"$20\r\n12345678901234567890\r\n", b"(12345678901234567890\r\n"),
        ("=txt \"a\"", b"$1\r\na\r\n", b"=5\r\ntxt:a\r\n"),
        ("{:1 :2 :3 :4}", b"*4\r\n:3\r\n:4\r\n:1\r\n:2\r\n", b"%2\r\n:1\r\n:2\r\n:3\r\n:4\r\n"),
        (
            "pairs {:1 :3 :5 :7}",
            b"*2\r\n*2\r\n:1\r\n:3\r\n*2\r\n:5\r\n:7\r\n",
            b"%2\r\n:5\r\n:7\r\n:1\r\n:3\r\n",
        ),
        ("~[:1 :2]", b"*2\r\n:2\r\n:1\r\n", b"~2\r\n:2\r\n:1\r\n"),
        (">[:5 :6]", b"*2\r\n:5\r\n:6\r\n", b">2\r\n:5\r\n:6\r\n"),
        ("unordered [:8 :9]", b"*2\r\n:9\r\n:8\r\n", b"*2\r\n:9\r\n:8\r\n"),
        (
            "flat [[:11 :12] [:13]]",
            b"*3\r\n:11\r\n:12\r\n:13\r\n",
            b"*2\r\n*2\r\n:11\r\n:12\r\n*1\r\n:13\r\n",
        ),
        ("|{:1 :2} :3", b":3\r\n", b"|1\r\n:1\r\n:2\r\n:3\r\n"),
    ];
    for (pattern, two, three) in alike {
        assert!(holds(pattern, Resp::Two, two), "{pattern} in RESP2");
        assert!(holds(pattern, Resp::Three, three), "{pattern} in RESP3");
        for (other, other_two, other_three) in alike {
            assert!(two == other_two || !holds(pattern, Resp::Two, other_two), "{pattern} is not {other}");
            assert!(
                three == other_three || !holds(pattern, Resp::Three, other_three),
                "{pattern} is not {other}"
            );
        }
    }
    assert!(!holds("(nil)", Resp::Three, b"$-1\r\n"), "RESP3 has one null only");
    assert!(!holds("[:1 :2]", Resp::Two, b"*2\r\n:2\r\n:1\r\n"), "an array has an order");
    assert!(!holds("unordered [:1 :1]", Resp::Two, b"*2\r\n:2\r\n:1\r\n"), "each element counts once");
    assert!(holds("[:1 ...]", Resp::Two, b"*2\r\n:1\r\n:2\r\n"));
    assert!(!holds("[... :1]", Resp::Two, b"*2\r\n:1\r\n:2\r\n"));
    assert!(holds("<match \"a*c\">", Resp::Two, b"$3\r\nabc\r\n"));
    assert!(!holds("<match \"a*c\">", Resp::Two, b"$3\r\nabd\r\n"));
    assert!(holds("<between 1 3>", Resp::Two, b":3\r\n"));
    assert!(!holds("<between 1 3>", Resp::Two, b":4\r\n"));
    assert!(holds("<one of :1 (nil)>", Resp::Three, b"_\r\n"));
    assert!(!holds("<error \"ERR *\">", Resp::Two, b"+ERR no\r\n"));
    assert!(holds("<lines\na:*\nc\n>", Resp::Two, b"$9\r\na:1\r\nb\r\nc\r\n"));
    assert!(!holds("<lines\nc\na:*\n>", Resp::Two, b"$9\r\na:1\r\nb\r\nc\r\n"));
}

/// Plays every transcript and fails with the list of mismatches. Transcripts without settings share one
/// server.
fn play_all(args: &[&str]) {
    let transcripts = transcripts();
    let mut shared = Environment::start(&[], args);
    let mut total = Outcome::default();
    for transcript in &transcripts {
        let mut own =
            (!transcript.settings.is_empty()).then(|| Environment::start(&transcript.settings, args));
        let environment = own.as_mut().unwrap_or(&mut shared);
        let mut is_clean = true;
        for resp in [Resp::Three, Resp::Two] {
            let outcome = environment.play(transcript, resp).unwrap_or_else(|why| panic!("{why}"));
            if resp == Resp::Three || transcript.scope.resp == Some(Resp::Two) {
                correct_if_wanted(transcript, &outcome);
            }
            is_clean &= outcome.mismatches.is_empty();
            total.n_run += outcome.n_run;
            total.n_skipped += outcome.n_skipped;
            total.mismatches.extend(outcome.mismatches);
        }
        // A failure may have left a setting or a pause, which would fail the next transcripts.
        if !is_clean && own.is_none() {
            shared = Environment::start(&[], args);
        }
    }
    println!("{} files, {} steps, {} skipped", transcripts.len(), total.n_run, total.n_skipped);
    let n_mismatches = total.mismatches.len();
    assert!(n_mismatches == 0, "{n_mismatches} mismatches {args:?}\n\n{}\n", total.mismatches.join("\n\n"));
}

fn transcripts() -> Vec<Transcript> {
    let filter = std::env::var("BRAID_TRANSCRIPT").unwrap_or_default();
    Transcript::read_all(&filter).unwrap_or_else(|why| panic!("{why}"))
}

/// Writes the replies of a real server into the file.
fn correct_if_wanted(transcript: &Transcript, outcome: &Outcome) {
    if Server::compat_program().is_none() || std::env::var_os("BRAID_TRANSCRIPT_CORRECT").is_none() {
        return;
    }
    let text = fs::read_to_string(&transcript.path).expect("it was read before");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (range, replies) in outcome.corrections.iter().rev() {
        lines.splice(range.clone(), replies.lines().map(str::to_owned));
    }
    fs::write(&transcript.path, lines.join("\n") + "\n").expect("the folder of transcripts is writable");
}
