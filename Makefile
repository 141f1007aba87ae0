# make demo   sets up an environment and runs the main job on the sample corpus
# make test   sets up an environment and runs the tests but the slow ones, which `make reliability` runs
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt

export OMP_NUM_THREADS ?= 1

.PHONY: demo test check format docs site wheel bench-tiny examples measure reliability

$(VENV)/.serve: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing into $(VENV), one to four minutes'
	$(INSTALL) --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	-$(INSTALL) --upgrade pip  # that of Python 3.11 takes a minute more to choose the versions of everything
	@echo 'installing everything into $(VENV), with torch: some gigabytes'
	$(INSTALL) --editable '.[all,dev]'
	touch $@ $(VENV)/.serve

demo: $(VENV)/.serve
	$(BIN)/care ingest examples/sample/corpus.jsonl --collection sample
	@printf '\nQuestion: my blood pressure was 150 once, is that hypertension?\n'
	$(BIN)/care search "血压量了一次150，我是不是就算高血压了" --collection sample --top-k 3
	@printf '\nQuestion: I have been coughing for over two months, and the X-ray shows nothing\n'
	$(BIN)/care search "咳嗽两个多月了一直不好，拍片说没事" --collection sample --top-k 3
	@printf '\nAn English question, for the English documents:\n'
	$(BIN)/care search "My dad has crushing chest pain, what should we do until the ambulance comes?" --collection sample --top-k 3
	@printf '\n"No good match" is a hint: the best score is below that of a typical match. The answer may\n'
	@printf 'still be among the hits (docs/explanation/scores.md).\n'
	@printf '\nNext: %s/care ingest YOUR-FILE-OR-FOLDER (file formats: docs/how-to/ingest.md)\n' $(BIN)

# Two workers: a core each, every file on one of them, so that its fixtures are made once.
test: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

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

# The serving machine: the query side, without torch. Needs no other environment.
wheel:
	set -e; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	$(PYTHON) -m venv "$$work/bare"; \
	"$$work/bare/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$$work" .; \
	"$$work/bare/bin/python" -m pip install --quiet --constraint constraints.txt "$$work"/*.whl; \
	cd "$$work"; bare/bin/python "$(CURDIR)/tests/bare_wheel.py"

bench-tiny: $(VENV)/.dev
	$(BIN)/care bench run examples/sample --model built-in --output build/bench-tiny
	$(BIN)/python -m benchmarks.experiments.natural_questions examples/sample --output build/bench-tiny/natural.json

examples: $(VENV)/.dev
	set -e; for example in examples/0*.py; do echo "== $$example"; $(BIN)/python $$example; done

measure: $(VENV)/.dev
	$(BIN)/python -m benchmarks.perf.measure $(if $(DEV),--dev $(DEV)) $(if $(VECTORS),--vectors $(VECTORS)) $(if $(WITHIN),--within $(WITHIN))

reliability: $(VENV)/.dev
	mkdir -p build/reliability
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'slow or not slow' --hypothesis-seed=random
	$(BIN)/python -m tests.reliability.sequences --output build/reliability/kill-sequences.json
	set -e; for trial in kill-ingest kill-attach kill-publish concurrent-writers outage soak tenants; do \
		$(BIN)/python -m tests.reliability $$trial --output build/reliability/$$trial.json; done
	$(BIN)/python -m tests.reliability concurrent-writers --watch --output build/reliability/kill-watch.json
	test -z "$$QDRANT_BINARY" || for trial in kill-server kill-node kill-switch; do \
		$(BIN)/python -m tests.reliability $$trial --output build/reliability/$$trial.json || exit 1; done
	test -z "$$QDRANT_BINARY" || $(BIN)/python -m tests.reliability.sequences --real-server --sequences 60 \
		--output build/reliability/kill-sequences-server.json
	test -z "$$LLAMA_INDEX" || $(BIN)/python -m benchmarks.experiments.llama_index_suite "$$LLAMA_INDEX" \
		--output build/reliability/llama-upstream.json
	$(BIN)/python -m benchmarks.perf.vector_check --output build/reliability/vector-check.json
