#!/bin/sh
# Builds what `make test-gpu` and `make bench-gpu` run into one folder that can be carried to a machine with a GPU: the
# test runner, the benchmark, and run.sh to start them. They need glibc and the driver there, nothing else.
#
#   scripts/gpu.sh build FOLDER
set -eu
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
[ "${1:-}" = build ] && [ -n "${2:-}" ] || { sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$2"
# The path of the executable that cargo says it made.
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
cat > "$2/run.sh" <<'RUN'
#!/bin/sh
# run.sh test | run.sh bench [--quick] [--json FILE] [--device N]
set -eu
here=$(dirname "$0")
what=${1:-test}
shift || true
case $what in
    # One at a time: each wants the device for itself, and one of them breaks it on purpose.
    test) exec "$here/test-gpu" --nocapture --test-threads=1 "$@" ;;
    bench) exec "$here/bench-gpu" "$@" ;;
    *) sed -n '2s/^# //p' "$0"; exit 2 ;;
esac
RUN
chmod +x "$2/run.sh"
ls -l "$2"
