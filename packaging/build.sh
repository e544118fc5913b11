#!/bin/bash
# Makes the packages of this commit in FOLDER:
#
#   packaging/build.sh FOLDER [deb|rpm|wheel|static-x86_64|static-aarch64]...    all, if none is named
#
#   outrigger_VERSION-1_amd64.deb, outrigger-VERSION-1.x86_64.rpm     with Debian 12's libraries or newer
#   outrigger-VERSION-x86_64.tar.gz, outrigger-VERSION-aarch64.tar.gz static: for any Linux
#   outrigger-VERSION-cp311-abi3-manylinux_*_x86_64.whl               for Python 3.11 or newer
#   *.cdx.json                                                        what each program is made of
#   SHA256SUMS, Containerfile
#
# The same commit gives the same bytes, in whatever directory it is built (with the same compilers:
# the packages' C compiler is the system's). JOBS=N limits the compilers that run at once.
#
# Tools that it fetches once into TARGET/tools: cargo-deb and cargo-generate-rpm by cargo; maturin,
# which makes wheels, cargo-zigbuild and zig, which compile and link static programs, by pip.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
kinds=" ${*:-deb rpm wheel static-x86_64 static-aarch64} "
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(cd "$target" && pwd)
tools=$target/tools
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
PATH="$tools/bin:$tools/python/bin:$HOME/.cargo/bin:$PATH"
export CARGO_TARGET_DIR=$target CARGO_INCREMENTAL=0 LC_ALL=C
# The same cryptography everywhere, not a library that happens to be installed.
export AWS_LC_SYS_USE_SYSTEM=0
umask 022
# The commit's time is the time of everything in the packages.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
# No path of this machine gets into the programs.
separator=$'\x1f'
CARGO_ENCODED_RUSTFLAGS="--remap-path-prefix=$PWD=/outrigger${separator}--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo${separator}--remap-path-prefix=$target=/target"
export CARGO_ENCODED_RUSTFLAGS

wants() { case $kinds in *" $1 "*) ;; *) return 1 ;; esac; }

# tool NAME VERSION: a subcommand of cargo. It is compiled without the flags above.
tool() {
    [ "$("$tools/bin/$1" --version 2>/dev/null | grep -o '[0-9.]*$')" = "$2" ] ||
        env -u CARGO_ENCODED_RUSTFLAGS cargo install --quiet --locked ${JOBS:+-j "$JOBS"} --root "$tools" --version "$2" "$1"
}

# from_pip PACKAGE...: tools that pip brings.
from_pip() {
    [ -x "$tools/python/bin/pip" ] || python3 -m venv "$tools/python"
    "$tools/python/bin/pip" install --quiet --disable-pip-version-check "$@"
}

# build COMMAND TRIPLE NAME: compiles the program. Its folder is in `built`.
build() {
    built=$target/$2/dist
    cargo "$1" --locked ${JOBS:+-j "$JOBS"} --profile dist -p outrigger --target "$2"
    packaging/components.py "$2" bom >"$out/$3.cdx.json"
}

# share PREFIX TRIPLE: the files that go with the program for this prefix, in built/package. The
# program for this machine writes them.
share() {
    stage=$built/package
    rm -rf "$stage"
    mkdir -p "$stage"/{man,completions,systemd,sysusers,doc,debian}
    "$writer" --quiet man "$stage/man"
    gzip -9n "$stage"/man/*
    "$writer" completions bash >"$stage/completions/outrigger"
    "$writer" completions zsh >"$stage/completions/_outrigger"
    "$writer" completions fish >"$stage/completions/outrigger.fish"
    for unit in systemd/*; do sed "s|/usr/local/bin|$1/bin|" "$unit" >"$stage/$unit"; done
    cp scripts/sysusers.conf "$stage/sysusers/outrigger.conf"
    cp README.md LICENSE-MIT LICENSE-APACHE "$stage/doc/"
    gzip -9nc CHANGELOG.md >"$stage/doc/changelog.gz"
    packaging/components.py "$2" notices | gzip -9n >"$stage/doc/THIRD-PARTY.gz"
    printf 'outrigger (%s-1) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- %s  %s\n' "$version" \
        'The Outrigger developers <outrigger-fs@users.noreply.github.com>' "$(date -Rud "@$SOURCE_DATE_EPOCH")" |
        gzip -9n >"$stage/debian/changelog.Debian.gz"
    find "$stage" "$built/outrigger" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
}

# openssl_marks: OpenSSL writes the paths and the date of its build into itself. They are replaced: it
# is not compiled again for another commit.
openssl_marks() {
    mkdir -p "$tools/bin"
    cat >"$tools/bin/outrigger-perl" <<'END'
#!/bin/sh
perl "$@" || exit
case $1 in *Configure) sed -i -E '1i export SOURCE_DATE_EPOCH = 1
s@^(ENGINESDIR|MODULESDIR)=.*@\1=/usr/local/lib/ossl@' Makefile ;; esac
END
    chmod 755 "$tools/bin/outrigger-perl"
    export OPENSSL_SRC_PERL=outrigger-perl
}

# compilers ARCHITECTURE: it also writes the command of its compiler, which gets a name without a
# path.
compilers() {
    openssl_marks
    cat >"$tools/bin/outrigger-cc-$1" <<END
#!/bin/sh
exec cargo-zigbuild zig cc -- -g0 -fno-sanitize=all -target $1-linux-musl "\$@"
END
    chmod 755 "$tools/bin/outrigger-cc-$1"
    export "CC_$1_unknown_linux_musl=outrigger-cc-$1"
}

# wheel TRIPLE: the Python package. It has its own OpenSSL, as a wheel links nothing but glibc.
wheel() {
    (
        openssl_marks
        CARGO_ENCODED_RUSTFLAGS="$CARGO_ENCODED_RUSTFLAGS$separator--cfg${separator}outrigger_wheel"
        packaging/components.py "$1" bom outrigger-python >"$out/outrigger-$version-wheel.cdx.json"
        mkdir -p python/outrigger/licenses
        cp LICENSE-MIT LICENSE-APACHE python/outrigger/licenses/
        packaging/components.py "$1" notices outrigger-python >python/outrigger/licenses/THIRD-PARTY
        maturin build --quiet --locked ${JOBS:+-j "$JOBS"} --profile dist -m python/Cargo.toml --target "$1" --out "$out"
    )
}

# static ARCHITECTURE: a tarball to unpack into /usr/local.
static() {
    triple=$1-unknown-linux-musl
    name=outrigger-$version-$1
    compilers "$1"
    build zigbuild "$triple" "$name"
    [ "$1" != "$(uname -m)" ] || writer=$built/outrigger
    [ -n "${writer:-}" ] || { echo "static-$1 takes its manual from a program for this machine: name another kind, too" >&2; exit 1; }
    share /usr/local "$triple"
    tree=$built/$name
    rm -rf "$tree"
    install -Dm 755 "$built/outrigger" "$tree/bin/outrigger"
    mkdir -p "$tree"/share/{man,doc,bash-completion,zsh,fish} "$tree"/lib/systemd
    cp -r "$stage/man" "$tree/share/man/man1"
    cp -r "$stage/doc" "$tree/share/doc/outrigger"
    install -Dm 644 "$stage/completions/outrigger" -t "$tree/share/bash-completion/completions"
    install -Dm 644 "$stage/completions/_outrigger" -t "$tree/share/zsh/site-functions"
    install -Dm 644 "$stage/completions/outrigger.fish" -t "$tree/share/fish/vendor_completions.d"
    cp -r "$stage/systemd" "$tree/lib/systemd/system"
    cp -r "$stage/sysusers" "$tree/lib/sysusers.d"
    tar -C "$built" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --format=gnu \
        -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
    rm -r "$tree"
}

lacking=
for pair in git:git python3:python3 perl:perl make:make; do
    command -v "${pair%%:*}" >/dev/null || lacking="$lacking ${pair#*:}"
done
python3 -c 'import ensurepip, tomllib' 2>/dev/null || lacking="$lacking python3-venv (of Python 3.11)"
! wants deb || command -v dpkg-shlibdeps >/dev/null || lacking="$lacking dpkg-dev"
[ -z "$lacking" ] || { echo "missing:$lacking" >&2; exit 1; }

if wants deb || wants rpm; then
    build build x86_64-unknown-linux-gnu "outrigger-$version-packages"
    writer=$built/outrigger
    share /usr x86_64-unknown-linux-gnu
    if wants deb; then
        tool cargo-deb 3.8.0
        cargo deb --quiet --no-build --no-strip -p outrigger --profile dist --target x86_64-unknown-linux-gnu -o "$out/"
    fi
    if wants rpm; then
        tool cargo-generate-rpm 0.21.1
        cargo generate-rpm -p crates/cli --profile dist --target x86_64-unknown-linux-gnu --auto-req builtin \
            --payload-compress zstd -o "$out/"
    fi
fi
if wants wheel; then
    from_pip maturin==1.16.0
    wheel x86_64-unknown-linux-gnu
fi
if wants static-x86_64 || wants static-aarch64; then
    from_pip cargo-zigbuild==0.24.1 ziglang==0.17.1
    for architecture in x86_64 aarch64; do
        wants "static-$architecture" || continue
        [ -d "$(rustc --print sysroot)/lib/rustlib/$architecture-unknown-linux-musl" ] ||
            rustup target add "$architecture-unknown-linux-musl"
        static "$architecture"
    done
fi
cp packaging/Containerfile "$out/"
cd "$out"
shopt -s nullglob
sha256sum -- *.deb *.rpm *.whl *.tar.gz *.cdx.json Containerfile >SHA256SUMS
ls -l
