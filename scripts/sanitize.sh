#!/bin/sh
# Runs the tests of the CUDA kernels on the host's grid with the kernels built under AddressSanitizer and
# UndefinedBehaviorSanitizer: accesses outside of what was allocated, misaligned or overflowing arithmetic, and barriers
# that not all threads reach end the run. Only the C++ is instrumented; Rust's allocations go through the same allocator,
# so an access beyond one of them is seen too.
set -eu
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}/sanitized
flags="-fsanitize=address,undefined"
export CARGO_TARGET_DIR="$target"
export CXXFLAGS="$flags -fno-sanitize-recover=all -fno-omit-frame-pointer -g"
export RUSTFLAGS="-C linker=c++ -C link-arg=-fsanitize=address -C link-arg=-fsanitize=undefined"
# The stacks of fibres are mapped for the life of a grid; everything else that is not freed is a leak.
export ASAN_OPTIONS="detect_leaks=1:detect_stack_use_after_return=0:strict_init_order=1"
export UBSAN_OPTIONS="print_stacktrace=1"
# With --target, build scripts and macros are built without the flags.
# Fewer cases of each property keep this within minutes.
PROPTEST_CASES=${PROPTEST_CASES:-30} cargo test --target "$host" --config 'profile.dev.package."*".opt-level=1' \
    -p outrigger-offload --features grid --test grid "$@"
