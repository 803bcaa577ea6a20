//! The names that every script finds when it starts.

/// A value of the libraries, as far as the analysis distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Builtin {
    /// The table `redis`, or `server`.
    Redis,
    /// The table of another library.
    Library(Library),
    /// `redis.call` and `redis.pcall`.
    Call,
    /// `redis.register_function`.
    Register,
    /// `pcall` and `xpcall`.
    Protected,
    Assert,
    Error,
    Unpack,
    Select,
    /// `pairs` and `ipairs`.
    Pairs,
    Next,
    ToNumber,
    ToText,
    RawGet,
    RawSet,
    SetMetatable,
    Insert,
    /// A function that moves a table's elements.
    Shuffle,
    Join,
    Format,
    Part,
    Lower,
    Upper,
    Length,
    Floor,
    Ceiling,
    /// A function that returns data, and calls only functions that it receives.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    Text,
    Table,
    Math,
    /// A library whose functions all return data.
    Other,
}

/// The meaning of a global name.
pub(super) enum Global {
    Builtin(Builtin),
    /// A name with which a script can do things that its text does not show.
    Opaque,
    Missing,
}

/// Returns the meaning of a global name other than KEYS and ARGV.
pub(super) fn global(name: &[u8]) -> Global {
    Global::Builtin(match name {
        b"redis" | b"server" => Builtin::Redis,
        b"string" => Builtin::Library(Library::Text),
        b"table" => Builtin::Library(Library::Table),
        b"math" => Builtin::Library(Library::Math),
        b"cjson" | b"cmsgpack" | b"bit" | b"struct" | b"os" | b"coroutine" => {
            Builtin::Library(Library::Other)
        }
        b"pcall" | b"xpcall" => Builtin::Protected,
        b"assert" => Builtin::Assert,
        b"error" => Builtin::Error,
        b"unpack" => Builtin::Unpack,
        b"select" => Builtin::Select,
        b"pairs" | b"ipairs" => Builtin::Pairs,
        b"next" => Builtin::Next,
        b"tonumber" => Builtin::ToNumber,
        b"tostring" => Builtin::ToText,
        b"rawget" => Builtin::RawGet,
        b"rawset" => Builtin::RawSet,
        b"setmetatable" => Builtin::SetMetatable,
        b"type" | b"rawequal" | b"getmetatable" | b"collectgarbage" | b"gcinfo" => Builtin::Other,
        b"_G" | b"getfenv" | b"setfenv" | b"load" | b"loadstring" | b"dofile" | b"loadfile" | b"require" => {
            return Global::Opaque;
        }
        _ => return Global::Missing,
    })
}

/// Returns a member of `redis`.
pub(super) fn redis_member(name: &[u8]) -> Builtin {
    match name {
        b"call" | b"pcall" => Builtin::Call,
        b"register_function" => Builtin::Register,
        _ => Builtin::Other,
    }
}

impl Library {
    /// Returns a member of the library.
    pub fn member(self, name: &[u8]) -> Builtin {
        match (self, name) {
            (Library::Text, b"format") => Builtin::Format,
            (Library::Text, b"sub") => Builtin::Part,
            (Library::Text, b"lower") => Builtin::Lower,
            (Library::Text, b"upper") => Builtin::Upper,
            (Library::Text, b"len") => Builtin::Length,
            (Library::Table, b"insert") => Builtin::Insert,
            (Library::Table, b"sort" | b"remove") => Builtin::Shuffle,
            (Library::Table, b"concat") => Builtin::Join,
            (Library::Math, b"floor") => Builtin::Floor,
            (Library::Math, b"ceil") => Builtin::Ceiling,
            _ => Builtin::Other,
        }
    }
}
