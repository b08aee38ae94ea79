# One virtual environment, five jobs. PYTHON picks the interpreter, VENV the folder.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup lint test package gate clean

help:
	@echo "make gate   set up, pull the demo pair, prove tree == linear on prompts/10.jsonl"
	@echo "make test   set up, run the test suite"
	@echo "make package  set up, build the wheel, try it in an empty environment"
	@echo "make lint   formatting, linting, types, import rules"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints-cpu.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints-cpu.txt --editable '.[dev]'
	@touch $@

lint: $(STAMP)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pre-commit run --all-files

test: $(STAMP)
	@mkdir -p reports
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --dist=loadfile --quiet --junitxml=reports/tests.xml

package: $(STAMP)
	$(BIN)/python -m pytest --quiet -m slow tests/startup/test_installed_wheel.py

gate: $(STAMP)
	@mkdir -p reports
	$(BIN)/jetspec gate --prompts prompts/10.jsonl \
		--out reports/gate.json --junit reports/gate.xml --summary reports/gate.md

clean:
	rm -rf $(VENV) reports .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
