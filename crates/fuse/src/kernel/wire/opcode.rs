//! Numbers of the protocol's operations that are answered, and how long their fixed fields are.

pub const LOOKUP: u32 = 1;
pub const FORGET: u32 = 2;
pub const GETATTR: u32 = 3;
pub const SETATTR: u32 = 4;
pub const READLINK: u32 = 5;
pub const SYMLINK: u32 = 6;
pub const MKNOD: u32 = 8;
pub const MKDIR: u32 = 9;
pub const UNLINK: u32 = 10;
pub const RMDIR: u32 = 11;
pub const RENAME: u32 = 12;
pub const LINK: u32 = 13;
pub const OPEN: u32 = 14;
pub const READ: u32 = 15;
pub const WRITE: u32 = 16;
pub const STATFS: u32 = 17;
pub const RELEASE: u32 = 18;
pub const FSYNC: u32 = 20;
pub const SETXATTR: u32 = 21;
pub const GETXATTR: u32 = 22;
pub const LISTXATTR: u32 = 23;
pub const REMOVEXATTR: u32 = 24;
pub const FLUSH: u32 = 25;
pub const INIT: u32 = 26;
pub const OPENDIR: u32 = 27;
pub const READDIR: u32 = 28;
pub const RELEASEDIR: u32 = 29;
pub const FSYNCDIR: u32 = 30;
pub const GETLK: u32 = 31;
pub const SETLK: u32 = 32;
pub const SETLKW: u32 = 33;
pub const ACCESS: u32 = 34;
pub const CREATE: u32 = 35;
pub const INTERRUPT: u32 = 36;
pub const DESTROY: u32 = 38;
pub const NOTIFY_REPLY: u32 = 41;
pub const BATCH_FORGET: u32 = 42;
pub const FALLOCATE: u32 = 43;
pub const READDIRPLUS: u32 = 44;
pub const RENAME2: u32 = 45;
pub const LSEEK: u32 = 46;
pub const COPY_FILE_RANGE: u32 = 47;
pub const TMPFILE: u32 = 51;

/// Bytes of an operation's fixed fields, as the device sends them: names and data come after.
/// `None` for operations that are not answered.
pub fn fields_len(opcode: u32) -> Option<usize> {
    Some(match opcode {
        LOOKUP | READLINK | SYMLINK | UNLINK | RMDIR | STATFS | REMOVEXATTR | DESTROY => 0,
        FORGET | MKDIR | RENAME | LINK | OPEN | SETXATTR | GETXATTR | LISTXATTR | OPENDIR | ACCESS
        | BATCH_FORGET | INTERRUPT => 8,
        GETATTR | MKNOD | RENAME2 | FSYNC | FSYNCDIR | CREATE | TMPFILE => 16,
        RELEASE | RELEASEDIR | FLUSH | LSEEK => 24,
        FALLOCATE => 32,
        READ | WRITE | READDIR | READDIRPLUS => 40,
        GETLK | SETLK | SETLKW => 48,
        COPY_FILE_RANGE => 56,
        INIT => 64,
        SETATTR => 88,
        _ => return None,
    })
}

/// An operation's name.
pub fn name(opcode: u32) -> &'static str {
    match opcode {
        LOOKUP => "LOOKUP",
        FORGET => "FORGET",
        GETATTR => "GETATTR",
        SETATTR => "SETATTR",
        READLINK => "READLINK",
        SYMLINK => "SYMLINK",
        MKNOD => "MKNOD",
        MKDIR => "MKDIR",
        UNLINK => "UNLINK",
        RMDIR => "RMDIR",
        RENAME => "RENAME",
        LINK => "LINK",
        OPEN => "OPEN",
        READ => "READ",
        WRITE => "WRITE",
        STATFS => "STATFS",
        RELEASE => "RELEASE",
        FSYNC => "FSYNC",
        SETXATTR => "SETXATTR",
        GETXATTR => "GETXATTR",
        LISTXATTR => "LISTXATTR",
        REMOVEXATTR => "REMOVEXATTR",
        FLUSH => "FLUSH",
        INIT => "INIT",
        OPENDIR => "OPENDIR",
        READDIR => "READDIR",
        RELEASEDIR => "RELEASEDIR",
        FSYNCDIR => "FSYNCDIR",
        GETLK => "GETLK",
        SETLK => "SETLK",
        SETLKW => "SETLKW",
        ACCESS => "ACCESS",
        CREATE => "CREATE",
        INTERRUPT => "INTERRUPT",
        DESTROY => "DESTROY",
        NOTIFY_REPLY => "NOTIFY_REPLY",
        BATCH_FORGET => "BATCH_FORGET",
        FALLOCATE => "FALLOCATE",
        READDIRPLUS => "READDIRPLUS",
        RENAME2 => "RENAME2",
        LSEEK => "LSEEK",
        COPY_FILE_RANGE => "COPY_FILE_RANGE",
        TMPFILE => "TMPFILE",
        _ => "unknown",
    }
}
