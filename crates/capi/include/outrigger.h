/*
 * Outrigger: hashing, chunking, fingerprint look-up and compression, on whichever processor does them best.
 *
 * Made from crates/capi by cbindgen (scripts/header.sh): not to be edited. docs/c-api.md introduces it, and
 * crates/capi/examples has programs.
 *
 * What holds everywhere:
 *
 * - Pointers point to what they are said to point to, for as long as the call lasts, or as is said. A pointer to no
 *   elements may be null. Handles that are null are an error, not a crash.
 * - What a function named ..._new or ..._load gives is freed by ..._free, a runtime by outrigger_runtime_shutdown.
 *   Anything else that is pointed to belongs to the handle that it came from.
 * - Functions that return a status, or null for an error, say more in outrigger_last_error(), which is per thread.
 * - All functions may be called by all threads at once, but for those that change a handle that another thread uses in
 *   that moment, where its description does not allow it.
 * - Enumerations are passed as numbers of a fixed size, so that an unknown one is an error.
 * - Sizes are in bytes where nothing else is said. Numbers in results are in the machine's byte order.
 */


#ifndef OUTRIGGER_H
#define OUTRIGGER_H

#include <stddef.h>
#include <stdint.h>

// The version of the binary interface. It changes when something is removed or means something else;
// what is added leaves it.
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
    // An argument is null that may not be, or out of bounds.
    OUTRIGGER_INVALID = 1,
    // The task, or the buffer, is not in a state for this: it is under way, or has not ended, or tasks
    // share it.
    OUTRIGGER_STATE = 2,
    // What comes out does not fit in the memory given for it; how much is needed was stored.
    OUTRIGGER_SPACE = 3,
    // No more goes in: as many tasks wait as may, the table holds as many entries as it can, or memory
    // is exhausted.
    OUTRIGGER_FULL = 4,
    // The task has not ended yet.
    OUTRIGGER_PENDING = 5,
    // The task was cancelled.
    OUTRIGGER_CANCELLED = 6,
    // The task had not been begun by its deadline.
    OUTRIGGER_EXPIRED = 7,
    // The runtime was shut down before the task was begun.
    OUTRIGGER_STOPPED = 8,
    // The data is no good: damaged compressed bytes, or the caller's own operation said so.
    OUTRIGGER_DATA = 9,
    // No device does this with these parameters.
    OUTRIGGER_UNSUPPORTED = 10,
    // The device that was asked for is not there.
    OUTRIGGER_ABSENT = 11,
    // A file could not be read or written.
    OUTRIGGER_IO = 12,
    // A bug in the library. Nothing is promised about the objects that took part, but that they can be
    // freed.
    OUTRIGGER_BUG = 13,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum outrigger_status outrigger_status;
#else
typedef int32_t outrigger_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What hashes whole pieces of data. The numbers are those of the on-disk format.
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
    // The parallel Merkle-Damgard construction over MD5: not MD5 of the data, but a hash that thousands
    // of threads can compute, of segments of 4096 bytes, their digests, and so on (docs/format.md,
    // "pmd"). 16 bytes.
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

// What hashes sliding windows.
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
    // The hash that boundaries are found by, 4 bytes, little-endian.
    OUTRIGGER_WINDOW_GEAR32 = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum outrigger_window_function outrigger_window_function;
#else
typedef uint32_t outrigger_window_function;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How a kernel of the caller's own is written.
enum outrigger_kernel_language
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // CUDA C++, compiled where NVRTC is found.
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

// Which of the tasks that wait for a device is next. Strictly: a lower one waits while a higher one is
// there.
enum outrigger_priority
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Somebody waits for it.
    OUTRIGGER_HIGH = 0,
    // The rest; what a task has at first.
    OUTRIGGER_NORMAL = 1,
    // Only when there is nothing else.
    OUTRIGGER_LOW = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum outrigger_priority outrigger_priority;
#else
typedef uint32_t outrigger_priority;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How frames are stored. The numbers are those of the on-disk format.
enum outrigger_codec
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // As they are.
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

// Whether a device is trusted.
enum outrigger_breaker
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // It is.
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

// Memory from a runtime's pool, page-locked where one of its devices has such memory: to be filled, and
// then shared by tasks.
typedef struct outrigger_buffer outrigger_buffer;

// What a runtime is to consist of. One thread at a time.
typedef struct outrigger_builder outrigger_builder;

// Hashes data that arrives in pieces.
typedef struct outrigger_hasher outrigger_hasher;

// Cuts, fingerprints and looks up in one pass. Keeps its memory from call to call; one thread at a time.
typedef struct outrigger_ingester outrigger_ingester;

// An operation that tasks can ask for, with outrigger_task_own().
typedef struct outrigger_operation outrigger_operation;

// Threads, devices, queues and buffers that do tasks. All threads may use it at once.
typedef struct outrigger_runtime outrigger_runtime;

// Fingerprints and a number for each, with a summary vector that ends most questions about what was
// never inserted. Many threads may look up at once; changes wait for them. A task looks up in the table
// as it was when it was asked to: a change while such tasks are alive copies the table first.
typedef struct outrigger_table outrigger_table;

// A task. One thread at a time fills it; once it is submitted, any may poll, wait for or cancel it.
typedef struct outrigger_task outrigger_task;

// A stream in a batch, or a piece of one that begins where a chunk does.
typedef struct outrigger_stream {
    // Where it begins in the batch, bytes.
    uint32_t start;
    // Where it ends.
    uint32_t end;
    // 1 if the stream ends with it, and hence its last chunk; 0 if more is to come: what follows the
    // last cut is then no chunk yet, and belongs in front of the next piece.
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
    // What the table says of it, if it is found.
    uint64_t place;
    // Where it ends in the batch, bytes. It begins where the one before it ends, or its stream begins.
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

// Which windows are hashed, and what is kept of each hash.
typedef struct outrigger_window {
    // One of enum outrigger_window_function.
    uint32_t function;
    // The first so many bytes of each hash are kept: 1 to all of them.
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
    // What it is: "NVIDIA H200". Ends with a zero; cut if it is longer.
    char model[96];
    // One of enum outrigger_breaker.
    uint32_t breaker;
    // 1 if it works in the host's memory, so that nothing is copied.
    uint32_t zero_copy;
    // Its own memory, bytes; 0 if it has none.
    uint64_t memory_bytes;
    // How often it was cut off.
    uint64_t trips;
    // How often it was re-initialised, or tried to be.
    uint64_t resets;
    // Tasks that wait for it.
    uint64_t waiting;
    // Tasks that it works on.
    uint64_t running;
    // Tasks that it has done.
    uint64_t tasks;
    // Their bytes.
    uint64_t bytes;
    // How long they have waited.
    uint64_t queue_ns;
    // How long it has copied in.
    uint64_t copy_in_ns;
    // How long it has computed.
    uint64_t kernel_ns;
    // How long it has copied out.
    uint64_t copy_out_ns;
    // How long tasks were predicted to take from submission to end, where there was a prediction.
    uint64_t predicted_ns;
    // How long these took.
    uint64_t actual_ns;
    // Tasks that it was given and the processor did in the end.
    uint64_t given_up;
    // Results that were compared with the processor's.
    uint64_t checked;
    // Faults: unsupported, busy, out of memory, failed, lost, hung, wrong.
    uint64_t faults[7];
} outrigger_device_metrics;

// Beside the devices.
typedef struct outrigger_metrics {
    // Devices, the processor included.
    uint64_t devices;
    // Tasks that ended without a result.
    uint64_t failed;
    // Buffers handed out by the pool.
    uint64_t buffers;
    // Of these, new ones.
    uint64_t buffers_fresh;
    // Of the new ones, those that the device had no memory for.
    uint64_t buffers_not_locked;
    // Bytes that lie in the pool, unused.
    uint64_t buffers_kept_bytes;
} outrigger_metrics;

// The operation on the processor: reads `len` bytes of data and the parameters that the task was given,
// writes at most `room` bytes (what the operation's outrigger_output_len said) to `out`, and stores how
// many in `written`. Returns 0, or any other number if the data is no good, which is then the task's
// result (OUTRIGGER_DATA). Called by any thread, by several at once, and again for the same task where
// results are compared: the same input gives the same output. Must not unwind or jump out.
typedef int32_t (*outrigger_function)(void *context,
                                      const uint8_t *parameters,
                                      size_t parameters_len,
                                      const uint8_t *data,
                                      size_t len,
                                      uint8_t *out,
                                      size_t room,
                                      size_t *written);

// The most bytes that come of `len` bytes of data with these parameters. Called by any thread.
typedef size_t (*outrigger_output_len)(void *context, const uint8_t *parameters, size_t parameters_len, size_t len);

// A kernel that gives the same bytes as the operation's function. It is called as
//
//   extern "C" __global__ void NAME(const unsigned char *data, unsigned long long data_len,
//                                   const unsigned char *parameters, unsigned long long parameters_len,
//                                   unsigned char *out, unsigned long long out_len);
//
// with at least one thread for every `bytes_per_thread` bytes of data, in one dimension. All of
// `out_len`, which is what the operation's outrigger_output_len says, is the result.
typedef struct outrigger_kernel {
    // One of enum outrigger_kernel_language.
    uint32_t language;
    // Threads a block, 32 to 1024.
    uint32_t block_threads;
    // The data that one thread is for, at least 1.
    size_t bytes_per_thread;
    // The source, or the PTX. Copied.
    const char *code;
    // The function's name in it. Copied.
    const char *name;
} outrigger_kernel;

// Called once with the context, when the operation was freed and no task has it any more; by any thread.
typedef void (*outrigger_release)(void *context);

// Called once for each submission of a task, when it has ended, by a thread of the runtime's, or by the
// one that cancels it: quick, or it holds up a device. It may look at the task, free it, or use it again
// (with outrigger_try_submit(), which does not wait for room), but not wait for another one.
typedef void (*outrigger_callback)(void *context, struct outrigger_task *task);

// What became of a task, and how long it took, in nanoseconds.
typedef struct outrigger_report {
    // The device that did it; 0 is the processor.
    uint32_t device;
    // How many devices failed at it before.
    uint32_t fallbacks;
    // 1 if its result was compared with the processor's.
    uint32_t checked;
    // Zero.
    uint32_t reserved;
    // From its submission until a device began with it.
    uint64_t queue_ns;
    // Host memory to device memory.
    uint64_t copy_in_ns;
    // The work itself.
    uint64_t kernel_ns;
    // Device memory to host memory.
    uint64_t copy_out_ns;
    // From its submission to its end.
    uint64_t total_ns;
    // What that was predicted to be; 0 without a prediction.
    uint64_t predicted_ns;
} outrigger_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// A buffer of at least `bytes` bytes, at most 2 GiB, aligned to 4096, whatever was there before in it.
// Null after an error. Free it with outrigger_buffer_free().
struct outrigger_buffer *outrigger_buffer_new(const struct outrigger_runtime *runtime, size_t bytes);

// Where its memory is, to be written. The pointer stays valid until the buffer is freed; but while a
// task that shares the buffer is alive, nothing may be written, and this gives null (OUTRIGGER_STATE).
uint8_t *outrigger_buffer_data(const struct outrigger_buffer *buffer);

// Its size in bytes; 0 for null.
size_t outrigger_buffer_size(const struct outrigger_buffer *buffer);

// 1 if it is page-locked for a device, else 0.
int32_t outrigger_buffer_is_locked(const struct outrigger_buffer *buffer);

// Gives it back. Its memory goes back to the pool when the last task that shares it is freed. Null is no
// error.
void outrigger_buffer_free(struct outrigger_buffer *buffer);

// A runtime with one thread a processor and no other device, for now. Never null. Give it to
// outrigger_runtime_new() or to outrigger_builder_free().
struct outrigger_builder *outrigger_builder_new(void);

// How many threads work on the processor, 1 to 1024.
outrigger_status outrigger_builder_threads(struct outrigger_builder *builder, size_t threads);

// How many bytes of unused buffers are kept; 256 MiB without this.
outrigger_status outrigger_builder_keep_bytes(struct outrigger_builder *builder, uint64_t bytes);

// Adds a device: "cuda:0", "nvcomp:0", "qat:0" (OUTRIGGER_ABSENT says why, where it is not there);
// "auto", everything that is there, and no error if that is nothing (outrigger_builder_missing() tells
// why); "sim:PRESET", a simulated one, whose results are right and whose times are a model's:
// "sim:pcie5-gpu", "sim:geforce-8800", "sim:integrated", "sim:slow". At most 7.
outrigger_status outrigger_builder_device(struct outrigger_builder *builder, const char *name);

// Which kinds of devices the last "auto" has not found, and why: a line each, "" if none is missing.
// Valid until the next call with this builder.
const char *outrigger_builder_missing(const struct outrigger_builder *builder);

// Sets a threshold of placement, or of the care for devices that fail, by its name: "objective" to
// "throughput", "latency" or "cpu"; "offload_min_bytes" to "64K"; "check_every" to "1"; docs/offload.md
// has all of them with the reasons. Sizes are written as 64K, times as seconds.
outrigger_status outrigger_builder_policy(struct outrigger_builder *builder, const char *name, const char *value);

// Takes what was measured of this machine's devices from a file; from where `outrigger calibrate` keeps
// it, if `path` is null. A file that is not there is no error.
outrigger_status outrigger_builder_calibration(struct outrigger_builder *builder, const char *path);

// Frees it. Null is no error.
void outrigger_builder_free(struct outrigger_builder *builder);

// Starts a runtime, and frees the builder, whatever comes of it. Null after an error. End it with
// outrigger_runtime_shutdown().
struct outrigger_runtime *outrigger_runtime_new(struct outrigger_builder *builder);

// Finds boundary candidates, on this thread. `history` is what precedes `data` in its file: at least its
// last 32 bytes, fewer at the beginning of the file only. `average` is the chunk size aimed at, a power
// of two. Candidates go to `out`, ascending, as position << 1 | strict; how many there are is stored in
// `count` (if not null), also when they do not fit in `room` (OUTRIGGER_SPACE). `data` has less than
// 2^31 bytes.
//
// Candidates become cuts by a walk with a minimum and a maximum (docs/format.md); outrigger_ingest()
// does both.
outrigger_status outrigger_scan(const void *history,
                                size_t history_len,
                                const void *data,
                                size_t len,
                                uint32_t average,
                                uint32_t *out,
                                size_t room,
                                size_t *count);

// For one way of cutting ("gear32:4K/16K/64K", "fixed:16K", "rabin:..."; see docs/format.md) and one
// fingerprint (enum outrigger_hash_kind). Null after an error. Free it with outrigger_ingester_free().
struct outrigger_ingester *outrigger_ingester_new(const char *chunker, uint32_t kind);

// Cuts the `stream_count` streams that lie in `data` (less than 2^31 bytes) into chunks, fingerprints
// them, and looks them up in `table`, unless it is null; on this thread. Stores where the chunks of all
// streams are, in their order, in `chunks`, and where the number of each stream's chunks, in `counts`:
// both belong to the ingester and are valid until its next call.
outrigger_status outrigger_ingest(struct outrigger_ingester *ingester,
                                  const void *data,
                                  size_t len,
                                  const struct outrigger_stream *streams,
                                  size_t stream_count,
                                  const struct outrigger_table *table,
                                  const struct outrigger_chunk **chunks,
                                  size_t *chunk_count,
                                  const uint32_t **counts);

// Frees it, and what its last call gave. Null is no error.
void outrigger_ingester_free(struct outrigger_ingester *ingester);

// How many bytes of a fingerprint of this kind (enum outrigger_hash_kind) are the hash; the others are
// zeros. 0 for an unknown kind.
size_t outrigger_hash_len(uint32_t kind);

// Hashes `len` bytes by the function `kind` (enum outrigger_hash_kind) into `out`, on this thread.
outrigger_status outrigger_hash(uint32_t kind, const void *data, size_t len, struct outrigger_fingerprint *out);

// Hashes many pieces of `data` side by side, on this thread: `count` of them, any order, overlapping as
// they like, into as many fingerprints at `out`. `data` has less than 4 GiB. Faster than one after the
// other for every function.
outrigger_status outrigger_hash_many(uint32_t kind,
                                     const void *data,
                                     size_t len,
                                     const struct outrigger_range *pieces,
                                     size_t count,
                                     struct outrigger_fingerprint *out);

// How many windows lie in `len` bytes; `keep` bytes come of each. 0 if `spec` is not valid, which
// outrigger_last_error() explains.
size_t outrigger_window_count(const struct outrigger_window *spec, size_t len);

// Hashes the sliding windows of `data`, on this thread: `spec.keep` bytes of each window's hash, in
// order, to `out`, which has room for `room` bytes. How many there are is stored in `written` (if not
// null), also when they do not fit (OUTRIGGER_SPACE).
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

// The hash of everything since the last call of this function, or since the beginning; what follows is
// hashed anew.
outrigger_status outrigger_hasher_finish(struct outrigger_hasher *hasher, struct outrigger_fingerprint *out);

// Frees it. Null is no error.
void outrigger_hasher_free(struct outrigger_hasher *hasher);

// How many devices a runtime has, the processor, which is number 0, included. 0 for null.
size_t outrigger_runtime_devices(const struct outrigger_runtime *runtime);

// What a device has done so far. `size` is sizeof *out: a later version of the library may know more
// than the program.
outrigger_status outrigger_runtime_device(const struct outrigger_runtime *runtime,
                                          size_t device,
                                          struct outrigger_device_metrics *out,
                                          size_t size);

// What a runtime has done so far, beside its devices. `size` is sizeof *out.
outrigger_status outrigger_runtime_metrics(const struct outrigger_runtime *runtime,
                                           struct outrigger_metrics *out,
                                           size_t size);

// Registers an operation under a name: calibrations are kept under it, so two of one name must mean the
// same. `kernel` may be null: then only the processor does it. `context` is handed to the functions;
// `release`, unless it is null, is called with it at the end (also when this fails). Null after an
// error. Free it with outrigger_operation_free().
struct outrigger_operation *outrigger_operation_new(const char *name,
                                                    outrigger_function function,
                                                    outrigger_output_len output_len,
                                                    const struct outrigger_kernel *kernel,
                                                    void *context,
                                                    outrigger_release release);

// Says that the operation's function is brief: it waits for nobody, and takes no lock that a thread may
// hold while it submits. Then a task that is predicted to take less time than handing it over (the
// threshold inline_max, 20 microseconds) may be done by the thread that submits it, before
// outrigger_submit() returns; unless it has a callback or a deadline. Right after
// outrigger_operation_new(): once a task was asked for it, that is OUTRIGGER_STATE.
outrigger_status outrigger_operation_set_brief(struct outrigger_operation *operation);

// Does the operation on this thread, by its function: what comes of `len` bytes of data goes to `out`,
// which has room for `room` bytes; how many there are is stored in `written` (if not null), also when
// they do not fit (OUTRIGGER_SPACE).
outrigger_status outrigger_operation_run(const struct outrigger_operation *operation,
                                         const void *parameters,
                                         size_t parameters_len,
                                         const void *data,
                                         size_t len,
                                         uint8_t *out,
                                         size_t room,
                                         size_t *written);

// Frees it. Tasks that ask for it may go on. Null is no error.
void outrigger_operation_free(struct outrigger_operation *operation);

// Ends a runtime and frees it. With `finish` = 1, everything that was submitted is done first; with 0,
// tasks that have not been begun end as OUTRIGGER_STOPPED. Returns when all callbacks have. Tasks that
// are not freed yet can still be looked at and freed, and no longer submitted. Not to be called by a
// callback. Null is no error.
void outrigger_runtime_shutdown(struct outrigger_runtime *runtime, int32_t finish);

// Measures every device with every built-in operation at one size a decade up to `max_bytes` (4 KiB to 1
// GiB), for `milliseconds` at each or four times, whichever is longer; placement knows the results from
// then on. With 128 MiB and 20 ms it takes some ten seconds.
outrigger_status outrigger_runtime_calibrate(const struct outrigger_runtime *runtime,
                                             uint64_t max_bytes,
                                             uint32_t milliseconds);

// Keeps what is known of the devices' speeds, by calibration and by all tasks so far, in a file; where
// `outrigger calibrate` keeps it, if `path` is null.
outrigger_status outrigger_runtime_save_calibration(const struct outrigger_runtime *runtime, const char *path);

// How long a device is predicted to take for a task that is filled and not submitted, waiting aside, in
// nanoseconds. 0 is the processor; outrigger_runtime_device() has the others. OUTRIGGER_UNSUPPORTED if
// it does not do this, or was never measured with anything like it.
outrigger_status outrigger_runtime_predict(const struct outrigger_runtime *runtime,
                                           size_t device,
                                           const struct outrigger_task *task,
                                           uint64_t *nanoseconds);

// The library's version of the binary interface: compare it with OUTRIGGER_ABI of the header that the
// program was compiled with, where the library was loaded by hand.
uint32_t outrigger_abi(void);

// The library's version, such as "0.1.0". Constant.
const char *outrigger_version(void);

// What went wrong in the last call on this thread that failed; "" if none has. Valid until the next one
// fails.
const char *outrigger_last_error(void);

// The name of a status: "OUTRIGGER_OK". Constant; "unknown" for other numbers.
const char *outrigger_status_name(int32_t status);

// StoreGPU's `SHA(data, len)`: the block's hash by the parallel construction over SHA-1, 20 bytes, for
// free(). Null after an error. Done by whatever device of `runtime` does it best (at most 2^31 - 1
// bytes), or, if that is null, on this thread.
uint8_t *outrigger_storegpu_sha(const struct outrigger_runtime *runtime, const void *data, size_t len);

// StoreGPU's `MD5(data, len)`: as outrigger_storegpu_sha(), over MD5, 16 bytes.
uint8_t *outrigger_storegpu_md5(const struct outrigger_runtime *runtime, const void *data, size_t len);

// StoreGPU's `SHA(data, len, window, offset)`: SHA-1 of each window of `window` bytes, one every
// `offset` bytes, 20 bytes each, for free(). There are (len - window) / offset + 1 of them, or none if
// `len` is less than `window`. Null after an error.
uint8_t *outrigger_storegpu_sha_windows(const struct outrigger_runtime *runtime,
                                        const void *data,
                                        size_t len,
                                        size_t window,
                                        size_t offset);

// StoreGPU's `MD5(data, len, window, offset)`: as outrigger_storegpu_sha_windows(), by MD5, 16 bytes
// each.
uint8_t *outrigger_storegpu_md5_windows(const struct outrigger_runtime *runtime,
                                        const void *data,
                                        size_t len,
                                        size_t window,
                                        size_t offset);

// An empty table for `capacity` entries, which does not grow. It takes 45 to 91 bytes an entry. Null
// after an error. Free it with outrigger_table_free().
struct outrigger_table *outrigger_table_new(size_t capacity);

// Frees it. Tasks that look up in it may go on. Null is no error.
void outrigger_table_free(struct outrigger_table *table);

// Entries there; 0 for null.
size_t outrigger_table_len(const struct outrigger_table *table);

// Entries that fit; 0 for null.
size_t outrigger_table_capacity(const struct outrigger_table *table);

// Inserts `count` entries, or replaces the numbers of those that are there. When it is full
// (OUTRIGGER_FULL), those before the one that did not fit are in. How many are is stored in `inserted`,
// unless it is null.
outrigger_status outrigger_table_insert(const struct outrigger_table *table,
                                        const struct outrigger_fingerprint *keys,
                                        const uint64_t *places,
                                        size_t count,
                                        size_t *inserted);

// Removes `count` entries; stores how many of them were there in `removed`, unless it is null. The
// summary vector still lets questions about them pass, until outrigger_table_refresh().
outrigger_status outrigger_table_remove(const struct outrigger_table *table,
                                        const struct outrigger_fingerprint *keys,
                                        size_t count,
                                        size_t *removed);

// Looks `count` fingerprints up: `found[i]` is 1 and `places[i]` the number of the entry, or both are 0.
outrigger_status outrigger_table_lookup(const struct outrigger_table *table,
                                        const struct outrigger_fingerprint *keys,
                                        size_t count,
                                        uint64_t *places,
                                        uint8_t *found);

// Rebuilds table and summary vector without what was removed.
outrigger_status outrigger_table_refresh(const struct outrigger_table *table);

// Removes everything.
outrigger_status outrigger_table_clear(const struct outrigger_table *table);

// The table as bytes, to be kept: at most `room` of them go to `out`; how many there are is stored in
// `written` (if not null), also when they do not fit (OUTRIGGER_SPACE): 24 bytes an entry, and 40.
outrigger_status outrigger_table_save(const struct outrigger_table *table, uint8_t *out, size_t room, size_t *written);

// The table that outrigger_table_save() gave, with room for `capacity` entries; those that do not fit
// are dropped. Null if the bytes are damaged or something else, or after another error.
struct outrigger_table *outrigger_table_load(const void *data, size_t len, size_t capacity);

// A task with an empty buffer of its own for at least `bytes` bytes, at most 2 GiB. Null after an error.
// Free it with outrigger_task_free().
struct outrigger_task *outrigger_task_new(const struct outrigger_runtime *runtime, size_t bytes);

// Frees a task, with its results and its buffer. One that is under way goes on without anybody being
// told; what it reads must stay. Null is no error.
void outrigger_task_free(struct outrigger_task *task);

// Has `callback` called when the task has ended, with `context`, at this and later submissions; null for
// none.
outrigger_status outrigger_task_set_callback(const struct outrigger_task *task,
                                             outrigger_callback callback,
                                             void *context);

// Submits a task. Waits for room while as many tasks wait as may ("outstanding_max", 256).
outrigger_status outrigger_submit(const struct outrigger_runtime *runtime, struct outrigger_task *task);

// Submits a task if there is room (else OUTRIGGER_FULL: it can be submitted again).
outrigger_status outrigger_try_submit(const struct outrigger_runtime *runtime, struct outrigger_task *task);

// Submits a task and waits for its end.
outrigger_status outrigger_run(const struct outrigger_runtime *runtime, struct outrigger_task *task);

// How a submitted task stands: OUTRIGGER_PENDING, or how it ended. Returns at once.
outrigger_status outrigger_task_poll(const struct outrigger_task *task);

// Waits for the end of a submitted task, and returns how it ended. The callback, if there is one, may
// still be running.
outrigger_status outrigger_task_wait(struct outrigger_task *task);

// Waits for the end of a submitted task, for so long at most: then OUTRIGGER_PENDING.
outrigger_status outrigger_task_wait_for(struct outrigger_task *task, uint64_t milliseconds);

// Cancels a submitted task. What waits ends now, as OUTRIGGER_CANCELLED. What a device works on ends so
// when the device lets go of it. Returns 1 if that came in time, and 0 if the task ends, or has ended,
// in another way.
int32_t outrigger_task_cancel(struct outrigger_task *task);

// Makes a task that has ended one that can be filled again: what it asks for, its data and its buffer
// stay; its results and its deadline go.
outrigger_status outrigger_task_again(const struct outrigger_task *task);

// Makes the task's data the first `len` bytes of its own buffer, and returns where they are, to be
// written before it is submitted. Whatever was in the buffer is there. Null if they do not fit in what
// outrigger_task_new() was asked for, or tasks share the data.
uint8_t *outrigger_task_data(const struct outrigger_task *task, size_t len);

// Makes the task's data a part of a buffer that other tasks read too. It must not be written until all
// of them are freed. The task's own buffer goes back to the pool.
outrigger_status outrigger_task_share(const struct outrigger_task *task,
                                      const struct outrigger_buffer *buffer,
                                      size_t offset,
                                      size_t len);

// Asks for the fingerprints of `count` pieces of the data: outrigger_task_fingerprints().
outrigger_status outrigger_task_hash_many(const struct outrigger_task *task,
                                          uint32_t kind,
                                          const struct outrigger_range *pieces,
                                          size_t count);

// Asks for the hash of all data by a parallel construction (OUTRIGGER_PMD_*): outrigger_task_bytes().
outrigger_status outrigger_task_pmd_hash(const struct outrigger_task *task, uint32_t kind);

// Asks for the hashes of sliding windows: outrigger_task_bytes().
outrigger_status outrigger_task_window_hash(const struct outrigger_task *task, const struct outrigger_window *spec);

// Asks for boundary candidates (see outrigger_scan()): outrigger_task_candidates(). `history` is how
// many bytes right before the data, in the same shared buffer, precede it in its file too; 0 for data of
// the task's own.
outrigger_status outrigger_task_scan(const struct outrigger_task *task, size_t history, uint32_t average);

// Asks for chunks, cut, fingerprinted and looked up in `table`, unless that is null (see
// outrigger_ingest()): outrigger_task_chunks() and outrigger_task_counts().
outrigger_status outrigger_task_ingest(const struct outrigger_task *task,
                                       const char *chunker,
                                       uint32_t kind,
                                       const struct outrigger_stream *streams,
                                       size_t count,
                                       const struct outrigger_table *table);

// Asks a table, as it is now, for `count` fingerprints: outrigger_task_places(). The task's data plays
// no part.
outrigger_status outrigger_task_lookup(const struct outrigger_task *task,
                                       const struct outrigger_table *table,
                                       const struct outrigger_fingerprint *keys,
                                       size_t count);

// Asks for the data compressed by a codec ("zstd:3", "gzip:6", "lz4", "none"): outrigger_task_bytes(),
// and outrigger_task_codec() for what it was: none, where the codec gains too little.
outrigger_status outrigger_task_compress(const struct outrigger_task *task, const char *codec);

// Asks for the data decompressed by a codec (enum outrigger_codec), to `raw_len` bytes, at most 64 MiB:
// outrigger_task_bytes().
outrigger_status outrigger_task_decompress(const struct outrigger_task *task, uint32_t codec, size_t raw_len);

// Asks for an operation of the caller's own, with parameters, which are copied: outrigger_task_bytes().
outrigger_status outrigger_task_own(const struct outrigger_task *task,
                                    const struct outrigger_operation *operation,
                                    const void *parameters,
                                    size_t parameters_len);

// How urgent it is (enum outrigger_priority).
outrigger_status outrigger_task_set_priority(const struct outrigger_task *task, uint32_t priority);

// If no device has begun with it so many milliseconds from now, it ends as OUTRIGGER_EXPIRED.
outrigger_status outrigger_task_set_deadline(const struct outrigger_task *task, uint64_t milliseconds);

// Sends it to one device, whatever placement thinks of it; to the processor, if that device cannot do
// it, fails, or is cut off. 0 is the processor.
outrigger_status outrigger_task_pin(const struct outrigger_task *task, size_t device);

// The bytes that came of a task, and how many in `count` (unless it is null). Valid until the task is
// used again or freed. Null if it is not done.
const uint8_t *outrigger_task_bytes(const struct outrigger_task *task, size_t *count);

// The fingerprints that came of outrigger_task_hash_many(), as outrigger_task_bytes() hands them out.
const struct outrigger_fingerprint *outrigger_task_fingerprints(const struct outrigger_task *task, size_t *count);

// The candidates that came of outrigger_task_scan(), as outrigger_task_bytes() hands them out.
const uint32_t *outrigger_task_candidates(const struct outrigger_task *task, size_t *count);

// The chunks that came of outrigger_task_ingest(), of all streams, as outrigger_task_bytes() hands them
// out.
const struct outrigger_chunk *outrigger_task_chunks(const struct outrigger_task *task, size_t *count);

// How many chunks each stream has, as outrigger_task_bytes() hands them out.
const uint32_t *outrigger_task_counts(const struct outrigger_task *task, size_t *count);

// The numbers that came of outrigger_task_lookup(), as outrigger_task_bytes() hands them out; and,
// unless `found` is null, where it says for each whether there is one (1, or 0).
const uint64_t *outrigger_task_places(const struct outrigger_task *task, size_t *count, const uint8_t **found);

// What the bytes of outrigger_task_compress() are compressed with (enum outrigger_codec), or -1 if the
// task is not done.
int32_t outrigger_task_codec(const struct outrigger_task *task);

// Who did a task that is done, and how long each stage took. `size` is sizeof *out.
outrigger_status outrigger_task_report(const struct outrigger_task *task, struct outrigger_report *out, size_t size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OUTRIGGER_H */
