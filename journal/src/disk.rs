//! What the append-only file needs of a file system: one folder. Tests have one that forgets, at any moment, what was not synced.

use std::{
    ffi::OsStr,
    fs::{self, File, FileType, OpenOptions},
    io::{self, Read},
    os::unix::ffi::{OsStrExt, OsStringExt},
    os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{FallocateFlags, FlockOperation, OFlags, fallocate, fcntl_setfl, flock},
    io::Errno,
};

use crate::manifest::{Kind, part_named};

/// A folder of files.
pub trait Disk {
    /// A file that is open; clones are of the same file.
    type File: DiskFile;

    /// All of a small file; `None` if there is none of the name.
    ///
    /// # Errors
    /// The system's; so it is with all that follow.
    fn read(&self, name: &[u8]) -> io::Result<Option<Vec<u8>>>;

    /// Makes a file, empty, also if there is one of the name.
    ///
    /// # Errors
    /// See [`Disk::read`].
    fn create(&mut self, name: &[u8]) -> io::Result<Self::File>;

    /// The names of all files.
    ///
    /// # Errors
    /// See [`Disk::read`].
    fn names(&self) -> io::Result<Vec<Vec<u8>>>;

    /// Opens a file that is there.
    ///
    /// # Errors
    /// See [`Disk::read`].
    fn open(&mut self, name: &[u8]) -> io::Result<Self::File>;

    /// Gives a file another name, and takes that from the one which had it.
    ///
    /// # Errors
    /// See [`Disk::read`].
    fn rename(&mut self, from: &[u8], to: &[u8]) -> io::Result<()>;

    /// Removes a file, if it is there.
    ///
    /// # Errors
    /// See [`Disk::read`].
    fn remove(&mut self, name: &[u8]) -> io::Result<()>;

    /// Returns when which files there are, and their names, will outlast the machine's end.
    ///
    /// # Errors
    /// See [`Disk::read`].
    fn sync_folder(&mut self) -> io::Result<()>;
}

/// A file of a [`Disk`].
pub trait DiskFile: Clone + Send {
    /// Writes at an offset, in bytes.
    ///
    /// # Errors
    /// The system's. Any part of the bytes may be there then.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Sees to it that the file can grow up to so many bytes without the disk being full. Its length stays what it is. Where the file
    /// system cannot do that it does nothing.
    ///
    /// # Errors
    /// The system's: mostly that the disk is full.
    fn reserve(&self, n_bytes: u64) -> io::Result<()>;

    /// Cuts it off, and gives back what was reserved.
    ///
    /// # Errors
    /// The system's.
    fn truncate(&self, n_bytes: u64) -> io::Result<()>;

    /// Returns when its content will outlast the machine's end. After an error that is not known of anything, and to ask again is no answer: the
    /// system may have dropped what it could not write.
    ///
    /// # Errors
    /// The system's.
    fn sync(&self) -> io::Result<()>;
}

/// Opens a file for reading. To open a FIFO in its place would wait for a writer, who may never come.
///
/// # Errors
/// The system's, or that it is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_at_once(path, |kind| kind.is_file())
}

/// Reads a whole file, as [`open_regular`] opens it.
///
/// # Errors
/// See [`open_regular`].
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a file, or a pipe. What others write to the pipe from now on is waited for. A pipe without writers is empty.
///
/// # Errors
/// The system's, or that it is neither.
pub fn open_file_or_pipe(path: &Path) -> io::Result<File> {
    let file = open_at_once(path, |kind| kind.is_file() || kind.is_fifo())?;
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// Opens for reading what is of a kind that is wanted. Reads of a pipe do not wait either.
fn open_at_once(path: &Path, is_wanted: fn(FileType) -> bool) -> io::Result<File> {
    let unwanted = || io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file");
    match File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path) {
        // A socket.
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => Err(unwanted()),
        Err(error) => Err(error),
        Ok(file) => {
            if is_wanted(file.metadata()?.file_type()) {
                Ok(file)
            } else {
                Err(unwanted())
            }
        }
    }
}

/// A folder of the system's.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    /// A file in it, locked. The system lets go of it when the last copy is closed, also when the process is killed.
    _lock: Option<Arc<File>>,
}

impl Folder {
    /// The folder of a path, where nothing is made if it is not there: files that were in it would be missed in another one.
    pub fn at(path: PathBuf) -> Self {
        Self { path, _lock: None }
    }

    /// The folder of a path, which is made if it is not there, but not those above it.
    ///
    /// # Errors
    /// If it can be neither found nor made.
    pub fn new(path: PathBuf) -> io::Result<Self> {
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Self { path, _lock: None }),
        }
    }

    /// The same, for as long as this or a copy of it is there for nobody else who asks for it with this name. The name is that of the
    /// append-only file: as in Redis, two servers may have one each in a folder. What is locked is a file beside it, which stays. Somebody may
    /// delete that file, so an increment that another has open for writing counts, too.
    /// Where the file system has no locks, or does not let it be made, it is nobody's.
    ///
    /// # Errors
    /// If another has it ([`io::ErrorKind::ResourceBusy`]), or as in [`Folder::new`].
    pub fn locked(path: PathBuf, name: &str) -> io::Result<Self> {
        let folder = Self::new(path)?;
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(folder.path.join(format!("{name}.lock")));
        let busy = || {
            let why = "another server that is running has its append-only file there";
            Err(io::Error::new(io::ErrorKind::ResourceBusy, why))
        };
        if folder.is_written(name)? {
            return busy();
        }
        let Ok(lock) = file else { return Ok(folder) };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => busy(),
            Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP | Errno::BADF | Errno::INVAL) => Ok(folder),
            locked => {
                locked.map(|()| Self { _lock: Some(Arc::new(lock)), ..folder }).map_err(io::Error::from)
            }
        }
    }

    /// Whether somebody has an increment of the append-only file `of` open for writing.
    fn is_written(&self, of: &str) -> io::Result<bool> {
        let names = self.names()?;
        let mut increments =
            names.iter().filter(|name| part_named(name, of).is_some_and(|(kind, _)| kind == Kind::Increment));
        Ok(increments.any(|name| {
            let file = open_regular(&self.path_of(name));
            file.is_ok_and(|file| {
                flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
            })
        }))
    }

    /// The path of a file.
    pub fn path_of(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(name))
    }
}

impl Disk for Folder {
    type File = Arc<File>;

    fn read(&self, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
        match read_regular(&self.path_of(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    fn create(&mut self, name: &[u8]) -> io::Result<Arc<File>> {
        File::create(self.path_of(name)).map(written)
    }

    fn names(&self) -> io::Result<Vec<Vec<u8>>> {
        fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().into_vec())).collect()
    }

    fn open(&mut self, name: &[u8]) -> io::Result<Arc<File>> {
        OpenOptions::new().write(true).open(self.path_of(name)).map(written)
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> io::Result<()> {
        fs::rename(self.path_of(from), self.path_of(to))
    }

    fn remove(&mut self, name: &[u8]) -> io::Result<()> {
        match fs::remove_file(self.path_of(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn sync_folder(&mut self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

/// A file that this process writes, locked for as long as it is open. The lock is a shared one, as the process may open the file twice.
fn written(file: File) -> Arc<File> {
    // A file system without locks has none here either.
    let _ = flock(&file, FlockOperation::NonBlockingLockShared);
    Arc::new(file)
}

impl DiskFile for Arc<File> {
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn reserve(&self, n_bytes: u64) -> io::Result<()> {
        match fallocate(&**self, FallocateFlags::KEEP_SIZE, 0, n_bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            reserved => Ok(reserved?),
        }
    }

    fn truncate(&self, n_bytes: u64) -> io::Result<()> {
        self.set_len(n_bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
