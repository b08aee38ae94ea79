# One virtual environment, five jobs, and one of its own for SGLang's wheel. PYTHON picks the interpreter, VENV the folder.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SGLANG_VENV ?= .venv-sglang
SGLANG_TESTS ?= tests/sglang

.PHONY: help setup lint test package gate sglang sglang-wheel clean

help:
	@echo "make gate   set up, pull the demo pair, prove tree == linear on prompts/10.jsonl"
	@echo "make test   set up, run the test suite"
	@echo "make package  set up, build the wheel, try it in an empty environment"
	@echo "make sglang   try the plugin on SGLang's wheel, without a GPU and without the wheel's dependencies"
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

# A second environment over the first: the wheel's versions win, torch is not installed twice.
$(SGLANG_VENV)/.installed: $(STAMP) tests/sglang/requirements.txt tests/sglang/requirements-alone.txt
	$(BIN)/python -m venv --clear $(SGLANG_VENV)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(SGLANG_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/over.pth"
	$(SGLANG_VENV)/bin/python -m pip install --quiet --constraint constraints-cpu.txt --requirement tests/sglang/requirements.txt
	$(SGLANG_VENV)/bin/python -m pip install --quiet --no-deps --requirement tests/sglang/requirements-alone.txt
	@touch $@

sglang-wheel: $(SGLANG_VENV)/.installed

sglang: sglang-wheel
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 $(SGLANG_VENV)/bin/python -m pytest --quiet -m sglang $(SGLANG_TESTS)

clean:
	rm -rf $(VENV) $(SGLANG_VENV) reports .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
