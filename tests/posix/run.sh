#!/bin/sh
# Runs test suites against a directory: of a mount, or of any other file system.
#
#   tests/posix/run.sh [--install] [--keep] DIR [SUITE ...]        without a suite: all
#
#   pjdfstest    POSIX's rules for each call; exclusions in pjdfstest.exclusions, which have to fail     (root)
#   fsx          random reads, writes, truncations, ... of one file, with and without mmap
#   fio-verify   sequential and random writes, read back by checksums, and again after REMOUNT
#   stress       several processes: renames, appends, locks, races; all content checked, and again after REMOUNT
#   ack          random operations and what must be there afterwards, byte by byte, and again after REMOUNT
#   git          commits, clones, checkouts, gc, fsck
#   build        cargo builds a crate of this project; a second build finds nothing to do
#   sqlite       several writers, integrity_check, sums; transactions/s
#   pgbench      PostgreSQL with all its data there; balances, checksums of pages and tables; transactions/s   (root)
#
# Each suite works in DIR/posix-SUITE, which is removed when it passed (--keep leaves it). Exit code: 0 all passed,
# 1 something failed, 2 usage, 3 nothing failed but something was left out, with the reason.
#
# Environment: REMOUNT     a command that unmounts and mounts DIR again; without it that part is left out and named
#              PJDFSTEST   directory of a built pjdfstest (program and tests/)    EXCLUSIONS  another list
#              FSX, WORKLOAD  the programs fsx and outrigger-workload             LOGS        where the output goes
#              FSX_OPS [20000]  FSX_SEEDS [1 2 3 4]  STRESS_STEPS [5000]  ACK_OPS [20000]  FIO_SIZE [64m]
#              PG_SCALE [10]  PG_SECONDS [30]  SQLITE_SECONDS [10]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
project=$(cd "$here/../.." && pwd)
all='pjdfstest fsx fio-verify stress ack git build sqlite pgbench'

say() { printf '%s\n' "$*"; }
usage() { sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" >&2; exit 2; }

keep=0
while :; do
    case ${1:-} in
    --install)
        [ "$(id -u)" = 0 ] || { say "--install needs root"; exit 2; }
        apt-get update -qq || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq fio git perl python3 sqlite3 postgresql acl attr \
            autoconf automake build-essential
        shift ;;
    --keep) keep=1; shift ;;
    -*) usage ;;
    *) break ;;
    esac
done
[ $# -ge 1 ] || usage
[ -d "$1" ] || { say "no directory: $1"; exit 2; }
dir=$(cd "$1" && pwd); shift
suites=${*:-$all}
for suite in $suites; do
    case " $all " in *" $suite "*) ;; *) say "no suite $suite; there are: $all"; exit 2 ;; esac
done
logs=${LOGS:-$(mktemp -d "${TMPDIR:-/tmp}/posix.XXXXXX")}
mkdir -p "$logs"
logs=$(cd "$logs" && pwd)

# --- help for the suites ---------------------------------------------------------------------------------------

skip() { say "$*" >"$logs/skip"; exit 3; } # leaves the suite, which runs in a shell of its own
note() { say "  left out: $*" >>"$logs/notes"; }
fail() { say "FAILED: $*"; exit 1; }
need() { command -v "$1" >/dev/null 2>&1 || skip "$1 is missing: $2"; }
need_root() { [ "$(id -u)" = 0 ] || skip "only root can run it"; }
workload() {
    if [ -z "${WORKLOAD:-}" ]; then
        for WORKLOAD in "$(command -v outrigger-workload || true)" "${CARGO_TARGET_DIR:-$project/target}/release/outrigger-workload"; do
            [ -x "$WORKLOAD" ] && return 0
        done
        skip "outrigger-workload is missing: cargo build --release -p outrigger-workload, or set WORKLOAD"
    fi
}
# Unmounts and mounts again, so that later reads come from the store. No file of ours may be open in DIR.
remount() {
    [ -n "${REMOUNT:-}" ] || { note "the check after a remount (REMOUNT is not set)"; return 1; }
    cd /
    sh -c "$REMOUNT" || fail "REMOUNT: $REMOUNT"
    [ -d "$work" ] || fail "$work is gone after REMOUNT"
    cd "$work"
}
sums() { find . -type f -exec sha256sum {} + | sort -k 2; find . ! -type d -printf '%p %y %m %s %n %l\n' | sort; }
same_after_remount() {
    sums >"$logs/before"
    if remount; then
        sums >"$logs/after"
        cmp "$logs/before" "$logs/after" || { diff "$logs/before" "$logs/after" | head -20; fail "differs after REMOUNT"; }
    fi
}

# --- the suites ------------------------------------------------------------------------------------------------

suite_pjdfstest() {
    need_root
    need perl "apt-get install perl"
    suite=${PJDFSTEST:-$(dirname "$(command -v pjdfstest || echo none/none)")}
    [ -x "$suite/pjdfstest" ] && [ -d "$suite/tests" ] ||
        skip "PJDFSTEST is not the directory of a built pjdfstest (its source, then: autoreconf -ifs && ./configure && make pjdfstest)"
    python3 "$here/pjdfstest.py" "$suite" "$work" "${EXCLUSIONS:-$here/pjdfstest.exclusions}"
}

suite_fsx() {
    fsx=${FSX:-fsx}
    need "$fsx" "cargo install fsx"
    more=
    : >probe
    for kind in posix_fallocate= punch_hole=--punch-hole; do
        truncate -s 65536 probe
        # shellcheck disable=SC2086
        if fallocate ${kind#*=} --offset 4096 --length 8192 probe 2>/dev/null; then
            more="$more
${kind%=*} = 3"
        else note "${kind%=*}, which this file system does not offer"; fi
    done
    rm -f probe
    common="close_open = 2
read = 10
write = 10
truncate = 5
fsync = 1
fdatasync = 1
sendfile = 2
posix_fadvise = 1
copy_file_range = 3$more"
    printf '[weights]\n%s\nmapread = 10\nmapwrite = 10\ninvalidate = 1\n' "$common" >"$logs/fsx-mmap.toml"
    printf '[weights]\n%s\nmapread = 0\nmapwrite = 0\n' "$common" >"$logs/fsx-no-mmap.toml"
    printf 'flen = 4194304\n[opsize]\nmax = 1048576\nmin = 1\n[weights]\n%s\nmapread = 5\nmapwrite = 5\n' "$common" >"$logs/fsx-large.toml"
    mkdir -p "$logs/fsx"
    for kind in mmap no-mmap large; do
        ops=${FSX_OPS:-20000}
        [ $kind != large ] || ops=$((ops / 10))
        for seed in ${FSX_SEEDS:-1 2 3 4}; do
            say "fsx $kind, seed $seed, $ops operations"
            "$fsx" -q -f "$logs/fsx-$kind.toml" -S "$seed" -N "$ops" -P "$logs/fsx" "$work/file-$kind-$seed" ||
                fail "fsx $kind with seed $seed; what was expected is in $logs/fsx"
        done
    done
    same_after_remount
}

suite_fio_verify() {
    need fio "apt-get install fio"
    size=${FIO_SIZE:-64m}
    job() { # job NAME OPTIONS: the same job writes and verifies, and after a remount verifies only
        name=$1; shift
        echo "--name=$name --filename=$name --size=$size --ioengine=psync --verify=crc32c --verify_fatal=1 --randseed=7 \
--allrandrepeat=1 --buffer_compress_percentage=50 --refill_buffers --group_reporting --output-format=terse $*"
    }
    : >"$logs/fio-jobs"
    {
        job sequential --rw=write --bs=1m --end_fsync=1
        job small-sequential --rw=write --bs=4k
        job random --rw=randwrite --bs=4k --end_fsync=1
        job random-sync --rw=randwrite --bs=4k --fsync=16 --size=8m
        # Its full length at once: fio chooses other blocks to verify if it finds the file shorter.
        job mixed --rw=randwrite --bsrange=512-64k --bs_unaligned=1 --fallocate=truncate
        job mapped --rw=randwrite --bs=4k --ioengine=mmap
        if dd if=/dev/zero of=probe bs=4096 count=1 oflag=direct 2>/dev/null; then
            job direct --rw=randwrite --bs=4k --direct=1
        else note "direct I/O, which this file system does not offer"; fi
    } >"$logs/fio-jobs"
    rm -f probe
    run() { # run OPTIONS: all jobs
        while read -r line; do
            set -- $line "$@"
            fio "$@" >"$logs/fio-out" 2>&1 || { tail -5 "$logs/fio-out"; fail "fio $*"; }
            shift "$(echo "$line" | wc -w)"
            say "fio ${line%% --filename*} $*"
        done <"$logs/fio-jobs"
    }
    run --do_verify=1
    # Unverified blocks would pass silently: the checks of this suite have to see a wrong byte.
    cp random random.copy
    printf x | dd of=random.copy bs=1 seek=12345 conv=notrunc 2>/dev/null
    # shellcheck disable=SC2046
    if fio $(grep -e '--name=random ' "$logs/fio-jobs") --filename=random.copy --verify_only=1 >/dev/null 2>&1; then
        fail "fio did not notice a wrong byte"
    fi
    rm random.copy
    if remount; then run --verify_only=1; fi
}

suite_stress() {
    workload
    for seed in 1 2; do
        mkdir "seed$seed"
        "$WORKLOAD" stress "seed$seed" --seed $seed --jobs 4 --steps "${STRESS_STEPS:-5000}" || fail "stress, seed $seed"
    done
    same_after_remount
}

suite_ack() {
    workload
    for seed in 1 2; do
        rm -f "$logs/ack$seed"
        "$WORKLOAD" ackwrite "ack$seed" "$logs/ack$seed" --seed $seed --ops "${ACK_OPS:-20000}" || fail "ackwrite, seed $seed"
        "$WORKLOAD" ackverify "ack$seed" "$logs/ack$seed" || fail "ackverify, seed $seed"
    done
    if remount; then
        for seed in 1 2; do
            "$WORKLOAD" ackverify "ack$seed" "$logs/ack$seed" || fail "ackverify after REMOUNT, seed $seed"
        done
    fi
}

suite_git() {
    need git "apt-get install git"
    workload
    export GIT_CONFIG_NOSYSTEM=1 HOME="$logs" GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=t@example.org \
        GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=t@example.org
    git init -q -b main source
    "$WORKLOAD" tree source/tree --seed 5 --files 1500 --max 200k >/dev/null
    for n in 1 2 3; do
        git -C source add -A
        git -C source commit -q -m "version $n"
        git -C source tag "v$n"
        [ $n = 3 ] || "$WORKLOAD" mutate source/tree --seed $n >/dev/null
    done
    git clone -q source linked
    git clone -q --no-local source copied
    for clone in linked copied; do
        for tag in v1 v3 v2; do
            git -C $clone -c advice.detachedHead=false checkout -q $tag
            [ -z "$(git -C $clone status --porcelain)" ] || fail "$clone is not clean at $tag"
            mkdir -p "$logs/tree"
            git -C source archive $tag | tar -x -C "$logs/tree"
            diff -r --no-dereference --exclude=.git "$logs/tree" $clone || fail "$clone differs at $tag"
            rm -rf "$logs/tree"
        done
        git -C $clone branch -q work && git -C $clone checkout -q work && git -C $clone merge -q v3
        git -C $clone gc -q --prune=now
        git -C $clone fsck --full --strict --no-dangling || fail "fsck of $clone"
    done
    same_after_remount
    git -C copied fsck --full --strict --no-dangling || fail "fsck"
    [ -z "$(git -C copied status --porcelain)" ] || fail "copied is not clean at the end"
}

suite_build() {
    PATH="$HOME/.cargo/bin:$PATH"
    need cargo "https://rustup.rs, or apt-get install rustup"
    mkdir source
    (cd "$project" && tar -cf - Cargo.toml Cargo.lock crates --exclude=target) | tar -xf - -C source
    cd source
    build() { CARGO_TARGET_DIR=$work/target cargo build --locked -p outrigger-workload >"$logs/cargo" 2>&1; }
    build || { tail -20 "$logs/cargo"; fail "cargo build"; }
    grep -q 'Compiling outrigger-workload' "$logs/cargo" || fail "cargo compiled nothing"
    "$work/target/debug/outrigger-workload" --help >/dev/null || fail "what was built does not run"
    build || fail "the second build"
    if grep Compiling "$logs/cargo"; then fail "the second build compiled again: times are not kept"; fi
    sleep 0.01
    touch crates/workload/src/rng.rs
    build || fail "the third build"
    grep -q 'Compiling outrigger-workload' "$logs/cargo" || fail "a touched source was not compiled again"
    cd "$work"
    if remount; then
        cd source
        build || fail "the build after REMOUNT"
        if grep Compiling "$logs/cargo"; then fail "the build after REMOUNT compiled again: times are not kept"; fi
        cd "$work"
    fi
}

suite_sqlite() {
    need python3 "apt-get install python3"
    for mode in delete wal; do
        python3 "$here/sqlite.py" run "$work/$mode.db" --mode $mode --seconds "${SQLITE_SECONDS:-10}" || fail "sqlite, $mode"
    done
    if remount; then
        for mode in delete wal; do
            python3 "$here/sqlite.py" check "$work/$mode.db" || fail "sqlite after REMOUNT, $mode"
        done
    fi
}

suite_pgbench() {
    need_root
    bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
    [ -x "${bin:-none}/initdb" ] && [ -x "$bin/pgbench" ] || skip "PostgreSQL is missing: apt-get install postgresql"
    id postgres >/dev/null 2>&1 || skip "there is no user postgres: apt-get install postgresql"
    socket=$(mktemp -d) && chown postgres "$socket"
    chown postgres "$work"
    as() { (cd / && PGHOST=$socket PGPORT=54329 setpriv --reuid=postgres --regid=postgres --init-groups "$@"); }
    as test -w "$work" || skip "user postgres may not enter $work (is it mounted without allow_other, or below a private directory?)"
    pg() { as "$bin/pg_ctl" -D "$work/data" -w -t 120 -l "$socket/log" "$@" >/dev/null || { tail -20 "$socket/log"; fail "pg_ctl $*"; }; }
    sql() { as "$bin/psql" -XAtq -v ON_ERROR_STOP=1 -d postgres -c "$1"; }
    up() { pg start -o "-k $socket -p 54329 -c listen_addresses="; }
    tables() {
        for table in accounts branches tellers history; do
            sql "select '$table', count(*), sum(hashtextextended(t::text, 0)::numeric) from pgbench_$table t"
        done
    }
    as "$bin/initdb" -D "$work/data" -k -A trust -U postgres >"$logs/initdb" 2>&1 || { tail "$logs/initdb"; fail initdb; }
    up
    trap 'as "$bin/pg_ctl" -D "$work/data" -m immediate stop >/dev/null 2>&1 || true; rm -rf "$socket"' EXIT
    as "$bin/pgbench" -i -q -s "${PG_SCALE:-10}" postgres >"$logs/pgbench-init" 2>&1 || { tail "$logs/pgbench-init"; fail "pgbench -i"; }
    as "$bin/pgbench" -c 4 -j 2 -T "${PG_SECONDS:-30}" postgres >"$logs/pgbench" 2>&1 || { tail "$logs/pgbench"; fail "pgbench"; }
    grep -e 'transactions actually' -e 'tps' "$logs/pgbench"
    done=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' "$logs/pgbench")
    [ "$done" -gt 0 ] || fail "no transaction"
    check() {
        [ "$(sql 'select count(*) from pgbench_history')" = "$done" ] || fail "history has not $done rows $1"
        [ "$(sql 'select count(distinct s) from (select sum(abalance) s from pgbench_accounts union all
            select sum(bbalance) from pgbench_branches union all select sum(tbalance) from pgbench_tellers union all
            select sum(delta) from pgbench_history) x')" = 1 ] || fail "the balances differ $1"
        tables >"$logs/tables.now"
        cmp "$logs/tables" "$logs/tables.now" || fail "the tables differ $1"
    }
    tables >"$logs/tables"
    check "at the end"
    pg stop -m fast; up
    check "after a restart"
    # Killed, it has to recover from its log.
    sql 'create table extra as select generate_series(1, 10000) n' && sql 'checkpoint' && sql 'update extra set n = n + 1'
    pg stop -m immediate; up
    check "after a crash of the server"
    [ "$(sql 'select sum(n) from extra')" = 50015000 ] || fail "an update is lost after a crash of the server"
    pg stop -m fast
    as "$bin/pg_checksums" --check -D "$work/data" >"$logs/checksums" || { tail "$logs/checksums"; fail "pg_checksums"; }
    if remount; then
        as "$bin/pg_checksums" --check -D "$work/data" >"$logs/checksums" || { tail "$logs/checksums"; fail "pg_checksums after REMOUNT"; }
        up
        check "after REMOUNT"
        pg stop -m fast
    fi
}

# --- one after another -----------------------------------------------------------------------------------------

say "directory: $dir ($(df --output=fstype "$dir" | tail -1)), output: $logs"
failed='' left_out='' passed=''
for suite in $suites; do
    work=$dir/posix-$suite
    rm -rf "$work"
    mkdir "$work"
    rm -f "$logs/skip" "$logs/notes"
    begin=$(date +%s)
    say "== $suite"
    rc=0
    # Not `if (...)`: the shell would not stop at errors within. `set -e` holds in the inner shell only.
    set +e
    (set -e; cd "$work"; "suite_$(echo "$suite" | tr - _)") >"$logs/$suite.log" 2>&1
    rc=$?
    set -e
    took=$(($(date +%s) - begin))
    case $rc in
    0) say "$suite: passed, $took s"; passed="$passed $suite"; grep -e tps -e transactions -e 'operations ack' -e 'jobs:' -e '^pjdfstest:' "$logs/$suite.log" | sed 's/^/  /' || true
        [ ! -f "$logs/notes" ] || { cat "$logs/notes"; left_out="$left_out $suite(part)"; } ;;
    3) if [ -f "$logs/skip" ]; then say "$suite: left out: $(cat "$logs/skip")"; left_out="$left_out $suite"
       else say "$suite: FAILED, exit code 3"; tail -15 "$logs/$suite.log"; failed="$failed $suite"; fi ;;
    *) say "$suite: FAILED after $took s; the end of $logs/$suite.log:"; tail -25 "$logs/$suite.log" | sed 's/^/  /'
        failed="$failed $suite" ;;
    esac
    case $rc,$keep in 0,0 | 3,0) rm -rf "$work" || { say "$suite: FAILED: could not be removed"; failed="$failed $suite"; } ;; esac
done
say "passed:${passed:- none}; failed:${failed:- none}; left out:${left_out:- none}"
[ -z "$failed" ] || exit 1
# Parts that were left out for a reason outside of the file system do not make a run incomplete, whole suites do.
for suite in $left_out; do case $suite in *'(part)') ;; *) exit 3 ;; esac; done
exit 0
