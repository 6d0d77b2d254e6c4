# Everything runs in .venv, which the first call makes; later calls start at once.
# Another interpreter: make PYTHON=python3.12 setup (before the first call).

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
JOBS   ?= auto

# One thread for each test process: several processes of several threads each would slow one another down.
test test-slow: export OMP_NUM_THREADS = 1
# Each process begins with a half of the tests, and takes from others when it is done: what a module prepares is
# prepared once.
PYTEST := $(PY) -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal -q

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types pytest test-slow test-cpus web-runtime test-timm test-oldest drills test-all \
  format site catalogue clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(STAMP) ## Make .venv and install everything into it; again when the dependencies changed.

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Nearsight needs Python 3.10 or newer, and $(PYTHON) is older or missing; try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || \
	  { echo "$(PYTHON) can't make virtual environments; install its venv module (on Debian: python3-venv)." >&2; exit 1; }
	@echo "Installing into $(VENV) (some minutes the first time: PyTorch is large)..."
	@$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# The features of a pretrained model, at 64 pixels for speed, where its weights are at hand.
FROZEN := from nearsight.checkpoints.pretrained import find_pretrained; found = find_pretrained(offline=True); \
  print(f",frozen={found.model}:weights={found.path}:img_size=64:recipe=frozen" if found else "")

demo: $(STAMP) ## Compare four models on small digits in some minutes, and pretrained features if at hand; ends with a report.
	@$(VENV)/bin/nearsight compare digits --scratch-only \
	  --models deit_nano,deit_nano_life,localvit_nano,test_resnet$$($(PY) -c '$(FROZEN)') \
	  --epochs 6 --seeds 3 --img-size 16 --set model.patch_size=4 --set batch=32 --set augment.flip=0 --out runs/demo

test: lint types pytest ## Linter, type checker and tests: what has to pass before a change goes in.

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(STAMP)
	$(PY) -m mypy

pytest: $(STAMP)
	$(PYTEST)

test-slow: $(STAMP) ## More cases of what `make test` holds: processes, exports and compilations of all kinds of models.
	$(PYTEST) -m 'slow and not drill'

test-cpus: $(STAMP) ## Tests of numbers with the instructions of other CPUs, and with two threads.
	$(PY) tests/cpus.py

web-runtime: $(STAMP) ## Take onnxruntime-web from npm, for the tests of pages that run models in the browser.
	$(PY) -c 'from nearsight.deployment.web import find_runtime; print(find_runtime(download=True))'

test-timm: $(STAMP) ## timm's own test suite over the models of this library.
	$(PY) tests/timm_suite/run.py

test-oldest: $(STAMP) ## The tests of localized models with the oldest timm that is admitted.
	$(PY) tests/timm_suite/oldest.py

drills: $(STAMP) ## Tests that take minutes: processes killed at random points, clusters, many seeds.
	$(PY) -m pytest -m drill -q

test-all: test test-slow test-cpus test-timm test-oldest drills ## All of these.

format: $(STAMP) ## Put the code into the project's format.
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

site: $(STAMP) ## Build the documentation site into build/site; a broken link fails.
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

catalogue: $(STAMP) ## Record the table of models again, after a change to models or parts.
	$(PY) -m tools.catalogue

clean: ## Remove what the tools left behind, except .venv.
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
