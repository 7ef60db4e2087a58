# `make demo` and `make test` are all a new machine needs: Python 3.11, make and pip.
PYTHON ?= python3.11
VENV   ?= .venv
PY     := $(VENV)/bin/python

.PHONY: demo test test-slow chaos sabotage mutation engines setup lint types fuzz bench lock clean
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
	@$(PY) -m pytest -q -n 2 -m "not slow and not chaos"

test-slow: setup
	@$(PY) -m pytest -q -n 2 -m "slow and not chaos"

# Faults by the thousand, up to 20 minutes; then what they covered (tests/CHAOS.md).
chaos: setup
	@$(PY) -m pytest -q -n 2 -m "chaos or cell"

# Takes one guard after the other out of a copy of the project: each must turn a test red.
sabotage: setup
	@$(PY) -m tests.sabotage.run

# Edits the core in small ways, one at a time, and tells what no test notices (tests/MUTATION.md).
# An hour or two; make mutation MODULES="commit gcs" for some.
mutation: setup
	@$(PY) -m tests.mutation.run $(MODULES)

# What other engines need: Prism of Beam's own version, built with Go.
BEAM_VERSION := $(shell sed -n 's/^apache-beam==\([0-9.]*\).*/\1/p' requirements.lock)
engines: .tools/prism
.tools/prism: requirements.lock
	@command -v go >/dev/null || { echo "Prism is built from source: install Go 1.24 or newer"; exit 1; }
	@GOBIN=$(CURDIR)/.tools go install github.com/apache/beam/sdks/v2/go/cmd/prism@v$(BEAM_VERSION)
	@touch $@

lint: setup
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .

types: setup
	@$(VENV)/bin/mypy

# Each of TARGETS (all by default) for FUZZ_SECONDS, or until nothing new was covered for FUZZ_QUIET
# seconds; FUZZ_KEEP=1 keeps what reached more in tests/fuzz/corpus. See tests/fuzz/README.md.
FUZZ_VENV    := tests/fuzz/.venv
FUZZ_SECONDS ?= 600
FUZZ_QUIET   ?= 600
fuzz: $(FUZZ_VENV)/.installed
	@nice -n 10 $(FUZZ_VENV)/bin/python -m tests.fuzz $(if $(FUZZ_KEEP),--keep) \
		--seconds $(FUZZ_SECONDS) --quiet $(FUZZ_QUIET) $(TARGETS)

# Sees the project's environment, and adds atheris to it.
$(FUZZ_VENV)/.installed: $(VENV)/.installed tests/fuzz/requirements.lock
	@$(PYTHON) -m venv --clear $(FUZZ_VENV)
	@$(FUZZ_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		-r tests/fuzz/requirements.lock
	@$(PY) -c 'import site; print(*site.getsitepackages(), sep="\n")' \
		> $$($(FUZZ_VENV)/bin/python -c 'import site; print(site.getsitepackages()[0])')/project.pth
	@touch $@

bench:
	@$(PYTHON) benchmarks/bench.py

# Resolves requirements.in anew; needs `uv` (pip install uv).
lock:
	uv pip compile requirements.in --override requirements-override.in --universal \
		--python-version 3.11 --generate-hashes --no-header --quiet -o requirements.lock

clean:
	rm -rf $(VENV) $(FUZZ_VENV) $(DEMO) .fuzz build *.egg-info
