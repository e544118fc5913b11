// MD5 (RFC 1321), SHA-1 (RFC 3174) and SHA-256 (FIPS 180-4): one block of 16 words at a time.
//
// A digest has `WORDS` words of state. `block` takes words as they are in memory (little-endian
// loads), and `word` returns the digest in its stored form. Loops are unrolled, so that every index
// is constant and the arrays stay in registers.
#pragma once

#include "common.cuh"

struct Md5 {
    enum { WORDS = 4 };
    u32 h[4];

    __device__ void begin() {
        h[0] = 0x67452301u, h[1] = 0xefcdab89u, h[2] = 0x98badcfeu, h[3] = 0x10325476u;
    }

    __device__ u32 word(int n) const { return h[n]; }

    // The message's length in bits, as the last two words of its last block.
    __device__ static void set_length(u32 w[16], u64 bytes) {
        w[14] = (u32)(bytes << 3);
        w[15] = (u32)(bytes >> 29);
    }

    __device__ void block(u32 w[16]) {
        CONSTANT u32 K[64] = {
            0xd76aa478u, 0xe8c7b756u, 0x242070dbu, 0xc1bdceeeu, 0xf57c0fafu, 0x4787c62au, 0xa8304613u, 0xfd469501u,
            0x698098d8u, 0x8b44f7afu, 0xffff5bb1u, 0x895cd7beu, 0x6b901122u, 0xfd987193u, 0xa679438eu, 0x49b40821u,
            0xf61e2562u, 0xc040b340u, 0x265e5a51u, 0xe9b6c7aau, 0xd62f105du, 0x02441453u, 0xd8a1e681u, 0xe7d3fbc8u,
            0x21e1cde6u, 0xc33707d6u, 0xf4d50d87u, 0x455a14edu, 0xa9e3e905u, 0xfcefa3f8u, 0x676f02d9u, 0x8d2a4c8au,
            0xfffa3942u, 0x8771f681u, 0x6d9d6122u, 0xfde5380cu, 0xa4beea44u, 0x4bdecfa9u, 0xf6bb4b60u, 0xbebfbc70u,
            0x289b7ec6u, 0xeaa127fau, 0xd4ef3085u, 0x04881d05u, 0xd9d4d039u, 0xe6db99e5u, 0x1fa27cf8u, 0xc4ac5665u,
            0xf4292244u, 0x432aff97u, 0xab9423a7u, 0xfc93a039u, 0x655b59c3u, 0x8f0ccc92u, 0xffeff47du, 0x85845dd1u,
            0x6fa87e4fu, 0xfe2ce6e0u, 0xa3014314u, 0x4e0811a1u, 0xf7537e82u, 0xbd3af235u, 0x2ad7d2bbu, 0xeb86d391u,
        };
        CONSTANT u32 S[16] = {7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21};
        u32 a = h[0], b = h[1], c = h[2], d = h[3];
        UNROLL for (int i = 0; i < 64; i++) {
            u32 f;
            int g;
            if (i < 16) {
                f = (b & c) | (~b & d), g = i;
            } else if (i < 32) {
                f = (b & d) | (c & ~d), g = (5 * i + 1) & 15;
            } else if (i < 48) {
                f = b ^ c ^ d, g = (3 * i + 5) & 15;
            } else {
                f = c ^ (b | ~d), g = (7 * i) & 15;
            }
            u32 sum = a + f + K[i] + w[g];
            a = d, d = c, c = b;
            b += rotate_left(sum, S[i / 16 * 4 + (i & 3)]);
        }
        h[0] += a, h[1] += b, h[2] += c, h[3] += d;
    }
};

struct Sha1 {
    enum { WORDS = 5 };
    u32 h[5];

    __device__ void begin() {
        h[0] = 0x67452301u, h[1] = 0xefcdab89u, h[2] = 0x98badcfeu, h[3] = 0x10325476u, h[4] = 0xc3d2e1f0u;
    }

    __device__ u32 word(int n) const { return swap_bytes(h[n]); }

    __device__ static void set_length(u32 w[16], u64 bytes) {
        w[14] = swap_bytes((u32)(bytes >> 29));
        w[15] = swap_bytes((u32)(bytes << 3));
    }

    __device__ void block(u32 w[16]) {
        u32 a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
        UNROLL for (int i = 0; i < 80; i++) {
            u32 x;
            if (i < 16) {
                x = swap_bytes(w[i]);
            } else {
                x = rotate_left(w[(i + 13) & 15] ^ w[(i + 8) & 15] ^ w[(i + 2) & 15] ^ w[i & 15], 1);
            }
            w[i & 15] = x;
            u32 f, k;
            if (i < 20) {
                f = (b & c) | (~b & d), k = 0x5a827999u;
            } else if (i < 40) {
                f = b ^ c ^ d, k = 0x6ed9eba1u;
            } else if (i < 60) {
                f = (b & c) | (b & d) | (c & d), k = 0x8f1bbcdcu;
            } else {
                f = b ^ c ^ d, k = 0xca62c1d6u;
            }
            u32 sum = rotate_left(a, 5) + f + e + k + x;
            e = d, d = c, c = rotate_left(b, 30), b = a, a = sum;
        }
        h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
    }
};

struct Sha256 {
    enum { WORDS = 8 };
    u32 h[8];

    __device__ void begin() {
        CONSTANT u32 IV[8] = {
            0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au, 0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u,
        };
        UNROLL for (int i = 0; i < 8; i++) h[i] = IV[i];
    }

    __device__ u32 word(int n) const { return swap_bytes(h[n]); }

    __device__ static void set_length(u32 w[16], u64 bytes) { Sha1::set_length(w, bytes); }

    __device__ void block(u32 w[16]) {
        CONSTANT u32 K[64] = {
            0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u, 0xab1c5ed5u,
            0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu, 0x9bdc06a7u, 0xc19bf174u,
            0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu, 0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau,
            0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u, 0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u,
            0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu, 0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u,
            0xa2bfe8a1u, 0xa81a664bu, 0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u,
            0x19a4c116u, 0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
            0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u, 0xc67178f2u,
        };
        u32 a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], last = h[7];
        UNROLL for (int i = 0; i < 64; i++) {
            u32 x;
            if (i < 16) {
                x = swap_bytes(w[i]);
            } else {
                u32 x15 = w[(i + 1) & 15], x2 = w[(i + 14) & 15];
                u32 s0 = rotate_right(x15, 7) ^ rotate_right(x15, 18) ^ (x15 >> 3);
                u32 s1 = rotate_right(x2, 17) ^ rotate_right(x2, 19) ^ (x2 >> 10);
                x = w[i & 15] + s0 + w[(i + 9) & 15] + s1;
            }
            w[i & 15] = x;
            u32 e1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
            u32 a0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
            u32 t1 = last + e1 + ((e & f) ^ (~e & g)) + K[i] + x;
            u32 t2 = a0 + ((a & b) ^ (a & c) ^ (b & c));
            last = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
        }
        h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e, h[5] += f, h[6] += g, h[7] += last;
    }
};

// The number of blocks of a message of `len` bytes, with the byte 0x80 and the length at its end.
__device__ inline u64 blocks_of(u64 len) { return (len + 72) / 64; }

// Cuts block `number` of a message of `len` bytes off at the message's end, and pads it.
template <typename Digest> __device__ inline void pad_block(u32 w[16], u64 number, u64 len) {
    UNROLL for (int i = 0; i < 16; i++) {
        u64 at = number * 64 + 4 * i;
        if (at > len) {
            w[i] = 0;
        } else if (at + 4 > len) {
            u32 bits = 8 * (u32)(len - at);
            w[i] = (w[i] & ((1u << bits) - 1)) | 0x80u << bits;
        }
    }
    if (number + 1 == blocks_of(len)) Digest::set_length(w, len);
}
