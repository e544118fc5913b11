#!/bin/sh
# Builds what `make test-gpu` and `make bench-gpu` run into one folder that can be carried to a machine with a GPU: the
# test runner, the benchmark, the program, and run.sh to start them. They need glibc, OpenSSL 3 (libcrypto.so.3) and the
# driver there, nothing else.
#
#   scripts/gpu.sh build FOLDER      NVCOMP=libnvcomp.so.6 takes that library along
set -eu
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
[ "${1:-}" = build ] && [ -n "${2:-}" ] || { sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$2"
# The path of the executable that cargo reports.
executable() {
    cargo "$@" --message-format=json 2>/dev/null | python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("reason") == "compiler-artifact" and message.get("executable") and message["target"]["name"] == "gpu":
        print(message["executable"])
' | tail -n 1
}
cargo test --release -p outrigger-offload --test gpu --no-run
cp "$(executable test --release -p outrigger-offload --test gpu --no-run)" "$2/test-gpu"
cargo bench -p outrigger-offload --bench gpu --no-run
cp "$(executable bench -p outrigger-offload --bench gpu --no-run)" "$2/bench-gpu"
cargo build --release -p outrigger -p outrigger-workload
target=${CARGO_TARGET_DIR:-target}
cp "$target/release/outrigger" "$target/release/outrigger-workload" "$2/"
strip "$2/outrigger" "$2/test-gpu" "$2/bench-gpu"
# NVIDIA's compressor is compared with ours if its library is given:
# https://pypi.org/project/nvidia-libnvcomp-cu12/
[ -z "${NVCOMP:-}" ] || cp "$NVCOMP" "$2/libnvcomp.so.6"
cp scripts/gpu-run.sh "$2/run.sh"
ls -l "$2"
