//! The extended attributes, ACLs, modes, owners and times of a nasty tree. Those that would forbid
//! making more entries are noted here and set at the very end, by `finish`.

use std::fs;
use std::io;
use std::os::unix::fs::{lchown, symlink};
use std::path::Path;

use rustix::fs::{XattrFlags, lsetxattr};
use rustix::io::Errno;

use super::Nasty;

impl Nasty<'_> {
    pub(super) fn xattr(&mut self, relative: &str, name: &str, value: &[u8]) -> io::Result<()> {
        let path = self.path(relative)?;
        if fs::symlink_metadata(&path).is_err() {
            self.file(relative, 20)?;
        }
        Ok(lsetxattr(&path, name, value, XattrFlags::empty())?)
    }

    pub(super) fn user_xattrs(&mut self) -> io::Result<()> {
        self.xattr("xattrs/user", "user.text", "värde".as_bytes())?;
        self.xattr("xattrs/user", "user.empty", b"")?;
        self.xattr("xattrs/user", "user.binary", &[0, 255, 0, 10])?;
        let mut large = vec![0; 2000];
        self.rng.fill(&mut large);
        self.xattr("xattrs/user", "user.large", &large)?;
        fs::create_dir_all(self.path("xattrs/dir")?)?;
        self.xattr("xattrs/dir", "user.on-a-directory", b"1")?;
        for number in 0..20 {
            self.xattr("xattrs/many", &format!("user.name{number}"), &[number; 30])?;
        }
        Ok(())
    }

    /// An ACL in the kernel's form: version 2, then (tag, permissions, id) by rising tags.
    pub(super) fn acl(&mut self, relative: &str, name: &str) -> io::Result<()> {
        const NO_ID: u32 = u32::MAX;
        let mut value = 2u32.to_le_bytes().to_vec();
        let entries: [(u16, u16, u32); 6] = [
            (0x01, 6, NO_ID),
            (0x02, 4, 1234),
            (0x04, 4, NO_ID),
            (0x08, 6, 5678),
            (0x10, 6, NO_ID),
            (0x20, 0, NO_ID),
        ];
        for (tag, permissions, id) in entries {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&permissions.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        self.xattr(relative, name, &value)
    }

    pub(super) fn modes(&mut self) -> io::Result<()> {
        for mode in [0o4755, 0o2755, 0o6711, 0o1644, 0o444, 0o777, 0o600] {
            let relative = format!("modes/{mode:o}");
            self.file(&relative, 10)?;
            self.modes.push((relative.into(), mode));
        }
        for mode in [0o1777, 0o2775, 0o700] {
            let relative = format!("modes/dir-{mode:o}");
            fs::create_dir_all(self.path(&relative)?)?;
            self.modes.push((relative.into(), mode));
        }
        self.file("modes/read-only-dir/file", 10)?;
        self.file("modes/read-only-dir/below/file", 10)?;
        self.modes.push(("modes/read-only-dir/below".into(), 0o555));
        self.modes.push(("modes/read-only-dir".into(), 0o555));
        Ok(())
    }

    /// Only as root, which can read them all the same: no other user could make a copy.
    pub(super) fn unreadable(&mut self) -> io::Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Err(Errno::PERM.into());
        }
        for (name, mode) in
            [("unreadable/none", 0), ("unreadable/write", 0o200), ("unreadable/execute", 0o111)]
        {
            self.file(name, 3000)?;
            self.modes.push((name.into(), mode));
        }
        self.file("unreadable/dir/file", 30)?;
        self.modes.push(("unreadable/dir".into(), 0));
        Ok(())
    }

    pub(super) fn owners(&mut self) -> io::Result<()> {
        let file = self.file("owners/file", 10)?;
        lchown(file, Some(1234), Some(5678))?;
        let file = self.file("owners/setuid", 10)?;
        lchown(file, Some(65_534), Some(65_534))?;
        self.modes.push(("owners/setuid".into(), 0o6755));
        let link = self.path("owners/symlink")?;
        symlink("file", &link)?;
        lchown(link, Some(4_000_000_000), Some(1))?;
        let dir = self.path("owners/dir/file")?;
        fs::write(&dir, b"")?;
        lchown(self.path("owners/dir")?, Some(1), Some(2))
    }

    /// `cap_net_bind_service=ep` as revision 2 of the kernel's structure. A restore that sets the
    /// owner after the attributes loses it.
    pub(super) fn capabilities(&mut self) -> io::Result<()> {
        let words: [u32; 5] = [0x0200_0001, 1 << 10, 0, 0, 0];
        let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.xattr("xattrs/capable", "security.capability", &value)
    }

    pub(super) fn times(&mut self) -> io::Result<()> {
        let times: [(&str, i64, u32); 9] = [
            ("before-1970", -86_400 * 365 * 10, 123_456_789),
            ("just-before-1970", -1, 999_999_999),
            ("1901", -2_147_483_648, 0),
            ("1970", 0, 0),
            ("one-nanosecond", 0, 1),
            ("2038", 2_147_483_648, 0),
            ("2100", 4_102_444_800, 999_999_999),
            ("microseconds", 1_600_000_000, 123_456_000),
            ("nanoseconds", 1_600_000_000, 123_456_789),
        ];
        for (name, secs, nanos) in times {
            let relative = Path::new("times").join(name);
            self.file(&relative, 10)?;
            self.times.push((relative, secs, nanos));
        }
        fs::create_dir_all(self.path("times/dir")?)?;
        self.times.push(("times/dir".into(), -5, 5));
        Ok(())
    }
}
