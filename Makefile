# One command for each task; CI calls the same.
.PHONY: help need release install header demo eval eval-full eval-report cluster cluster-down test-cluster test-aarch64 header-check test test-slow test-python test-all slowest test-long test-sanitized test-gpu bench-gpu posix posix-long histories simulate kernels check bench bench-quick fuzz docs recording packages test-packages clean

CARGO ?= PATH="$$HOME/.cargo/bin:$$PATH" cargo
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
FUZZ_SECONDS ?= 30
PREFIX ?= /usr/local
DESTDIR ?=
PACKAGES ?= $(TARGET)/packages
# Test suites of other projects run as other users, who must be able to enter this directory.
POSIX_DIR ?= /var/tmp/outrigger-posix

help:
	@echo "make release         build $(TARGET)/release/outrigger"
	@echo "make install         install it, its manual and the C library (PREFIX=/usr/local)"
	@echo "make demo            store a real tree twice, restore both, compare (DATA=path for another tree)"
	@echo "make test            the tests that every change should pass: minutes"
	@echo "make test-all        make test and these parts, each of which is a target:"
	@echo "                     $(SLOW)"
	@echo "make slowest         the slowest tests of the last run"
	@echo "make test-gpu        tests on a machine with a GPU; says so if there is none"
	@echo "make test-aarch64    code for ARM processors on an emulated one: tests and lints"
	@echo "make cluster         start hosts with Ceph and PostgreSQL; make cluster-down stops them"
	@echo "make histories       check what clients on failing hosts were told (SECONDS=60 SEED=number)"
	@echo "make simulate        hosts on virtual time in one process (SEED=1 SEEDS=20 HOURS=1 HOSTS=4)"
	@echo "make posix           pjdfstest, its crate and xfstests on mounts of both kinds, as root"
	@echo "make posix-long      fsx, fsstress and stress-ng, as root: an hour or two"
	@echo "make test-sanitized  GPU kernels on the host, under address and undefined-behaviour sanitizers"
	@echo "make fuzz            fuzz every decoder, $(FUZZ_SECONDS) s each"
	@echo "make check           formatting, lints, documentation, links, licences, import cycles"
	@echo "make bench           compare with restic, borg and rustic, and with the machine's limits"
	@echo "make bench-gpu       benchmarks on a machine with a GPU; says so if there is none"
	@echo "make eval            the papers' experiments, short: 20 minutes"
	@echo "make eval-full       the same at full size: two hours and a half; continues if interrupted"
	@echo "make eval-report     target/evaluation/report.{md,html} from the records"
	@echo "make docs            the API documentation and the book, in $(TARGET)/book"
	@echo "make packages        .deb, .rpm, a wheel, static tarballs, their sums and contents, in $(PACKAGES)"
	@echo "make test-packages   installs them in clean systems and uses them, as root: minutes"
	@echo "make recording       docs/five-minutes.svg, from the commands of the README"

need:
	@scripts/need.sh

release: need
	$(CARGO) build --release -p outrigger -p outrigger-workload

# The program with its manual and systemd units, the C library with its header and pkg-config file,
# and the library for components (libasfile).
install: release
	$(CARGO) build --release -p outrigger-capi
	DESTDIR=$(DESTDIR) scripts/install-library.sh $(TARGET)/release $(PREFIX)
	DESTDIR=$(DESTDIR) CC="$(CC)" CFLAGS="$(CFLAGS)" scripts/install-asfile.sh $(PREFIX)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/man/man1
	install -s -m 755 $(TARGET)/release/outrigger $(DESTDIR)$(PREFIX)/bin/
	$(TARGET)/release/outrigger man $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in systemd/*; do sed 's|/usr/local/bin|$(PREFIX)/bin|' $$unit >$(DESTDIR)$(PREFIX)/lib/systemd/system/$${unit##*/}; done
	install -d $(DESTDIR)$(PREFIX)/lib/sysusers.d
	install -m 644 scripts/sysusers.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/outrigger.conf

# The C header, after a change of crates/capi.
header: need
	scripts/header.sh build

header-check: need
	scripts/header.sh check

demo: release
	@scripts/demo.sh

# The tests for contributors: everything that finds faults quickly. With OUTRIGGER_REQUIRE=1 a test
# fails that would be skipped for something that could be installed.
test: need
	@scripts/test.py

# The slow tests: experiments, soaks, kill loops and benchmarks at a tiny size (tests marked slow);
# a real Ceph; long models; kernels under sanitizers; the C header. A separate suite (simulation,
# POSIX, histories) is a target and a word here.
SLOW := test-slow test-python test-cluster histories test-long test-sanitized header-check

test-slow: need
	@scripts/test.py --slow

# The Python package; torch and ray are large, and tested by: scripts/test-python.sh --with torch --with 'ray[data]'
test-python: need
	@scripts/test-python.sh

test-all: test $(SLOW)

slowest:
	@scripts/test.py --slowest 30

test-long: need
	OUTRIGGER_MODEL=long $(CARGO) test --release -p outrigger-store --all-features --test it model_reclaim -- --include-ignored
	OUTRIGGER_CRASH_STATES=4000 $(CARGO) test --release -p outrigger-store --all-features --test it crash:: -- --nocapture
	OUTRIGGER_KILL_ROUNDS=500 $(CARGO) test --release -p outrigger-store --all-features --test it kill:: -- --nocapture --include-ignored
	OUTRIGGER_KILL_PIECES=all $(CARGO) test --workspace --all-features --test cli killed_at_any_step -- --nocapture --include-ignored
	OUTRIGGER_EVERY_CASE=1 scripts/test.py interrupted damage
	OUTRIGGER_SOAK_SECONDS=300 $(CARGO) test --workspace --all-features --test cli soak -- --nocapture --include-ignored

# Hosts on virtual time in one process: docs/simulation.md.
SEED ?= 1
SEEDS ?= 20
HOURS ?= 1
HOSTS ?= 4
simulate: need
	$(CARGO) run --release -p outrigger-sim -- $(SEED) $(SEEDS) $(HOURS) $(HOSTS)

# Ceph and PostgreSQL on hosts that are network namespaces; needs root and Debian's packages, see the script.
cluster:
	@scripts/cluster.sh up

cluster-down:
	@scripts/cluster.sh down

test-cluster: need
	@CARGO='$(CARGO)' scripts/test-cluster.sh

# Needs qemu and a cross compiler; the script says what is missing.
test-aarch64:
	@CARGO='$(CARGO)' scripts/test-aarch64.sh

# Clients on hosts that fail. Checkers judge their histories: SECONDS=60, and SEED=... for the
# choices of another run.
histories: need
	@OUTRIGGER_HISTORY_SECONDS='$(or $(SECONDS),60)' OUTRIGGER_HISTORY_SEED='$(SEED)' CARGO='$(CARGO)' scripts/test-cluster.sh histories

test-sanitized: need
	scripts/sanitize.sh

# Builds first, so that the folder can be carried to a machine with a GPU and without a compiler.
test-gpu: need
	scripts/gpu.sh build $(TARGET)/gpu
	$(TARGET)/gpu/run.sh test

bench-gpu: need
	scripts/gpu.sh build $(TARGET)/gpu
	$(TARGET)/gpu/run.sh bench --json $(TARGET)/gpu/bench.json

# Test suites of other projects, fetched and built first, run as root on a mount of a store in a
# directory and on a shared mount. They leave a record. POSIX has more options for
# tests/posix/suites.py, for example `--suites rs`.
posix: release
	tests/posix/fetch.sh $(POSIX_DIR)
	tests/posix/suites.py --outrigger $(TARGET)/release/outrigger --built $(POSIX_DIR) --record docs/evaluation/records $(POSIX)

# A million operations of fsx, and five seconds for each stressor of stress-ng: an hour or two.
posix-long: release
	tests/posix/fetch.sh $(POSIX_DIR)
	tests/posix/suites.py --outrigger $(TARGET)/release/outrigger --built $(POSIX_DIR) --suites load $(POSIX)

# The committed PTX, after a change of the sources; the script says which compiler it needs.
kernels:
	scripts/kernels.py build

check: need
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --all-features --quiet
	scripts/licences.sh
	scripts/cycles.py --self-test
	scripts/cycles.py
	scripts/links.py --self-test
	scripts/links.py

bench: release
	bench/peers.py --outrigger $(TARGET)/release/outrigger --workload $(TARGET)/release/outrigger-workload
	$(CARGO) bench -p outrigger-offload
	$(CARGO) bench -p outrigger-store --bench stages
	$(CARGO) bench -p outrigger-store --bench index

bench-quick: release
	bench/peers.py --quick --outrigger $(TARGET)/release/outrigger --workload $(TARGET)/release/outrigger-workload

# BENCH_DATA=DIR for real images and trees (bench/data.sh); EVAL=ids for some of them only, or for
# options such as --work DIR. Records of separate hosts (bench/active.py, genomes.py, cluster.py)
# are drawn as they are.
eval:
	@scripts/need.sh eval
	$(CARGO) build --release -p outrigger -p outrigger-eval
	$(TARGET)/release/outrigger-eval run $(EVAL) --scale short
	$(TARGET)/release/outrigger-eval report

eval-full:
	@scripts/need.sh eval
	$(CARGO) build --release -p outrigger -p outrigger-eval
	$(TARGET)/release/outrigger-eval run $(EVAL) --scale full --resume
	$(TARGET)/release/outrigger-eval report

eval-report: need
	$(CARGO) build --release -p outrigger-eval
	$(TARGET)/release/outrigger-eval report

fuzz: need
	@command -v cargo-fuzz >/dev/null || $(CARGO) install cargo-fuzz --locked
	@cd fuzz && for target in $$(cargo +nightly fuzz list); do \
		echo "== $$target"; cargo +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; done

# The book needs mdBook, which is built once, into target/tools; so CI checks the links only.
MDBOOK := 0.5.4
docs: release
	$(CARGO) doc --workspace --no-deps --all-features
	@[ -x $(TARGET)/tools/bin/mdbook ] || $(CARGO) install mdbook --locked --version $(MDBOOK) --root $(TARGET)/tools --no-default-features --features search
	scripts/links.py
	scripts/book.py $(TARGET)/release/outrigger $(TARGET)

# Needs /dev/fuse and bubblewrap, as the commands of the README do.
recording: release
	scripts/record.py $(TARGET)/release/outrigger docs/five-minutes.svg

# KINDS=deb for some of: deb rpm wheel static-x86_64 static-aarch64.
packages: need
	packaging/build.sh $(PACKAGES) $(KINDS)

# Needs root and debootstrap; the packages are made before, by `make packages`.
test-packages:
	packaging/test.sh $(PACKAGES)

clean:
	$(CARGO) clean
