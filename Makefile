# Every target makes the environment first, and finds it made the second time.
PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,$(if $(shell $(p) -c 'import sys; print(sys.version_info >= (3, 11) or "")' 2>/dev/null),$(p))))
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint bench faults clean

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "dsindex needs Python 3.11, 3.12 or 3.13 (set PYTHON=/path/to/python)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/dsindex demo

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m tests.benchmarks $(ARGS)

faults: $(READY)
	$(BIN)/python -m pytest tests/faults --long-faults

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache demo-output bench-output
