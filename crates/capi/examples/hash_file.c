/*
 * Hashes files, which it reads in pieces, like sha256sum, but with any function of the library.
 *
 *     cc hash_file.c $(pkg-config --cflags --libs outrigger) -o hash_file
 *     ./hash_file sha256 FILE...        or blake3, md5, sha1, pmd-md5, pmd-sha1, pmd-sha256
 */
#include <outrigger.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t kind;
} KINDS[] = {
    {"blake3", OUTRIGGER_BLAKE3},     {"sha256", OUTRIGGER_SHA256},     {"md5", OUTRIGGER_MD5},
    {"sha1", OUTRIGGER_SHA1},         {"pmd-md5", OUTRIGGER_PMD_MD5},   {"pmd-sha1", OUTRIGGER_PMD_SHA1},
    {"pmd-sha256", OUTRIGGER_PMD_SHA256},
};

static int hash_file(outrigger_hasher *hasher, size_t hash_len, const char *path) {
    static unsigned char piece[1 << 20];
    outrigger_fingerprint hash;
    size_t len;
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return 1;
    }
    while ((len = fread(piece, 1, sizeof piece, file)) > 0) {
        if (outrigger_hasher_update(hasher, piece, len) != OUTRIGGER_OK) {
            break;
        }
    }
    int failed = ferror(file);
    fclose(file);
    if (failed || outrigger_hasher_finish(hasher, &hash) != OUTRIGGER_OK) {
        fprintf(stderr, "%s: %s\n", path, failed ? "cannot be read" : outrigger_last_error());
        return 1;
    }
    for (size_t n = 0; n < hash_len; n++) {
        printf("%02x", hash.bytes[n]);
    }
    printf("  %s\n", path);
    return 0;
}

int main(int count, char **arguments) {
    uint32_t kind = 0;
    int failed = 0;
    for (size_t n = 0; count > 2 && n < sizeof KINDS / sizeof *KINDS; n++) {
        if (strcmp(arguments[1], KINDS[n].name) == 0) {
            kind = KINDS[n].kind;
        }
    }
    outrigger_hasher *hasher = outrigger_hasher_new(kind);
    if (!hasher) {
        fprintf(stderr, "usage: hash_file FUNCTION FILE...\n%s\n", outrigger_last_error());
        return 2;
    }
    for (int n = 2; n < count; n++) {
        failed |= hash_file(hasher, outrigger_hash_len(kind), arguments[n]);
    }
    outrigger_hasher_free(hasher);
    return failed;
}
