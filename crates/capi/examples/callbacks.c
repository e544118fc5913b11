/*
 * Fingerprints the 16 KiB blocks of a file. Each task has a megabyte, and all tasks are kept in flight. When a task
 * ends, its callback passes it to the main thread, which fills it again. The callback itself prints nothing and never
 * blocks. Any device may execute a task, and the report says which one did.
 *
 *     cc callbacks.c $(pkg-config --cflags --libs outrigger) -lpthread -o callbacks
 *     ./callbacks FILE [DEVICE]         auto without a device; sim:pcie5-gpu for a simulated one
 */
#include <outrigger.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { TASKS = 8, BATCH = 1 << 20, BLOCK = 16 << 10 };

/* Tasks that wait to be filled, and the results of ended ones. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    outrigger_task *idle[TASKS];
    int idle_count;
    unsigned long blocks, tasks, on_devices;
    unsigned char sum[32];
    outrigger_status worst;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void ended(void *context, outrigger_task *task) {
    size_t count = 0;
    outrigger_report report;
    const outrigger_fingerprint *made = outrigger_task_fingerprints(task, &count);
    outrigger_status status = outrigger_task_report(task, &report, sizeof report);
    (void)context;
    pthread_mutex_lock(&state.lock);
    if (status != OUTRIGGER_OK) {
        state.worst = outrigger_task_poll(task);
    } else {
        state.tasks++;
        state.on_devices += report.device != 0;
        state.blocks += count;
        /* The sum does not depend on the order in which tasks end. */
        for (size_t n = 0; n < count; n++) {
            for (int byte = 0; byte < 32; byte++) {
                state.sum[byte] ^= made[n].bytes[byte];
            }
        }
    }
    state.idle[state.idle_count++] = task;
    pthread_cond_signal(&state.changed);
    pthread_mutex_unlock(&state.lock);
}

/* Waits for an idle task. */
static outrigger_task *idle(void) {
    pthread_mutex_lock(&state.lock);
    while (state.idle_count == 0) {
        pthread_cond_wait(&state.changed, &state.lock);
    }
    outrigger_task *task = state.idle[--state.idle_count];
    pthread_mutex_unlock(&state.lock);
    return task;
}

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, outrigger_last_error());
    return 1;
}

int main(int count, char **arguments) {
    FILE *file = count > 1 ? fopen(arguments[1], "rb") : NULL;
    if (!file) {
        if (count > 1) {
            perror(arguments[1]);
            return 1;
        }
        fprintf(stderr, "usage: callbacks FILE [DEVICE]\n");
        return 2;
    }
    outrigger_builder *builder = outrigger_builder_new();
    if (outrigger_builder_device(builder, count > 2 ? arguments[2] : "auto") != OUTRIGGER_OK ||
        outrigger_builder_threads(builder, 2) != OUTRIGGER_OK ||
        outrigger_builder_policy(builder, "objective", "throughput") != OUTRIGGER_OK) {
        outrigger_builder_free(builder);
        fclose(file);
        return fail("builder");
    }
    outrigger_runtime *runtime = outrigger_runtime_new(builder);
    if (!runtime) {
        fclose(file);
        return fail("runtime");
    }
    for (int n = 0; n < TASKS; n++) {
        state.idle[n] = outrigger_task_new(runtime, BATCH);
        if (!state.idle[n] || outrigger_task_set_callback(state.idle[n], ended, NULL) != OUTRIGGER_OK) {
            return fail("task");
        }
    }
    state.idle_count = TASKS;

    size_t len;
    do {
        outrigger_task *task = idle();
        outrigger_range blocks[BATCH / BLOCK];
        size_t pieces = 0;
        /* This changes nothing for a new task. */
        outrigger_task_again(task);
        len = fread(outrigger_task_data(task, BATCH), 1, BATCH, file);
        outrigger_task_data(task, len);
        for (uint32_t at = 0; at < len; at += BLOCK) {
            blocks[pieces].start = at;
            blocks[pieces++].end = (uint32_t)(len - at < BLOCK ? len : at + BLOCK);
        }
        if (outrigger_task_hash_many(task, OUTRIGGER_BLAKE3, blocks, pieces) != OUTRIGGER_OK ||
            outrigger_submit(runtime, task) != OUTRIGGER_OK) {
            return fail("submit");
        }
    } while (len == BATCH);
    fclose(file);
    for (int n = 0; n < TASKS; n++) {
        outrigger_task_free(idle());
    }
    outrigger_runtime_shutdown(runtime, 1);

    if (state.worst != OUTRIGGER_OK) {
        return fail(outrigger_status_name(state.worst));
    }
    printf("%lu blocks, sum ", state.blocks);
    for (int byte = 0; byte < 32; byte++) {
        printf("%02x", state.sum[byte]);
    }
    printf("\n%lu tasks, %lu of them on devices\n", state.tasks, state.on_devices);
    return 0;
}
