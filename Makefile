# SPDX-License-Identifier: GPL-2.0-only
#
# make build                       install what is missing, build all
# make demo                        boot a KVM host in emulation, run VMs under two schedulers
# make test                        everything that proves that it works, half an hour on two cores
# make check                       format, lints and unit tests: before each commit
# make fmt                         format all
# make fuzz                        random scenarios with faults, simulated (FUZZ_SECONDS=60)
# make neighbours                  random mixtures of VMs: what each gets, beside EEVDF's
# make host-test                   tests on emulated KVM hosts
# make test-kernels                the same on each kernel with sched_ext that the mirror offers
# make test-ray                    a sweep on a Ray cluster of this machine alone
# make test-reproducible           a second build, elsewhere, gives the same programs
# make test-operate                metrics and alerts in a real Prometheus, reports in a browser
# make manuals                     man pages and completions, and all that 'make install' copies
# make install DESTDIR= PREFIX=/usr  copies it: programs, unit, pages, completions (or uninstall)
# make deb                         a package for Debian, in the target directory
# make rpm                         the same for RPM
# make test-packages               builds these, looks at what is in them, and has systemd run them
# make soak                        an hour of each rig, and an hour of mixed load
# make bench-memslots JSON=FILE    what a look-up of a memory slot costs
# make bench-sim                   how fast the simulator is
# make bench-lines                 cache lines that another pCPU has written, by callback
# make bench-top                   what 'baton top' costs with 300 VMs, without and with Baton
# make bench-halt-poll             polling at HLT, simulated on random mixtures
# make bench-rules JSON=FILE       what each rule of the policy buys, simulated (RULE=NAME,NAME)
# make bench-callbacks JSON=FILE   instructions of a wake-up, a switch, a tick, an IPI, an exit
# make bench-callbacks ACCOUNT=FILE   the same by function
# ARGS='...'   is passed on: make demo ARGS='--quick --json result.json'

CLANG_FORMAT ?= $(shell for v in 22 21 20 19 18 17; do command -v clang-format-$$v && break; done || echo clang-format)

CARGO ?= cargo
TARGET_DIR = $(or $(CARGO_TARGET_DIR),target)
# The bench's payload is no package of its own: bench/build.rs compiles it.
RUSTFMT = rustfmt --edition 2024
GUEST = bench/guest/main.rs
BATON = $(TARGET_DIR)/release/baton
C_FILES = $(wildcard scx_baton/bpf/*.[ch] scx_baton/examples/*.c scx_baton/tests/*.c \
	sim/shim/*.c sim/shim/include/*.h sim/shim/include/*/*.h sim/examples/*.bpf.c \
	sim/tests/*.c sim/benches/*.c testbed/bochs/port.cc testbed/bochs/port.h)

.PHONY: all help setup build demo test check test-kernels lint fmt unit-test fuzz neighbours \
	host-test on-qemu on-exact soak test-ray bench-memslots bench-sim bench-lines \
	bench-halt-poll bench-rules bench-callbacks bench-top test-operate test-reproducible \
	manuals install uninstall tree packagers deb rpm test-packages clean
all: build

help:
	@sed -n 's/^# \(make .*\|ARGS.*\)/\1/p' Makefile

setup:
	@tools/setup

build: setup
	@echo "building (the first time takes a few minutes)"
	@$(CARGO) build --release --workspace --quiet

# What differs from the README's table is named, where that is not what is measured again.
AGAINST = $(if $(findstring --linux-guests,$(ARGS))$(findstring docs/readme.json,$(ARGS)),,--against docs/readme.json)
demo: build
	@$(BATON) demo $(AGAINST) $(ARGS)

test: check fuzz neighbours host-test

check: lint unit-test

# The kernels with sched_ext that the mirror offers, one after the other.
test-kernels: build
	@for series in $$($(BATON) testbed kernels | cut -d' ' -f1); do \
		echo "== Linux $$series"; \
		BATON_KERNEL_SERIES=$$series $(MAKE) --no-print-directory host-test || exit 1; \
	done

lint: setup
	@echo "checking format and lints"
	@$(CARGO) fmt --all --check
	@$(RUSTFMT) --check $(GUEST)
	@$(CLANG_FORMAT) --dry-run -Werror $(C_FILES)
	@$(CARGO) clippy --workspace --all-targets --release --quiet -- -D warnings

unit-test: setup
	@echo "unit tests"
	@$(CARGO) test --workspace --release --quiet
	@RUSTFLAGS="--cfg loom" $(CARGO) test --quiet -p memslots --test loom \
		--target-dir $(TARGET_DIR)/loom

# The programs are built by 'make test' when it comes here, with what tests need of other crates: a
# plain build would compile most of them again.
BUILT = $(if $(filter test,$(MAKECMDGOALS)),unit-test,build)

# Random scenarios with faults, simulated under scx_baton's own source.
FUZZ_SECONDS ?= 60
fuzz: $(BUILT)
	@echo "fuzzing the scheduler in the simulator ($(FUZZ_SECONDS) s)"
	@$(BATON) sim fuzz --seconds $(FUZZ_SECONDS)

# Random mixtures under EEVDF and scx_baton; those that are known to break a bound:
# docs/policy-limits.md. What breaks one is written to $(TARGET_DIR).
NEIGHBOURS_KNOWN := 22,27,48,55,57,68,81,87,90,91,96
neighbours: $(BUILT)
	@echo "what VMs and host threads lose to their neighbours, in the simulator (two minutes)"
	@cd $(TARGET_DIR) && release/baton sim neighbours --seeds 0..100 --known $(NEIGHBOURS_KNOWN)
	@cd $(TARGET_DIR) && release/baton sim neighbours --host-threads --seeds 0..50

# What the first ones fetch and boot the others need. The others run at once: on QEMU's host, which
# follows the real clock, a test at a time, which takes one core; on the exact host, which gives way
# to it, several, since some wait for what others prepare.
host-test: $(BUILT)
	@echo "tests on emulated KVM hosts (a quarter of an hour)"
	@$(CARGO) test --release --quiet --workspace --test exact -- --test-threads=2 --nocapture
	@$(MAKE) --no-print-directory -j2 on-qemu on-exact

on-qemu:
	@$(CARGO) test --release --quiet --workspace --test qemu -- --test-threads=1 --nocapture

on-exact:
	@nice -n 19 $(CARGO) test --release --quiet --workspace --test host -- --test-threads=6 \
		--nocapture

# An hour of each rig, two of neighbours, and one of mixed load on an emulated host: no part of
# 'make test'. Neighbours are not solved: what breaks a bound is told, and is no error.
SOAK_SECONDS ?= 3600
soak: build
	@$(BATON) sim fuzz --seconds $(SOAK_SECONDS)
	@cd $(TARGET_DIR) && release/baton sim neighbours --seconds $(SOAK_SECONDS) --seeds 1000..1001 || true
	@cd $(TARGET_DIR) && \
		release/baton sim neighbours --cpusets --seconds $(SOAK_SECONDS) --seeds 1000..1001 || true
	@SOAK_SECONDS=$(SOAK_SECONDS) $(CARGO) test --release --quiet -p baton --test qemu \
		goes_on_under_mixed_load -- --ignored --nocapture

# Ray is an extra, and large: no part of 'make test'.
test-ray: build
	@tools/setup python3-venv
	@echo "installing Ray"
	@python3 -m venv $(TARGET_DIR)/ray
	@$(TARGET_DIR)/ray/bin/pip install --quiet 'ray>=2.9'
	@PYTHON=$(abspath $(TARGET_DIR))/ray/bin/python $(CARGO) test --release --quiet -p baton --test ray

# What needs Prometheus, or a browser: no part of 'make test'. With BATON_SCREENSHOTS=DIR one can
# look at what the browser showed.
test-operate: setup
	@tools/setup prometheus chromium-headless-shell
	@echo "testing the metrics with Prometheus"
	@$(CARGO) test --release --quiet -p baton-metrics --test prometheus
	@echo "testing the report of a trial with Chromium (2 minutes)"
	@$(CARGO) test --release --quiet -p baton-trial --test browser
	@echo "testing a trial, and a host under KVM, on emulated hosts (10 minutes)"
	@$(CARGO) build --release --quiet -p baton-testbed -p scx_baton -p baton
	@$(CARGO) test --release --quiet -p baton --test host a_trial -- --ignored --nocapture
	@$(CARGO) test --release --quiet -p baton --test qemu a_host_runs -- --ignored --nocapture

# Valgrind counts instructions; without it only the clock is read.
bench-memslots: setup
	@tools/setup valgrind
	@$(CARGO) bench --quiet -p memslots --bench lookup -- $(if $(JSON),--json $(abspath $(JSON)))

# Events a second, and what a plain event loop and SimPy reach (PYTHON=… names a Python with SimPy).
bench-sim: setup
	@$(CARGO) bench --quiet -p baton-sim --bench scale

# Cache lines that the callbacks touch, and those that another pCPU has written since, simulated.
bench-lines: setup
	@$(CARGO) bench --quiet -p baton-sim --bench lines $(if $(POLICY),-- --policy $(POLICY))

# Processes that look like VMs; a minute for each round.
bench-top: setup
	@$(CARGO) bench --quiet -p baton-top --bench cost -- $(if $(ROUNDS),--rounds $(ROUNDS))
	@$(CARGO) bench --quiet -p baton-top --bench cost -- --baton $(if $(ROUNDS),--rounds $(ROUNDS))

# Halt polling on random mixtures, simulated.
bench-halt-poll: setup
	@$(CARGO) bench --quiet -p baton-sim --bench mixtures

# The policy with each of its rules left out; a minute a rule, all of them an hour.
bench-rules: setup
	@$(CARGO) bench --quiet -p baton-sim --bench rules -- $(if $(RULE),--rule $(RULE)) \
		$(if $(JSON),--json $(abspath $(JSON)))

# Instructions between an event and the task that runs by it, counted on the exact host, under the
# kernel's scheduler, a sched_ext scheduler that does nothing, a public one and scx_baton. The
# public one takes minutes to install, once.
PEERS = $(abspath $(TARGET_DIR))/peers
bench-callbacks: build
	@echo "installing scx_bpfland"
	@BPF_CLANG=$(abspath tools/clang) $(CARGO) install --quiet --root $(PEERS) scx_bpfland
	@$(CARGO) build --release --quiet -p scx_baton --example scx_empty
	@echo "counting instructions on the exact host (10 minutes)"
	@$(CARGO) bench --quiet -p baton --bench callbacks -- \
		--peer $(abspath $(TARGET_DIR))/release/examples/scx_empty --peer $(PEERS)/bin/scx_bpfland \
		$(if $(JSON),--json $(abspath $(JSON))) \
		$(if $(ACCOUNT),--account $(abspath $(ACCOUNT)))

# Two builds in different directories give the same image: takes a second build of everything.
ELSEWHERE = $(TARGET_DIR)/a/directory/elsewhere
test-reproducible: build
	@rm -rf $(ELSEWHERE) && git clone --quiet . $(ELSEWHERE)
	@cd $(ELSEWHERE) && env -u CARGO_TARGET_DIR $(CARGO) build --release --workspace --quiet
	@for program in baton baton-agent scx_baton; do \
		for dir in $(TARGET_DIR) $(ELSEWHERE)/target; do \
			strip -o $$dir/release/stripped-$$program $$dir/release/$$program || exit 1; \
		done; \
		cmp $(TARGET_DIR)/release/stripped-$$program \
			$(ELSEWHERE)/target/release/stripped-$$program || exit 1; \
	done; echo "the same programs"

# The parsers are in the programs, and write the pages from a test: docs/packages.md.
manuals: build
	@rm -rf $(TARGET_DIR)/release/manuals
	@BATON_MANUALS=$(abspath $(TARGET_DIR))/release/manuals \
		$(CARGO) test --release --workspace --quiet --bin baton --bin scx_baton \
		has_manuals >/dev/null

# Builds nothing, since root may run it: 'make manuals' comes first.
PREFIX ?= /usr
export PREFIX DESTDIR
install:
	@packaging/install $(TARGET_DIR)

uninstall:
	@packaging/install --remove

# What is packaged: both tools take it from there.
TREE = $(abspath $(TARGET_DIR))/release/tree
tree: manuals
	@rm -rf $(TREE)
	@DESTDIR=$(TREE) PREFIX=/usr packaging/install $(TARGET_DIR)

PACKAGERS = $(abspath $(TARGET_DIR))/packagers
packagers: setup
	@tools/setup dpkg-dev
	@$(CARGO) install --quiet --locked --root $(PACKAGERS) cargo-deb@3.8.0 cargo-generate-rpm@0.21.1

# Times in packages are those of the commit.
EPOCH = $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
DEB = $(TARGET_DIR)/scx-baton.deb
RPM = $(TARGET_DIR)/scx-baton.rpm
deb: tree packagers
	@SOURCE_DATE_EPOCH=$(EPOCH) $(PACKAGERS)/bin/cargo-deb --quiet -p scx_baton --no-build --no-strip \
		--no-dbgsym --output $(abspath $(DEB)) >/dev/null
	@echo "$(DEB)"

rpm: tree packagers
	@SOURCE_DATE_EPOCH=$(EPOCH) $(PACKAGERS)/bin/cargo-generate-rpm -p scx_baton \
		--target-dir $(abspath $(TARGET_DIR)) --auto-req builtin --output $(RPM)
	@echo "$(RPM)"

# A Debian with systemd, emulated, has the package installed and started; the RPM is looked at only.
test-packages: deb rpm
	@tools/setup rpm mandoc man-db systemd binutils lintian
	@packaging/test $(TARGET_DIR)
	@tools/setup mmdebstrap cpio kmod
	@packaging/test-systemd $(TARGET_DIR)

fmt:
	@$(CARGO) fmt --all
	@$(RUSTFMT) $(GUEST)
	@$(CLANG_FORMAT) -i $(C_FILES)

clean:
	@$(CARGO) clean
