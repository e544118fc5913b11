#!/bin/bash
# Packs on S3 and RADOS beside the cluster's own limits: rados bench at the same object size, rclone
# and s3fs on the same gateway.
#
#   make cluster && bench/packs.sh OUTRIGGER [MB]
#
# Prints wall time, MB/s and processor seconds of the client for each. The OSDs share the machine's
# processors; their time is in the last column. The data is new and half compressible, and then the
# same again, which is all stored already. Missing tools are left out, and named.
set -euo pipefail
outrigger=$(realpath "${1:?the program to measure}")
mb=${2:-512}
cd "$(dirname "$0")/.."
eval "$(scripts/cluster.sh env)"
conf=$OUTRIGGER_CLUSTER/ceph.conf
work=$(mktemp -d /var/tmp/outrigger-packs.XXXXXX)
bucket=${OUTRIGGER_TEST_S3%%\?*} query=${OUTRIGGER_TEST_S3#*\?}
run=$(date +%s)
endpoint=${query#endpoint=} endpoint=${endpoint%%&*}
trap 'cd /; fusermount -u "$work/s3fs" 2>/dev/null || true; rm -rf "$work"; rados -c "$conf" -p packs cleanup >/dev/null 2>&1 || true' EXIT

# Half of each 64 KiB is random, and half is one byte: zstd halves it, and nothing is stored twice.
data() {
    python3 - "$1" "$mb" <<'PY'
import os, sys
with open(sys.argv[1], "wb") as out:
    for _ in range(int(sys.argv[2]) * 16):
        out.write(os.urandom(32768) + bytes(32768))
PY
}
server_time() {
    local sum=0 pid
    for file in "$OUTRIGGER_CLUSTER"/run/*.pid; do
        pid=$(cat "$file")
        sum=$((sum + $(awk '{print $14 + $15}' "/proc/$pid/stat")))
    done
    echo $sum
}
# measure NAME MB COMMAND...
measure() {
    local name=$1 amount=$2 before after times
    shift 2
    sync; echo 3 > /proc/sys/vm/drop_caches
    before=$(server_time)
    times=$( { /usr/bin/env bash -c 'TIMEFORMAT="%R %U %S"; time "$@" >/dev/null 2>"$0"' "$work/err" "$@"; } 2>&1 | tail -1) ||
        { echo "$name failed:"; tail -3 "$work/err"; return 0; }
    after=$(server_time)
    awk -v n="$name" -v a="$amount" -v s="$(((after - before)))" \
        '{printf "%-44s %7.2f s %8.1f MB/s   client %6.2f s   servers %6.2f s\n", n, $1, a / $1, $2 + $3, s / 100}' <<<"$times"
}

data "$work/new"
echo "$mb MB, half compressible, $(date -u +%F), $(nproc) processors"
seconds=15
for size in 16777216; do
    rados -c "$conf" -p packs bench $seconds write -b $size -t 4 --no-cleanup 2>/dev/null |
        awk '/^Bandwidth/ {print "rados bench write, 16 MiB objects, 4 at once:   " $3 " MB/s"}'
    rados -c "$conf" -p packs bench $seconds seq -t 4 2>/dev/null |
        awk '/^Bandwidth/ {print "rados bench seq:   " $3 " MB/s"}'
    rados -c "$conf" -p packs cleanup >/dev/null 2>&1 || true
done
for engine in rados s3 local; do
    case $engine in
        rados) packs="--packs rados://packs/bench$run?conf=$conf" ;;
        s3) packs="--packs $bucket/bench$run?$query" ;;
        local) packs= ;;
    esac
    # shellcheck disable=SC2086
    "$outrigger" -q -s "$work/$engine" init $packs
    measure "outrigger put, new data, $engine" "$mb" "$outrigger" -q -s "$work/$engine" put "$work/new" --to /new
    measure "outrigger put, all stored already, $engine" "$mb" "$outrigger" -q -s "$work/$engine" put "$work/new" --to /again
    rm -rf "$work/$engine/cache"
    measure "outrigger get, nothing kept nearby, $engine" "$mb" "$outrigger" -q -s "$work/$engine" get /new "$work/out"
    cmp "$work/new" "$work/out" && rm "$work/out"
    [ $engine = local ] || measure "outrigger get, kept on the local disk, $engine" "$mb" "$outrigger" -q -s "$work/$engine" get /new "$work/out"
    rm -f "$work/out"
done
if command -v rclone >/dev/null; then
    export RCLONE_CONFIG_GW_TYPE=s3 RCLONE_CONFIG_GW_PROVIDER=Ceph RCLONE_CONFIG_GW_ENV_AUTH=true RCLONE_CONFIG_GW_ENDPOINT=$endpoint
    measure "rclone copyto, to the gateway" "$mb" rclone copyto "$work/new" "gw:packs/rclone$run/new"
    measure "rclone copyto, from the gateway" "$mb" rclone copyto "gw:packs/rclone$run/new" "$work/out"
    cmp "$work/new" "$work/out"; rm -f "$work/out"
    rclone purge "gw:packs/rclone$run" 2>/dev/null || true
else
    echo "left out: rclone is not installed"
fi
if command -v s3fs >/dev/null && [ -e /dev/fuse ]; then
    mkdir -p "$work/s3fs"
    echo "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" > "$work/s3fs.key"; chmod 600 "$work/s3fs.key"
    s3fs packs "$work/s3fs" -o "url=$endpoint,use_path_request_style,passwd_file=$work/s3fs.key" 2>/dev/null &&
        measure "s3fs, cp to the gateway" "$mb" cp "$work/new" "$work/s3fs/s3fs$run" && rm -f "$work/s3fs/s3fs$run"
else
    echo "left out: s3fs is not installed, or there is no /dev/fuse"
fi
