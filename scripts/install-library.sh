#!/bin/sh
# Installs the C library: install-library.sh BUILD PREFIX, where BUILD is the folder with liboutrigger_capi.so and .a.
# DESTDIR is put before the places of files, but not into paths inside them.
set -eu
cd "$(dirname "$0")/.."
[ $# = 2 ] || { echo "usage: $0 BUILD PREFIX" >&2; exit 2; }
build=$1 prefix=$2
case $prefix in /*) ;; *) echo "PREFIX must begin with /: $prefix" >&2; exit 2 ;; esac
root=${DESTDIR:-}$prefix
abi=$(sed -n 's/^#define OUTRIGGER_ABI \([0-9]*\)$/\1/p' crates/capi/include/outrigger.h)
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
install -d "$root/lib/pkgconfig" "$root/include"
install -m 644 crates/capi/include/outrigger.h "$root/include/"
install -s -m 755 "$build/liboutrigger_capi.so" "$root/lib/liboutrigger.so.$abi"
ln -sf "liboutrigger.so.$abi" "$root/lib/liboutrigger.so"
install -m 644 "$build/liboutrigger_capi.a" "$root/lib/liboutrigger.a"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" crates/capi/outrigger.pc.in >"$root/lib/pkgconfig/outrigger.pc"
chmod 644 "$root/lib/pkgconfig/outrigger.pc"
# In its own directories the loader uses a cache. With DESTDIR, the scripts of the package refresh
# it.
case "${DESTDIR:-}$prefix" in
/usr | /usr/local)
    if [ "$(id -u)" = 0 ] && command -v ldconfig >/dev/null; then
        ldconfig
    else
        echo "now run ldconfig as root, so that programs find $prefix/lib/liboutrigger.so.$abi"
    fi
    ;;
esac
