//! Sessions of generated scripts.
//!
//! One engine runs the scripts of a session one after the other. Some run again later with other keys. So
//! traces of one run show in the next.
//!
//! The sessions are always the same unless a variable changes them. When the sides differ, the session is
//! shortened to the runs that matter, and their scripts to the lines that matter. The seed is printed. A
//! script that ends the process remains in the target folder, in `tmp/generated-*.lua`.
//!
//! | variable | is |
//! |---|---|
//! | `BRAID_SEED` | the seed of the first session, 1 if not set; the next ones follow it |
//! | `BRAID_CASES` | the approximate number of scripts to run |
//! | `BRAID_DIFF_FAILURES` | the number of differing sessions at which the test stops, 1 if not set |
//! | `BRAID_REQUIRE_REDIS` | if set, the test fails without a redis-server |

use std::path::PathBuf;

use super::generator;
use super::known;
use super::random::Random;
use super::shrink::shrink;
use super::sides::{Pair, Run};

/// The number of runs in a session.
const N_RUNS: usize = 200;
/// The number of scripts to run unless `BRAID_CASES` is set.
const N_SCRIPTS: u64 = 2000;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

#[test]
fn generated_scripts_reply_as_in_redis() {
    let Some(mut pair) = Pair::start() else { return };
    let first_seed = variable("BRAID_SEED").unwrap_or(1);
    let n_sessions = variable("BRAID_CASES").unwrap_or(N_SCRIPTS).div_ceil(N_RUNS as u64);
    let n_wanted = variable("BRAID_DIFF_FAILURES").unwrap_or(1);
    println!("seed {first_seed}");
    let mut n_reports = 0;
    let mut counts = Counts::default();
    for seed in (0..n_sessions).map(|n| first_seed.wrapping_add(n)) {
        let runs = session(&mut Random::new(seed));
        if let Some(difference) = play(&mut pair, &runs, seed, &mut counts) {
            let report = report(&mut pair, seed, runs, difference);
            println!("{report}");
            n_reports += 1;
        }
        if n_reports == n_wanted {
            break;
        }
    }
    println!("{counts:?}");
    assert_eq!(n_reports, 0, "sessions differ");
    assert!(counts.are_mixed(), "the replies are of one kind: {counts:?}");
}

/// The counts of the server's replies.
#[derive(Debug, Default)]
struct Counts {
    n_replies: usize,
    n_errors: usize,
    n_refused: usize,
}

impl Counts {
    fn note(&mut self, reply: &[u8]) {
        self.n_replies += 1;
        self.n_errors += usize::from(reply.starts_with(b"-"));
        self.n_refused += usize::from(reply.starts_with(b"-ERR Error compiling"));
    }

    /// Whether most scripts reached their end, many failed before it, and few were no Lua.
    fn are_mixed(&self) -> bool {
        let (n, n_errors, n_refused) = (self.n_replies, self.n_errors, self.n_refused);
        n <= N_RUNS || (n / 20..n / 2).contains(&n_errors) && (1..n / 20).contains(&n_refused)
    }
}

/// The runs of a session.
fn session(random: &mut Random) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::with_capacity(N_RUNS);
    for _ in 0..N_RUNS {
        let again = runs.len().checked_sub(random.below(20) + 1).map(|at| runs[at].source.clone());
        let source = match again {
            Some(source) if random.one_in(4) => source,
            _ => generator::script(random),
        };
        runs.push(generator::run(random, source));
    }
    runs
}

/// Two replies that are not the same.
struct Difference {
    /// The index of their run.
    at: usize,
    ours: Vec<u8>,
    theirs: Vec<u8>,
}

/// Plays a session from the beginning.
///
/// A file has the running script meanwhile, in case that it ends the process.
fn play(pair: &mut Pair, runs: &[Run], seed: u64, counts: &mut Counts) -> Option<Difference> {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("generated-{seed}.lua"));
    pair.reset();
    let mut found = None;
    for (at, run) in runs.iter().enumerate() {
        std::fs::write(&file, &run.source).expect("a file can be written");
        let Some((ours, theirs)) = pair.replies(run) else {
            println!("seed {seed}: redis-server has ended:\n{}", told(run));
            break;
        };
        counts.note(&theirs);
        if known::is_exhausted(&theirs) {
            break;
        }
        if !is_same(&run.source, &ours, &theirs) {
            found = Some(Difference { at, ours, theirs });
            break;
        }
    }
    std::fs::remove_file(&file).expect("the file is there");
    found
}

/// Whether replies are equal except for addresses.
fn is_same(source: &str, ours: &[u8], theirs: &[u8]) -> bool {
    if ours == theirs {
        return true;
    }
    let [ours, theirs] = [ours, theirs].map(without_addresses);
    let [ours, theirs] = [&ours, &theirs].map(|reply| String::from_utf8_lossy(reply));
    known::blurred(source, &ours) == known::blurred(source, &theirs)
}

/// A reply with its addresses crossed out.
///
/// Their lengths stay, because another part of a reply may show them.
fn without_addresses(reply: &[u8]) -> Vec<u8> {
    const SHORTEST: usize = 8;
    let mut reply = reply.to_vec();
    let mut at = 0;
    while let Some(found) = reply[at..].windows(2).position(|pair| pair == b"0x") {
        at += found + 2;
        let n_digits = reply[at..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        if n_digits >= SHORTEST {
            reply[at..at + n_digits].fill(b'?');
        }
    }
    reply
}

/// Shortens the session to a difference, and returns the report.
fn report(pair: &mut Pair, seed: u64, mut runs: Vec<Run>, difference: Difference) -> String {
    let mut counts = Counts::default();
    let mut differs_at_end =
        |runs: &[Run]| play(pair, runs, seed, &mut counts).filter(|found| found.at + 1 == runs.len());
    runs.truncate(difference.at + 1);
    let last = runs.split_off(difference.at);
    let earlier = if differs_at_end(&last).is_some() {
        Vec::new()
    } else {
        shrink(runs, |fewer| differs_at_end(&[fewer, &last].concat()).is_some())
    };
    let mut runs = [earlier, last].concat();
    for at in (0..runs.len()).rev() {
        runs[at].source = shorter(&runs[at].source, |source| {
            let mut runs = runs.clone();
            runs[at].source = source;
            differs_at_end(&runs).is_some()
        });
    }
    let difference = differs_at_end(&runs).unwrap_or(difference);
    let told: String = runs.iter().map(told).collect();
    let [ours, theirs] = [&difference.ours, &difference.theirs].map(|reply| reply.escape_ascii().to_string());
    format!(
        "\nThe sides differ in the session with seed {seed}:\n{told}  engine {ours}\n  server {theirs}\n\
         To repeat it: BRAID_SEED={seed} BRAID_CASES=1 cargo test -p braid-script --test differential\n"
    )
}

/// A source with as few lines as possible that `is_failing`.
///
/// The lines that make scripts end stay.
fn shorter(source: &str, mut is_failing: impl FnMut(String) -> bool) -> String {
    let (head, rest) = source.split_at(generator::prelude_len(source));
    let with = |lines: &[&str]| format!("{head}{}", lines.join("\n"));
    let lines = shrink(rest.lines().collect(), |fewer| is_failing(with(fewer)));
    with(&lines)
}

fn told(run: &Run) -> String {
    let texts = |texts: &[Vec<u8>]| {
        texts.iter().map(|text| format!(" '{}'", text.escape_ascii())).collect::<String>()
    };
    // The common beginning is left out. An empty line in a script stands for it.
    let source = run.source.replace(generator::PRELUDE, "\n");
    format!("-- {:?}, keys{}, argv{}\n{source}\n", run.resp, texts(&run.keys), texts(&run.argv))
}
