#!/usr/bin/env python3
"""Test vectors for the primitives of crates/offload, computed with Python's hashlib and bit by bit by their definitions (docs/format.md):

    scripts/hash_vectors.py > crates/offload/tests/it/vectors.txt

Long outputs are listed as their SHA-256.
"""
import hashlib

HASH = {"md5": hashlib.md5, "sha1": hashlib.sha1, "sha256": hashlib.sha256}
MASK64 = (1 << 64) - 1


def golden(length, state=0x4F75747269676765):
    """The data: xorshift64*, eight little-endian bytes per step."""
    out = bytearray()
    while len(out) < length:
        state ^= state >> 12
        state ^= state << 25 & MASK64
        state ^= state >> 27
        out += (state * 0x2545F4914F6CDD1D & MASK64).to_bytes(8, "little")
    return bytes(out[:length])


def pmd(name, data):
    """The parallel Merkle-Damgård construction."""
    digest = lambda part: HASH[name](part).digest()
    level = [digest(data[at : at + 4096]) for at in range(0, max(len(data), 1), 4096)]
    while len(level) > 1:
        joined = b"".join(level)
        level = [digest(joined[at : at + 4096]) for at in range(0, len(joined), 4096)]
    return digest(b"outrigger pmd1\0\0" + len(data).to_bytes(8, "little") + level[0])


RABIN = 0x3DA3358B4CC173


def rabin(window):
    """The remainder of a window's polynomial."""
    value = int.from_bytes(window, "big")
    while value.bit_length() > 53:
        value ^= RABIN << value.bit_length() - 54
    return value.to_bytes(8, "little")


def gf_mul(a, b):
    """The product in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1."""
    product = 0
    for bit in range(8):
        product ^= (a << bit) * (b >> bit & 1)
    for bit in range(14, 7, -1):
        if product >> bit & 1:
            product ^= 0x11B << bit - 8
    return product


def gear_entry(byte):
    rows = (0xF1E3C78F1F3E7CF8).to_bytes(8, "little")
    entry = 0
    for k, xor in enumerate((0x1D, 0x63, 0xB7, 0xF1)):
        x = byte ^ xor
        inverse = next((y for y in range(256) if gf_mul(x, y) == 1), 0)
        image = sum(((rows[7 - bit] & inverse).bit_count() & 1) << bit for bit in range(8))
        entry |= image << 8 * k
    return entry


GEAR = [gear_entry(byte) for byte in range(256)]


def gear(window):
    h = 0
    for byte in window:
        h = (h << 1) + GEAR[byte] & 0xFFFFFFFF
    return h.to_bytes(4, "little")


WINDOW = {"md5": lambda w: hashlib.md5(w).digest(), "sha1": lambda w: hashlib.sha1(w).digest(), "rabin": rabin, "gear32": gear}


def windows(name, window, step, keep, data):
    return b"".join(WINDOW[name](data[at : at + window])[:keep] for at in range(0, len(data) - window + 1, step))


def cuts(name, low, avg, high, data):
    """Chunk ends: after a window of 48 bytes whose hash has all low log2(avg) bits set, between the
    bounds."""
    function = WINDOW[{"rabin": "rabin", "lbfs-md5": "md5", "lbfs-sha1": "sha1"}[name]]
    ends, start = [], 0
    for end in range(1, len(data) + 1):
        length = end - start
        candidate = length > low and int.from_bytes(function(data[end - 48 : end])[:4], "little") & avg - 1 == avg - 1
        if candidate or length == high or end == len(data):
            ends.append(end)
            start = end
    return ends


def main():
    data = golden(1 << 20)
    print("# Made by scripts/hash_vectors.py. The data are the first LENGTH bytes of the golden generator (docs/format.md).")
    print("# digest NAME LENGTH HEX")
    for name in HASH:
        for length in [0, 1, 3, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 4095, 4096, 4097, 100_003]:
            print("digest", name, length, HASH[name](data[:length]).hexdigest())
    print("# pmd NAME LENGTH HEX")
    for name in HASH:
        for length in [0, 1, 4095, 4096, 4097, 128 * 4096, 129 * 4096, 204 * 4096, 205 * 4096, 256 * 4096, 1_000_003]:
            print("pmd", name, length, pmd(name, data[:length]).hex())
    print("# window NAME WINDOW STEP KEEP LENGTH SHA-256 of all that is kept")
    for name, full in [("md5", 16), ("sha1", 20), ("rabin", 8), ("gear32", 4)]:
        for window in [1, 16, 20, 48, 52, 55, 56, 63, 64, 65, 200]:
            for step, keep in [(1, 4), (3, full), (4, 4), (20, 1), (52, full), (64, min(full, 8))]:
                kept = windows(name, window, step, keep, data[:3003])
                print("window", name, window, step, keep, 3003, hashlib.sha256(kept).hexdigest())
    print("# cuts NAME MIN AVG MAX LENGTH CHUNKS SHA-256 of the ends, each as eight little-endian bytes")
    for name in ["rabin", "lbfs-md5", "lbfs-sha1"]:
        for low, avg, high in [(256, 1024, 4096), (2048, 8192, 65536)]:
            ends = cuts(name, low, avg, high, data[:100_003])
            joined = b"".join(end.to_bytes(8, "little") for end in ends)
            print("cuts", name, low, avg, high, 100_003, len(ends), hashlib.sha256(joined).hexdigest())


main()
