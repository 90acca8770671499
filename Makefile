# `make verify` shows the reference cache verified; `make test` runs what a pull request must pass, `make test-all` every suite in
# full. Each makes .venv first.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt

# tox looks for interpreters on PATH; pyenv keeps those that are not in use elsewhere.
PYENV := $(or $(shell pyenv root 2>/dev/null),$(HOME)/.pyenv)
export TOX_DISCOVER ?= $(lastword $(wildcard $(PYENV)/versions/3.10.*/bin/python3.10))

# A run starts many processes, and without bytecode each of them compiles the suites. Images of containers often set this.
unexport PYTHONDONTWRITEBYTECODE

# pip would compile all modules of all libraries, and most of them are never imported. Python compiles those that are.
export PIP_COMPILE ?= no

.PHONY: verify test test-all clean

verify: .venv/kit
	$(BIN)/hicache verify $(ARGS)

# Two environments at a time: many tests wait for processes, and the others use the cores meanwhile. The environment
# `install` installs what they share; environments that are named in ARGS may lack it, and no two may install side by side.
test: $(if $(ARGS),.venv/dev,$(BIN)/tox)
	$(BIN)/tox run-parallel --parallel 2 --parallel-no-spinner $(or $(ARGS),-m pull-request)

test-all: $(BIN)/tox
	$(BIN)/tox run-parallel --parallel 2 --parallel-no-spinner

clean:
	rm -rf .venv .tox build dist reports *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks

$(BIN)/python:
	@echo "Creating .venv."
	@$(PYTHON) -m venv .venv

# tox alone: its environment `install` installs the rest, while others run that need nothing of it.
$(BIN)/tox: constraints.txt | $(BIN)/python
	@echo "Installing tox into .venv."
	$(INSTALL) tox
	@touch $@

# Each of these files says that .venv holds: the kit; what we work with; that and what runs models.
.venv/kit: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing hicache[torch,testing] into .venv: torch and what the kit imports."
	$(INSTALL) --editable '.[torch,testing]'
	@touch $@

.venv/dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing hicache[dev] into .venv: torch, what the kit imports, and tools."
	$(INSTALL) --editable '.[dev]'
	@touch .venv/kit $@

.venv/models: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing hicache[dev,accuracy] into .venv: torch, what the kit imports, tools, and what runs models."
	$(INSTALL) --editable '.[dev,accuracy]'
	@touch .venv/kit .venv/dev $@
