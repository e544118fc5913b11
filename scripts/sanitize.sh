#!/bin/sh
# Runs the tests of the CUDA kernels on the host's grid, with the kernels built under
# AddressSanitizer and UndefinedBehaviorSanitizer. The run ends at an access outside of an
# allocation, misaligned or overflowing arithmetic, and a barrier that not all threads reach. Only
# the C++ is instrumented. Rust's allocations go through the same allocator, so an access beyond one
# of them is noticed, too.
set -eu
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
host=$(rustc -vV | sed -n 's/^host: //p')
library=$(c++ -print-file-name=libasan.so)
[ -e "$library" ] || { echo "the C++ compiler has no address sanitizer: install libasan" >&2; exit 1; }
export OUTRIGGER_SANITIZE=1
# The sanitizer's allocator must come before all others; only the tests get it.
runner="CARGO_TARGET_$(echo "$host" | tr 'a-z-' 'A-Z_')_RUNNER"
export "$runner=env LD_PRELOAD=$(readlink -f "$library")"
export ASAN_OPTIONS="detect_leaks=1:detect_stack_use_after_return=0"
export UBSAN_OPTIONS="print_stacktrace=1"
# Fewer cases of each property keep this within minutes.
export PROPTEST_CASES="${PROPTEST_CASES:-30}"
cargo test -p outrigger-offload --features grid --test it grid "$@"
