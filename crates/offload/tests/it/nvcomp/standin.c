// A stand-in for libnvcomp, for tests on machines without a GPU. It has the ABI of version 6.0 (or,
// compiled with -DFIVE, of 5.3), and its device memory is this machine's. It computes results by a
// function of the test, and fails on request.

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int Status;
typedef void *Stream;

typedef struct {
    uint32_t version;
    uint32_t cudart_version;
} Properties;

// Compresses (or decompresses) src into dest, by the codec's number on disk. Returns the length, or
// -1.
typedef int64_t (*Codec)(int codec, int algorithm, int decompress, const uint8_t *src, size_t len, uint8_t *dest, size_t room);

static Codec function;

static struct {
    const char *name;
    long value;
} values[] = {
    {"every", 0},    // every nth batch ...
    {"launch", 0},   // ... is refused with this status,
    {"status", 0},   // ... has this status for its last chunk,
    {"corrupt", 0},  // ... has a wrong byte in its last chunk,
    {"hang", 0},     // ... does not return
    {"gate", 0},     // all batches wait while it is shut
    {"batches", 0},  // counted
    {"chunks", 0},
    {"largest", 0},  // the most chunks that a batch had
    {"unaligned", 0},
};

#include "../common/standin.h"

void standin_codec(Codec to) { function = to; }

static Status batch(int codec, int algorithm, int decompress, const void *const *in, const size_t *in_len, void *const *out,
                    const size_t *rooms, size_t room, size_t *out_len, size_t count, void *temp, size_t temp_bytes,
                    Status *statuses) {
    pthread_mutex_lock(&lock);
    long number = ++*value("batches"), every = *value("every");
    *value("chunks") += (long)count;
    if ((long)count > *value("largest")) *value("largest") = (long)count;
    int due = every && number % every == 0;
    while (*value("gate") || (due && *value("hang"))) pthread_cond_wait(&changed, &lock);
    Status launch = due ? (Status)*value("launch") : 0, status = due ? (Status)*value("status") : 0;
    int corrupt = due && *value("corrupt");
    pthread_mutex_unlock(&lock);
    if (launch) return launch;
    // Writes to all memory that it was promised.
    memset(temp, 0xa5, temp_bytes);
    for (size_t at = 0; at < count; at++) {
        if ((uintptr_t)in[at] % 8 || (uintptr_t)out[at] % 8) {
            pthread_mutex_lock(&lock);
            ++*value("unaligned");
            pthread_mutex_unlock(&lock);
        }
        size_t to = decompress ? rooms[at] : room;
        int64_t made = function(codec, algorithm, decompress, in[at], in_len[at], out[at], to);
        int last = at + 1 == count;
        statuses[at] = made < 0 ? (decompress ? 12 : 19) : last ? status : 0;
        out_len[at] = made < 0 ? 0 : (size_t)made;
        if (made > 0 && last && corrupt) ((uint8_t *)out[at])[made / 2] ^= 0x10;
    }
    return 0;
}

#ifdef FIVE
#define TEMP(name) name##Async
#define STREAM
#else
#define TEMP(name) name
#define STREAM , Stream stream
#endif

static void ignore(size_t one, size_t two, size_t three) { (void)(one + two + three); }

// Options are structures of 64 bytes. For gzip and deflate, the first number is the algorithm. For
// decompression, it is the backend.
#define CODEC(Name, codec)                                                                                                     \
    typedef struct { int first; char reserved[60]; } Name##Options;                                                            \
    Status TEMP(nvcompBatched##Name##CompressGetTempSize)(size_t count, size_t longest, Name##Options options, size_t *bytes,   \
                                                          size_t total STREAM) {                                               \
        ignore(longest, total, (size_t)options.first);                                                                         \
        *bytes = 1000 * count;                                                                                                 \
        return 0;                                                                                                              \
    }                                                                                                                          \
    Status TEMP(nvcompBatched##Name##DecompressGetTempSize)(size_t count, size_t longest, Name##Options options,               \
                                                            size_t *bytes, size_t total STREAM) {                              \
        ignore(longest, total, 0);                                                                                             \
        *bytes = 700 * count;                                                                                                  \
        return options.first == 2 ? 0 : 10;                                                                                    \
    }                                                                                                                          \
    Status nvcompBatched##Name##CompressGetMaxOutputChunkSize(size_t longest, Name##Options options, size_t *bytes) {          \
        ignore((size_t)options.first, 0, 0);                                                                                   \
        *bytes = longest + longest / 8 + 1000;                                                                                 \
        return 0;                                                                                                              \
    }                                                                                                                          \
    Status nvcompBatched##Name##CompressAsync(const void *const *in, const size_t *in_len, size_t longest, size_t count,       \
                                              void *temp, size_t temp_bytes, void *const *out, size_t *out_len,                \
                                              Name##Options options, Status *statuses, Stream stream) {                        \
        (void)stream;                                                                                                          \
        return batch(codec, options.first, 0, in, in_len, out, NULL, longest + longest / 8 + 1000, out_len, count, temp,       \
                     temp_bytes, statuses);                                                                                    \
    }                                                                                                                          \
    Status nvcompBatched##Name##DecompressAsync(const void *const *in, const size_t *in_len, const size_t *rooms,              \
                                                size_t *out_len, size_t count, void *const temp, size_t temp_bytes,            \
                                                void *const *out, Name##Options options, Status *statuses, Stream stream) {    \
        (void)stream;                                                                                                          \
        if (options.first != 2) return 10;                                                                                     \
        return batch(codec, 0, 1, in, in_len, out, rooms, 0, out_len, count, temp, temp_bytes, statuses);                      \
    }

#ifndef FIVE
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif
CODEC(Zstd, 1)
CODEC(LZ4, 2)
CODEC(Gzip, 3)
CODEC(Deflate, 4)

Status nvcompGetProperties(Properties *properties) {
#ifdef FIVE
    properties->version = 5300;
#else
    properties->version = 6000;
#endif
    properties->cudart_version = 12090;
    return 0;
}
