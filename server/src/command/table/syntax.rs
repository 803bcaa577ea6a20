//! Parses the notation of Redis's manual into the argument tree of `COMMAND DOCS`.
//!
//! In the notation, words in capitals and signs are tokens, and other words are values. `[a]` is optional.
//! `a | b` is a choice, within `<>` or `[]`. `...` at the end of a bracket repeats its contents or the items
//! before it.

use std::iter::Peekable;

/// An argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Argument<'s> {
    /// The value's word, the token in lower case, or the children's joined names.
    pub name: String,
    /// The type of the argument.
    pub kind: ArgumentKind,
    /// The token before a value, or the token itself.
    pub token: Option<&'s str>,
    /// Whether it may be omitted.
    pub optional: bool,
    /// Whether it may be repeated.
    pub multiple: bool,
    /// Whether each repetition repeats the token.
    pub multiple_token: bool,
    /// The version that introduced it, if that is not the command's.
    pub since: Option<&'s str>,
    /// The version that deprecated it.
    pub deprecated_since: Option<&'s str>,
    /// The index of the key specification that includes it.
    pub key_spec: Option<usize>,
    /// Its parts or alternatives.
    pub children: Vec<Argument<'s>>,
}

/// A type of argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ArgumentKind {
    /// Any bytes.
    #[default]
    String,
    /// An integer.
    Integer,
    /// A number.
    Double,
    /// A key.
    Key,
    /// A glob pattern.
    Pattern,
    /// Seconds or milliseconds since 1970.
    UnixTime,
    /// A token.
    PureToken,
    /// One of its children.
    OneOf,
    /// All of its children.
    Block,
}

impl ArgumentKind {
    const NAMES: [(ArgumentKind, &'static str); 9] = [
        (ArgumentKind::String, "string"),
        (ArgumentKind::Integer, "integer"),
        (ArgumentKind::Double, "double"),
        (ArgumentKind::Key, "key"),
        (ArgumentKind::Pattern, "pattern"),
        (ArgumentKind::UnixTime, "unix-time"),
        (ArgumentKind::PureToken, "pure-token"),
        (ArgumentKind::OneOf, "oneof"),
        (ArgumentKind::Block, "block"),
    ];

    /// Returns the type's name in `COMMAND DOCS`.
    pub fn name(self) -> &'static str {
        let named = Self::NAMES.iter().find(|(kind, _)| *kind == self);
        named.expect("each type has a name").1
    }

    /// Returns the type with a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, own)| *own == name).map(|(kind, _)| *kind)
    }

    /// Whether it is only a form for its children.
    pub fn is_form(self) -> bool {
        matches!(self, ArgumentKind::OneOf | ArgumentKind::Block)
    }

    /// Guesses the type of a value from its word.
    fn of_word(word: &str) -> Self {
        const INTEGERS: &[&str] = &[
            "bit",
            "byte",
            "count",
            "cursor",
            "db",
            "decrement",
            "end",
            "increment",
            "index",
            "index1",
            "index2",
            "len",
            "length",
            "limit",
            "maxage",
            "milliseconds",
            "min-idle-time",
            "min-match-len",
            "num-matches",
            "numfields",
            "numkeys",
            "numreplicas",
            "offset",
            "port",
            "protover",
            "rank",
            "samples",
            "seconds",
            "start",
            "stop",
            "timeout",
            "version",
        ];
        const DOUBLES: &[&str] = &["height", "latitude", "longitude", "radius", "score", "weight", "width"];
        if word == "key" || word == "newkey" {
            ArgumentKind::Key
        } else if word == "pattern" {
            ArgumentKind::Pattern
        } else if word.starts_with("unix-time") {
            ArgumentKind::UnixTime
        } else if INTEGERS.contains(&word) || word.ends_with("-id") || word.ends_with("-db") {
            ArgumentKind::Integer
        } else if DOUBLES.contains(&word) {
            ArgumentKind::Double
        } else {
            ArgumentKind::String
        }
    }
}

/// Parses a row's syntax.
pub(super) fn arguments(syntax: &str) -> Vec<Argument<'_>> {
    let mut pieces = Pieces { rest: syntax }.peekable();
    let mut choice = read_choice(&mut pieces);
    debug_assert!(pieces.next().is_none(), "the brackets of {syntax} match");
    match choice.len() {
        1 => in_sequence(&choice.remove(0)),
        _ => vec![one_of(&choice)],
    }
}

/// Splits the notation into words, brackets and bars.
struct Pieces<'s> {
    rest: &'s str,
}

impl<'s> Iterator for Pieces<'s> {
    type Item = &'s str;

    fn next(&mut self) -> Option<&'s str> {
        self.rest = self.rest.trim_start();
        let is_sign = |c: char| matches!(c, '[' | ']' | '<' | '>' | '|');
        let end = match self.rest.find(|c: char| c.is_whitespace() || is_sign(c)) {
            Some(0) => 1,
            Some(end) => end,
            None => self.rest.len(),
        };
        let (piece, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!piece.is_empty()).then_some(piece)
    }
}

/// An element of the notation.
#[derive(Debug, PartialEq, Eq)]
enum Item<'s> {
    Token(&'s str),
    Value(&'s str),
    /// `[…]`.
    Optional(Vec<Sequence<'s>>),
    /// `<…>`.
    Choice(Vec<Sequence<'s>>),
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Sequence<'s> {
    items: Vec<Item<'s>>,
    /// Whether it ends with `...`.
    repeats: bool,
}

fn read_choice<'s>(pieces: &mut Peekable<Pieces<'s>>) -> Vec<Sequence<'s>> {
    let mut choice = vec![Sequence::default()];
    while let Some(piece) = pieces.next_if(|&piece| piece != "]" && piece != ">") {
        let sequence = choice.last_mut().expect("it starts with one and only grows");
        match piece {
            "|" => choice.push(Sequence::default()),
            "..." => sequence.repeats = true,
            "[" | "<" => {
                let inner = read_choice(pieces);
                pieces.next();
                sequence.items.push(if piece == "[" { Item::Optional(inner) } else { Item::Choice(inner) });
            }
            word if is_token(word) => sequence.items.push(Item::Token(word)),
            word => sequence.items.push(Item::Value(word)),
        }
    }
    choice
}

/// Whether a word is a token: it has no small letter.
fn is_token(word: &str) -> bool {
    !word.contains(|c: char| c.is_ascii_lowercase())
}

/// Returns the arguments of a sequence, in order.
fn in_sequence<'s>(sequence: &Sequence<'s>) -> Vec<Argument<'s>> {
    let mut arguments: Vec<Argument<'s>> = Vec::new();
    let items = &sequence.items;
    let mut at = 0;
    while at < items.len() {
        let run = at..at + length_of_run(&items[at..]);
        let mut argument = match &items[run.clone()] {
            [Item::Token(token)] => pure_token(token),
            [Item::Token(token), values @ ..] => after_token(token, values),
            [Item::Value(word)] => value(word),
            [Item::Choice(choice)] => one_of(choice),
            [Item::Optional(choice)] => optional(choice),
            _ => unreachable!("only a token makes a run of several items"),
        };
        at = run.end;
        if let Some(n_repeated) = repetition(items, at) {
            let n_before = n_repeated.saturating_sub(run.len());
            let before = arguments.split_off(arguments.len() - n_before);
            argument = repeated(before, argument, n_repeated, run.len());
            at += 1;
        }
        arguments.push(argument);
    }
    arguments
}

/// Returns the number of items in the first argument.
///
/// A token includes the values after it.
fn length_of_run(items: &[Item<'_>]) -> usize {
    if !matches!(items[0], Item::Token(_)) {
        return 1;
    }
    let is_value = |item: &&Item<'_>| matches!(item, Item::Value(_) | Item::Choice(_));
    1 + items[1..].iter().take_while(is_value).count()
}

/// Returns how many items before `at` the bracket at `at` repeats.
///
/// It is `None` if there is no bracket that repeats items.
fn repetition(items: &[Item<'_>], at: usize) -> Option<usize> {
    let Some(Item::Optional(choice)) = items.get(at) else { return None };
    let [only] = &choice[..] else { return None };
    let n = only.items.len();
    (only.repeats && n <= at && items[at - n..at] == only.items).then_some(n)
}

/// Makes the items repeatable that `field value [field value ...]` repeats.
///
/// These are the last `n_repeated` items. The last `n_own` of them are `last` or a part of it, and the others
/// are `before`.
fn repeated<'s>(
    mut before: Vec<Argument<'s>>,
    mut last: Argument<'s>,
    n_repeated: usize,
    n_own: usize,
) -> Argument<'s> {
    if n_repeated > n_own {
        before.push(last);
        last = block(before);
    } else if n_repeated < n_own && !last.children.is_empty() {
        let tail = last.children.split_off(last.children.len() - n_repeated);
        let mut tail =
            if tail.len() == 1 { tail.into_iter().next().unwrap_or_default() } else { block(tail) };
        tail.multiple = true;
        last.children.push(tail);
        return last;
    }
    last.multiple = true;
    last.multiple_token = n_repeated == n_own && last.token.is_some();
    last
}

fn pure_token(token: &str) -> Argument<'_> {
    Argument {
        name: token.to_ascii_lowercase(),
        kind: ArgumentKind::PureToken,
        token: Some(token),
        ..Argument::default()
    }
}

fn value(word: &str) -> Argument<'_> {
    Argument { name: word.to_owned(), kind: ArgumentKind::of_word(word), ..Argument::default() }
}

fn after_token<'s>(token: &'s str, values: &[Item<'s>]) -> Argument<'s> {
    let mut parts: Vec<Argument<'s>> = values
        .iter()
        .map(|item| match item {
            Item::Value(word) => value(word),
            Item::Choice(choice) => one_of(choice),
            Item::Token(_) | Item::Optional(_) => unreachable!("a run ends before these"),
        })
        .collect();
    let mut argument = if parts.len() == 1 { parts.remove(0) } else { block(parts) };
    argument.token = Some(token);
    argument
}

fn optional<'s>(choice: &[Sequence<'s>]) -> Argument<'s> {
    let mut argument = match choice {
        [only] => whole(only),
        _ => one_of(choice),
    };
    argument.optional = true;
    argument
}

fn one_of<'s>(choice: &[Sequence<'s>]) -> Argument<'s> {
    let children: Vec<Argument<'s>> = choice.iter().map(whole).collect();
    Argument { name: joined(&children), kind: ArgumentKind::OneOf, children, ..Argument::default() }
}

/// Returns a sequence as one argument.
fn whole<'s>(sequence: &Sequence<'s>) -> Argument<'s> {
    let mut arguments = in_sequence(sequence);
    let mut argument = if arguments.len() == 1 { arguments.remove(0) } else { block(arguments) };
    argument.multiple |= sequence.repeats;
    argument
}

fn block(children: Vec<Argument<'_>>) -> Argument<'_> {
    Argument { name: joined(&children), kind: ArgumentKind::Block, children, ..Argument::default() }
}

fn joined(children: &[Argument<'_>]) -> String {
    children.iter().map(|child| child.name.as_str()).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints the tree on a line.
    ///
    /// The form is `name:type`, `=TOKEN`, `?` optional, `+` multiple, `*` with its token.
    ///
    /// Children are in parentheses.
    fn shown(syntax: &str) -> String {
        fn one(argument: &Argument<'_>) -> String {
            let mut text = format!("{}:{}", argument.name, argument.kind.name());
            text.extend(argument.token.map(|token| format!("={token}")));
            text.extend(argument.optional.then_some("?"));
            text.extend(argument.multiple.then_some("+"));
            text.extend(argument.multiple_token.then_some("*"));
            if !argument.children.is_empty() {
                text += &format!("({})", all(&argument.children));
            }
            text
        }
        fn all(arguments: &[Argument<'_>]) -> String {
            arguments.iter().map(one).collect::<Vec<_>>().join(" ")
        }
        all(&arguments(syntax))
    }

    #[test]
    fn values_have_the_type_of_their_word() {
        assert_eq!(shown(""), "");
        assert_eq!(shown("key"), "key:key");
        assert_eq!(shown("key seconds"), "key:key seconds:integer");
        assert_eq!(shown("pattern"), "pattern:pattern");
        assert_eq!(shown("client-id destination-db"), "client-id:integer destination-db:integer");
        assert_eq!(shown("unix-time-milliseconds"), "unix-time-milliseconds:unix-time");
        assert_eq!(shown("score member"), "score:double member:string");
    }

    #[test]
    fn what_is_in_square_brackets_is_optional() {
        assert_eq!(shown("[message]"), "message:string?");
        assert_eq!(shown("[NOW]"), "now:pure-token=NOW?");
        assert_eq!(shown("cursor [MATCH pattern]"), "cursor:integer pattern:pattern=MATCH?");
        assert_eq!(shown("[LIMIT offset count]"), "offset-count:block=LIMIT?(offset:integer count:integer)");
        assert_eq!(
            shown("[protover [AUTH username password]]"),
            "protover-username-password:block?(protover:integer \
             username-password:block=AUTH?(username:string password:string))"
        );
    }

    #[test]
    fn bars_are_choices() {
        assert_eq!(shown("<ON | OFF>"), "on-off:oneof(on:pure-token=ON off:pure-token=OFF)");
        assert_eq!(shown("[NX|XX]"), "nx-xx:oneof?(nx:pure-token=NX xx:pure-token=XX)");
        assert_eq!(
            shown("[EX seconds | KEEPTTL]"),
            "seconds-keepttl:oneof?(seconds:integer=EX keepttl:pure-token=KEEPTTL)"
        );
        assert_eq!(shown("SKIPME <YES | NO>"), "yes-no:oneof=SKIPME(yes:pure-token=YES no:pure-token=NO)");
        assert_eq!(
            shown("MAXLEN [= | ~] count"),
            "maxlen:pure-token=MAXLEN =-~:oneof?(=:pure-token== ~:pure-token=~) count:integer"
        );
        assert_eq!(
            shown("host port | NO ONE"),
            "host-port-no-one:oneof(host-port:block(host:string port:integer) \
             no-one:block(no:pure-token=NO one:pure-token=ONE))"
        );
    }

    #[test]
    fn dots_repeat() {
        assert_eq!(shown("key [key ...]"), "key:key+");
        assert_eq!(shown("[section [section ...]]"), "section:string?+");
        assert_eq!(shown("[section ...]"), "section:string?+");
        assert_eq!(
            shown("key field value [field value ...]"),
            "key:key field-value:block+(field:string value:string)"
        );
        assert_eq!(shown("[GET pattern [GET pattern ...]]"), "pattern:pattern=GET?+*");
        assert_eq!(shown("[ID client-id [client-id ...]]"), "client-id:integer=ID?+");
        assert_eq!(shown("numkeys key [key ...]"), "numkeys:integer key:key+");
        assert_eq!(
            shown("FIELDS numfields field [field ...]"),
            "numfields-field:block=FIELDS(numfields:integer field:string+)"
        );
    }

    #[test]
    fn every_row_has_brackets_that_match() {
        for command in crate::command::TABLE.all() {
            let syntax = command.spec.syntax;
            for (open, close) in [('[', ']'), ('<', '>')] {
                assert_eq!(
                    syntax.matches(open).count(),
                    syntax.matches(close).count(),
                    "{}",
                    command.full_name
                );
            }
            arguments(syntax);
        }
    }
}
