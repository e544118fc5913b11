// scan: gear32 boundary candidates, ascending. CPU: src/cpu/scan/; rule: docs/format.md, "Chunk boundaries".
//
// Three kernels, so that the output is in order and has exactly the necessary size, for any number
// of candidates:
// scan_bits    a block scans a tile of 16 KiB, a thread 128 bytes of it after a warm-up on the 32 before them. It writes two bits
//              for each byte to device memory (each an eighth of the input), and the number of candidates of each tile
//   grid       ceil(len / 16384) blocks of 128 threads
//   memory     18.9 KB of shared memory a block
// scan_offsets sums the numbers: where each tile's candidates begin, and how many there are in total. Also used for other counts
//   grid       1 block of 256 threads
// scan_emit    writes the candidates of each tile from its bits. Those beyond `capacity` are not written. The host sees the
//              total and runs it again with more room, and nothing has to be hashed twice
//   grid       as scan_bits
//
// `input` is 32 bytes of history, directly before the data, then `len` bytes of data.

#include "scan.cuh"

enum { HISTORY_WORDS = 8 };

// Threads read words that are 32 apart. A word of padding after each 32 spreads them over 32 banks.
__device__ inline u32 padded(u32 word) { return word + word / SPAN_WORDS; }

__device__ inline u32 gear_step(const u32* gear, u32 h, u32 byte) { return (h << 1) + gear[byte]; }

// `words` is the number of words of `input`, with its history. `history` says how many of the last
// history bytes exist, 0 to 32.
KERNEL scan_bits(const u32* input, u64 words, u32 len, u32 history, const u32* gear_table, u32 loose, u32 strict,
                 u32* loose_bits, u32* strict_bits, u32* counts) {
    __shared__ u32 gear[256];
    __shared__ u32 tile[TILE_WORDS + HISTORY_WORDS + SCAN_THREADS + 1];
    __shared__ u32 sums[SCAN_THREADS];
    u32 thread = threadIdx.x;
    for (u32 i = thread; i < 256; i += SCAN_THREADS) gear[i] = gear_table[i];
    u64 first = (u64)blockIdx.x * TILE_WORDS;
    for (u32 i = thread; i < TILE_WORDS + HISTORY_WORDS; i += SCAN_THREADS) {
        tile[padded(i)] = word_or_zero(input, words, first + i);
    }
    __syncthreads();
    u32 begin = (blockIdx.x * SCAN_THREADS + thread) * SPAN_WORDS * 4;
    // Before the first byte of a file, h is 0. Bytes that do not exist add nothing.
    u32 missing = begin == 0 ? 32 - history : 0;
    u32 h = 0;
    UNROLL for (u32 i = 0; i < HISTORY_WORDS; i++) {
        u32 word = tile[padded(thread * SPAN_WORDS + i)];
        UNROLL for (u32 byte = 0; byte < 4; byte++) {
            if (4 * i + byte >= missing) h = gear_step(gear, h, word >> 8 * byte & 255);
        }
    }
    u32 found = 0;
    for (u32 part = 0; part < SPAN_WORDS / 8; part++) {
        u32 loose_word = 0, strict_word = 0;
        UNROLL for (u32 i = 0; i < 8; i++) {
            u32 word = tile[padded(thread * SPAN_WORDS + HISTORY_WORDS + part * 8 + i)];
            UNROLL for (u32 byte = 0; byte < 4; byte++) {
                h = gear_step(gear, h, word >> 8 * byte & 255);
                if ((h & loose) == 0) loose_word |= 1u << (4 * i + byte);
                if ((h & strict) == 0) strict_word |= 1u << (4 * i + byte);
            }
        }
        u32 at = begin + part * 32;
        u32 left = at < len ? len - at : 0;
        if (left < 32) loose_word &= (1u << left) - 1;
        loose_bits[at / 32] = loose_word;
        strict_bits[at / 32] = strict_word;
        found += __popc(loose_word);
    }
    u32 total;
    sum_before(sums, found, total);
    if (thread == 0) counts[blockIdx.x] = total;
}

// counts[i] becomes the sum of those before it, and *total the sum of all.
KERNEL scan_offsets(u32* counts, u32 count, u32* total) {
    enum { EACH = 8 };
    __shared__ u32 sums[256];
    u32 running = 0;
    for (u32 base = 0; base < count; base += blockDim.x * EACH) {
        u32 first = base + threadIdx.x * EACH;
        u32 values[EACH], mine = 0, all;
        UNROLL for (u32 i = 0; i < EACH; i++) {
            values[i] = first + i < count ? counts[first + i] : 0;
            mine += values[i];
        }
        u32 before = running + sum_before(sums, mine, all);
        UNROLL for (u32 i = 0; i < EACH; i++) {
            if (first + i < count) counts[first + i] = before;
            before += values[i];
        }
        running += all;
    }
    if (threadIdx.x == 0) *total = running;
}

KERNEL scan_emit(const u32* loose_bits, const u32* strict_bits, const u32* offsets, u32* out, u32 capacity) {
    __shared__ u32 sums[SCAN_THREADS];
    u32 first = (blockIdx.x * SCAN_THREADS + threadIdx.x) * (SPAN_WORDS / 8);
    u32 found = 0, total;
    UNROLL for (u32 part = 0; part < SPAN_WORDS / 8; part++) found += __popc(loose_bits[first + part]);
    u32 at = offsets[blockIdx.x] + sum_before(sums, found, total);
    for (u32 part = 0; part < SPAN_WORDS / 8; part++) {
        u32 strict = strict_bits[first + part];
        for (u32 bits = loose_bits[first + part]; bits; bits &= bits - 1) {
            u32 bit = __ffs(bits) - 1;
            if (at < capacity) out[at] = ((first + part) * 32 + bit) << 1 | (strict >> bit & 1);
            at++;
        }
    }
}
