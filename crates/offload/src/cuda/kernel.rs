//! The kernels by name, with their source and the threads of a block.

/// A kernel source, and the PTX made from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum Module {
    Blake3,
    HashMany,
    Ingest,
    PmdHash,
    Scan,
    ScanWindows,
    Table,
    WindowHash,
}

impl Module {
    pub(crate) const ALL: [Module; 8] = [
        Self::Blake3,
        Self::HashMany,
        Self::Ingest,
        Self::PmdHash,
        Self::Scan,
        Self::ScanWindows,
        Self::Table,
        Self::WindowHash,
    ];

    /// The committed PTX, which `scripts/kernels.py` made.
    pub(crate) fn ptx(self) -> &'static str {
        match self {
            Self::Blake3 => include_str!("../../kernels/ptx/blake3.ptx"),
            Self::HashMany => include_str!("../../kernels/ptx/hash_many.ptx"),
            Self::Ingest => include_str!("../../kernels/ptx/ingest.ptx"),
            Self::PmdHash => include_str!("../../kernels/ptx/pmd_hash.ptx"),
            Self::Scan => include_str!("../../kernels/ptx/scan.ptx"),
            Self::ScanWindows => include_str!("../../kernels/ptx/scan_windows.ptx"),
            Self::Table => include_str!("../../kernels/ptx/table.ptx"),
            Self::WindowHash => include_str!("../../kernels/ptx/window_hash.ptx"),
        }
    }
}

/// A kernel. Its parameters are documented in the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kernel {
    /// Its name in the source, as a C string for interfaces that need one.
    pub(crate) name: &'static std::ffi::CStr,
    pub(crate) module: Module,
    /// Threads of a block. The source relies on it.
    pub(crate) threads: u32,
}

macro_rules! kernels {
    ($($constant:ident = $name:literal, $module:ident, $threads:literal;)*) => {
        $(pub(crate) const $constant: Kernel =
            Kernel { name: $name, module: Module::$module, threads: $threads };)*
        /// Every kernel.
        pub(crate) const ALL: &[Kernel] = &[$($constant),*];
    };
}

kernels! {
    BLAKE3_RANGES = c"blake3_ranges", Blake3, 32;
    BLAKE3_RANGES_DIRECT = c"blake3_ranges_direct", Blake3, 32;
    BLAKE3_MERGE = c"blake3_merge", Blake3, 128;
    HASH_MD5 = c"hash_md5", HashMany, 32;
    HASH_SHA1 = c"hash_sha1", HashMany, 32;
    HASH_SHA256 = c"hash_sha256", HashMany, 32;
    HASH_MD5_DIRECT = c"hash_md5_direct", HashMany, 32;
    HASH_SHA1_DIRECT = c"hash_sha1_direct", HashMany, 32;
    HASH_SHA256_DIRECT = c"hash_sha256_direct", HashMany, 32;
    PMD_LEVEL_MD5 = c"pmd_level_md5", PmdHash, 32;
    PMD_LEVEL_SHA1 = c"pmd_level_sha1", PmdHash, 32;
    PMD_LEVEL_SHA256 = c"pmd_level_sha256", PmdHash, 32;
    PMD_LEVEL_MD5_DIRECT = c"pmd_level_md5_direct", PmdHash, 32;
    PMD_LEVEL_SHA1_DIRECT = c"pmd_level_sha1_direct", PmdHash, 32;
    PMD_LEVEL_SHA256_DIRECT = c"pmd_level_sha256_direct", PmdHash, 32;
    PMD_FINISH_MD5 = c"pmd_finish_md5", PmdHash, 1;
    PMD_FINISH_SHA1 = c"pmd_finish_sha1", PmdHash, 1;
    PMD_FINISH_SHA256 = c"pmd_finish_sha256", PmdHash, 1;
    PMD_MANY_MD5 = c"pmd_many_md5", PmdHash, 32;
    PMD_MANY_SHA1 = c"pmd_many_sha1", PmdHash, 32;
    PMD_MANY_SHA256 = c"pmd_many_sha256", PmdHash, 32;
    SCAN_BITS = c"scan_bits", Scan, 128;
    SCAN_OFFSETS = c"scan_offsets", Scan, 256;
    SCAN_EMIT = c"scan_emit", Scan, 128;
    SCAN_WINDOWS_MD5 = c"scan_windows_md5", ScanWindows, 128;
    SCAN_WINDOWS_SHA1 = c"scan_windows_sha1", ScanWindows, 128;
    SCAN_WINDOWS_RABIN = c"scan_windows_rabin", ScanWindows, 128;
    WINDOW_MD5 = c"window_md5", WindowHash, 128;
    WINDOW_SHA1 = c"window_sha1", WindowHash, 128;
    WINDOW_RABIN = c"window_rabin", WindowHash, 128;
    WINDOW_GEAR32 = c"window_gear32", WindowHash, 128;
    WINDOW_MD5_DIRECT = c"window_md5_direct", WindowHash, 128;
    WINDOW_SHA1_DIRECT = c"window_sha1_direct", WindowHash, 128;
    WINDOW_RABIN_DIRECT = c"window_rabin_direct", WindowHash, 128;
    WINDOW_GEAR32_DIRECT = c"window_gear32_direct", WindowHash, 128;
    WINDOW_ROWS_MD5 = c"window_rows_md5", WindowHash, 32;
    WINDOW_ROWS_SHA1 = c"window_rows_sha1", WindowHash, 32;
    WINDOW_ROWS_MD5_DIRECT = c"window_rows_md5_direct", WindowHash, 32;
    WINDOW_ROWS_SHA1_DIRECT = c"window_rows_sha1_direct", WindowHash, 32;
    TABLE_LOOKUP = c"table_lookup", Table, 128;
    TABLE_INSERT = c"table_insert", Table, 128;
    TABLE_REMOVE = c"table_remove", Table, 128;
    TABLE_CLEAR = c"table_clear", Table, 128;
    TABLE_REFRESH = c"table_refresh", Table, 128;
    INGEST_CUT = c"ingest_cut", Ingest, 32;
    INGEST_GATHER = c"ingest_gather", Ingest, 32;
    INGEST_REPORT = c"ingest_report", Ingest, 128;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parameters of a PTX entry: their number, and the size of the largest in bytes.
    fn parameters(ptx: &str, name: &str) -> (usize, usize) {
        let entry =
            ptx.split(&format!(".visible .entry {name}(")).nth(1).unwrap_or_else(|| panic!("no {name}"));
        let list = entry.split(')').next().expect("a list of parameters");
        let bytes = |line: &str| if line.contains(".param .u64") { 8 } else { 4 };
        let lines = list.lines().filter(|line| line.contains(".param"));
        (lines.clone().count(), lines.map(bytes).max().unwrap_or(0))
    }

    #[test]
    fn every_kernel_is_in_its_module_with_plain_parameters() {
        for kernel in ALL {
            let name = kernel.name.to_str().expect("a name");
            let (count, bytes) = parameters(kernel.module.ptx(), name);
            assert!((2..=16).contains(&count), "{name} has {count} parameters");
            assert!(bytes <= 8, "{name}");
        }
        let entries: usize =
            Module::ALL.iter().map(|module| module.ptx().matches(".visible .entry ").count()).sum();
        assert_eq!(entries, ALL.len(), "kernels that nobody launches");
    }
}
