# `make demo` and `make test` are all a new machine needs: Python 3.11, make and pip.
PYTHON ?= python3.11
VENV   ?= .venv
PY     := $(VENV)/bin/python

.PHONY: demo test setup lint types bench lock clean
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
