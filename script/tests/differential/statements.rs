//! The statements of generated scripts.
//!
//! Each is on lines of its own, so scripts can be shortened by lines. If a line needs something to come to an
//! end, that is on the same line.

use super::generator::{Generator, Kind};

/// The greatest depth to which statements nest.
const MAX_DEPTH: usize = 3;

/// The statements about a table `@`.
///
/// No table is put into another that already exists, so there are no circles.
const TABLE_FORMS: &[&str] = &[
    "@[$k] = $x",
    "@[$k] = $x",
    "@[$k] = $x",
    "@[#@ + 1] = $x",
    "emit(pcall(function() table.insert(@, $x) end))",
    "table.insert(@, $d, $x)",
    "emit(table.remove(@), #@)",
    "emit(table.remove(@, $d), #@)",
    "emit(pcall(function() table.sort(@) end))",
    "emit(pcall(function() table.sort(@, function(a, b) tick() return \
        `a < b|a > b|tostring(a) < tostring(b)|true|#a < #b|a <= b|nil|type(a) < type(b)` end) end))\nemit(@)",
    "emit(pcall(table.concat, @, ',', $d))",
    "emit(unpack(@, $d, 6))",
    "emit(next(@), #@, table.maxn(@))",
    "for k, v in pairs(@) do tick()\n@[k] = $x\nend",
    "for k in next, @ do tick()\n@[k] = nil\nend\nemit(@)",
    "for i, v in ipairs(@) do tick()\nemit(i, v)\nend",
    "emit(rawget(@, $k), rawequal(@, @), @[$k])",
    "rawset(@, $k, $x)\nemit(@)",
    "table.foreach(@, function(k, v) tick()\nemit(k, v)\nend)",
    "emit(@)",
];

/// The ways to run a command. The last form does not catch its error.
const COMMAND_FORMS: &[&str] = &[
    "emit(redis.pcall($c))",
    "emit(redis.pcall($c))",
    "emit(redis.pcall($c))",
    "emit(pcall(redis.call, $c))",
    "emit(pcall(function() return redis.call($c) end))",
    "emit(xpcall(function() return redis.call($c) end, function(e) return type(e) == 'table' and e.err or e end))",
    "redis.setresp(`3|3|3|2|'3'|2.9`)\nemit(redis.pcall($c))",
    "emit(redis.call($c))",
];

/// Statements that read globals, or are refused.
const GLOBAL_FORMS: &[&str] = &[
    "emit(type(string), type(redis.call), type(redis.nosuch), type(math.pi), _VERSION)",
    "emit(pcall(function() redis.field = $x end))",
    "emit(pcall(function() string.rep = $x end))",
    "emit(pcall(function() rawset(`redis|string|cjson|math|table`, 'field', $x) end))",
    "emit(pcall(function() return `nosuch|x|foo|debug|io|require|print|dofile|getfenv|newproxy|self` end))",
];

/// Statements that set globals, or seem to.
const SET_GLOBAL_FORMS: &[&str] = &[
    "emit(pcall(function() `x|redis|KEYS|ARGV|tostring|_G` = $x end))",
    "emit(pcall(function() local function inner() return function() undeclared = 1 end end inner()() end))",
    "emit(pcall(function() function made() return 1 end return made() end))",
    "local x\nx = $x\nemit(x)",
    "emit(pcall(function() for i = 1, 2 do counter = i end end))",
    "local t = {}\nfunction t.method(self, a) return a end\nfunction t:other(a) return a, self == t end\nemit(t.method(1, 2), t:other(3))",
    "emit(pcall(function() x, y = 1, $x end))",
];

/// Calls of functions with a state, and of the functions of `redis` besides commands.
const HELPER_FORMS: &[&str] = &[
    "math.randomseed(`1|42|-1|1.5|'7'|2^31|0|1e100`)",
    "emit(math.random(), math.random(100), math.random(5, 9), math.random(-3, 3))",
    "emit(pcall(function() return math.random(`|$p|$p, $p|$p, $p, $p`) end))",
    "emit(redis.error_reply($s))",
    "emit(redis.status_reply($s))",
    "emit(pcall(redis.error_reply, $s, $X))",
    "emit(pcall(redis.status_reply, `|1|nil|{}|true|'a', 'b'|type`))",
    "emit(pcall(redis.sha1hex, $X))",
    "emit(pcall(function() redis.setresp(`2|3|4|'x'|nil|{}`) end))",
    "emit(pcall(function() redis.log(`redis.LOG_DEBUG, 'x'|1|9, 'x'|'a', 'b'|0, 'a', 1, {}, nil|-1, 'x'`) end))",
    "emit(pcall(redis.acl_check_cmd, `'get', 'k1'|'SET', 'k1', 1|'nosuch'|{}|nil|'hset', 'a'`))",
    "emit(pcall(function() redis.set_repl(`redis.REPL_ALL|3|9|'x'|1, 2`) end))",
    "emit(redis.replicate_commands(), redis.breakpoint(), (redis.debug('x')))",
    "emit(select('#', pcall(error)), select('#', pcall(error, 'x', 0)), select('#', pcall(type, 1)))",
    "emit(select(`1|2|-1|'#'|'2'|1.5`, $V))",
    "emit(pcall(function() return cjson.`encode_max_depth|decode_max_depth|encode_sparse_array|encode_invalid_numbers|\
        encode_number_precision|decode_invalid_numbers|encode_keep_buffer`(`|3|1000|14|true|false|'null'|true, 2, 10|'x'|nil`) end))",
];

/// Expressions with an object `@`, whose metatable another object `&` shares.
const OBJECT_FORMS: &[&str] = &[
    "@ `+|-|*|/|%|^|..` `&|$x|{}`",
    "`&|$x|{}` `+|-|*|/|%|^|..` @",
    "@ `==|~=|<|<=|>|>=` `&|$x|{}`",
    "@ `==|~=|<|<=|>|>=` &",
    "@.field",
    "@[$k]",
    "@(`&|$x|{}`)",
    "@:method(1)",
    "#@",
    "-@",
    "(tostring(@):gsub('0x%x+', ''))",
    "getmetatable(@)",
    "(setmetatable(@, {}))",
    "(function() @.new = `&|$x|{}` return rawget(@, 'new') end)()",
    "table.concat({@}, ',')",
];

/// Calls that take a function `&` of the script.
const CALLBACK_FORMS: &[&str] = &[
    "($s):gsub('%w', &, 3)",
    "($s):gsub('%w', &, 3)",
    "table.sort({3, 1, 2}, &)",
    "setmetatable({}, {__index = &}).field",
    "setmetatable({}, {__lt = &, __concat = &}) .. 'x'",
    "(tostring(setmetatable({}, {__tostring = &})):gsub('0x%x+', ''))",
    "table.foreach({1, a = 2}, &)",
    "(function() for k in &, 1, nil do tick() break end end)()",
    "setmetatable({}, {__call = &, __newindex = &})(1)",
];

/// Code that the script compiles.
const CODE: &str = "\"`return KEYS|return #ARGV, ARGV[1]|KEYS[1] = 1 return KEYS[1]|x = 1|return ...|return x|x x|error('made')|\
    return redis.call('GET', 'k1')|local a = {} a.b.c = 1|return _G.KEYS|\\nerror({err = 'FAIL made'})|return 1 +|KEYS = {}|\
    return function() y = 2 end|for i = 1, 2 do ARGV[i] = i end return ARGV`\"";

/// The ways to compile the code `&`, and statements with the globals' table.
const CODE_FORMS: &[&str] = &[
    "emit(pcall(function() return loadstring(&`||, '=made'|, '@made'|, 'made'`)(1, 2) end))",
    "emit(pcall(function() return loadstring(&`||, '=made'|, '@made'|, 'made'`)(1, 2) end))",
    "emit((loadstring(&`||, '=made'|, 'made'`)))",
    "local n_pieces = 0\nemit(pcall(function() return load(function() n_pieces = n_pieces + 1 return ({&, ' '})[n_pieces] end\
        `||, '=made'|, 'made'`)(1) end))",
    "emit(pcall(function() return _G.KEYS, _G.redis == redis, _G._G == _G, rawget(_G, 'ARGV'), _G.nosuch end))",
    "emit(pcall(function() `_G.x = |_G.KEYS = |_G['redis'] = |getmetatable(_G).__index = `$x end))",
];

/// A function `@` that calls itself.
const RECURSION_FORMS: &[&str] = &[
    "local function @(n) if n <= 0 then return $x end\nlocal r = @(n - 1)\nreturn r\nend\nemit(pcall(@, $D))",
    "local function @(n) if n <= 0 then error($g) end return @(n - 1) end\nemit(pcall(@, $D))",
    "local function @(n) if n <= 0 then error($g, $d) end\nlocal r = @(n - 1)\nreturn r end\nemit(pcall(@, 3 + $d))",
    "local function @() return 1 + @() end\nemit(pcall(@))",
    "local function @(n) if n > 0 then return pcall(@, n - 1) end error($g) end\nemit(@(3 * $d))",
];

/// The functions through which an error of a function `&` passes.
const PASSAGE_FORMS: &[&str] = &[
    "function() return coroutine.wrap(&)() end",
    "function() return ('abc'):gsub('b', &) end",
    "function() table.sort({2, 1}, &) end",
    "function() return setmetatable({}, {__index = &}).x end",
    "function() local ok, e = pcall(&) error(e, 0) end",
    "function() local ok, e = xpcall(&, function(e) return e end) error(e) end",
    "function() local ok, e = coroutine.resume(coroutine.create(&)) error(e, 1) end",
    "function() return assert((pcall(&))) end",
    "function() local e = {pcall(&)} return e[2] end",
];

/// The ways to run a function with the rest `&` in protected mode.
const PROTECTED_FORMS: &[&str] = &[
    "emit(xpcall(function&, `function(e) return e end|tostring|type|function(e) return {e} end|function(e) error('again') end|\
        function(e) return redis.pcall('GET', 'k1') end|function() end|error|nil|1`))",
    "local ok, problem = pcall(function&)\nif not ok and problem ~= 'enough' then error(problem, 0) end",
    "emit(pcall(function&, $X))",
    "emit(pcall(function&, $X))",
];

/// The ways to run a coroutine `@` of a function with the rest `&`.
const COROUTINE_FORMS: &[&str] = &[
    "local @ = coroutine.wrap(function&)\nemit(pcall(@))\nemit(pcall(@))",
    "local @ = coroutine.create(function&)\n\
        emit(coroutine.resume(coroutine.create(function() return coroutine.resume(@) end)))\nemit(coroutine.status(@))",
    "for v in coroutine.wrap(function&) do tick()\nemit(v)\nend",
    "local @ = coroutine.create(function&)\nemit(coroutine.resume(@, $X))\nemit(coroutine.resume(@, $X))\n\
        emit(coroutine.status(@), coroutine.running())",
];

/// The heads of loops with a number `@`, and their ends.
const LOOP_FORMS: &[(&str, &str)] = &[
    ("for @ = `1, 3|3, 1, -1|0, 1, 0.25|1, 0|-1, 1|'1', 2|1, 2^53, 2^52|1, 3, 0.7` do tick()", "end"),
    ("for @ = `1, 3|3, 1, -1|0, 1, 0.25|1, 0|-1, 1|'1', 2|1, 2^53, 2^52|1, 3, 0.7` do tick()", "end"),
    ("for @ in `pairs(|ipairs(|next, (``$l|$m`) do tick()", "end"),
    ("for @ in ($s):gmatch(`'%w'|'(%a)(%d)'|'.'|'[^,]+'|'()'|'%b()'`) do tick()", "end"),
    ("local @ = $d while @ > 0 do tick() @ = @ - 1", "end"),
    ("local @ = 0 repeat tick() @ = @ + 1", "until @ > $d"),
    (
        "for @ in (function() local n = 0 return function() n = n + 1 if n < 4 then return n end end end)() do tick()",
        "end",
    ),
];

impl Generator<'_> {
    pub fn statement(&mut self) -> String {
        self.n_tables = 1;
        let is_deep = self.depth >= MAX_DEPTH;
        match self.below(if is_deep { 34 } else { 66 }) {
            6..=8 => self.assignment(),
            9..=13 => self.fill("emit($V)", 3),
            14..=18 => self.changed_table(),
            19..=23 => self.commands(),
            24 => self.caught(Self::library_call),
            25..=28 => self.list_use().unwrap_or_else(|| self.local()),
            29 if self.plan.is_bold => self.raising(),
            30 => self.global(),
            31 | 32 => self.form(HELPER_FORMS, 1),
            33 if self.in_coroutine => self.fill("emit(coroutine.yield($X))", 1),
            34..=37 => self.condition(),
            38..=42 => self.repetition(),
            43..=47 => self.local_function(),
            48..=51 => self.with_function(PROTECTED_FORMS),
            52..=54 => self.coroutine(),
            55..=57 => self.objects(),
            58..=60 => self.callbacks(),
            61 => self.caught(Self::large),
            62 if self.plan.makes_code => {
                let code = self.fill(CODE, 0);
                self.form(CODE_FORMS, 0).replace('&', &code)
            }
            63 => {
                let name = self.new_name(Kind::Function);
                self.form_of(RECURSION_FORMS, &name, 1)
            }
            64 => self.error_passing(),
            65 => self.caught(Self::library_call),
            _ => self.local(),
        }
    }

    /// A few statements.
    pub fn body(&mut self) -> String {
        let n_statements = 1 + self.below(3);
        (0..n_statements).map(|_| self.statement() + "\n").collect()
    }

    /// Notes the values of an expression, or its error.
    fn caught(&mut self, make: impl FnOnce(&mut Self) -> String) -> String {
        let expression = make(self);
        if self.plan.is_bold && self.one_in(3) {
            format!("emit({expression})")
        } else {
            format!("emit(pcall(function() return pack({expression}) end))")
        }
    }

    fn local(&mut self) -> String {
        let kind = self.any_kind();
        let (name, value) = (self.new_name(kind), self.expression(kind, 3));
        self.declare(&name, kind);
        format!("local {name} = {}", limited(kind, value))
    }

    fn assignment(&mut self) -> String {
        let kind = self.scalar_kind();
        let (Some(one), Some(other)) = (self.variable(kind), self.variable(kind)) else {
            return self.local();
        };
        let value = self.expression(kind, 2);
        match self.below(5) {
            0 => format!("{one}, {other} = {other}, {one}"),
            1 => format!("{one}, {other} = {value}"),
            _ => format!("{one} = {}", limited(kind, value)),
        }
    }

    fn changed_table(&mut self) -> String {
        self.n_tables = 0;
        let kind = if self.one_in(2) { Kind::List } else { Kind::Map };
        match self.variable(kind) {
            Some(name) => self.form_of(TABLE_FORMS, &name, 2),
            None => self.local(),
        }
    }

    fn commands(&mut self) -> String {
        let n_commands = 1 + self.below(4);
        let lines: Vec<String> = (0..n_commands).map(|_| self.a_command()).collect();
        lines.join("\n")
    }

    fn a_command(&mut self) -> String {
        if self.one_in(9) {
            let (name, command) = (self.new_name(Kind::Any), self.command());
            self.declare(&name, Kind::Any);
            return format!("local {name} = redis.pcall({command})");
        }
        let n_forms = COMMAND_FORMS.len() - usize::from(!self.plan.is_bold);
        self.form(&COMMAND_FORMS[..n_forms], 1)
    }

    /// Statements about names that are not local variables.
    fn global(&mut self) -> String {
        let (reads, sets) =
            if self.plan.is_bold { ("emit(nosuch)", "x = $x") } else { ("emit(_VERSION)", "local x = $x") };
        let (forms, uncaught) =
            if self.plan.sets_globals { (SET_GLOBAL_FORMS, sets) } else { (GLOBAL_FORMS, reads) };
        if self.one_in(7) { self.fill(uncaught, 0) } else { self.form(forms, 0) }
    }

    fn condition(&mut self) -> String {
        let condition = self.expression(Kind::Boolean, 2);
        let (then, otherwise) = (self.scope(Self::body), self.scope(Self::body));
        match self.below(3) {
            0 => format!("if {condition} then\n{then}end"),
            1 => format!("if {condition} then\n{then}else\n{otherwise}end"),
            _ => {
                let second = self.expression(Kind::Boolean, 1);
                format!("if {condition} then\n{then}elseif {second} then\n{otherwise}end")
            }
        }
    }

    fn repetition(&mut self) -> String {
        let (head, end) = LOOP_FORMS[self.below(LOOP_FORMS.len())];
        let name = self.new_name(Kind::Number);
        let [head, end] = [head, end].map(|form| self.form_of(&[form], &name, 1));
        let body = self.scope(|this| {
            this.declare(&name, Kind::Number);
            let body = this.body();
            if this.one_in(6) { body + &this.fill("if $b then break end\n", 1) } else { body }
        });
        format!("{head}\n{body}{end}")
    }

    /// A function's parameters and its body, from `(` to the line of its `end`.
    fn rest_of_function(&mut self) -> String {
        let has_varargs = self.one_in(2);
        self.function_scope(has_varargs, |this| {
            let kinds = [this.any_kind(), this.any_kind()];
            let names = kinds.map(|kind| this.new_name(kind));
            let n_names = this.below(3);
            let mut parameters = names[..n_names].to_vec();
            for (name, kind) in names.iter().zip(kinds).take(n_names) {
                this.declare(name, kind);
            }
            if has_varargs {
                parameters.push("...".to_owned());
            }
            let mut body = this.body();
            this.n_tables = 1;
            match this.below(5) {
                0 => {}
                1 if has_varargs => body.push_str("return ...\n"),
                _ => body.push_str(&(this.fill("return $V", 2) + "\n")),
            }
            format!("({}) tick()\n{body}end", parameters.join(", "))
        })
    }

    /// A statement that has a function in it.
    fn with_function(&mut self, forms: &[&str]) -> String {
        let rest = self.rest_of_function();
        self.form(forms, 1).replace('&', &rest)
    }

    fn local_function(&mut self) -> String {
        let name = self.new_name(Kind::Function);
        let rest = self.rest_of_function();
        self.declare(&name, Kind::Function);
        self.n_tables = 1;
        let call = self.form_of(
            &[
                if self.plan.is_bold { "emit(@($V))" } else { "emit(pcall(@))" },
                "emit(pcall(@, $V))",
                "emit(xpcall(function() return @($V) end, function(e) return e end))",
                "emit(pcall(function() return pack(@($V)) end))",
            ],
            &name,
            1,
        );
        format!("local function {name}{rest}\n{call}")
    }

    fn coroutine(&mut self) -> String {
        let was_in_coroutine = std::mem::replace(&mut self.in_coroutine, true);
        let rest = self.rest_of_function();
        self.in_coroutine = was_in_coroutine;
        let name = self.new_name(Kind::Any);
        let bold: &[&str] = &["local @ = coroutine.wrap(function&)\nemit(@(1))"];
        let forms = if self.plan.is_bold && self.one_in(5) { bold } else { COROUTINE_FORMS };
        self.form_of(forms, &name, 1).replace('&', &rest)
    }

    /// Tables with a metatable, and operations on them.
    fn objects(&mut self) -> String {
        let [one, other, shared] = [Kind::Object, Kind::Object, Kind::Map].map(|kind| self.new_name(kind));
        let metatable = self.metatable(2);
        let mut made = format!(
            "local {shared} = {metatable}\nlocal {one}, {other} = setmetatable({{1}}, {shared}), setmetatable({{}}, {shared})"
        );
        for _ in 0..1 + self.below(4) {
            let expression = self.pick(OBJECT_FORMS).replace('&', &other);
            let noted = format!("\nemit(pcall(function() return {expression} end))");
            made.push_str(&self.form_of(&[&noted], &one, 0));
        }
        made
    }

    /// Functions that others call, which run commands and raise errors.
    fn callbacks(&mut self) -> String {
        let was_bold = std::mem::replace(&mut self.plan.is_bold, true);
        let function = self.function_scope(false, |this| {
            this.declare("a", Kind::Any);
            this.declare("b", Kind::Any);
            format!("function(a, b) tick()\n{}return {}\nend", this.body(), this.scalar(1))
        });
        self.plan.is_bold = was_bold;
        let call = self.inner(|this| this.form(CALLBACK_FORMS, 1)).replace('&', &function);
        if self.plan.is_bold && self.one_in(4) {
            format!("emit({call})")
        } else {
            format!("emit(pcall(function() local r = {call} return r end))")
        }
    }

    /// An error that passes through several functions.
    fn error_passing(&mut self) -> String {
        let mut function = self.fill("function() tick()\n$E\nend", 1);
        for _ in 0..1 + self.below(3) {
            function = self.pick(PASSAGE_FORMS).replace('&', &function);
        }
        if self.plan.is_bold && self.one_in(3) {
            format!("do local r = ({function})() end")
        } else {
            format!("emit(pcall({function}))")
        }
    }
}

/// A value of a kind for a variable. A text is cut to 200 bytes.
fn limited(kind: Kind, value: String) -> String {
    if kind == Kind::Text { format!("({value}):sub(1, 200)") } else { value }
}
