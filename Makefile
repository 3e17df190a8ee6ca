# make demo   trains on emoji from ImageNet weights, evaluates on others never seen, indexes, searches, shows the result
# make test   what says that the project is sound: lint, types, documentation, tests, doctests, the README's commands
#             (make test-all: the tests marked slow too)
# make docs   builds the documentation site into build/docs; a warning or a broken link is an error, also in old pages
# Each sets up .venv first, pinned by constraints.txt; all they need is Python 3.11, pip, make and git.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WEIGHTS := $(VENV)/.weights
DEMO := demo
SITE := build/docs
# Threads that spin while they wait for a busy core are far slower than threads that sleep.
export OMP_WAIT_POLICY ?= PASSIVE
# Let Python write bytecode, also where the environment says not to: else each process compiles torch anew, in 11 seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all lint format types docs tests clean

demo: $(WEIGHTS)
	$(BIN)/python examples/demo.py $(DEMO)

# The checks take one core each, so two run at a time. Some tests wait for servers and processes, so three run at a time on
# two cores: 6 minutes in place of 7 and a half.
test: $(INSTALLED)
	$(MAKE) --jobs=2 --output-sync=target lint types docs
	$(MAKE) tests

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(INSTALLED)
	$(BIN)/mypy

docs: $(INSTALLED)
	$(BIN)/sphinx-build --fresh-env --fail-on-warning --nitpicky --keep-going --quiet docs $(SITE)
	@echo "$(SITE)/index.html"

tests: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal -m "not slow"

test-all: $(INSTALLED)
	$(MAKE) --jobs=2 --output-sync=target lint types docs
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal

# Only what is imported is compiled, when it first is (--no-compile): 48 in place of 84 seconds of CPU time.
# The demo needs less than the tests, and the tests have it too.
$(WEIGHTS): pyproject.toml constraints.txt
	test -e $(INSTALLED) || $(PYTHON) -m venv $(VENV)
	test -e $(INSTALLED) || PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --no-compile --quiet --disable-pip-version-check --editable '.[weights]'
	touch $@

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --no-compile --quiet --disable-pip-version-check --editable '.[dev,docs]'
	touch $@

clean:
	rm -rf $(VENV) $(DEMO) $(SITE) .mypy_cache .pytest_cache .ruff_cache
