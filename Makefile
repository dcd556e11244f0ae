# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
DEMO   ?= runs/demo
# test processes side by side: one more than cores, because tests of Flower mostly wait
WORKERS ?= 3

.DEFAULT_GOAL := help
.PHONY: help demo test test-all bench docs lint types clean

help: ## show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(VENV)/.installed ## install, train AS-FedBridge and Standalone on the same shards, compare them in a report
	@rm -rf $(DEMO) && mkdir -p $(DEMO)
	@set -e; \
	 $(BIN)/asfedbridge run method=standalone --out $(DEMO)/standalone >$(DEMO)/standalone.log 2>&1 & \
	 beside=$$!; trap 'kill $$beside 2>/dev/null || true' EXIT; \
	 $(BIN)/asfedbridge run --out $(DEMO)/as-fedbridge; \
	 echo; echo "waiting for Standalone, which trains beside it ..."; wait $$beside; \
	 echo; $(BIN)/asfedbridge report $(DEMO) --out $(DEMO)/report.html

# Processes take tests from each other at the end, so that none waits for the other.
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

test: $(VENV)/.installed-dev ## install, run unit tests, one conformance pass, a short Flower run; about 5 minutes on 2 cores
	$(PYTEST)

test-all: $(VENV)/.installed-dev ## install and run all tests; about 20 minutes on 2 cores
	$(PYTEST) --all

$(VENV)/.installed-bench: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	@touch $@

bench: $(VENV)/.installed-bench ## install the libraries we compare with and run all benchmarks; needs an idle machine
	$(BIN)/asfedbridge bench

docs: $(VENV)/.installed-dev ## build the documentation site into build/site; fails on a broken link or an undocumented name
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open build/site/index.html"

lint: $(VENV)/.installed-dev ## ruff
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/ruff format --check src tests benchmarks docs

types: $(VENV)/.installed-dev ## mypy, on src, tests and benchmarks
	$(BIN)/mypy
	$(BIN)/mypy benchmarks

clean: ## remove the virtual environment, caches and demo runs
	rm -rf $(VENV) $(DEMO) .pytest_cache .mypy_cache .ruff_cache
