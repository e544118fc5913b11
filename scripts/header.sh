#!/bin/sh
# cbindgen makes the C header from the sources of crates/capi. `build` writes it, `check` says
# whether it is current. cbindgen is fetched and built into the target folder if this version is
# missing.
set -eu
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
version=0.29.4
header=crates/capi/include/outrigger.h
tools=${CARGO_TARGET_DIR:-target}/tools
cbindgen=cbindgen
if [ "$(cbindgen --version 2>/dev/null)" != "cbindgen $version" ]; then
    cbindgen=$tools/bin/cbindgen
    if [ "$("$cbindgen" --version 2>/dev/null)" != "cbindgen $version" ]; then
        cargo install cbindgen --locked --quiet --version "=$version" --root "$tools" --target-dir "$tools/build"
        rm -rf "$tools/build"
    fi
fi
made=$(mktemp)
trap 'rm -f "$made"' EXIT
"$cbindgen" --quiet --config crates/capi/cbindgen.toml --lockfile Cargo.lock crates/capi --output "$made"
case ${1:-} in
build) cp "$made" "$header" ;;
check) diff -u "$header" "$made" || { echo "$header is not what the sources make: scripts/header.sh build" >&2; exit 1; } ;;
*) echo "usage: $0 build|check" >&2; exit 2 ;;
esac
