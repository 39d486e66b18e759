# Every target sets up what it needs; `make` alone lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Tests start hundreds of Python processes, and each would compile what nobody has kept.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
WORKERS ?= auto
TESTS ?=
SECONDS_EACH ?= 100
KILLS ?= 1000
MINUTES ?= 20
SEED ?=
HOT_SOURCES := $(shell find src/polywire -name '*.py')
INSTALLED := $(VENV)/.installed
NODE_TOOLS := clients/javascript/node_modules/.package-lock.json
SPARK := $(VENV)/.spark/classes
BUILT := $(VENV)/.built$(if $(filter-out 0,$(POLYWIRE_PURE)),-pure)

.PHONY: help setup lock build proto docs site prepare test lint format conformance fuzz faults soak bench bench-wire bench-hub bench-journal bench-clients bench-cluster bench-pipeline demo run package clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: $(BUILT) $(NODE_TOOLS) ## create .venv with everything the other targets need, including compiled modules
	@tools/debian-packages
	@$(BIN)/python -c 'import polywire; c = polywire.compiled(); print(f"polywire {polywire.__version__} in $(VENV): {sum(c.values())} of {len(c)} hot modules compiled")'

$(INSTALLED): requirements-dev.lock pyproject.toml setup.py
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing dependencies into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	@POLYWIRE_PURE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

lock: $(INSTALLED) ## write requirements-dev.lock: the newest versions that pyproject.toml allows, with hashes
	@{ head -1 requirements-dev.lock; \
	   $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --generate-hashes --no-header --no-annotate \
	       --no-emit-index-url --extra pipeline --group dev pyproject.toml; } >build/requirements-dev.lock
	@mv build/requirements-dev.lock requirements-dev.lock
	@echo "requirements-dev.lock: $$(grep -c '==' requirements-dev.lock) packages"

$(BUILT): $(INSTALLED) $(HOT_SOURCES)
	@echo "building the hot modules"
	@# What an interrupted build wrote may be cut off, and would be taken for up to date.
	@test ! -e build/.begun || find build src -newer build/.begun \( -name '*.o' -o -name '*.so' \) -delete
	@mkdir -p build && touch build/.begun
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@rm build/.begun
	@find src -name "*.so" -exec touch {} + # an unchanged module is not rebuilt, but is up to date
	@touch $@

$(NODE_TOOLS): clients/javascript/package-lock.json
	@if ! command -v npm >/dev/null; then echo "npm is not installed: tests of the JavaScript client will be skipped" >&2; \
	 else echo "installing the JavaScript client's development tools"; \
	    { npm ci --prefix $(dir $<) --no-audit --no-fund --loglevel error >/dev/null && touch $@; } || \
	    echo "npm could not install them; the tests that use them will be skipped" >&2; fi

build: $(BUILT) ## compile the hot modules in place (not with POLYWIRE_PURE=1)

proto: $(INSTALLED) ## generate the protobuf modules from their .proto files
	@$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src $$(find src -name '*.proto')

$(SPARK): $(INSTALLED) tests/spark_home.py | $(BUILT)
	@echo "making the tests' Spark, which starts faster"
	@$(BIN)/python -m tests.spark_home

prepare: setup $(SPARK) ## make what the processes of a test run share: a Spark that starts faster, compiled tests
	@$(BIN)/python -m pytest --collect-only -q | tail -1

test: setup $(SPARK) ## run all tests, the conformance table and a second of fuzzing each codec; TESTS=… selects tests
	@$(BIN)/python -m pytest -n $(WORKERS) $(or $(TESTS),--conformance)

lint: $(INSTALLED) ## ruff, mypy strict, import contracts, import cycles
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/import_cycles.py

format: $(INSTALLED) ## fix and format the code with ruff
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(BUILT) ## generate the parts of the documentation that come from the code
	@$(BIN)/python -m tests.docs.configuration_tables
	@POLYWIRE_PURE=1 $(BIN)/python -m tests.docs.public_names
	@POLYWIRE_PURE=1 $(BIN)/python -m tests.docs.python_reference
	@POLYWIRE_PURE=1 $(BIN)/python -m tests.docs.architecture
	@$(BIN)/python -m tests.docs.command_reference
	@$(BIN)/python -m tests.docs.conformance_tables

site: $(INSTALLED) ## build the documentation as a site in build/site; any warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "build/site/index.html; with search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

conformance: setup ## per protocol: rules written down, rules proven by a passing test, rules missing
	@$(BIN)/python -m pytest -n $(WORKERS) -q -m rule --conformance

fuzz: setup ## fuzz every codec, and sessions on every listener of a hub, SECONDS_EACH (default 100) seconds each
	@$(BIN)/python -m fuzz --seconds $(SECONDS_EACH)
	@$(BIN)/python -m fuzz --sessions --seconds $(SECONDS_EACH) $(if $(SEED),--seed $(SEED))

faults: setup ## attack the hub, kill it KILLS (default 1000) times amid other faults, and the pipeline 50 times; SEED=… repeats a run
	@$(BIN)/python -m faults attacks
	@$(BIN)/python -m faults kills --kills $(KILLS) $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m faults pipeline $(if $(SEED),--seed $(SEED))

soak: setup ## churn on all protocols for MINUTES (default 20); memory must stay flat
	@$(BIN)/python -m faults soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

bench: bench-wire bench-hub bench-journal bench-clients bench-cluster bench-pipeline ## run all benchmarks

bench-wire: setup ## ns per frame of each codec, compiled and interpreted
	@$(BIN)/python -m benchmarks.wire

bench-hub: setup ## the hub against nats-server, and against its goals for many subscriptions, connections, slow readers
	@$(BIN)/python -m benchmarks.hub

bench-journal: setup ## the journal against none, nats-server and Mosquitto; starting with it; compacting it
	@$(BIN)/python -m benchmarks.journal

bench-clients: setup ## our clients against aiomqtt, nats-py and grpc.aio; how long the import takes
	@$(BIN)/python -m benchmarks.clients

bench-cluster: setup ## hubs that are one, against nats-server over a route: throughput, latency, cost of a message
	@$(BIN)/python -m benchmarks.cluster

bench-pipeline: setup ## the pipeline: throughput, delay, cost of a step without rows
	@$(BIN)/python -m benchmarks.pipeline

demo: setup ## run a demo over all five protocols, including a killed hub, and show the Spark tables
	@rm -rf build/demo
	@$(BIN)/polywire demo --folder build/demo

run: setup ## run hub and pipeline on loopback until Ctrl-C, without traffic; data in the directory data
	@$(BIN)/polywire demo --run --folder data

package: $(INSTALLED) ## wheel and sdist into dist, each installed and used in an empty environment
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist .
	@# A wheel that an index takes says which systems its modules run on, not only that it was made on a Linux.
	@PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --wheel-dir dist dist/*-linux_*.whl && rm dist/*-linux_*.whl
	@$(BIN)/python tools/smoke_package.py dist

clean: ## remove everything the other targets created
	@rm -rf $(VENV) build dist clients/javascript/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache fuzz/corpus fuzz/crashes
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@find src -name '*.so' -delete
	@rm -rf src/*.egg-info
