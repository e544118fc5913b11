#!/bin/sh
# Checks for the tools to build and test: C and C++ compilers, OpenSSL's headers and Rust. Installs all
# but Rust if it may (as root on Debian or Ubuntu), and otherwise says exactly what is missing.
#
#   need.sh          does that
#   need.sh eval     also names packages without which the evaluation leaves something out; installs none
set -eu
PATH="$HOME/.cargo/bin:$PATH"

# SQLite is built as SQLCipher, which calls OpenSSL's libcrypto. OPENSSL_DIR, or OPENSSL_INCLUDE_DIR
# with OPENSSL_LIB_DIR, name another one than the system's, as they do for the build.
has_openssl() {
    include=${OPENSSL_INCLUDE_DIR:-${OPENSSL_DIR:+$OPENSSL_DIR/include}}
    echo '#include <openssl/evp.h>' | cc -E ${include:+-I"$include"} - >/dev/null 2>&1
}

packages= lacking=
if ! command -v cc >/dev/null 2>&1 || ! command -v c++ >/dev/null 2>&1; then
    packages=build-essential
    lacking="a C or C++ compiler"
fi
if ! has_openssl; then
    # Without a compiler nobody can tell whether the headers are there.
    packages="${packages:+$packages }libssl-dev"
    lacking="${lacking:+$lacking, }OpenSSL's headers"
fi
if [ -n "$packages" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing $packages (compilers: C for SQLite and zstd, C++ for the tests of GPU kernels; OpenSSL for SQLite) ..."
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages >/dev/null
    else
        echo "missing: $lacking. On Debian or Ubuntu: sudo apt-get install $packages" >&2
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

if [ "${1:-}" = eval ]; then
    lacking=
    for pair in fio:fio samtools:samtools python3:python3 bwrap:bubblewrap mkfs.btrfs:btrfs-progs; do
        command -v "${pair%%:*}" >/dev/null 2>&1 || lacking="$lacking ${pair#*:}"
    done
    # Root mounts without it.
    [ "$(id -u)" = 0 ] || command -v fusermount3 >/dev/null 2>&1 || lacking="$lacking fuse3"
    [ -z "$lacking" ] || echo "some experiments will be skipped. To have them, on Debian or Ubuntu: sudo apt-get install$lacking"
fi
