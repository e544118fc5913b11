// Rabin fingerprints: the remainder of a polynomial over GF(2).
#pragma once

#include "common.cuh"

// Degree 53: the top byte of a 53-bit value selects the remainder of the 8 bits that a shift pushes
// out.
struct Rabin {
    enum { DEGREE = 53 };
    u64 value;
    __device__ void begin() { value = 0; }
    __device__ void byte(const u64* table, u32 byte) {
        value = ((value << 8 | byte) & ((1ull << DEGREE) - 1)) ^ table[value >> (DEGREE - 8)];
    }
};
