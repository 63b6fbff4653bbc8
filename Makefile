# Everstream: one command for each thing a newcomer or a developer does.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A command installs what it needs and no more, once: an extra of pyproject.toml, or the laboratory.
DEMO := $(VENV)/.ready-report
LAB := $(VENV)/.ready-lab
DOCS := $(VENV)/.ready-docs
READY := $(VENV)/.ready-dev
BROUGHT_BY_lab := report
BROUGHT_BY_dev := report lab docs
CLASSES := $(VENV)/spark.jsa

# What tests and applications need besides Python: a script each, which ends with 3 where it cannot be had.
NEEDED := postgres redis kafka flite chromium
INSTALL = for needed in $(NEEDED); do scripts/$$needed.sh || [ $$? -eq 3 ] || exit 1; done

.DEFAULT_GOAL := help
CODE := everstream lab pyspark_everstream tests examples scripts
.PHONY: help setup demo apps test test-failed test-long chaos-in-a-bucket fresh-machine matrix check format docs reference drawings screenshots bench picture clean

help:  ## Show what each target does
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Set up for development: .venv with library and laboratory, pinned packages, Java if missing
	@echo "Ready. Try 'make demo', or 'source $(BIN)/activate' and 'everstream --help'."
$(VENV)/.ready-%: pyproject.toml lab/pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON=$(PYTHON) VENV=$(VENV) scripts/setup.sh $*
	@touch $@ $(BROUGHT_BY_$*:%=$(VENV)/.ready-%)

demo: $(DEMO)  ## A pipeline on Spark, a worker killed, its recovery, the verdict (about a minute)
	@$(BIN)/everstream demo

apps: $(LAB)  ## All nine applications, small, with a kill each, and a page (about 5 minutes)
	@$(BIN)/everstream apps all --out reports/apps

$(CLASSES): $(READY) scripts/class_archive.py
	@echo "Making an archive of Spark's classes, so that the tests start it faster (once) ..."
	@$(BIN)/python scripts/class_archive.py $@ 2>$@.log || { echo "It could not be made ($@.log says why); the tests do without."; touch $@; }

PROCESSES ?= 3
test: $(READY) $(CLASSES)  ## Run the short suite (about 15 minutes on 2 cores)
	@$(INSTALL)
	@$(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --durations=10 $(RECORD) -m "not long" tests

test-failed: $(READY)  ## Run those tests again, one after the other, that failed in the last run
	@echo "Tests that pass now failed only beside others. They are flaky, which is a bug: find the cause."
	@$(BIN)/python -m pytest -v --last-failed --last-failed-no-failures none -m "not long" tests

test-long: $(READY) $(CLASSES)  ## Run the long tests too
	@$(INSTALL)
	@$(BIN)/python -m pytest tests

chaos-in-a-bucket: $(READY) $(CLASSES)  ## Run the tests that kill with all checkpoints in a real object store
	@EVERSTREAM_CHAOS_IN_A_BUCKET=yes $(BIN)/python -m pytest -m "not long" tests/chaos

RELEASES ?= bookworm trixie
fresh-machine: ONLY ?= demo test
fresh-machine:  ## Run 'make demo' and 'make test' in minimal Debian 12 and 13 (root; RELEASES=trixie ONLY=demo for a part)
	@scripts/fresh_machine.sh "$(RELEASES)" "$(ONLY)" || [ $$? -eq 3 ]

matrix: ONLY ?= 4.0 4.1 4.2 4.3
matrix: $(READY)  ## Run smoke tests with a wheel on every supported version of Spark (ONLY="4.0 4.3" for some)
	@$(BIN)/python scripts/matrix.py $(ONLY)

check: $(READY)  ## Check format, lint, types and the English of documents and messages
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/mypy
	@$(BIN)/python scripts/prose.py

format: $(READY)  ## Format the code
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/ruff check --fix $(CODE)

docs: $(DOCS)  ## Build the documentation as a site into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Built: site/index.html"

reference: $(READY)  ## Write the reference anew, from the code, the commands and the options
	@$(BIN)/python scripts/api_reference.py
	@$(BIN)/python scripts/cli_reference.py
	@$(BIN)/python scripts/options.py
	@$(BIN)/python -m scripts.event_reference
	@$(BIN)/python -m scripts.layout

drawings: $(READY)  ## Draw the pictures of the states anew, from the tables in the code
	@$(BIN)/python scripts/drawings.py

screenshots: $(READY)  ## Take the pictures of the page for the documents anew, in Chromium
	@scripts/chromium.sh
	@$(BIN)/python -m scripts.screenshots

bench: $(LAB)  ## Run the benchmarks and write their figures to reports/
	@mkdir -p reports
	$(BIN)/everstream bench overhead --json reports/overhead.json
	$(BIN)/everstream bench restart --json reports/restart.json

evidence: $(LAB)  ## Reproduce all tables and figures of the papers into docs/explanation/evidence (many hours; stop and continue)
	$(BIN)/everstream reproduce all --out docs/explanation/evidence --results reports/evidence

picture: demo  ## Draw the README's picture of a recovery anew
	@mkdir -p docs/images
	@cp reports/demo/recovery.png docs/images/recovery.png

clean:  ## Remove the environment and everything generated
	@rm -rf $(VENV) reports site .pytest_cache .mypy_cache .ruff_cache .hypothesis .everstream .matrix
