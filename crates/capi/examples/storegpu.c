/*
 * StoreGPU's four calls: the hash of a block, and of the windows of a block, by SHA-1 and by MD5, on the best device of the
 * machine.
 *
 *     cc storegpu.c $(pkg-config --cflags --libs outrigger) -o storegpu
 *     ./storegpu FILE
 */
#include <outrigger.h>
#include <stdio.h>
#include <stdlib.h>

static void print(const char *name, uint8_t *hash, size_t len) {
    if (!hash) {
        fprintf(stderr, "%s: %s\n", name, outrigger_last_error());
        exit(1);
    }
    printf("%-8s", name);
    for (size_t n = 0; n < len; n++) {
        printf("%02x", hash[n]);
    }
    putchar('\n');
    free(hash);
}

int main(int count, char **arguments) {
    FILE *file = count > 1 ? fopen(arguments[1], "rb") : NULL;
    static unsigned char block[1 << 20];
    if (!file) {
        if (count > 1) {
            perror(arguments[1]);
            return 1;
        }
        fprintf(stderr, "usage: storegpu FILE\n");
        return 2;
    }
    size_t len = fread(block, 1, sizeof block, file);
    fclose(file);
    outrigger_builder *builder = outrigger_builder_new();
    outrigger_builder_device(builder, "auto");
    outrigger_runtime *runtime = outrigger_runtime_new(builder);

    const size_t window = 20, offset = 4;
    const size_t windows = len < window ? 0 : (len - window) / offset + 1;
    print("sha", outrigger_storegpu_sha(runtime, block, len), 20);
    print("md5", outrigger_storegpu_md5(runtime, block, len), 16);
    printf("%zu windows, of the first one:\n", windows);
    print("sha", outrigger_storegpu_sha_windows(runtime, block, len, window, offset), windows ? 20 : 0);
    print("md5", outrigger_storegpu_md5_windows(runtime, block, len, window, offset), windows ? 16 : 0);
    outrigger_runtime_shutdown(runtime, 1);
    return 0;
}
