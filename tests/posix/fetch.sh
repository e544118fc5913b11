#!/bin/sh
# Fetches and builds test suites of other projects into DIR. This tree has none of their files.
#
#   tests/posix/fetch.sh [--install] DIR
#
#   DIR/pjdfstest      the shell scripts and their program      https://github.com/pjd/pjdfstest
#   DIR/rs/bin         the crate pjdfstest                      crates.io
#   DIR/xfstests       xfstests, with fsx and fsstress          git.kernel.org, xfstests-dev
#
# Suites that are built for these revisions already are kept. --install installs the Debian packages
# that they need, as root.
#
# Environment: PJDFSTEST_SOURCE, XFSTESTS_SOURCE      another repository or a local one
#              PJDFSTEST_REVISION, XFSTESTS_REVISION  another revision
#              PJDFSTEST_CRATE                        another version of the crate
set -eu
pjd_source=${PJDFSTEST_SOURCE:-https://github.com/pjd/pjdfstest.git}
pjd_revision=${PJDFSTEST_REVISION:-85a8aea9e685999ef0540392fd80535f873d7ff7}
xfs_source=${XFSTESTS_SOURCE:-https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git}
xfs_revision=${XFSTESTS_REVISION:-63a29724a85f1999e49bf0a9bf0d22643b6116e5}
crate=${PJDFSTEST_CRATE:-0.2.2}

if [ "${1:-}" = --install ]; then
    shift
    apt-get update -qq || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq acl attr autoconf automake bc build-essential dbench e2fsprogs \
        file fio gawk gettext git libacl1-dev libaio-dev libattr1-dev libcap-dev libcap2-bin libgdbm-dev libssl-dev \
        libtool libtool-bin liburing-dev perl pkg-config postgresql psmisc python3 quota stress-ng uuid-dev \
        xfslibs-dev xfsprogs
fi
[ $# = 1 ] || { sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
PATH=$HOME/.cargo/bin:$PATH

# get NAME SOURCE REVISION: 1 when it is there and built already
get() {
    [ "$(cat "$dir/$1.built" 2>/dev/null)" != "$3" ] || return 1
    rm -rf "${dir:?}/$1" "$dir/$1.built"
    git clone -q "$2" "$dir/$1"
    git -C "$dir/$1" checkout -q "$3"
}
# quietly NAME COMMAND...: its output only if it fails
quietly() {
    name=$1; shift
    echo "building $name ..."
    "$@" >"$dir/$name.log" 2>&1 || { tail -20 "$dir/$name.log" >&2; echo "$name does not build: $dir/$name.log" >&2; exit 1; }
}

if get pjdfstest "$pjd_source" "$pjd_revision"; then
    cd "$dir/pjdfstest"
    quietly pjdfstest sh -c 'autoreconf -ifs && ./configure && make pjdfstest'
    echo "$pjd_revision" >"$dir/pjdfstest.built"
fi
if [ "$(cat "$dir/rs.built" 2>/dev/null)" != "$crate" ]; then
    quietly rs env CARGO_TARGET_DIR="$dir/rs-target" cargo install pjdfstest --locked --version "$crate" --root "$dir/rs" --force
    rm -rf "$dir/rs-target"
    echo "$crate" >"$dir/rs.built"
fi
if get xfstests "$xfs_source" "$xfs_revision"; then
    cd "$dir/xfstests"
    # xfstests knows FUSE as the type `fuse`, and unmounts by the source, which a store's directory
    # cannot be.
    sed -i "s|-e 's/fuse.ceph-fuse/ceph-fuse/'|& -e 's/fuse[.]outrigger/fuse/'|
        /^_scratch_unmount()/,/^}/s/^\tbtrfs)/\tbtrfs|fuse)/
        /^_test_unmount()/,/^}/s/_unmount \$TEST_DEV/_unmount \$TEST_DIR/" common/rc
    [ "$(git diff --numstat common/rc | cut -f1,2)" = "3	3" ] || { echo "common/rc of xfstests is another one than expected" >&2; exit 1; }
    quietly xfstests make -j "$(nproc)"
    echo "$xfs_revision" >"$dir/xfstests.built"
fi
