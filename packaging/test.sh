#!/bin/bash
# Installs the packages of FOLDER (packaging/build.sh) in clean Debian systems and uses them there:
#
#   packaging/test.sh FOLDER [SUITE]      SUITE is Debian's or Ubuntu's, bookworm by default
#
#   .deb        install, first backup as an ordinary user within a minute, upgrade, removal, purge
#   tarball     the same store, without any package
#   wheel       the same store from Python, beside the tarball's program
#   .rpm        its scripts and files, by rpm (the dependencies are Fedora's, so they are only listed)
#   container   the steps of the Containerfile
#
# Needs root, debootstrap, and Debian's archive (DEBIAN_MIRROR). What it makes is removed.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2; }
lacking=
[ "$(id -u)" = 0 ] || lacking=" root"
for pair in debootstrap:debootstrap rpm:rpm unshare:util-linux chroot:coreutils; do
    command -v "${pair%%:*}" >/dev/null || lacking="$lacking ${pair#*:}"
done
[ -z "$lacking" ] || { echo "missing:$lacking. On Debian or Ubuntu, as root: apt-get install debootstrap rpm" >&2; exit 1; }
packages=$(cd "$1" && pwd)
suite=${2:-bookworm}
for pattern in 'outrigger_*_amd64.deb' 'outrigger-*.x86_64.rpm' 'outrigger-*-x86_64.tar.gz' 'outrigger-*.whl' SHA256SUMS; do
    compgen -G "$packages/$pattern" >/dev/null || { echo "missing: $packages/$pattern; make it by: make packages" >&2; exit 1; }
done
# Mounts of this process end with it.
[ "${IN_NAMESPACE:-}" = 1 ] || IN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"

work=$(mktemp -d "${TMPDIR:-/var/tmp}/outrigger-packages.XXXXXX")
chmod 755 "$work"
trap 'umount -l "$work"/*/proc 2>/dev/null || :; rm -rf --one-file-system "$work"' EXIT
part() { printf '== %s\n' "$*"; }
fail() { echo "failed: $*" >&2; exit 1; }
# inside SYSTEM COMMAND...: runs it as root there, with no variables of this machine.
inside() {
    local system=$work/$1
    shift
    env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive \
        ${http_proxy:+http_proxy="$http_proxy"} chroot "$system" "$@"
}
as_ann() { inside "$1" su - ann -c "export OUTRIGGER_STORE=~/store; set -eu; $2"; }
# fresh SYSTEM: a clean system with an ordinary user and a tree to back up.
fresh() {
    cp -a "$work/base" "$work/$1"
    mount -t proc proc "$work/$1/proc"
    inside "$1" useradd --create-home --shell /bin/bash ann
    # A store of the first system goes on in the next.
    [ ! -d "$work/home" ] || { rm -rf "$work/$1/home/ann"; cp -a "$work/home" "$work/$1/home/ann"; }
    inside "$1" chown -R ann: /home/ann
}
sums() { (cd "$work/$1/home/ann" && find store -type f | sort | xargs sha256sum); }
ms() { echo $(($(date +%s%N) / 1000000)); }
has() { [ -e "$work/$1$2" ] || fail "$1 has no $2"; }
has_not() { [ ! -e "$work/$1$2" ] || fail "$1 still has $2"; }

# The first backup, as the README has it.
first_backup='
    mkdir tree && cp -a /usr/share/perl5 /usr/lib/x86_64-linux-gnu/perl-base tree/ && echo one >tree/notes.txt
    outrigger init
    outrigger put ~/tree --to tree --tag daily
    outrigger snapshot create first
    echo two >tree/notes.txt
    outrigger put ~/tree --to tree
    outrigger get tree ~/back && diff -r tree back
    test "$(outrigger cat --at first tree/notes.txt)" = one
    outrigger check --read-data'
later_use='
    outrigger check --read-data
    rm -rf back && outrigger get tree ~/back && diff -r tree back
    date >tree/now.txt && outrigger put ~/tree --to tree && outrigger undo'
# files SYSTEM PREFIX ZSH: what goes with the program.
files() {
    has "$1" "$2/share/man/man1/outrigger.1.gz"
    has "$1" "$2/share/man/man1/outrigger-snapshot-create.1.gz"
    has "$1" "$2/share/bash-completion/completions/outrigger"
    has "$1" "$2/share/zsh/$3/_outrigger"
    has "$1" "$2/share/fish/vendor_completions.d/outrigger.fish"
    has "$1" "$2/lib/sysusers.d/outrigger.conf"
    has "$1" "$2/share/doc/outrigger/THIRD-PARTY.gz"
    for unit in systemd/*; do
        installed_unit=$2/lib/systemd/system/${unit##*/}
        has "$1" "$installed_unit"
        ! grep -q /bin/outrigger "$unit" || grep -q "$2/bin/outrigger" "$work/$1$installed_unit" || fail "$installed_unit starts another program"
    done
}
cd "$(dirname "$0")/.."
(cd "$packages" && sha256sum --quiet -c SHA256SUMS)

part "a clean $suite"
debootstrap --variant=minbase "$suite" "$work/base" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }

part "deb: a first backup"
fresh deb
cp "$packages"/outrigger_*_amd64.deb "$work/deb/root/outrigger.deb"
inside deb dpkg-deb -f /root/outrigger.deb Package Version Installed-Size Depends Recommends Suggests
began=$(ms)
inside deb sh -c 'apt-get update -qq && apt-get -qqo Dpkg::Use-Pty=0 install -y --no-install-recommends /root/outrigger.deb' >"$work/log" 2>&1 || { tail "$work/log"; fail "apt-get install"; }
installed=$(ms)
as_ann deb "$first_backup"
ended=$(ms)
echo "installed in $((installed - began)) ms, first backup, restored and compared in $((ended - installed)) ms"
[ $((ended - began)) -lt 60000 ] || fail "that took longer than a minute"
files deb /usr vendor-completions
inside deb find /etc/systemd -name '*outrigger*' | grep . && fail "installing enabled a unit"
inside deb dpkg --verify outrigger
inside deb dpkg-deb -f /root/outrigger.deb Depends | grep -q libssl3 || fail "the .deb does not depend on libssl3"
# A minimal system has no systemd, which makes the user of agents' programs.
if command -v systemd-sysusers >/dev/null; then
    systemd-sysusers --root="$work/deb" outrigger.conf && grep -q '^outrigger-jobs:' "$work/deb/etc/passwd" || fail "no user outrigger-jobs"
fi
inside deb mkdir -p /etc/outrigger /var/cache/outrigger
inside deb touch /etc/outrigger/team.env /var/cache/outrigger/kept
before=$(sums deb)

part "deb: upgrade, removal, purge"
inside deb dpkg -i /root/outrigger.deb >/dev/null
[ "$(sums deb)" = "$before" ] || fail "the upgrade changed the store"
as_ann deb 'outrigger check --read-data' >/dev/null
# A check opens a session, which is a row of the database.
before=$(sums deb)
inside deb apt-get -qqo Dpkg::Use-Pty=0 remove -y outrigger >/dev/null
has_not deb /usr/bin/outrigger
has_not deb /usr/lib/systemd/system/outrigger-mount@.service
inside deb apt-get -qqo Dpkg::Use-Pty=0 purge -y outrigger >/dev/null
has_not deb /usr/share/doc/outrigger
has deb /etc/outrigger/team.env
has deb /var/cache/outrigger/kept
[ "$(sums deb)" = "$before" ] || fail "the removal changed the store"
cp -a "$work/deb/home/ann" "$work/home"
umount "$work/deb/proc" && rm -rf --one-file-system "$work/deb"

part "tarball: the same store without a package"
fresh tarball
tar -xzf "$packages"/outrigger-*-x86_64.tar.gz --strip-components=1 -C "$work/tarball/usr/local"
files tarball /usr/local site-functions
as_ann tarball "$later_use"
# Without a loader it says so, and goes on.
as_ann tarball 'outrigger devices' | tee "$work/log" | grep static || { cat "$work/log"; fail "devices does not say that the program is static"; }
as_ann tarball 'OUTRIGGER_STORE=~/other outrigger init --packs rados://pool 2>&1 || true' | grep static || fail "rados does not say that the program is static"
umount "$work/tarball/proc" && rm -rf --one-file-system "$work/tarball"

part "wheel: the same store from Python"
fresh wheel
inside wheel sh -c 'apt-get update -qq && apt-get -qqo Dpkg::Use-Pty=0 install -y --no-install-recommends python3-venv' >"$work/log" 2>&1 || { tail "$work/log"; fail "apt-get install python3-venv"; }
tar -xzf "$packages"/outrigger-*-x86_64.tar.gz --strip-components=1 -C "$work/wheel/usr/local"
cp "$packages"/outrigger-*.whl "$work/wheel/home/ann/"
as_ann wheel '
    python3 -m venv env && env/bin/pip install --quiet --no-index outrigger-*.whl
    env/bin/python -c "
import outrigger
from importlib.metadata import entry_points
store = outrigger.Store()
assert store.read_bytes(\"tree/notes.txt\", at=\"first\") == b\"one\\n\"
store.write_bytes(\"from/python\", b\"stored\")
store.run([\"tr\", \"a-z\", \"A-Z\"], inputs=\"from/python\", out=\"loud\", sandbox=\"best\").wait(60)
assert store.read_bytes(\"loud\") == b\"STORED\"
assert [point.name for point in entry_points(group=\"fsspec.specs\")] == [\"outrigger\"]
"
    test "$(outrigger cat from/python)" = stored'
umount "$work/wheel/proc" && rm -rf --one-file-system "$work/wheel"

part "rpm: its files and scripts"
fresh rpm
inside rpm sh -c 'apt-get update -qq && apt-get -qqo Dpkg::Use-Pty=0 install -y --no-install-recommends libssl3' >/dev/null 2>&1
package=$(echo "$packages"/outrigger-*.x86_64.rpm)
requires=$(rpm -qp --requires "$package" | grep -v -e '(GLIBC_.*)' -e '(GCC_.*)' -e rpmlib | sort -u)
echo "requires:" $requires
echo "recommends:" $(rpm -qp --recommends "$package")
grep -q 'libcrypto.so.3()' <<<"$requires" || fail "the .rpm does not require libcrypto"
# Debian's rpm warns at each call that its packages are others.
by_rpm() { rpm --root "$work/rpm" --nodeps --noplugins "$@" 2>"$work/log" || { cat "$work/log"; fail "rpm $*"; }; }
by_rpm -i "$package"
files rpm /usr site-functions
as_ann rpm "$later_use" >/dev/null
before=$(sums rpm)
by_rpm -U --replacepkgs "$package"
has rpm /usr/bin/outrigger
by_rpm -e outrigger
has_not rpm /usr/bin/outrigger
[ "$(sums rpm)" = "$before" ] || fail "the removal changed the store"
umount "$work/rpm/proc" && rm -rf --one-file-system "$work/rpm"

part "container: the steps of its recipe"
fresh container
sed -n 's/^COPY \(.*\) \(.*\)$/\1 \2/p' "$packages/Containerfile" | while read -r from to; do cp "$packages"/$from "$work/container$to"; done
sed -n 's/^RUN //p' "$packages/Containerfile" | while read -r step; do
    inside container sh -c "$step" </dev/null >"$work/log" 2>&1 || { tail "$work/log"; fail "$step"; }
done
as_ann container "$later_use" >/dev/null
for program in fusermount3 bwrap; do inside container sh -c "command -v $program" >/dev/null || fail "the container has no $program"; done
umount "$work/container/proc"
echo "all is well"
