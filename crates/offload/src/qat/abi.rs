//! The declarations of `qatzip.h` that are used, from version 2.5 of the API (QATzip 1.3.1). They
//! have not changed since API 2.3 (QATzip 1.0.9), which introduced these functions.

use std::ffi::{c_int, c_long, c_uchar, c_uint, c_ulong, c_void};

/// `QzSession_T`.
#[allow(dead_code, reason = "QATzip's to read and write")]
#[repr(C)]
pub(super) struct Session {
    pub hw_session_stat: c_long,
    pub thd_sess_stat: c_int,
    pub internal: *mut c_void,
    pub total_in: c_ulong,
    pub total_out: c_ulong,
}

impl Session {
    /// A session before its set-up.
    pub(super) const EMPTY: Session = Session {
        hw_session_stat: 0,
        thd_sess_stat: 0,
        internal: std::ptr::null_mut(),
        total_in: 0,
        total_out: 0,
    };
}

/// `QzSessionParamsCommon_T`, which is also `QzSessionParamsLZ4_T`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Common {
    pub direction: c_uint,
    pub comp_lvl: c_uint,
    pub comp_algorithm: c_uchar,
    pub max_forks: c_uint,
    pub sw_backup: c_uchar,
    pub hw_buff_sz: c_uint,
    pub strm_buff_sz: c_uint,
    pub input_sz_thrshold: c_uint,
    pub req_cnt_thrshold: c_uint,
    pub wait_cnt_thrshold: c_uint,
    pub polling_mode: c_uint,
    pub is_sensitive_mode: c_uint,
}

/// `QzSessionParamsDeflate_T`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Deflate {
    pub common: Common,
    pub huffman_hdr: c_uint,
    pub data_fmt: c_uint,
}

/// `QZ_DIR_BOTH`.
pub(super) const DIR_BOTH: c_uint = 2;
/// `QZ_DYNAMIC_HDR`.
pub(super) const DYNAMIC_HDR: c_uint = 0;
/// `QZ_DEFLATE_GZIP`: one gzip member a request.
pub(super) const DEFLATE_GZIP: c_uint = 1;
/// `QZ_DEFLATE_GZIP_EXT`, the default.
pub(super) const DEFLATE_GZIP_EXT: c_uint = 2;
/// `QZ_DEFLATE_RAW`.
pub(super) const DEFLATE_RAW: c_uint = 3;
/// `QZ_DEFLATE`.
pub(super) const DEFLATE: c_uchar = 8;
/// `QZ_LZ4`.
pub(super) const LZ4: c_uchar = b'4';
/// `QZ_PERIODICAL_POLLING`: a thread that waits for the card sleeps.
pub(super) const PERIODICAL_POLLING: c_uint = 0;
/// `QZ_HW_BUFF_MAX_SZ`: the most bytes of one request to the card. More bytes are split into
/// several.
pub(super) const HW_BUFF_MAX: c_uint = 512 << 10;
/// `QZ_COMP_THRESHOLD_MINIMUM`: smaller inputs are computed in software, regardless of other
/// settings.
pub(super) const THRESHOLD_MIN: c_uint = 128;
/// `QZ_SW_EXECUTION_MASK` of the extended return code.
pub(super) const EXT_SOFTWARE: u64 = 1 << 4;
/// `QZ_TIMEOUT_MASK` of the extended return code.
pub(super) const EXT_TIMEOUT: u64 = 1 << 8;
/// `LOG_NONE`.
pub(super) const LOG_NONE: c_uint = 0;
/// `PINNED_MEM`.
pub(super) const PINNED: c_int = 1;
/// `QZ_AUTO_SELECT_NUMA_NODE`.
pub(super) const ANY_NODE: c_int = -1;

pub(super) type Init = unsafe extern "C" fn(*mut Session, c_uchar) -> c_int;
pub(super) type GetDefaultsDeflate = unsafe extern "C" fn(*mut Deflate) -> c_int;
pub(super) type SetupDeflate = unsafe extern "C" fn(*mut Session, *mut Deflate) -> c_int;
pub(super) type SetupLz4 = unsafe extern "C" fn(*mut Session, *mut Common) -> c_int;
pub(super) type CompressExt = unsafe extern "C" fn(
    *mut Session,
    *const c_uchar,
    *mut c_uint,
    *mut c_uchar,
    *mut c_uint,
    c_uint,
    *mut u64,
) -> c_int;
pub(super) type DecompressExt = unsafe extern "C" fn(
    *mut Session,
    *const c_uchar,
    *mut c_uint,
    *mut c_uchar,
    *mut c_uint,
    *mut u64,
) -> c_int;
pub(super) type MaxCompressedLength = unsafe extern "C" fn(c_uint, *mut Session) -> c_uint;
pub(super) type Teardown = unsafe extern "C" fn(*mut Session) -> c_int;
pub(super) type Malloc = unsafe extern "C" fn(usize, c_int, c_int) -> *mut c_void;
pub(super) type Free = unsafe extern "C" fn(*mut c_void);
pub(super) type SetLogLevel = unsafe extern "C" fn(c_uint) -> c_uint;

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn structures_lie_as_a_c_compiler_lays_them() {
        // The layout that gcc gives the structures of qatzip.h on x86-64 and ARM64.
        assert_eq!((size_of::<Session>(), offset_of!(Session, internal)), (40, 16));
        assert_eq!((size_of::<Common>(), size_of::<Deflate>()), (48, 56));
        assert_eq!((offset_of!(Common, sw_backup), offset_of!(Common, hw_buff_sz)), (16, 20));
        assert_eq!((offset_of!(Common, polling_mode), offset_of!(Deflate, data_fmt)), (40, 52));
    }
}
