// Rabin fingerprints: the remainder of a polynomial over GF(2).
#pragma once

#include "common.cuh"

// Degree 53: the top byte of a value of 53 bits selects what the 8 bits that shifting pushes out are worth.
struct Rabin {
    enum { DEGREE = 53 };
    u64 value;
    __device__ void begin() { value = 0; }
    __device__ void byte(const u64* table, u32 byte) {
        value = ((value << 8 | byte) & ((1ull << DEGREE) - 1)) ^ table[value >> (DEGREE - 8)];
    }
};
