# Everything starts from here; `make help` lists the targets. Needs Python 3.10 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
PY := $(VENV)/bin/python
SHARED ?= ../shared
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help serve test test-fast quality style install default-model models bench-throughput bench-overhead clean
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

serve: default-model ## serve the default model; ARGS='TARGET --port 8001 ...' for your own
	$(VENV)/bin/adaverify serve $(ARGS)

# Tests run small models beside server threads: one thread each never waits for a busy core.
test test-fast: export OMP_NUM_THREADS ?= 1
# a file of tests stays in one process, so that what its tests share is made once
IN_PARALLEL = --numprocesses $(or $(WORKERS),2) --dist loadfile

test: install ## fetch the default model and run all tests; ARGS='tests/policy -k budget' for some
	@$(FETCH) || printf '\n%s\n%s\n\n' '*** The default model could not be had (reason above).' \
		'*** Tests that need it will be SKIPPED: this run proves less than a whole one.' >&2
	$(PY) -m pytest -rs $(IN_PARALLEL) $(ARGS)

test-fast: install ## the tests that are quick and need no real model
	$(PY) -m pytest -m 'not models and not slow' $(IN_PARALLEL) $(ARGS)

quality: install ## lint, format and type checks
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

style: install ## mend what the linters can mend
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

install: $(VENV)/.installed ## create the virtual environment

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "adaverify needs Python 3.10 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/.created
	$(PY) -m pip install --disable-pip-version-check --quiet -c constraints.txt torch
	$(PY) -m pip install --disable-pip-version-check --quiet -c constraints.txt -e '.[dev]'
	$(PY) -m pip install --disable-pip-version-check --quiet -c constraints.txt --no-deps speculators hs-connectors
	touch $@

FETCH = $(PY) -c 'from adaverify.engine.default_model import default_model_path; print(default_model_path())'

default-model: install ## fetch the model that is served when no target is named (once)
	@$(FETCH)

models: install ## fetch the optional larger models, where the folder ../shared has the tool for it
	@test -f $(SHARED)/tools/fetch_models.py || { echo '$(SHARED)/tools/fetch_models.py is not here: nothing to fetch.'; exit 1; }
	$(PY) $(SHARED)/tools/fetch_models.py qwen-0.5b qwen-1.5b

bench-throughput: default-model ## tokens per second without speculation, paired with transformers
	$(PY) -m benchmarks.throughput_vs_transformers $(ARGS)

bench-overhead: default-model ## where a step's time goes, with and without speculation
	$(PY) -m benchmarks.overhead $(ARGS)

# How the drafters in models/ are made; each takes up to an hour on two cores, the first also makes the answers.
TRAIN = OMP_NUM_THREADS=$(or $(THREADS),2) $(VENV)/bin/adaverify train
TRAIN_DATA = --prompts $(SHARED)/data/gsm8k_train.jsonl:3 --prompts $(SHARED)/data/mbpp_train.jsonl:2 \
	--prompts $(SHARED)/data/chat_train.jsonl:2 --self-prompts 2 --answer-tokens 600000 --draft-vocab-size 10240 --epochs 20 --max-minutes 55
CHAIN_SIZE = --intermediate-size 1024
BLOCK_SIZE = --intermediate-size 512 --num-attention-heads 6

.PHONY: drafters
drafters: $(foreach method,eagle3 mtp dflash dspark dflash2,models/smollm2-135m-$(method)/README.md) ## train the drafters in models/

models/smollm2-135m-eagle3/README.md models/smollm2-135m-mtp/README.md: models/smollm2-135m-%/README.md: | default-model
	$(TRAIN) $* --out $(@D) $(TRAIN_DATA) $(CHAIN_SIZE) $(ARGS)

models/smollm2-135m-dflash/README.md: | default-model
	$(TRAIN) dflash --out $(@D) $(TRAIN_DATA) $(BLOCK_SIZE) $(ARGS)

models/smollm2-135m-dspark/README.md: | models/smollm2-135m-dflash/README.md
	$(TRAIN) dspark --out $(@D) $(TRAIN_DATA) $(BLOCK_SIZE) --rank 24 --init-from models/smollm2-135m-dflash $(ARGS)

models/smollm2-135m-dflash2/README.md: | models/smollm2-135m-dflash/README.md
	$(TRAIN) dflash2 --out $(@D) $(TRAIN_DATA) $(BLOCK_SIZE) --rank 8 --init-from models/smollm2-135m-dflash $(ARGS)

clean: ## remove the virtual environment and every cache in the tree
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
