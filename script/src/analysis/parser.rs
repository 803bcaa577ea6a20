//! Makes the syntax tree of a script, and resolves its names.
//!
//! Every tree is at most [`MAX_HEIGHT`] high, whatever the source. So code that walks or drops a tree may
//! recurse.

use super::lexer::{Lexer, Malformed, Token};
use super::syntax::{Binary, Block, Expression, Field, Function, Statement, Unary};

/// The deepest nesting of a text, and the greatest height of a tree.
///
/// Lua itself stops at 200 levels of nesting.
const MAX_HEIGHT: usize = 200;

/// The most local variables of a function that are visible at once, as in Lua.
const MAX_VISIBLE: usize = 200;

/// The priority of a unary operator.
const UNARY_PRIORITY: u8 = 8;

/// The words that are not names.
const KEYWORDS: &[&str] = &[
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while",
];

type Parsed<T> = Result<T, Malformed>;

/// Parses a whole script.
pub(super) fn parse(source: &[u8]) -> Parsed<Function<'_>> {
    let mut parser = Parser::new(source)?;
    parser.open_function(true);
    let body = parser.block()?;
    if parser.token != Token::End {
        return Err(Malformed);
    }
    Ok(parser.close_function(0, body))
}

struct Parser<'s> {
    lexer: Lexer<'s>,
    token: Token<'s>,
    next: Token<'s>,
    /// The line of `token`.
    line: u32,
    next_line: u32,
    /// The depth of the parser's own recursion.
    depth: usize,
    /// The height of the tree that was finished last.
    height: usize,
    functions: Vec<Scope<'s>>,
}

/// The state of a function while its text is read.
struct Scope<'s> {
    /// The visible local variables with their slots, innermost last.
    visible: Vec<(&'s [u8], usize)>,
    n_slots: usize,
    is_vararg: bool,
    /// The height of the highest tree in it.
    height: usize,
}

impl<'s> Parser<'s> {
    fn new(source: &'s [u8]) -> Parsed<Self> {
        let mut lexer = Lexer::new(source);
        let token = lexer.token()?;
        let line = lexer.line;
        let next = lexer.token()?;
        let next_line = lexer.line;
        Ok(Self { lexer, token, next, line, next_line, depth: 0, height: 0, functions: Vec::new() })
    }

    fn advance(&mut self) -> Parsed<Token<'s>> {
        let next = self.lexer.token()?;
        self.line = std::mem::replace(&mut self.next_line, self.lexer.line);
        Ok(std::mem::replace(&mut self.token, std::mem::replace(&mut self.next, next)))
    }

    fn is_mark(&self, mark: &str) -> bool {
        matches!(self.token, Token::Mark(found) if found == mark)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.token, Token::Word(found) if found == word.as_bytes())
    }

    fn take_mark(&mut self, mark: &str) -> Parsed<bool> {
        let is_it = self.is_mark(mark);
        if is_it {
            self.advance()?;
        }
        Ok(is_it)
    }

    fn take_word(&mut self, word: &str) -> Parsed<bool> {
        let is_it = self.is_word(word);
        if is_it {
            self.advance()?;
        }
        Ok(is_it)
    }

    fn expect_mark(&mut self, mark: &str) -> Parsed<()> {
        if self.take_mark(mark)? { Ok(()) } else { Err(Malformed) }
    }

    fn expect_word(&mut self, word: &str) -> Parsed<()> {
        if self.take_word(word)? { Ok(()) } else { Err(Malformed) }
    }

    fn name(&mut self) -> Parsed<&'s [u8]> {
        match self.advance()? {
            Token::Word(name) if !is_keyword(name) => Ok(name),
            _ => Err(Malformed),
        }
    }

    fn names(&mut self) -> Parsed<Vec<&'s [u8]>> {
        let mut names = vec![self.name()?];
        while self.take_mark(",")? {
            names.push(self.name()?);
        }
        Ok(names)
    }

    /// Runs a part of the parser one level deeper.
    fn nested<T>(&mut self, part: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MAX_HEIGHT {
            return Err(Malformed);
        }
        self.depth += 1;
        let parsed = part(self);
        self.depth -= 1;
        parsed
    }

    /// Notes that a tree is finished, and the height of its highest part.
    fn grow(&mut self, height: usize) -> Parsed<()> {
        self.height = height + 1;
        let scope = self.scope();
        scope.height = scope.height.max(height + 1);
        if height >= MAX_HEIGHT { Err(Malformed) } else { Ok(()) }
    }

    fn scope(&mut self) -> &mut Scope<'s> {
        self.functions.last_mut().expect("the script is a function itself")
    }

    fn open_function(&mut self, is_vararg: bool) {
        self.functions.push(Scope { visible: Vec::new(), n_slots: 0, is_vararg, height: 0 });
    }

    fn close_function(&mut self, n_parameters: usize, body: Block<'s>) -> Function<'s> {
        let scope = self.functions.pop().expect("it was opened");
        self.height = scope.height;
        Function { n_parameters, n_slots: scope.n_slots, body }
    }

    fn declare(&mut self, name: &'s [u8]) -> Parsed<usize> {
        let scope = self.scope();
        if scope.visible.len() >= MAX_VISIBLE {
            return Err(Malformed);
        }
        let slot = scope.n_slots;
        scope.n_slots += 1;
        scope.visible.push((name, slot));
        Ok(slot)
    }

    fn declare_all(&mut self, names: Vec<&'s [u8]>) -> Parsed<Vec<usize>> {
        names.into_iter().map(|name| self.declare(name)).collect()
    }

    fn resolve(&self, name: &'s [u8]) -> Expression<'s> {
        for (level, scope) in self.functions.iter().enumerate().rev() {
            if let Some((_, slot)) = scope.visible.iter().rev().find(|(visible, _)| *visible == name) {
                return Expression::Local { level, slot: *slot };
            }
        }
        Expression::Global { name, line: self.line }
    }

    /// Reads a block whose local variables end with it.
    fn block(&mut self) -> Parsed<Block<'s>> {
        let n_visible = self.scope().visible.len();
        let block = self.open_block();
        self.scope().visible.truncate(n_visible);
        block
    }

    /// Reads a block whose local variables stay visible, as `until` needs them.
    fn open_block(&mut self) -> Parsed<Block<'s>> {
        self.nested(|parser| {
            let mut block = Vec::new();
            while !parser.ends_block() {
                let is_last = parser.is_word("return") || parser.is_word("break");
                block.push(parser.statement()?);
                parser.take_mark(";")?;
                if is_last && !parser.ends_block() {
                    return Err(Malformed);
                }
            }
            Ok(block)
        })
    }

    fn ends_block(&self) -> bool {
        self.token == Token::End || ["end", "else", "elseif", "until"].iter().any(|word| self.is_word(word))
    }

    fn block_until_end(&mut self) -> Parsed<Block<'s>> {
        let block = self.block()?;
        self.expect_word("end")?;
        Ok(block)
    }

    fn statement(&mut self) -> Parsed<Statement<'s>> {
        let Token::Word(word) = self.token else { return self.assignment_or_call() };
        match word {
            b"if" => self.branches(),
            b"while" => self.while_loop(),
            b"do" => {
                self.advance()?;
                Ok(Statement::Do(self.block_until_end()?))
            }
            b"for" => self.for_loop(),
            b"repeat" => self.repeat_loop(),
            b"function" => self.named_function(),
            b"local" => self.local(),
            b"return" => self.return_values(),
            b"break" => {
                self.advance()?;
                Ok(Statement::Break)
            }
            _ => self.assignment_or_call(),
        }
    }

    fn branches(&mut self) -> Parsed<Statement<'s>> {
        let mut branches = Vec::new();
        while branches.is_empty() || self.is_word("elseif") {
            self.advance()?;
            let condition = self.expression()?;
            self.expect_word("then")?;
            branches.push((condition, self.block()?));
        }
        let otherwise = if self.take_word("else")? { self.block()? } else { Vec::new() };
        self.expect_word("end")?;
        Ok(Statement::If { branches, otherwise })
    }

    fn while_loop(&mut self) -> Parsed<Statement<'s>> {
        self.advance()?;
        let condition = self.expression()?;
        self.expect_word("do")?;
        Ok(Statement::While { condition, body: self.block_until_end()? })
    }

    fn repeat_loop(&mut self) -> Parsed<Statement<'s>> {
        self.advance()?;
        let n_visible = self.scope().visible.len();
        let body = self.open_block()?;
        self.expect_word("until")?;
        let condition = self.expression()?;
        self.scope().visible.truncate(n_visible);
        Ok(Statement::Repeat { body, condition })
    }

    fn for_loop(&mut self) -> Parsed<Statement<'s>> {
        self.advance()?;
        let names = self.names()?;
        let is_numeric = self.take_mark("=")?;
        if is_numeric == (names.len() > 1) && is_numeric {
            return Err(Malformed);
        }
        if !is_numeric {
            self.expect_word("in")?;
        }
        let values = self.expressions()?;
        self.expect_word("do")?;
        let n_visible = self.scope().visible.len();
        let slots = self.declare_all(names)?;
        let body = self.block_until_end()?;
        self.scope().visible.truncate(n_visible);
        match is_numeric {
            true if !(2..=3).contains(&values.len()) => Err(Malformed),
            true => Ok(Statement::NumericFor { slot: slots[0], bounds: values, body }),
            false => Ok(Statement::GenericFor { slots, values, body }),
        }
    }

    /// Reads `function a.b:c() … end`, which is an assignment.
    fn named_function(&mut self) -> Parsed<Statement<'s>> {
        self.advance()?;
        let name = self.name()?;
        let mut target = self.resolve(name);
        self.height = 1;
        let mut is_method = false;
        while !is_method && (self.is_mark(".") || self.is_mark(":")) {
            is_method = self.is_mark(":");
            self.advance()?;
            let (line, at) = (self.line, Box::new(Expression::Text(self.name()?.to_vec())));
            self.grow(self.height)?;
            target = Expression::Index { of: Box::new(target), at, line };
        }
        let function = self.function(if is_method { &[b"self"] } else { &[] })?;
        Ok(Statement::Assign {
            targets: vec![target],
            values: vec![Expression::Function(Box::new(function))],
        })
    }

    fn local(&mut self) -> Parsed<Statement<'s>> {
        self.advance()?;
        if self.take_word("function")? {
            let name = self.name()?;
            let slot = self.declare(name)?;
            return Ok(Statement::LocalFunction { slot, function: self.function(&[])? });
        }
        let names = self.names()?;
        let values = if self.take_mark("=")? { self.expressions()? } else { Vec::new() };
        Ok(Statement::Local { slots: self.declare_all(names)?, values })
    }

    fn return_values(&mut self) -> Parsed<Statement<'s>> {
        self.advance()?;
        let is_empty = self.ends_block() || self.is_mark(";");
        Ok(Statement::Return(if is_empty { Vec::new() } else { self.expressions()? }))
    }

    fn assignment_or_call(&mut self) -> Parsed<Statement<'s>> {
        let first = self.suffixed()?;
        let is_call = matches!(first, Expression::Call { .. } | Expression::Method { .. });
        if is_call && !self.is_mark("=") && !self.is_mark(",") {
            return Ok(Statement::Call(first));
        }
        let mut targets = vec![first];
        while self.take_mark(",")? {
            targets.push(self.suffixed()?);
        }
        self.expect_mark("=")?;
        let is_target = |target: &Expression| {
            matches!(target, Expression::Local { .. } | Expression::Global { .. } | Expression::Index { .. })
        };
        if !targets.iter().all(is_target) {
            return Err(Malformed);
        }
        Ok(Statement::Assign { targets, values: self.expressions()? })
    }

    /// Reads expressions with commas between them.
    ///
    /// Afterwards `height` is the height of the highest of them.
    fn expressions(&mut self) -> Parsed<Vec<Expression<'s>>> {
        let mut expressions = vec![self.expression()?];
        let mut height = self.height;
        while self.take_mark(",")? {
            expressions.push(self.expression()?);
            height = height.max(self.height);
        }
        self.height = height;
        Ok(expressions)
    }

    fn expression(&mut self) -> Parsed<Expression<'s>> {
        self.operators(0)
    }

    /// Reads operators with a priority above `limit`, and their operands.
    fn operators(&mut self, limit: u8) -> Parsed<Expression<'s>> {
        self.nested(|parser| {
            let mut left = parser.operand()?;
            while let Some((operator, priority, right_priority)) = parser.binary() {
                if priority <= limit {
                    break;
                }
                parser.advance()?;
                let height = parser.height;
                let right = parser.operators(right_priority)?;
                parser.grow(height.max(parser.height))?;
                left = Expression::Binary { operator, left: Box::new(left), right: Box::new(right) };
            }
            Ok(left)
        })
    }

    fn operand(&mut self) -> Parsed<Expression<'s>> {
        let operator = match &self.token {
            Token::Word(b"not") => Unary::Not,
            Token::Mark("-") => Unary::Negate,
            Token::Mark("#") => Unary::Length,
            _ => return self.simple(),
        };
        self.advance()?;
        let of = Box::new(self.operators(UNARY_PRIORITY)?);
        self.grow(self.height)?;
        Ok(Expression::Unary { operator, of })
    }

    /// The next operator, with its priorities on its left and on its right.
    fn binary(&self) -> Option<(Binary, u8, u8)> {
        Some(match &self.token {
            Token::Word(b"or") => (Binary::Or, 1, 1),
            Token::Word(b"and") => (Binary::And, 2, 2),
            Token::Mark("<") => (Binary::Less, 3, 3),
            Token::Mark(">") => (Binary::Greater, 3, 3),
            Token::Mark("<=") => (Binary::LessOrEqual, 3, 3),
            Token::Mark(">=") => (Binary::GreaterOrEqual, 3, 3),
            Token::Mark("~=") => (Binary::NotEqual, 3, 3),
            Token::Mark("==") => (Binary::Equal, 3, 3),
            Token::Mark("..") => (Binary::Concat, 5, 4),
            Token::Mark("+") => (Binary::Add, 6, 6),
            Token::Mark("-") => (Binary::Subtract, 6, 6),
            Token::Mark("*") => (Binary::Multiply, 7, 7),
            Token::Mark("/") => (Binary::Divide, 7, 7),
            Token::Mark("%") => (Binary::Modulo, 7, 7),
            Token::Mark("^") => (Binary::Power, 10, 9),
            _ => return None,
        })
    }

    fn simple(&mut self) -> Parsed<Expression<'s>> {
        self.height = 1;
        let simple = match &mut self.token {
            Token::Number(number) => Expression::Number(*number),
            Token::Text(text) => Expression::Text(std::mem::take(text)),
            Token::Word(b"nil") => Expression::Nil,
            Token::Word(b"true") => Expression::Bool(true),
            Token::Word(b"false") => Expression::Bool(false),
            Token::Mark("...") => {
                if !self.scope().is_vararg {
                    return Err(Malformed);
                }
                Expression::Varargs
            }
            Token::Mark("{") => return self.table(),
            Token::Word(b"function") => {
                self.advance()?;
                let function = self.function(&[])?;
                return Ok(Expression::Function(Box::new(function)));
            }
            _ => return self.suffixed(),
        };
        self.advance()?;
        Ok(simple)
    }

    /// Reads a name or an expression in parentheses, and the indices and calls after it.
    fn suffixed(&mut self) -> Parsed<Expression<'s>> {
        let mut expression = self.primary()?;
        loop {
            let line = self.line;
            let height = self.height;
            expression = match &self.token {
                Token::Mark(".") => {
                    self.advance()?;
                    let at = Box::new(Expression::Text(self.name()?.to_vec()));
                    Expression::Index { of: Box::new(expression), at, line }
                }
                Token::Mark("[") => {
                    self.advance()?;
                    let at = Box::new(self.expression()?);
                    self.expect_mark("]")?;
                    Expression::Index { of: Box::new(expression), at, line }
                }
                Token::Mark(":") => {
                    self.advance()?;
                    let name = self.name()?;
                    let arguments = self.arguments()?;
                    Expression::Method { of: Box::new(expression), name, arguments, line }
                }
                Token::Mark("(" | "{") | Token::Text(_) => {
                    let arguments = self.arguments()?;
                    Expression::Call { callee: Box::new(expression), arguments, line }
                }
                _ => return Ok(expression),
            };
            self.grow(height.max(self.height))?;
        }
    }

    fn primary(&mut self) -> Parsed<Expression<'s>> {
        if self.take_mark("(")? {
            let expression = self.expression()?;
            self.expect_mark(")")?;
            self.grow(self.height)?;
            return Ok(Expression::Single(Box::new(expression)));
        }
        let line = self.line;
        let name = self.name()?;
        self.height = 1;
        Ok(match self.resolve(name) {
            Expression::Global { name, .. } => Expression::Global { name, line },
            local => local,
        })
    }

    fn arguments(&mut self) -> Parsed<Vec<Expression<'s>>> {
        self.height = 1;
        match &mut self.token {
            Token::Text(text) => {
                let text = Expression::Text(std::mem::take(text));
                self.advance()?;
                Ok(vec![text])
            }
            Token::Mark("{") => Ok(vec![self.table()?]),
            _ => {
                self.expect_mark("(")?;
                if self.take_mark(")")? {
                    return Ok(Vec::new());
                }
                let arguments = self.expressions()?;
                self.expect_mark(")")?;
                Ok(arguments)
            }
        }
    }

    fn table(&mut self) -> Parsed<Expression<'s>> {
        self.expect_mark("{")?;
        let (mut fields, mut height) = (Vec::new(), 0);
        while !self.is_mark("}") {
            fields.push(self.field()?);
            height = height.max(self.height);
            if !self.take_mark(",")? && !self.take_mark(";")? {
                break;
            }
        }
        self.expect_mark("}")?;
        self.grow(height)?;
        Ok(Expression::Table(fields))
    }

    fn field(&mut self) -> Parsed<Field<'s>> {
        if self.take_mark("[")? {
            let at = self.expression()?;
            let height = self.height;
            self.expect_mark("]")?;
            self.expect_mark("=")?;
            let value = self.expression()?;
            self.height = self.height.max(height);
            return Ok(Field::At(at, value));
        }
        if matches!(self.token, Token::Word(_)) && self.next == Token::Mark("=") {
            let name = Expression::Text(self.name()?.to_vec());
            self.advance()?;
            return Ok(Field::At(name, self.expression()?));
        }
        Ok(Field::Next(self.expression()?))
    }

    /// Reads a function from its parameters on. The parameters `hidden` come before the written ones.
    fn function(&mut self, hidden: &[&'s [u8]]) -> Parsed<Function<'s>> {
        self.open_function(false);
        for name in hidden {
            self.declare(name)?;
        }
        self.expect_mark("(")?;
        let mut n_parameters = hidden.len();
        while !self.is_mark(")") {
            if self.take_mark("...")? {
                self.scope().is_vararg = true;
                break;
            }
            let name = self.name()?;
            self.declare(name)?;
            n_parameters += 1;
            if !self.take_mark(",")? {
                break;
            }
        }
        self.expect_mark(")")?;
        let body = self.nested(Self::block_until_end)?;
        let function = self.close_function(n_parameters, body);
        self.grow(self.height)?;
        Ok(function)
    }
}

fn is_keyword(word: &[u8]) -> bool {
    KEYWORDS.iter().any(|keyword| keyword.as_bytes() == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lua_is_accepted_and_what_is_not_lua_refused() {
        let right = [
            "",
            "return",
            "return;",
            "local a, b = 1 local function f(...) return ... end f{} f'x' f[[y]] (f)()",
            "a.b.c = function(self) end function a.b:c() return self end a:b(1).c[2] = {1, x = 2; [3] = 4,}",
            "for i = 1, 2 do break end for i = 1, 2, 3 do end for k, v in pairs(t) do end",
            "while true do if a then elseif b then else end end repeat local x until x",
            "return not a == b and -c ^ 2 .. #d or (e)",
            "do local a <= 1 end",
        ];
        for source in &right[..right.len() - 1] {
            assert!(parse(source.as_bytes()).is_ok(), "{source}");
        }
        let wrong = [
            "return 1 2",
            "x",
            "f() = 1",
            "(a) = 1",
            "if a end",
            "for i = 1 do end",
            "for a, b = 1, 2 do end",
            "local end",
            "return ... , function() return ... end",
            "a = ",
            "{}",
            "goto x",
            "\u{e9} = 1",
        ];
        for source in wrong.iter().chain(&right[right.len() - 1..]) {
            assert!(parse(source.as_bytes()).is_err(), "{source}");
        }
    }

    #[test]
    fn deep_and_long_sources_neither_overflow_nor_hang() {
        let n = 100_000;
        let sources = [
            format!("return {}1{}", "(".repeat(n), ")".repeat(n)),
            format!("return {}1", "not ".repeat(n)),
            format!("return 1{}", "..1".repeat(n)),
            format!("return 1{}", "+1".repeat(n)),
            format!("return a{}", ".b".repeat(n)),
            format!("return a{}", "()".repeat(n)),
            format!("return {}", "{".repeat(n)),
            "do ".repeat(n),
            "f(function() ".repeat(n),
            "[=".repeat(n),
            format!("x = [{}", "=".repeat(n)),
        ];
        for source in sources {
            assert!(parse(source.as_bytes()).is_err());
        }
        let left_deep = (0..150).fold(String::from("a"), |of, _| format!("({of}{})", "+a".repeat(150)));
        assert!(parse(format!("return {left_deep}").as_bytes()).is_err());
        assert!(parse("do local a = 1 end ".repeat(n / 10).as_bytes()).is_ok());
    }
}
