# make demo   sets up an environment and runs the main job on the sample corpus
# make test   sets up an environment and runs the tests
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt

export OMP_NUM_THREADS ?= 1

.PHONY: demo test check format docs bench-tiny examples

$(VENV)/.serve: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[all,dev]'
	touch $@ $(VENV)/.serve

demo: $(VENV)/.serve
	$(BIN)/care-ingest examples/sample/corpus.jsonl --collection sample --sparse bm25
	$(BIN)/care search "吃小苏打片头皮会痒吗" --collection sample --mode hybrid --top-k 3
	$(BIN)/care search "心梗发作的时候家里人该怎么办" --collection sample --mode hybrid --top-k 3

test: $(VENV)/.dev
	$(BIN)/pytest

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev
	$(BIN)/python docs/generate_cli_reference.py
	$(BIN)/python docs/generate_measured.py

bench-tiny: $(VENV)/.dev
	$(BIN)/care-bench run examples/sample --model built-in --output build/bench-tiny

examples: $(VENV)/.dev
	set -e; for example in examples/0*.py; do echo "== $$example"; $(BIN)/python $$example; done
