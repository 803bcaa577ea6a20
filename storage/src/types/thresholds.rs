//! Up to which sizes values are packed: Redis's settings, under Redis's names.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

macro_rules! thresholds {
    ($($(#[$doc:meta])* $name:ident: $kind:ty = $number:ty, $default:literal;)*) => {
        /// The settings, shared by all shards and written by CONFIG SET only. A value that is past a setting
        /// already changes when it is next written to.
        #[derive(Debug)]
        pub struct Thresholds {
            $($(#[$doc])* pub $name: Setting<$kind>,)*
        }

        impl Default for Thresholds {
            fn default() -> Self {
                Self { $($name: Setting(<$kind>::new($default)),)* }
            }
        }

        $(impl Thresholds {
            $(#[$doc])*
            #[inline]
            pub fn $name(&self) -> $number {
                self.$name.0.load(Relaxed)
            }
        })*
    };
}

/// One setting. Relaxed: each stands for itself.
#[derive(Debug)]
pub struct Setting<A>(A);

impl Setting<AtomicUsize> {
    /// Changes the setting.
    pub fn set(&self, value: usize) {
        self.0.store(value, Relaxed);
    }
}

impl Setting<AtomicI64> {
    /// Changes the setting.
    pub fn set(&self, value: i64) {
        self.0.store(value, Relaxed);
    }
}

thresholds! {
    /// Fields of the largest packed hash.
    hash_max_listpack_entries: AtomicUsize = usize, 512;
    /// Bytes of the longest field or value in a packed hash.
    hash_max_listpack_value: AtomicUsize = usize, 64;
    /// Size of a list's node: elements if positive, else a size class from -1 (4 KiB) to -5 (64 KiB).
    list_max_listpack_size: AtomicI64 = i64, -2;
    /// Members of the largest set of integers.
    set_max_intset_entries: AtomicUsize = usize, 512;
    /// Members of the largest packed set.
    set_max_listpack_entries: AtomicUsize = usize, 128;
    /// Bytes of the longest member of a packed set.
    set_max_listpack_value: AtomicUsize = usize, 64;
    /// Members of the largest packed sorted set.
    zset_max_listpack_entries: AtomicUsize = usize, 128;
    /// Bytes of the longest member of a packed sorted set.
    zset_max_listpack_value: AtomicUsize = usize, 64;
    /// Bytes of a stream's node; 0: no limit.
    stream_node_max_bytes: AtomicUsize = usize, 4096;
    /// Entries of a stream's node; 0: no limit.
    stream_node_max_entries: AtomicUsize = usize, 100;
    /// Bytes of the largest sparse HyperLogLog.
    hll_sparse_max_bytes: AtomicUsize = usize, 3000;
}
