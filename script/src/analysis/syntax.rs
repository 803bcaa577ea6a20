//! The syntax tree of Lua 5.1, with names resolved to the places of their values.

/// A sequence of statements.
pub(super) type Block<'s> = Vec<Statement<'s>>;

/// A function's text. The script itself is a function too.
pub(super) struct Function<'s> {
    /// The number of its parameters, which take the first slots.
    pub n_parameters: usize,
    /// The number of local variables that it declares, parameters included. Each has a slot of its own.
    pub n_slots: usize,
    pub body: Block<'s>,
}

pub(super) enum Statement<'s> {
    Local { slots: Vec<usize>, values: Vec<Expression<'s>> },
    LocalFunction { slot: usize, function: Function<'s> },
    Assign { targets: Vec<Expression<'s>>, values: Vec<Expression<'s>> },
    Call(Expression<'s>),
    Do(Block<'s>),
    While { condition: Expression<'s>, body: Block<'s> },
    Repeat { body: Block<'s>, condition: Expression<'s> },
    If { branches: Vec<(Expression<'s>, Block<'s>)>, otherwise: Block<'s> },
    NumericFor { slot: usize, bounds: Vec<Expression<'s>>, body: Block<'s> },
    GenericFor { slots: Vec<usize>, values: Vec<Expression<'s>>, body: Block<'s> },
    Return(Vec<Expression<'s>>),
    Break,
}

pub(super) enum Expression<'s> {
    Nil,
    Bool(bool),
    Number(f64),
    Text(Vec<u8>),
    Varargs,
    Function(Box<Function<'s>>),
    /// A local variable.
    ///
    /// `level` is the number of functions that enclose the one that declares it. `slot` is its slot there.
    Local {
        level: usize,
        slot: usize,
    },
    Global {
        name: &'s [u8],
        line: u32,
    },
    Index {
        of: Box<Expression<'s>>,
        at: Box<Expression<'s>>,
        line: u32,
    },
    Call {
        callee: Box<Expression<'s>>,
        arguments: Vec<Expression<'s>>,
        line: u32,
    },
    Method {
        of: Box<Expression<'s>>,
        name: &'s [u8],
        arguments: Vec<Expression<'s>>,
        line: u32,
    },
    Table(Vec<Field<'s>>),
    Binary {
        operator: Binary,
        left: Box<Expression<'s>>,
        right: Box<Expression<'s>>,
    },
    Unary {
        operator: Unary,
        of: Box<Expression<'s>>,
    },
    /// An expression in parentheses, which has one value.
    Single(Box<Expression<'s>>),
}

/// A part of a table constructor.
pub(super) enum Field<'s> {
    Next(Expression<'s>),
    At(Expression<'s>, Expression<'s>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Or,
    And,
    Less,
    Greater,
    LessOrEqual,
    GreaterOrEqual,
    NotEqual,
    Equal,
    Concat,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unary {
    Negate,
    Not,
    Length,
}
