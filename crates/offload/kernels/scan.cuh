// Prefix sums within a block, for scan and ingest.
#pragma once

#include "common.cuh"

// The sum of `value` over the threads before this one. `total` becomes the sum over all. `sums` has
// a word for each thread. All threads of the block call it. Afterwards `sums` may be reused.
__device__ inline u32 sum_before(u32* sums, u32 value, u32& total) {
    u32 thread = threadIdx.x;
    sums[thread] = value;
    __syncthreads();
    for (u32 reach = 1; reach < blockDim.x; reach *= 2) {
        u32 before = thread >= reach ? sums[thread - reach] : 0;
        __syncthreads();
        sums[thread] += before;
        __syncthreads();
    }
    total = sums[blockDim.x - 1];
    u32 mine = sums[thread] - value;
    __syncthreads();
    return mine;
}

// A thread's share of a tile in scan_bits and scan_emit: 128 bytes, and four words of bits.
enum { SCAN_THREADS = 128, SPAN_WORDS = 32, TILE_WORDS = SCAN_THREADS * SPAN_WORDS };
