#!/bin/sh
# Puts the benchmark's inputs into $BENCH_DATA (default: ./bench-data).
#
#   linux-a/ linux-b/        two versions of Debian's linux-source-6.1, unpacked (about 1.3 GB and 78,000 files each)
#   tars/linux-{a,b}.tar     the same two as plain tar files
#   cores/core.1 .. core.8   images of one BLAST search, taken with gdb's gcore while it runs
#   random.bin               1 GiB that neither compresses nor repeats
#   DATASET                  the origin of the data, one `name value` per line, which records copy
#
# Runs on a fresh Debian 12 as root (it installs gdb, xz-utils and ncbi-blast+ if they are missing,
# unless BENCH_NO_INSTALL=1); elsewhere it says what is missing. Existing parts are kept: each is
# made under a temporary name and renamed when complete. LINUX_A and LINUX_B choose other versions
# of the package.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
data=${BENCH_DATA:-./bench-data}
mkdir -p "$data/tars"
data=$(cd "$data" && pwd)

say() { printf 'data: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

install() { DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$1" >/dev/null; }

need() { # need COMMAND PACKAGE: the command is there, or gets installed, or we say what is missing
    command -v "$1" >/dev/null 2>&1 && return 0
    if [ "$(id -u)" = 0 ] && [ "${BENCH_NO_INSTALL:-0}" != 1 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing $2 for $1"
        install "$2" 2>/dev/null || { apt-get update >/dev/null && install "$2"; } || die "could not install $2"
    else
        die "missing: $1 (Debian package $2)"
    fi
}

record() { # record NAME VALUE: one line in DATASET, replacing an older one
    { grep -v "^$1 " "$data/DATASET" 2>/dev/null || true; printf '%s %s\n' "$1" "$2"; } >"$data/DATASET.new"
    mv "$data/DATASET.new" "$data/DATASET"
}

package_versions() {
    apt-cache madison linux-source-6.1 | awk -F'|' '{ gsub(/ /, "", $2); print $2 }' | sort -V -u
}

linux_tar() { # linux_tar LETTER VERSION: tars/linux-LETTER.tar out of the Debian package of that version
    [ -f "$data/tars/linux-$1.tar" ] && return 0
    say "linux-source-6.1 $2 as linux-$1"
    mkdir -p "$data/deb"
    (cd "$data/deb" && apt-get download "linux-source-6.1=$2" >/dev/null 2>&1) ||
        die "apt-get download linux-source-6.1=$2 failed"
    dpkg-deb --fsys-tarfile "$data/deb/linux-source-6.1_$2_all.deb" |
        tar -xO ./usr/src/linux-source-6.1.tar.xz | xz -dc -T0 >"$data/tars/linux-$1.tar.part"
    mv "$data/tars/linux-$1.tar.part" "$data/tars/linux-$1.tar"
    rm -r "$data/deb"
    record "linux-$1" "$2"
}

linux_tree() { # linux_tree LETTER: the tar unpacked, modes and times kept
    [ -d "$data/linux-$1" ] && return 0
    rm -rf "$data/linux-$1.part"
    mkdir "$data/linux-$1.part"
    tar -xpf "$data/tars/linux-$1.tar" -C "$data/linux-$1.part" --strip-components=1 --numeric-owner
    mv "$data/linux-$1.part" "$data/linux-$1"
}

cores() { # eight images of one running search; the sequences are made from a seed, the search is real
    [ -d "$data/cores" ] && [ -f "$data/cores/core.8" ] && return 0
    need gdb gdb
    need tblastx ncbi-blast+
    need python3 python3
    work=$data/cores.part
    rm -rf "$work" && mkdir "$work"
    python3 "$here/sequences.py" "$work/db.fa" "$work/query.fa"
    makeblastdb -in "$work/db.fa" -dbtype nucl -out "$work/db" >/dev/null
    tblastx -query "$work/query.fa" -db "$work/db" -outfmt 6 -out "$work/hits" &
    search=$!
    trap 'kill "$search" 2>/dev/null || true' EXIT
    sleep "${CORES_WARM_UP:-10}"
    n=1
    while [ "$n" -le 8 ]; do
        kill -0 "$search" 2>/dev/null ||
            die "the search ended before image $n: lower CORES_EVERY (now ${CORES_EVERY:-8} s)"
        gcore -o "$work/core" "$search" >/dev/null 2>&1 ||
            die "gcore failed: may this user trace processes (ptrace_scope, container)?"
        mv "$work/core.$search" "$work/image.$n"
        say "core.$n: $(du -k --apparent-size "$work/image.$n" | cut -f1) KiB"
        n=$((n + 1))
        sleep "${CORES_EVERY:-8}"
    done
    kill "$search" 2>/dev/null || true
    wait "$search" 2>/dev/null || true
    trap - EXIT
    mkdir "$work/cores"
    for n in 1 2 3 4 5 6 7 8; do mv "$work/image.$n" "$work/cores/core.$n"; done
    rm -rf "$data/cores" && mv "$work/cores" "$data/cores" && rm -rf "$work"
    record cores "$(tblastx -version | head -1 | tr -s ' ')"
}

random() {
    [ -f "$data/random.bin" ] && return 0
    head -c 1073741824 /dev/urandom >"$data/random.bin.part"
    mv "$data/random.bin.part" "$data/random.bin"
}

free_kb=$(df -k --output=avail "$data" | tail -1)
[ -d "$data/linux-b" ] || [ "$free_kb" -gt 15000000 ] || die "15 GB are needed in $data, $((free_kb / 1000000)) are free"

if [ ! -f "$data/tars/linux-a.tar" ] || [ ! -f "$data/tars/linux-b.tar" ]; then
    command -v apt-cache >/dev/null 2>&1 ||
        die "missing: apt, to get Debian's linux-source packages; or put other trees at $data/linux-{a,b} and tars/"
    need dpkg-deb dpkg
    need xz xz-utils
    a=${LINUX_A:-$(package_versions | head -1)}
    b=${LINUX_B:-$(package_versions | tail -1)}
    if [ -z "$a" ]; then
        say "no linux-source-6.1 known yet: apt-get update"
        apt-get update >/dev/null || die "apt-get update failed (root?)"
        a=${LINUX_A:-$(package_versions | head -1)}
        b=${LINUX_B:-$(package_versions | tail -1)}
    fi
    [ -n "$a" ] || die "no package linux-source-6.1: this needs Debian 12's sources, main and security"
    [ "$a" != "$b" ] || die "only linux-source-6.1 $a is on offer: add bookworm-security, or set LINUX_A and LINUX_B"
    linux_tar a "$a"
    linux_tar b "$b"
fi
linux_tree a
linux_tree b
random
cores
say "ready in $data"
