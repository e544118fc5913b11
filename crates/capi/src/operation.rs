//! Operations of the caller: a function for the processor, and optionally a kernel.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use outrigger_offload::work::{Kernel, KernelCode, UserOperation};

use crate::raw::{self, handle};
use crate::status::outrigger_status::OUTRIGGER_STATE;
use crate::status::{Error, Result, outrigger_status, status, value};

/// Executes the operation on the processor. It reads `len` bytes of data and the task's parameters,
/// writes at most `room` bytes to `out` (the operation's outrigger_output_len has returned `room`),
/// and stores their number in `written`. It returns 0, or another number if the data is bad, which
/// is then the task's result (OUTRIGGER_DATA). Any thread may call it, several may at once, and it
/// is called again for the same task if the result is checked. So equal inputs must give equal
/// outputs. It must not unwind or jump out.
pub type outrigger_function = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        parameters: *const u8,
        parameters_len: usize,
        data: *const u8,
        len: usize,
        out: *mut u8,
        room: usize,
        written: *mut usize,
    ) -> i32,
>;

/// The most bytes of output for `len` bytes of data with these parameters. Any thread may call it.
pub type outrigger_output_len = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        parameters: *const u8,
        parameters_len: usize,
        len: usize,
    ) -> usize,
>;

/// Called once with the context, by any thread, when the operation is freed and no task has it any
/// more.
pub type outrigger_release = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// A kernel with the same result as the operation's function. Its signature is
///
///   extern "C" __global__ void NAME(const unsigned char *data, unsigned long long data_len,
///                                   const unsigned char *parameters, unsigned long long parameters_len,
///                                   unsigned char *out, unsigned long long out_len);
///
/// It gets at least one thread for every `bytes_per_thread` bytes of data, in one dimension. All of
/// `out_len`, which the operation's outrigger_output_len returned, is the result.
#[repr(C)]
pub struct outrigger_kernel {
    /// One of enum outrigger_kernel_language.
    pub language: u32,
    /// Threads of a block, 32 to 1024.
    pub block_threads: u32,
    /// The bytes of data for each thread, at least 1.
    pub bytes_per_thread: usize,
    /// The source, or the PTX. Copied.
    pub code: *const c_char,
    /// The function's name in the code. Copied.
    pub name: *const c_char,
}

/// An operation for outrigger_task_own().
pub struct outrigger_operation(pub Arc<UserOperation>);

/// C's context, and the function that releases it.
struct Context {
    pointer: *mut c_void,
    release: outrigger_release,
}

// SAFETY: C's contract: any thread may call the functions that get the context, and several at
// once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: C's contract; called once, and nothing uses the context any more.
            unsafe { release(self.pointer) };
        }
    }
}

/// Registers an operation under a name. Two operations of one name must mean the same, as
/// calibrations are kept under the name. `kernel` may be null: then only the processor executes it.
/// The functions get `context`. `release`, unless it is null, is called with it at the end, even if
/// this call fails. Null after an error. Free it with outrigger_operation_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_operation_new(
    name: *const c_char,
    function: outrigger_function,
    output_len: outrigger_output_len,
    kernel: Option<&outrigger_kernel>,
    context: *mut c_void,
    release: outrigger_release,
) -> Option<Box<outrigger_operation>> {
    let context = Arc::new(Context { pointer: context, release });
    value(None, move || {
        // SAFETY: C's contract.
        let name = unsafe { raw::text(name, "name")? };
        let null = |what: &str| Error::invalid(format!("{what} is null"));
        let function = function.ok_or_else(|| null("function"))?;
        let output_len = output_len.ok_or_else(|| null("output_len"))?;
        let also = Arc::clone(&context);
        let room = move |parameters: &[u8], len: usize| {
            // SAFETY: C's contract: the function takes what it is given here.
            unsafe { output_len(also.pointer, parameters.as_ptr(), parameters.len(), len) }
        };
        let rooms = room.clone();
        let run = move |parameters: &[u8], data: &[u8], out: &mut Vec<u8>| {
            let room = rooms(parameters, data.len());
            out.reserve(room);
            let mut written = 0;
            let (to, parameters_len) = (out.spare_capacity_mut().as_mut_ptr().cast(), parameters.len());
            // SAFETY: C's contract: the function reads what it is given and writes `room` bytes at
            // most, for which there is room.
            let answer = unsafe {
                let data_len = data.len();
                let (parameters, data) = (parameters.as_ptr(), data.as_ptr());
                function(context.pointer, parameters, parameters_len, data, data_len, to, room, &mut written)
            };
            if answer != 0 {
                return Err(format!("the operation's function returned {answer}"));
            }
            assert!(written <= room, "the operation's function wrote {written} bytes where {room} fit");
            // SAFETY: `out` is empty; C's contract: the function has written so many.
            unsafe { out.set_len(out.len() + written) };
            Ok(())
        };
        let operation = UserOperation::new(name, run, room);
        let operation = match kernel {
            // SAFETY: C's contract.
            Some(kernel) => operation.with_kernel(unsafe { self::kernel(kernel)? }),
            None => operation,
        };
        Ok(Some(Box::new(outrigger_operation(operation.shared()))))
    })
}

/// Converts a kernel and checks it.
///
/// # Safety
/// `kernel`'s texts end with a zero and live until this returns, as C promises.
unsafe fn kernel(kernel: &outrigger_kernel) -> Result<Kernel> {
    // SAFETY: C's contract.
    let (code, name) =
        unsafe { (raw::text(kernel.code, "kernel.code")?, raw::text(kernel.name, "kernel.name")?) };
    let &outrigger_kernel { language, block_threads, bytes_per_thread, .. } = kernel;
    let code = match language {
        1 => KernelCode::Cuda(code.to_string()),
        2 => KernelCode::Ptx(code.to_string()),
        other => {
            return Err(Error::invalid(format!("{other} is no language (enum outrigger_kernel_language)")));
        }
    };
    if !(32..=1024).contains(&block_threads) || bytes_per_thread == 0 {
        let what = "a block has 32 to 1024 threads, each for at least 1 byte";
        return Err(Error::invalid(format!("{what}; not {block_threads} for {bytes_per_thread}")));
    }
    Ok(Kernel { code, name: name.to_string(), block_threads, bytes_per_thread })
}

/// Declares that the operation's function is brief: it never blocks, and takes no lock that a
/// thread may hold while it submits. The submitting thread may then execute a task before
/// outrigger_submit() returns, if that is predicted to take less time than handing it over (the
/// threshold inline_max, 20 microseconds). Tasks with a callback or a deadline are excluded. To be
/// called right after outrigger_operation_new(). Once a task has the operation, this is
/// OUTRIGGER_STATE.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_operation_set_brief(
    operation: Option<&mut outrigger_operation>,
) -> outrigger_status {
    status(|| {
        let operation = operation.ok_or_else(|| Error::invalid("operation is null"))?;
        let own = Arc::get_mut(&mut operation.0).ok_or_else(|| {
            Error::new(
                OUTRIGGER_STATE,
                "tasks have the operation: say that it is brief before any asks for it",
            )
        })?;
        own.set_brief();
        Ok(())
    })
}

/// Executes the operation's function on this thread. The output for `len` bytes of data goes to
/// `out`, which has room for `room` bytes. Its length is stored in `written` (if not null), even if
/// it does not fit (OUTRIGGER_SPACE).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_operation_run(
    operation: Option<&outrigger_operation>,
    parameters: *const c_void,
    parameters_len: usize,
    data: *const c_void,
    len: usize,
    out: *mut u8,
    room: usize,
    written: *mut usize,
) -> outrigger_status {
    status(|| {
        let operation = handle(operation, "operation")?;
        // SAFETY: C's contract.
        let (parameters, data, out, written) = unsafe {
            let written = raw::room(written, usize::from(!written.is_null()), "written")?;
            let parameters = raw::bytes(parameters, parameters_len, "parameters")?;
            (parameters, raw::bytes(data, len, "data")?, raw::room(out, room, "out")?, written.first_mut())
        };
        let mut made = Vec::new();
        let bad = |message| Error::new(crate::status::outrigger_status::OUTRIGGER_DATA, message);
        operation.0.run(parameters, data, &mut made).map_err(bad)?;
        raw::put(&made, out, written)
    })
}

/// Frees it. Tasks that use it may continue. Null is no error.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_operation_free(operation: Option<Box<outrigger_operation>>) {
    drop(operation);
}
