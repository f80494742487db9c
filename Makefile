# `make demo` and `make test` are complete on a fresh machine with Python 3.11 or 3.12.
PYTHON ?= python3
PYTHONS ?= python3.11
TORCHES ?= 2.13.0
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test lint types unit kills test-flower soak results house matrix clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 13

demo: .venv/core  ## compare five methods on digits (s = 10): one table, under two minutes on 2 cores
	$(BIN)/fedmate run --dataset digits --method fedmate --method fedrep --method fedper --method fedavg --method local

test: lint types unit kills  ## everything that must pass: ruff, mypy --strict, pytest, killed runs

lint: .venv/dev  ## style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/dev  ## types, strictly
	$(BIN)/mypy

unit: .venv/dev  ## tests and the examples in docstrings
	$(BIN)/pytest -n 2 --dist loadfile --durations=5 -m 'not kills and not flower'

kills: .venv/dev  ## kill runs at every write and at 30 random instants, resume them, compare the records
	$(BIN)/pytest -n 2 tests/reliability

test-flower: .venv/flower  ## Flower: a simulation on Ray, and a federation of three sites over TLS on this machine
	$(BIN)/pytest --durations=5 tests/flower

soak: .venv/dev  ## the same at 200 random instants; every cross of methods and tables
	ALL_CROSSES=1 $(BIN)/pytest -q -n 2 tests/contract/test_crosses.py tests/contract/test_server.py
	$(BIN)/python tests/reliability/kills.py random --kills 200 --seed 1

results: .venv/dev  ## write the tables of the paper from the records in paper/records
	$(BIN)/python -m paper

house: .venv/dev  ## count the house: lines, functions, repetition, the modules of one run
	$(BIN)/python tests/house.py

matrix:  ## try versions: make matrix PYTHONS="python3.11 python3.12" TORCHES="2.11.0 2.13.0"
	@for python in $(PYTHONS); do for torch in $(TORCHES); do \
		echo "Python $$python, torch $$torch"; home=build/matrix/$$python-$$torch; \
		$$python -m venv $$home && grep -v '^torch==' constraints.txt > $$home/constraints.txt && \
		$$home/bin/pip install --quiet torch==$$torch && \
		$$home/bin/pip install --quiet --constraint $$home/constraints.txt --editable '.[dev]' && \
		$$home/bin/pytest -q -n 2 --dist loadfile tests/core tests/components tests/methods tests/backends tests/contract tests/pinned \
		|| exit 1; done; done

.venv/core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13) and "fedmate needs Python 3.11 or 3.12: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing into .venv; the first time takes a minute or more, PyTorch is large."
	$(PIP) --editable .
	@touch $@

.venv/dev: .venv/core
	$(PIP) --editable '.[dev]'
	@touch $@

.venv/flower: .venv/dev
	@echo "Installing Flower and Ray, some 500 MB."
	$(PIP) --editable '.[dev,flower]'
	@touch $@

clean:  ## remove what these commands made, except records
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
