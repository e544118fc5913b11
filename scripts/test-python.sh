#!/bin/sh
# Builds the Python package's native part for tests, and runs its tests in an environment with the
# libraries that read through it:
#
#   test-python.sh [--with PACKAGE]... [ARGUMENT OF PYTEST]...
#   test-python.sh cluster        Dask on four hosts of a cluster (scripts/cluster.sh), as root
#
# Tests of torch and of ray run only if these are named with --with: they are large. All others are
# run, and with OUTRIGGER_REQUIRE=1 none of these is skipped.
set -eu
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(cd "$target" && pwd)
packages=
left="torch ray"
while [ "${1:-}" = --with ]; do
    packages="$packages $2"
    left=$(echo "$left" | sed "s/${2%%\[*}//")
    shift 2
done
python3 -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    { echo "missing: Python 3.11 or newer with venv. On Debian or Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; }
environment=$target/python
[ -x "$environment/bin/pip" ] || python3 -m venv "$environment"
# shellcheck disable=SC2086
"$environment/bin/pip" install --quiet --disable-pip-version-check -r python/tests/requirements.txt $packages
# As the other tests build it, so that nothing is compiled twice.
cargo build --quiet --workspace --all-features --tests --lib --bin outrigger
cp "$target/debug/lib_native.so" python/outrigger/_native.abi3.so
OUTRIGGER_PROGRAM=${OUTRIGGER_PROGRAM:-$target/debug/outrigger}
export OUTRIGGER_PROGRAM PYTHONPATH="$PWD/python" PYTHONDONTWRITEBYTECODE=1
if [ "${1:-}" = cluster ]; then
    shift
    OUTRIGGER_OSDS="0 1 2 3" scripts/cluster.sh up
    trap 'scripts/cluster.sh down' EXIT
    eval "$(scripts/cluster.sh env)"
    export OUTRIGGER_TEST_HOSTS="h0 h1 h2 h3" OUTRIGGER_TEST_BRIDGE=10.77.0.1
    set -- tests/test_cluster.py -s "$@"
else
    for suite in $left cluster; do set -- "$@" --ignore "tests/test_$suite.py"; done
fi
cd python
"$environment/bin/python" -m pytest "$@"
