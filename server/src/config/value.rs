//! Values of directives: reading them from words, and printing them.
//!
//! `CONFIG GET` and the configuration file print values differently.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::settings::{Amount, KeyspaceEvents, OutputLimit, OutputLimits, PrimaryAddress, SavePoint};
use super::words;

/// The value of one directive.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `yes` or `no`.
    Bool(bool),
    /// A number. 128 bits hold the signed and the unsigned 64-bit ranges that directives have.
    Number(i128),
    /// A share of `maxmemory`, 1 to 100.
    Percent(u8),
    /// One word of a fixed list, in the list's spelling.
    Choice(&'static str),
    /// Several words of a fixed list, in the list's order and spelling.
    Choices(Vec<&'static str>),
    /// Any bytes.
    Text(Vec<u8>),
    /// An absolute, existing directory.
    Dir(PathBuf),
    /// Addresses as given to `bind`.
    Addresses(Vec<Vec<u8>>),
    /// Save points in the order given.
    Save(Vec<SavePoint>),
    /// Output buffer limits of the three classes of clients.
    OutputLimits(OutputLimits),
    /// Classes of keyspace events.
    Events(KeyspaceEvents),
    /// OOM score adjustments of a primary, a replica and a background child.
    OomScores([i16; 3]),
    /// Percentiles that `INFO latencystats` reports.
    Percentiles(Vec<f64>),
    /// Host and port of the primary, for a replica.
    Primary(Option<(Vec<u8>, u16)>),
    /// The words of each line, for directives of files that may stand several times.
    Lines(Vec<Vec<Vec<u8>>>),
}

/// The form of the values that a directive accepts.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `yes` or `no`.
    Bool,
    /// A decimal integer from `min` to `max`.
    Integer {
        /// The least accepted value.
        min: i128,
        /// The greatest accepted value.
        max: i128,
    },
    /// A count of bytes with an optional unit, from `min` to `max` bytes.
    Memory {
        /// The least accepted number of bytes.
        min: i128,
        /// The greatest accepted number of bytes.
        max: i128,
    },
    /// A count of bytes, or a percentage of `maxmemory`.
    MemoryOrPercent,
    /// An octal file mode up to 777.
    FileMode,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A set of these words. The first word stands for the empty set.
    Choices(&'static [&'static str]),
    /// Any bytes.
    Text,
    /// A directory that exists.
    Dir,
    /// Addresses to listen on.
    Addresses,
    /// Save points.
    Save,
    /// Output buffer limits of classes of clients.
    OutputLimits,
    /// Classes of keyspace events.
    Events,
    /// Three OOM score adjustments.
    OomScores,
    /// Percentiles.
    Percentiles,
    /// Host and port, or `no one`.
    Primary,
    /// A line of at least `min` and at most `max` words. Each line is added to the earlier ones.
    Line {
        /// The fewest words.
        min: usize,
        /// The most words.
        max: usize,
    },
}

/// The reason why a value is refused. It prints in Redis's words.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// Neither `yes` nor `no`.
    NotYesOrNo,
    /// Not a decimal integer.
    NotInteger,
    /// Not an octal number.
    NotOctal,
    /// Not a count of bytes.
    NotMemory,
    /// Neither a count of bytes nor a percentage.
    NotMemoryOrPercent,
    /// Out of bounds.
    OutOfBounds {
        /// The least accepted value.
        min: i128,
        /// The greatest accepted value.
        max: i128,
    },
    /// Not in the list.
    NotOneOf(&'static [&'static str]),
    /// Too few or too many words for this directive.
    WordCount,
    /// An unknown directive, or a line of a file with a wrong number of words.
    BadDirective,
    /// A second `user` line for the same user.
    DuplicateUser(Vec<u8>),
    /// A refusal of the operating system.
    Refused(String),
    /// A violated rule of one directive.
    Rule(&'static str),
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NotYesOrNo => out.write_str("argument must be 'yes' or 'no'"),
            Reason::NotInteger => out.write_str("argument couldn't be parsed into an integer"),
            Reason::NotOctal => out.write_str("argument couldn't be parsed as an octal number"),
            Reason::NotMemory => out.write_str("argument must be a memory value"),
            Reason::NotMemoryOrPercent => out.write_str("argument must be a memory or percent value"),
            Reason::OutOfBounds { min, max } => {
                write!(out, "argument must be between {min} and {max} inclusive")
            }
            Reason::NotOneOf(words) => {
                write!(out, "argument(s) must be one of the following: {}", words.join(", "))
            }
            Reason::WordCount => out.write_str("wrong number of arguments"),
            Reason::BadDirective => out.write_str("Bad directive or wrong number of arguments"),
            Reason::DuplicateUser(name) => write!(
                out,
                "Error in user declaration '{}': Duplicate user found. A user can only be defined once in config files",
                String::from_utf8_lossy(name)
            ),
            Reason::Refused(why) => out.write_str(why),
            Reason::Rule(why) => out.write_str(why),
        }
    }
}

/// Returns the text of an I/O error without the error number that std appends.
pub(super) fn refusal(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

const BAD_LIMIT_COUNT: Reason = Reason::Rule("Wrong number of arguments in buffer limit configuration.");
const BAD_LIMIT_CLASS: Reason = Reason::Rule("Invalid client class specified in buffer limit configuration.");
const BAD_LIMIT: Reason =
    Reason::Rule("Error in hard, soft or soft_seconds setting in buffer limit configuration.");
const BAD_SAVE: Reason = Reason::Rule("Invalid save parameters");
const BAD_EVENT: Reason = Reason::Rule("Invalid event class character. Use 'Ag$lshzxeKEtmdnoc'.");
const BAD_OOM_SCORE: Reason =
    Reason::Rule("Invalid oom-score-adj-values, elements must be between -2000 and 2000.");
const MAX_ADDRESSES: usize = 16;

impl Kind {
    /// Whether one word may contain several values, separated by spaces.
    fn splits_words(self) -> bool {
        matches!(
            self,
            Kind::Choices(_)
                | Kind::Addresses
                | Kind::Save
                | Kind::OutputLimits
                | Kind::OomScores
                | Kind::Percentiles
                | Kind::Primary
        )
    }

    /// Reads the words after a directive's name. `old` is the present value.
    ///
    /// Limits of classes that are not named stay, lines are added to the present ones, and a relative
    /// directory starts at the present one.
    pub(super) fn parse(self, words: &[&[u8]], old: &Value) -> Result<Value, Reason> {
        let split: Vec<&[u8]>;
        let words = match words {
            [only] if self.splits_words() => {
                split = only.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
                &split[..]
            }
            _ => words,
        };
        match self {
            Kind::Choices(list) => choices(words, list),
            Kind::Addresses => addresses(words),
            Kind::Save => save(words),
            Kind::OutputLimits => output_limits(words, old),
            Kind::OomScores => oom_scores(words),
            Kind::Percentiles => percentiles(words),
            Kind::Primary => primary(words),
            Kind::Line { min, max } => line(words, min, max, old),
            _ => match words {
                [word] => self.parse_word(word, old),
                _ => Err(Reason::WordCount),
            },
        }
    }

    fn parse_word(self, word: &[u8], old: &Value) -> Result<Value, Reason> {
        match self {
            Kind::Bool => yes_or_no(word).map(Value::Bool),
            Kind::Integer { min, max } => {
                let number = integer(word).ok_or(Reason::NotInteger)?;
                within(number.into(), min, max)
            }
            Kind::Memory { min, max } => {
                let bytes = memory(word).ok_or(Reason::NotMemory)?;
                within(bytes.into(), min, max)
            }
            Kind::MemoryOrPercent => memory_or_percent(word),
            Kind::FileMode => file_mode(word),
            Kind::Choice(list) => choice(word, list).map(Value::Choice),
            Kind::Events => KeyspaceEvents::parse(word).map(Value::Events).ok_or(BAD_EVENT),
            Kind::Dir => directory(word, old),
            _ => Ok(Value::Text(word.to_vec())),
        }
    }

    /// Returns the text that `CONFIG GET` shows for `value`.
    pub(super) fn print(self, value: &Value) -> Vec<u8> {
        match value {
            Value::Bool(true) => b"yes".to_vec(),
            Value::Bool(false) => b"no".to_vec(),
            Value::Number(mode) if matches!(self, Kind::FileMode) => format!("{mode:o}").into_bytes(),
            Value::Number(number) => number.to_string().into_bytes(),
            Value::Percent(share) => format!("{share}%").into_bytes(),
            Value::Choice(word) => word.as_bytes().to_vec(),
            Value::Choices(words) => words.join(" ").into_bytes(),
            Value::Text(text) => text.clone(),
            Value::Dir(path) => path.as_os_str().as_encoded_bytes().to_vec(),
            Value::Addresses(addresses) => addresses.join(&b' '),
            Value::Save(points) => spaced(points),
            Value::OutputLimits(limits) => limits.to_string().into_bytes(),
            Value::Events(events) => events.to_string().into_bytes(),
            Value::OomScores(scores) => spaced(scores),
            Value::Percentiles(list) => spaced(list.iter().map(|&percentile| short_decimal(percentile))),
            Value::Primary(None) => Vec::new(),
            Value::Primary(Some((host, port))) => [host, port.to_string().as_bytes()].join(&b' '),
            Value::Lines(lines) => {
                let lines: Vec<Vec<u8>> = lines.iter().map(|words| words.join(&b' ')).collect();
                lines.join(&b'\n')
            }
        }
    }

    /// Returns the lines of a configuration file for `value`, without the directive's name.
    ///
    /// `default` is the value that applies without any line.
    pub(super) fn lines(self, value: &Value, default: &Value) -> Vec<Vec<u8>> {
        match value {
            Value::Number(bytes) if matches!(self, Kind::Memory { .. } | Kind::MemoryOrPercent) => {
                vec![with_unit(*bytes).into_bytes()]
            }
            Value::Text(text) => vec![words::quote(text)],
            Value::Dir(_) | Value::Events(_) => vec![words::quote(&self.print(value))],
            Value::Save(points) if !points.is_empty() => {
                points.iter().map(|point| point.to_string().into_bytes()).collect()
            }
            Value::OutputLimits(limits) => output_limit_lines(limits, default),
            Value::Primary(None) => Vec::new(),
            Value::Lines(lines) => {
                let line = |words: &Vec<Vec<u8>>| {
                    let quoted: Vec<Vec<u8>> =
                        words.iter().map(|word| words::quote_if_needed(word)).collect();
                    quoted.join(&b' ')
                };
                lines.iter().map(line).collect()
            }
            Value::Primary(Some((host, port))) => {
                vec![[words::quote_if_needed(host), port.to_string().into_bytes()].join(&b' ')]
            }
            _ => {
                let text = self.print(value);
                vec![if text.is_empty() { words::quote(&text) } else { text }]
            }
        }
    }
}

/// Returns the limits of the classes that differ from the default.
///
/// If none differs, it returns all, for a file that names the directive.
fn output_limit_lines(limits: &OutputLimits, default: &Value) -> Vec<Vec<u8>> {
    let usual = match default {
        Value::OutputLimits(usual) => usual,
        _ => unreachable!("the default of a directive has the directive's kind"),
    };
    let line = |class: &str, limit: &OutputLimit| {
        let (hard, soft) = (with_unit(limit.hard_bytes.into()), with_unit(limit.soft_bytes.into()));
        format!("{class} {hard} {soft} {}", limit.soft_time.as_secs()).into_bytes()
    };
    let classes = [
        ("normal", &limits.normal, &usual.normal),
        ("replica", &limits.replica, &usual.replica),
        ("pubsub", &limits.pubsub, &usual.pubsub),
    ];
    let all_usual = limits == usual;
    let named = classes.iter().filter(|(_, limit, usual)| all_usual || limit != usual);
    named.map(|(class, limit, _)| line(class, limit)).collect()
}

fn spaced<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> Vec<u8> {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(" ").into_bytes()
}

/// Prints at most six decimals, without trailing zeros.
pub fn short_decimal(number: f64) -> String {
    format!("{number:.6}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Prints bytes in the largest unit that divides them.
fn with_unit(bytes: i128) -> String {
    let units = [(1 << 30, "gb"), (1 << 20, "mb"), (1 << 10, "kb")];
    match units.iter().find(|(unit, _)| bytes != 0 && bytes % unit == 0) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

fn within(number: i128, min: i128, max: i128) -> Result<Value, Reason> {
    if (min..=max).contains(&number) {
        Ok(Value::Number(number))
    } else {
        Err(Reason::OutOfBounds { min, max })
    }
}

fn yes_or_no(word: &[u8]) -> Result<bool, Reason> {
    if word.eq_ignore_ascii_case(b"yes") {
        Ok(true)
    } else if word.eq_ignore_ascii_case(b"no") {
        Ok(false)
    } else {
        Err(Reason::NotYesOrNo)
    }
}

/// Reads a 64-bit integer in its shortest spelling.
///
/// It has no sign but `-`, no leading zeros and no spaces.
fn integer(word: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(word).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// Reads a count of bytes: digits and a unit.
///
/// As in Redis, too large a count becomes the largest, and no digits are 0.
pub fn memory(word: &[u8]) -> Option<u64> {
    let n_digits = word.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, unit) = word.split_at(n_digits);
    let unit: u64 = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1_000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    let append = |count: u64, digit: &u8| count.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Some(digits.iter().fold(0, append).saturating_mul(unit))
}

fn memory_or_percent(word: &[u8]) -> Result<Value, Reason> {
    match word.strip_suffix(b"%").filter(|digits| !digits.is_empty()) {
        Some(digits) => match integer(digits) {
            Some(0) => Ok(Value::Number(0)),
            Some(share @ 1..=100) => Ok(Value::Percent(share as u8)),
            Some(101..) => Err(Reason::Rule("percentage argument must be less or equal to 100")),
            _ => Err(Reason::NotMemoryOrPercent),
        },
        None => memory(word).map(|bytes| Value::Number(bytes.into())).ok_or(Reason::NotMemoryOrPercent),
    }
}

fn file_mode(word: &[u8]) -> Result<Value, Reason> {
    let text = std::str::from_utf8(word).map_err(|_| Reason::NotOctal)?;
    let mode = u32::from_str_radix(text, 8).map_err(|_| Reason::NotOctal)?;
    if mode > 0o777 {
        return Err(Reason::Rule("argument must be between 0 and 777 inclusive"));
    }
    Ok(Value::Number(mode.into()))
}

fn choice(word: &[u8], list: &'static [&'static str]) -> Result<&'static str, Reason> {
    let same = |choice: &&&str| choice.as_bytes().eq_ignore_ascii_case(word);
    list.iter().find(same).copied().ok_or(Reason::NotOneOf(list))
}

fn choices(words: &[&[u8]], list: &'static [&'static str]) -> Result<Value, Reason> {
    let mut chosen = Vec::new();
    for word in words {
        chosen.push(choice(word, list)?);
    }
    if chosen.is_empty() {
        return Err(Reason::NotOneOf(list));
    }
    let none = &list[..1];
    let some: Vec<&str> = list[1..].iter().filter(|word| chosen.contains(word)).copied().collect();
    Ok(Value::Choices(if some.is_empty() { none.to_vec() } else { some }))
}

fn addresses(words: &[&[u8]]) -> Result<Value, Reason> {
    if words.len() > MAX_ADDRESSES {
        return Err(Reason::Rule("Too many bind addresses specified."));
    }
    Ok(Value::Addresses(words.iter().map(|word| word.to_vec()).collect()))
}

fn save(words: &[&[u8]]) -> Result<Value, Reason> {
    let (pairs, odd) = words.as_chunks::<2>();
    if !odd.is_empty() {
        return Err(BAD_SAVE);
    }
    let point = |[seconds, changes]: &[&[u8]; 2]| {
        let seconds = integer(seconds).filter(|&seconds| seconds >= 1)?;
        let changes = integer(changes).filter(|&changes| changes >= 0)?;
        Some(SavePoint { seconds: seconds as u64, changes: changes as u64 })
    };
    let points: Option<Vec<SavePoint>> = pairs.iter().map(point).collect();
    points.map(Value::Save).ok_or(BAD_SAVE)
}

fn output_limits(words: &[&[u8]], old: &Value) -> Result<Value, Reason> {
    let mut limits = match old {
        Value::OutputLimits(limits) => *limits,
        _ => OutputLimits::default(),
    };
    let (groups, odd) = words.as_chunks::<4>();
    if !odd.is_empty() {
        return Err(BAD_LIMIT_COUNT);
    }
    for [class, hard, soft, seconds] in groups {
        let limit = limits.of_class(&class.to_ascii_lowercase()).ok_or(BAD_LIMIT_CLASS)?;
        let seconds = integer(seconds).and_then(|seconds| u64::try_from(seconds).ok()).ok_or(BAD_LIMIT)?;
        *limit = OutputLimit {
            hard_bytes: memory(hard).ok_or(BAD_LIMIT)?,
            soft_bytes: memory(soft).ok_or(BAD_LIMIT)?,
            soft_time: std::time::Duration::from_secs(seconds),
        };
    }
    Ok(Value::OutputLimits(limits))
}

fn oom_scores(words: &[&[u8]]) -> Result<Value, Reason> {
    let words: &[&[u8]; 3] = words.try_into().map_err(|_| Reason::WordCount)?;
    let score =
        |word: &[u8]| integer(word).filter(|score| (-2000..=2000).contains(score)).map(|score| score as i16);
    match words.map(score) {
        [Some(primary), Some(replica), Some(child)] => Ok(Value::OomScores([primary, replica, child])),
        _ => Err(BAD_OOM_SCORE),
    }
}

fn percentiles(words: &[&[u8]]) -> Result<Value, Reason> {
    let mut list = Vec::new();
    for word in words {
        let number = std::str::from_utf8(word).ok().and_then(|text| text.parse::<f64>().ok());
        let number = number
            .filter(|number| !number.is_nan())
            .ok_or(Reason::Rule("Invalid latency-tracking-info-percentiles parameters"))?;
        if !(0.0..=100.0).contains(&number) {
            return Err(Reason::Rule(
                "latency-tracking-info-percentiles parameters should sit between [0.0,100.0]",
            ));
        }
        list.push(number);
    }
    Ok(Value::Percentiles(list))
}

fn primary(words: &[&[u8]]) -> Result<Value, Reason> {
    let &[host, port] = words else { return Err(Reason::WordCount) };
    if host.eq_ignore_ascii_case(b"no") && port.eq_ignore_ascii_case(b"one") {
        return Ok(Value::Primary(None));
    }
    let port =
        integer(port).and_then(|port| u16::try_from(port).ok()).ok_or(Reason::Rule("Invalid master port"))?;
    Ok(Value::Primary(Some((host.to_vec(), port))))
}

fn line(words: &[&[u8]], min: usize, max: usize, old: &Value) -> Result<Value, Reason> {
    if !(min..=max).contains(&words.len()) {
        return Err(Reason::BadDirective);
    }
    let mut lines = match old {
        Value::Lines(lines) => lines.clone(),
        _ => Vec::new(),
    };
    lines.push(words.iter().map(|word| word.to_vec()).collect());
    Ok(Value::Lines(lines))
}

/// Returns a path with exactly these bytes.
pub(super) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Returns the directory as an absolute path without symbolic links.
///
/// It must exist, so that a typing error shows at once.
fn directory(word: &[u8], old: &Value) -> Result<Value, Reason> {
    let base = match old {
        Value::Dir(path) => path.as_path(),
        _ => Path::new(""),
    };
    let path = match word {
        // Joining an empty path would name the base itself.
        b"" => return Err(Reason::Refused("No such file or directory".to_owned())),
        _ => base.join(path_of(word)),
    };
    let path = path.canonicalize().map_err(|error| Reason::Refused(refusal(&error)))?;
    if !path.is_dir() {
        return Err(Reason::Refused("Not a directory".to_owned()));
    }
    Ok(Value::Dir(path))
}

/// Typed access by the kind that a row declares.
///
/// Each function panics on any other kind. The table's tests exclude that: they apply every row with a
/// setting to the ends of its accepted range.
impl Value {
    /// Reads a yes-or-no.
    pub(super) fn yes(&self) -> bool {
        match self {
            Value::Bool(yes) => *yes,
            other => unreachable!("{other:?} is not a yes-or-no"),
        }
    }

    /// Reads a number into the type of its field.
    pub(super) fn number<T: TryFrom<i128>>(&self) -> T {
        match self {
            Value::Number(number) => match T::try_from(*number) {
                Ok(number) => number,
                Err(_) => unreachable!("{number} is outside the bounds that its row declares"),
            },
            other => unreachable!("{other:?} is not a number"),
        }
    }

    /// Reads a number where 0 means "none".
    pub(super) fn nonzero<T: TryFrom<i128>>(&self) -> Option<T> {
        (*self != Value::Number(0)).then(|| self.number())
    }

    /// Reads the place of a primary.
    pub(super) fn primary(&self) -> Option<PrimaryAddress> {
        match self {
            Value::Primary(primary) => primary.clone().map(|(host, port)| PrimaryAddress { host, port }),
            other => unreachable!("{other:?} is not a primary"),
        }
    }

    /// Reads an amount of memory.
    pub(super) fn amount(&self) -> Amount {
        match self {
            Value::Number(0) => Amount::Unsaid,
            Value::Percent(percent) => Amount::OfMaxmemory((*percent).into()),
            bytes => Amount::Bytes(bytes.number()),
        }
    }

    /// Reads score adjustments.
    pub(super) fn oom_scores(&self) -> [i16; 3] {
        match self {
            Value::OomScores(scores) => *scores,
            other => unreachable!("{other:?} is no list of scores"),
        }
    }

    /// Reads one word of a list.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Value::Choice(word) => word,
            other => unreachable!("{other:?} is not a choice"),
        }
    }

    /// Reads several words of a list.
    pub(super) fn chosen(&self) -> &[&'static str] {
        match self {
            Value::Choices(words) => words,
            other => unreachable!("{other:?} is not a list of choices"),
        }
    }

    /// Reads text.
    pub(super) fn text(&self) -> &[u8] {
        match self {
            Value::Text(text) => text,
            other => unreachable!("{other:?} is not text"),
        }
    }

    /// Reads text where empty text means "not set".
    pub(super) fn nonempty(&self) -> Option<Vec<u8>> {
        let text = self.text();
        (!text.is_empty()).then(|| text.to_vec())
    }

    /// Reads save points.
    pub(super) fn save_points(&self) -> Vec<SavePoint> {
        match self {
            Value::Save(points) => points.clone(),
            _ => unreachable!("the row is of this kind"),
        }
    }

    /// Reads a path where an empty one means "not set".
    pub(super) fn path(&self) -> Option<PathBuf> {
        self.nonempty().map(|text| path_of(&text).to_path_buf())
    }

    /// Reads addresses in the form of `bind`.
    pub(super) fn addresses(&self) -> &[Vec<u8>] {
        match self {
            Value::Addresses(words) => words,
            other => unreachable!("{other:?} is not a list of addresses"),
        }
    }

    /// Reads a directory.
    pub(super) fn dir(&self) -> PathBuf {
        match self {
            Value::Dir(path) => path.clone(),
            other => unreachable!("{other:?} is not a directory"),
        }
    }

    /// Reads the output limits of the classes of clients.
    pub(super) fn output_limits(&self) -> OutputLimits {
        match self {
            Value::OutputLimits(limits) => *limits,
            other => unreachable!("{other:?} is not a list of limits"),
        }
    }

    /// Reads classes of keyspace events.
    pub(super) fn events(&self) -> KeyspaceEvents {
        match self {
            Value::Events(events) => *events,
            other => unreachable!("{other:?} is not a set of classes of events"),
        }
    }

    /// Reads percentiles.
    pub(super) fn percentiles(&self) -> Vec<f64> {
        match self {
            Value::Percentiles(list) => list.clone(),
            other => unreachable!("{other:?} is not a list of percentiles"),
        }
    }

    /// Reads lines of words.
    pub(super) fn lines(&self) -> &[Vec<Vec<u8>>] {
        match self {
            Value::Lines(lines) => lines,
            other => unreachable!("{other:?} is not a list of lines"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Value = Value::Bool(false);

    fn parse(kind: Kind, text: &str) -> Result<Value, String> {
        kind.parse(&[text.as_bytes()], &NOTHING).map_err(|reason| reason.to_string())
    }

    #[test]
    fn memory_takes_redis_units_in_any_case() {
        let kind = Kind::Memory { min: 0, max: i128::from(u64::MAX) };
        let cases = [
            ("1k", 1_000),
            ("1kb", 1_024),
            ("1M", 1_000_000),
            ("1mb", 1 << 20),
            ("2G", 2_000_000_000),
            ("1GB", 1 << 30),
            ("7b", 7),
            ("7", 7),
            ("", 0),
            ("18446744073709551615", i128::from(u64::MAX)),
            ("99999999999999999999", i128::from(u64::MAX)),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse(kind, text), Ok(Value::Number(bytes)), "{text}");
        }
        for text in ["-1", "+1", "1 gb", "1.5gb", "5%", "1zb"] {
            assert_eq!(parse(kind, text), Err("argument must be a memory value".into()), "{text}");
        }
    }

    #[test]
    fn integers_have_one_spelling() {
        let kind = Kind::Integer { min: -1, max: 10 };
        assert_eq!(parse(kind, "-1"), Ok(Value::Number(-1)));
        assert_eq!(parse(kind, "11"), Err("argument must be between -1 and 10 inclusive".into()));
        for text in ["", "07", "+7", " 7", "7 ", "0x7", "7.0", "-0", "9223372036854775808"] {
            assert_eq!(
                parse(kind, text),
                Err("argument couldn't be parsed into an integer".into()),
                "{text}"
            );
        }
    }

    #[test]
    fn file_modes_are_octal() {
        assert_eq!(parse(Kind::FileMode, "700"), Ok(Value::Number(0o700)));
        assert_eq!(Kind::FileMode.print(&Value::Number(0o70)), b"70");
        assert_eq!(
            parse(Kind::FileMode, "999"),
            Err("argument couldn't be parsed as an octal number".into())
        );
        assert_eq!(parse(Kind::FileMode, "1777"), Err("argument must be between 0 and 777 inclusive".into()));
    }

    #[test]
    fn a_percentage_is_kept_as_one() {
        assert_eq!(parse(Kind::MemoryOrPercent, "5%"), Ok(Value::Percent(5)));
        assert_eq!(parse(Kind::MemoryOrPercent, "0%"), Ok(Value::Number(0)));
        assert_eq!(parse(Kind::MemoryOrPercent, "1mb"), Ok(Value::Number(1 << 20)));
        let too_much = "percentage argument must be less or equal to 100";
        assert_eq!(parse(Kind::MemoryOrPercent, "101%"), Err(too_much.into()));
        for text in ["-5%", "5.5%", "%", "x"] {
            let why = "argument must be a memory or percent value";
            assert_eq!(parse(Kind::MemoryOrPercent, text), Err(why.into()), "{text}");
        }
    }

    #[test]
    fn limits_of_classes_that_are_not_named_stay() {
        let first = Kind::OutputLimits.parse(&[b"normal 1 2 3"], &NOTHING).unwrap();
        let words: [&[u8]; 8] = [b"replica", b"1mb", b"2kb", b"3", b"PUBSUB", b"1", b"1", b"1"];
        let both = Kind::OutputLimits.parse(&words, &first).unwrap();
        assert_eq!(Kind::OutputLimits.print(&both), b"normal 1 2 3 slave 1048576 2048 3 pubsub 1 1 1");
        let texts = [
            ("normal 1 2", BAD_LIMIT_COUNT),
            ("master 1 2 3", BAD_LIMIT_CLASS),
            ("normal a 2 3", BAD_LIMIT),
            ("normal 1 2 -3", BAD_LIMIT),
        ];
        for (text, reason) in texts {
            assert_eq!(Kind::OutputLimits.parse(&[text.as_bytes()], &both), Err(reason), "{text}");
        }
    }

    #[test]
    fn save_points_are_pairs() {
        let points = parse(Kind::Save, "1 2 3 4").unwrap();
        assert_eq!(Kind::Save.print(&points), b"1 2 3 4");
        assert_eq!(parse(Kind::Save, ""), Ok(Value::Save(Vec::new())));
        for text in ["1", "1 2 3", "a b", "0 1", "1 -1"] {
            assert_eq!(parse(Kind::Save, text), Err("Invalid save parameters".into()), "{text}");
        }
    }

    #[test]
    fn percentiles_print_short() {
        let list = parse(Kind::Percentiles, "100.0 33.3333333333 1e1 0.100").unwrap();
        assert_eq!(Kind::Percentiles.print(&list), b"100 33.333333 10 0.1");
        assert!(parse(Kind::Percentiles, "nan").is_err());
        assert!(parse(Kind::Percentiles, "101").is_err());
        assert_eq!(parse(Kind::Percentiles, ""), Ok(Value::Percentiles(Vec::new())));
    }

    #[test]
    fn a_primary_is_a_host_and_a_port() {
        let parse = |words: &[&[u8]]| Kind::Primary.parse(words, &NOTHING);
        assert_eq!(parse(&[b"a", b"1"]), Ok(Value::Primary(Some((b"a".to_vec(), 1)))));
        assert_eq!(parse(&[b"NO", b"one"]), Ok(Value::Primary(None)));
        assert_eq!(parse(&[b"a", b"99999"]), Err(Reason::Rule("Invalid master port")));
        assert_eq!(parse(&[b"a 1"]), parse(&[b"a", b"1"]), "one word of both");
        assert_eq!(parse(&[b"a 1 2"]), Err(Reason::WordCount));
    }

    #[test]
    fn bytes_are_written_in_the_largest_unit_that_divides_them() {
        let cases = [(0, "0"), (1_000, "1000"), (3 << 10, "3kb"), (5 << 20, "5mb"), (1 << 40, "1024gb")];
        for (bytes, text) in cases {
            assert_eq!(with_unit(bytes), text);
            assert_eq!(memory(text.as_bytes()), u64::try_from(bytes).ok());
        }
    }
}
