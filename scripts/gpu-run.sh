#!/bin/sh
# `scripts/gpu.sh build` puts this beside the binaries; start it on a machine with a GPU.
#
#   run.sh test [ARGUMENTS]                       conformance and failures
#   run.sh bench [--quick] [--json FILE] [--device N]
#   run.sh all FOLDER [SECONDS]                   everything: tests, benchmarks, whole puts and gets, with a file for each in FOLDER.
#                                                 480 s by default; a step that fails or takes too long does not stop the others
set -u
here=$(cd "$(dirname "$0")" && pwd)
what=${1:-test}
[ $# -eq 0 ] || shift
PATH="$here:$PATH"
[ ! -e "$here/libnvcomp.so.6" ] || export OUTRIGGER_NVCOMP="$here/libnvcomp.so.6"

# step NAME SECONDS COMMAND…: its output to NAME.txt, and a line here.
step() {
    name=$1 limit=$2
    shift 2
    left=$((until - $(date +%s)))
    [ "$left" -gt 5 ] || { echo "$name: no time left"; return; }
    [ "$limit" -lt "$left" ] || limit=$left
    began=$(date +%s%N)
    timeout -k 5 "$limit" "$@" >"$out/$name.txt" 2>&1
    code=$?
    echo "$name: exit code $code after $((($(date +%s%N) - began) / 1000000)) ms"
}

# ms COMMAND…: its output, and its whole time, which is longer than the time that it reports itself.
ms() {
    began=$(date +%s%N)
    "$@"
    echo "exit code $?, $((($(date +%s%N) - began) / 1000000)) ms"
}

# puts LABEL DATA INIT-OPTIONS: a whole put and a whole get, by the processor alone, with devices that are opened as usual, early, and before the first byte;
# the restored bytes are compared.
puts() {
    label=$1 data=$2
    shift 2
    for round in 1 2 3; do
        for who in off auto auto,open_after=16M auto,open_after=0; do
            rm -rf "$work/store" "$work/back"
            export OUTRIGGER_STORE="$work/store"
            outrigger -q init "$@" || return
            echo "== $label $* $who $round"
            ms outrigger put "$data" --to d --offload "$who" --json
            [ "$round" = 3 ] || continue
            outrigger -q get d "$work/back" && outrigger-workload compare "$data" "$work/back" && echo "the same"
        done
    done
}

# Cases in which devices may cost nothing: puts of three bytes, and puts that end while devices are
# being opened.
small() {
    export OUTRIGGER_STORE="$work/small"
    outrigger -q init || return
    printf abc >"$work/three"
    head -c 64M /dev/urandom >"$work/random"
    for round in 1 2 3 4 5; do
        for who in off auto auto,open_after=0; do
            echo "== three bytes, $who $round"
            ms outrigger -q put "$work/three" --to "three-$who-$round" --no-dedup --offload "$who"
        done
        for who in off auto,open_after=1; do
            echo "== 64 MiB, opening while it ends, $who $round"
            ms outrigger -q put "$work/random" --to "random-$who-$round" --no-dedup --offload "$who"
        done
    done
    outrigger check --read-data
}

all() {
    out=${1:?a folder for what is found} until=$(($(date +%s) + ${2:-480}))
    mkdir -p "$out"
    work=$(mktemp -d -p /dev/shm)
    trap 'rm -rf "$work"' EXIT
    export OUTRIGGER_CALIBRATION="$work/calibration"
    export out until work
    { nvidia-smi; nvidia-smi -q -d CLOCK,PERFORMANCE,PCIE 2>/dev/null; lscpu; } >"$out/machine.txt" 2>&1
    step devices-before 30 outrigger devices
    step small 40 "$here/run.sh" small
    step calibrate 60 outrigger calibrate --max-bytes 64M
    step devices-check 20 outrigger devices --check
    step devices 20 outrigger devices
    outrigger-workload tree "$work/tree" --files 20000 >/dev/null
    mkdir "$work/stream"
    outrigger-workload stream --len 4g --dedup 0.3 --compress 0.5 >"$work/stream/data"
    for one in "tree zstd:1" "stream zstd:1" "stream zstd:3" "stream gzip:6"; do
        set -- $one
        step "puts-$1-$2" 80 "$here/run.sh" puts "$1" "$work/$1" --codec "$2"
    done
    # As on a machine with two processors for each GPU.
    step puts-two-threads 60 taskset -c 0,1 "$here/run.sh" puts tree "$work/tree" --codec gzip:6
    step test 150 "$here/run.sh" test
    step codecs 60 outrigger bench compress --codecs gzip:6,lz4,zstd:1,zstd:3 --blocks 64K,512K,1M --size 256M
    step bench-quick 60 "$here/bench-gpu" --quick --json "$out/bench-quick.json"
    step advise 20 outrigger advise
    step bench 240 "$here/bench-gpu" --json "$out/bench.json"
    for name in small puts devices-check codecs devices calibrate advise bench-quick; do
        for text in "$out/$name"*.txt; do [ ! -e "$text" ] || { echo "=== $text"; tail -n 60 "$text"; }; done
    done >"$out/summary.txt"
}

case $what in
    # One at a time: each needs the device for itself, and one of them breaks it on purpose.
    test)
        "$here/test-gpu" --nocapture --test-threads=1 "$@" || exit
        exec "$here/test-gpu" --nocapture --ignored ;;
    bench) exec "$here/bench-gpu" "$@" ;;
    puts) puts "$@" ;;
    small) small ;;
    all) all "$@" ;;
    *) sed -n '4,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
