//! Reads what `strace -f -y -xx` writes.
//!
//! One line a call: `TID name(arguments) = result`, or two where another thread's call came
//! between: `TID name(begin <unfinished ...>` and later `TID <... name resumed>rest) = result`.
//! With `-xx` every string, and with `-y` every descriptor's path after it, is in hexadecimal, so
//! that brackets, commas and quotes have one meaning each: `pwrite64(3</path>, "\x61\x62", 2, 0) =
//! 2`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A system call that has returned.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Call {
    pub(super) tid: u32,
    pub(super) name: String,
    pub(super) args: Vec<String>,
    /// The returned value: not negative, since failed calls are left out.
    pub(super) result: u64,
    /// Path of the descriptor it returned.
    pub(super) result_path: Option<Described>,
    /// How many steps had been recorded when it began.
    pub(super) began: usize,
}

/// The meaning of a line.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Event {
    Call(Call),
    /// The call that thread `tid` has begun is a fork: the next unknown thread may be its child.
    Begun {
        tid: u32,
        name: String,
        args: String,
    },
    /// Thread `tid` ended.
    Ended {
        tid: u32,
    },
    /// A call that failed, a signal.
    Nothing,
}

/// A descriptor's path, as the kernel names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Described {
    pub(super) path: PathBuf,
    /// It has no name any more.
    pub(super) deleted: bool,
}

/// Joins lines to calls.
#[derive(Default)]
pub(super) struct Parser {
    unfinished: HashMap<u32, (String, usize)>,
}

impl Parser {
    /// Takes the next line; `steps` is how many steps have been recorded so far. `None`: the line
    /// is not understood.
    pub(super) fn line(&mut self, line: &str, steps: usize) -> Option<Event> {
        let (tid, text) = line.trim_start().split_once(' ')?;
        let (tid, text) = (tid.parse().ok()?, text.trim_start());
        if text.starts_with("+++") {
            self.unfinished.remove(&tid);
            return Some(Event::Ended { tid });
        }
        if text.starts_with("---") {
            return Some(Event::Nothing);
        }
        if let Some(text) = text.strip_suffix("<unfinished ...>") {
            let (name, args) = text.split_once('(')?;
            let event = Event::Begun { tid, name: name.into(), args: args.into() };
            self.unfinished.insert(tid, (text.trim_end().into(), steps));
            return Some(event);
        }
        if let Some(resumed) = text.strip_prefix("<... ") {
            let (_, rest) = resumed.split_once(" resumed>")?;
            let (begin, began) = self.unfinished.remove(&tid)?;
            return call(tid, &format!("{begin}{rest}"), began);
        }
        call(tid, text, steps)
    }
}

fn call(tid: u32, text: &str, began: usize) -> Option<Event> {
    let (name, rest) = text.split_once('(')?;
    let (args, rest) = arguments(rest)?;
    let result = rest.trim_start().strip_prefix('=')?.trim_start();
    if result.starts_with(['-', '?']) {
        return Some(Event::Nothing);
    }
    let digits = result.find(|c: char| !c.is_ascii_digit()).unwrap_or(result.len());
    let hexadecimal = result.starts_with("0x").then_some(0); // an address: no call here needs it
    let (value, described) = (hexadecimal.or(result[..digits].parse().ok())?, described(&result[digits..]));
    Some(Event::Call(Call { tid, name: name.into(), args, result: value, result_path: described, began }))
}

/// Splits at commas outside of brackets and quotes, up to the closing bracket of the call.
fn arguments(text: &str) -> Option<(Vec<String>, &str)> {
    let (mut args, mut start, mut depth, mut quoted, mut path) = (Vec::new(), 0, 0, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if !path => quoted = !quoted,
            _ if quoted => {}
            b'>' if path => path = false,
            _ if path => {}
            // A descriptor's path follows a digit or AT_FDCWD; `1 << 3` does not look like one.
            b'<' if at > 0 && text.as_bytes()[at - 1].is_ascii_alphanumeric() => path = true,
            b'(' | b'[' | b'{' => depth += 1,
            b')' if depth == 0 => {
                if at > start {
                    args.push(text[start..at].trim().into());
                }
                return Some((args, &text[at + 1..]));
            }
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                args.push(text[start..at].trim().into());
                start = at + 1;
            }
            _ => {}
        }
    }
    None
}

/// The bytes of `\x61\x62…`; other characters stand for themselves.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    let mut bytes = Vec::with_capacity(text.len() / 4);
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with(b"\\x") {
            let digits = std::str::from_utf8(text.get(at + 2..at + 4)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            at += 4;
        } else {
            bytes.push(text[at]);
            at += 1;
        }
    }
    Some(bytes)
}

fn described(text: &str) -> Option<Described> {
    let (path, rest) = text.strip_prefix('<')?.split_once('>')?;
    let path = PathBuf::from(OsString::from_vec(unescape(path)?));
    Some(Described { path, deleted: rest.starts_with("(deleted)") })
}

/// A string argument. `None` when it was cut short.
pub(super) fn string(arg: &str) -> Option<Vec<u8>> {
    let (text, rest) = arg.strip_prefix('"')?.split_once('"')?;
    if rest.is_empty() { unescape(text) } else { None }
}

/// A path argument.
pub(super) fn path(arg: &str) -> Option<PathBuf> {
    string(arg).map(|bytes| PathBuf::from(OsString::from_vec(bytes)))
}

/// A descriptor argument: its number (`None` for `AT_FDCWD`) and its path.
pub(super) fn descriptor(arg: &str) -> Option<(Option<i32>, Option<Described>)> {
    let end = arg.find('<').unwrap_or(arg.len());
    let number = match &arg[..end] {
        "AT_FDCWD" => None,
        digits => Some(digits.parse().ok()?),
    };
    Some((number, described(&arg[end..])))
}

/// A number argument, decimal or octal or hexadecimal.
pub(super) fn number(arg: &str) -> Option<i64> {
    match arg.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => arg.parse().ok(),
    }
}

/// The bytes of an array of buffers, concatenated. `None` when one of them was cut short.
pub(super) fn buffers(arg: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for part in arg.split("iov_base=").skip(1) {
        let end = part[1..].find('"')? + 2;
        bytes.extend(string(&part[..end])?);
        if part[end..].starts_with("...") {
            return None;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Call {
        match Parser::default().line(line, 7) {
            Some(Event::Call(call)) => call,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_write_and_its_path() {
        let call = one(r#"12  pwrite64(3<\x2f\x61>(deleted), "\x61\x2c\x22", 3, 4096) = 3"#);
        assert_eq!((call.tid, call.name.as_str(), call.result, call.began), (12, "pwrite64", 3, 7));
        let file = Described { path: "/a".into(), deleted: true };
        assert_eq!(descriptor(&call.args[0]), Some((Some(3), Some(file))));
        assert_eq!(string(&call.args[1]), Some(b"a,\"".to_vec()));
        assert_eq!(number(&call.args[3]), Some(4096));
    }

    #[test]
    fn buffers_are_joined_unless_cut() {
        let call = one(
            r#"1 pwritev2(6</x>, [{iov_base="\x61\x62", iov_len=2}, {iov_base="", iov_len=0}, {iov_base="\x63", iov_len=1}], 3, 7, 0) = 3"#,
        );
        assert_eq!(buffers(&call.args[1]), Some(b"abc".to_vec()));
        assert_eq!(call.args.len(), 5);
        assert_eq!(buffers(r#"[{iov_base="\x61"..., iov_len=2}]"#), None);
        assert_eq!(string(r#""\x61"..."#), None);
    }

    #[test]
    fn an_opened_file() {
        let call = one(r#"1 openat(AT_FDCWD<\x2f>, "\x78", O_RDWR|O_CREAT, 0600) = 5<\x2f\x78>"#);
        assert_eq!(call.result, 5);
        assert_eq!(call.result_path, Some(Described { path: "/x".into(), deleted: false }));
        assert_eq!(descriptor(&call.args[0]).unwrap().0, None);
        let call = one("1 mmap(NULL, 4096, PROT_READ, MAP_SHARED, 3</x>, 0) = 0x7f0000000000");
        assert_eq!(call.args[3], "MAP_SHARED");
    }

    #[test]
    fn interrupted_lines_are_joined() {
        let mut parser = Parser::default();
        let begun = parser.line(r#"1 write(3</x>, "\x61" <unfinished ...>"#, 4);
        assert!(matches!(begun, Some(Event::Begun { tid: 1, .. })), "{begun:?}");
        assert_eq!(parser.line("2 fsync(4</y>) = -1 EIO (Input/output error)", 4), Some(Event::Nothing));
        assert_eq!(parser.line("2 --- SIGCHLD {si_signo=SIGCHLD} ---", 4), Some(Event::Nothing));
        let Some(Event::Call(call)) = parser.line("1 <... write resumed>, 1) = 1", 9) else { panic!() };
        assert_eq!((call.began, call.args.len()), (4, 3));
        assert_eq!(parser.line("2 +++ exited with 0 +++", 9), Some(Event::Ended { tid: 2 }));
        assert_eq!(parser.line("nonsense", 9), None);
    }

    #[test]
    fn structures_are_one_argument() {
        let call = one("1 clone3({flags=CLONE_VM|CLONE_VFORK, stack_size=0x9000}, 88) = 28007");
        assert_eq!(call.args, ["{flags=CLONE_VM|CLONE_VFORK, stack_size=0x9000}", "88"]);
        assert_eq!(one("1 vfork() = 3").args, Vec::<String>::new());
    }
}
