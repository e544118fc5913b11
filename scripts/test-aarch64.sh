#!/bin/sh
# Tests the code for ARM processors on an emulated one (qemu): scans, hashes, windows and every
# other operation of the processor as a device, and lints it. Installs nothing, and says exactly
# what is missing.
#
# Emulation tests results, never speed. On an ARM machine `make test` tests the same without it.
set -eu
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
target=aarch64-unknown-linux-gnu
lacking=
for pair in qemu-aarch64-static:qemu-user-static aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || lacking="$lacking ${pair#*:}"
done
[ -e /usr/aarch64-linux-gnu/include/stdio.h ] || lacking="$lacking libc6-dev-arm64-cross"
how=${lacking:+apt-get install$lacking}
[ -d "$(rustc --print target-libdir --target $target 2>/dev/null)" ] || how="${how:+$how && }rustup target add $target"
if [ -n "$how" ]; then
    echo "skipped: the tests on an emulated ARM processor: $how"
    [ -z "${OUTRIGGER_REQUIRE:-}" ] || exit 1
    exit 0
fi
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu"
eval "${CARGO:-cargo} clippy --target $target -p outrigger-format -p outrigger-offload --all-targets -- -D warnings"
eval "${CARGO:-cargo} test --target $target -p outrigger-offload --lib --test it -- cpu:: table:: conformance:: vectors::"
