/* See asfile.h. Everything is stdio; this file only chooses the streams' files. */
#define _POSIX_C_SOURCE 200809L
#include "asfile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

struct asfile {
    FILE *stream;
};

/* True if the name stays below the directory that it is looked up in. */
static int is_below(const char *name)
{
    const char *at = name;
    if (*name == '/')
        return 0;
    while (at != NULL) {
        if (strncmp(at, "..", 2) == 0 && (at[2] == '/' || at[2] == '\0'))
            return 0;
        at = strchr(at, '/');
        at = at != NULL ? at + 1 : NULL;
    }
    return 1;
}

/* The component's own input: a file, if the environment names one, otherwise a stream. */
static FILE *open_own_input(void)
{
    const char *path = getenv("AS_INPUT_FILE");
    return path != NULL ? fopen(path, "r") : stdin;
}

/* Another stored file: from the inputs' mount, or, outside of a job, from the current directory. */
static FILE *open_input(const char *name)
{
    char path[8192];
    const char *files = getenv("AS_IN");
    int len;
    if (!is_below(name)) {
        errno = EINVAL;
        return NULL;
    }
    if (files == NULL && getenv("AS_JOB") != NULL) {
        errno = ENOENT;
        return NULL;
    }
    len = snprintf(path, sizeof path, "%s/%s", files != NULL ? files : ".", name);
    if (len < 0 || (size_t)len >= sizeof path) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    return fopen(path, "r");
}

static FILE *open_output(const char *name)
{
    char text[4096];
    const char *path, *work = getenv("AS_WORK");
    if (strchr(name, '/') != NULL || strcmp(name, "..") == 0 || strlen(name) > 255) {
        errno = EINVAL;
        return NULL;
    }
    snprintf(text, sizeof text, "AS_OUTPUT_%s", name);
    path = getenv(text);
    if (path == NULL) {
        int len = snprintf(text, sizeof text, "%s/%s", work != NULL ? work : ".", name);
        if (len < 0 || (size_t)len >= sizeof text) {
            errno = ENAMETOOLONG;
            return NULL;
        }
        path = text;
    }
    return fopen(path, "w");
}

ASFILE *asopen(const char *name, const char *mode)
{
    int own = name == NULL || *name == '\0' || strcmp(name, "-") == 0;
    FILE *stream = NULL;
    ASFILE *file;
    if (mode == NULL || (strcmp(mode, "r") != 0 && strcmp(mode, "w") != 0)) {
        errno = EINVAL;
        return NULL;
    }
    file = malloc(sizeof *file);
    if (file == NULL)
        return NULL;
    if (*mode == 'r') {
        stream = own ? open_own_input() : open_input(name);
    } else {
        stream = own ? stdout : open_output(name);
    }
    if (stream == NULL) {
        free(file);
        return NULL;
    }
    file->stream = stream;
    return file;
}

size_t asread(void *buffer, size_t size, size_t count, ASFILE *file)
{
    return fread(buffer, size, count, file->stream);
}

size_t aswrite(const void *buffer, size_t size, size_t count, ASFILE *file)
{
    return fwrite(buffer, size, count, file->stream);
}

char *asgets(char *buffer, int size, ASFILE *file)
{
    return fgets(buffer, size, file->stream);
}

int aseof(ASFILE *file)
{
    return feof(file->stream);
}

int aserror(ASFILE *file)
{
    return ferror(file->stream);
}

int asseek(ASFILE *file, int64_t offset, int whence)
{
    return fseeko(file->stream, (off_t)offset, whence);
}

int asclose(ASFILE *file)
{
    int failed = ferror(file->stream) != 0;
    int closed = fclose(file->stream);
    free(file);
    if (failed && closed == 0)
        errno = EIO;
    return failed || closed != 0 ? EOF : 0;
}

static uint64_t number(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : 0;
}

uint64_t as_job(void)
{
    return number("AS_JOB");
}

uint64_t as_split(void)
{
    return number("AS_SPLIT");
}

uint64_t as_splits(void)
{
    uint64_t splits = number("AS_SPLITS");
    return splits > 0 ? splits : 1;
}

uint64_t as_attempt(void)
{
    uint64_t attempt = number("AS_ATTEMPT");
    return attempt > 0 ? attempt : 1;
}

const char *as_task_id(void)
{
    const char *text = getenv("AS_TASK_ID");
    return text != NULL ? text : "";
}
