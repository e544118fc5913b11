#!/bin/sh
# Makes sure that what building needs is there: a C compiler and Rust. Installs the compiler where it may (root on Debian or
# Ubuntu), and otherwise says exactly what is missing.
set -eu
PATH="$HOME/.cargo/bin:$PATH"

if ! command -v cc >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing build-essential (a C compiler is needed for SQLite and zstd) ..."
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq build-essential >/dev/null
    else
        echo "missing: a C compiler. On Debian or Ubuntu: sudo apt-get install build-essential" >&2
        exit 1
    fi
fi
if ! command -v cargo >/dev/null 2>&1; then
    echo "missing: Rust 1.89 or newer. Get it from https://rustup.rs, or: sudo apt-get install rustup && rustup default stable" >&2
    exit 1
fi
have=$(rustc --version | cut -d' ' -f2)
if [ "$(printf '1.89.0\n%s\n' "$have" | sort -V | head -n 1)" != 1.89.0 ]; then
    echo "missing: Rust 1.89 or newer; this is $have. Update it with: rustup update stable" >&2
    exit 1
fi
