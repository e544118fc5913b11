// The common part of stand-ins: numbers with names, which a test sets and reads. Included after
// their table `values`.

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static long *value(const char *name) {
    for (size_t at = 0; at < sizeof values / sizeof *values; at++)
        if (!strcmp(values[at].name, name)) return &values[at].value;
    abort();
}

void standin_set(const char *name, long to) {
    pthread_mutex_lock(&lock);
    *value(name) = to;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

long standin_get(const char *name) {
    pthread_mutex_lock(&lock);
    long found = *value(name);
    pthread_mutex_unlock(&lock);
    return found;
}
