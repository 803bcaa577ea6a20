//! The expressions of generated scripts.

use super::cases;
use super::generator::{Generator, Kind, Use};
use super::known;

const NUMBERS: &str = "0 1 2 3 7 10 100 255 65536 -1 -3 0.5 .5 1.5 3.0 4.35 -2.75 0.1 1/3 1e2 1e14 1e15 1e16 0x10 0xff 99999999999999 \
    999999999999999 123456789012 123456789012345 2^31 2^32 -2^31 2^53 -2^53 2^53+1 2^63 -2^63 2^64 1e100 -1e100 1e308 5e-324 1e-7 -0 \
    0/0 1/0 -1/0";

#[rustfmt::skip]
const TEXTS: &[&str] = &[
    "''", "'a'", "'f'", "'abc'", "'aAbBcC'", "'hello world'", "'k1'", "'k2'", "'10'", "'0x1F'", "' 7 '", "'1e3'", "'-5.25'", "'1e400'",
    "'nan'", "'inf'", "'a,b,,c'", "'key=value; x=y'", "'%d %s'", "'((x)(y))'", "'.*'", "'\\0\\1\\255'", "'line\\nline'", "'\\r\\n'",
    "[=[long\n]]text]=]", "[==[a]]b]==]", "\"it's\"", "'\u{e9}'", "'{\"a\":[1,2,{\"b\":null}]}'", "'[1,2.5,\"x\",true]'", "'\\145\\1'",
    "'ERR x'", "'-CODE text'",
];

const PATTERNS: &str = "'%a+' '%w' '.' '(%a)(%d*)' '[^,]*' '^%s*(.-)%s*$' 'l+' '%d+' '()' '%b()' '(%w+)=(%w+)' '' 'x*' '%s' '[%a_]+' 'a'";

const BUILTINS: &str = "string.upper string.len string.rep string.format string.byte string.char string.gsub string.sub string.find \
    string.reverse type math.floor math.abs math.max math.fmod math.random tonumber select rawequal ipairs assert table.concat \
    table.maxn table.insert table.remove table.sort unpack rawget rawset next pairs getmetatable setmetatable pcall xpcall load \
    loadstring coroutine.wrap coroutine.create coroutine.resume cjson.encode cjson.decode cmsgpack.pack cmsgpack.unpack bit.bnot \
    struct.pack struct.unpack redis.sha1hex redis.call redis.pcall redis.acl_check_cmd";

/// The values that are mostly not the expected ones.
const ODD: &[&str] =
    &["nil", "nil", "{}", "true", "false", "'x'", "''", "cjson.null", "type", "1.5", "-1", "{{}}"];

const NUMBER_FORMS: &[&str] = &[
    "($p `+|-|*|/|%|^` $p)",
    "($p `+|-|*|/|%|^` $p)",
    "($p `+|-|*|/|%|^` $p)",
    "($p `+|-|*|/|%|^` $p)",
    "-($n)",
    "#($s)",
    "#($l)",
    "$#",
    "$#",
    "(tonumber($p`||, 16|, 2|, 36|, 10|, 37|, 8`) or -1)",
    "math.`floor|ceil|abs|sqrt|exp|log|log10|sin|cos|tan|atan|deg|rad|sinh`($n)",
    "math.`floor|ceil|abs|sqrt|exp|log|log10|sin|cos|tan|atan|deg|rad|sinh`($n)",
    "math.`max|min|fmod|pow|ldexp|atan2`($n, $n)",
    "(($s):byte(`|2|-1|9`) or 0)",
    "bit.`band|bor|bxor|lshift|rol`($n, `1|3|31|-1|2^33|0.5`)",
    "($b and $n or $n)",
];

const TEXT_FORMS: &[&str] = &[
    "($j .. $j)",
    "($j .. $j)",
    "($j .. $j)",
    "tostring($p `+|-|*|/|%|==|..|<` $p)",
    "$F",
    "$F",
    "$F",
    "($s):`upper|lower|reverse|len`()",
    "($s):rep(`0|1|2|3|'2'|-1|1.9`)",
    "($s):sub(`1|2|-3|0|9|'2'``|, -1|, 3|, -2|, 0`)",
    "string.char(`65|0|255|10|'66'`, `97|34|92|200|48|13`)",
    "(($s):gsub($P, `'<%0>'|'%1'|''|string.upper|{a = $n, l = 1}|function(a) return $n end|'%%'|$n|$n`))",
    "table.concat($l, `','|''|', '|1|nil`)",
    "type($v)",
    "redis.sha1hex($s)",
    "cjson.encode($v)",
    "cmsgpack.pack($v)",
    "struct.pack(`'>I2'|'<d'|'b'|'>i8'|'f'`, $n)",
    "(tostring(($s):match($P)))",
    "bit.tohex($n)",
    "$e",
    "($e or 'none')",
];

const BOOLEAN_FORMS: &[&str] = &[
    "($n `<|<=|>|>=|==|~=` $n)",
    "($n `<|<=|>|>=|==|~=` $n)",
    "($s `<|<=|>|>=|==|~=` $s)",
    "not ($x)",
    "($b `and|or` $x)",
    "rawequal($x, $x)",
];

/// A metamethod that does anything.
const METAMETHOD: &str = "__`index|call|eq|lt|le|concat|add|sub|mul|div|mod|pow|unm|len|tostring` = function(a, b) tick() \
    return `$x|$x|$x|$x|$C|type(b)|error('in a metamethod')|error({err = 'FAIL in a metamethod'})` end";

/// The fields of a metatable.
const METAFIELDS: &[&str] = &[
    METAMETHOD,
    METAMETHOD,
    METAMETHOD,
    "__metatable = $x",
    "__mode = 'k'",
    "`__index|__newindex` = $M",
    "__newindex = function(t, k, v) tick() rawset(t, k, v) end",
    "__tostring = function() return 'shown' end",
    "__`index|call|concat|tostring` = function(a, b) tick() return $x end",
];

/// Expressions that pack and unpack data of `@` parts.
///
/// Their tables are larger than those made at once.
const LARGE_FORMS: &[&str] = &[
    "(function() local t = {} for i = 1, @ do t[i] = $R end return cjson.decode(cjson.encode(t)) end)()",
    "(function() local t = {} for i = 1, @ do t['k' .. i] = $R end return cmsgpack.unpack(cmsgpack.pack(t)) end)()",
    "(function() local t = {} for i = 1, @ do t[i] = $R end return cmsgpack.unpack(cmsgpack.pack(t, 1, t)) end)()",
    "cjson.decode('[' .. ($J .. ','):rep(@) .. $J .. ']')",
    "cmsgpack.unpack(struct.pack('>BH', 220, @) .. ($Y):rep(@))",
    "#pack(cmsgpack.unpack(($Y):rep(@)))",
];

/// A row of a table of large data. The next two are values in JSON and in MessagePack.
pub const ROW: &str =
    "`1|'x'|{}|{a=i}|{i, {i, 'y'}}|{n=i, t='\"' .. i, list={i, {i}}}|i % 3 == 0|{{{i}}}|{[i]=i}|cjson.null`";
pub const JSON: &str = "'`1|[]|{}|\"a\\\\n\"|{\"a\":[1,{\"b\":2}]}|null|[[[0]]]|[1,2|{\"a\"}|1e5`'";
pub const PACKED: &str = "'`\\1|\\145\\1|\\129\\161a\\2|\\192|\\146\\1\\129\\1\\144|\\161x|\\203\\1`'";

impl Generator<'_> {
    /// An expression of a kind.
    pub fn expression(&mut self, kind: Kind, depth: usize) -> String {
        let is_table = !matches!(kind, Kind::Number | Kind::Text | Kind::Boolean | Kind::Function);
        if (!is_table || self.n_tables > 0)
            && self.one_in(2)
            && let Some(name) = self.variable(kind)
        {
            self.n_tables -= usize::from(is_table);
            return name;
        }
        if self.one_in(50) {
            return self.odd();
        }
        match kind {
            Kind::Number => self.number(depth),
            Kind::Text => self.text(depth),
            Kind::Boolean => self.boolean(depth),
            Kind::List => self.list(depth),
            Kind::Map => self.map(depth),
            Kind::Object => self.object(depth),
            Kind::Function => self.function(depth),
            Kind::Any if self.one_in(10) => self.odd(),
            Kind::Any => {
                let kind = self.any_kind();
                self.expression(kind, depth)
            }
        }
    }

    pub fn odd(&mut self) -> String {
        self.pick(ODD).to_owned()
    }

    pub fn scalar(&mut self, depth: usize) -> String {
        let kind = self.scalar_kind();
        self.expression(kind, depth)
    }

    /// A scalar that may be a key, and so is not NaN.
    pub fn key(&mut self) -> String {
        match self.below(6) {
            0 => self.fill("`1|2|3|5|-1|1.5|2^40|'a'|'1'|true|0`", 0),
            1 => known::short(&self.expression(Kind::Text, 1)),
            2 | 3 => format!("{}", 1 + self.below(8)),
            _ => self.fill("`'a'|'b'|'n'|'err'|'ok'|'long_key'`", 0),
        }
    }

    pub fn number(&mut self, depth: usize) -> String {
        if depth > 0 && !self.one_in(4) {
            return self.form(NUMBER_FORMS, depth - 1);
        }
        let number = self.word_of(NUMBERS);
        if number.contains(['-', '/', '^', '+']) { format!("({number})") } else { number.to_owned() }
    }

    pub fn text(&mut self, depth: usize) -> String {
        if depth > 0 && !self.one_in(4) {
            return self.form(TEXT_FORMS, depth - 1);
        }
        format!("({})", self.pick(TEXTS))
    }

    fn boolean(&mut self, depth: usize) -> String {
        if depth > 0 && !self.one_in(4) {
            return self.form(BOOLEAN_FORMS, depth - 1);
        }
        self.fill("`true|false|nil|not nil|1 == 1|'a' < 'b'|0/0 == 0/0`", 0)
    }

    /// A number, or sometimes a text that may read as one.
    pub fn operand(&mut self, depth: usize) -> String {
        match self.below(8) {
            0 if self.one_in(10) => self.fill("$e", depth),
            0 => self.fill("(`'10'|'0x1F'|' 7 '|'1e3'|'-5.25'|'1e400'|'-0'`)", depth),
            1 => match self.element() {
                Some(element) => format!("(tonumber({element}) or {})", self.below(5)),
                None => self.number(depth),
            },
            _ => self.expression(Kind::Number, depth),
        }
    }

    /// An expression that can be joined with others to a text.
    pub fn piece(&mut self, depth: usize) -> String {
        if self.one_in(3) { format!("({})", self.operand(depth)) } else { self.expression(Kind::Text, depth) }
    }

    pub fn pattern(&mut self) -> String {
        self.word_of(PATTERNS).to_owned()
    }

    /// `KEYS` or `ARGV`, if the script may use one of them in this way.
    pub fn given(&mut self, freely: bool) -> Option<&'static str> {
        let may = |of: Use| of == Use::Freely || of == Use::Elements && !freely;
        let lists = [("KEYS", self.plan.keys), ("ARGV", self.plan.argv)];
        let lists: Vec<&'static str> =
            lists.into_iter().filter(|(_, of)| may(*of)).map(|(name, _)| name).collect();
        if lists.is_empty() { None } else { Some(lists[self.below(lists.len())]) }
    }

    /// An element of `KEYS` or `ARGV`, if the script may read any.
    pub fn element(&mut self) -> Option<String> {
        let list = self.given(false)?;
        let at = self.fill("`1|1|1|2|2|3|5|65|0|-1|1.5|'1'|'x'`", 0);
        Some(if self.one_in(6) { format!("{list}[#{list}]") } else { format!("{list}[{at}]") })
    }

    /// The number of elements of a list or of the varargs.
    pub fn count(&mut self) -> String {
        match self.given(false) {
            Some(list) if self.one_in(2) => format!("#{list}"),
            _ if self.has_varargs => self.fill("`select('#', ...)|#{...}`", 0),
            _ => self.number(0),
        }
    }

    /// A call of `string.format`.
    pub fn formatted(&mut self, depth: usize) -> String {
        let (mut format, mut arguments) = (String::new(), String::new());
        for _ in 0..1 + self.below(3) {
            let flags = self.random.join(2, &["", "-", "+", " ", "#", "0"]);
            let size = self.fill("`|||5|12|99|1``|||.0|.3|.17|.|.99`", 0);
            let conversion = self.word_of("d d i s s s q f g g e E G x X o u c % %");
            let conversion = if self.one_in(40) { self.word_of("y a 5s .") } else { conversion };
            if conversion == "%" {
                format.push_str("%%");
                continue;
            }
            format.push_str(&format!("%{flags}{size}{conversion}|"));
            let argument = match conversion {
                "s" | "q" | "5s" => self.piece(depth),
                "x" | "X" | "o" | "u" => self.fill("`0|255|3.99|2^31|2^40|'16'|1e15`", 0),
                "c" => self.fill("`65|0|200|321|'66'`", 0),
                _ => self.expression(Kind::Number, depth),
            };
            if !self.one_in(40) {
                arguments.push_str(&format!(", {argument}"));
            }
        }
        format!("string.format('{format}'{arguments})")
    }

    /// Elements for a table or a call, one after the other.
    pub fn elements(&mut self, max: usize, depth: usize) -> String {
        let n_elements = self.below(max + 1);
        let elements: Vec<String> = (0..n_elements).map(|_| self.expression(Kind::Any, depth)).collect();
        elements.join(", ")
    }

    pub fn scalars(&mut self, max: usize) -> String {
        let kind = self.scalar_kind();
        let n_scalars = self.below(max + 1);
        let scalars: Vec<String> = (0..n_scalars).map(|_| self.expression(kind, 1)).collect();
        scalars.join(", ")
    }

    pub fn list(&mut self, depth: usize) -> String {
        match self.below(10) {
            0 if depth > 0 => format!("{{{}}}", self.elements(5, depth - 1)),
            1 => self.fill("{$x, nil, $x}", 0),
            2 if self.has_varargs => self.fill("{`...|1, ...|..., 2`}", 0),
            3 => self.fill("{($s):byte(1, 9)}", 1),
            4 => "cjson.decode('[3,1,2,[4]]')".to_owned(),
            5 => match self.given(true) {
                Some(list) if self.n_tables > 0 && self.one_in(4) => list.to_owned(),
                Some(list) => self.form_of(&["{unpack(@, 1, 5)}", "{@[1], @[2]}"], list, 0),
                None => "{1, 2, 3}".to_owned(),
            },
            6 => self.fill("{`|5, 3, 9, 1, 7|'b', 'a', 'c'|[1] = 1, [2] = 2, [4] = 4|1.5, -2`}", 0),
            _ => format!("{{{}}}", self.scalars(6)),
        }
    }

    pub fn map(&mut self, depth: usize) -> String {
        match self.below(8) {
            0 => "cjson.decode('{\"a\":1,\"b\":[1,2],\"n\":null,\"10\":\"x\"}')".to_owned(),
            1 => self.fill("{`|err = 'FAIL y'|ok = 'fine'|a = 1, 'x', b = 2, 'y'|err = 12`}", 0),
            _ => {
                let n_fields = self.below(6);
                let fields: Vec<String> = (0..n_fields).map(|_| self.field(depth)).collect();
                format!("{{{}}}", fields.join(", "))
            }
        }
    }

    fn field(&mut self, depth: usize) -> String {
        let key = self.key();
        let value = if depth > 0 { self.expression(Kind::Any, depth - 1) } else { self.scalar(0) };
        match &key[..] {
            "'ok'" | "'err'" | "'long_key'" => format!("{} = {value}", key.trim_matches('\'')),
            _ => format!("[{key}] = {value}"),
        }
    }

    /// A table with a metatable.
    pub fn object(&mut self, depth: usize) -> String {
        let (fields, metatable) = (self.scalars(2), self.metatable(depth));
        format!("setmetatable({{{fields}}}, {metatable})")
    }

    pub fn metatable(&mut self, depth: usize) -> String {
        let n_fields = 1 + self.below(5);
        let fields: Vec<String> = (0..n_fields).map(|_| self.form(METAFIELDS, depth.min(1))).collect();
        format!("{{{}}}", fields.join(", "))
    }

    pub fn function(&mut self, depth: usize) -> String {
        if depth == 0 || self.one_in(4) {
            return match self.below(20) {
                0 if self.plan.raises_tables => "error".to_owned(),
                _ => self.word_of(BUILTINS).to_owned(),
            };
        }
        self.function_scope(false, |this| {
            this.declare("a", Kind::Any);
            this.declare("b", Kind::Any);
            let n_tables = std::mem::take(&mut this.n_tables);
            let made = this.fill("function(a, b) tick() return `$v|$v|$v|$C` end", depth - 1);
            this.n_tables = n_tables;
            made
        })
    }

    /// A call of one of the libraries. Many of these calls are wrong.
    pub fn library_call(&mut self) -> String {
        let make = match self.below(8) {
            0 => cases::structure,
            1 => cases::bits,
            2 | 3 => cases::json_decode,
            4 => cases::json_encode,
            5 => cases::pack,
            6 => cases::pattern,
            _ => cases::unpack,
        };
        let call = make(self.random).replace("unordered(", "(");
        if self.plan.raises_tables { call } else { call.replace("error({'t'})", "error('t')") }
    }

    /// Calls of the libraries with large data.
    pub fn large(&mut self) -> String {
        let n = self.word_of("150 341 342 511 512 1023 1024 1025 2000");
        self.form_of(LARGE_FORMS, n, 0)
    }
}
