// pmd_hash: the parallel Merkle-Damgard construction over MD5, SHA-1 or SHA-256 (docs/format.md). CPU: src/cpu/pmd.rs.
//
// One large block: pmd_level_* makes the digests of all segments of 4096 bytes, a thread for each
// segment. It then does so for the segments of those digests, until one digest is left.
// pmd_finish_* makes the result.
//   grid    ceil(segments / 32) blocks of 32 threads; 1 block of 1 thread
//   memory  4.6 KB of shared memory a block
//
// Many chunks (pmd_many_*): a block of threads takes one chunk through all levels. A chunk of the
// default sizes has 1 to 16 segments, so most threads of the block are idle. That costs little, as
// the total number of running threads counts.
//   grid    count blocks of 32 threads
//   scratch two areas of as many digests as the chunks have segments; a chunk's begins at first[chunk]

#include "rows.cuh"

enum { SEGMENT = 4096 };

template <typename Digest, bool STAGED> __device__ inline void level(const u32* data, u64 len, u32* out) {
    __shared__ RowTile tile;
    u64 segment = (u64)blockIdx.x * ROWS + threadIdx.x;
    u64 start = segment * SEGMENT;
    bool live = start < len || segment == 0;
    u64 size = live ? min((u64)SEGMENT, len - start) : 0;
    Digest digest;
    hash_rows<Digest, STAGED>(digest, tile, data, (len + 3) / 4, start, size, live);
    if (live) store_digest(digest, out + segment * Digest::WORDS, Digest::WORDS);
}

// The digest of the construction's name, the total length and the root.
template <typename Digest> __device__ inline void finish(const u32* root, u64 len, Digest& digest) {
    const u64 size = 24 + 4 * Digest::WORDS;
    // "outrigger pmd1\0\0"
    u32 message[16] = {0x7274756fu, 0x65676769u, 0x6d702072u, 0x00003164u, (u32)len, (u32)(len >> 32)};
    UNROLL for (int i = 0; i < Digest::WORDS; i++) message[6 + i] = root[i];
    digest.begin();
    u32 w[16];
    UNROLL for (int i = 0; i < 16; i++) w[i] = message[i];
    pad_block<Digest>(w, 0, size);
    digest.block(w);
    if (blocks_of(size) == 2) {
        UNROLL for (int i = 0; i < 16; i++) w[i] = 0;
        pad_block<Digest>(w, 1, size);
        digest.block(w);
    }
}

template <typename Digest>
__device__ inline void many(const u32* data, u64 words, const Range* ranges, u32 limit, const u32* count_at,
                            const u32* first, u32* scratch, u64 scratch_digests, u32* out) {
    __shared__ RowTile tile;
    u32 chunk = blockIdx.x;
    if (chunk >= count_of(limit, count_at)) return;
    Range range = ranges[chunk];
    u64 place = first[chunk] * (u64)Digest::WORDS;
    u32* made = scratch + place;
    u32* next = made + scratch_digests * Digest::WORDS;
    const u32* level_data = data;
    u64 level_words = words, start = range.start, len = range.len;
    for (;;) {
        u64 segments = len ? (len + SEGMENT - 1) / SEGMENT : 1;
        for (u64 base = 0; base < segments; base += ROWS) {
            u64 segment = base + threadIdx.x;
            bool live = segment < segments;
            u64 at = segment * SEGMENT;
            u64 size = live ? min((u64)SEGMENT, len - at) : 0;
            Digest digest;
            hash_rows<Digest, true>(digest, tile, level_data, level_words, start + at, size, live);
            if (live) store_digest(digest, made + segment * Digest::WORDS, Digest::WORDS);
        }
        // The next level reads values that other threads have written.
        __syncthreads();
        if (segments == 1) break;
        level_data = made, start = 0, len = segments * 4 * Digest::WORDS, level_words = len / 4;
        u32* swap = made;
        made = next, next = swap;
    }
    if (threadIdx.x == 0) {
        Digest digest;
        finish(made, range.len, digest);
        store_digest(digest, out + (u64)chunk * 8, 8);
    }
}

#define PMD(NAME, DIGEST)                                                                                              \
    KERNEL pmd_level_##NAME(const u32* data, u64 len, u32* out) { level<DIGEST, true>(data, len, out); }               \
    KERNEL pmd_level_##NAME##_direct(const u32* data, u64 len, u32* out) { level<DIGEST, false>(data, len, out); }     \
    KERNEL pmd_finish_##NAME(const u32* root, u64 len, u32* out) {                                                     \
        DIGEST digest;                                                                                                 \
        finish(root, len, digest);                                                                                     \
        store_digest(digest, out, 8);                                                                                  \
    }                                                                                                                  \
    KERNEL pmd_many_##NAME(const u32* data, u64 words, const Range* ranges, u32 limit, const u32* count_at,            \
                           const u32* first, u32* scratch, u64 scratch_digests, u32* out) {                            \
        many<DIGEST>(data, words, ranges, limit, count_at, first, scratch, scratch_digests, out);                      \
    }

PMD(md5, Md5)
PMD(sha1, Sha1)
PMD(sha256, Sha256)
