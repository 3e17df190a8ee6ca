# make demo   trains on handwritten digits, evaluates on digits never seen, indexes, searches, shows the result
# make test   what says that the project is sound: lint, types, tests, doctests, the README's commands
#             (make test-all: the tests marked slow too)
# Both set up .venv first, pinned by constraints.txt; all they need is Python 3.11, pip, make and git.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO := demo
# Threads that spin while they wait for a busy core are far slower than threads that sleep.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test test-all lint format types tests clean

demo: $(INSTALLED)
	$(BIN)/python examples/demo.py $(DEMO)

test: lint types tests

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(INSTALLED)
	$(BIN)/mypy

tests: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m "not slow"

test-all: lint types
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(DEMO) .mypy_cache .pytest_cache .ruff_cache
