//! Between our numbers and those of FUSE.

/// Unit of `st_blocks`, bytes.
pub const SECTOR: u64 = 512;
/// The size of reads that `stat` recommends: one frame.
pub const IO_BYTES: u32 = 256 << 10;

/// A device number as FUSE has it: 32 bits, the minor's upper part above the major.
pub fn kernel_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xfff00) << 12
}

/// The reverse of the kernel's 32 bits.
pub fn device(device: u32) -> u64 {
    rustix::fs::makedev(device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_survive_there_and_back() {
        for (major, minor) in [(0, 0), (1, 3), (7, 200), (4095, 1_048_575), (259, 300)] {
            let there = rustix::fs::makedev(major, minor);
            assert_eq!(device(kernel_device(there)), there);
        }
    }
}
