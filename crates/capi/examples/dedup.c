/*
 * Measures how much of a file is duplicate. It cuts the file by content, fingerprints the chunks, and looks them up in a
 * table of earlier ones, a batch at a time, in one pass on this thread.
 *
 *     cc dedup.c $(pkg-config --cflags --libs outrigger) -o dedup
 *     ./dedup FILE
 */
#include <outrigger.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 4 << 20 };

int main(int count, char **arguments) {
    FILE *file = count > 1 ? fopen(arguments[1], "rb") : NULL;
    unsigned char *batch = malloc(BATCH);
    outrigger_ingester *ingester = outrigger_ingester_new("gear32:4K/16K/64K", OUTRIGGER_BLAKE3);
    outrigger_table *seen = outrigger_table_new(1 << 16);
    if (count < 2) {
        fprintf(stderr, "usage: dedup FILE\n");
        return 2;
    }
    if (!file) {
        perror(arguments[1]);
        return 1;
    }
    if (!batch || !ingester || !seen) {
        fprintf(stderr, "%s\n", outrigger_last_error());
        return 1;
    }
    unsigned long long chunks = 0, bytes = 0, again = 0;
    size_t kept = 0;
    int at_end = 0;
    while (!at_end) {
        size_t len = kept + fread(batch + kept, 1, BATCH - kept, file);
        at_end = len < BATCH;
        outrigger_stream stream = {.start = 0, .end = (uint32_t)len, .last = (uint32_t)at_end};
        const outrigger_chunk *found;
        size_t found_count, start = 0;
        if (outrigger_ingest(ingester, batch, len, &stream, 1, seen, &found, &found_count, NULL) != OUTRIGGER_OK) {
            fprintf(stderr, "%s\n", outrigger_last_error());
            return 1;
        }
        for (size_t n = 0; n < found_count; n++) {
            size_t chunk = found[n].end - start;
            uint64_t place = bytes + start;
            uint8_t known = (uint8_t)found[n].found;
            /* A chunk may also occur twice within one batch. */
            if (!known) {
                uint64_t earlier;
                if (outrigger_table_lookup(seen, &found[n].fingerprint, 1, &earlier, &known) != OUTRIGGER_OK ||
                    outrigger_table_insert(seen, &found[n].fingerprint, &place, 1, NULL) != OUTRIGGER_OK) {
                    fprintf(stderr, "%s\n", outrigger_last_error());
                    return 1;
                }
            }
            again += known ? chunk : 0;
            start = found[n].end;
        }
        chunks += found_count;
        bytes += start;
        kept = len - start;
        memmove(batch, batch + start, kept);
    }
    printf("%llu bytes in %llu chunks, %zu of them different; %llu bytes are there already\n", bytes, chunks,
           outrigger_table_len(seen), again);
    outrigger_table_free(seen);
    outrigger_ingester_free(ingester);
    free(batch);
    fclose(file);
    return 0;
}
