# Every target sets up what it needs: a virtual environment in .venv, pinned by constraints.txt (make demo less of it than the others). `make demo` and `make test` are all you need.
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUNS := $(VENV)/.runs
# The first interpreter that is new enough, looked for once and if needed; name another with `make PYTHON=...`.
ifndef PYTHON
PYTHON = $(eval PYTHON := $(shell for p in python3 python3.11 python3.12 python3.13 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done))$(PYTHON)
endif
VARIANT ?= prefix_lm
OUT ?= out
export OMP_NUM_THREADS ?= 1
# Bytecode is kept, whatever the shell says: workers and the processes that tests start read it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test thorough peer-tests reports lint format docs dist setup-site site picture bench clean

help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

setup: $(STAMP)  ## create .venv and install the project in it

# What runs kernels is installed in half the time of all that tests need. $(1): extras; $(2): what they are for; $(3): further options of pip's.
define install
	@test -n "$(PYTHON)" || { echo "make: no Python >= 3.11 found; install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version), once, $(2): PyTorch is a large download, this can take some minutes"
	@test -x $(BIN)/python || { echo "1 of 2: the virtual environment"; $(PYTHON) -m venv $(VENV); }
	@echo "2 of 2: the packages"
	@set -o pipefail; $(BIN)/python -m pip install --disable-pip-version-check --no-input $(3) -c constraints.txt -e '.[$(1)]' \
		| sed -u -n -E 's/^(Collecting [^ ]+|  Downloading .*MB\)|Installing collected packages|Successfully installed).*/\1/p'
endef

$(STAMP): pyproject.toml constraints.txt
	$(call install,dev,for all targets,)
	@touch $@ $(RUNS)
	@echo "set up: make test, make demo, or $(BIN)/cuir --help"

# Without bytecode, which the first import writes of what it imports alone.
$(RUNS): pyproject.toml constraints.txt
	$(call install,gpu,to run cuir,--no-compile)
	@touch $@

demo: $(RUNS)    ## the main job: the causal expert kernel becomes a PrefixLM kernel (VARIANT=..., OUT=...)
	@$(BIN)/cuir bridge $(VARIANT) --out $(OUT)/$(VARIANT)
	@echo
	@echo "next: . $(BIN)/activate   # puts cuir on the PATH"
	@echo "      cuir bridge mine.py:my_mask    # a mask_mod or score_mod of your own, as for FlexAttention"
	@echo "      docs/verification.md says what was tested, docs/flex.md how to call the kernel from PyTorch"

test: $(STAMP)   ## the test suite; of sweeps a seeded sixteenth (PYTEST="--durations=20" adds options)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -q $(PYTEST)

thorough: $(STAMP) ## every test: sweeps in whole, and what takes long (PYTEST="--thorough=rest": only what `make test` leaves out; ON=ray:HOST:PORT: files as tasks)
	@$(BIN)/python -m $(if $(ON),tests.campaign --on $(ON) --journal $(OUT)/thorough.jsonl,pytest -n 2 --dist worksteal -q --thorough=all $(PYTEST) || \
		{ status=$$?; printf '%s\n' 'make thorough PYTEST=--lf   # what failed' 'make thorough ON=local   # goes on after an interruption'; exit $$status; })

peer-tests: $(STAMP) ## the scenarios of PyTorch's FlexAttention tests and of attention-gym, interpreted: counts (PEER="--backend native -j 8" on a GPU)
	@$(BIN)/python -m tests.peer --tables --out $(OUT)/peer.jsonl $(PEER)

reports: $(STAMP) ## public reports rebuilt (docs/public_reports.md), interpreted, forward and gradients: counts
	@$(BIN)/python -m tests.peer.reports --out $(OUT)/forward.jsonl && $(BIN)/python -m tests.peer.reports --part gradients --out $(OUT)/gradients.jsonl

lint: $(STAMP)   ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP) ## lay out the code and apply safe fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(STAMP)   ## write what is generated again: docs/reference.md, docs/errors.md, docs/passes.md, the grammar in editors, the variants in docs/variants.md, the transcripts in docs/models.md
	@$(BIN)/cuir ops --markdown > docs/.page && mv docs/.page docs/reference.md
	@$(BIN)/cuir explain --markdown > docs/.page && mv docs/.page docs/errors.md
	@$(BIN)/cuir lower --passes --markdown > docs/.page && mv docs/.page docs/passes.md
	@$(BIN)/python -c 'import json; from cuir.integrations.highlighting import make_grammar; print(json.dumps(make_grammar(), indent=2))' > docs/.page && mv docs/.page editors/vscode/syntaxes/cuir.tmLanguage.json
	@$(BIN)/python -m benchmarks.variants docs/variants.md docs/img/variants.png
	@$(BIN)/python -m benchmarks.transcripts docs/models.md

dist: $(STAMP)   ## source distribution and wheel in out/dist; the wheel is built from the former
	@rm -rf out/dist && mkdir -p out/dist
	@$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("out/dist")' >/dev/null
	@$(BIN)/python -m pip wheel --disable-pip-version-check --no-input -q --no-deps --no-build-isolation -w out/dist out/dist/*.tar.gz
	@ls out/dist

setup-site: $(STAMP) ## install what builds the site, if it is missing
	@$(BIN)/python -c 'import material, mkdocstrings_handlers.python' 2>/dev/null || \
		$(BIN)/python -m pip install --disable-pip-version-check --no-input -q -c constraints.txt -e '.[site]'

site: setup-site ## build the site in out/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "out/site/index.html; $(BIN)/python -m http.server -d out/site serves it"

picture: $(STAMP) ## draw the pictures of the README and the pages from programs and interpreter traces
	@$(BIN)/python -m benchmarks.picture docs/img/timeline.png
	@$(BIN)/python -m benchmarks.barrier_pictures docs/img
	@$(BIN)/python -m benchmarks.overview_picture docs/img/overview.svg

bench: $(STAMP)  ## speed of the interpreter on this machine
	@$(BIN)/python -m benchmarks.interp

clean:           ## remove what make has built
	rm -rf $(VENV) build out .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
