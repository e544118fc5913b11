//! The request that a thread is answering, so that reports on the way can name it.

use std::cell::Cell;

/// A request of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Its number, which no other request of the mount has.
    pub request: u64,
    /// The operation, by the kernel's name: `READ`, `CREATE`.
    pub operation: &'static str,
    /// The inode it is about; the directory, where there is a name.
    pub inode: u64,
    /// The process that waits for it; 0 if there is none or it is in another PID namespace.
    pub pid: u32,
    /// That process's user.
    pub uid: u32,
}

thread_local! {
    static NOW: Cell<Option<Asked>> = const { Cell::new(None) };
}

/// Clears the thread's request when dropped, also by a panic.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        NOW.set(None);
    }
}

impl Asked {
    /// The request that this thread is answering.
    pub fn now() -> Option<Self> {
        NOW.get()
    }

    /// Runs `work` as part of answering this request.
    pub fn answering<T>(self, work: impl FnOnce() -> T) -> T {
        NOW.set(Some(self));
        let _ends = Ends;
        work()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_known_while_it_is_answered() {
        let asked = Asked { request: 7, operation: "READ", inode: 3, pid: 1, uid: 0 };
        assert_eq!(asked.answering(Asked::now), Some(asked));
        assert_eq!(Asked::now(), None);
        let panicked = std::panic::catch_unwind(|| asked.answering(|| panic!("on the way")));
        assert!(panicked.is_err());
        assert_eq!(Asked::now(), None);
    }
}
