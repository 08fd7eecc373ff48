# make run: train the tiny recipe here. make test: every test. Both set up .venv first.
.DELETE_ON_ERROR:
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
AGENT := hyperpod-elastic-agent==1.1.3  # its metadata pins an older torch, hence --no-deps

.PHONY: run test lint bench clean
run: $(VENV)/ready
	$(BIN)/python main.py

test: $(VENV)/ready
	$(BIN)/python -m pytest

lint: $(VENV)/ready
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

bench: $(VENV)/ready
	$(BIN)/python -m pytest benchmarks --benchmark-columns=median,min,max,rounds

$(VENV)/ready: pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[local,test]'
	$(BIN)/python -m pip install --quiet --no-deps $(AGENT)
	touch $@

clean:
	rm -rf $(VENV) results
