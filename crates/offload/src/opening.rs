//! Opens devices in the background once there is enough work for them.
//!
//! ```text
//!   NOT BEGUN ── `note` has counted enough work, or `begin` ──▶ OPENING (a thread of its own) ──▶ OVER: a runtime, or none
//! ```
//!
//! Opening a GPU takes most of a second, which is longer than the work of many programs. So no
//! thread waits for it. A thread that could use devices asks [`Opening::runtime`] at each piece of
//! work, and uses the processor until there is one. If the work ends during the opening, its thread
//! goes on. A process that ends meanwhile must call [`end_process`](crate::end_process).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::FrameDevices;
use crate::runtime::Runtime;

/// Opens devices and makes a runtime of them. `None` if there are none.
type Open = dyn FnOnce() -> Option<Runtime> + Send;

/// Devices that are opened in the background, as the module describes.
pub struct Opening {
    open: Mutex<Option<Box<Open>>>,
    /// Bytes of work after which the opening begins.
    after: u64,
    noted: AtomicU64,
    opened: OnceLock<Option<Opened>>,
}

struct Opened {
    runtime: Arc<Runtime>,
    frames: Option<Arc<FrameDevices>>,
}

impl Opened {
    fn of(runtime: Arc<Runtime>) -> Self {
        let frames = FrameDevices::of(&runtime);
        Self { runtime, frames }
    }
}

impl Opening {
    /// Calls `open` on a separate thread once so many bytes of work were noted.
    ///
    /// ```
    /// use outrigger_offload::{Opening, runtime::Runtime};
    /// let opening = Opening::after(1000, || Some(Runtime::builder().cpu_threads(1).build()));
    /// opening.note(999);
    /// assert!(opening.runtime().is_none() && !opening.is_over());
    /// opening.note(1);
    /// while !opening.is_over() {
    ///     std::thread::yield_now();
    /// }
    /// assert!(opening.runtime().is_some());
    /// ```
    pub fn after(bytes: u64, open: impl FnOnce() -> Option<Runtime> + Send + 'static) -> Arc<Self> {
        let (open, noted) = (Mutex::new(Some(Box::new(open) as Box<Open>)), AtomicU64::new(0));
        Arc::new(Self { open, after: bytes, noted, opened: OnceLock::new() })
    }

    /// For devices that are already open.
    pub fn over(runtime: Arc<Runtime>) -> Arc<Self> {
        let opened = OnceLock::from(Some(Opened::of(runtime)));
        Arc::new(Self { open: Mutex::default(), after: 0, noted: AtomicU64::new(0), opened })
    }

    /// Counts work that devices could have done.
    pub fn note(self: &Arc<Self>, bytes: usize) {
        let before = self.noted.fetch_add(bytes as u64, Ordering::Relaxed);
        if before < self.after && before + bytes as u64 >= self.after {
            self.begin();
        }
    }

    /// Begins to open the devices, unless that has begun before.
    pub fn begin(self: &Arc<Self>) {
        let Some(open) = self.open.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let own = Arc::clone(self);
        let opener = std::thread::Builder::new().name("offload-open".into());
        let opening = opener.spawn(move || {
            let runtime = catch_unwind(AssertUnwindSafe(open)).ok().flatten();
            let _ = own.opened.set(runtime.map(|runtime| Opened::of(Arc::new(runtime))));
        });
        if opening.is_err() {
            let _ = self.opened.set(None);
        }
    }

    /// True if the opening has ended, with or without devices.
    pub fn is_over(&self) -> bool {
        self.opened.get().is_some()
    }

    /// The runtime, once there is one.
    pub fn runtime(&self) -> Option<&Arc<Runtime>> {
        Some(&self.opened.get()?.as_ref()?.runtime)
    }

    /// The devices that compress.
    pub fn frame_devices(&self) -> Option<&Arc<FrameDevices>> {
        self.opened.get()?.as_ref()?.frames.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn little_work_opens_nothing_and_enough_does_once() {
        let (says, said) = channel();
        let opening = Opening::after(100, move || {
            says.send(()).expect("somebody listens");
            None
        });
        opening.note(60);
        assert!(said.try_recv().is_err());
        opening.note(60);
        said.recv().expect("it is opened");
        opening.note(200);
        opening.begin();
        assert!(said.recv().is_err(), "it is opened once, and what opened it is gone");
    }

    #[test]
    fn nobody_waits_while_it_is_being_opened_not_even_who_drops_it() {
        let (lets, go) = channel::<()>();
        let (says, said) = channel();
        let opening = Opening::after(0, move || {
            let _ = go.recv();
            says.send(()).expect("somebody listens");
            Some(Runtime::builder().cpu_threads(1).build())
        });
        opening.begin();
        assert!(!opening.is_over() && opening.runtime().is_none());
        drop(opening);
        lets.send(()).expect("it is still being opened");
        said.recv().expect("it was opened, for nobody");
    }

    #[test]
    fn what_cannot_be_opened_is_over_too() {
        let opening = Opening::after(1, || panic!("a driver is broken"));
        opening.note(1);
        while !opening.is_over() {
            std::thread::yield_now();
        }
        assert!(opening.runtime().is_none() && opening.frame_devices().is_none());
    }
}
