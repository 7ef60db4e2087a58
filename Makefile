# `make demo` and `make test` are all a new machine needs: Python 3.11, make and pip.
PYTHON ?= python3.11
VENV   ?= .venv
PY     := $(VENV)/bin/python

.PHONY: demo test test-all test-slow test-flink chaos sabotage engines setup lint types fuzz bench lock clean \
        container flex_template template_given metadata
.DEFAULT_GOAL := demo

setup: $(VENV)/.installed

# --no-deps: the lock is complete, and holds Pillow >= 13 against apache-beam's pin (see Security in docs/limits.md).
$(VENV)/.installed: requirements.lock setup.py
	@command -v $(PYTHON) >/dev/null || { echo "beam-tfrec needs Python 3.11: install it, or say make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "beam-tfrec needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "beam-tfrec needs Python's venv module: install python3.11-venv"; exit 1; }
	@test ! -L $(VENV) || { echo "$(VENV) is a link: setting it up would empty what it leads to"; exit 1; }
	@echo "setting up $(VENV) (once, a minute or two)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --compile -r requirements.lock
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

DEMO := demo-out
ifeq ($(IMAGES)$(ANNOTATIONS),)
demo: setup
	@$(PY) examples/draw_sample.py $(DEMO)/source
	@$(PY) -m beam_tfrec.pipelines.coco --output $(or $(OUTPUT),$(DEMO)/tfrec) --max_rejected 3 \
		--images train=$(DEMO)/source/train val=$(DEMO)/source/val \
		--annotations train=$(DEMO)/source/train.json val=$(DEMO)/source/val.json
else
demo: setup
	@test -n "$(IMAGES)" || { echo "make demo: give IMAGES=FOLDER with ANNOTATIONS"; exit 2; }
	@test -n "$(ANNOTATIONS)" || { echo "make demo: give ANNOTATIONS=FILE with IMAGES"; exit 2; }
	@$(PY) -m beam_tfrec.pipelines.coco --output $(or $(OUTPUT),$(DEMO)/yours) \
		--images $(IMAGES) --annotations $(ANNOTATIONS)
endif

# Every test is in one of test, test-all, test-slow (with test-flink) and chaos.
# Three minutes on two cores. .ci/run draws all examples of hypothesis, and measures coverage.
test: setup
	@BEAM_TFREC_EXAMPLES_PERCENT=$${BEAM_TFREC_EXAMPLES_PERCENT:-20} \
		$(PY) -m pytest -q -n 2 --dist worksteal -m "not thorough and not slow and not chaos"

# What `make test` leaves out and needs no server.
test-all: setup
	@$(PY) -m pytest -q -n 2 --dist worksteal -m "thorough and not slow and not chaos"

test-slow: setup
	@$(PY) -m pytest -q -n 2 --dist worksteal -m "slow and not chaos" --ignore tests/test_flink.py

test-flink: setup
	@$(PY) -m pytest -q tests/test_flink.py  # one after the other: they share a cluster

# Faults by the thousand, up to 20 minutes (tests/CHAOS.md).
chaos: setup
	@$(PY) -m pytest -q -n 2 -m chaos

# Takes one guard after the other out of a copy of the project: each must turn a test red.
sabotage: setup
	@$(PY) -m tests.sabotage.run

# What other engines need: Prism of Beam's own version, built with Go; Flink with Beam's job server, fetched with Maven.
BEAM_VERSION := $(shell sed -n 's/^apache-beam==\([0-9.]*\).*/\1/p' requirements.lock)
engines: .tools/prism .tools/flink/job-server.jar
.tools/prism: requirements.lock
	@command -v go >/dev/null || { echo "Prism is built from source: install Go 1.24 or newer"; exit 1; }
	@GOBIN=$(CURDIR)/.tools go install github.com/apache/beam/sdks/v2/go/cmd/prism@v$(BEAM_VERSION)
	@touch $@
.tools/flink/job-server.jar: tests/flink/pom.xml tests/flink/jars.sha256
	@command -v mvn >/dev/null || { echo "Flink's parts come by Maven: install maven and Java 17"; exit 1; }
	@rm -rf .tools/flink
	@mvn --batch-mode --quiet --strict-checksums --file tests/flink/pom.xml -Dout=$(CURDIR)/.tools/flink package
	@cd .tools/flink/lib && sha256sum --quiet --strict --check $(CURDIR)/tests/flink/jars.sha256 || { rm -rf $(CURDIR)/.tools/flink; exit 1; }

LINT := .tools/lint
lint: setup $(LINT)/.installed
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(LINT)/bin/shellcheck $(wildcard *.sh tests/*.sh) .ci/run
	@$(LINT)/bin/hadolint Dockerfile

$(LINT)/.installed: tests/lint/requirements.lock
	@$(PYTHON) -m venv --clear $(LINT)
	@$(LINT)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	@touch $@

# The documentation site, strictly: a link that leads nowhere ends it.
DOCS := .tools/docs
.PHONY: docs
docs: setup $(DOCS)/.installed
	@rm -rf $(DOCS)/pages $(DOCS)/site
	@$(PY) -m tests.docs_pages $(DOCS)/pages
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	@echo "the site: $(DOCS)/site/index.html"

$(DOCS)/.installed: docs/requirements.lock
	@$(PYTHON) -m venv --clear $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	@touch $@

# The report in docs/, as Chromium shows it. `CHROMIUM` names the browser, where it is not on PATH.
BROWSER := .tools/browser
.PHONY: screenshots
screenshots: setup $(BROWSER)/.installed
	@SCREENSHOTS=docs BROWSER_PYTHON=$(CURDIR)/$(BROWSER)/bin/python \
		$(PY) -m pytest -q -rs tests/test_report_in_browser.py -k screenshots

$(BROWSER)/.installed: tests/browser/requirements.lock
	@$(PYTHON) -m venv --clear $(BROWSER)
	@$(BROWSER)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	@touch $@

types: setup
	@$(VENV)/bin/mypy

# Each of TARGETS (all by default) for FUZZ_SECONDS; FUZZ_KEEP=1 keeps what reached more in
# tests/fuzz/corpus. See tests/fuzz/README.md.
FUZZ_VENV    := tests/fuzz/.venv
FUZZ_SECONDS ?= 600
fuzz: $(FUZZ_VENV)/.installed
	@nice -n 10 $(FUZZ_VENV)/bin/python -m tests.fuzz $(if $(FUZZ_KEEP),--keep) \
		--seconds $(FUZZ_SECONDS) $(TARGETS)

# Sees the project's environment, and adds atheris to it.
$(FUZZ_VENV)/.installed: $(VENV)/.installed tests/fuzz/requirements.lock
	@$(PYTHON) -m venv --clear $(FUZZ_VENV)
	@$(FUZZ_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		-r tests/fuzz/requirements.lock
	@$(PY) -c 'import site; print(*site.getsitepackages(), sep="\n")' \
		> $$($(FUZZ_VENV)/bin/python -c 'import site; print(site.getsitepackages()[0])')/project.pth
	@touch $@

# What Dataflow's workers run in, built by Docker or, where it does not run, by Google: docs/dataflow.md.
container:
	@test -n "$(IMAGE)" || { echo "make container: give IMAGE=REGION-docker.pkg.dev/PROJECT/REPO/NAME:TAG"; exit 2; }
	@if docker info >/dev/null 2>&1; \
	then docker build --platform=linux/amd64 --tag=$(IMAGE) . && { docker push $(IMAGE) || \
		{ echo "run gcloud auth configure-docker $(firstword $(subst /, ,$(IMAGE)))"; exit 1; }; }; \
	else gcloud builds submit $(if $(PROJECT),--project=$(PROJECT)) --tag=$(IMAGE) .; fi

# The image, and the template that starts it: for the console, gcloud and Cloud Scheduler.
flex_template: template_given container
	@gcloud dataflow flex-template build $(TEMPLATE) --image=$(IMAGE) $(if $(PROJECT),--project=$(PROJECT)) \
		--sdk-language=PYTHON --metadata-file=metadata.json

template_given:
	@test -n "$(TEMPLATE)" || { echo "make flex_template: give TEMPLATE=gs://BUCKET/NAME.json"; exit 2; }

# The template's parameters, from the command's flags.
metadata: setup
	@$(PY) -m beam_tfrec.pipelines.flex_template --describe > metadata.json

bench:
	@$(PYTHON) benchmarks/bench.py $(if $(SECTION),--section $(SECTION))

# Resolves requirements.in anew, then requirements-worker.in to the same versions; needs `uv` (pip install uv).
lock:
	uv pip compile requirements.in --override requirements-override.in --universal \
		--python-version 3.11 --generate-hashes --no-header --quiet -o requirements.lock
	uv pip compile requirements-worker.in --constraint requirements.lock --override requirements-override.in \
		--universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements-worker.lock

clean:
	rm -rf $(VENV) $(FUZZ_VENV) $(DEMO) .fuzz build *.egg-info
