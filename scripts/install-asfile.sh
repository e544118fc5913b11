#!/bin/sh
# Installs the libraries for components: install-asfile.sh PREFIX puts the C library libasfile.a
# with its header, and the Python module, below PREFIX. DESTDIR is put before the places of files,
# but not into paths inside them. CC and CFLAGS are make's.
set -eu
cd "$(dirname "$0")/.."
[ $# = 1 ] || { echo "usage: $0 PREFIX" >&2; exit 2; }
prefix=$1
case $prefix in /*) ;; *) echo "PREFIX must begin with /: $prefix" >&2; exit 2 ;; esac
root=${DESTDIR:-}$prefix
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
from=crates/active/asfile
install -d "$root/lib/pkgconfig" "$root/include" "$root/share/outrigger/python"
install -m 644 "$from/asfile.h" "$root/include/"
install -m 644 "$from/asfile.py" "$root/share/outrigger/python/"
cc=${CC:-cc}
if ! command -v "$cc" >/dev/null; then
    echo "there is no C compiler ($cc), so libasfile.a was left out; the header and the Python module are installed"
    exit 0
fi
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
# shellcheck disable=SC2086 # several words
"$cc" ${CFLAGS:--O2} -fPIC -c "$from/asfile.c" -o "$build/asfile.o"
ar rcs "$build/libasfile.a" "$build/asfile.o"
install -m 644 "$build/libasfile.a" "$root/lib/"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$from/asfile.pc.in" >"$root/lib/pkgconfig/asfile.pc"
chmod 644 "$root/lib/pkgconfig/asfile.pc"
