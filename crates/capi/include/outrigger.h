/*
 * Outrigger: hashing, chunking, fingerprint lookup and compression, each on the processor or device that is best for it.
 *
 * Made from crates/capi by cbindgen (scripts/header.sh): not to be edited. docs/c-api.md introduces it, and
 * crates/capi/examples has programs.
 *
 * These rules hold everywhere:
 *
 * - Pointers are valid as described, for the duration of the call unless described otherwise. A pointer to no elements
 *   may be null. A null handle is an error, not a crash.
 * - The result of a function named ..._new or ..._load is freed by ..._free, and a runtime by
 *   outrigger_runtime_shutdown. Other memory belongs to the handle that it came from.
 * - Functions that return a status, or null for an error, say more in outrigger_last_error(), which is per thread.
 * - All threads may call all functions at once. But no function may change a handle that another thread is using, unless
 *   the handle's description allows it.
 * - Enumerations are passed as numbers of a fixed size, so that an unknown one is an error.
 * - Sizes are in bytes unless stated otherwise. Numbers in results are in the machine's byte order.
 */


#ifndef OUTRIGGER_H
#define OUTRIGGER_H

#include <stddef.h>
#include <stdint.h>

// The version of the binary interface. It changes if something is removed or changes its meaning,
// but not if something is added.
#define OUTRIGGER_ABI 1

// How a call, or a task, ended. After anything but OUTRIGGER_OK and OUTRIGGER_PENDING,
// outrigger_last_error() says more.
enum outrigger_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Done.
    OUTRIGGER_OK = 0,
    // An argument is null although it must not be, or out of bounds.
    OUTRIGGER_INVALID = 1,
    // The task or the buffer is in the wrong state: it is in flight, has not ended, or is shared
    // by tasks.
    OUTRIGGER_STATE = 2,
    // The output does not fit in the given memory. The required size was stored.
    OUTRIGGER_SPACE = 3,
    // There is no room: the queue of tasks or the table is full, or memory is exhausted.
    OUTRIGGER_FULL = 4,
    // The task has not ended yet.
    OUTRIGGER_PENDING = 5,
    // The task was cancelled.
    OUTRIGGER_CANCELLED = 6,
    // The task had not been begun by its deadline.
    OUTRIGGER_EXPIRED = 7,
    // The runtime was shut down before the task was begun.
    OUTRIGGER_STOPPED = 8,
    // The data is bad: damaged compressed bytes, or the caller's own operation rejected it.
    OUTRIGGER_DATA = 9,
    // No device supports this with these parameters.
    OUTRIGGER_UNSUPPORTED = 10,
    // The requested device does not exist.
    OUTRIGGER_ABSENT = 11,
    // A file could not be read or written.
    OUTRIGGER_IO = 12,
    // A bug in the library. The objects of the call can be freed, but nothing else is certain
    // about them.
    OUTRIGGER_BUG = 13,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum outrigger_status outrigger_status;
#else
typedef int32_t outrigger_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A function that hashes whole pieces of data. The numbers are those of the on-disk format.
enum outrigger_hash_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // BLAKE3, 32 bytes.
    OUTRIGGER_BLAKE3 = 1,
    // SHA-256 (FIPS 180-4), 32 bytes.
    OUTRIGGER_SHA256 = 2,
    // MD5 (RFC 1321), 16 bytes.
    OUTRIGGER_MD5 = 3,
    // SHA-1 (RFC 3174), 20 bytes.
    OUTRIGGER_SHA1 = 4,
    // The parallel Merkle-Damgard construction over MD5. It is not MD5 of the data, but thousands
    // of threads can compute it. It hashes segments of 4096 bytes, then their digests, and so on
    // (docs/format.md, "pmd"). 16 bytes.
    OUTRIGGER_PMD_MD5 = 5,
    // The same over SHA-1, 20 bytes.
    OUTRIGGER_PMD_SHA1 = 6,
    // The same over SHA-256, 32 bytes.
    OUTRIGGER_PMD_SHA256 = 7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum outrigger_hash_kind outrigger_hash_kind;
#else
typedef uint32_t outrigger_hash_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A function that hashes sliding windows.
enum outrigger_window_function
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // MD5, 16 bytes.
    OUTRIGGER_WINDOW_MD5 = 1,
    // SHA-1, 20 bytes.
    OUTRIGGER_WINDOW_SHA1 = 2,
    // The Rabin fingerprint modulo the polynomial 0x3DA3358B4CC173, 8 bytes, little-endian.
    OUTRIGGER_WINDOW_RABIN = 3,
    // The hash that finds boundaries, 4 bytes, little-endian.
    OUTRIGGER_WINDOW_GEAR32 = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum outrigger_window_function outrigger_window_function;
#else
typedef uint32_t outrigger_window_function;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The language of a caller's kernel.
enum outrigger_kernel_language
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // CUDA C++, which NVRTC compiles if it is installed.
    OUTRIGGER_CUDA = 1,
    // PTX.
    OUTRIGGER_PTX = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum outrigger_kernel_language outrigger_kernel_language;
#else
typedef uint32_t outrigger_kernel_language;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The order of a device's waiting tasks. It is strict: a lower one waits while a higher one is
// there.
enum outrigger_priority
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // A caller waits for it.
    OUTRIGGER_HIGH = 0,
    // The default.
    OUTRIGGER_NORMAL = 1,
    // Only when nothing else waits.
    OUTRIGGER_LOW = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum outrigger_priority outrigger_priority;
#else
typedef uint32_t outrigger_priority;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The codec of a frame. The numbers are those of the on-disk format.
enum outrigger_codec
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Uncompressed.
    OUTRIGGER_CODEC_NONE = 0,
    // Zstandard (RFC 8878).
    OUTRIGGER_CODEC_ZSTD = 1,
    // An LZ4 block.
    OUTRIGGER_CODEC_LZ4 = 2,
    // A gzip member (RFC 1952).
    OUTRIGGER_CODEC_GZIP = 3,
    // A raw deflate stream (RFC 1951).
    OUTRIGGER_CODEC_DEFLATE = 4,
    // Runs of zeros shortened.
    OUTRIGGER_CODEC_ZLE = 5,
    // LZJB.
    OUTRIGGER_CODEC_LZJB = 6,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum outrigger_codec outrigger_codec;
#else
typedef uint32_t outrigger_codec;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The trust in a device.
enum outrigger_breaker
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // It is trusted.
    OUTRIGGER_CLOSED = 0,
    // It is cut off.
    OUTRIGGER_OPEN = 1,
    // It is on trial.
    OUTRIGGER_HALF_OPEN = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum outrigger_breaker outrigger_breaker;
#else
typedef uint32_t outrigger_breaker;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Memory from a runtime's pool, page-locked if one of its devices has such memory. The program
// fills it, and tasks then share it.
typedef struct outrigger_buffer outrigger_buffer;

// The configuration of a runtime. One thread at a time may use it.
typedef struct outrigger_builder outrigger_builder;

// Hashes data that arrives in pieces.
typedef struct outrigger_hasher outrigger_hasher;

// Cuts, fingerprints and looks up in one pass. Keeps its memory from call to call. One thread at a
// time may use it.
typedef struct outrigger_ingester outrigger_ingester;

// An operation for outrigger_task_own().
typedef struct outrigger_operation outrigger_operation;

// Threads, devices, queues and buffers that execute tasks. All threads may use it at once.
typedef struct outrigger_runtime outrigger_runtime;

// Fingerprints with a number for each, and a summary vector that ends most lookups of fingerprints
// which were never inserted. Many threads may look up at once, and changes wait for them. A task
// uses the table in its state at the request: a change while such tasks are alive first copies the
// table.
typedef struct outrigger_table outrigger_table;

// A task. One thread at a time fills it. After submission, any thread may poll, wait for or cancel
// it.
typedef struct outrigger_task outrigger_task;

// A stream in a batch, or a piece of one that begins where a chunk does.
typedef struct outrigger_stream {
    // Where it begins in the batch, bytes.
    uint32_t start;
    // Where it ends.
    uint32_t end;
    // 1 if the stream, and hence its last chunk, ends with this piece; 0 if more follows. The
    // bytes after the last cut then form no chunk yet, and belong in front of the next piece.
    uint32_t last;
} outrigger_stream;

// A hash: the function's bytes, then zeros.
typedef struct outrigger_fingerprint {
    // Its bytes.
    uint8_t bytes[32];
} outrigger_fingerprint;

// A chunk, cut, fingerprinted and looked up.
typedef struct outrigger_chunk {
    // Its fingerprint.
    struct outrigger_fingerprint fingerprint;
    // The table's number for it, if it is found.
    uint64_t place;
    // Where it ends in the batch, bytes. It begins where the one before it ends, or its stream
    // begins.
    uint32_t end;
    // 1 if it is in the table, 0 if not.
    uint32_t found;
} outrigger_chunk;

// A piece of the data: the bytes from `start` to before `end`.
typedef struct outrigger_range {
    // Where it begins, bytes.
    uint32_t start;
    // Where it ends.
    uint32_t end;
} outrigger_range;

// The windows to hash, and the part of each hash to keep.
typedef struct outrigger_window {
    // One of enum outrigger_window_function.
    uint32_t function;
    // How many bytes of each hash to keep, from its beginning: 1 to all.
    uint32_t keep;
    // Bytes in a window, 1 to 4096.
    size_t window;
    // Window i begins at byte i * step; at least 1.
    size_t step;
} outrigger_window;

// One device, at one moment. Sums run since the runtime began; times are in nanoseconds.
typedef struct outrigger_device_metrics {
    // Its name: "cpu", "cuda:0". Ends with a zero.
    char name[32];
    // The hardware: "NVIDIA H200". Ends with a zero; truncated if it is longer.
    char model[96];
    // One of enum outrigger_breaker.
    uint32_t breaker;
    // 1 if it works in the host's memory, so that nothing is copied.
    uint32_t zero_copy;
    // Its own memory, bytes; 0 if it has none.
    uint64_t memory_bytes;
    // How often it was cut off.
    uint64_t trips;
    // How often the runtime tried to re-initialise it.
    uint64_t resets;
    // Tasks that wait for it.
    uint64_t waiting;
    // Tasks that it works on.
    uint64_t running;
    // Tasks that it has done.
    uint64_t tasks;
    // Their bytes.
    uint64_t bytes;
    // How long they waited.
    uint64_t queue_ns;
    // How long it copied in.
    uint64_t copy_in_ns;
    // How long it computed.
    uint64_t kernel_ns;
    // How long it copied out.
    uint64_t copy_out_ns;
    // Predicted times from submission to end, of tasks with a prediction.
    uint64_t predicted_ns;
    // Actual times of the same tasks.
    uint64_t actual_ns;
    // Tasks that it did not finish and the processor took over.
    uint64_t given_up;
    // Results that were compared with the processor's.
    uint64_t checked;
    // Faults: unsupported, busy, out of memory, failed, lost, hung, wrong.
    uint64_t faults[7];
} outrigger_device_metrics;

// Counters of a runtime, apart from those of its devices.
typedef struct outrigger_metrics {
    // The number of devices, with the processor.
    uint64_t devices;
    // Tasks that ended without a result.
    uint64_t failed;
    // Buffers handed out by the pool.
    uint64_t buffers;
    // How many of them were new.
    uint64_t buffers_fresh;
    // How many of the new ones are not page-locked, as the device had no memory.
    uint64_t buffers_not_locked;
    // Bytes of unused buffers in the pool.
    uint64_t buffers_kept_bytes;
} outrigger_metrics;

// Executes the operation on the processor. It reads `len` bytes of data and the task's parameters,
// writes at most `room` bytes to `out` (the operation's outrigger_output_len has returned `room`),
// and stores their number in `written`. It returns 0, or another number if the data is bad, which
// is then the task's result (OUTRIGGER_DATA). Any thread may call it, several may at once, and it
// is called again for the same task if the result is checked. So equal inputs must give equal
// outputs. It must not unwind or jump out.
typedef int32_t (*outrigger_function)(void *context,
                                      const uint8_t *parameters,
                                      size_t parameters_len,
                                      const uint8_t *data,
                                      size_t len,
                                      uint8_t *out,
                                      size_t room,
                                      size_t *written);

// The most bytes of output for `len` bytes of data with these parameters. Any thread may call it.
typedef size_t (*outrigger_output_len)(void *context, const uint8_t *parameters, size_t parameters_len, size_t len);

// A kernel with the same result as the operation's function. Its signature is
//
//   extern "C" __global__ void NAME(const unsigned char *data, unsigned long long data_len,
//                                   const unsigned char *parameters, unsigned long long parameters_len,
//                                   unsigned char *out, unsigned long long out_len);
//
// It gets at least one thread for every `bytes_per_thread` bytes of data, in one dimension. All of
// `out_len`, which the operation's outrigger_output_len returned, is the result.
typedef struct outrigger_kernel {
    // One of enum outrigger_kernel_language.
    uint32_t language;
    // Threads of a block, 32 to 1024.
    uint32_t block_threads;
    // The bytes of data for each thread, at least 1.
    size_t bytes_per_thread;
    // The source, or the PTX. Copied.
    const char *code;
    // The function's name in the code. Copied.
    const char *name;
} outrigger_kernel;

// Called once with the context, by any thread, when the operation is freed and no task has it any
// more.
typedef void (*outrigger_release)(void *context);

// Called once for each submission of a task when it ends, by a thread of the runtime or by the one
// that cancels it. It must be quick, as it may hold up a device. It may read the task, free it, or
// reuse it (with outrigger_try_submit(), which does not wait for room), but must not wait for
// another task.
typedef void (*outrigger_callback)(void *context, struct outrigger_task *task);

// How a task was executed, and how long it took in nanoseconds.
typedef struct outrigger_report {
    // The device that executed it; 0 is the processor.
    uint32_t device;
    // How many devices failed at it.
    uint32_t fallbacks;
    // 1 if its result was compared with the processor's.
    uint32_t checked;
    // Zero.
    uint32_t reserved;
    // From submission until a device began.
    uint64_t queue_ns;
    // Host memory to device memory.
    uint64_t copy_in_ns;
    // The computation.
    uint64_t kernel_ns;
    // Device memory to host memory.
    uint64_t copy_out_ns;
    // From submission to end.
    uint64_t total_ns;
    // The prediction of total_ns; 0 if there was none.
    uint64_t predicted_ns;
} outrigger_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// A buffer of at least `bytes` bytes, at most 2 GiB, aligned to 4096. Its bytes may have any
// value. Null after an error. Free it with outrigger_buffer_free().
struct outrigger_buffer *outrigger_buffer_new(const struct outrigger_runtime *runtime, size_t bytes);

// The address of its memory, to write. The pointer stays valid until the buffer is freed. While a
// task that shares the buffer is alive, nothing may be written, and this returns null
// (OUTRIGGER_STATE).
uint8_t *outrigger_buffer_data(const struct outrigger_buffer *buffer);

// Its size in bytes; 0 for null.
size_t outrigger_buffer_size(const struct outrigger_buffer *buffer);

// 1 if it is page-locked for a device, else 0.
int32_t outrigger_buffer_is_locked(const struct outrigger_buffer *buffer);

// Frees it. Its memory returns to the pool when the last task that shares it is freed. Null is no
// error.
void outrigger_buffer_free(struct outrigger_buffer *buffer);

// A configuration with one thread for each processor and no other device. Never null. Pass it to
// outrigger_runtime_new() or to outrigger_builder_free().
struct outrigger_builder *outrigger_builder_new(void);

// Sets the number of threads that work on the processor, 1 to 1024.
outrigger_status outrigger_builder_threads(struct outrigger_builder *builder, size_t threads);

// Sets how many bytes of unused buffers are kept. The default is 256 MiB.
outrigger_status outrigger_builder_keep_bytes(struct outrigger_builder *builder, uint64_t bytes);

// Adds a device, at most 23. "cuda:0", "nvcomp:0" and "qat:0" are devices of this machine
// (OUTRIGGER_ABSENT says why one is missing). "auto" adds all that exist; none is no error
// (outrigger_builder_missing() says why). "sim:PRESET" is a simulated device, with right results
// and modelled times: "sim:pcie5-gpu", "sim:geforce-8800", "sim:integrated" or "sim:slow".
outrigger_status outrigger_builder_device(struct outrigger_builder *builder, const char *name);

// The kinds of devices that the last "auto" has not found, with reasons: a line for each, "" if
// none is missing. Valid until the next call with this builder.
const char *outrigger_builder_missing(const struct outrigger_builder *builder);

// Sets a threshold of placement, or of the handling of device failures, by its name: "objective"
// to "throughput", "latency" or "cpu"; "offload_min_bytes" to "64K"; "check_every" to "1".
// docs/offload.md explains them all. Sizes are written as 64K, times as seconds.
outrigger_status outrigger_builder_policy(struct outrigger_builder *builder, const char *name, const char *value);

// Reads the measurements of this machine's devices from a file, or, if `path` is null, from the
// file of `outrigger calibrate`. A missing file is no error.
outrigger_status outrigger_builder_calibration(struct outrigger_builder *builder, const char *path);

// Frees it. Null is no error.
void outrigger_builder_free(struct outrigger_builder *builder);

// Starts a runtime and frees the builder, even after an error. Null after an error. End it with
// outrigger_runtime_shutdown().
struct outrigger_runtime *outrigger_runtime_new(struct outrigger_builder *builder);

// Finds boundary candidates on this thread. `history` holds the bytes before `data` in its file:
// at least its last 32, or all at the beginning of the file. `average` is the wanted chunk size, a
// power of two. Candidates go to `out`, ascending, as position << 1 | strict. Their number is
// stored in `count` (if not null), even if they do not fit in `room` (OUTRIGGER_SPACE). `data` has
// less than 2^31 bytes.
//
// A walk with a minimum and a maximum turns candidates into cuts (docs/format.md).
// outrigger_ingest() does both.
outrigger_status outrigger_scan(const void *history,
                                size_t history_len,
                                const void *data,
                                size_t len,
                                uint32_t average,
                                uint32_t *out,
                                size_t room,
                                size_t *count);

// An ingester with a chunker ("gear32:4K/16K/64K", "fixed:16K", "rabin:..."; see docs/format.md)
// and a fingerprint (enum outrigger_hash_kind). Null after an error. Free it with
// outrigger_ingester_free().
struct outrigger_ingester *outrigger_ingester_new(const char *chunker, uint32_t kind);

// Cuts the `stream_count` streams in `data` (less than 2^31 bytes) into chunks, fingerprints them,
// and looks them up in `table`, unless it is null; on this thread. Stores a pointer to the chunks
// of all streams, in order, in `chunks`, and one to the number of each stream's chunks in
// `counts`. Both belong to the ingester and are valid until its next call.
outrigger_status outrigger_ingest(struct outrigger_ingester *ingester,
                                  const void *data,
                                  size_t len,
                                  const struct outrigger_stream *streams,
                                  size_t stream_count,
                                  const struct outrigger_table *table,
                                  const struct outrigger_chunk **chunks,
                                  size_t *chunk_count,
                                  const uint32_t **counts);

// Frees it, and the results of its last call. Null is no error.
void outrigger_ingester_free(struct outrigger_ingester *ingester);

// The number of bytes of a fingerprint of this kind (enum outrigger_hash_kind) that are the hash.
// The others are zeros. 0 for an unknown kind.
size_t outrigger_hash_len(uint32_t kind);

// Hashes `len` bytes by the function `kind` (enum outrigger_hash_kind) into `out`, on this thread.
outrigger_status outrigger_hash(uint32_t kind, const void *data, size_t len, struct outrigger_fingerprint *out);

// Hashes `count` pieces of `data` side by side on this thread, into as many fingerprints at `out`.
// Pieces may be in any order and overlap. `data` has less than 4 GiB. With every function this is
// faster than one piece after the other.
outrigger_status outrigger_hash_many(uint32_t kind,
                                     const void *data,
                                     size_t len,
                                     const struct outrigger_range *pieces,
                                     size_t count,
                                     struct outrigger_fingerprint *out);

// The number of windows in `len` bytes, each of which gives `keep` bytes. 0 if `spec` is not
// valid, which outrigger_last_error() explains.
size_t outrigger_window_count(const struct outrigger_window *spec, size_t len);

// Hashes the sliding windows of `data` on this thread. `spec.keep` bytes of each window's hash go
// in order to `out`, which has room for `room` bytes. The number of bytes is stored in `written`
// (if not null), even if they do not fit (OUTRIGGER_SPACE).
outrigger_status outrigger_window_hash(const struct outrigger_window *spec,
                                       const void *data,
                                       size_t len,
                                       uint8_t *out,
                                       size_t room,
                                       size_t *written);

// A hasher for a function (enum outrigger_hash_kind). Null after an error. Free it with
// outrigger_hasher_free().
struct outrigger_hasher *outrigger_hasher_new(uint32_t kind);

// Takes the next `len` bytes.
outrigger_status outrigger_hasher_update(struct outrigger_hasher *hasher, const void *data, size_t len);

// The hash of everything since the last call of this function, or since the beginning. The next
// bytes begin a new hash.
outrigger_status outrigger_hasher_finish(struct outrigger_hasher *hasher, struct outrigger_fingerprint *out);

// Frees it. Null is no error.
void outrigger_hasher_free(struct outrigger_hasher *hasher);

// The number of devices of a runtime, with the processor, which is number 0. 0 for null.
size_t outrigger_runtime_devices(const struct outrigger_runtime *runtime);

// The counters of a device. `size` is sizeof *out, as a later version of the library may have more
// fields than the program knows.
outrigger_status outrigger_runtime_device(const struct outrigger_runtime *runtime,
                                          size_t device,
                                          struct outrigger_device_metrics *out,
                                          size_t size);

// The counters of a runtime, apart from those of its devices. `size` is sizeof *out.
outrigger_status outrigger_runtime_metrics(const struct outrigger_runtime *runtime,
                                           struct outrigger_metrics *out,
                                           size_t size);

// Registers an operation under a name. Two operations of one name must mean the same, as
// calibrations are kept under the name. `kernel` may be null: then only the processor executes it.
// The functions get `context`. `release`, unless it is null, is called with it at the end, even if
// this call fails. Null after an error. Free it with outrigger_operation_free().
struct outrigger_operation *outrigger_operation_new(const char *name,
                                                    outrigger_function function,
                                                    outrigger_output_len output_len,
                                                    const struct outrigger_kernel *kernel,
                                                    void *context,
                                                    outrigger_release release);

// Declares that the operation's function is brief: it never blocks, and takes no lock that a
// thread may hold while it submits. The submitting thread may then execute a task before
// outrigger_submit() returns, if that is predicted to take less time than handing it over (the
// threshold inline_max, 20 microseconds). Tasks with a callback or a deadline are excluded. To be
// called right after outrigger_operation_new(). Once a task has the operation, this is
// OUTRIGGER_STATE.
outrigger_status outrigger_operation_set_brief(struct outrigger_operation *operation);

// Executes the operation's function on this thread. The output for `len` bytes of data goes to
// `out`, which has room for `room` bytes. Its length is stored in `written` (if not null), even if
// it does not fit (OUTRIGGER_SPACE).
outrigger_status outrigger_operation_run(const struct outrigger_operation *operation,
                                         const void *parameters,
                                         size_t parameters_len,
                                         const void *data,
                                         size_t len,
                                         uint8_t *out,
                                         size_t room,
                                         size_t *written);

// Frees it. Tasks that use it may continue. Null is no error.
void outrigger_operation_free(struct outrigger_operation *operation);

// Ends a runtime and frees it. With `finish` = 1, all submitted tasks are executed first. With 0,
// tasks that have not begun end as OUTRIGGER_STOPPED. Returns when all callbacks have returned.
// Tasks that are not freed yet can still be read and freed, but no longer submitted. A callback
// must not call this. Null is no error.
void outrigger_runtime_shutdown(struct outrigger_runtime *runtime, int32_t finish);

// Measures every device with every built-in operation, at one size for each decade up to
// `max_bytes` (4 KiB to 1 GiB). Each measurement takes `milliseconds`, or four tasks if that is
// longer. Placement uses the results from then on. With 128 MiB and 20 ms this takes some ten
// seconds.
outrigger_status outrigger_runtime_calibrate(const struct outrigger_runtime *runtime,
                                             uint64_t max_bytes,
                                             uint32_t milliseconds);

// Saves the known speeds of the devices, from calibration and from all tasks so far, in a file. If
// `path` is null, it is the file of `outrigger calibrate`.
outrigger_status outrigger_runtime_save_calibration(const struct outrigger_runtime *runtime, const char *path);

// The predicted time of a device for a task that is filled and not submitted, without waiting, in
// nanoseconds. 0 is the processor; outrigger_runtime_device() has the others.
// OUTRIGGER_UNSUPPORTED if the device does not support the task, or was never measured with a
// similar one.
outrigger_status outrigger_runtime_predict(const struct outrigger_runtime *runtime,
                                           size_t device,
                                           const struct outrigger_task *task,
                                           uint64_t *nanoseconds);

// The library's version of the binary interface. A program that loads the library by hand compares
// it with OUTRIGGER_ABI of its header.
uint32_t outrigger_abi(void);

// The library's version, such as "0.1.0". Constant.
const char *outrigger_version(void);

// The error of the last failed call on this thread, "" if none has failed. Valid until the next
// call fails.
const char *outrigger_last_error(void);

// The name of a status: "OUTRIGGER_OK". Constant; "unknown" for other numbers.
const char *outrigger_status_name(int32_t status);

// StoreGPU's `SHA(data, len)`: the block's hash by the parallel construction over SHA-1, 20 bytes,
// to free with free(). Null after an error. The best device of `runtime` executes it (at most 2^31
// - 1 bytes), or, if that is null, this thread.
uint8_t *outrigger_storegpu_sha(const struct outrigger_runtime *runtime, const void *data, size_t len);

// StoreGPU's `MD5(data, len)`: like outrigger_storegpu_sha(), over MD5, 16 bytes.
uint8_t *outrigger_storegpu_md5(const struct outrigger_runtime *runtime, const void *data, size_t len);

// StoreGPU's `SHA(data, len, window, offset)`: SHA-1 of each window of `window` bytes, one every
// `offset` bytes, 20 bytes each, to free with free(). There are (len - window) / offset + 1 of
// them, or none if `len` is less than `window`. Null after an error.
uint8_t *outrigger_storegpu_sha_windows(const struct outrigger_runtime *runtime,
                                        const void *data,
                                        size_t len,
                                        size_t window,
                                        size_t offset);

// StoreGPU's `MD5(data, len, window, offset)`: like outrigger_storegpu_sha_windows(), by MD5, 16
// bytes each.
uint8_t *outrigger_storegpu_md5_windows(const struct outrigger_runtime *runtime,
                                        const void *data,
                                        size_t len,
                                        size_t window,
                                        size_t offset);

// An empty table for `capacity` entries, which does not grow. It takes 45 to 91 bytes for each
// entry. Null after an error. Free it with outrigger_table_free().
struct outrigger_table *outrigger_table_new(size_t capacity);

// Frees it. Tasks that look up in it may continue. Null is no error.
void outrigger_table_free(struct outrigger_table *table);

// The number of entries; 0 for null.
size_t outrigger_table_len(const struct outrigger_table *table);

// The most entries; 0 for null.
size_t outrigger_table_capacity(const struct outrigger_table *table);

// Inserts `count` entries, or replaces the numbers of existing ones. If the table becomes full
// (OUTRIGGER_FULL), the entries before the one that did not fit are inserted. Their number is
// stored in `inserted`, unless it is null.
outrigger_status outrigger_table_insert(const struct outrigger_table *table,
                                        const struct outrigger_fingerprint *keys,
                                        const uint64_t *places,
                                        size_t count,
                                        size_t *inserted);

// Removes `count` entries, and stores how many of them existed in `removed`, unless it is null.
// Until outrigger_table_refresh(), the summary vector may still answer "perhaps" for them.
outrigger_status outrigger_table_remove(const struct outrigger_table *table,
                                        const struct outrigger_fingerprint *keys,
                                        size_t count,
                                        size_t *removed);

// Looks `count` fingerprints up: `found[i]` is 1 and `places[i]` the number of the entry, or both
// are 0.
outrigger_status outrigger_table_lookup(const struct outrigger_table *table,
                                        const struct outrigger_fingerprint *keys,
                                        size_t count,
                                        uint64_t *places,
                                        uint8_t *found);

// Rebuilds the table and its summary vector without the removed entries.
outrigger_status outrigger_table_refresh(const struct outrigger_table *table);

// Removes all entries.
outrigger_status outrigger_table_clear(const struct outrigger_table *table);

// The table as bytes, to be stored. At most `room` of them go to `out`. Their number, 24 for each
// entry and 40, is stored in `written` (if not null), even if they do not fit (OUTRIGGER_SPACE).
outrigger_status outrigger_table_save(const struct outrigger_table *table, uint8_t *out, size_t room, size_t *written);

// The table that outrigger_table_save() wrote, with room for `capacity` entries. Entries that do
// not fit are dropped. Null if the bytes are damaged or something else, or after another error.
struct outrigger_table *outrigger_table_load(const void *data, size_t len, size_t capacity);

// A task with its own empty buffer for at least `bytes` bytes, at most 2 GiB. Null after an error.
// Free it with outrigger_task_free().
struct outrigger_task *outrigger_task_new(const struct outrigger_runtime *runtime, size_t bytes);

// Frees a task with its results and its buffer. A task in flight continues without a callback, and
// the memory that it reads must stay. Null is no error.
void outrigger_task_free(struct outrigger_task *task);

// Sets the function to call with `context` when the task ends, for this and later submissions;
// null for none.
outrigger_status outrigger_task_set_callback(const struct outrigger_task *task,
                                             outrigger_callback callback,
                                             void *context);

// Submits a task. Blocks while the queue is full ("outstanding_max", 256).
outrigger_status outrigger_submit(const struct outrigger_runtime *runtime, struct outrigger_task *task);

// Submits a task if there is room. Otherwise returns OUTRIGGER_FULL, and it can be submitted
// again.
outrigger_status outrigger_try_submit(const struct outrigger_runtime *runtime, struct outrigger_task *task);

// Submits a task and waits for its end.
outrigger_status outrigger_run(const struct outrigger_runtime *runtime, struct outrigger_task *task);

// The state of a submitted task: OUTRIGGER_PENDING, or how it ended. Returns at once.
outrigger_status outrigger_task_poll(const struct outrigger_task *task);

// Waits for the end of a submitted task, and returns how it ended. The callback, if any, may still
// be running.
outrigger_status outrigger_task_wait(struct outrigger_task *task);

// Waits for the end of a submitted task, but at most so long. Then returns OUTRIGGER_PENDING.
outrigger_status outrigger_task_wait_for(struct outrigger_task *task, uint64_t milliseconds);

// Cancels a submitted task. A waiting task ends now, as OUTRIGGER_CANCELLED. A task on a device
// ends so when the device releases it. Returns 1 if the task ends as cancelled, and 0 if it ends,
// or has ended, in another way.
int32_t outrigger_task_cancel(struct outrigger_task *task);

// Makes an ended task ready to be filled again. Its request, its data and its buffer stay. Its
// results and its deadline are dropped.
outrigger_status outrigger_task_again(const struct outrigger_task *task);

// Makes the first `len` bytes of the task's own buffer its data, and returns their address, to
// write before it is submitted. The buffer keeps its old bytes. Null if `len` exceeds the size
// given to outrigger_task_new(), or tasks share the data.
uint8_t *outrigger_task_data(const struct outrigger_task *task, size_t len);

// Makes a part of a buffer that other tasks read too the task's data. It must not be written until
// all of them are freed. The task's own buffer returns to the pool.
outrigger_status outrigger_task_share(const struct outrigger_task *task,
                                      const struct outrigger_buffer *buffer,
                                      size_t offset,
                                      size_t len);

// Requests the fingerprints of `count` pieces of the data: outrigger_task_fingerprints().
outrigger_status outrigger_task_hash_many(const struct outrigger_task *task,
                                          uint32_t kind,
                                          const struct outrigger_range *pieces,
                                          size_t count);

// Requests the hash of all data by a parallel construction (OUTRIGGER_PMD_*):
// outrigger_task_bytes().
outrigger_status outrigger_task_pmd_hash(const struct outrigger_task *task, uint32_t kind);

// Requests the hashes of sliding windows: outrigger_task_bytes().
outrigger_status outrigger_task_window_hash(const struct outrigger_task *task, const struct outrigger_window *spec);

// Requests boundary candidates (see outrigger_scan()): outrigger_task_candidates(). `history` is
// the number of bytes directly before the data, in the same shared buffer, that also precede it in
// its file. It is 0 for data in the task's own buffer.
outrigger_status outrigger_task_scan(const struct outrigger_task *task, size_t history, uint32_t average);

// Requests chunks, cut, fingerprinted and looked up in `table`, unless that is null (see
// outrigger_ingest()): outrigger_task_chunks() and outrigger_task_counts().
outrigger_status outrigger_task_ingest(const struct outrigger_task *task,
                                       const char *chunker,
                                       uint32_t kind,
                                       const struct outrigger_stream *streams,
                                       size_t count,
                                       const struct outrigger_table *table);

// Looks `count` fingerprints up in a table, in its present state: outrigger_task_places(). The
// task's data is not used.
outrigger_status outrigger_task_lookup(const struct outrigger_task *task,
                                       const struct outrigger_table *table,
                                       const struct outrigger_fingerprint *keys,
                                       size_t count);

// Requests the data compressed by a codec ("zstd:3", "gzip:6", "lz4", "none"):
// outrigger_task_bytes(), and outrigger_task_codec() for the codec used. It is none if the codec
// gains too little.
outrigger_status outrigger_task_compress(const struct outrigger_task *task, const char *codec);

// Requests the data decompressed by a codec (enum outrigger_codec), to `raw_len` bytes, at most 64
// MiB: outrigger_task_bytes().
outrigger_status outrigger_task_decompress(const struct outrigger_task *task, uint32_t codec, size_t raw_len);

// Requests an operation of the caller with parameters, which are copied: outrigger_task_bytes().
outrigger_status outrigger_task_own(const struct outrigger_task *task,
                                    const struct outrigger_operation *operation,
                                    const void *parameters,
                                    size_t parameters_len);

// Sets its priority (enum outrigger_priority).
outrigger_status outrigger_task_set_priority(const struct outrigger_task *task, uint32_t priority);

// If no device begins it within so many milliseconds, it ends as OUTRIGGER_EXPIRED.
outrigger_status outrigger_task_set_deadline(const struct outrigger_task *task, uint64_t milliseconds);

// Sends it to one device, regardless of placement. The processor, 0, executes it if that device
// cannot, fails, or is cut off.
outrigger_status outrigger_task_pin(const struct outrigger_task *task, size_t device);

// The output bytes of a task, and their number in `count` (unless it is null). Valid until the
// task is used again or freed. Null if it is not done.
const uint8_t *outrigger_task_bytes(const struct outrigger_task *task, size_t *count);

// The fingerprints of outrigger_task_hash_many(), in the manner of outrigger_task_bytes().
const struct outrigger_fingerprint *outrigger_task_fingerprints(const struct outrigger_task *task, size_t *count);

// The candidates of outrigger_task_scan(), in the manner of outrigger_task_bytes().
const uint32_t *outrigger_task_candidates(const struct outrigger_task *task, size_t *count);

// The chunks of outrigger_task_ingest() from all streams, in the manner of outrigger_task_bytes().
const struct outrigger_chunk *outrigger_task_chunks(const struct outrigger_task *task, size_t *count);

// The number of chunks of each stream, in the manner of outrigger_task_bytes().
const uint32_t *outrigger_task_counts(const struct outrigger_task *task, size_t *count);

// The numbers from outrigger_task_lookup(), in the manner of outrigger_task_bytes(). Unless
// `found` is null, it gets the address of a flag for each: 1 if there is a number, else 0.
const uint64_t *outrigger_task_places(const struct outrigger_task *task, size_t *count, const uint8_t **found);

// The codec of the bytes from outrigger_task_compress() (enum outrigger_codec), or -1 if the task
// is not done.
int32_t outrigger_task_codec(const struct outrigger_task *task);

// The device of a finished task, and how long each stage took. `size` is sizeof *out.
outrigger_status outrigger_task_report(const struct outrigger_task *task, struct outrigger_report *out, size_t size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OUTRIGGER_H */
