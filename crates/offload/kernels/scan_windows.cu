// Candidates of the chunkers rabin, lbfs-md5 and lbfs-sha1, for ingest: positions where the hash of the last 48 bytes has
// ones in all bits of `mask`. CPU: src/cpu/candidates.rs; rule: docs/format.md, "Chunk boundaries".
//
// Like scan_bits: two bits for each byte (both equal, as every candidate is strict), and the number
// of each tile.
//   grid    ceil(len / 16384) blocks of 128 threads, a thread 128 bytes
//   memory  2.5 KB of shared memory a block, for Rabin's table
//
// Every window is hashed from its beginning. These chunkers serve for comparison and need not be
// fast.

#include "rabin.cuh"
#include "rows.cuh"
#include "scan.cuh"

enum { WINDOW = 48 };

// The low word of the hash of the 48 bytes at `start`.
template <typename Digest> struct DigestWindow {
    __device__ void begin(const u64*) {}

    __device__ u32 low(const u32* data, u64 words, u32 start) const {
        u32 at = start / 4, shift = start & 3;
        u32 carry = word_or_zero(data, words, at);
        u32 w[16];
        UNROLL for (int i = 0; i < 16; i++) {
            if (i < WINDOW / 4) {
                u32 next = word_or_zero(data, words, at + 1 + i);
                w[i] = bytes_between(carry, next, shift);
                carry = next;
            } else {
                w[i] = 0;
            }
        }
        pad_block<Digest>(w, 0, WINDOW);
        Digest digest;
        digest.begin();
        digest.block(w);
        return digest.word(0);
    }
};

struct RabinWindow {
    const u64* table;

    __device__ void begin(const u64* global_table) {
        __shared__ u64 shared_table[256];
        for (u32 i = threadIdx.x; i < 256; i += SCAN_THREADS) shared_table[i] = global_table[i];
        __syncthreads();
        table = shared_table;
    }

    __device__ u32 low(const u32* data, u64 words, u32 start) const {
        Rabin hash;
        hash.begin();
        for (u32 i = 0; i < WINDOW; i++) {
            u32 at = start + i;
            hash.byte(table, word_or_zero(data, words, at / 4) >> 8 * (at & 3) & 255);
        }
        return (u32)hash.value;
    }
};

template <typename Window>
__device__ inline void scan_windows(const u32* data, u64 words, u32 len, const u64* table, u32 mask, u32* loose_bits,
                                    u32* strict_bits, u32* counts) {
    __shared__ u32 sums[SCAN_THREADS];
    Window window;
    window.begin(table);
    u32 begin = (blockIdx.x * SCAN_THREADS + threadIdx.x) * SPAN_WORDS * 4;
    u32 found = 0;
    for (u32 part = 0; part < SPAN_WORDS / 8; part++) {
        u32 bits = 0;
        for (u32 i = 0; i < 32; i++) {
            u32 position = begin + part * 32 + i;
            if (position + 1 < WINDOW || position >= len) continue;
            if ((window.low(data, words, position + 1 - WINDOW) & mask) == mask) bits |= 1u << i;
        }
        loose_bits[begin / 32 + part] = bits;
        strict_bits[begin / 32 + part] = bits;
        found += __popc(bits);
    }
    u32 total;
    sum_before(sums, found, total);
    if (threadIdx.x == 0) counts[blockIdx.x] = total;
}

#define SCAN_WINDOWS(NAME, WINDOW_HASH)                                                                                \
    KERNEL scan_windows_##NAME(const u32* data, u64 words, u32 len, const u64* table, u32 mask, u32* loose_bits,       \
                               u32* strict_bits, u32* counts) {                                                        \
        scan_windows<WINDOW_HASH>(data, words, len, table, mask, loose_bits, strict_bits, counts);                     \
    }

SCAN_WINDOWS(md5, DigestWindow<Md5>)
SCAN_WINDOWS(sha1, DigestWindow<Sha1>)
SCAN_WINDOWS(rabin, RabinWindow)
