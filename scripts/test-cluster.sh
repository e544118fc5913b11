#!/bin/bash
# Tests that need a real cluster. It is started for them unless one is up. If they are skipped, the
# script says so.
#
#   scripts/test-cluster.sh [histories]      all of them, or those of clients' histories alone
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${OUTRIGGER_CLUSTER_TESTS:-}" = no ]; then
    echo "skipped: the cluster's tests, as OUTRIGGER_CLUSTER_TESTS=no"
    exit 0
fi
started=
if ! environment=$(scripts/cluster.sh env 2>/dev/null); then
    if why=$(scripts/cluster.sh up 2>&1 >/dev/null); then
        started=1
        environment=$(scripts/cluster.sh env)
    else
        echo "skipped: the cluster's tests: ${why:-it could not be started}"
        [ -z "${OUTRIGGER_REQUIRE:-}" ] || exit 1
        exit 0
    fi
fi
[ -n "$started" ] && trap 'scripts/cluster.sh down' EXIT
eval "$environment"
export OUTRIGGER_TEST_FAULTS=1
# Histories are a separate suite (make histories), whose duration is a parameter.
skip=; [ -n "${1:-}" ] || skip="--skip histories"
# The same packages and targets as in `make test`: with others, dependencies have other features and
# are built again.
eval "${CARGO:-cargo} test --workspace --all-features --no-run"
[ -n "${1:-}" ] || eval "${CARGO:-cargo} test --workspace --all-features --test it cluster:: -- --test-threads 1 --ignored"
eval "${CARGO:-cargo} test --workspace --all-features --test cli ${1:+cluster::}${1:-cluster} -- --test-threads 1 --nocapture --ignored $skip"
