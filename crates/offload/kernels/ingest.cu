// ingest: joins scan, hashing and lookup into one pass over a batch (GHOST's pipeline). CPU:
// src/cpu/ingest.rs.
//
// The host launches, without reading anything in between: scan_bits, scan_offsets and scan_emit
// over the whole batch, ingest_cut, scan_offsets, ingest_gather, one of the hash kernels,
// ingest_report. That takes one copy in and one small report out.
//
// The streams of a batch are adjacent and are scanned as one. That is correct because no chunk ends
// within its first 64 bytes (docs/format.md: MIN is at least 64), and a candidate depends on 32
// bytes. The bytes before a stream only affect candidates at its beginning, and no cut uses those.
//
// ingest_cut     the cut walk (docs/format.md, "Chunk boundaries") of each stream over its candidates: thread 0 walks,
//                and all threads together load the candidates for it
//   grid         one block of 32 threads a stream
//   memory       4.1 KB of shared memory a block
// ingest_gather  the chunks of all streams in a row, in the form that the hash kernels need
//   grid         one block of 32 threads a stream
// ingest_report  looks chunks up and writes the report, a thread for each chunk
//   grid         ceil(most chunks / 128) blocks of 128 threads

#include "table.cuh"

enum { CUT_THREADS = 32, CUT_STAGED = 1024, REPORT_WORDS = 12 };

// A stream, and the position of its chunks, with room for the most that it can have.
struct IngestStream {
    u32 start, end;
    // True if the rest at the end is a chunk.
    u32 last;
    u32 slot;
    // Its first position in the scratch of pmd_many_*.
    u32 scratch;
};

// The first of `count` ascending candidates at or after `position`.
__device__ inline u32 first_at(const u32* candidates, u32 count, u32 position) {
    u32 low = 0, high = count;
    while (low < high) {
        u32 middle = low + (high - low) / 2;
        if (candidates[middle] >> 1 < position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// `ends` gets each stream's chunk ends from its slot on, and `counts` their number. If there are
// more candidates than room for them, no stream gets chunks. The host sees it from the number of
// candidates, and tries again.
KERNEL ingest_cut(const u32* candidates, const u32* candidate_count, u32 capacity, const IngestStream* streams, u32 min_len,
                  u32 norm, u32 max_len, u32* ends, u32* counts) {
    __shared__ u32 staged[CUT_STAGED];
    __shared__ u32 bounds[2];
    IngestStream stream = streams[blockIdx.x];
    u32 available = *candidate_count;
    if (available > capacity) {
        if (threadIdx.x == 0) counts[blockIdx.x] = 0;
        return;
    }
    if (threadIdx.x < 2) bounds[threadIdx.x] = first_at(candidates, available, threadIdx.x ? stream.end : stream.start);
    __syncthreads();
    u32 start = stream.start, made = 0;
    u32* mine = ends + stream.slot;
    for (u32 base = bounds[0]; base < bounds[1]; base += CUT_STAGED) {
        u32 here = min((u32)CUT_STAGED, bounds[1] - base);
        __syncthreads();
        for (u32 i = threadIdx.x; i < here; i += CUT_THREADS) staged[i] = candidates[base + i];
        __syncthreads();
        if (threadIdx.x == 0) {
            for (u32 i = 0; i < here; i++) {
                u32 end = (staged[i] >> 1) + 1;
                // If candidates are further apart than the longest chunk, forced cuts come first.
                while (end - start > max_len) mine[made++] = start += max_len;
                u32 len = end - start;
                if (len > norm || (len > min_len && (staged[i] & 1))) mine[made++] = start = end;
            }
        }
    }
    if (threadIdx.x == 0) {
        while (stream.end - start >= max_len) mine[made++] = start += max_len;
        if (stream.last && stream.end > start) mine[made++] = stream.end;
        counts[blockIdx.x] = made;
    }
}

// `first[n]` becomes the position of chunk n in the scratch of pmd_many_*.
KERNEL ingest_gather(const IngestStream* streams, u32 count, const u32* ends, const u32* offsets, const u32* total,
                     Range* ranges, u32* first) {
    IngestStream stream = streams[blockIdx.x];
    u32 offset = offsets[blockIdx.x];
    u32 chunks = (blockIdx.x + 1 < count ? offsets[blockIdx.x + 1] : *total) - offset;
    for (u32 i = threadIdx.x; i < chunks; i += CUT_THREADS) {
        u32 begin = i ? ends[stream.slot + i - 1] : stream.start;
        ranges[offset + i].start = begin;
        ranges[offset + i].len = ends[stream.slot + i] - begin;
        first[offset + i] = stream.scratch + (begin - stream.start) / 4096 + i;
    }
}

// A report has 12 words for each chunk: its end, whether it was found, its place (two words), its
// fingerprint.
KERNEL ingest_report(const Range* ranges, const u32* total, const u32* fingerprints, TABLE_PARAMETERS, u32* report) {
    u32 chunk = blockIdx.x * blockDim.x + threadIdx.x;
    if (chunk >= *total) return;
    u32 key[8];
    UNROLL for (u32 i = 0; i < 8; i++) key[i] = fingerprints[(u64)chunk * 8 + i];
    u64 place = 0;
    u32 found = table_find(TABLE, key, place);
    u32* out = report + (u64)chunk * REPORT_WORDS;
    out[0] = ranges[chunk].start + ranges[chunk].len;
    out[1] = found;
    out[2] = (u32)place, out[3] = (u32)(place >> 32);
    UNROLL for (u32 i = 0; i < 8; i++) out[4 + i] = key[i];
}
