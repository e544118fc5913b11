// All kernels, compiled for the host, and the function that launches them. Like cuLaunchKernel, it
// takes a name and an array of pointers to the arguments. See grid.h.
#include "../common.cuh"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <utility>

#include "fibre.h"

#include "../blake3.cu"
#include "../hash_many.cu"
#include "../ingest.cu"
#include "../pmd_hash.cu"
#include "../scan.cu"
#include "../scan_windows.cu"
#include "../table.cu"
#include "../window_hash.cu"

thread_local GridIndex grid_thread, grid_block, grid_block_size, grid_size;
thread_local u32* grid_dynamic_shared;

namespace {

typedef void (*Thunk)(void** arguments);

// Calls a kernel with the arguments that an array of pointers points to.
template <auto F> struct Call;
template <typename... P, void (*F)(P...)> struct Call<F> {
    static const u32 COUNT = sizeof...(P);
    template <size_t... I> static void apply(void** arguments, std::index_sequence<I...>) { F(*(P*)arguments[I]...); }
    static void run(void** arguments) { apply(arguments, std::make_index_sequence<sizeof...(P)>()); }
};

struct Entry {
    const char* name;
    Thunk run;
    u32 parameters;
};

#define ENTRY(NAME) {#NAME, Call<&NAME>::run, Call<&NAME>::COUNT}
#define DIGEST_ENTRIES(NAME)                                                                                           \
    ENTRY(hash_##NAME), ENTRY(hash_##NAME##_direct), ENTRY(pmd_level_##NAME), ENTRY(pmd_level_##NAME##_direct),        \
        ENTRY(pmd_finish_##NAME), ENTRY(pmd_many_##NAME)
#define WINDOW_ENTRIES(NAME)                                                                                           \
    ENTRY(window_##NAME), ENTRY(window_##NAME##_direct), ENTRY(window_rows_##NAME), ENTRY(window_rows_##NAME##_direct)

const Entry ENTRIES[] = {
    ENTRY(blake3_ranges),
    ENTRY(blake3_ranges_direct),
    ENTRY(blake3_merge),
    DIGEST_ENTRIES(md5),
    DIGEST_ENTRIES(sha1),
    DIGEST_ENTRIES(sha256),
    ENTRY(scan_bits),
    ENTRY(scan_offsets),
    ENTRY(scan_emit),
    ENTRY(scan_windows_md5),
    ENTRY(scan_windows_sha1),
    ENTRY(scan_windows_rabin),
    WINDOW_ENTRIES(md5),
    WINDOW_ENTRIES(sha1),
    ENTRY(window_rabin),
    ENTRY(window_rabin_direct),
    ENTRY(window_gear32),
    ENTRY(window_gear32_direct),
    ENTRY(table_lookup),
    ENTRY(table_insert),
    ENTRY(table_remove),
    ENTRY(table_clear),
    ENTRY(table_refresh),
    ENTRY(ingest_cut),
    ENTRY(ingest_gather),
    ENTRY(ingest_report),
};

enum { THREADS_MAX = 256, STACK_BYTES = 128 << 10, GUARD_BYTES = 4096, ABANDONED_BYTES = 8192 };

struct Fibre {
    FibreContext context;
    bool done;
};

// The state of a grid: stacks, and which fibre runs.
struct Grid {
    char* stacks;
    Fibre fibres[THREADS_MAX];
    FibreContext caller;
    const void* caller_bottom;
    size_t caller_size;
    u32 current;
    Thunk kernel;
    void** arguments;
    u64 random;
};

thread_local Grid* running;

char* stack_of(Grid* grid, u32 fibre) { return grid->stacks + (size_t)fibre * (STACK_BYTES + GUARD_BYTES) + GUARD_BYTES; }

void to_caller(Grid* grid, bool last) {
    Fibre* fibre = &grid->fibres[grid->current];
    fibre->done = last;
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(last ? nullptr : &fake, grid->caller_bottom, grid->caller_size);
    fibre_switch(&fibre->context, &grid->caller);
    __sanitizer_finish_switch_fiber(fake, &grid->caller_bottom, &grid->caller_size);
#else
    fibre_switch(&fibre->context, &grid->caller);
#endif
}

void to_fibre(Grid* grid, u32 number) {
    grid->current = number;
    grid_thread = {number, 0, 0};
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, stack_of(grid, number), STACK_BYTES);
    fibre_switch(&grid->caller, &grid->fibres[number].context);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    fibre_switch(&grid->caller, &grid->fibres[number].context);
#endif
}

void fibre_main() {
    Grid* grid = running;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &grid->caller_bottom, &grid->caller_size);
#endif
    grid->kernel(grid->arguments);
    to_caller(grid, true);
    abort();
}

u32 random_below(Grid* grid, u32 bound) {
    grid->random ^= grid->random << 13;
    grid->random ^= grid->random >> 7;
    grid->random ^= grid->random << 17;
    return (u32)((grid->random >> 32) % bound);
}

enum Order { FORWARD, BACKWARD, SHUFFLED };

// The numbers below `count` in the requested order.
void arrange(Grid* grid, u32* numbers, u32 count, Order order) {
    for (u32 i = 0; i < count; i++) numbers[i] = order == BACKWARD ? count - 1 - i : i;
    if (order != SHUFFLED) return;
    for (u32 i = count; i > 1; i--) std::swap(numbers[i - 1], numbers[random_below(grid, i)]);
}

// Runs one block; false if some of its threads returned while others waited at a barrier.
bool run_block(Grid* grid, u32 threads, Order order) {
    u32 numbers[THREADS_MAX];
    for (u32 i = 0; i < threads; i++) {
        grid->fibres[i].done = false;
#if defined(__SANITIZE_ADDRESS__)
        // The stack frames from which the last fibre on this stack never returned: fibre_main's and
        // those below it.
        __asan_unpoison_memory_region(stack_of(grid, i) + STACK_BYTES - ABANDONED_BYTES, ABANDONED_BYTES);
#endif
        fibre_prepare(&grid->fibres[i].context, stack_of(grid, i), STACK_BYTES, fibre_main);
    }
    for (;;) {
        u32 done = 0;
        arrange(grid, numbers, threads, order);
        for (u32 i = 0; i < threads; i++) {
            to_fibre(grid, numbers[i]);
            done += grid->fibres[numbers[i]].done;
        }
        if (done == threads) return true;
        if (done) return false;
    }
}

} // namespace

void grid_barrier() { to_caller(running, false); }

extern "C" {

// Null if there is no memory.
Grid* outrigger_grid_new(void) {
    Grid* grid = (Grid*)calloc(1, sizeof(Grid));
    if (!grid) return nullptr;
    size_t each = STACK_BYTES + GUARD_BYTES;
    void* stacks = mmap(nullptr, THREADS_MAX * each, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) {
        free(grid);
        return nullptr;
    }
    grid->stacks = (char*)stacks;
    // A fibre that needs more stack fails here instead of writing to its neighbour's.
    for (u32 i = 0; i < THREADS_MAX; i++) mprotect(grid->stacks + i * each, GUARD_BYTES, PROT_NONE);
    grid->random = 0x9e3779b97f4a7c15ull;
    return grid;
}

void outrigger_grid_free(Grid* grid) {
    munmap(grid->stacks, (size_t)THREADS_MAX * (STACK_BYTES + GUARD_BYTES));
    free(grid);
}

// Returns 0: done. 1: no such kernel. 2: wrong number of parameters. 3: too many threads, or no
// memory. 4: threads of a block did not meet at a barrier. `order`: see Order.
int outrigger_grid_launch(Grid* grid, const char* name, u32 blocks, u32 threads, u32 shared_bytes, void** arguments,
                          u32 argument_count, u32 order) {
    const Entry* entry = nullptr;
    for (const Entry& each : ENTRIES) {
        if (strcmp(each.name, name) == 0) entry = &each;
    }
    if (!entry) return 1;
    if (entry->parameters != argument_count) return 2;
    u32* shared = (u32*)malloc(shared_bytes ? shared_bytes : 1);
    u32* numbers = (u32*)malloc(blocks ? blocks * sizeof(u32) : 1);
    if (threads > THREADS_MAX || !shared || !numbers) {
        free(shared);
        free(numbers);
        return 3;
    }
    grid->kernel = entry->run;
    grid->arguments = arguments;
    running = grid;
    grid_dynamic_shared = shared;
    grid_size = {blocks, 1, 1};
    grid_block_size = {threads, 1, 1};
    arrange(grid, numbers, blocks, (Order)order);
    bool met = true;
    for (u32 i = 0; i < blocks && met; i++) {
        grid_block = {numbers[i], 0, 0};
        // A kernel must not rely on the content of shared memory at the beginning of a block.
        memset(shared, 0xa5, shared_bytes);
        met = run_block(grid, threads, (Order)order);
    }
    running = nullptr;
    free(shared);
    free(numbers);
    return met ? 0 : 4;
}
}
