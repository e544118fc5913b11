// lookup: looks many fingerprints up in a table, or changes it, a thread for each entry. CPU and
// layout: src/table/mod.rs.
//
//   grid    ceil(count / 128) blocks of 128 threads, where table_refresh counts slots; no shared memory
//
// A lookup reads one block of the summary vector (32 bytes). If that says "perhaps", it reads a
// bucket (64 bytes) or two.
//
// Lookups may run concurrently, but a change runs alone. The keys of one insertion must differ.
// Removed slots are not used again before the table is refreshed: a thread that finds one cannot
// know what another thread is about to insert after it. The host makes sure that all keys of an
// insertion fit, and that one slot stays unused.

#include "table.cuh"

// `places` gets a 64-bit word for each key, and `found` a byte.
KERNEL table_lookup(const u32* keys, u32 count, TABLE_PARAMETERS, u64* places, u8* found) {
    u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    u32 key[8];
    UNROLL for (u32 i = 0; i < 4; i++) key[i] = keys[(u64)index * 8 + i];
    u64 place = 0;
    found[index] = (u8)table_find(TABLE, key, place);
    places[index] = place;
}

// Inserts an entry, or replaces its place. Counts the inserted ones.
__device__ inline void table_put(const TableView& table, TableKey key, u64 place, u32* added) {
    for (u64 bucket = key.a & table.bucket_mask;; bucket = (bucket + 1) & table.bucket_mask) {
        for (u32 i = 0; i < BUCKET_SLOTS; i++) {
            u64* slot = table.slots + (bucket * BUCKET_SLOTS + i) * SLOT_WORDS;
            u64 state = atomicAdd(slot + 3, (u64)0);
            if (state == SLOT_EMPTY) {
                state = atomicCAS(slot + 3, (u64)SLOT_EMPTY, (u64)SLOT_BUSY);
                if (state == SLOT_EMPTY) {
                    slot[0] = key.a, slot[1] = key.b, slot[2] = place;
                    u32* block = table_block(table, key);
                    UNROLL for (u32 word = 0; word < BLOCK_WORDS; word++) atomicOr(block + word, summary_bit(key, word));
                    __threadfence();
                    atomicExch(slot + 3, (u64)SLOT_FULL);
                    atomicAdd(added, 1u);
                    return;
                }
            }
            // Another thread is writing this slot. The keys of one insertion differ, so it is for
            // another key.
            if (state != SLOT_FULL) continue;
            if (slot[0] == key.a && slot[1] == key.b) {
                slot[2] = place;
                return;
            }
        }
    }
}

KERNEL table_insert(const u32* keys, const u64* places, u32 count, TABLE_PARAMETERS, u32* added) {
    u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) table_put(TABLE, table_key(keys + (u64)index * 8), places[index], added);
}

// Counts the entries that existed.
KERNEL table_remove(const u32* keys, u32 count, TABLE_PARAMETERS, u32* removed) {
    u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    u64* slot = table_slot(TABLE, table_key(keys + (u64)index * 8));
    if (slot && atomicCAS(slot + 3, (u64)SLOT_FULL, (u64)SLOT_REMOVED) == SLOT_FULL) atomicAdd(removed, 1u);
}

// Zeros `count` words.
KERNEL table_clear(u64* words, u64 count) {
    u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) words[index] = 0;
}

// Inserts the entries of `old`, a table with as many slots, into a cleared one. Counts them.
KERNEL table_refresh(const u64* old, u64 count, TABLE_PARAMETERS, u32* entries) {
    u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const u64* slot = old + index * SLOT_WORDS;
    if (slot[3] != SLOT_FULL) return;
    TableKey key = {slot[0], slot[1]};
    table_put(TABLE, key, slot[2], entries);
}
