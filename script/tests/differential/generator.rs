//! Random scripts that are Lua and end, with their keys and arguments.
//!
//! A few decisions about a script are made first. The engine treats scripts in different ways by their
//! contents, so each kind of content must be absent from many scripts.

use braid_protocol::Resp;

use super::parts;
use super::random::Random;
use super::sides::Run;

/// The kind of an expression's value. Sometimes the value is of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Number,
    Text,
    Boolean,
    /// An array without other keys.
    List,
    /// A table with other keys.
    Map,
    /// A table with a metatable.
    Object,
    Function,
    Any,
}

impl Kind {
    pub const ALL: [Kind; 7] =
        [Kind::Number, Kind::Text, Kind::Boolean, Kind::List, Kind::Map, Kind::Object, Kind::Function];
    const SCALARS: [Kind; 3] = [Kind::Number, Kind::Text, Kind::Boolean];

    fn letter(self) -> char {
        match self {
            Kind::Number => 'n',
            Kind::Text => 's',
            Kind::Boolean => 'b',
            Kind::List => 'l',
            Kind::Map => 'm',
            Kind::Object => 'o',
            Kind::Function => 'f',
            Kind::Any => 'v',
        }
    }
}

/// The way in which a script uses KEYS, or ARGV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Not,
    /// It reads elements and the length.
    Elements,
    /// It uses the list as any table.
    Freely,
}

/// The decisions that are made before a script.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub keys: Use,
    pub argv: Use,
    /// Whether it assigns to globals.
    pub sets_globals: bool,
    /// Whether it makes code, or mentions `_G`.
    pub makes_code: bool,
    /// Whether errors of statements are often left uncaught.
    pub is_bold: bool,
    /// Whether it raises tables without a text.
    ///
    /// One that nothing catches ends redis-server. So a script either raises such tables or leaves errors
    /// uncaught.
    pub raises_tables: bool,
}

impl Plan {
    fn new(random: &mut Random) -> Self {
        let list = |random: &mut Random| match random.below(4) {
            0 => Use::Not,
            1 | 2 => Use::Elements,
            _ => Use::Freely,
        };
        let is_bold = random.one_in(3);
        Plan {
            keys: list(random),
            argv: list(random),
            sets_globals: random.one_in(4),
            makes_code: random.one_in(4),
            is_bold,
            raises_tables: !is_bold,
        }
    }
}

/// The generator of one script.
pub struct Generator<'r> {
    pub random: &'r mut Random,
    pub plan: Plan,
    /// The local variables in scope.
    pub locals: Vec<(String, Kind)>,
    pub n_names: usize,
    pub has_varargs: bool,
    /// Whether `coroutine.yield` makes sense here.
    pub in_coroutine: bool,
    /// The number of variables with tables that the present statement may still use.
    ///
    /// A value that is made of the same tables again and again would grow without bounds.
    pub n_tables: usize,
    /// The depth to which statements are nested.
    pub depth: usize,
}

/// The beginning of every script. `tick` ends long loops, and `emit` notes values exactly.
///
/// It avoids these differences:
///
/// - Keys that are tables come in the order of their addresses, so their entries are sorted.
/// - The length of an array with holes depends on the room that was made for it. The engine makes room for a
///   whole reply, and for all keys and arguments. So the length is not shown, and no statement leaves holes
///   in KEYS and ARGV.
pub const PRELUDE: &str = r#"local out, n_ticks, n_shown = {}, 0, 0
local function tick() n_ticks = n_ticks + 1 if n_ticks > 1500 then error('enough', 0) end end
local function pack(...) return {n = select('#', ...), ...} end
local function show(v, depth)
  depth, n_shown = depth or 0, n_shown + 1
  if n_shown > 20000 or depth > 8 then return 'more' end
  if type(v) == 'number' then return string.format('%.17g', v) end
  if type(v) == 'string' then return string.format('%q', v) end
  if type(v) == 'boolean' or v == nil then return tostring(v) end
  if type(v) ~= 'table' then return type(v) end
  local parts, n, has_order = {}, 0, true
  for k, item in pairs(v) do
    parts[#parts + 1] = show(k, depth + 1) .. '=' .. show(item, depth + 1)
    if type(k) == 'number' then n = n + 1 elseif type(k) == 'table' then has_order = false end
  end
  if not has_order then table.sort(parts) end
  return (n == #v and '#' .. n or '') .. '{' .. table.concat(parts, ',') .. '}'
end
local function emit(...)
  local parts, n = {}, select('#', ...)
  for i = 1, n do parts[i] = show((select(i, ...))) end
  out[#out + 1] = table.concat(parts, ' ')
end
"#;

/// The length of a script's prelude, or of the whole script if it has none.
pub fn prelude_len(source: &str) -> usize {
    source.find(PRELUDE).map_or(source.len(), |at| at + PRELUDE.len())
}

/// A random script.
pub fn script(random: &mut Random) -> String {
    let plan = Plan::new(random);
    let mut generator = Generator {
        random,
        plan,
        locals: Vec::new(),
        n_names: 0,
        has_varargs: true,
        in_coroutine: false,
        n_tables: 0,
        depth: 0,
    };
    let n_statements = 1 + generator.random.below(12);
    let mut source = String::from(if generator.random.one_in(30) { "#!lua\n" } else { "" });
    source.push_str(PRELUDE);
    for _ in 0..n_statements {
        source.push_str(&generator.statement());
        source.push('\n');
    }
    source.push_str(&generator.ending());
    if generator.random.one_in(60) { broken(generator.random, source) } else { source }
}

/// A run of a script with random keys and arguments.
pub fn run(random: &mut Random, source: String) -> Run {
    Run {
        source,
        keys: texts(random, &["k1", "k2", "k3", "", "k1", "{tag}k", "k\0y"]),
        argv: texts(random, &["10", "a1", "", "3.5", "-7", "0x10", "x\r\ny", "1e300", "nil", "\0", "[1,2]"]),
        resp: if random.one_in(2) { Resp::V3 } else { Resp::V2 },
        is_kept: random.one_in(2),
    }
}

/// A few texts, mostly. Sometimes they are more or longer than those lent to scripts.
fn texts(random: &mut Random, choices: &[&str]) -> Vec<Vec<u8>> {
    let n_texts = match random.below(12) {
        0 => 60 + random.below(10),
        1 => 0,
        _ => random.below(7),
    };
    let mut texts: Vec<Vec<u8>> = (0..n_texts).map(|_| random.pick(choices).into()).collect();
    if n_texts > 0 && random.one_in(12) {
        let at = random.below(n_texts);
        texts[at] = vec![b'x'; 250 + random.below(12)];
    }
    texts
}

/// A source in which something is missing, or is superfluous.
fn broken(random: &mut Random, source: String) -> String {
    let words: Vec<&str> = source.split(' ').collect();
    let at = random.below(words.len());
    let extra = random
        .pick(&["", "end", "(", ")", "=", "..", "'", "[==[", "then", "1x", "@", "\\", "0x", "function", "~"]);
    [&words[..at], &[extra], &words[at + 1..]].concat().join(" ")
}

impl Generator<'_> {
    pub fn one_in(&mut self, n: usize) -> bool {
        self.random.one_in(n)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.random.below(end)
    }

    pub fn pick<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        self.random.pick(choices)
    }

    /// One of the words of a text.
    pub fn word_of<'a>(&mut self, words: &'a str) -> &'a str {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.pick(&words)
    }

    /// A random template, filled.
    pub fn form(&mut self, templates: &[&str], depth: usize) -> String {
        let template = self.pick(templates);
        self.fill(template, depth)
    }

    /// A random template, filled, with `@` replaced by a name.
    pub fn form_of(&mut self, templates: &[&str], name: &str, depth: usize) -> String {
        let template = self.pick(templates).replace('@', name);
        self.fill(&template, depth)
    }

    /// Fills a template.
    ///
    /// Of `` `a|b` `` one choice stays, and `$` with a letter becomes an expression, see
    /// [`Generator::filling`]. Functions in the template do not use `...`.
    pub fn fill(&mut self, template: &str, depth: usize) -> String {
        if self.has_varargs && template.contains("function") {
            return self.inner(|this| this.fill(template, depth));
        }
        let (mut made, mut rest) = (String::new(), template);
        while let Some(at) = rest.find(['$', '`']) {
            made.push_str(&rest[..at]);
            let (is_choice, after) = (rest[at..].starts_with('`'), &rest[at + 1..]);
            if is_choice {
                let (choices, after) = after.split_once('`').expect("choices have an end");
                let choices: Vec<&str> = choices.split('|').collect();
                made.push_str(&self.form(&choices, depth));
                rest = after;
            } else {
                made.push_str(&self.filling(after.as_bytes()[0], depth));
                rest = &after[1..];
            }
        }
        // An expression that stands for several values may be empty.
        (made + rest).replace(", )", ")")
    }

    /// The expression for a letter in a template.
    fn filling(&mut self, letter: u8, depth: usize) -> String {
        match letter {
            b'n' => self.expression(Kind::Number, depth),
            b's' => self.expression(Kind::Text, depth),
            b'b' => self.expression(Kind::Boolean, depth),
            b'l' => self.expression(Kind::List, depth),
            b'm' => self.expression(Kind::Map, depth),
            b'v' => self.expression(Kind::Any, depth),
            b'x' => self.scalar(depth),
            // This is never a table: one that nothing catches ends redis-server.
            b'g' => self.text(depth),
            b'p' => self.operand(depth),
            b'j' => self.piece(depth),
            b'k' => self.key(),
            b'e' => self.element().unwrap_or_else(|| self.text(depth)),
            b'#' => self.count(),
            b'F' => self.formatted(depth),
            b'P' => self.pattern(),
            b'M' => self.map(0),
            b'C' => self.command_call(),
            b'c' => self.command(),
            b'V' => self.elements(3, depth),
            b'X' => self.scalars(3),
            b'E' => self.raising(),
            b'r' => self.result(depth.saturating_sub(1)),
            b'T' => self.result_table(depth),
            // This is never nil, which would leave a hole.
            b'w' => self.fill("($s or 7)", 0),
            b'd' => self.below(5).to_string(),
            b'D' => self.below(50).to_string(),
            b'R' => self.fill(parts::ROW, 0),
            b'J' => self.fill(parts::JSON, 0),
            b'Y' => self.fill(parts::PACKED, 0),
            _ => unreachable!("no letter of templates: {}", letter as char),
        }
    }

    pub fn any_kind(&mut self) -> Kind {
        Kind::ALL[self.below(Kind::ALL.len())]
    }

    pub fn scalar_kind(&mut self) -> Kind {
        Kind::SCALARS[self.below(Kind::SCALARS.len())]
    }

    /// A name that no variable has.
    pub fn new_name(&mut self, kind: Kind) -> String {
        self.n_names += 1;
        format!("{}{}", kind.letter(), self.n_names)
    }

    /// Adds a variable to the scope.
    pub fn declare(&mut self, name: &str, kind: Kind) {
        self.locals.push((name.to_owned(), kind));
    }

    /// A variable in scope of this kind, if there is one.
    pub fn variable(&mut self, kind: Kind) -> Option<String> {
        let fits = |of: &Kind| *of == kind || kind == Kind::Any && *of != Kind::Function;
        let names: Vec<&String> =
            self.locals.iter().filter(|(_, of)| fits(of)).map(|(name, _)| name).collect();
        if names.is_empty() {
            return None;
        }
        Some(names[self.random.below(names.len())].clone())
    }

    /// Makes a part with a scope of its own.
    pub fn scope<R>(&mut self, make: impl FnOnce(&mut Self) -> R) -> R {
        let n_locals = self.locals.len();
        self.depth += 1;
        let made = make(self);
        self.depth -= 1;
        self.locals.truncate(n_locals);
        made
    }

    /// Makes a part within a function that has no `...`.
    pub fn inner<R>(&mut self, make: impl FnOnce(&mut Self) -> R) -> R {
        let had_varargs = std::mem::take(&mut self.has_varargs);
        let made = make(self);
        self.has_varargs = had_varargs;
        made
    }

    /// Makes the body of a function.
    pub fn function_scope<R>(&mut self, has_varargs: bool, make: impl FnOnce(&mut Self) -> R) -> R {
        let before = std::mem::replace(&mut self.has_varargs, has_varargs);
        let made = self.scope(make);
        self.has_varargs = before;
        made
    }
}
