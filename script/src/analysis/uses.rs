//! The ways in which a script uses its lists, KEYS and ARGV.

use super::syntax::{Block, Expression, Field, Function, Statement, Unary};

/// The way in which a script uses one of the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// It does not use the list.
    Not,
    /// It reads elements or the length, and can neither change the list nor keep it.
    Elements,
    /// It uses the list as any table.
    Freely,
}

/// Returns how a source uses the list with this global name.
pub(crate) fn of_list(source: &[u8], name: &[u8]) -> Use {
    let mentions = |text: &[u8]| memchr::memmem::find(source, text).is_some();
    // A script finds a global by its name, through `_G`, or by code that it makes.
    if mentions(b"_G") || mentions(b"load") {
        return Use::Freely;
    }
    if !mentions(name) {
        return Use::Not;
    }
    let reads_only = super::read(source).is_some_and(|script| {
        let mut uses = Uses { name, is_given: false };
        uses.function(&script);
        !uses.is_given
    });
    if reads_only { Use::Elements } else { Use::Freely }
}

/// A search for uses of a list other than reads of elements or the length.
struct Uses<'n> {
    name: &'n [u8],
    is_given: bool,
}

impl Uses<'_> {
    fn function(&mut self, function: &Function<'_>) {
        self.block(&function.body);
    }

    fn block(&mut self, block: &Block<'_>) {
        block.iter().for_each(|statement| self.statement(statement));
    }

    fn all(&mut self, expressions: &[Expression<'_>]) {
        expressions.iter().for_each(|expression| self.expression(expression));
    }

    fn statement(&mut self, statement: &Statement<'_>) {
        match statement {
            Statement::Local { values, .. } | Statement::Return(values) => self.all(values),
            Statement::LocalFunction { function, .. } => self.function(function),
            Statement::Assign { targets, values } => {
                targets.iter().for_each(|target| self.target(target));
                self.all(values);
            }
            Statement::Call(call) => self.expression(call),
            Statement::Do(body) => self.block(body),
            Statement::While { condition, body } | Statement::Repeat { body, condition } => {
                self.expression(condition);
                self.block(body);
            }
            Statement::If { branches, otherwise } => {
                for (condition, body) in branches {
                    self.expression(condition);
                    self.block(body);
                }
                self.block(otherwise);
            }
            Statement::NumericFor { bounds: values, body, .. }
            | Statement::GenericFor { values, body, .. } => {
                self.all(values);
                self.block(body);
            }
            Statement::Break => {}
        }
    }

    /// Visits the target of an assignment.
    ///
    /// An element of the list is then not only read.
    fn target(&mut self, target: &Expression<'_>) {
        match target {
            Expression::Index { of, at, .. } => {
                self.expression(of);
                self.expression(at);
            }
            other => self.expression(other),
        }
    }

    fn is_list(&self, expression: &Expression<'_>) -> bool {
        matches!(expression, Expression::Global { name, .. } if *name == self.name)
    }

    fn expression(&mut self, expression: &Expression<'_>) {
        match expression {
            Expression::Global { .. } => self.is_given |= self.is_list(expression),
            Expression::Index { of, at, .. } => {
                if !self.is_list(of) {
                    self.expression(of);
                }
                self.expression(at);
            }
            Expression::Unary { operator: Unary::Length, of } if self.is_list(of) => {}
            Expression::Unary { of, .. } | Expression::Single(of) => self.expression(of),
            Expression::Binary { left, right, .. } => {
                self.expression(left);
                self.expression(right);
            }
            Expression::Call { callee, arguments, .. } => {
                self.expression(callee);
                self.all(arguments);
            }
            Expression::Method { of, arguments, .. } => {
                self.expression(of);
                self.all(arguments);
            }
            Expression::Function(function) => self.function(function),
            Expression::Table(fields) => fields.iter().for_each(|field| match field {
                Field::Next(value) => self.expression(value),
                Field::At(key, value) => {
                    self.expression(key);
                    self.expression(value);
                }
            }),
            Expression::Nil
            | Expression::Bool(_)
            | Expression::Number(_)
            | Expression::Text(_)
            | Expression::Varargs
            | Expression::Local { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_lent_only_to_who_reads_its_elements() {
        let of = |source: &str| of_list(source.as_bytes(), b"KEYS");
        for source in [
            "return redis.call('GET', KEYS[1])",
            "local a, b = KEYS[1], KEYS[2] return {a, b, KEYS[ #KEYS ]}",
            "--[[ KEYS: all of them ]] for i = 1, #KEYS do redis.call('DEL', KEYS[i]) end",
            "local x = {} x[KEYS[1]] = KEYS[2] return function() return KEYS[1]:upper() end",
        ] {
            assert_eq!(of(source), Use::Elements, "{source}");
        }
        for source in [
            "return KEYS",
            "KEYS[1] = 'x'",
            "local a a, KEYS[1] = 1, 2",
            "KEYS[1], KEYS[2] = KEYS[2], KEYS[1]",
            "return unpack(KEYS)",
            "for _, key in ipairs(KEYS) do redis.call('DEL', key) end",
            "local t = {KEYS} return #t",
            "return (KEYS)[1]",
            "return KEYS:len()",
            "local k = KEYS return k[1]",
            "return _G['KEYS']",
            "return loadstring('return KEYS')()",
            "return KEYS[1",
        ] {
            assert_eq!(of(source), Use::Freely, "{source}");
        }
        assert_eq!(of("return ARGV[1]"), Use::Not);
    }
}
