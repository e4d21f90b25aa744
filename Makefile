.DEFAULT_GOAL := help
.PHONY: help setup demo up down test installed kills mutants chaos bench check audit format clean

# Which Python to build on (3.10 to 3.13), for example: make test PYTHON=python3.12
PYTHON ?=
export PYTHON

# More arguments for pytest, for example: make test ARGS="-k sqlite"
ARGS ?=

# How many processes share the tests out, for example: make test WORKERS=0 to run them in one, in order. Two for each
# core of a small machine: many tests wait, for a server, a lease or a process
WORKERS ?= 4

# Where `make up` serves the Airflow UI, for example: make up PORT=9090
PORT ?= 8080

# How long `make chaos` does harm, in seconds, which harms, and to whom: make chaos DURATION=60 SEED=1 SUBJECTS=sqlite,spark
DURATION ?= 600
SEED ?=
SUBJECTS ?=

# Only the guards whose file or sentence has this text in it: make mutants ONLY=rabbitmq
ONLY ?=

# A smaller round of everything: make bench QUICK=1
QUICK ?=

VENV := .venv/bin

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## get everything the other targets need
	@scripts/setup.sh

demo: ## 2,000 orders through a real Airflow and Spark, with a failing destination and a replay
	@echo "homing: the demo takes about two minutes, and the first time some minutes more, for packages of about 1 GB"
	@scripts/setup.sh
	@$(VENV)/python -m demo

up: setup ## the demo's stack, left running with the Airflow UI on localhost
	@$(VENV)/python -m demo up --port $(PORT)

down: ## stop what `make up` started
	@$(VENV)/python -m demo down

test: ## run the tests, against real servers
	@scripts/setup.sh --services
	@$(VENV)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder -m "not matrix and not install" $(ARGS)

installed: ## build the wheel, install it into empty environments as a user would, and run a pipeline there
	@scripts/setup.sh --services
	@$(VENV)/python -m pytest -m install tests/install $(ARGS)

kills: ## SIGKILL every step of a run on a real Airflow, each on its own; ten minutes and more
	@scripts/setup.sh --services
	@$(VENV)/python -m pytest -m matrix --log-cli-level INFO $(ARGS)

mutants: ## take each guard of the code out of a copy of it, and see a named test fail
	@scripts/setup.sh --services
	@$(VENV)/python -m mutants $(if $(ONLY),"$(ONLY)")

chaos: ## kill, stop, starve and restart processes and servers, and count the messages
	@scripts/setup.sh --services
	@$(VENV)/python -m chaos --duration $(DURATION) $(if $(SEED),--seed $(SEED)) $(if $(SUBJECTS),--subjects "$(SUBJECTS)")

bench: ## the same work on Homing and on its peers, as ratios
	@scripts/setup.sh --services
	@$(VENV)/python -m bench $(if $(QUICK),--quick)

check: ## lint, formatting, types, import layers and their drawing
	@scripts/setup.sh --dev
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	$(VENV)/mypy
	$(VENV)/lint-imports
	$(VENV)/python scripts/draw_imports.py --check

audit: setup ## look the pinned packages up among known vulnerabilities; needs the internet
	@test -x var/audit/bin/pip-audit || ($(VENV)/python -m venv var/audit && var/audit/bin/pip install --quiet pip-audit)
	@var/audit/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt

format: ## format the code and mend what the linter can
	@scripts/setup.sh --dev
	$(VENV)/ruff check --fix-only
	$(VENV)/ruff format

clean: ## remove everything that was made here
	rm -rf .venv bench/.venv-peers var spark-warehouse metastore_db derby.log build dist plugins/*.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
