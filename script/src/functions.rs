//! Functions of libraries, and the errors of loading a library.
//!
//! A library's code runs once, when it loads, and registers functions. FCALL calls them later. They see all
//! globals but KEYS and ARGV, which they get as arguments.

use std::fmt;

use mlua::Function;

use crate::handles::Handle;
use crate::outcome::Stop;
use crate::shebang::Flags;

/// A function of a loaded library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSpec {
    /// The name that FCALL uses.
    pub name: String,
    /// The handle by which the engine runs it.
    pub handle: Handle,
    /// Its flags, which say where and when it may run.
    pub flags: Flags,
    /// Its description in FUNCTION LIST.
    pub description: Option<Vec<u8>>,
}

/// The reason why a library is not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The source is not Lua.
    Compile(String),
    /// The code failed while it ran: the error's text with its code.
    Run(Vec<u8>),
    /// The code registers nothing.
    Empty,
    /// The host ended the run.
    Stopped(Stop),
}

impl LoadError {
    /// The text of the error reply, code included.
    pub fn text(&self) -> Vec<u8> {
        match self {
            LoadError::Compile(complaint) => {
                format!("ERR Error compiling function: {complaint}").into_bytes()
            }
            LoadError::Run(text) => [b"ERR Error registering functions: ", text.as_slice()].concat(),
            LoadError::Empty => b"ERR No functions registered".to_vec(),
            LoadError::Stopped(Stop::TimeOver) => {
                b"ERR Error registering functions: ERR FUNCTION LOAD timeout".to_vec()
            }
            LoadError::Stopped(stop) => format!("ERR Error registering functions: {stop}").into_bytes(),
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text()))
    }
}

impl std::error::Error for LoadError {}

/// A function as its library registers it.
#[derive(Debug)]
pub(crate) struct Registered {
    pub name: String,
    pub callback: Function,
    pub flags: Flags,
    pub description: Option<Vec<u8>>,
}
