# `make demo` and `make test` are all a new machine needs: Python 3.11, make and pip.
PYTHON ?= python3.11
VENV   ?= .venv
PY     := $(VENV)/bin/python

.PHONY: demo test test-slow sabotage mutation setup lint types bench lock clean
.DEFAULT_GOAL := demo

setup: $(VENV)/.installed

# --no-deps: the lock is complete, and holds Pillow >= 13 against apache-beam's pin (see SECURITY in README.md).
$(VENV)/.installed: requirements.lock setup.py
	@command -v $(PYTHON) >/dev/null || { echo "beam-tfrec needs Python 3.11: install it, or say make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "beam-tfrec needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "beam-tfrec needs Python's venv module: install python3.11-venv"; exit 1; }
	@echo "setting up $(VENV) (once, a minute or two)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --compile -r requirements.lock
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

DEMO := demo-out
ifeq ($(IMAGES)$(ANNOTATIONS),)
demo: setup
	@$(PY) examples/draw_sample.py $(DEMO)/source
	@$(PY) -m pipelines.coco --output $(or $(OUTPUT),$(DEMO)/tfrec) --max_rejected 3 \
		--images train=$(DEMO)/source/train val=$(DEMO)/source/val \
		--annotations train=$(DEMO)/source/train.json val=$(DEMO)/source/val.json
else
demo: setup
	@test -n "$(IMAGES)" || { echo "make demo: give IMAGES=FOLDER beside ANNOTATIONS"; exit 2; }
	@test -n "$(ANNOTATIONS)" || { echo "make demo: give ANNOTATIONS=FILE beside IMAGES"; exit 2; }
	@$(PY) -m pipelines.coco --output $(or $(OUTPUT),$(DEMO)/yours) \
		--images $(IMAGES) --annotations $(ANNOTATIONS)
endif

test: setup
	@$(PY) -m pytest -q -n 2 -m "not slow"

test-slow: setup
	@$(PY) -m pytest -q -n 2 -m slow

# Takes one guard after the other out of a copy of the project: each must turn a test red.
sabotage: setup
	@$(PY) -m tests.sabotage.run

# Edits the core in small ways, one at a time, and tells what no test notices (tests/MUTATION.md).
# Half an hour to an hour; make mutation MODULES="commit gcs" for some.
mutation: setup
	@$(PY) -m tests.mutation.run $(MODULES)

lint: setup
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .

types: setup
	@$(VENV)/bin/mypy

bench:
	@$(PYTHON) benchmarks/bench.py

# Resolves requirements.in anew; needs `uv` (pip install uv).
lock:
	uv pip compile requirements.in --override requirements-override.in --universal \
		--python-version 3.11 --generate-hashes --no-header --quiet -o requirements.lock

clean:
	rm -rf $(VENV) $(DEMO) build *.egg-info
