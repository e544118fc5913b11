#!/bin/bash
# A cluster on one machine, without containers: hosts are network namespaces on a bridge.
#
#   scripts/cluster.sh up      Ceph (monitor, manager, gateway for S3 on one host, an OSD on each of three others), PostgreSQL, and hosts for clients
#   scripts/cluster.sh env     shell variables with which tests and programs find it
#   scripts/cluster.sh osd N stop|kill|pause|continue|start|out|in      a fault, and its end
#   scripts/cluster.sh postgres kill|start        kill ends all its processes at once, like a power loss
#   scripts/cluster.sh run HOST COMMAND...        runs on a host (head, h0 ... or c0 ...), in its network, with this machine's files
#   scripts/cluster.sh down    ends all of it and removes it
#
# Needs root, and Debian's ceph-mon ceph-osd ceph-mgr radosgw ceph-common iproute2 curl (and postgresql, if
# wanted). Its files are in $OUTRIGGER_CLUSTER (/var/tmp/outrigger-cluster), with an OSD for each number in
# $OUTRIGGER_OSDS (0 1 2) on a sparse file. Nothing of it is secret or meant to last.
set -Eeuo pipefail

dir=${OUTRIGGER_CLUSTER:-/var/tmp/outrigger-cluster}
net=10.77.0
bridge=outrigger0
head=$net.10            # monitor, manager, gateway, PostgreSQL
osds=${OUTRIGGER_OSDS:-0 1 2}    # OSD N lives on host hN, address 11 + N; from 0 on
clients="0 1 2 3"       # client N is host cN, address 21 + N
osd_bytes=${OUTRIGGER_OSD_BYTES:-20G}
key=OUTRIGGERTESTKEY secret=outrigger-test-secret-0123456789
conf=$dir/ceph.conf

say() { echo "cluster: $*" >&2; }
# Not `ip netns exec`: its program would have its own mounts, with a copy of each mount that exists
# when it starts. An unmount elsewhere would not end that mount.
in_host() { local host=$1; shift; nsenter "--net=/run/netns/outrigger-$host" "$@"; }
ceph_() { ceph -c "$conf" --connect-timeout 20 "$@" 2>>"$dir/log/commands"; }

wait_for() {
    local what=$1 tries=$2; shift 2
    for ((i = 0; i < tries; i++)); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.5
    done
    say "$what did not come; see $dir/log"
    return 1
}

# A zombie has ended, too, and may stay one for long.
has_ended() { [ ! -e "/proc/$1" ] || grep -q '^State:.*zombie' "/proc/$1/status"; }

need() {
    local missing=
    for tool in ceph-mon:ceph-mon ceph-osd:ceph-osd ceph-mgr:ceph-mgr radosgw:radosgw ceph:ceph-common ip:iproute2 curl:curl; do
        command -v "${tool%%:*}" >/dev/null 2>&1 || missing="$missing ${tool#*:}"
    done
    if [ -n "$missing" ]; then say "missing packages:$missing"; exit 3; fi
    if [ "$(id -u)" != 0 ]; then say "needs root, for network namespaces"; exit 3; fi
}

host_up() {
    local host=$1 address=$2
    ip netns add "outrigger-$host"
    ip link add "ov-$host" type veth peer name eth0 netns "outrigger-$host"
    ip link set "ov-$host" master $bridge up
    in_host "$host" ip addr add "$address/24" dev eth0
    in_host "$host" ip link set eth0 up
    in_host "$host" ip link set lo up
}

network_up() {
    ip link add $bridge type bridge
    ip addr add $net.1/24 dev $bridge
    ip link set $bridge up
    host_up head $head
    for n in $osds; do host_up "h$n" "$net.$((11 + n))"; done
    for n in $clients; do host_up "c$n" "$net.$((21 + n))"; done
}

write_conf() {
    cat > "$conf" <<CONF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon_host = [v2:$head:3300,v1:$head:6789]
auth_allow_insecure_global_id_reclaim = false
keyring = $dir/keyring
log_file = $dir/log/\$name.log
pid_file = $dir/run/\$name.pid
admin_socket = $dir/run/\$name.asok
run_dir = $dir/run
crash_dir = $dir/crash
mon_data = $dir/mon
mgr_data = $dir/mgr
osd_data = $dir/osd-\$id
rgw_data = $dir/rgw
mon_cluster_log_file = $dir/log/cluster.log
mon_allow_pool_delete = true
mon_data_avail_crit = -1
mon_data_avail_warn = 1
mon_osd_down_out_interval = 20
osd_heartbeat_grace = 4
osd_heartbeat_interval = 1
osd_pool_default_size = 2
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_objectstore = bluestore
bluestore_block_size = $(numfmt --from=iec "$osd_bytes")
bluestore_block_create = true
bluestore_cache_autotune = false
bluestore_cache_size = 134217728
bluestore_min_alloc_size = 4096
osd_memory_target = 939524096
mgr_initial_modules =
rgw_frontends = beast endpoint=$head:7480
rgw_run_sync_thread = false
rgw_enable_usage_log = false
rgw_thread_pool_size = 64
rgw_bucket_quota_ttl = 1
debug_ms = 0
debug_osd = 0
debug_bluestore = 0
debug_rocksdb = 0
debug_rgw = 0
CONF
}

osd_start() {
    local n=$1
    in_host "h$n" ceph-osd -c "$conf" -i "$n" --public_addr "$net.$((11 + n))" --crush_location "root=default host=h$n"
}

ceph_up() {
    # All keys in one file, which the monitor takes over when it is made.
    local add="ceph-authtool $dir/keyring --gen-key"
    ceph-authtool --create-keyring "$dir/keyring" --gen-key -n mon. --cap mon 'allow *' >/dev/null
    $add -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
    $add -n client.rgw --cap mon 'allow rw' --cap osd 'allow rwx'
    $add -n mgr.m --cap mon 'allow profile mgr' --cap osd 'allow *'
    for n in $osds; do $add -n "osd.$n" --cap mon 'allow profile osd' --cap mgr 'allow profile osd' --cap osd 'allow *'; done
    # The rights of docs/packs.md for a store's writers and readers, but in all namespaces of the
    # pool: each test has its own.
    $add -n client.writer --cap mon 'allow r' --cap osd 'allow rwx pool=packs'
    $add -n client.reader --cap mon 'allow r' --cap osd 'allow r pool=packs'
    local fsid
    fsid=$(sed -n 's/^fsid = //p' "$conf")
    monmaptool --create --fsid "$fsid" --addv m "[v2:$head:3300,v1:$head:6789]" "$dir/monmap" >/dev/null
    ceph-mon -c "$conf" --mkfs -i m --monmap "$dir/monmap" --keyring "$dir/keyring"
    in_host head ceph-mon -c "$conf" -i m
    wait_for "the monitor" 60 ceph_ -s
    for n in $osds; do
        mkdir -p "$dir/osd-$n"
        ceph_ osd create >/dev/null
        (ceph-osd -c "$conf" -i "$n" --mkfs >>"$dir/log/mkfs" 2>&1 && osd_start "$n" >>"$dir/log/osd" 2>&1) &
    done
    in_host head ceph-mgr -c "$conf" -i m
    wait
    wait_for "the OSDs" 60 bash -c "ceph -c $conf osd stat | grep -q '$(wc -w <<<"$osds") up'"
    ceph_ osd pool create packs 32 >/dev/null
    ceph_ osd pool application enable packs outrigger >/dev/null
}

gateway_user() {
    radosgw-admin -c "$conf" user create --uid "$1" --display-name "$1" --access-key "$2" --secret-key $secret >/dev/null 2>>"$dir/log/commands"
}

s3_up() {
    in_host head radosgw -c "$conf" -n client.rgw >>"$dir/log/rgw" 2>&1
    # The first command makes the gateway's pools, which takes time.
    wait_for "the gateway" 60 curl -fs "http://$head:7480/"
    gateway_user outrigger $key
    # A user who has only the rights of a bucket's policy.
    gateway_user writer ${key}WRITER
    gateway_user reader ${key}READER
    wait_for "the bucket" 20 curl -fsS --aws-sigv4 aws:amz:us-east-1:s3 --user "$key:$secret" \
        -H "x-amz-content-sha256: UNSIGNED-PAYLOAD" -X PUT "http://$head:7480/packs"
}

postgres_up() {
    local bin
    bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
    if [ -z "$bin" ]; then say "no PostgreSQL (package postgresql): left out"; return 0; fi
    install -d -o postgres -m 700 "$dir/postgres"
    install -d -o postgres "$dir/postgres-run"
    echo outrigger > "$dir/postgres-password"
    chmod 644 "$dir/postgres-password"
    runuser -u postgres -- "$bin/initdb" -D "$dir/postgres" -U postgres -A scram-sha-256 --pwfile="$dir/postgres-password" >"$dir/log/initdb" 2>&1
    echo "host all all $net.0/24 scram-sha-256" >> "$dir/postgres/pg_hba.conf"
    postgres_start
    PGPASSWORD=outrigger "$bin/psql" -q -h $head -U postgres -c "create database outrigger" >/dev/null
}

postgres_start() {
    local bin
    bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)
    in_host head runuser -u postgres -- "$bin/pg_ctl" -D "$dir/postgres" -l "$dir/postgres/log" -w -t 150 start \
        -o "-c listen_addresses=$head -c unix_socket_directories=$dir/postgres-run" >/dev/null
}

postgres_answers() { "$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)/pg_isready" -q -h $head; }
postgres_is_there_or_starts() { postgres_answers || { postgres_start && postgres_answers; }; }

# If a process ends while the list is read, others may be missing from it. So it is read again,
# until none in it lives.
kill_children() {
    local alive=
    for one in $(cat "/proc/$1/task/$1/children"); do
        if ! has_ended "$one"; then alive=1; kill -9 "$one" || true; fi
    done
    [ -z "$alive" ]
}

postgres() {
    local what=$1 pid
    case $what in
        kill)
            pid=$(head -1 "$dir/postgres/postmaster.pid")
            # A stopped server starts no process and does not notice the end of one, so that none is
            # missed.
            kill -STOP "$pid"
            wait_for "its standstill" 60 grep -q '^State:.[TZ]' "/proc/$pid/status"
            wait_for "the end of its processes" 60 kill_children "$pid"
            kill -9 "$pid"
            wait_for "the end of process $pid" 60 has_ended "$pid"
            ;;
        # While nobody has waited for the killed process, the next server takes it for alive.
        start) wait_for "PostgreSQL" 60 postgres_is_there_or_starts ;;
        *) say "postgres kill|start"; exit 2 ;;
    esac
}

environment() {
    echo "export OUTRIGGER_CLUSTER=$dir"
    echo "export OUTRIGGER_TEST_S3='s3://packs?endpoint=http://$head:7480&region=us-east-1'"
    echo "export OUTRIGGER_TEST_RADOS='rados://packs?conf=$conf'"
    echo "export AWS_ACCESS_KEY_ID=$key AWS_SECRET_ACCESS_KEY=$secret"
    if [ -d "$dir/postgres" ]; then
        echo "export OUTRIGGER_TEST_POSTGRES=postgres://postgres@$head/outrigger PGPASSWORD=outrigger"
    fi
}

up() {
    need
    if [ -e "$conf" ]; then say "it is up already (or was not ended): scripts/cluster.sh down"; exit 1; fi
    # If this one cannot start, another cluster that began with another directory must stay up.
    if ip link show $bridge >/dev/null 2>&1; then
        say "hosts of another cluster are there: end that one first, where it was begun (or scripts/cluster.sh down, if nobody uses it)"
        exit 1
    fi
    mkdir -p "$dir"/{log,run,mon,mgr,rgw,crash}
    chmod 755 "$dir"
    trap 'say "could not start; the rest of it is taken down"; tail -5 "$dir"/log/commands >&2 || true; down' ERR
    write_conf
    network_up
    ceph_up
    s3_up
    postgres_up
    trap - ERR
    environment
}

down() {
    for file in "$dir"/run/*.pid; do
        [ -e "$file" ] && kill "$(head -1 "$file" 2>/dev/null)" 2>/dev/null || true
    done
    # Without waiting for clients.
    [ -e "$dir/postgres/postmaster.pid" ] && kill -INT "$(head -1 "$dir/postgres/postmaster.pid")" 2>/dev/null || true
    for ((i = 0; i < 40; i++)); do
        local alive=
        for file in "$dir"/run/*.pid; do
            [ -e "$file" ] && kill -0 "$(head -1 "$file" 2>/dev/null)" 2>/dev/null && alive=1
        done
        [ -z "$alive" ] && break
        sleep 0.25
    done
    for file in "$dir"/run/*.pid; do [ -e "$file" ] && kill -9 "$(head -1 "$file" 2>/dev/null)" 2>/dev/null || true; done
    for host in $(ip netns list | sed -n 's/^outrigger-\(head\|[hc][0-9]*\)\b.*/\1/p'); do ip netns del "outrigger-$host" 2>/dev/null || true; done
    ip link del $bridge 2>/dev/null || true
    rm -rf "$dir"
}

osd() {
    local n=$1 what=$2 pid
    pid=$(cat "$dir/run/osd.$n.pid" 2>/dev/null || true)
    case $what in
        kill) kill -9 "$pid"; wait_for "the end of OSD $n" 60 has_ended "$pid" ;;
        pause) kill -STOP "$pid" ;;
        continue) kill -CONT "$pid" ;;
        stop) kill "$pid"; wait_for "the end of OSD $n" 60 has_ended "$pid" ;;
        start) osd_start "$n" ;;
        # The OSD should hold nothing any more, and Ceph copies its data to the others. Then it
        # should hold its part again.
        out | in) ceph_ osd "$what" "$n" ;;
        *) say "osd N kill|stop|pause|continue|start|out|in"; exit 2 ;;
    esac
}

case "${1:-}" in
    up) up ;;
    down) down ;;
    env) [ -e "$conf" ] || { say "it is not up"; exit 3; }; environment ;;
    osd) osd "$2" "$3" ;;
    postgres) postgres "$2" ;;
    run) in_host "${@:2}" ;;
    *) sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
