//! The file system as the AOF uses it: one folder.
//!
//! Tests have a disk that can lose the unsynced data at any moment.

use std::{
    ffi::OsStr,
    fs::{self, File, FileType, OpenOptions},
    io::{self, Read},
    os::unix::ffi::{OsStrExt, OsStringExt},
    os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rustix::{
    fs::{FallocateFlags, FlockOperation, OFlags, fallocate, fcntl_setfl, flock, statvfs},
    io::Errno,
};

use crate::manifest::{FileKind, part_named};

/// A folder of files.
pub trait Disk {
    /// An open file. Clones refer to the same file.
    type File: DiskFile;

    /// Reads all of a small file; `None` if no file has the name.
    ///
    /// # Errors
    /// The system's error. The same holds for the methods below.
    fn read(&self, name: &[u8]) -> io::Result<Option<Vec<u8>>>;

    /// Creates an empty file, in place of one with the same name.
    ///
    /// # Errors
    /// See [`Disk::read`].
    fn create(&mut self, name: &[u8]) -> io::Result<Self::File>;

    /// The names of all files.
    ///
    /// # Errors
    /// See [`Disk::read`].
    fn names(&self) -> io::Result<Vec<Vec<u8>>>;

    /// Opens an existing file.
    ///
    /// # Errors
    /// See [`Disk::read`].
    fn open(&mut self, name: &[u8]) -> io::Result<Self::File>;

    /// Renames a file, and replaces the one that had the new name.
    ///
    /// # Errors
    /// See [`Disk::read`].
    fn rename(&mut self, from: &[u8], to: &[u8]) -> io::Result<()>;

    /// Removes a file, if it exists.
    ///
    /// # Errors
    /// See [`Disk::read`].
    fn remove(&mut self, name: &[u8]) -> io::Result<()>;

    /// Syncs the folder. After that its list of files and names survives a crash of the machine.
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
    /// The system's error. Any part of the bytes may have been written then.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Reserves space: the file can grow up to `n_bytes` even if the disk fills up.
    ///
    /// The file's length does not change. Where the file system cannot reserve space, this does nothing.
    ///
    /// # Errors
    /// The system's error: in most cases the disk is full.
    fn reserve(&self, n_bytes: u64) -> io::Result<()>;

    /// Cuts the file to `n_bytes`, and releases the reserved space.
    ///
    /// # Errors
    /// The system's error.
    fn truncate(&self, n_bytes: u64) -> io::Result<()>;

    /// Syncs the file: after it returns, the content survives a crash of the machine.
    ///
    /// After an error the state of all unsynced data is unknown. Another sync does not help: the system may
    /// have dropped the data that it could not write.
    ///
    /// # Errors
    /// The system's error.
    fn sync(&self) -> io::Result<()>;

    /// Releases the lock that tells other servers that this process writes the file. Clones lose it, too: one
    /// may be in a sync that began before the file was closed.
    fn release(&self) {}
}

/// The disk of a spool, which has files without a name.
pub trait SpoolDisk: Send {
    /// Creates an empty file that vanishes when it is closed, whatever happens to the process.
    ///
    /// # Errors
    /// The system's error. The same holds for the methods below.
    fn create(&mut self) -> io::Result<Arc<dyn SpoolFile>>;

    /// The space on the disk.
    ///
    /// # Errors
    /// See [`SpoolDisk::create`].
    fn room(&self) -> io::Result<DiskRoom>;
}

/// A file of a [`SpoolDisk`].
pub trait SpoolFile: Send + Sync {
    /// Writes at an offset, in bytes.
    ///
    /// # Errors
    /// The system's error. Any part of the bytes may have been written then.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Reads bytes at an offset. All of them must be there.
    ///
    /// # Errors
    /// The system's error.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()>;
}

/// The space on a disk, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct DiskRoom {
    /// The space that this process may still fill.
    pub free_bytes: u64,
    /// All of it.
    pub all_bytes: u64,
}

/// Creates a file that vanishes when it is closed, whatever happens to the process.
///
/// # Errors
/// The system's error.
pub fn create_nameless(folder: &Path) -> io::Result<File> {
    static N_FILES: AtomicUsize = AtomicUsize::new(0);
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.clone().custom_flags(OFlags::TMPFILE.bits() as i32).open(folder) {
        Ok(file) => return Ok(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
        // The file system does not know such files.
        Err(_) => {}
    }
    let nth = N_FILES.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("temp-nameless-{}-{nth}", std::process::id()));
    let file = options.create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Opens a regular file for reading.
///
/// It refuses a FIFO, because opening one would wait for a writer that may never come.
///
/// # Errors
/// The system's error, or that it is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_at_once(path, |kind| kind.is_file())
}

/// Reads a whole file, which it opens with [`open_regular`].
///
/// # Errors
/// See [`open_regular`].
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a file or a pipe for reading.
///
/// Reads wait for the writers of a pipe. A pipe without writers is empty.
///
/// # Errors
/// The system's error, or that it is neither a file nor a pipe.
pub fn open_file_or_pipe(path: &Path) -> io::Result<File> {
    let file = open_at_once(path, |kind| kind.is_file() || kind.is_fifo())?;
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// Opens a file of a wanted kind without waiting. Reads of a pipe do not wait either.
fn open_at_once(path: &Path, is_wanted: fn(FileType) -> bool) -> io::Result<File> {
    let unwanted = || io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file");
    match File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path) {
        // The path is a socket.
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

/// A folder of the operating system.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    /// A locked file in the folder. The system releases the lock with the last copy, even if the process is
    /// killed.
    _lock: Option<Arc<File>>,
}

impl Folder {
    /// The folder at a path. It is not created, because files missing from it would then go unnoticed.
    pub fn at(path: PathBuf) -> Self {
        Self { path, _lock: None }
    }

    /// The folder at a path. Creates it if it does not exist, but not its parents.
    ///
    /// # Errors
    /// If the folder can be neither found nor created.
    pub fn new(path: PathBuf) -> io::Result<Self> {
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Self { path, _lock: None }),
        }
    }

    /// The folder at a path, locked for one AOF.
    ///
    /// The lock lasts as long as this value or a clone of it exists.
    ///
    /// The lock is for the AOF called `name`: as in Redis, two servers may each have an AOF in the same
    /// folder. It is a lock on the file `<name>.lock`, which stays in the folder. An operator may delete that
    /// file, so an increment that another server has open for writing counts as well. Where the file system
    /// has no locks, or the lock file cannot be created, the folder is not locked.
    ///
    /// # Errors
    /// If another server has the lock ([`io::ErrorKind::ResourceBusy`]), or as in [`Folder::new`].
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

    /// Whether a process has an increment of the AOF `of` open for writing.
    fn is_written(&self, of: &str) -> io::Result<bool> {
        let names = self.names()?;
        let mut increments = names
            .iter()
            .filter(|name| part_named(name, of).is_some_and(|(kind, _)| kind == FileKind::Increment));
        Ok(increments.any(|name| {
            let file = open_regular(&self.path_of(name));
            file.is_ok_and(|file| {
                flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
            })
        }))
    }

    /// The path of a file in the folder.
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

/// Locks a file that this process writes, until it is closed.
///
/// The lock is a shared one, because the process may open the file twice.
fn written(file: File) -> Arc<File> {
    // If the file system has no locks, the file stays unlocked.
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

    fn release(&self) {
        // A file without a lock stays without one.
        let _ = flock(&**self, FlockOperation::Unlock);
    }
}

impl SpoolDisk for Folder {
    fn create(&mut self) -> io::Result<Arc<dyn SpoolFile>> {
        Ok(Arc::new(create_nameless(&self.path)?))
    }

    fn room(&self) -> io::Result<DiskRoom> {
        let known = statvfs(&self.path)?;
        let bytes = |n_blocks: u64| n_blocks.saturating_mul(known.f_frsize);
        Ok(DiskRoom { free_bytes: bytes(known.f_bavail), all_bytes: bytes(known.f_blocks) })
    }
}

impl SpoolFile for File {
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(bytes, at)
    }
}
