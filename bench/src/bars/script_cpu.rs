//! The server's processor time for one run of a script, under redis-benchmark.

use std::net::SocketAddr;

use braid_protocol::Value;
use braid_protocol::request::write_request;

use super::contest::Contest;
use super::loaded_script::{RunBy, Script, bulk, expect};
use super::{cpu, cpu_types};
use crate::bars::measures::{Measure, Target, Unit};
use crate::bars::preload;
use crate::client::Client;
use crate::error::BenchError;
use crate::spawn::Server;

const GET: &str = include_str!("../../scripts/get.lua");
const LIMITER: &str = include_str!("../../scripts/limiter.lua");
const ORDER: &str = include_str!("../../scripts/order.lua");

/// The line by which the script of an order finds the account's key, and an alternative line.
const ACCOUNT_BY_ARGUMENT: &str = "local account = 'account:' .. ARGV[1]";
const ACCOUNT_BY_VALUE: &str = "local account = customer[2]";

/// The number of keys of a bar, over all kinds.
const N_KEYS: u64 = 100_000;
/// The number of keys of each of an order's nine kinds.
const N_OF_KIND: u64 = N_KEYS / 9;
const N_VALUE_BYTES: usize = 100;
/// The amount in every stock and account, more than any load takes.
const PLENTY: i64 = 1_000_000_000_000;
/// The number of articles that an order takes from each stock, and the price of one.
///
/// An order takes from two stocks.
const QUANTITY: i64 = 2;
const PRICE: i64 = 5;

/// A script and its load.
struct ScriptTest {
    text: String,
    run_by: RunBy,
    pipeline: u32,
    /// The number of keys, keys and arguments.
    ///
    /// redis-benchmark replaces their placeholders by numbers below `n_random`.
    arguments: &'static [&'static str],
    n_random: u64,
    /// Fills an empty server.
    fill: fn(SocketAddr) -> Result<(), BenchError>,
    /// Checks the reply and the changes of a run. The load itself only sees errors.
    check: fn(&mut Client, &Script) -> Result<(), BenchError>,
    /// The test's cost as a multiple of a short script's. The number of requests is divided by it.
    cost: u64,
    /// The target ratio.
    at_most: f64,
}

impl ScriptTest {
    fn of_get(run_by: RunBy, pipeline: u32, at_most: f64) -> Self {
        Self {
            text: GET.to_owned(),
            run_by,
            pipeline,
            arguments: &["1", "key:__rand_int__"],
            n_random: N_KEYS,
            fill: |address| preload::load(address, N_KEYS, &value(), &[]),
            check: check_get,
            cost: 1,
            at_most,
        }
    }

    /// Makes the test of the limiter.
    ///
    /// The limit is never reached, because a request that is not admitted takes fewer commands.
    fn of_limiter() -> Self {
        Self {
            text: LIMITER.to_owned(),
            run_by: RunBy::Digest,
            pipeline: 16,
            arguments: &["1", "caller:__rand_int__", "1000000", "10000", "__rand_int__"],
            n_random: N_KEYS,
            fill: |_| Ok(()),
            check: check_limiter,
            cost: 2,
            at_most: 0.6,
        }
    }

    fn of_order(text: String, check: fn(&mut Client, &Script) -> Result<(), BenchError>) -> Self {
        Self {
            text,
            run_by: RunBy::Digest,
            pipeline: 16,
            arguments: &[
                "8",
                "cart:__rand_int__",
                "stock:__rand_int__",
                "stock:__rand_int__",
                "customer:__rand_int__",
                "takings:__rand_int__",
                "latest:__rand_int__",
                "figures:__rand_int__",
                "receipt:__rand_int__",
                "__rand_int__",
                "__rand_int__",
            ],
            n_random: N_OF_KIND,
            fill: fill_for_orders,
            check,
            cost: 5,
            at_most: 0.7,
        }
    }
}

/// Measures one GET by EVALSHA.
pub(super) fn get(
    contest: &Contest,
    bar: &str,
    pipeline: u32,
    at_most: f64,
) -> Result<Vec<Measure>, BenchError> {
    run(contest, bar, &ScriptTest::of_get(RunBy::Digest, pipeline, at_most))
}

/// Measures one GET by EVAL.
pub(super) fn eval(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    run(contest, bar, &ScriptTest::of_get(RunBy::Text, 16, 0.5))
}

/// Measures five commands on one key.
pub(super) fn limiter(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    run(contest, bar, &ScriptTest::of_limiter())
}

/// Measures twenty commands on nine keys. One of them is not declared: it is made from an argument.
pub(super) fn order(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let check = |client: &mut Client, script: &Script| check_order(client, script, 9);
    run(contest, bar, &ScriptTest::of_order(ORDER.to_owned(), check))
}

/// Measures the same order with the undeclared key read from another key.
pub(super) fn order_of_read_key(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let check = |client: &mut Client, script: &Script| check_order(client, script, account_of(4));
    run(contest, bar, &ScriptTest::of_order(order_by_value(), check))
}

fn order_by_value() -> String {
    ORDER.replace(ACCOUNT_BY_ARGUMENT, ACCOUNT_BY_VALUE)
}

fn run(contest: &Contest, bar: &str, test: &ScriptTest) -> Result<Vec<Measure>, BenchError> {
    let servers = contest.start_both(&[])?;
    let measures = vec![
        Measure::new("CPU/run", Unit::Micros, Target::ratio(test.at_most)),
        Measure::new("runs", Unit::PerSecond, Target::NONE),
    ];
    contest.rounds(bar, contest.n_rounds, measures, |side| run_once(contest, side.of(&servers), test))
}

fn run_once(contest: &Contest, server: &Server, test: &ScriptTest) -> Result<Vec<f64>, BenchError> {
    let mut client = Client::connect(server.address())?;
    client.call(&["FLUSHALL"])?;
    (test.fill)(server.address())?;
    let script = Script::load(&mut client, &test.text, test.run_by)?;
    (test.check)(&mut client, &script)?;
    cpu_types::wait_for_rest(server)?;
    let n_random = test.n_random.to_string();
    let request = script.request(test.arguments);
    let arguments: Vec<_> = ["-r", &n_random].into_iter().chain(request).collect();
    let n_requests = contest.n_requests(test.pipeline) / test.cost;
    let cost = cpu::per_command(&contest.redis_benchmark, server, test.pipeline, n_requests, &arguments)?;
    Ok(vec![cost.micros, cost.per_second])
}

fn value() -> String {
    "v".repeat(N_VALUE_BYTES)
}

fn check_get(client: &mut Client, script: &Script) -> Result<(), BenchError> {
    for index in [0, N_KEYS / 2, N_KEYS - 1] {
        script.expect(client, &["1", &preload::name(index)], &bulk(value()))?;
    }
    script.expect(client, &["1", "no such key"], &Value::NullBulk)
}

/// Checks that two of three requests are admitted.
fn check_limiter(client: &mut Client, script: &Script) -> Result<(), BenchError> {
    for (nth, [admitted, left]) in [("1", [1, 1]), ("2", [1, 0]), ("3", [0, 0])] {
        let expected = Value::Array([admitted, left].map(Value::Integer).to_vec());
        script.expect(client, &["1", "checked", "2", "60000", nth], &expected)?;
    }
    expect(client, &["ZCARD", "checked"], &Value::Integer(2))
}

/// Returns a key's name with its number in twelve digits, which redis-benchmark writes as well.
fn key(kind: &str, index: u64) -> String {
    format!("{kind}:{index:012}")
}

/// Returns the account of a customer.
fn account_of(customer: u64) -> u64 {
    (customer * 7 + 1) % N_OF_KIND
}

fn fill_for_orders(address: SocketAddr) -> Result<(), BenchError> {
    preload::pipeline(address, 4 * N_OF_KIND, |nth, out| {
        let index = nth / 4;
        let (quantity, price, plenty) = (QUANTITY.to_string(), PRICE.to_string(), PLENTY.to_string());
        match nth % 4 {
            0 => write_request(out, &["HSET", &key("cart", index), "quantity", &quantity, "price", &price]),
            1 => write_request(out, &["SET", &key("stock", index), &plenty]),
            2 => write_request(out, &["SET", &key("account", index), &plenty]),
            _ => {
                let account = key("account", account_of(index));
                write_request(out, &["HSET", &key("customer", index), "name", "Ada", "account", &account]);
            }
        }
    })
}

/// Checks an order of customer 4 with account 9 as its argument. `payer` is the account that pays.
fn check_order(client: &mut Client, script: &Script, payer: u64) -> Result<(), BenchError> {
    let kinds = ["cart", "stock", "stock", "customer", "takings", "latest", "figures", "receipt"];
    let keys: Vec<_> = kinds.into_iter().zip(1..).map(|(kind, index)| key(kind, index)).collect();
    let mut arguments = vec!["8"];
    arguments.extend(keys.iter().map(String::as_str));
    arguments.extend(["000000000009", "000000000010"]);
    let total = 2 * QUANTITY * PRICE;
    let left = Value::Array(vec![Value::Integer(PLENTY - total), Value::Integer(1)]);
    script.expect(client, &arguments, &left)?;
    for (key, remaining) in [
        (key("account", payer), PLENTY - total),
        (keys[1].clone(), PLENTY - QUANTITY),
        (keys[2].clone(), PLENTY - QUANTITY),
    ] {
        expect(client, &["GET", &key], &bulk(remaining.to_string()))?;
    }
    expect(client, &["ZSCORE", &keys[6], "articles"], &bulk((2 * QUANTITY).to_string()))?;
    expect(client, &["GET", &keys[7]], &bulk(format!("Ada has paid {total}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n_commands(script: &str) -> usize {
        script.matches("redis.call(").count()
    }

    #[test]
    fn scripts_have_as_many_commands_as_their_bars_say() {
        assert_eq!([GET, LIMITER, ORDER, &order_by_value()].map(n_commands), [1, 5, 20, 20]);
        // docs/benchmarks.md states the length of the text that EVAL sends.
        assert_eq!(GET.len(), 318);
    }

    #[test]
    fn the_two_orders_differ_in_where_the_account_is_found() {
        let differing: Vec<_> = ORDER
            .lines()
            .zip(order_by_value().lines())
            .filter(|(one, other)| one != other)
            .map(|(one, other)| (one.to_owned(), other.to_owned()))
            .collect();
        assert_eq!(differing, [(ACCOUNT_BY_ARGUMENT.to_owned(), ACCOUNT_BY_VALUE.to_owned())]);
    }

    #[test]
    fn requests_name_as_many_keys_as_they_declare() {
        let declared = |test: &ScriptTest| {
            let n_keys: usize = test.arguments[0].parse().expect("the number of keys comes first");
            let is_key = |argument: &&&str| argument.contains(':');
            assert_eq!(test.arguments[1..].iter().filter(is_key).count(), n_keys);
            assert!(test.arguments[1..=n_keys].iter().all(|argument| argument.contains("__rand_int__")));
            n_keys
        };
        assert_eq!(declared(&ScriptTest::of_get(RunBy::Text, 16, 0.5)), 1);
        assert_eq!(declared(&ScriptTest::of_limiter()), 1);
        assert_eq!(declared(&ScriptTest::of_order(order_by_value(), |_, _| Ok(()))), 8);
    }
}
