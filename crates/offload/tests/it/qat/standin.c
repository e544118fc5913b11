// A stand-in for libqatzip with the ABI of version 1.3.1, for tests on machines without a card.
//
// It has instances, each of which serves one call at a time. It computes results by a function of
// the test, or replays prepared ones. It sleeps as long as a card of the given rate would take. On
// request it fails, hangs, overflows, is busy or writes wrong bytes. Each test opens its own copy.

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, DUPLICATE = 1, PARAMS = -1, FAIL = -2, BUF_ERROR = -3, DATA_ERROR = -4 };
enum { NOSW_NO_HW = -101, NOSW_NO_INST_ATTACH = -103, NOSW_LOW_MEM = -104 };
enum { GZIP = 1, GZIP_EXT = 2, RAW = 3 };

typedef struct {
    signed long hw_session_stat;
    int thd_sess_stat;
    void *internal;
    unsigned long total_in;
    unsigned long total_out;
} Session;

typedef struct {
    int direction;
    unsigned comp_lvl;
    unsigned char comp_algorithm;
    unsigned max_forks;
    unsigned char sw_backup;
    unsigned hw_buff_sz;
    unsigned strm_buff_sz;
    unsigned input_sz_thrshold;
    unsigned req_cnt_thrshold;
    unsigned wait_cnt_thrshold;
    int polling_mode;
    unsigned is_sensitive_mode;
} Common;

typedef struct {
    Common common;
    int huffman_hdr;
    int data_fmt;
} Deflate;

// The set-up of a session, and the life of the hardware that it belongs to.
typedef struct {
    unsigned char algorithm;
    int format;
    int level;
    unsigned hw_buff_sz;
    long life;
    int hint;
} Inner;

// Compresses (or decompresses) src into dest, gzip (1), raw deflate (3) or one LZ4 block ('4').
// Returns the length, or a negative code.
typedef int64_t (*Codec)(int format, int level, int decompress, const uint8_t *src, size_t len, uint8_t *dest, size_t room);

typedef struct Prepared {
    struct Prepared *next;
    uint64_t key;
    size_t len;
    uint8_t bytes[];
} Prepared;

enum { INSTANCES_MAX = 64 };

enum { BUCKETS = 4096 };

static Codec codec;
static Prepared *prepared[BUCKETS];
static int initialised;
static char busy[INSTANCES_MAX];

// The settings and counters of a test, by the names of standin_set and standin_get.
static struct {
    const char *name;
    long value;
} values[] = {
    {"hardware", 1},   // 0: there is none
    {"lz4", 1},        // 0: the card is too old for it
    {"instances", 4},
    {"rate", 0},       // bytes per second of all instances together; 0: as fast as the codec
    {"record", 0},     // 1: results are kept and replayed from then on
    {"memory", 1},     // 0: no pinned memory
    {"huffman", 0},    // huffman_hdr in the defaults, to fake another layout
    {"every", 0},      // every nth call ...
    {"code", 0},       // ... returns this,
    {"hang", 0},       // ... or does not return,
    {"corrupt", 0},    // ... or writes a wrong byte,
    {"short", 0},      // ... or takes only half of its input,
    {"extended", 0},   // ... or has this extended code
    {"life", 0},       // raised: all sessions so far are lost
    {"calls", 0},      // counted
    {"decompressed", 0},
    {"made", 0},
    {"torn", 0},
    {"software", 0},   // calls that would have been allowed to use software
    {"used", 0},       // instances that have served a call, a bit each
    {"replayed", 0},
};

#include "../common/standin.h"

void standin_codec(Codec function) { codec = function; }

// The length and a few of the bytes.
static uint64_t key_of(int kind, const uint8_t *src, size_t len) {
    uint64_t key = 0x9e3779b97f4a7c15u * (len * 8 + kind);
    for (size_t at = 0; at + 8 <= len; at += 509) {
        uint64_t word;
        memcpy(&word, src + at, 8);
        key = (key ^ word) * 0xff51afd7ed558ccdu;
    }
    return key;
}

void standin_prepare(int format, const uint8_t *src, size_t len, const uint8_t *result, size_t result_len) {
    Prepared *one = malloc(sizeof *one + result_len);
    one->key = key_of(format, src, len);
    one->len = result_len;
    memcpy(one->bytes, result, result_len);
    pthread_mutex_lock(&lock);
    one->next = prepared[one->key % BUCKETS];
    prepared[one->key % BUCKETS] = one;
    pthread_mutex_unlock(&lock);
}

int qzInit(Session *session, unsigned char sw_backup) {
    if (!session || sw_backup > 1) return PARAMS;
    pthread_mutex_lock(&lock);
    int code = !*value("hardware") ? NOSW_NO_HW : initialised ? DUPLICATE : OK;
    initialised |= code == OK;
    pthread_mutex_unlock(&lock);
    return code;
}

int qzGetDefaultsDeflate(Deflate *into) {
    Deflate defaults = {{2, 1, 8, 3, 1, 64 * 1024, 64 * 1024, 1024, 32, 8, 0, 0}, (int)*value("huffman"), GZIP_EXT};
    *into = defaults;
    return OK;
}

static int set_up(Session *session, const Common *common, int format) {
    if (!session || session->internal) return session ? DUPLICATE : PARAMS;
    unsigned size = common->hw_buff_sz;
    if (common->direction > 2 || common->comp_lvl < 1 || common->comp_lvl > 12 || common->sw_backup > 1 || size < 1024 ||
        size > 512 * 1024 || size & (size - 1) || common->input_sz_thrshold < 128 || common->req_cnt_thrshold < 1 ||
        common->req_cnt_thrshold > 32 || common->polling_mode > 1)
        return PARAMS;
    pthread_mutex_lock(&lock);
    int code = !initialised || !*value("hardware") ? NOSW_NO_HW : OK;
    *value("made") += code == OK;
    *value("software") += common->sw_backup;
    long life = *value("life");
    pthread_mutex_unlock(&lock);
    if (code != OK) return code;
    Inner *inner = malloc(sizeof *inner);
    *inner = (Inner){common->comp_algorithm, format, (int)common->comp_lvl, size, life, 0};
    session->internal = inner;
    return OK;
}

int qzSetupSessionDeflate(Session *session, Deflate *parameters) {
    if (parameters->common.comp_algorithm != 8 || parameters->data_fmt > RAW) return PARAMS;
    return set_up(session, &parameters->common, parameters->data_fmt);
}

int qzSetupSessionLZ4(Session *session, Common *parameters) {
    if (parameters->comp_algorithm != '4') return PARAMS;
    return set_up(session, parameters, '4');
}

int qzTeardownSession(Session *session) {
    if (!session) return PARAMS;
    if (session->internal) {
        pthread_mutex_lock(&lock);
        ++*value("torn");
        pthread_mutex_unlock(&lock);
    }
    free(session->internal);
    session->internal = NULL;
    return OK;
}

unsigned qzMaxCompressedLength(unsigned len, Session *session) {
    (void)session;
    return len + len / 8 + 512;
}

void *qzMalloc(size_t size, int numa, int pinned) {
    (void)numa;
    pthread_mutex_lock(&lock);
    int is_there = *value("memory") || !pinned;
    pthread_mutex_unlock(&lock);
    return is_there ? malloc(size) : NULL;
}

void qzFree(void *memory) { free(memory); }

// A free instance, preferably the session's last one; -1 if there is none.
static int grab(Inner *inner) {
    int count = (int)*value("instances");
    for (int at = 0; at < count; at++) {
        int one = (inner->hint + at) % count;
        if (!busy[one]) {
            busy[one] = 1;
            *value("used") |= 1l << one;
            return inner->hint = one;
        }
    }
    return -1;
}

static void sleep_for(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

static void put32(uint8_t *at, uint32_t word) {
    for (int byte = 0; byte < 4; byte++) at[byte] = (uint8_t)(word >> 8 * byte);
}

// The result of one request. LZ4 comes in the frame that QATzip writes (without its two checksums,
// which nobody reads here).
static int64_t result_of(Inner *inner, int decompress, const uint8_t *src, size_t len, uint8_t *dest, size_t room) {
    int frame = inner->format == '4' && !decompress;
    size_t before = frame ? 19 : 0, behind = frame ? 8 : 0;
    if (room < before + behind) return BUF_ERROR;
    uint8_t *to = dest + before;
    int64_t made = BUF_ERROR;
    uint64_t key = decompress ? 0 : key_of(inner->format, src, len);
    pthread_mutex_lock(&lock);
    Prepared *found = decompress ? NULL : prepared[key % BUCKETS];
    int keep = !decompress && *value("record");
    pthread_mutex_unlock(&lock);
    while (found && found->key != key) found = found->next;
    if (found) {
        if (found->len <= room - before - behind) {
            memcpy(to, found->bytes, found->len);
            made = (int64_t)found->len;
        }
        pthread_mutex_lock(&lock);
        ++*value("replayed");
        pthread_mutex_unlock(&lock);
    } else if (codec) {
        made = codec(inner->format, inner->level, decompress, src, len, to, room - before - behind);
        if (keep && made > 0) standin_prepare(inner->format, src, len, to, (size_t)made);
    }
    if (made < 0 || !frame) return made;
    put32(dest, 0x184d2204u);
    dest[4] = 0x4c;
    dest[5] = 0x40;
    put32(dest + 6, (uint32_t)len);
    memset(dest + 10, 0, 5);
    put32(dest + 15, (uint32_t)made);
    memset(to + made, 0, 8);
    return (int64_t)before + made + (int64_t)behind;
}

static int call(Session *session, int decompress, const uint8_t *src, unsigned *src_len, uint8_t *dest, unsigned *dest_len,
                uint64_t *extended) {
    unsigned len = *src_len, room = *dest_len;
    *src_len = *dest_len = 0;
    if (extended) *extended = 0;
    Inner *inner = session->internal;
    if (!inner) return FAIL;
    pthread_mutex_lock(&lock);
    *value("decompressed") += decompress;
    long number = ++*value("calls"), every = *value("every");
    int due = every && number % every == 0;
    while (due && *value("hang")) pthread_cond_wait(&changed, &lock);
    int code = !*value("hardware") || inner->life != *value("life") ? NOSW_NO_HW : due ? (int)*value("code") : OK;
    int instance = code != OK || (inner->format == '4' && !*value("lz4")) ? -1 : grab(inner);
    if (code == OK && instance < 0) code = NOSW_NO_INST_ATTACH;
    int wrong = due && *value("corrupt"), half = due && *value("short");
    double rate = (double)*value("rate") / (double)*value("instances");
    if (due && extended) *extended = (uint64_t)*value("extended");
    pthread_mutex_unlock(&lock);
    if (code != OK) return code;
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    // A request has at most hw_buff_sz bytes, which our device never exceeds.
    int64_t made = len > inner->hw_buff_sz ? PARAMS : result_of(inner, decompress, src, half ? len / 2 : len, dest, room);
    if (made > 0 && wrong) dest[made / 2] ^= 0x40;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double took = (double)(now.tv_sec - begun.tv_sec) + (double)(now.tv_nsec - begun.tv_nsec) / 1e9;
    unsigned source = decompress && made > 0 ? (unsigned)made : len;
    if (rate > 0 && source / rate > took) sleep_for(source / rate - took);
    pthread_mutex_lock(&lock);
    busy[instance] = 0;
    pthread_mutex_unlock(&lock);
    if (made < 0) return (int)made;
    *src_len = half ? len / 2 : len;
    *dest_len = (unsigned)made;
    return OK;
}

int qzCompressExt(Session *session, const uint8_t *src, unsigned *src_len, uint8_t *dest, unsigned *dest_len, unsigned last,
                  uint64_t *extended) {
    if (!session || !src || !src_len || !dest || !dest_len || last > 1) return PARAMS;
    return call(session, 0, src, src_len, dest, dest_len, extended);
}

int qzDecompressExt(Session *session, const uint8_t *src, unsigned *src_len, uint8_t *dest, unsigned *dest_len,
                    uint64_t *extended) {
    if (!session || !src || !src_len || !dest || !dest_len) return PARAMS;
    return call(session, 1, src, src_len, dest, dest_len, extended);
}
