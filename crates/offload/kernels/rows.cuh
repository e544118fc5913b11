// Hashes 32 messages side by side, a thread for each, with whole-warp loads.
//
// If each thread read its own message, a load of four bytes by 32 threads would take 32 memory
// transactions instead of one. So the 32 threads load together: 128 consecutive bytes of message 0,
// then of message 1, and so on, into a tile of shared memory with one row for each message. Each
// thread then works on its row. Rows are 33 words apart, so that the threads of a warp, which all
// read word n of their rows, read from 32 different banks.
//
// Messages may begin at any byte. Rows hold aligned words. A thread shifts adjacent words together,
// and carries the last word of its row over to the next round.
#pragma once

#include "digest.cuh"

enum { ROWS = 32, ROW_WORDS = 32, ROW_STRIDE = ROW_WORDS + 1 };

// The shared memory of one block.
struct RowTile {
    u32 words[ROWS * ROW_STRIDE];
    u64 base[ROWS];
    u32 rounds[ROWS];
};

// Sets up a thread's row, to read `rounds` times 128 bytes from `start` on. All 32 threads call it,
// those without a message with 0 rounds. Returns the largest number of rounds of all rows, so that
// the caller's loop is the same for all.
__device__ inline u32 rows_begin(RowTile& tile, u64 start, u32 rounds) {
    // The tile may still hold an earlier message that was not read to its end.
    __syncthreads();
    tile.base[threadIdx.x] = start / 4;
    tile.rounds[threadIdx.x] = rounds;
    __syncthreads();
    u32 most = 0;
    for (int row = 0; row < ROWS; row++) most = max(most, tile.rounds[row]);
    return most;
}

// Loads words 1 + 32 round to 32 + 32 round of each unfinished row. Word 0 is the reader's first
// carry.
__device__ inline void rows_load(RowTile& tile, const u32* data, u64 words, u32 round) {
    __syncthreads();
    UNROLL_BY_8 for (int row = 0; row < ROWS; row++) {
        if (round < tile.rounds[row]) {
            u64 at = tile.base[row] + 1 + (u64)round * ROW_WORDS + threadIdx.x;
            tile.words[row * ROW_STRIDE + threadIdx.x] = word_or_zero(data, words, at);
        }
    }
    __syncthreads();
}

// Hashes `len` bytes at `start` of `data`, which has `words` words, in each of 32 threads. Threads
// with `live` = false have no message. Without STAGED, every thread loads its own words, to measure
// the benefit of the tile.
template <typename Digest, bool STAGED>
__device__ inline void hash_rows(Digest& digest, RowTile& tile, const u32* data, u64 words, u64 start, u64 len, bool live) {
    u64 blocks = live ? blocks_of(len) : 0;
    u32 shift = start & 3;
    u64 next = start / 4;
    u32 rounds = rows_begin(tile, start, (u32)((blocks + 1) / 2));
    u32 carry = live ? word_or_zero(data, words, next) : 0;
    const u32* row = tile.words + threadIdx.x * ROW_STRIDE;
    digest.begin();
    for (u32 round = 0; round < rounds; round++) {
        if (STAGED) rows_load(tile, data, words, round);
        for (u32 half = 0; half < 2; half++) {
            u64 number = (u64)round * 2 + half;
            if (number >= blocks) break;
            u32 w[16];
            UNROLL for (int i = 0; i < 16; i++) {
                u32 word;
                if (STAGED) {
                    word = row[half * 16 + i];
                } else {
                    word = word_or_zero(data, words, next + 1 + number * 16 + i);
                }
                w[i] = bytes_between(carry, word, shift);
                carry = word;
            }
            if (number * 64 + 64 > len) pad_block<Digest>(w, number, len);
            digest.block(w);
        }
    }
}

// Stores a digest, padded with zeros to `stride` words.
template <typename Digest> __device__ inline void store_digest(const Digest& digest, u32* out, u32 stride) {
    UNROLL for (int i = 0; i < Digest::WORDS; i++) out[i] = digest.word(i);
    for (u32 i = Digest::WORDS; i < stride; i++) out[i] = 0;
}
