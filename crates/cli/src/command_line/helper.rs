//! Calls by `mount(8)`, for an entry of `/etc/fstab` or for `mount -t`.
//!
//! | called as | by | when |
//! | --- | --- | --- |
//! | `mount.fuse.outrigger STORE DIR -o OPT,…`, or `mount.outrigger …` | `mount(8)` | a link of that name to this program lies in `/sbin` |
//! | `outrigger STORE DIR -o OPT,…` | `mount.fuse3(8)` | there is no such link, and the type is `fuse.outrigger` |
//!
//! Both become `outrigger --store STORE mount DIR -o OPT,…`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const NAMES: [&str; 2] = ["mount.outrigger", "mount.fuse.outrigger"];

/// The command line to parse, for the one that was given.
pub fn command_line(given: Vec<OsString>) -> Vec<OsString> {
    let name = given.first().and_then(|name| Path::new(name).file_name()?.to_str());
    let named = name.is_some_and(|name| NAMES.contains(&name));
    // No command begins with a slash.
    let by_mount_fuse = given.len() >= 5 && given[1].as_bytes().starts_with(b"/") && given[3] == "-o";
    if !named && !by_mount_fuse {
        return given;
    }
    let (mut places, mut options) = (Vec::new(), Vec::new());
    let mut rest = given.into_iter().skip(1);
    while let Some(word) = rest.next() {
        match word.to_str() {
            Some("-o") => options.extend(rest.next()),
            // The type and the name space are known already.
            Some("-t" | "-N") => drop(rest.next()),
            // Sloppy, no mtab, verbose: they change nothing here.
            Some("-s" | "-n" | "-v") => {}
            _ => places.push(word),
        }
    }
    let mut line: Vec<OsString> = ["outrigger", "--store"].map(OsString::from).to_vec();
    let mut places = places.into_iter();
    line.extend(places.next());
    line.push("mount".into());
    line.extend(places);
    line.extend(options.into_iter().flat_map(|option| [OsString::from("-o"), option]));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &str) -> String {
        let given = words.split(' ').map(OsString::from).collect();
        command_line(given).join(std::ffi::OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn mount_helpers_become_commands() {
        let mount = "outrigger --store /s mount /mnt -o ro,at=x";
        assert_eq!(line("/sbin/mount.fuse.outrigger /s /mnt -o ro,at=x"), mount);
        assert_eq!(line("mount.outrigger /s /mnt -s -n -t fuse.outrigger -o ro,at=x"), mount);
        assert_eq!(line("outrigger /s /mnt -o ro,at=x"), mount);
        for other in ["outrigger mount /mnt -o ro", "outrigger ls /a", "outrigger get /a /b -q -q"] {
            assert_eq!(line(other), other);
        }
    }
}
