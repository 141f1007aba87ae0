# make demo   sets up an environment and runs the main job on the sample corpus
# make test   sets up an environment and runs the tests
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt

export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow check format docs site bench-tiny examples reliability

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
	@printf '\nQuestion: what does the chest pain of a heart attack feel like?\n'
	$(BIN)/care search "心梗发作的时候胸口疼是什么样的" --collection sample --top-k 3
	@printf '\nQuestion: what can the family do in a heart attack until the ambulance comes, and is aspirin right?\n'
	$(BIN)/care search "我爸突然胸口压得喘不上气满头大汗，怀疑是心肌梗塞，救护车来之前我们家里人能做点啥，阿司匹林能不能先给他嚼" --collection sample --top-k 3
	@printf '\nNext: %s/care-ingest YOUR-FILE-OR-FOLDER --sparse bm25 (what it reads: docs/everyday.md)\n' $(BIN)

# Two workers: a core each, every file on one of them, so that its fixtures are made once.
test: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist loadfile

test-slow: $(VENV)/.dev
	$(BIN)/pytest -m slow -n 2 --dist worksteal

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev
	$(BIN)/python docs/generate_cli_reference.py
	$(BIN)/python docs/generate_schemas.py
	$(BIN)/python docs/generate_measured.py
	$(BIN)/python docs/generate_reference.py

site: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench-tiny: $(VENV)/.dev
	$(BIN)/care-bench run examples/sample --model built-in --output build/bench-tiny

examples: $(VENV)/.dev
	set -e; for example in examples/0*.py; do echo "== $$example"; $(BIN)/python $$example; done
	cd examples && $(abspath $(BIN))/jupyter-execute 05_corpus_to_answer.ipynb

reliability: $(VENV)/.dev
	mkdir -p build/reliability
	$(BIN)/pytest -n 2 --dist loadfile -m 'slow or not slow' --hypothesis-seed=random
	$(BIN)/python -m tests.reliability.sequences --output build/reliability/kill-sequences.json
	set -e; for trial in kill-ingest kill-attach kill-publish concurrent-writers outage soak; do \
		$(BIN)/python -m tests.reliability $$trial --output build/reliability/$$trial.json; done
	test -z "$$QDRANT_BINARY" || for trial in kill-server kill-node; do \
		$(BIN)/python -m tests.reliability $$trial --output build/reliability/$$trial.json || exit 1; done
	test -z "$$QDRANT_BINARY" || $(BIN)/python -m tests.reliability.sequences --real-server --sequences 60 \
		--output build/reliability/kill-sequences-server.json
	test -z "$$LLAMA_INDEX" || $(BIN)/python -m benchmarks.experiments.llama_index_suite "$$LLAMA_INDEX" \
		--output build/reliability/llama-upstream.json
	$(BIN)/python -m benchmarks.perf.vector_check --output build/reliability/vector-check.json
