// A grid of threads on the host: the parts of CUDA that the kernel sources need, for the host's
// compiler.
//
// Blocks run one after another on the calling thread. The threads of a block are fibres. Each runs
// until it reaches __syncthreads() or returns, and then the next one runs. The caller chooses the
// order (forward, backward, shuffled). If a kernel's result depends on it, a barrier is missing.
// All threads of a block must reach the same barrier. If one returns while others wait, that is
// reported.
#pragma once

#include <stddef.h>

struct GridIndex {
    u32 x, y, z;
};

extern thread_local GridIndex grid_thread, grid_block, grid_block_size, grid_size;
extern thread_local u32* grid_dynamic_shared;
void grid_barrier();

#define threadIdx grid_thread
#define blockIdx grid_block
#define blockDim grid_block_size
#define gridDim grid_size
#define dynamic_shared grid_dynamic_shared
#define __syncthreads grid_barrier
#define __device__
// A host thread runs one block at a time, so a block's shared memory belongs to the host thread.
#define __shared__ static thread_local
#define KERNEL static void
#define CONSTANT static const
#define UNROLL
#define UNROLL_BY_8

template <typename T> static inline T min(T a, T b) { return b < a ? b : a; }
template <typename T> static inline T max(T a, T b) { return a < b ? b : a; }

static inline u32 __funnelshift_r(u32 low, u32 high, u32 by) { return (u32)(((u64)high << 32 | low) >> (by & 31)); }

static inline u32 __funnelshift_l(u32 low, u32 high, u32 by) { return (u32)(((u64)high << 32 | low) << (by & 31) >> 32); }

static inline u32 __byte_perm(u32 low, u32 high, u32 selector) {
    u64 bytes = (u64)high << 32 | low;
    u32 result = 0;
    for (u32 i = 0; i < 4; i++) result |= (u32)(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return result;
}

static inline int __popc(u32 value) { return __builtin_popcount(value); }
static inline int __ffs(u32 value) { return __builtin_ffs((int)value); }

template <typename T> static inline T atomicAdd(T* at, T value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
template <typename T> static inline T atomicOr(T* at, T value) { return __atomic_fetch_or(at, value, __ATOMIC_RELAXED); }
template <typename T> static inline T atomicExch(T* at, T value) { return __atomic_exchange_n(at, value, __ATOMIC_RELAXED); }
template <typename T> static inline T atomicCAS(T* at, T expected, T value) {
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
