# Every target makes .venv and installs what it needs: one command is enough on a machine that has
# Python 3.10 or newer and make. With a C++ compiler Linux gets the fast path, without one it works.

PYTHON ?= python3
BIN := .venv/bin
# Containers often set it: then each of the suite's many processes compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo embedded screenshots test test-all test-install standalone faults fuzz kernels lint format \
  biome docs bench requirements clean

help:
	@echo "make demo   chat with a small model in the browser, and watch what it remembers"
	@echo "make test   the test suite; make test-all adds its long checks"
	@echo "make faults   kill training, an experiment and a conversion 54 times each, and count the losses"
	@echo "make test-install   the wheel in empty environments without a compiler"
	@echo "make standalone   a saved model in an environment that has mlx-lm alone"
	@echo "make fuzz   broken files for each reader; EXAMPLES=9999, TARGETS=\"torch or jsonl\""
	@echo "make kernels   count the GPU kernels' instructions: benchmarks/results/kernels.md"
	@echo "make lint   ruff, mypy, clang-format and biome"
	@echo "make docs   build these pages and the API reference into build/site"
	@echo "make bench  time our code beside the other packages that are installed"
	@echo "make clean  remove .venv and caches"

# Ctrl-C, the only way to end it, is no error.
demo: .venv/installed
	@echo "Starting the app: a browser opens; Ctrl-C ends it."
	@trap : INT; MALLOC_ARENA_MAX=2 $(BIN)/python -m app --open; code=$$?; test $$code -eq 130 || exit $$code

# Makes the embedded models again, some fifteen hours on two cores (estimate).
embedded: .venv/installed-all
	$(BIN)/python -m benchmarks.embedded_models.corpus runs/corpus
	$(BIN)/python -m benchmarks.embedded_models.library runs/library runs/answers
	for name in demo demo-fixed; do \
	  $(BIN)/gateloop train --config $$name --data runs/corpus --out runs/$$name && \
	  $(BIN)/python -m benchmarks.embedded_models.package runs/$$name app/embedded_models/$$name || exit; \
	done
	$(BIN)/gateloop train --config code --data runs/library --out runs/code
	rm -rf runs/plain && cp -r runs/code runs/plain
	sed -i.old 's/"dropout": 0.15/"dropout": 0.0/' runs/plain/config.json
	$(BIN)/gateloop tune --model runs/plain --data runs/answers --out runs/answered --length 1024 --steps 124 \
	  --seed 1 --set optimizer.learning_rate=0.0002 --set optimizer.state_transition_learning_rate=0.0001 \
	  --set optimizer.warmup_steps=10 --set eval_every=124
	$(BIN)/python -m benchmarks.embedded_models.package runs/code runs/answered app/embedded_models/code
	$(BIN)/python -m benchmarks.embedded_models.lab runs/lab app/embedded_models/lab

screenshots: .venv/installed-dev
	$(BIN)/python docs/screenshots.py

# Three processes, on two cores too: the browser's tests often wait. Each takes some 1 GB.
PYTEST := $(BIN)/python -m pytest -n 3 --dist worksteal

test: .venv/installed-dev
	$(PYTEST) -m "not slow"

test-all: .venv/installed-dev
	$(PYTEST)

faults: .venv/installed-dev
	KILLS=54 $(BIN)/python -m pytest tests/faults/test_kills.py

# The wheel in empty environments, where its commands run: takes minutes.
test-install: .venv/bin/python
	$(BIN)/python .ci/check_install.py

# A saved model in an environment that has mlx-lm alone: takes minutes.
standalone: .venv/installed-dev
	$(BIN)/python -m pytest tests/mlx_lm_commands/test_standalone.py

# What the GPU kernels cost, counted without a GPU.
kernels: .venv/installed-dev
	PYTHONPATH=tests $(BIN)/python -m harness.instructions

# One process, of the lowest priority; a hang is shown after two minutes.
EXAMPLES ?= 200
fuzz: .venv/installed-dev
	EXAMPLES=$(EXAMPLES) nice -n 19 $(BIN)/python -m pytest -o faulthandler_timeout=120 tests/fuzz -k "$(TARGETS)"

CPP := $(wildcard mlx_gateloop/ops/cpu/src/*.[ch]* tests/harness/cpu/*.[ch]*)

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	@$(MAKE) --no-print-directory biome

format: .venv/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)
	@$(MAKE) --no-print-directory biome WRITE=--write

# The app's scripts and styles, checked by a tool from npm.
biome:
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory node_modules/installed && \
	  node_modules/.bin/biome check --error-on-warnings $(WRITE) .; \
	else echo "the scripts were not checked: there is no npm (it comes with node)"; fi

node_modules/installed: package.json
	npm install --loglevel=error --no-audit --no-fund --no-package-lock
	@touch $@

docs: .venv/installed-docs
	$(BIN)/python docs/shared_pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: .venv/installed-all
	$(BIN)/python -m benchmarks.peers ops
	$(BIN)/python -m benchmarks.peers model
	$(BIN)/python -m benchmarks.peers train

requirements: .venv/installed
	$(BIN)/python .ci/requirements.py > requirements.txt

clean:
	rm -rf .venv build node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "error: $(PYTHON) is older than 3.10; name a newer one: make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv .venv

EXTENSION := $(wildcard mlx_gateloop/ops/cpu/src/*)

PIP := $(BIN)/python -m pip install --disable-pip-version-check

.venv/installed: .venv/bin/python pyproject.toml CMakeLists.txt $(EXTENSION)
	@echo "Installing the app, once: it downloads 115 MB and takes 550 MB on disk."
	@echo "On Linux it compiles for about a minute, while pip says 'Preparing editable metadata'."
	$(PIP) --no-compile -e ".[app]"
	@touch $@
	@$(BIN)/python -c 'from mlx_gateloop.commands import doctor; doctor.print_what_is_missing()'

.venv/installed-all: .venv/installed requirements.txt
	@echo "Installing what training and converting need: once."
	$(PIP) -r requirements.txt
	@touch $@

.venv/installed-dev: .venv/installed requirements.txt requirements-dev.txt requirements-torch.txt
	@echo "Installing what tests and lint need, PyTorch among it: once."
	$(PIP) -r requirements-dev.txt
	$(BIN)/python -m venv .venv/torch
	$(PIP:.venv/%=.venv/torch/%) -r requirements-torch.txt
	@test "$$(uname)" != Linux || (cd .venv/lib/python3.*/site-packages/mlx/include && $(PRECOMPILE)) || \
	  echo "MLX's header was not compiled: the tests take longer."
	@touch $@

# On Linux MLX compiles 600 fused operations while the tests run, all with this header: a third of
# their time, unless GCC finds it compiled, with MLX's own options. Another MLX needs it again.
PRECOMPILE := g++ -std=c++17 -O3 -Wall -fPIC -w -I . -x c++-header mlx/backend/cpu/compiled_preamble.h

.venv/installed-docs: .venv/bin/python requirements-docs.txt
	@echo "Installing what builds the pages: once."
	$(PIP) -r requirements-docs.txt
	@touch $@
