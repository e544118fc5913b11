// window_hash: a hash of every window of a buffer, whose first `keep` bytes are kept. CPU:
// src/cpu/window/.
//
// window_{md5,sha1,rabin,gear32}: a thread for each window, 128 windows in a block. Their bytes are
// loaded once into shared memory.
//   grid    ceil(count / 128) blocks of 128 threads
//   memory  dynamic shared memory for 127 steps and a window, rounded up, and 1/32 more where `pad` is set
//   limits  MD5 and SHA-1: windows of at most 55 bytes, which fill one block. All: tiles of at most 40 KB
// window_rows_{md5,sha1}: windows of any length at any distance, by rows (rows.cuh).
//   grid    ceil(count / 32) blocks of 32 threads
// *_direct: the same without shared memory, to measure its benefit. rabin and gear32 use it also if
// windows are too far apart for a tile.
//
// Banks: threads read words that are step / 4 apart. If that is odd, a warp accesses 32 banks. If
// it is a multiple of four, a word of padding after each 32 (`pad` = 1) spreads them: at most two
// threads share a bank, mostly one.

#include "rabin.cuh"
#include "rows.cuh"

enum { WINDOW_THREADS = 128 };

struct Windows {
    const u32* data;
    // Words of data, windows, and bytes.
    u64 words, count, step;
    u32 window, keep, pad;
};

// The bytes of this thread's window, word by word.
template <bool STAGED> struct WindowReader {
    const u32* from;
    u64 word, words;
    u32 shift, carry, pad;

    __device__ u32 load(u64 index) const {
        if (STAGED) {
            u32 at = (u32)index;
            return from[at + (at >> 5) * pad];
        }
        return word_or_zero(from, words, index);
    }

    __device__ void begin() { carry = load(word); }

    __device__ u32 next() {
        u32 high = load(++word);
        u32 value = bytes_between(carry, high, shift);
        carry = high;
        return value;
    }
};

// Loads the block's tile, and positions the reader. Returns true if this thread has a window.
template <bool STAGED> __device__ inline bool place(const Windows& windows, u64 index, WindowReader<STAGED>& reader) {
    u64 first = (u64)blockIdx.x * WINDOW_THREADS * windows.step;
    u64 base = STAGED ? first / 4 : 0;
    if (STAGED) {
        u64 here = min((u64)WINDOW_THREADS, windows.count - (u64)blockIdx.x * WINDOW_THREADS);
        // One word more than the windows cover, because a reader always holds the next word.
        u32 tile_words = (u32)((first % 4 + (here - 1) * windows.step + windows.window + 3) / 4 + 1);
        for (u32 i = threadIdx.x; i < tile_words; i += WINDOW_THREADS) {
            dynamic_shared[i + (i >> 5) * windows.pad] = word_or_zero(windows.data, windows.words, base + i);
        }
        __syncthreads();
    }
    if (index >= windows.count) return false;
    u64 start = index * windows.step - base * 4;
    reader.from = STAGED ? dynamic_shared : windows.data;
    reader.word = start / 4, reader.words = windows.words, reader.shift = start & 3, reader.pad = windows.pad;
    return true;
}

// Writes the first `keep` bytes of `words` at index * keep. If keep is a multiple of four, these
// are whole words.
template <int WORDS> __device__ inline void keep_bytes(const u32* digest, u64 index, u32 keep, u8* out) {
    u8* at = out + index * keep;
    if (keep % 4 == 0) {
        UNROLL for (int i = 0; i < WORDS; i++) {
            if (4 * i < keep) ((u32*)at)[i] = digest[i];
        }
    } else {
        UNROLL for (int i = 0; i < 4 * WORDS; i++) {
            if (i < keep) at[i] = (u8)(digest[i / 4] >> 8 * (i % 4));
        }
    }
}

template <typename Digest> __device__ inline void keep_digest(const Digest& digest, u64 index, u32 keep, u8* out) {
    u32 words[Digest::WORDS];
    UNROLL for (int i = 0; i < Digest::WORDS; i++) words[i] = digest.word(i);
    keep_bytes<Digest::WORDS>(words, index, keep, out);
}

template <typename Digest, bool STAGED> __device__ inline void one_block(const Windows& windows, u8* out) {
    u64 index = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x;
    WindowReader<STAGED> reader;
    if (!place(windows, index, reader)) return;
    reader.begin();
    u32 w[16];
    UNROLL for (int i = 0; i < 16; i++) {
        // Uniform, as all windows have one length.
        w[i] = 4 * i < windows.window ? reader.next() : 0;
    }
    pad_block<Digest>(w, 0, windows.window);
    Digest digest;
    digest.begin();
    digest.block(w);
    keep_digest(digest, index, windows.keep, out);
}

template <typename Digest, bool STAGED> __device__ inline void by_rows(const Windows& windows, u8* out) {
    __shared__ RowTile tile;
    u64 index = (u64)blockIdx.x * ROWS + threadIdx.x;
    bool live = index < windows.count;
    Digest digest;
    hash_rows<Digest, STAGED>(digest, tile, windows.data, windows.words, live ? index * windows.step : 0, windows.window, live);
    if (live) keep_digest(digest, index, windows.keep, out);
}

template <bool STAGED> __device__ inline void rabin(const Windows& windows, const u64* global_table, u8* out) {
    __shared__ u64 table[256];
    for (u32 i = threadIdx.x; i < 256; i += WINDOW_THREADS) table[i] = global_table[i];
    __syncthreads();
    u64 index = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x;
    WindowReader<STAGED> reader;
    if (!place(windows, index, reader)) return;
    reader.begin();
    Rabin hash;
    hash.begin();
    for (u32 at = 0; at < windows.window; at += 4) {
        u32 word = reader.next();
        UNROLL for (u32 i = 0; i < 4; i++) {
            if (at + i < windows.window) hash.byte(table, word >> 8 * i & 255);
        }
    }
    u32 words[2] = {(u32)hash.value, (u32)(hash.value >> 32)};
    keep_bytes<2>(words, index, windows.keep, out);
}

template <bool STAGED> __device__ inline void gear32(const Windows& windows, const u32* global_table, u8* out) {
    __shared__ u32 table[256];
    for (u32 i = threadIdx.x; i < 256; i += WINDOW_THREADS) table[i] = global_table[i];
    __syncthreads();
    u64 index = (u64)blockIdx.x * WINDOW_THREADS + threadIdx.x;
    WindowReader<STAGED> reader;
    if (!place(windows, index, reader)) return;
    // Only the last 32 bytes of a window affect h.
    u32 skip = windows.window > 32 ? windows.window - 32 : 0;
    u64 start = reader.word * 4 + reader.shift + skip;
    reader.word = start / 4, reader.shift = start & 3;
    reader.begin();
    u32 h = 0;
    for (u32 at = skip; at < windows.window; at += 4) {
        u32 word = reader.next();
        UNROLL for (u32 i = 0; i < 4; i++) {
            if (at + i < windows.window) h = (h << 1) + table[word >> 8 * i & 255];
        }
    }
    keep_bytes<1>(&h, index, windows.keep, out);
}

#define WINDOW_PARAMETERS const u32 *data, u64 words, u64 count, u64 step, u32 window, u32 keep, u32 pad
#define WINDOWS                                                                                                        \
    Windows { data, words, count, step, window, keep, pad }

#define WINDOW_DIGEST(NAME, DIGEST)                                                                                    \
    KERNEL window_##NAME(WINDOW_PARAMETERS, u8* out) { one_block<DIGEST, true>(WINDOWS, out); }                        \
    KERNEL window_##NAME##_direct(WINDOW_PARAMETERS, u8* out) { one_block<DIGEST, false>(WINDOWS, out); }              \
    KERNEL window_rows_##NAME(WINDOW_PARAMETERS, u8* out) { by_rows<DIGEST, true>(WINDOWS, out); }                     \
    KERNEL window_rows_##NAME##_direct(WINDOW_PARAMETERS, u8* out) { by_rows<DIGEST, false>(WINDOWS, out); }

WINDOW_DIGEST(md5, Md5)
WINDOW_DIGEST(sha1, Sha1)

KERNEL window_rabin(WINDOW_PARAMETERS, const u64* table, u8* out) { rabin<true>(WINDOWS, table, out); }
KERNEL window_rabin_direct(WINDOW_PARAMETERS, const u64* table, u8* out) { rabin<false>(WINDOWS, table, out); }
KERNEL window_gear32(WINDOW_PARAMETERS, const u32* table, u8* out) { gear32<true>(WINDOWS, table, out); }
KERNEL window_gear32_direct(WINDOW_PARAMETERS, const u32* table, u8* out) { gear32<false>(WINDOWS, table, out); }
