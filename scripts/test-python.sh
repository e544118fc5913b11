#!/bin/sh
# Builds the Python package's native part for tests, and runs its tests in an environment with the
# libraries that read through it:
#
#   test-python.sh [--with PACKAGE]... [ARGUMENT OF PYTEST]...
#
# What is not named with --with is tested only if it is small: torch and ray are left out, and the
# tests that need them say so.
set -eu
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(cd "$target" && pwd)
packages="pytest fsspec numpy pandas pyarrow zarr xarray duckdb safetensors dask[bag,distributed]"
while [ "${1:-}" = --with ]; do
    packages="$packages $2"
    shift 2
done
python3 -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    { echo "missing: Python 3.11 or newer with venv. On Debian or Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; }
environment=$target/python
[ -x "$environment/bin/pip" ] || python3 -m venv "$environment"
# shellcheck disable=SC2086
"$environment/bin/pip" install --quiet --disable-pip-version-check $packages
# As the other tests build it, so that nothing is compiled twice.
cargo build --quiet --workspace --all-features --bin outrigger --lib
cp "$target/debug/lib_native.so" python/outrigger/_native.abi3.so
OUTRIGGER_PROGRAM=${OUTRIGGER_PROGRAM:-$target/debug/outrigger}
export OUTRIGGER_PROGRAM PYTHONPATH="$PWD/python" PYTHONDONTWRITEBYTECODE=1
cd python
exec "$environment/bin/python" -m pytest "$@"
