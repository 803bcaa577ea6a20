//! The libraries of functions that the server knows, and their loaded forms on each thread.
//!
//! As with [scripts](super::scripts), the map is replaced whole when a library is added or removed. So
//! finding a function takes no lock. A thread loads a library when it first calls one of its functions.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
};

use arc_swap::{ArcSwap, Guard};
use braid_script::{Engine, Flavour, Handle, Host, LoadError};

use crate::scripting::running_scripts::{self, Program, RunningScript};

/// A function.
pub struct Function {
    /// Its name, for FCALL.
    pub name: String,
    /// Its description in FUNCTION LIST.
    pub description: Option<Vec<u8>>,
    /// The facts about its runs.
    pub program: Program,
}

/// A library.
pub struct Library {
    /// Its number, which no other library gets.
    id: u64,
    /// Its name.
    pub name: String,
    /// Its text, with the first line.
    pub code: Box<[u8]>,
    /// Its functions, by name.
    pub functions: BTreeMap<String, Function>,
}

/// The reason why libraries are not added.
#[derive(Debug, PartialEq, Eq)]
pub enum Conflict {
    /// There is a library of that name.
    Library(String),
    /// Another library has a function of that name.
    Function(String),
    /// The last snapshot has been cut, and would lack the change.
    Ending,
}

/// The libraries that are known at a moment.
#[derive(Clone, Default)]
pub struct KnownFunctions {
    libraries: BTreeMap<String, Arc<Library>>,
    /// The library and exact name of each function, by the name in lower case.
    by_function: HashMap<String, (Arc<Library>, String)>,
    /// The number of removals of libraries.
    n_gone: u64,
}

impl KnownFunctions {
    /// A function, by its name in either case, and its library.
    pub fn function(&self, name: &[u8]) -> Option<(&Arc<Library>, &Function)> {
        let named = std::str::from_utf8(name).ok()?;
        let found = self.by_function.get(named).or_else(|| self.by_function.get(&named.to_ascii_lowercase()));
        let (library, name) = found?;
        Some((library, &library.functions[name]))
    }

    /// Whether there is a library of this name.
    pub fn has(&self, name: &str) -> bool {
        self.libraries.contains_key(name)
    }

    /// The libraries, by name.
    pub fn libraries(&self) -> impl ExactSizeIterator<Item = &Arc<Library>> {
        self.libraries.values()
    }

    /// The number of functions.
    pub fn n_functions(&self) -> usize {
        self.by_function.len()
    }

    /// The memory of the libraries, without the threads' loaded forms.
    pub fn n_bytes(&self) -> usize {
        let of_library =
            |library: &Arc<Library>| library.code.len() + library.functions.len() * size_of::<Function>();
        self.libraries.values().map(of_library).sum()
    }

    fn remove(&mut self, name: &str) -> bool {
        let Some(library) = self.libraries.remove(name) else { return false };
        let names = library.functions.keys();
        names.for_each(|name| drop(self.by_function.remove(&name.to_ascii_lowercase())));
        self.n_gone += 1;
        true
    }

    fn add(&mut self, library: &Arc<Library>) -> Result<(), Conflict> {
        if self.libraries.contains_key(&library.name) {
            return Err(Conflict::Library(library.name.clone()));
        }
        if let Some(taken) =
            library.functions.keys().find(|name| self.by_function.contains_key(&name.to_ascii_lowercase()))
        {
            return Err(Conflict::Function(taken.clone()));
        }
        self.libraries.insert(library.name.clone(), Arc::clone(library));
        for name in library.functions.keys() {
            self.by_function.insert(name.to_ascii_lowercase(), (Arc::clone(library), name.clone()));
        }
        Ok(())
    }
}

/// The treatment of existing libraries when others are added.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// They stay, and one of the same name is a conflict.
    Keep,
    /// They stay, except those of the same names.
    Replace,
    /// They are removed.
    Flush,
}

/// All libraries that are known.
#[derive(Default)]
pub struct Functions {
    known: ArcSwap<KnownFunctions>,
    /// Serialises changes.
    writer: Mutex<Writer>,
}

/// State of the one writer of libraries.
#[derive(Default)]
struct Writer {
    /// The number of libraries ever added.
    n_libraries: u64,
    /// Whether changes are forbidden: see [`Functions::freeze`].
    is_frozen: bool,
}

impl Functions {
    /// The libraries that are known now.
    #[inline]
    pub fn known(&self) -> Guard<Arc<KnownFunctions>> {
        self.known.load()
    }

    /// Adds libraries, all or none.
    ///
    /// # Errors
    /// If a name is taken, or changes are forbidden.
    pub fn add(&self, libraries: Vec<Library>, existing: Existing) -> Result<(), Conflict> {
        let mut writer = self.changing()?;
        let mut known = KnownFunctions::clone(&self.known.load());
        if existing == Existing::Flush {
            known = KnownFunctions { n_gone: known.n_gone + 1, ..KnownFunctions::default() };
        }
        for mut added in libraries {
            if existing == Existing::Replace {
                known.remove(&added.name);
            }
            writer.n_libraries += 1;
            added.id = writer.n_libraries;
            known.add(&Arc::new(added))?;
        }
        self.known.store(Arc::new(known));
        Ok(())
    }

    /// Deletes a library, and returns whether it existed.
    ///
    /// # Errors
    /// If changes are forbidden.
    pub fn delete(&self, name: &[u8]) -> Result<bool, Conflict> {
        let _writer = self.changing()?;
        let mut known = KnownFunctions::clone(&self.known.load());
        let is_gone = std::str::from_utf8(name).is_ok_and(|name| known.remove(name));
        if is_gone {
            self.known.store(Arc::new(known));
        }
        Ok(is_gone)
    }

    /// Forbids changes until [`Functions::thaw`].
    ///
    /// Libraries belong to no shard, so a cut does not stop clients from changing them. The known libraries
    /// stay the same after this.
    pub fn freeze(&self) {
        self.writer().is_frozen = true;
    }

    /// Lets libraries change again.
    pub fn thaw(&self) {
        self.writer().is_frozen = false;
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().expect("nobody panics with it")
    }

    fn changing(&self) -> Result<MutexGuard<'_, Writer>, Conflict> {
        let writer = self.writer();
        if writer.is_frozen { Err(Conflict::Ending) } else { Ok(writer) }
    }
}

impl Library {
    /// Creates a library that is not known yet.
    pub fn new(name: String, code: &[u8], functions: BTreeMap<String, Function>) -> Self {
        Self { id: 0, name, code: code.into(), functions }
    }
}

/// A thread's Lua for functions, with its loaded libraries.
pub struct ThreadFunctions {
    /// The state.
    pub engine: Engine,
    loaded: HashMap<u64, HashMap<String, Handle>>,
    /// The number of removals when the thread last checked.
    n_gone: u64,
}

impl ThreadFunctions {
    fn new() -> Self {
        Self {
            engine: Engine::new(&running_scripts::settings(Flavour::Functions)),
            loaded: HashMap::new(),
            n_gone: 0,
        }
    }

    /// Returns the engine's handle of a library's function.
    ///
    /// # Errors
    /// If the library does not load in this state. Then memory is exhausted, since it has loaded before.
    pub fn loaded(
        &mut self,
        library: &Library,
        function: &str,
        known: &KnownFunctions,
        host: &mut dyn Host,
    ) -> Result<Option<Handle>, LoadError> {
        if self.n_gone != known.n_gone {
            self.drop_gone(known);
        }
        if !self.loaded.contains_key(&library.id) {
            let specs = self.engine.load_library(&library.code, host)?;
            self.loaded.insert(library.id, specs.into_iter().map(|spec| (spec.name, spec.handle)).collect());
        }
        Ok(self.loaded[&library.id].get(function).copied())
    }

    #[cold]
    fn drop_gone(&mut self, known: &KnownFunctions) {
        let ids: HashSet<u64> = known.libraries.values().map(|library| library.id).collect();
        let engine = &mut self.engine;
        self.loaded.retain(|id, handles| {
            let stays = ids.contains(id);
            if !stays {
                handles.values().for_each(|handle| engine.forget(*handle));
            }
            stays
        });
        self.n_gone = known.n_gone;
    }
}

thread_local! {
    /// Created when the thread first needs it.
    static FUNCTIONS: RefCell<Option<Box<ThreadFunctions>>> = const { RefCell::new(None) };
}

/// Collects a little of the functions' garbage in the thread's Lua, if there is one. Returns whether there is
/// more.
pub fn collect_some(seen: &RunningScript) -> bool {
    FUNCTIONS.with_borrow_mut(|functions| {
        functions.as_mut().is_some_and(|own| running_scripts::collect_some(&mut own.engine, seen, true))
    })
}

/// Does work with the thread's Lua for functions. After a panic the thread has none until it is created
/// again.
///
/// # Panics
/// If it is in use: no function runs another by FCALL.
pub fn with_thread_functions<R>(work: impl FnOnce(&mut ThreadFunctions) -> R) -> R {
    FUNCTIONS.with(|functions| {
        let mut functions = functions.try_borrow_mut().expect("no function runs another");
        let mut own = functions.take().unwrap_or_else(|| Box::new(ThreadFunctions::new()));
        let result = work(&mut own);
        *functions = Some(own);
        result
    })
}
