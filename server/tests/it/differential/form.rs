//! The notation of the table, and the making of commands from it.
//!
//! | written | makes |
//! |---|---|
//! | `SET` | the word itself, in capital or small letters |
//! | `'abc'` | the text between the quotes |
//! | `key` | one or more words of the pool of that name |
//! | `[EX secs]` | that, or nothing |
//! | `(LEFT\|RIGHT)` | one of these; `[NX\|XX]` one of these, or nothing |
//! | `key+`, `(field value)+` | that once or more often |
//! | `<[NX] [GET]>` | these in any order |
//! | `#(key+)` | the number of words that follow, and these words |

use super::pools::{Pools, Symbol, symbol};
use crate::support::values::Argv;

/// A piece of the notation.
pub enum Form {
    Word(&'static str),
    Quoted(&'static str),
    Symbol(Symbol),
    Sequence(Vec<Form>),
    Choice(Vec<Form>),
    Optional(Box<Form>),
    Repeated(Box<Form>),
    AnyOrder(Vec<Form>),
    Counted(Box<Form>),
}

impl Form {
    /// Reads a line of the table.
    ///
    /// # Panics
    /// When the notation is invalid.
    pub fn parse(text: &'static str) -> Form {
        let mut tokens = tokens(text);
        let form = parse_choice(&mut tokens);
        assert!(tokens.is_empty(), "{text}: something is left of {tokens:?}");
        form
    }

    /// Appends words of this form.
    pub fn make(&self, pools: &mut Pools, argv: &mut Argv) {
        match self {
            Form::Word(word) if pools.dice.percent(20) => argv.push(word.to_ascii_lowercase().into_bytes()),
            Form::Word(word) | Form::Quoted(word) => argv.push(word.as_bytes().to_vec()),
            Form::Symbol(make) => make(pools, argv),
            Form::Sequence(items) => items.iter().for_each(|item| item.make(pools, argv)),
            Form::Choice(forms) => {
                let chosen = pools.dice.roll(forms.len());
                forms[chosen].make(pools, argv);
            }
            Form::Optional(form) => {
                if pools.dice.percent(40) {
                    form.make(pools, argv);
                }
            }
            Form::Repeated(form) => {
                // Mostly few; sometimes more than a small encoding holds.
                let n = if pools.dice.percent(3) { 12 } else { 1 + pools.dice.roll(3) };
                (0..n).for_each(|_| form.make(pools, argv));
            }
            Form::AnyOrder(items) => {
                let mut order: Vec<&Form> = items.iter().collect();
                while !order.is_empty() {
                    let next = pools.dice.roll(order.len());
                    order.swap_remove(next).make(pools, argv);
                }
            }
            Form::Counted(form) => {
                let mut counted = Argv::new();
                form.make(pools, &mut counted);
                let n = if pools.dice.percent(4) { pools.dice.roll(5) } else { counted.len() };
                argv.push(n.to_string().into_bytes());
                argv.append(&mut counted);
            }
        }
    }
}

/// The tokens of a line, the last one first.
fn tokens(text: &'static str) -> Vec<&'static str> {
    let is_mark = |c: char| "[]()<>|+#".contains(c);
    let mut tokens = Vec::new();
    for word in text.split_whitespace() {
        let mut rest = word;
        while let Some(at) = rest.find(is_mark) {
            let (before, marked) = rest.split_at(at);
            tokens.push(before);
            tokens.push(&marked[..1]);
            rest = &marked[1..];
        }
        tokens.push(rest);
    }
    tokens.retain(|token| !token.is_empty());
    tokens.reverse();
    tokens
}

fn parse_choice(tokens: &mut Vec<&'static str>) -> Form {
    let mut forms = vec![parse_sequence(tokens)];
    while tokens.pop_if(|token| *token == "|").is_some() {
        forms.push(parse_sequence(tokens));
    }
    if forms.len() == 1 { forms.remove(0) } else { Form::Choice(forms) }
}

fn parse_sequence(tokens: &mut Vec<&'static str>) -> Form {
    let mut items = Vec::new();
    while let Some(token) = tokens.pop_if(|token| !["|", ")", "]", ">"].contains(token)) {
        let item = parse_item(token, tokens);
        let repeated = tokens.pop_if(|token| *token == "+").is_some();
        items.push(if repeated { Form::Repeated(Box::new(item)) } else { item });
    }
    Form::Sequence(items)
}

fn parse_item(token: &'static str, tokens: &mut Vec<&'static str>) -> Form {
    match token {
        "(" => closed_by(")", parse_choice(tokens), tokens),
        "[" => Form::Optional(Box::new(closed_by("]", parse_choice(tokens), tokens))),
        "<" => {
            let Form::Sequence(items) = closed_by(">", parse_sequence(tokens), tokens) else {
                unreachable!("a sequence is what was parsed")
            };
            Form::AnyOrder(items)
        }
        "#" => {
            assert_eq!(tokens.pop(), Some("("), "what is counted stands in parentheses");
            Form::Counted(Box::new(closed_by(")", parse_choice(tokens), tokens)))
        }
        quoted if quoted.starts_with('\'') => Form::Quoted(quoted.trim_matches('\'')),
        word if word.starts_with(|c: char| c.is_ascii_lowercase()) => {
            Form::Symbol(symbol(word).unwrap_or_else(|| panic!("no pool is called {word}")))
        }
        word => Form::Word(word),
    }
}

fn closed_by(mark: &str, form: Form, tokens: &mut Vec<&'static str>) -> Form {
    assert_eq!(tokens.pop(), Some(mark), "a parenthesis has no end");
    form
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::{differential::table::Table, support::Dice};

    fn made(text: &'static str) -> Vec<String> {
        let form = Form::parse(text);
        let mut pools = Pools::new(Dice(7), Rc::new(Table { families: Vec::new(), key_pools: Vec::new() }));
        (0..300)
            .map(|_| {
                let mut argv = Argv::new();
                form.make(&mut pools, &mut argv);
                argv.iter()
                    .map(|word| String::from_utf8_lossy(word).to_uppercase())
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect()
    }

    #[test]
    fn every_mark_makes_what_it_says() {
        for (text, all) in [
            ("A B", &["A B"][..]),
            ("[A]", &["", "A"]),
            ("'a'", &["A"]),
            ("(A|B C)", &["A", "B C"]),
            ("[A|B]", &["", "A", "B"]),
            ("<A B>", &["A B", "B A"]),
            ("<(A|B) C>", &["A C", "B C", "C A", "C B"]),
            ("A ([B] C)", &["A B C", "A C"]),
        ] {
            let mut seen = made(text);
            seen.sort();
            seen.dedup();
            assert_eq!(seen, all, "{text}");
        }
    }

    #[test]
    fn repetitions_and_counts() {
        let repeated = made("A+");
        assert!(repeated.contains(&"A".to_owned()) && repeated.contains(&"A A A".to_owned()));
        let counted = made("#(A+)");
        assert!(counted.contains(&"1 A".to_owned()) && counted.contains(&"3 A A A".to_owned()));
        assert!(counted.contains(&"4 A".to_owned()), "a wrong count, now and then");
    }
}
