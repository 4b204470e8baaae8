# Two commands are all a newcomer needs: `make demo` and `make test`. Both set up what they need, once.
#
#   .venv       what `make demo` needs (package with its service and app)
#   .venv-dev   what tests, benchmarks and lint need as well (a real vLLM engine for the CPU, a browser driver, …)
#
# A stamp file in each environment remembers what it was made from, so a second run installs nothing and needs no network.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The first interpreter that runs and is new enough: some installations put names on the PATH that only print an error.
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
endif
DEMO_ENV ?= .venv
DEV_ENV ?= .venv-dev
BIN := $(DEV_ENV)/bin
PIP_FLAGS := --quiet --disable-pip-version-check --no-warn-script-location
WORKERS ?= 3  # test files at a time: much of a test with engines and browsers is waiting; each may hold an engine of a few GB
BROWSER := tests/browser

.PHONY: help demo test bench lint docs campaign dev tools clean
help:
	@echo "make demo      a run that is trained live and rescued, through the whole pipeline; prints the dashboard's address"
	@echo "make test      all tests, on a real engine and in a real browser (ARGS='-k name' to choose)"
	@echo "make bench     benchmarks: one table, one bench.json (ARGS='recorder ingest' to choose)"
	@echo "make lint      formatting, lint, types, import layers, wording"
	@echo "make docs      the documentation as a site, in strict mode"
	@echo "make campaign  what takes longer than anybody waits for; lists them (NAME=zoo runs one, ARGS='…' to choose)"
	@echo "make dev       the development environment only"
	@echo "make clean     remove environments and caches"

define check_python
	@test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.13 found; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; } || \
	  { echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 1; }
endef

$(DEMO_ENV)/.logprobe-ready: pyproject.toml
	$(check_python)
	@echo "setting up $(DEMO_ENV) (once, about a minute) …" >&2
	@test -x $(DEMO_ENV)/bin/python || $(PYTHON) -m venv $(DEMO_ENV)
	@PYTHONWARNINGS=ignore $(DEMO_ENV)/bin/python -m pip install $(PIP_FLAGS) -e '.[serve]'
	@touch $@

$(DEV_ENV)/.logprobe-ready: pyproject.toml tests/campaigns/environments.py
	$(check_python)
	@$(PYTHON) tests/campaigns/environments.py dev $(DEV_ENV)
	@touch $@

.venv-docs/.logprobe-ready: tests/campaigns/environments.py
	$(check_python)
	@$(PYTHON) tests/campaigns/environments.py docs .venv-docs
	@touch $@

$(BROWSER)/node_modules/.ready: $(BROWSER)/package-lock.json | tools
	@cd $(BROWSER) && npm install --no-save --no-audit --no-fund --loglevel=error
	@touch $@

# An environment that was moved along with its directory has wrong paths in its scripts: start `python -m`, not scripts.
demo: $(DEMO_ENV)/.logprobe-ready
	@exec $(DEMO_ENV)/bin/python -m logprobe.app.cli demo $(ARGS)

dev: $(DEV_ENV)/.logprobe-ready

# Programs of the system that tests use. What is missing is installed by root where there is apt-get; else its tests are skipped and say so.
tools:
	@$(PYTHON) tests/campaigns/tools.py

test: dev tools
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder $(ARGS)

bench: dev
	@$(BIN)/python tests/benchmarks/run.py $(ARGS)

# Two at a time: types take as long as all the rest. Type checkers do not follow the mapping of folder X to logprobe.X in pyproject.toml; a folder
# of links spells it out.
PARTS := collectors monitor alerts app
TYPED := .mypy_cache/source
lint: dev $(BROWSER)/node_modules/.ready
	@mkdir -p $(TYPED)/logprobe && for part in $(PARTS); do ln -sfn ../../../$$part $(TYPED)/logprobe/$$part; done
	@MYPYPATH=$(TYPED) $(BIN)/python -m mypy $(PARTS:%=-p logprobe.%) & types=$$!; \
	  $(BIN)/python -m ruff format --check . && $(BIN)/python -m ruff check . && $(BIN)/python -c 'from importlinter.cli import lint_imports_command as lint; lint()' --no-cache && \
	  $(BIN)/python tests/wording/check.py && (cd $(BROWSER) && npm run --silent lint) || { wait $$types || true; exit 1; }; wait $$types

# API pages from docstrings and tables from declarations; any warning fails the build.
docs: .venv-docs/.logprobe-ready
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict
	@echo "built: .artifacts/site/index.html"

campaign:
	$(check_python)
	@$(PYTHON) tests/campaigns/run.py $(NAME) $(if $(ARGS),-- $(ARGS))

clean:
	rm -rf $(BROWSER)/node_modules $(DEMO_ENV) $(DEV_ENV) .venv-* .demo .artifacts build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
