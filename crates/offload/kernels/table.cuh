// The fingerprint table in memory. src/table/mod.rs has the layout, and the processor's version.
#pragma once

#include "common.cuh"

enum { SLOT_WORDS = 4, BUCKET_SLOTS = 2, BLOCK_WORDS = 8 };
enum { SLOT_EMPTY = 0, SLOT_FULL = 1, SLOT_REMOVED = 2, SLOT_BUSY = 3 };

// With null slots there is no table, and nothing is found. Masks are the numbers of buckets and of
// blocks, less one.
struct TableView {
    u64* slots;
    u64 bucket_mask;
    u32* summary;
    u64 block_mask;
};

#define TABLE_PARAMETERS u64 *slots, u64 bucket_mask, u32 *summary, u64 block_mask
#define TABLE                                                                                                          \
    TableView { slots, bucket_mask, summary, block_mask }

// The part of a fingerprint that a table keeps.
struct TableKey {
    u64 a, b;
};

__device__ inline TableKey table_key(const u32* fingerprint) {
    TableKey key = {(u64)fingerprint[1] << 32 | fingerprint[0], (u64)fingerprint[3] << 32 | fingerprint[2]};
    return key;
}

__device__ inline u32* table_block(const TableView& table, TableKey key) {
    return table.summary + (key.a >> 32 & table.block_mask) * BLOCK_WORDS;
}

__device__ inline u32 summary_bit(TableKey key, u32 word) { return 1u << (key.b >> 5 * word & 31); }

// The slot of a key, or null. A table always has an unused slot, which ends every probe.
__device__ inline u64* table_slot(const TableView& table, TableKey key) {
    if (!table.slots) return nullptr;
    const u32* block = table_block(table, key);
    u32 missing = 0;
    UNROLL for (u32 i = 0; i < BLOCK_WORDS; i++) missing |= ~block[i] & summary_bit(key, i);
    if (missing) return nullptr;
    for (u64 bucket = key.a & table.bucket_mask;; bucket = (bucket + 1) & table.bucket_mask) {
        for (u32 i = 0; i < BUCKET_SLOTS; i++) {
            u64* slot = table.slots + (bucket * BUCKET_SLOTS + i) * SLOT_WORDS;
            if (slot[3] == SLOT_FULL && slot[0] == key.a && slot[1] == key.b) return slot;
            if (slot[3] == SLOT_EMPTY) return nullptr;
        }
    }
}

// True if a fingerprint is in the table, with its place.
__device__ inline u32 table_find(const TableView& table, const u32* fingerprint, u64& place) {
    const u64* slot = table_slot(table, table_key(fingerprint));
    if (slot) place = slot[2];
    return slot != nullptr;
}
