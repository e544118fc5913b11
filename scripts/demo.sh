#!/bin/sh
# Tests the main job on real input: store a tree of this machine, store a changed second version,
# restore both, and compare every byte. DATA=path names another tree, WORK=path another place to
# work in (about four times the tree's size is needed). A new directory is made there and removed at
# the end; nothing else there is touched. PROFILE=debug uses the tests' build.
set -eu
bin=${CARGO_TARGET_DIR:-target}/${PROFILE:-release}
outrigger=$bin/outrigger
workload=$bin/outrigger-workload

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '$ outrigger'; printf ' %s' "$@"; printf '\n'; "$outrigger" "$@"; }

data=${DATA:-}
if [ -z "$data" ]; then
    # The first of these that holds a few hundred megabytes.
    for candidate in /usr/share /usr/lib/python3 /usr/lib /usr/include /usr; do
        [ -d "$candidate" ] || continue
        size=$(du -sxm "$candidate" 2>/dev/null | cut -f1)
        if [ "$size" -ge 50 ] && [ "$size" -le 1200 ]; then data=$candidate; break; fi
    done
    data=${data:-/usr/bin}
fi
size=$(du -sxm "$data" | cut -f1)

place=${WORK:-${TMPDIR:-/tmp}}
mkdir -p "$place"
free=$(df -Pm "$place" | awk 'NR == 2 { print $4 }')
if [ "$free" -lt $((size * 4 + 200)) ]; then
    echo "not enough room in $place: $((size * 4 + 200)) MB needed, $free MB free; set WORK to another place" >&2
    exit 1
fi
# Removes only what this script made: the place is the user's, with other files in it.
work=$(mktemp -d "$place/outrigger-demo.XXXXXX")
trap 'chmod -R u+rwX "$work" 2>/dev/null || true; rm -rf "$work"' EXIT INT TERM

say "1. A copy of $data ($size MB), to be changed later"
cp -a "$data" "$work/source"
store=$work/store

say "2. Make a store and put the first version"
run -s "$store" init
run -s "$store" put "$work/source" --to tree
run -s "$store" snapshot create first
cp -a "$work/source" "$work/first"

say "3. Change the tree, and put it again"
"$workload" mutate "$work/source" --seed 7
run -s "$store" put "$work/source" --to tree
run -s "$store" snapshot create second

say "4. What was saved"
run -s "$store" stats

say "5. Restore both versions and compare every byte, name, mode and time"
run -s "$store" get --special --at first tree "$work/restored-first"
run -s "$store" get --special --at second tree "$work/restored-second"
"$workload" compare "$work/first" "$work/restored-first"
"$workload" compare "$work/source" "$work/restored-second"
run -s "$store" check --read-data
echo "both versions are identical to what was put"

say "What to try next"
cat <<EOF
  $outrigger -s ./store init                  your own store
  $outrigger -s ./store put ~/work --to work  any tree; put it again later, only what changed is read
  $outrigger -s ./store ls -l work            and: versions, diff, cat, cp, mv, rm, snapshot, keep
  $outrigger -s ./store --help                all commands, each with examples
  make test                                   the tests;  make bench  the peers, side by side
EOF
