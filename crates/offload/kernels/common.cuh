// The common beginning of every kernel source: integers of fixed width, and words read from
// unaligned bytes.
//
// These sources are compiled three times: by NVRTC to PTX (only our headers exist there), by the
// host's compiler for the grid of host/grid.h, and by the host's compiler with sanitizers. So they
// use threads, blocks, shared memory, barriers and atomics, but no warp intrinsics. A block that
// acts as a warp has 32 threads.
//
// All kernels keep these rules, on which the host relies:
// * `data` is aligned to 16 bytes. Its whole last word is readable, and no word after it is accessed.
// * Every thread of a block reaches every barrier. A block without work returns as a whole.
// * Results never depend on the order in which threads or blocks run.
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef OUTRIGGER_HOST_GRID
#include "host/grid.h"
#else
#define KERNEL extern "C" __global__ void
#define UNROLL _Pragma("unroll")
#define UNROLL_BY_8 _Pragma("unroll 8")
#define CONSTANT const
extern __shared__ u32 dynamic_shared[];
#endif

// The position of a piece of a buffer, in bytes.
struct Range {
    u32 start;
    u32 len;
};

// The four bytes at offset `bytes` (0 to 3) of the pair of words.
__device__ inline u32 bytes_between(u32 low, u32 high, u32 bytes) {
    return __funnelshift_r(low, high, 8 * bytes);
}

__device__ inline u32 rotate_left(u32 value, u32 by) { return __funnelshift_l(value, value, by); }

__device__ inline u32 rotate_right(u32 value, u32 by) { return __funnelshift_r(value, value, by); }

__device__ inline u32 swap_bytes(u32 value) { return __byte_perm(value, 0, 0x0123); }

// A count that the host knows, or that an earlier kernel left in device memory.
__device__ inline u32 count_of(u32 count, const u32* count_at) {
    return count_at ? min(*count_at, count) : count;
}

// Word `index` of a buffer of `words`, or zero beyond it.
__device__ inline u32 word_or_zero(const u32* data, u64 words, u64 index) {
    return index < words ? data[index] : 0;
}
