// hash_many: MD5, SHA-1 and SHA-256 of many pieces of a buffer, a thread a piece. CPU: src/cpu/hash.rs.
//
// grid    ceil(count / 32) blocks of 32 threads: small blocks, so that a thousand chunks reach every multiprocessor
// memory  4.6 KB of shared memory a block (rows.cuh)
// out     8 words a piece, the digest and then zeros: a fingerprint (docs/format.md, "Fingerprints")
//
// The time of a piece depends only on its length, so a task takes as long as its longest piece.
// Several tasks in flight fill the device.

#include "rows.cuh"

template <typename Digest, bool STAGED>
__device__ inline void hash_ranges(const u32* data, u64 words, const Range* ranges, u32 limit, const u32* count_at, u32* out) {
    __shared__ RowTile tile;
    u32 count = count_of(limit, count_at);
    u32 piece = blockIdx.x * ROWS + threadIdx.x;
    if (blockIdx.x * ROWS >= count) return;
    bool live = piece < count;
    Range range = {0, 0};
    if (live) range = ranges[piece];
    Digest digest;
    hash_rows<Digest, STAGED>(digest, tile, data, words, range.start, range.len, live);
    if (live) store_digest(digest, out + (u64)piece * 8, 8);
}

#define HASH_RANGES(NAME, DIGEST)                                                                                      \
    KERNEL hash_##NAME(const u32* data, u64 words, const Range* ranges, u32 limit, const u32* count_at, u32* out) {    \
        hash_ranges<DIGEST, true>(data, words, ranges, limit, count_at, out);                                          \
    }                                                                                                                  \
    KERNEL hash_##NAME##_direct(const u32* data, u64 words, const Range* ranges, u32 limit, const u32* count_at,       \
                                u32* out) {                                                                            \
        hash_ranges<DIGEST, false>(data, words, ranges, limit, count_at, out);                                         \
    }

HASH_RANGES(md5, Md5)
HASH_RANGES(sha1, Sha1)
HASH_RANGES(sha256, Sha256)
