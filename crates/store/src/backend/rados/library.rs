//! `librados`, opened at run time: the functions of its C interface that are used. All that is
//! `unsafe` about Ceph is in this file.
//!
//! A [`Cluster`] is a connection, a [`Pool`] a pool of it with a namespace. Both may be used by any
//! number of threads: librados locks for itself. Failures are the negative numbers of `errno`.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;

type Handle = *mut c_void;

/// The functions, as `rados/librados.h` declares them.
struct Functions {
    create: unsafe extern "C" fn(*mut Handle, *const c_char, *const c_char, u64) -> c_int,
    conf_read_file: unsafe extern "C" fn(Handle, *const c_char) -> c_int,
    conf_parse_env: unsafe extern "C" fn(Handle, *const c_char) -> c_int,
    conf_set: unsafe extern "C" fn(Handle, *const c_char, *const c_char) -> c_int,
    connect: unsafe extern "C" fn(Handle) -> c_int,
    shutdown: unsafe extern "C" fn(Handle),
    mon_command: unsafe extern "C" fn(
        Handle,
        *mut *const c_char,
        usize,
        *const c_char,
        usize,
        *mut *mut c_char,
        *mut usize,
        *mut *mut c_char,
        *mut usize,
    ) -> c_int,
    buffer_free: unsafe extern "C" fn(*mut c_char),
    ioctx_create: unsafe extern "C" fn(Handle, *const c_char, *mut Handle) -> c_int,
    ioctx_destroy: unsafe extern "C" fn(Handle),
    ioctx_set_namespace: unsafe extern "C" fn(Handle, *const c_char),
    ioctx_get_id: unsafe extern "C" fn(Handle) -> i64,
    aio_read: unsafe extern "C" fn(Handle, *const c_char, Handle, *mut c_char, usize, u64) -> c_int,
    stat: unsafe extern "C" fn(Handle, *const c_char, *mut u64, *mut i64) -> c_int,
    write_op_new: unsafe extern "C" fn() -> Handle,
    write_op_release: unsafe extern "C" fn(Handle),
    write_op_create: unsafe extern "C" fn(Handle, c_int, *const c_char),
    write_op_assert_exists: unsafe extern "C" fn(Handle),
    write_op_remove: unsafe extern "C" fn(Handle),
    write_op_write: unsafe extern "C" fn(Handle, *const c_char, usize, u64),
    aio_write_op: unsafe extern "C" fn(Handle, Handle, Handle, *const c_char, *mut i64, c_int) -> c_int,
    completion_new: unsafe extern "C" fn(*mut c_void, *const c_void, *const c_void, *mut Handle) -> c_int,
    completion_wait: unsafe extern "C" fn(Handle) -> c_int,
    completion_value: unsafe extern "C" fn(Handle) -> c_int,
    completion_release: unsafe extern "C" fn(Handle),
    list_open: unsafe extern "C" fn(Handle, *mut Handle) -> c_int,
    list_next:
        unsafe extern "C" fn(Handle, *mut *const c_char, *mut *const c_char, *mut *const c_char) -> c_int,
    list_close: unsafe extern "C" fn(Handle),
    /// Never closed: it has threads of its own.
    _opened: ManuallyDrop<libloading::Library>,
}

/// Only where the object is not there yet.
const CREATE_EXCLUSIVE: c_int = 1;
/// `LIBRADOS_OPERATION_FULL_TRY`: in a full pool, operations that need space fail at once, and
/// those that free space are done.
const FULL_TRY: c_int = 64;

/// The library's name.
const NAME: &str = "librados.so.2";

/// The library, opened once.
fn functions() -> Result<&'static Functions, String> {
    static FUNCTIONS: OnceLock<Result<Functions, String>> = OnceLock::new();
    FUNCTIONS.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Functions, String> {
    if let Some(why) = outrigger_offload::OPENS_NO_LIBRARIES {
        return Err(format!("{NAME} cannot be opened: {why}"));
    }
    // SAFETY: Ceph's library, found where the system has it; its initialisers only initialise it.
    let opened = unsafe { libloading::Library::new(NAME) }.map_err(|error| {
        let source = std::error::Error::source(&error);
        let why = source.map_or_else(|| error.to_string(), |source| source.to_string());
        format!("{NAME} cannot be opened ({why}); install librados2")
    })?;
    fn find<T: Copy>(opened: &libloading::Library, symbol: &str) -> Result<T, String> {
        // SAFETY: every symbol is asked for with the type that rados/librados.h declares it with, and used while the library is open.
        unsafe { opened.get::<T>(symbol.as_bytes()) }
            .map(|function| *function)
            .map_err(|_| format!("{NAME} has no {symbol}: Ceph 14 or newer is needed"))
    }
    Ok(Functions {
        create: find(&opened, "rados_create2")?,
        conf_read_file: find(&opened, "rados_conf_read_file")?,
        conf_parse_env: find(&opened, "rados_conf_parse_env")?,
        conf_set: find(&opened, "rados_conf_set")?,
        connect: find(&opened, "rados_connect")?,
        shutdown: find(&opened, "rados_shutdown")?,
        mon_command: find(&opened, "rados_mon_command")?,
        buffer_free: find(&opened, "rados_buffer_free")?,
        ioctx_create: find(&opened, "rados_ioctx_create")?,
        ioctx_destroy: find(&opened, "rados_ioctx_destroy")?,
        ioctx_set_namespace: find(&opened, "rados_ioctx_set_namespace")?,
        ioctx_get_id: find(&opened, "rados_ioctx_get_id")?,
        aio_read: find(&opened, "rados_aio_read")?,
        stat: find(&opened, "rados_stat")?,
        write_op_new: find(&opened, "rados_create_write_op")?,
        write_op_release: find(&opened, "rados_release_write_op")?,
        write_op_create: find(&opened, "rados_write_op_create")?,
        write_op_assert_exists: find(&opened, "rados_write_op_assert_exists")?,
        write_op_remove: find(&opened, "rados_write_op_remove")?,
        write_op_write: find(&opened, "rados_write_op_write")?,
        aio_write_op: find(&opened, "rados_aio_write_op_operate")?,
        completion_new: find(&opened, "rados_aio_create_completion")?,
        completion_wait: find(&opened, "rados_aio_wait_for_complete")?,
        completion_value: find(&opened, "rados_aio_get_return_value")?,
        completion_release: find(&opened, "rados_aio_release")?,
        list_open: find(&opened, "rados_nobjects_list_open")?,
        list_next: find(&opened, "rados_nobjects_list_next")?,
        list_close: find(&opened, "rados_nobjects_list_close")?,
        _opened: ManuallyDrop::new(opened),
    })
}

/// Turns a return code of librados into a result.
fn check(code: c_int) -> Result<usize, Errno> {
    usize::try_from(code).map_err(|_| Errno::from_raw_os_error(-code))
}

/// A name for librados.
fn text(name: &str) -> Result<CString, Errno> {
    CString::new(name).map_err(|_| Errno::INVAL)
}

/// A connection to a cluster.
pub(super) struct Cluster {
    functions: &'static Functions,
    handle: Handle,
    /// How often the monitors were asked.
    pub(super) asks: AtomicU64,
}

// SAFETY: librados documents that several threads may use its handles at once.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

/// Why there is no connection.
pub(super) enum NoCluster {
    /// No library.
    Library(String),
    /// What was being done, and the error.
    Failed(&'static str, Errno),
}

impl Cluster {
    /// Connects as `user` (`client.admin` if not given) with the configuration at `conf` (or where
    /// Ceph looks), and `settings` over it.
    pub(super) fn connect(
        user: Option<&str>,
        conf: Option<&str>,
        settings: &[(&str, String)],
    ) -> Result<Arc<Self>, NoCluster> {
        let functions = functions().map_err(NoCluster::Library)?;
        let failed = |what| move |errno| NoCluster::Failed(what, errno);
        let name = text(user.unwrap_or("client.admin")).map_err(failed("naming the user"))?;
        let mut handle = null_mut();
        // SAFETY: the strings end with a zero and outlive the call; `handle` is written to.
        let code = unsafe { (functions.create)(&mut handle, c"ceph".as_ptr(), name.as_ptr(), 0) };
        check(code).map_err(failed("beginning"))?;
        let cluster = Self { functions, handle, asks: AtomicU64::new(0) };
        let conf = conf.map(text).transpose().map_err(failed("reading the configuration"))?;
        let path = conf.as_ref().map_or(null(), |conf| conf.as_ptr());
        // SAFETY: the handle is open; the path is a string, or none.
        let code = unsafe { (functions.conf_read_file)(handle, path) };
        check(code).map_err(failed("reading the configuration"))?;
        // SAFETY: the handle is open; without a name the variable CEPH_ARGS is read.
        let code = unsafe { (functions.conf_parse_env)(handle, null()) };
        check(code).map_err(failed("reading CEPH_ARGS"))?;
        for (key, value) in settings {
            let (key, value) = (text(key), text(value));
            let (Ok(key), Ok(value)) = (key, value) else { continue };
            // SAFETY: the handle is open, both are strings. An older Ceph ignores a key that it
            // does not know.
            unsafe { (functions.conf_set)(handle, key.as_ptr(), value.as_ptr()) };
        }
        // SAFETY: the handle is open and configured.
        let code = unsafe { (functions.connect)(handle) };
        check(code).map_err(failed("connecting to the cluster"))?;
        Ok(Arc::new(cluster))
    }

    /// Asks the monitors: a command in JSON, and their answer.
    pub(super) fn ask(&self, command: &str) -> Result<Vec<u8>, Errno> {
        let command = text(command)?;
        self.asks.fetch_add(1, Ordering::Relaxed);
        let mut commands = [command.as_ptr()];
        let (mut out, mut out_len, mut said, mut said_len) = (null_mut(), 0, null_mut(), 0);
        // SAFETY: one command, which outlives the call, no input, and room for both answers' addresses and lengths.
        let code = unsafe {
            let at = commands.as_mut_ptr();
            let (out, said) = (&mut out, &mut said);
            (self.functions.mon_command)(
                self.handle,
                at,
                1,
                c"".as_ptr(),
                0,
                out,
                &mut out_len,
                said,
                &mut said_len,
            )
        };
        let mut answer = Vec::new();
        if !out.is_null() && out_len > 0 {
            // SAFETY: librados has put so many bytes there.
            answer.extend_from_slice(unsafe { std::slice::from_raw_parts(out.cast::<u8>(), out_len) });
        }
        for buffer in [out, said] {
            if !buffer.is_null() {
                // SAFETY: allocated by librados for this answer, and used no more.
                unsafe { (self.functions.buffer_free)(buffer) };
            }
        }
        check(code).map(|_| answer)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: created by `rados_create2`; every pool holds the connection, so none is left.
        unsafe { (self.functions.shutdown)(self.handle) };
    }
}

/// A pool, seen through one namespace.
pub(super) struct Pool {
    cluster: Arc<Cluster>,
    handle: Handle,
}

// SAFETY: librados documents that several threads may use an I/O context at once, once its
// namespace is set.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    pub(super) fn open(cluster: &Arc<Cluster>, pool: &str, namespace: &str) -> Result<Self, Errno> {
        let (pool, namespace) = (text(pool)?, text(namespace)?);
        let mut handle = null_mut();
        // SAFETY: the connection is open, the name is a string, `handle` is written to.
        check(unsafe { (cluster.functions.ioctx_create)(cluster.handle, pool.as_ptr(), &mut handle) })?;
        // SAFETY: the pool is open and no other thread has it yet; the string is copied.
        unsafe { (cluster.functions.ioctx_set_namespace)(handle, namespace.as_ptr()) };
        Ok(Self { cluster: Arc::clone(cluster), handle })
    }

    fn functions(&self) -> &'static Functions {
        self.cluster.functions
    }

    /// The pool's number.
    pub(super) fn number(&self) -> i64 {
        // SAFETY: the pool is open.
        unsafe { (self.functions().ioctx_get_id)(self.handle) }
    }

    /// Reads into `buf` from `offset`, in pieces of `piece` bytes, at most `at_once` of them at a
    /// time. Returns how many bytes there were. No read is under way any more when this returns.
    pub(super) fn read(
        &self,
        name: &str,
        buf: &mut [u8],
        offset: u64,
        (piece, at_once): (usize, usize),
    ) -> Result<usize, Errno> {
        let name = text(name)?;
        // Declared after `buf`, so it is dropped before the lender of `buf` has it back, also after
        // a panic; and dropping waits.
        let mut under_way: VecDeque<(Pending, usize)> = VecDeque::new();
        let (mut rest, mut at, mut filled, mut ended) = (buf, offset, 0, None);
        loop {
            while ended.is_none() && !rest.is_empty() && under_way.len() < at_once {
                let len = piece.min(rest.len());
                let (next, after) = rest.split_at_mut(len);
                // SAFETY: nothing else uses `next`, and `under_way` is empty, or dropped, before
                // this returns.
                match unsafe { self.begin_read(&name, next, at) } {
                    Ok(pending) => under_way.push_back((pending, len)),
                    Err(errno) => ended = Some(Err(errno)),
                }
                (rest, at) = (after, at + len as u64);
            }
            let Some((pending, len)) = under_way.pop_front() else { break };
            match (pending.result(), ended) {
                (Ok(count), None) => {
                    filled += count;
                    if count < len {
                        ended = Some(Ok(()));
                    }
                }
                (Err(errno), None | Some(Ok(()))) => ended = Some(Err(errno)),
                (Ok(_) | Err(_), Some(_)) => {}
            }
        }
        ended.unwrap_or(Ok(())).map(|()| filled)
    }

    /// Begins to read into `buf`.
    ///
    /// # Safety
    /// The caller must neither touch `buf` nor free its memory until the returned value was waited
    /// for or dropped.
    unsafe fn begin_read(&self, name: &CStr, buf: &mut [u8], offset: u64) -> Result<Pending, Errno> {
        let functions = self.functions();
        let mut completion = null_mut();
        // SAFETY: no callbacks; `completion` is written to.
        check(unsafe { (functions.completion_new)(null_mut(), null(), null(), &mut completion) })?;
        let pending = Pending { functions, handle: completion };
        // SAFETY: `buf` may be written to for its length until the completion was waited for, and so long the completion lives.
        let code = unsafe {
            let (at, len) = (buf.as_mut_ptr().cast(), buf.len());
            (functions.aio_read)(self.handle, name.as_ptr(), completion, at, len, offset)
        };
        if let Err(errno) = check(code) {
            pending.never_began();
            return Err(errno);
        }
        Ok(pending)
    }

    /// An object's length.
    pub(super) fn len(&self, name: &str) -> Result<u64, Errno> {
        let name = text(name)?;
        let (mut len, mut time) = (0, 0);
        // SAFETY: both are written to.
        check(unsafe { (self.functions().stat)(self.handle, name.as_ptr(), &mut len, &mut time) })?;
        Ok(len)
    }

    /// Removes an object, durably. This works in a full pool, where `rados_remove` would wait until
    /// there is space.
    pub(super) fn remove(&self, name: &str) -> Result<(), Errno> {
        let functions = self.functions();
        // SAFETY: an operation that is being put together.
        self.begin(name, |op| unsafe { (functions.write_op_remove)(op) })?.wait()
    }

    /// Begins to write `bytes` at `offset`, in one step. With `create` the object must not exist,
    /// and is made; else it must exist. The bytes are copied.
    pub(super) fn write(
        &self,
        name: &str,
        bytes: &[u8],
        offset: u64,
        create: bool,
    ) -> Result<Pending, Errno> {
        let functions = self.functions();
        // SAFETY: an operation that is being put together; librados copies the bytes into it.
        self.begin(name, |op| unsafe {
            if create {
                (functions.write_op_create)(op, CREATE_EXCLUSIVE, null());
            } else {
                (functions.write_op_assert_exists)(op);
            }
            if !bytes.is_empty() {
                (functions.write_op_write)(op, bytes.as_ptr().cast(), bytes.len(), offset);
            }
        })
    }

    /// Begins an operation on an object: all that `put_together` adds to it, or nothing.
    fn begin(&self, name: &str, put_together: impl FnOnce(Handle)) -> Result<Pending, Errno> {
        let (name, functions) = (text(name)?, self.functions());
        let mut completion = null_mut();
        // SAFETY: no callbacks; `completion` is written to.
        check(unsafe { (functions.completion_new)(null_mut(), null(), null(), &mut completion) })?;
        let pending = Pending { functions, handle: completion };
        // SAFETY: the operation is released below, on every way. The completion lives until it has been waited for: `Pending` sees to that.
        let code = unsafe {
            let op = (functions.write_op_new)();
            put_together(op);
            let code =
                (functions.aio_write_op)(op, self.handle, completion, name.as_ptr(), null_mut(), FULL_TRY);
            (functions.write_op_release)(op);
            code
        };
        if let Err(errno) = check(code) {
            pending.never_began();
            return Err(errno);
        }
        Ok(pending)
    }

    /// Calls `visit` with every object's name in the namespace, in no order.
    pub(super) fn list(&self, visit: &mut dyn FnMut(&str)) -> Result<(), Errno> {
        let functions = self.functions();
        let mut list = null_mut();
        // SAFETY: the pool is open; `list` is written to.
        check(unsafe { (functions.list_open)(self.handle, &mut list) })?;
        let ended = loop {
            let (mut name, mut key, mut namespace) = (null(), null(), null());
            // SAFETY: the list is open; the addresses written are valid until the next call.
            let code = unsafe { (functions.list_next)(list, &mut name, &mut key, &mut namespace) };
            match check(code) {
                Err(Errno::NOENT) => break Ok(()),
                Err(errno) => break Err(errno),
                Ok(_) => {
                    // SAFETY: a string that librados holds until the next call.
                    let name = unsafe { CStr::from_ptr(name) };
                    visit(&name.to_string_lossy());
                }
            }
        };
        // SAFETY: opened above, used no more.
        unsafe { (functions.list_close)(list) };
        ended
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: opened by `rados_ioctx_create`; librados keeps what operations in flight need.
        unsafe { (self.functions().ioctx_destroy)(self.handle) };
    }
}

/// A write or a read under way.
pub(super) struct Pending {
    functions: &'static Functions,
    handle: Handle,
}

// SAFETY: a completion may be waited for by another thread than the one that began it.
unsafe impl Send for Pending {}

impl Pending {
    /// For a write: waits until all replicas have it on disk.
    pub(super) fn wait(self) -> Result<(), Errno> {
        self.result().map(drop)
    }

    /// Waits until it has ended; of a read, how many bytes there were.
    fn result(self) -> Result<usize, Errno> {
        // SAFETY: a completion of an operation that began; `drop` releases it.
        check(unsafe {
            (self.functions.completion_wait)(self.handle);
            (self.functions.completion_value)(self.handle)
        })
    }

    /// Releases it without waiting, as the operation never began.
    fn never_began(self) {
        let pending = ManuallyDrop::new(self);
        // SAFETY: made and not used; not dropped again.
        unsafe { (pending.functions.completion_release)(pending.handle) };
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Waits even if nobody needs the result: an object being written must not be removed.
        // SAFETY: the operation began, so it ends; released once.
        unsafe {
            (self.functions.completion_wait)(self.handle);
            (self.functions.completion_release)(self.handle);
        }
    }
}
