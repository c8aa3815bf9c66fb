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

# How the drafters in models/ were made: in stages, each from the one before. Answers and states are made once and serve
# all of them. The cards quote the runs as they were, with the commit that was checked out when each ended. Huge pages
# make a step a fifth to a third shorter.
STAGES ?= .cache/drafters
TRAIN = GLIBC_TUNABLES=glibc.malloc.hugetlb=1 MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184 \
	OMP_NUM_THREADS=$(or $(THREADS),1) $(VENV)/bin/adaverify train
DATA = $(SHARED)/data
PROMPTS = --cache $(STAGES) --draft-vocab-size 10240 --epochs 40 --prompts $(DATA)/gsm8k_train.jsonl:$(1) \
	--prompts $(DATA)/mbpp_train.jsonl:2 --prompts $(DATA)/chat_train.jsonl:2
MIXED = $(call PROMPTS,3) --self-prompts 2 --answer-tokens
MORE_MATHS = $(call PROMPTS,6) --self-prompts 2 --answer-tokens 808000
GREEDY = $(call PROMPTS,6) --temperature 0 --answer-tokens 360000 --matrix-learning-rate
CHAIN = --intermediate-size 1024
BLOCK = --intermediate-size 512 --num-attention-heads 6
FIRST = $(TRAIN) $(1) --out $(STAGES)/$(1)-1 $(MIXED) 600000
NEXT = $(TRAIN) $(1) --init-from $(STAGES)/$(2) --out

.PHONY: drafters
drafters: $(foreach method,eagle3 mtp dflash dspark dflash2,models/smollm2-135m-$(method)/README.md) ## train the drafters in models/

models/smollm2-135m-eagle3/README.md: | default-model
	$(call FIRST,eagle3) $(CHAIN) --max-minutes 42
	$(call NEXT,eagle3,eagle3-1) $(STAGES)/eagle3-2 $(MIXED) 510000 $(CHAIN) --max-minutes 55
	$(call NEXT,eagle3,eagle3-2) $(STAGES)/eagle3-3 $(MORE_MATHS) $(CHAIN) --max-minutes 45
	$(call NEXT,eagle3,eagle3-3) $(@D) $(GREEDY) 0.006 $(CHAIN) --max-minutes 13

models/smollm2-135m-mtp/README.md: | default-model
	$(call FIRST,mtp) $(CHAIN) --max-minutes 35
	$(call NEXT,mtp,mtp-1) $(@D) $(MORE_MATHS) $(CHAIN) --max-minutes 45

$(STAGES)/dflash-3/README.md: | default-model
	$(call FIRST,dflash) $(BLOCK) --max-minutes 45
	$(call NEXT,dflash,dflash-1) $(STAGES)/dflash-2 $(MIXED) 600000 $(BLOCK) --max-minutes 55
	$(call NEXT,dflash,dflash-2) $(@D) $(MIXED) 510000 $(BLOCK) --max-minutes 20

models/smollm2-135m-dflash/README.md: | $(STAGES)/dflash-3/README.md
	$(call NEXT,dflash,dflash-3) $(STAGES)/dflash-4 $(MIXED) 704000 --matrix-learning-rate 0.012 $(BLOCK) --max-minutes 22
	$(call NEXT,dflash,dflash-4) $(@D) $(GREEDY) 0.006 $(BLOCK) --max-minutes 10

models/smollm2-135m-dspark/README.md: | $(STAGES)/dflash-3/README.md
	$(call NEXT,dspark,dflash-3) $(STAGES)/dspark-1 $(MIXED) 510000 $(BLOCK) --rank 24 --max-minutes 35
	$(call NEXT,dspark,dspark-1) $(@D) $(GREEDY) 0.006 $(BLOCK) --rank 24 --max-minutes 16

models/smollm2-135m-dflash2/README.md: | $(STAGES)/dflash-3/README.md
	$(call NEXT,dflash2,dflash-3) $(STAGES)/dflash2-1 $(MIXED) 510000 $(BLOCK) --rank 8 --max-minutes 30
	$(call NEXT,dflash2,dflash2-1) $(@D) $(GREEDY) 0.008 $(BLOCK) --rank 8 --max-minutes 24

clean: ## remove the virtual environment and every cache in the tree
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
