# One door to everything: `make` lists the targets. The first target you run makes .venv.

SHELL := /bin/sh
.DEFAULT_GOAL := help

PY := .venv/bin/python

# .venv is made again when the lock changes or the folder moves; the project is installed into it
# again when pyproject.toml changes. The keys are made of content: a fresh checkout touches every
# file, and that alone is no reason to set up anything.
LOCK_KEY := $(shell { cat requirements.lock; pwd; } | cksum | tr -s ' \t' '--')
PROJECT_KEY := $(shell cat pyproject.toml | cksum | tr -s ' \t' '--')
LOCKED := .venv/.locked-$(LOCK_KEY)
READY := .venv/.ready-$(LOCK_KEY)-$(PROJECT_KEY)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: quickstart
quickstart: $(READY) ## See it work: the shortest tour, on your machine; without Java, it does without Spark
	@$(PY) examples/quickstart.py

# Tests of one group stay in one process, and the longest come first: see tests/running.py.
# WORKERS=1 or another number takes the place of half as many again as there are cores.
WORKERS ?= auto
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder \
	$(if $(TIMES),--junitxml="$(TIMES)")

.PHONY: test
# Only from the command line: a variable of the environment must not make CI run a part.
ifeq ($(origin PACKAGE),command line)
test: bytecode
	$(PYTEST) -m "not release" $(addprefix tests/,$(PACKAGE))
else
test: java lint bytecode ## Everything that CI runs: lint, types, layers, tests; PACKAGE=log runs the tests of one package
	$(PYTEST) -m "not release"
endif

.PHONY: test-all
test-all: export LOWMARK_TESTS_ON = disk
test-all: java lint bytecode ## Before a release: the same, and the tests that take long
	$(PYTEST)

.PHONY: check
check: java lint bytecode ## A minute or two: format, lint, types, layers, fast tests
	$(PYTEST) -m "not slow and not release"

.PHONY: lint
lint: $(READY) ## Format, lint, types and layers, without tests
	$(PY) -m ruff format --check --quiet .
	$(PY) -m ruff check --quiet .
	$(PY) -m mypy
	.venv/bin/lint-imports --no-logo

# Before a suite takes its minutes, and before .venv is made for it.
.PHONY: java
java:
	@scripts/preflight.sh java

# Tests start hundreds of processes. Where the environment forbids Python to write bytecode, each of
# them would compile every module again: half a second of processor time each. Test files are left
# out: pytest compiles them in its own way.
.PHONY: bytecode
bytecode: $(READY)
	@$(PY) -m compileall -q -x '/(test_[^/]*|conftest)\.py$$' src tests benchmarks

.PHONY: format
format: $(READY) ## Format the code and fix what can be fixed safely
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

.PHONY: sim
sim: export LOWMARK_SIM_SEEDS ?= 2000
sim: $(READY) ## Many simulated worlds; SEED=17 replays one, LOWMARK_SIM_SEEDS=9000 runs more
	$(PY) -m pytest tests/sim tests/compaction/test_lives.py $(if $(SEED),-vv,-n auto)

.PHONY: torture
torture: MINUTES ?= 10
torture: bytecode ## Three nodes, killed, cut off and suspended for MINUTES=10; HISTORY=DIR keeps what clients did, HOSTS=1 has hosts
	PYTHONPATH=tests $(PY) -m torture.run --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(HISTORY),--history "$(HISTORY)") $(if $(HOSTS),--hosts)

.PHONY: linearizable
linearizable: MINUTES ?= 2
linearizable: bytecode ## Check a history by Porcupine (needs Go): HISTORY=DIR; or RUNS=20 MINUTES=2 makes some, KEEP=DIR keeps them
	@PYTHONPATH=tests $(PY) -m linearizable.run $(if $(HISTORY),--history "$(HISTORY)",$(if $(RUNS),--runs $(RUNS) --minutes $(MINUTES))) \
		$(if $(SEED),--seed $(SEED)) $(if $(KEEP),--keep "$(KEEP)") $(if $(HOSTS),--hosts)

.PHONY: golden
golden: $(READY) ## Write what the code prints now into tests/scenarios; read the difference, then commit
	REWRITE=1 $(PY) -m pytest -q tests/scenarios

.PHONY: bench
bench: $(READY) ## Measure log, groups, catalog, tables, server, compaction, moves and upkeep, beside their peers
	@.venv/bin/lowmark bench log
	@.venv/bin/lowmark bench group
	@.venv/bin/lowmark bench catalog
	@.venv/bin/lowmark bench table
	@.venv/bin/lowmark bench server
	@.venv/bin/lowmark bench compact
	@.venv/bin/lowmark bench spark
	@.venv/bin/lowmark bench rebalance
	@.venv/bin/lowmark bench upkeep

.PHONY: lock
lock: ## Choose the newest versions again and write requirements.lock (needs uv)
	@command -v uv >/dev/null || \
		{ echo "lowmark: uv is needed to make the lock: install it with \`pipx install uv\`" >&2; exit 1; }
	uv pip compile pyproject.toml --group dev --extra bench --extra spark --extra pictures --extra tls --extra delta --extra iceberg --upgrade --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
		--quiet --output-file requirements.lock

.PHONY: clean
clean: ## Remove everything that make made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(LOCKED):
	@python=$$(scripts/preflight.sh) || exit 1; \
	echo "lowmark: making .venv with $$python (once)"; \
	"$$python" -m venv --clear .venv
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

$(READY): $(LOCKED)
	@rm -f .venv/.ready-*
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--no-index --editable .
	@touch $@
