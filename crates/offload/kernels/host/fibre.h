// Fibres, which run the threads of a block in turn. A switch saves the registers that a call
// preserves, and the stack pointer.
#pragma once

#include <stdint.h>
#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void* save, const void** bottom_old, size_t* size_old);
extern "C" void __asan_unpoison_memory_region(const volatile void* start, size_t size);
#endif

#if defined(__x86_64__)
struct FibreContext {
    void* stack_pointer;
};

// Saves the caller's context in `from` and continues in `to`.
extern "C" void outrigger_fibre_switch(FibreContext* from, FibreContext* to);
asm(R"(
    .text
    .p2align 4
    .hidden outrigger_fibre_switch
    .globl outrigger_fibre_switch
    .type outrigger_fibre_switch, @function
outrigger_fibre_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size outrigger_fibre_switch, .-outrigger_fibre_switch
)");

static inline void fibre_prepare(FibreContext* context, char* stack, size_t size, void (*entry)()) {
    // As after a call of `entry`: six registers, the return address, and a stack that is 8 bytes
    // off a multiple of 16.
    void** top = (void**)(stack + size) - 1;
    top[0] = nullptr;
    top[-1] = (void*)entry;
    for (int i = 2; i <= 7; i++) top[-i] = nullptr;
    context->stack_pointer = top - 7;
}

static inline void fibre_switch(FibreContext* from, FibreContext* to) { outrigger_fibre_switch(from, to); }
#else
#include <ucontext.h>
struct FibreContext {
    ucontext_t context;
};

static inline void fibre_prepare(FibreContext* context, char* stack, size_t size, void (*entry)()) {
    getcontext(&context->context);
    context->context.uc_stack.ss_sp = stack;
    context->context.uc_stack.ss_size = size;
    context->context.uc_link = nullptr;
    makecontext(&context->context, entry, 0);
}

static inline void fibre_switch(FibreContext* from, FibreContext* to) { swapcontext(&from->context, &to->context); }
#endif
