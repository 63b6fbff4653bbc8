# Everstream: one command for each thing a newcomer or a developer does.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CLASSES := $(VENV)/spark.jsa

.DEFAULT_GOAL := help
CODE := everstream pyspark_everstream tests examples scripts
.PHONY: help setup demo apps test test-long check format docs drawings bench picture clean

help:  ## Show what each target does
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Set up: virtual environment in .venv, pinned packages, Java 17 if missing
	@echo "Ready. Try 'make demo', or 'source $(BIN)/activate' and 'everstream --help'."
$(READY): pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON=$(PYTHON) VENV=$(VENV) scripts/setup.sh
	@touch $@

demo: $(READY)  ## A pipeline on Spark, a worker killed, its recovery, the verdict (about a minute)
	@$(BIN)/everstream demo

apps: $(READY)  ## All nine applications, small, with a kill each, and a page (about 5 minutes)
	@$(BIN)/everstream apps all --out reports/apps

$(CLASSES): $(READY) scripts/class_archive.py
	@echo "Making an archive of Spark's classes, so that the tests start it faster (once) ..."
	@$(BIN)/python scripts/class_archive.py $@ 2>$@.log || { echo "It could not be made ($@.log says why); the tests do without."; touch $@; }

test: $(READY) $(CLASSES)  ## Run the tests (about 16 minutes on 2 cores)
	@scripts/postgres.sh || [ $$? -eq 3 ]
	@scripts/flite.sh || [ $$? -eq 3 ]
	@$(BIN)/python -m pytest -n 3 --dist loadfile -m "not long" tests

test-long: $(READY) $(CLASSES)  ## Run the long tests too
	@scripts/postgres.sh || [ $$? -eq 3 ]
	@scripts/flite.sh || [ $$? -eq 3 ]
	@$(BIN)/python -m pytest tests

check: $(READY)  ## Check format, lint and types
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/mypy

format: $(READY)  ## Format the code
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/ruff check --fix $(CODE)

docs: $(READY)  ## Build the documentation as a site into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Built: site/index.html"

drawings: $(READY)  ## Draw the pictures of the states anew, from the tables in the code
	@$(BIN)/python scripts/drawings.py

bench: $(READY)  ## Run the benchmarks and write their figures to reports/
	@mkdir -p reports
	$(BIN)/everstream bench overhead --json reports/overhead.json
	$(BIN)/everstream bench restart --json reports/restart.json

picture: demo  ## Draw the README's picture of a recovery anew
	@mkdir -p docs/images
	@cp reports/demo/recovery.png docs/images/recovery.png

clean:  ## Remove the environment and everything generated
	@rm -rf $(VENV) reports site .pytest_cache .mypy_cache .ruff_cache .hypothesis .everstream
