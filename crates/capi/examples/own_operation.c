/*
 * An operation of the program, which counts how often each byte value occurs. It gets the same queues, buffers, placement
 * and handling of device failures as the built-in ones. The kernel is for machines with a CUDA device, and its results are
 * compared with the function's.
 *
 *     cc own_operation.c $(pkg-config --cflags --libs outrigger) -o own_operation
 *     ./own_operation FILE
 */
#include <outrigger.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 1 << 20, COUNTS = 256 * sizeof(uint32_t) };

/* Returns 256 counters, little-endian like all supported machines. The parameter is added to each byte. */
static int32_t histogram(void *context, const uint8_t *parameters, size_t parameters_len, const uint8_t *data,
                         size_t len, uint8_t *out, size_t room, size_t *written) {
    uint32_t counts[256] = {0};
    (void)context;
    if (parameters_len != 1 || room < sizeof counts) {
        return 22;
    }
    for (size_t n = 0; n < len; n++) {
        counts[(uint8_t)(data[n] + parameters[0])]++;
    }
    memcpy(out, counts, sizeof counts);
    *written = sizeof counts;
    return 0;
}

static size_t histogram_len(void *context, const uint8_t *parameters, size_t parameters_len, size_t len) {
    (void)context, (void)parameters, (void)parameters_len, (void)len;
    return COUNTS;
}

/* A thread for each byte value reads all data: simple, not fast. */
static const char KERNEL[] =
    "extern \"C\" __global__ void histogram(const unsigned char *data, unsigned long long data_len,\n"
    "        const unsigned char *parameters, unsigned long long parameters_len,\n"
    "        unsigned char *out, unsigned long long out_len) {\n"
    "    unsigned value = blockIdx.x * blockDim.x + threadIdx.x, count = 0;\n"
    "    if (value >= 256) return;\n"
    "    for (unsigned long long n = 0; n < data_len; n++)\n"
    "        count += (unsigned char)(data[n] + parameters[0]) == value;\n"
    "    ((unsigned *)out)[value] = count;\n"
    "}\n";

static void release(void *context) {
    puts(context);
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
        fprintf(stderr, "usage: own_operation FILE\n");
        return 2;
    }
    outrigger_kernel kernel = {.language = OUTRIGGER_CUDA, .block_threads = 256, .bytes_per_thread = 4096,
                               .code = KERNEL, .name = "histogram"};
    outrigger_operation *operation =
        outrigger_operation_new("histogram", histogram, histogram_len, &kernel, "released", release);
    outrigger_builder *builder = outrigger_builder_new();
    if (!operation || outrigger_builder_device(builder, "auto") != OUTRIGGER_OK) {
        return fail("operation");
    }
    outrigger_runtime *runtime = outrigger_runtime_new(builder);
    outrigger_task *task = runtime ? outrigger_task_new(runtime, BATCH) : NULL;
    if (!task) {
        return fail("runtime");
    }

    unsigned long long totals[256] = {0};
    const uint8_t add = 0;
    size_t len;
    while ((len = fread(outrigger_task_data(task, BATCH), 1, BATCH, file)) > 0) {
        size_t bytes = 0;
        outrigger_task_data(task, len);
        if (outrigger_task_own(task, operation, &add, 1) != OUTRIGGER_OK ||
            outrigger_run(runtime, task) != OUTRIGGER_OK) {
            return fail("run");
        }
        const uint32_t *counts = (const void *)outrigger_task_bytes(task, &bytes);
        for (size_t n = 0; n < bytes / sizeof *counts; n++) {
            totals[n] += counts[n];
        }
        outrigger_task_again(task);
    }
    fclose(file);
    for (int n = 0; n < 256; n++) {
        if (totals[n]) {
            printf("%02x %llu\n", n, totals[n]);
        }
    }

    /* The function rejects this data, which is the task's result. */
    outrigger_task_data(task, 10);
    if (outrigger_task_own(task, operation, NULL, 0) != OUTRIGGER_OK ||
        outrigger_run(runtime, task) != OUTRIGGER_DATA) {
        return fail("without a parameter");
    }
    printf("refused: %s\n", outrigger_last_error());
    outrigger_operation_free(operation);
    outrigger_task_free(task);
    outrigger_runtime_shutdown(runtime, 1);
    return 0;
}
