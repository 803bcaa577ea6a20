//! Workloads as data: the commands of a load, its keys, its values and its connections.
//!
//! A [`Workload`] is the content of a `workload.toml`. [`Compiled`] is the same prepared for sending, and a
//! [`Generator`] draws requests from it.
//!
//! ```toml
//! connections = 50
//! read_share = 0.9                        # of the commands marked `read`; without it the weights decide
//! keys = { count = 1_000_000, pattern = { zipf = { exponent = 0.99 } } }
//! values = { size = { log_normal = { mean = 400, sigma = 0.8 } } }
//!
//! [[preload]]                             # sent once for each key before the run
//! requests = [["SET", "{key}", "{value}"]]
//!
//! [[commands]]
//! args = ["GET", "{key}"]
//! read = true
//!
//! [[commands]]
//! args = ["SET", "{key}", "{value}", "{expire}"]
//! ```

mod definition;
mod generator;
mod keys;
mod named;
mod reader;
mod size;
mod template;

pub use self::definition::{Command, Consumer, Expiry, Population, Values, Workload};
pub use self::generator::{Compiled, Generator, Issued, Moment};
pub use self::keys::{Keys, Pattern};
pub use self::named::NAMED;
pub use self::size::Size;
pub use self::template::NOW_MARKER;

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Workload::parse("w.toml", text).expect_err("it is no workload").to_string()
    }

    #[test]
    fn all_named_workloads_compile_and_say_what_they_are() {
        for (name, text) in NAMED {
            let workload = Workload::parse(name, text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(&workload.name, name);
            assert!(!workload.summary.is_empty(), "{name}");
        }
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        for (name, text) in NAMED {
            let workload = Workload::parse(name, text).expect("it is one of ours");
            assert_eq!(
                Workload::parse(name, &workload.to_toml()).expect("it is one of ours"),
                workload,
                "{name}"
            );
        }
    }

    #[test]
    fn errors_name_the_place() {
        let unknown = error("connections = 5\nkeyss = 3\n");
        assert!(unknown.contains("line 2") && unknown.contains("keyss"), "{unknown}");
        let inner = error("[keys]\npattern = { zipf = { exponnent = 1 } }\n");
        assert!(inner.contains("line 2") && inner.contains("exponnent"), "{inner}");
        let placeholder = error("[[commands]]\nargs = [\"GET\", \"{kee}\"]\n");
        assert!(
            placeholder.contains("commands[0].args[1]") && placeholder.contains("{kee}"),
            "{placeholder}"
        );
        let size = error("values = { size = { range = { min = 9, max = 3 } } }");
        assert!(size.contains("values.size"), "{size}");
    }

    #[test]
    fn the_read_share_rules_over_weights() {
        let workload = Workload {
            read_share: Some(0.75),
            commands: vec![
                Command { read: true, weight: 3.0, ..Command::of(&["GET", "{key}"]) },
                Command { read: true, weight: 1.0, ..Command::of(&["TTL", "{key}"]) },
                Command { weight: 9.0, ..Command::of(&["DEL", "{key}"]) },
            ],
            ..Workload::default()
        };
        let weights: Vec<_> = workload.weighted_commands().iter().map(|command| command.weight).collect();
        assert_eq!(weights, [0.5625, 0.1875, 0.25]);
    }
}
