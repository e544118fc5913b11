/* Every error of a program, except invalid memory, must give an error with a message, and never a crash. */
#include <outrigger.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            printf("line %d: %s; %s\n", __LINE__, #condition, outrigger_last_error());         \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)
#define SAYS(text) CHECK(strstr(outrigger_last_error(), text))

static int32_t slow(void *context, const uint8_t *parameters, size_t parameters_len, const uint8_t *data, size_t len,
                    uint8_t *out, size_t room, size_t *written) {
    pthread_mutex_t *gate = context;
    (void)parameters, (void)parameters_len, (void)data, (void)len, (void)out, (void)room;
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    *written = 0;
    return 0;
}

static size_t nothing(void *context, const uint8_t *parameters, size_t parameters_len, size_t len) {
    (void)context, (void)parameters, (void)parameters_len, (void)len;
    return 0;
}

static int32_t liar(void *context, const uint8_t *parameters, size_t parameters_len, const uint8_t *data, size_t len,
                    uint8_t *out, size_t room, size_t *written) {
    (void)context, (void)parameters, (void)parameters_len, (void)data, (void)len, (void)out;
    *written = room + 1;
    return 0;
}

static int frees;
static pthread_mutex_t freed = PTHREAD_MUTEX_INITIALIZER;

static void free_it(void *context, outrigger_task *task) {
    (void)context;
    outrigger_task_free(task);
    pthread_mutex_lock(&freed);
    frees++;
    pthread_mutex_unlock(&freed);
}

static void direct(void) {
    uint8_t data[100] = {0}, out[100];
    outrigger_fingerprint hash;
    outrigger_range piece = {90, 101};
    size_t count = 77;
    CHECK(strcmp(outrigger_last_error(), "") == 0);
    CHECK(outrigger_abi() == OUTRIGGER_ABI && strlen(outrigger_version()) > 0);
    CHECK(outrigger_hash(99, data, 100, &hash) == OUTRIGGER_INVALID);
    SAYS("99 is no kind of hash");
    CHECK(outrigger_hash(OUTRIGGER_MD5, NULL, 100, &hash) == OUTRIGGER_INVALID);
    SAYS("data is null");
    CHECK(outrigger_hash(OUTRIGGER_MD5, NULL, 0, &hash) == OUTRIGGER_OK);
    CHECK(hash.bytes[0] == 0xd4 && hash.bytes[15] == 0x7e && hash.bytes[16] == 0);
    CHECK(outrigger_hash(OUTRIGGER_MD5, data, 100, NULL) == OUTRIGGER_INVALID);
    CHECK(outrigger_hash_len(OUTRIGGER_SHA1) == 20 && outrigger_hash_len(0) == 0);
    CHECK(outrigger_hash_many(OUTRIGGER_SHA1, data, 100, &piece, 1, &hash) == OUTRIGGER_INVALID);
    SAYS("from 90 to 101");
    outrigger_window spec = {OUTRIGGER_WINDOW_MD5, 4, 20, 4};
    CHECK(outrigger_window_count(&spec, 100) == 21);
    CHECK(outrigger_window_hash(&spec, data, 100, out, 83, &count) == OUTRIGGER_SPACE && count == 84);
    CHECK(outrigger_window_hash(&spec, data, 100, out, 84, &count) == OUTRIGGER_OK && count == 84);
    spec.keep = 17;
    CHECK(outrigger_window_hash(&spec, data, 100, out, 100, NULL) == OUTRIGGER_INVALID);
    CHECK(outrigger_window_count(NULL, 100) == 0);
    CHECK(outrigger_scan(NULL, 0, data, 100, 1000, NULL, 0, NULL) == OUTRIGGER_INVALID);
    SAYS("power of two");
    CHECK(outrigger_ingester_new("gear32:4K", OUTRIGGER_BLAKE3) == NULL);
    CHECK(outrigger_ingester_new("gear32:4K/16K/64K", 0) == NULL);
    CHECK(outrigger_ingester_new("\xff", OUTRIGGER_BLAKE3) == NULL);
    SAYS("UTF-8");
    CHECK(outrigger_storegpu_md5_windows(NULL, data, 100, 0, 4) == NULL);
    outrigger_hasher_free(NULL);
    outrigger_ingester_free(NULL);
}

static void table(void) {
    outrigger_fingerprint keys[3] = {{{1}}, {{2}}, {{3}}};
    uint64_t places[3] = {10, 20, 30};
    uint8_t found[3], bytes[200];
    size_t count;
    outrigger_table *table = outrigger_table_new(2);
    CHECK(outrigger_table_new(SIZE_MAX) == NULL);
    CHECK(outrigger_table_insert(table, keys, places, 3, &count) == OUTRIGGER_FULL && count == 2);
    CHECK(outrigger_table_len(table) == 2 && outrigger_table_capacity(table) == 2);
    CHECK(outrigger_table_remove(table, keys, 1, &count) == OUTRIGGER_OK && count == 1);
    CHECK(outrigger_table_refresh(table) == OUTRIGGER_OK);
    CHECK(outrigger_table_lookup(table, keys, 3, places, found) == OUTRIGGER_OK);
    CHECK(!found[0] && found[1] && places[1] == 20 && !found[2] && places[2] == 0);
    CHECK(outrigger_table_save(table, bytes, 63, &count) == OUTRIGGER_SPACE && count == 64);
    CHECK(outrigger_table_save(table, bytes, sizeof bytes, &count) == OUTRIGGER_OK && count == 64);
    outrigger_table *loaded = outrigger_table_load(bytes, count, 10);
    CHECK(outrigger_table_len(loaded) == 1);
    bytes[40] ^= 1;
    CHECK(outrigger_table_load(bytes, count, 10) == NULL);
    SAYS("damaged");
    CHECK(outrigger_table_clear(loaded) == OUTRIGGER_OK && outrigger_table_len(loaded) == 0);
    outrigger_table_free(loaded);
    outrigger_table_free(table);
    outrigger_table_free(NULL);
    CHECK(outrigger_table_len(NULL) == 0);
}

static void builders(void) {
    outrigger_builder *builder = outrigger_builder_new();
    CHECK(outrigger_builder_device(builder, "gpu") == OUTRIGGER_INVALID);
    CHECK(outrigger_builder_device(builder, "sim:fast") == OUTRIGGER_INVALID);
    SAYS("pcie5-gpu");
    CHECK(outrigger_builder_device(builder, "cuda:4000") == OUTRIGGER_ABSENT);
    CHECK(outrigger_builder_device(builder, "qat:4000") == OUTRIGGER_ABSENT);
    CHECK(outrigger_builder_threads(builder, 0) == OUTRIGGER_INVALID);
    CHECK(outrigger_builder_policy(builder, "speed", "1") == OUTRIGGER_INVALID);
    SAYS("offload_min_bytes");
    for (int n = 0; n < 23; n++) {
        CHECK(outrigger_builder_device(builder, "sim:slow") == OUTRIGGER_OK);
    }
    CHECK(outrigger_builder_device(builder, "sim:slow") == OUTRIGGER_INVALID);
    CHECK(outrigger_builder_calibration(builder, "/nowhere/at/all") == OUTRIGGER_OK);
    CHECK(strcmp(outrigger_builder_missing(builder), "") == 0);
    outrigger_builder_free(builder);
    CHECK(outrigger_runtime_new(NULL) == NULL);
    outrigger_runtime_shutdown(NULL, 1);
}

static void tasks(void) {
    static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    outrigger_builder *builder = outrigger_builder_new();
    CHECK(outrigger_builder_threads(builder, 1) == OUTRIGGER_OK);
    CHECK(outrigger_builder_policy(builder, "outstanding_max", "2") == OUTRIGGER_OK);
    outrigger_runtime *runtime = outrigger_runtime_new(builder);
    CHECK(outrigger_task_new(runtime, (size_t)3 << 30) == NULL);
    outrigger_task *task = outrigger_task_new(runtime, 5000);
    size_t count = 0;
    uint64_t predicted;
    outrigger_report report;

    CHECK(outrigger_task_poll(task) == OUTRIGGER_STATE && outrigger_task_wait(task) == OUTRIGGER_STATE);
    CHECK(outrigger_task_bytes(task, &count) == NULL && outrigger_task_codec(task) == -1);
    CHECK(outrigger_task_data(task, 10000) == NULL);
    memset(outrigger_task_data(task, 5000), 7, 5000);
    outrigger_range piece = {4000, 5001};
    CHECK(outrigger_task_hash_many(task, OUTRIGGER_SHA256, &piece, 1) == OUTRIGGER_OK);
    CHECK(outrigger_submit(runtime, task) == OUTRIGGER_INVALID);
    SAYS("a piece lies outside");
    CHECK(outrigger_task_pmd_hash(task, OUTRIGGER_SHA256) == OUTRIGGER_INVALID);
    CHECK(outrigger_task_decompress(task, 77, 10) == OUTRIGGER_INVALID);
    CHECK(outrigger_task_compress(task, "zip") == OUTRIGGER_INVALID);
    CHECK(outrigger_task_set_priority(task, 3) == OUTRIGGER_INVALID);
    CHECK(outrigger_task_set_priority(task, OUTRIGGER_HIGH) == OUTRIGGER_OK);
    CHECK(outrigger_submit(NULL, task) == OUTRIGGER_INVALID && outrigger_submit(runtime, NULL) == OUTRIGGER_INVALID);

    /* Compresses and decompresses. */
    CHECK(outrigger_task_compress(task, "lz4") == OUTRIGGER_OK && outrigger_run(runtime, task) == OUTRIGGER_OK);
    CHECK(outrigger_task_pin(task, 0) == OUTRIGGER_STATE);
    CHECK(outrigger_task_codec(task) == OUTRIGGER_CODEC_LZ4);
    uint8_t stored[5000];
    const uint8_t *made = outrigger_task_bytes(task, &count);
    CHECK(made && count < sizeof stored);
    memcpy(stored, made, count);
    CHECK(outrigger_task_report(task, &report, sizeof report) == OUTRIGGER_OK && report.total_ns > 0);
    CHECK(outrigger_task_again(task) == OUTRIGGER_OK);
    memcpy(outrigger_task_data(task, count), stored, count);
    CHECK(outrigger_task_decompress(task, OUTRIGGER_CODEC_LZ4, 5000) == OUTRIGGER_OK);
    CHECK(outrigger_run(runtime, task) == OUTRIGGER_OK);
    const uint8_t *raw = outrigger_task_bytes(task, &count);
    CHECK(count == 5000 && raw[0] == 7 && memcmp(raw, raw + 1, 4999) == 0);
    /* Damaged data ends the task, not the runtime. */
    CHECK(outrigger_task_again(task) == OUTRIGGER_OK);
    memset(outrigger_task_data(task, 100), 0xff, 100);
    CHECK(outrigger_run(runtime, task) == OUTRIGGER_DATA && outrigger_task_poll(task) == OUTRIGGER_DATA);
    CHECK(outrigger_task_again(task) == OUTRIGGER_OK);
    CHECK(outrigger_runtime_predict(runtime, 0, task, &predicted) == OUTRIGGER_OK && predicted > 0);
    CHECK(outrigger_runtime_predict(runtime, 9, task, &predicted) == OUTRIGGER_UNSUPPORTED);

    /* One runs, two wait, and a further one is refused. */
    outrigger_operation *operation = outrigger_operation_new("slow", slow, nothing, NULL, &gate, NULL);
    outrigger_operation *lies = outrigger_operation_new("liar", liar, nothing, NULL, NULL, NULL);
    CHECK(outrigger_operation_new("none", NULL, nothing, NULL, NULL, NULL) == NULL);
    outrigger_kernel bad = {9, 256, 1, "", ""};
    CHECK(outrigger_operation_new("kernel", slow, nothing, &bad, &gate, NULL) == NULL);
    outrigger_task *waiting[4];
    pthread_mutex_lock(&gate);
    for (int n = 0; n < 4; n++) {
        waiting[n] = outrigger_task_new(runtime, 0);
        CHECK(outrigger_task_own(waiting[n], operation, NULL, 0) == OUTRIGGER_OK);
        if (n == 0) {
            CHECK(outrigger_submit(runtime, waiting[n]) == OUTRIGGER_OK);
            outrigger_device_metrics metrics;
            do {
                CHECK(outrigger_runtime_device(runtime, 0, &metrics, sizeof metrics) == OUTRIGGER_OK);
            } while (metrics.running == 0);
            CHECK(strcmp(metrics.name, "cpu") == 0);
        } else if (n < 3) {
            CHECK(outrigger_task_set_deadline(waiting[n], n == 1 ? 600000 : 1) == OUTRIGGER_OK);
            CHECK(outrigger_try_submit(runtime, waiting[n]) == OUTRIGGER_OK);
            if (n == 2) {
                CHECK(outrigger_task_wait(waiting[n]) == OUTRIGGER_EXPIRED);
                CHECK(outrigger_task_again(waiting[n]) == OUTRIGGER_OK);
                CHECK(outrigger_try_submit(runtime, waiting[n]) == OUTRIGGER_OK);
            }
        } else {
            CHECK(outrigger_try_submit(runtime, waiting[n]) == OUTRIGGER_FULL);
        }
    }
    CHECK(outrigger_task_poll(waiting[0]) == OUTRIGGER_PENDING && outrigger_task_wait_for(waiting[1], 1) == OUTRIGGER_PENDING);
    CHECK(outrigger_task_again(waiting[0]) == OUTRIGGER_STATE);
    CHECK(outrigger_task_set_callback(waiting[0], free_it, NULL) == OUTRIGGER_STATE);
    CHECK(outrigger_task_cancel(waiting[1]) == 1 && outrigger_task_poll(waiting[1]) == OUTRIGGER_CANCELLED);
    CHECK(outrigger_task_cancel(waiting[1]) == 0);
    pthread_mutex_unlock(&gate);
    CHECK(outrigger_task_wait(waiting[0]) == OUTRIGGER_OK && outrigger_task_wait(waiting[2]) == OUTRIGGER_OK);

    /* A function that writes more than it promised is detected. */
    CHECK(outrigger_task_own(waiting[3], lies, NULL, 0) == OUTRIGGER_OK);
    CHECK(outrigger_run(runtime, waiting[3]) == OUTRIGGER_BUG);
    for (int n = 0; n < 4; n++) {
        outrigger_task_free(waiting[n]);
    }

    /* Tasks that are freed in their own callbacks, one that is freed in flight, and one that outlives the runtime. */
    for (int n = 0; n < 50; n++) {
        outrigger_task *one = outrigger_task_new(runtime, 100);
        memset(outrigger_task_data(one, 100), n, 100);
        CHECK(outrigger_task_pmd_hash(one, OUTRIGGER_PMD_SHA1) == OUTRIGGER_OK);
        CHECK(outrigger_task_set_callback(one, free_it, NULL) == OUTRIGGER_OK);
        CHECK(outrigger_submit(runtime, one) == OUTRIGGER_OK);
    }
    outrigger_task *unloved = outrigger_task_new(runtime, 100);
    CHECK(outrigger_task_own(unloved, operation, NULL, 0) == OUTRIGGER_OK);
    CHECK(outrigger_submit(runtime, unloved) == OUTRIGGER_OK);
    outrigger_task_free(unloved);

    /* A shared buffer must not be written while tasks have it. */
    outrigger_buffer *buffer = outrigger_buffer_new(runtime, 10000);
    CHECK(outrigger_buffer_size(buffer) >= 10000 && outrigger_buffer_data(buffer));
    memset(outrigger_buffer_data(buffer), 1, 10000);
    CHECK(outrigger_task_share(task, buffer, 9000, 100000) == OUTRIGGER_INVALID);
    CHECK(outrigger_task_share(task, buffer, 5000, 5000) == OUTRIGGER_OK);
    CHECK(outrigger_task_data(task, 10) == NULL && outrigger_buffer_data(buffer) == NULL);
    CHECK(outrigger_task_scan(task, 6000, 4096) == OUTRIGGER_OK && outrigger_submit(runtime, task) == OUTRIGGER_INVALID);
    CHECK(outrigger_task_scan(task, 5000, 4096) == OUTRIGGER_OK && outrigger_run(runtime, task) == OUTRIGGER_OK);
    CHECK(outrigger_task_candidates(task, &count) != NULL);
    outrigger_buffer_free(buffer);

    outrigger_metrics metrics;
    memset(&metrics, 0xff, sizeof metrics);
    CHECK(outrigger_runtime_metrics(runtime, &metrics, sizeof metrics.devices) == OUTRIGGER_OK);
    CHECK(metrics.devices == 1 && metrics.failed == UINT64_MAX);
    CHECK(outrigger_runtime_device(runtime, 1, NULL, 0) == OUTRIGGER_INVALID);
    outrigger_runtime_shutdown(runtime, 1);
    CHECK(frees == 50);
    CHECK(outrigger_task_poll(task) == OUTRIGGER_OK);
    outrigger_task_free(task);
    outrigger_task_free(NULL);
    outrigger_operation_free(operation);
    outrigger_operation_free(lies);
}

static int32_t who(void *context, const uint8_t *parameters, size_t parameters_len, const uint8_t *data, size_t len,
                   uint8_t *out, size_t room, size_t *written) {
    (void)parameters, (void)parameters_len, (void)data, (void)len, (void)out, (void)room;
    *(pthread_t *)context = pthread_self();
    *written = 0;
    return 0;
}

/* The submitting thread executes brief operations once their time is known, and never others. */
static void brief(void) {
    outrigger_builder *builder = outrigger_builder_new();
    CHECK(outrigger_builder_threads(builder, 1) == OUTRIGGER_OK);
    /* Also on a busy machine. */
    CHECK(outrigger_builder_policy(builder, "inline_max", "1") == OUTRIGGER_OK);
    outrigger_runtime *runtime = outrigger_runtime_new(builder);
    for (int is_brief = 0; is_brief < 2; is_brief++) {
        pthread_t by = pthread_self();
        int here = 0;
        outrigger_operation *operation =
            outrigger_operation_new(is_brief ? "brief" : "handed over", who, nothing, NULL, &by, NULL);
        if (is_brief) {
            CHECK(outrigger_operation_set_brief(operation) == OUTRIGGER_OK);
        }
        outrigger_task *task = outrigger_task_new(runtime, 0);
        for (int n = 0; n < 100; n++) {
            CHECK(outrigger_task_own(task, operation, NULL, 0) == OUTRIGGER_OK);
            CHECK(outrigger_run(runtime, task) == OUTRIGGER_OK);
            here += pthread_equal(by, pthread_self());
            CHECK(n < 99 || outrigger_operation_set_brief(operation) == OUTRIGGER_STATE);
            CHECK(outrigger_task_again(task) == OUTRIGGER_OK);
        }
        CHECK(is_brief ? here > 50 : here == 0);
        outrigger_task_free(task);
        outrigger_operation_free(operation);
    }
    CHECK(outrigger_operation_set_brief(NULL) == OUTRIGGER_INVALID);
    outrigger_runtime_shutdown(runtime, 1);
}

/* The library's values (src/tests.rs) on 64-bit machines. */
static void sizes(void) {
    if (sizeof(void *) == 8) {
        CHECK(sizeof(outrigger_fingerprint) == 32 && sizeof(outrigger_range) == 8 && sizeof(outrigger_stream) == 12);
        CHECK(sizeof(outrigger_chunk) == 48 && offsetof(outrigger_chunk, found) == 44);
        CHECK(sizeof(outrigger_window) == 24 && offsetof(outrigger_window, step) == 16);
        CHECK(sizeof(outrigger_kernel) == 32 && sizeof(outrigger_status) == 4);
        CHECK(sizeof(outrigger_report) == 64 && offsetof(outrigger_report, predicted_ns) == 56);
        CHECK(sizeof(outrigger_metrics) == 48 && sizeof(outrigger_device_metrics) == 312);
        CHECK(offsetof(outrigger_device_metrics, faults) == 256);
    }
}

int main(void) {
    sizes();
    direct();
    table();
    builders();
    tasks();
    brief();
    puts("fine");
    return 0;
}
