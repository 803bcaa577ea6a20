//! The values that scripts return, the errors that they raise, and their uses of lists.

use super::generator::{Generator, Kind, Use};
use super::known;

/// Tables that become replies.
const RESULT_FORMS: &[&str] = &[
    "{ok = $s}",
    "{err = $s}",
    "{map = $T}",
    "{set = $T}",
    "{big_number = `'123'|'12\\r\\n3'|12|''|'x'|'\\0'|'\\255'`}",
    "{verbatim_string = {format = `'txt'|'t'|'long'|1`, string = $x}}",
    "redis.error_reply($s)",
    "redis.status_reply($s)",
    "$C",
    "{ok = `1|true|'fine'|nil`, double = 1, [1] = 'x'}",
    "{$r}",
    "{$r, $r}",
    "{$r, $r, $r, $r}",
];

/// Values that are mostly no tables.
const SIMPLE_RESULTS: &str = "`$x|$x|$x|nil|true|false|3.99|-3.99|1e100|0/0|-0|''|type|2^53|2^63|cjson.null`";

/// Statements that raise an error.
const RAISING_FORMS: &[&str] = &[
    "error($g)",
    "error($g, `0|1|nil`)",
    "error({err = tostring($n), code = 1})",
    "error(redis.error_reply($s))",
    "local none none()",
    "local none = {} none.field.deep = 1",
    "local wrong = $n + {}",
    "local wrong = {} .. 'x'",
    "local wrong = $n < $s",
    "redis.call('NOSUCH')",
    "redis.call('SET', 'k1', 'x') redis.call('LPUSH', 'k1', 'y')",
    "assert(`false|nil, 'because'|false, {err = 'X y'}|nil, 12|`)",
    "string.rep(`|{}|'x'|'x', {}|nil, 1`)",
];

/// The raised tables. One without a text that nothing catches ends redis-server.
const RAISED_TABLES: &str =
    "error(`{}|{1}|{err = true}|{err = 12}|{code = 'x'}|setmetatable({}, {__index = {err = 'x'}})`)";
const RAISED_OTHERS: &str = "error(`nil|12|1.5|true||type|cjson.null`)";

/// The ways to use a list `@`, KEYS or ARGV. Those of `Elements` come first.
const LIST_FORMS: &[&str] = &[
    "emit(#@, @[1], @[2], @[#@], @[#@ + 1], @[64], @[65])",
    "for i = 1, #@ do tick()\nemit(i, @[i])\nend",
    "local function first() return @[1], #@ end\nemit(first())",
    "emit(coroutine.wrap(function()\ncoroutine.yield(@[1])\nreturn #@\nend)())",
    "emit(pcall(function() return @[nil], @.x, @.x.y end))",
    "emit(pcall(function() return @[1]:upper(), @[2]:len() end))",
    "emit((@[1] or 'none'):gsub('.', function(c) return @[2] end))",
    "local chosen = {@[1], @[2], n = #@}\nemit(chosen)",
    "emit(@)",
    "for i, v in ipairs(@) do tick()\nemit(i, v)\nend",
    "for k, v in pairs(@) do tick()\nemit(k, v)\nend",
    "@[math.min(1 + $d, #@ + 1)] = $w",
    "@[#@ + 1] = $w",
    "@.field = $w\nemit(@.field, #@)",
    "table.insert(@, $w)",
    "table.insert(@, 1, $w)",
    "emit(table.remove(@, 1), #@)",
    "emit(pcall(function() table.sort(@) end))",
    "emit(unpack(@, 1, 6))",
    "emit(#table.concat(@, ','))",
    "setmetatable(@, {__index = function(t, k) return k end, __newindex = function(t, k, v) rawset(t, k, v) end})\nemit(@[99], @.x)",
    "emit(next(@), rawget(@, 1), getmetatable(@))",
    "local same = @\nsame[math.min(2, #same + 1)] = $w\nemit(@[2], same == @)",
    "emit(pcall(function() @() end))",
    "for i = #@, 1, -1 do tick()\n@[i] = nil\nend\nemit(#@, @[1])",
    "emit(cjson.encode(@))\nemit(cmsgpack.pack(@))",
    "emit(redis.pcall('RPUSH', 'k1', unpack(@, 1, 6)))",
    "local @ = {$w}\nemit(@[1], #@)",
];
const N_ELEMENT_FORMS: usize = 8;

impl Generator<'_> {
    /// The end of a script.
    pub fn ending(&mut self) -> String {
        self.n_tables = 1;
        match self.below(10) {
            0 => format!("return {}", self.result(4)),
            1 => format!("return {}, {}", self.result(3), self.result(0)),
            2 => format!("out[#out + 1] = {}\nreturn out", self.result(3)),
            3 => format!("return {{table.concat(out, '\\n'), {}}}", self.result(3)),
            4 => format!("return {}", self.variable(Kind::Any).unwrap_or_else(|| "out".to_owned())),
            5 if self.plan.is_bold => self.raising(),
            6 => "return out".to_owned(),
            _ => "return table.concat(out, '\\n')".to_owned(),
        }
    }

    /// A value that becomes a reply.
    pub fn result(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.fill(SIMPLE_RESULTS, 1);
        }
        match self.below(10) {
            0 => format!("{{double = {}}}", self.pick(known::DOUBLES)),
            1 => match self.given(true) {
                Some(list) => list.to_owned(),
                None => self.expression(Kind::Object, 1),
            },
            2 => {
                let (n_levels, innermost) =
                    (1 + self.below(known::MAX_LEVELS), self.inner(|this| this.result(0)));
                format!(
                    "(function() local t = {innermost} for i = 1, {n_levels} do t = {{t, i}} end return t end)()"
                )
            }
            _ => self.form(RESULT_FORMS, depth),
        }
    }

    pub fn result_table(&mut self, depth: usize) -> String {
        let n_fields = self.below(4);
        let fields: Vec<String> = (0..n_fields).map(|_| self.fill("[$k] = $r", depth)).collect();
        format!("{{{}}}", fields.join(", "))
    }

    /// A statement that raises an error.
    pub fn raising(&mut self) -> String {
        let others = if self.plan.raises_tables { RAISED_TABLES } else { RAISED_OTHERS };
        let call = if self.one_in(14) { self.fill(others, 1) } else { self.form(RAISING_FORMS, 1) };
        format!("do {call} end")
    }

    pub fn list_use(&mut self) -> Option<String> {
        let list = self.given(false)?;
        let of = if list == "KEYS" { self.plan.keys } else { self.plan.argv };
        let forms = if of == Use::Freely { LIST_FORMS } else { &LIST_FORMS[..N_ELEMENT_FORMS] };
        Some(self.form_of(forms, list, 0))
    }
}
