// hash_many with BLAKE3: standard BLAKE3-256 of many pieces of a buffer. CPU: src/cpu/blake3_many.rs.
//
// blake3_ranges: a block hashes a piece, in rounds of 32 leaves of 1 KiB, a thread for each leaf.
// The block then hashes the tree over them in shared memory. A piece is a whole chunk, or a subtree
// of a chunk that is too large for one block. Such a subtree is a run of 64 leaves (or the rest, at
// the end) that begins at a multiple of 64. blake3_merge joins the values of the subtrees. The
// pieces do not change the standard's tree: its left subtrees are complete, so every aligned run of
// 2^n leaves is a subtree.
//   grid    one block of 32 threads a piece
//   memory  6.2 KB of shared memory a block
//   leaves  null: every piece is a chunk. Else, for each piece, the number of its first leaf in its chunk, with the top
//           bit set where the piece is the whole chunk
//
// blake3_merge: a block joins the values of the pieces of one chunk, level by level, in place.
//   grid    one block of 128 threads a chunk

#include "rows.cuh"

enum { LEAF = 1024, LEAF_BLOCKS = 16, LEAF_ROUNDS = 8 };
enum { LEAF_START = 1, LEAF_END = 2, PARENT = 4, ROOT = 8 };
#define WHOLE 0x80000000u
// Levels above one round's 32 leaves: a range has less than 2^22 leaves.
enum { STACK = 20 };

struct Blake3Tile {
    RowTile rows;
    // The values of a round's leaves, then of their parents. Rows have 9 words, so that no two
    // threads access one bank.
    u32 values[ROWS * 9];
    // Values of complete subtrees of earlier rounds, which wait for their siblings.
    u32 stack[STACK * 8];
};

__device__ inline void set_iv(u32 h[8]) {
    h[0] = 0x6a09e667u, h[1] = 0xbb67ae85u, h[2] = 0x3c6ef372u, h[3] = 0xa54ff53au;
    h[4] = 0x510e527fu, h[5] = 0x9b05688cu, h[6] = 0x1f83d9abu, h[7] = 0x5be0cd19u;
}

__device__ inline void mix(u32& a, u32& b, u32& c, u32& d, u32 x, u32 y) {
    a += b + x;
    d = rotate_right(d ^ a, 16);
    c += d;
    b = rotate_right(b ^ c, 12);
    a += b + y;
    d = rotate_right(d ^ a, 8);
    c += d;
    b = rotate_right(b ^ c, 7);
}

// The compression function: `h` becomes the value after block `m` of `len` bytes in leaf `leaf`.
__device__ inline void compress(u32 h[8], u32 m[16], u32 leaf, u32 len, u32 flags) {
    CONSTANT u8 ORDER[16] = {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};
    u32 v[16];
    u32 iv[8];
    set_iv(iv);
    UNROLL for (int i = 0; i < 8; i++) v[i] = h[i];
    UNROLL for (int i = 0; i < 4; i++) v[8 + i] = iv[i];
    v[12] = leaf, v[13] = 0, v[14] = len, v[15] = flags;
    UNROLL for (int round = 0; round < 7; round++) {
        mix(v[0], v[4], v[8], v[12], m[0], m[1]);
        mix(v[1], v[5], v[9], v[13], m[2], m[3]);
        mix(v[2], v[6], v[10], v[14], m[4], m[5]);
        mix(v[3], v[7], v[11], v[15], m[6], m[7]);
        mix(v[0], v[5], v[10], v[15], m[8], m[9]);
        mix(v[1], v[6], v[11], v[12], m[10], m[11]);
        mix(v[2], v[7], v[8], v[13], m[12], m[13]);
        mix(v[3], v[4], v[9], v[14], m[14], m[15]);
        u32 next[16];
        UNROLL for (int i = 0; i < 16; i++) next[i] = m[ORDER[i]];
        UNROLL for (int i = 0; i < 16; i++) m[i] = next[i];
    }
    UNROLL for (int i = 0; i < 8; i++) h[i] = v[i] ^ v[8 + i];
}

// The value of the parent of two values, into `out`.
__device__ inline void parent(const u32* left, const u32* right, u32 flags, u32 out[8]) {
    u32 m[16];
    UNROLL for (int i = 0; i < 8; i++) m[i] = left[i], m[8 + i] = right[i];
    set_iv(out);
    compress(out, m, 0, 64, PARENT | flags);
}

// The value of a leaf of `len` bytes at `start`. All threads of the block call it. Threads without
// a leaf pass `live` = false.
template <bool STAGED>
__device__ inline void leaf_value(RowTile& tile, const u32* data, u64 words, u64 start, u32 len, u32 number, u32 flags, bool live,
                                  u32 h[8]) {
    u32 blocks = live ? (len ? (len + 63) / 64 : 1) : 0;
    u32 shift = start & 3;
    u64 next = start / 4;
    u32 rounds = rows_begin(tile, start, (blocks + 1) / 2);
    u32 carry = live ? word_or_zero(data, words, next) : 0;
    const u32* row = tile.words + threadIdx.x * ROW_STRIDE;
    set_iv(h);
    for (u32 round = 0; round < rounds; round++) {
        if (STAGED) rows_load(tile, data, words, round);
        for (u32 half = 0; half < 2; half++) {
            u32 block = round * 2 + half;
            if (block >= blocks) break;
            u32 m[16];
            UNROLL for (int i = 0; i < 16; i++) {
                u32 word = STAGED ? row[half * 16 + i] : word_or_zero(data, words, next + 1 + block * 16 + i);
                m[i] = bytes_between(carry, word, shift);
                carry = word;
            }
            u32 left = min(len - block * 64, 64u);
            if (left < 64) {
                UNROLL for (int i = 0; i < 16; i++) {
                    u32 at = 4 * i;
                    if (at >= left) {
                        m[i] = 0;
                    } else if (at + 4 > left) {
                        m[i] &= (1u << 8 * (left - at)) - 1;
                    }
                }
            }
            u32 at_ends = (block == 0 ? LEAF_START : 0) | (block + 1 == blocks ? LEAF_END | flags : 0);
            compress(h, m, number, left, at_ends);
        }
    }
}

template <bool STAGED>
__device__ inline void hash_pieces(const u32* data, u64 words, const Range* ranges, u32 limit, const u32* count_at,
                                   const u32* leaves, u32* out) {
    __shared__ Blake3Tile tile;
    u32 piece = blockIdx.x;
    if (piece >= count_of(limit, count_at)) return;
    u32 thread = threadIdx.x;
    Range range = ranges[piece];
    u32 first = leaves ? leaves[piece] : WHOLE;
    u32 root = first & WHOLE ? ROOT : 0;
    first &= ~WHOLE;
    u32 total = range.len ? (range.len + LEAF - 1) / LEAF : 1;
    // The number of values on the stack: one for each bit set in the number of finished rounds,
    // plus one that waits.
    u32 height = 0;
    for (u32 base = 0, round = 0; base < total; base += ROWS, round++) {
        u32 count = min((u32)ROWS, total - base);
        bool last_round = base + count == total;
        u32 leaf = base + thread;
        bool live = thread < count;
        u32 begin = leaf * LEAF;
        u32 value[8];
        u32 size = live ? min((u32)LEAF, range.len - begin) : 0;
        leaf_value<STAGED>(tile.rows, data, words, (u64)range.start + begin, size, first + leaf, total == 1 ? root : 0, live,
                           value);
        if (live) {
            UNROLL for (int i = 0; i < 8; i++) tile.values[thread * 9 + i] = value[i];
        }
        __syncthreads();
        while (count > 1) {
            u32 pairs = count / 2;
            u32 flags = count == 2 && last_round && round == 0 ? root : 0;
            if (thread < pairs) {
                parent(tile.values + 2 * thread * 9, tile.values + (2 * thread + 1) * 9, flags, value);
            } else if (thread == pairs && count % 2 == 1) {
                // A value without a sibling goes up unchanged.
                UNROLL for (int i = 0; i < 8; i++) value[i] = tile.values[2 * pairs * 9 + i];
            }
            count -= pairs;
            __syncthreads();
            if (thread < count) {
                UNROLL for (int i = 0; i < 8; i++) tile.values[thread * 9 + i] = value[i];
            }
            __syncthreads();
        }
        if (thread == 0) {
            // Subtrees of equal size are joined only once another one follows, as only then neither
            // of them can be the root.
            u32 complete = 0;
            for (u32 bits = round; bits; bits &= bits - 1) complete++;
            while (height > complete) {
                u32 joined[8];
                parent(tile.stack + (height - 2) * 8, tile.stack + (height - 1) * 8, 0, joined);
                height--;
                UNROLL for (int i = 0; i < 8; i++) tile.stack[(height - 1) * 8 + i] = joined[i];
            }
            UNROLL for (int i = 0; i < 8; i++) tile.stack[height * 8 + i] = tile.values[i];
            height++;
        }
        // Values are written again only after the barriers of the next leaves, which thread 0 must
        // reach first.
    }
    if (thread == 0) {
        while (height > 1) {
            u32 joined[8];
            parent(tile.stack + (height - 2) * 8, tile.stack + (height - 1) * 8, height == 2 ? root : 0, joined);
            height--;
            UNROLL for (int i = 0; i < 8; i++) tile.stack[(height - 1) * 8 + i] = joined[i];
        }
        UNROLL for (int i = 0; i < 8; i++) out[(u64)piece * 8 + i] = tile.stack[i];
    }
}

KERNEL blake3_ranges(const u32* data, u64 words, const Range* ranges, u32 limit, const u32* count_at, const u32* leaves,
                     u32* out) {
    hash_pieces<true>(data, words, ranges, limit, count_at, leaves, out);
}

KERNEL blake3_ranges_direct(const u32* data, u64 words, const Range* ranges, u32 limit, const u32* count_at,
                            const u32* leaves, u32* out) {
    hash_pieces<false>(data, words, ranges, limit, count_at, leaves, out);
}

// Chunk n has the values of pieces first[n] to first[n + 1]. If it has only one, that is its
// fingerprint.
KERNEL blake3_merge(u32* values, const u32* first, u32 chunks, u32* out) {
    u32 chunk = blockIdx.x, thread = threadIdx.x;
    if (chunk >= chunks) return;
    u32* mine = values + (u64)first[chunk] * 8;
    u32 count = first[chunk + 1] - first[chunk];
    while (count > 1) {
        u32 pairs = count / 2;
        for (u32 base = 0; base < pairs; base += blockDim.x) {
            u32 pair = base + thread;
            u32 value[8];
            if (pair < pairs) parent(mine + 16 * (u64)pair, mine + 16 * (u64)pair + 8, count == 2 ? ROOT : 0, value);
            // All threads have read, so the following writes cannot overwrite unread values.
            __syncthreads();
            if (pair < pairs) {
                UNROLL for (int i = 0; i < 8; i++) mine[8 * (u64)pair + i] = value[i];
            }
        }
        if (count % 2 == 1 && thread < 8) mine[8 * (u64)pairs + thread] = mine[8 * (u64)(count - 1) + thread];
        __syncthreads();
        count -= pairs;
    }
    if (thread < 8) out[(u64)chunk * 8 + thread] = mine[thread];
}
