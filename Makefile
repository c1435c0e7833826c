# One command each: demo, test, check, bench, dev, clean.
PY := .venv/bin/python
export PYTHONPATH := platform:.
export PYTHON TORCH_INDEX
MAKEFLAGS += --no-print-directory
.PHONY: demo test test-sglang test-schema test-learning test-chaos test-recovery trl-losses check bench dev clean install install-dev environments test-environments client-types

# The whole loop on real tasks. EXIT=1 ends when the last decision is ready; DEMO='--flag …' goes to the demo.
demo: install
	@exec $(PY) manage.py up $(if $(EXIT),--exit) --then "$(PY) -m ratchet.demo $(DEMO)"

# ARGS='tests/unit -k name' runs a part; WORKERS=0 in one process.
WORKERS := $(shell nproc)
test: install-dev
	@$(PY) -m pytest --numprocesses $(WORKERS) --maxprocesses 4 --dist worksteal $(ARGS)

# kill -9 at named places and at random, on every real process of a machine: about half an hour.
test-chaos: install-dev
	@CHAOS=1 $(PY) -m pytest tests/chaos $(ARGS)

check: install-dev
	@test ! -e platform/__init__.py || { echo 'error: platform/__init__.py shadows a module of Python: delete it' >&2; exit 1; }
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy apps gpu_workers platform/ratchet frontend/client
	$(dir $(PY))lint-imports
	RATCHET_ENV=test $(PY) manage.py makemigrations --check --dry-run

# Kills web, ingest, Valkey and PostgreSQL during a live run; takes minutes.
test-recovery: install-dev
	@RATCHET_RECOVERY=1 $(PY) -m pytest tests/integration/metrics/test_recovery.py $(ARGS)

# Frameworks of third-party environments, each in a virtual environment of its own; ENVIRONMENTS='openenv' picks some.
ENVIRONMENTS_DIR := $(or $(RATCHET_ENVIRONMENTS_DIR),$(or $(RATCHET_HOME),.ratchet)/environments)
environments: install
	@gpu_workers/environments/install.sh "$(ENVIRONMENTS_DIR)" $(PY) $(ENVIRONMENTS)

test-environments: install-dev environments
	@RATCHET_ENVIRONMENTS_DIR="$(abspath $(ENVIRONMENTS_DIR))" $(PY) -m pytest tests/environments \
		tests/unit/apps/tasks/suites/test_reasoning_gym.py $(ARGS)

# A real SGLang on CPU, in a virtual environment of its own (3.5 GB) in SGLANG_DIR: the suites that the embedded engine
# passes too, log-probs compared, and a whole run. About 15 minutes on two cores.
SGLANG_DIR := $(or $(RATCHET_SGLANG_DIR),$(or $(RATCHET_HOME),.ratchet)/sglang)
test-sglang: install-dev
	@deploy/sglang/install.sh "$(SGLANG_DIR)" $(PY)
	@RATCHET_SGLANG_DIR="$(abspath $(SGLANG_DIR))" $(PY) -m pytest tests/conformance/engines \
		tests/conformance/test_weights.py tests/sglang $(ARGS)

# Every algorithm trains the tiny model over three seeds, and its gain is asserted; ARGS=-s prints what was measured.
test-learning: install-dev
	@RATCHET_TEST_LEARNING=1 $(PY) -m pytest tests/learning $(ARGS)

# Losses of TRL on fixed tensors, recorded anew by TRL itself in a virtual environment of its own.
trl-losses:
	@test -x .venv-trl/bin/python || python3.11 -m venv .venv-trl
	@.venv-trl/bin/python -m pip install --quiet trl==1.16.0 torch==2.13.0 transformers==5.24.0 peft==0.21.2
	@.venv-trl/bin/python tests/unit/gpu_workers/algorithms/trl/record.py

# The API against its own OpenAPI document, with many examples an operation.
test-schema: install-dev
	@SCHEMA_EXAMPLES=$(or $(EXAMPLES),25) $(PY) -m pytest tests/api/test_schemathesis.py $(ARGS)

# One file per performance claim; BENCH=name runs one.
bench: install-dev
	@set -e; for file in $(if $(BENCH),benchmarks/$(BENCH).py,$(filter-out benchmarks/_%,$(wildcard benchmarks/*.py))); do \
		echo "== $$file"; $(PY) $$file; done

# The types of the Python client, from the OpenAPI schema of this tree.
client-types: install-dev
	@RATCHET_ENV=test $(PY) manage.py spectacular --format openapi-json | $(PY) frontend/client/generate_types.py

# Everything running on this tree, with Django's debug pages.
dev: install-dev
	@DEBUG=true exec $(PY) manage.py up

# Caches and the virtual environment; DATA=1 also stops the services and deletes .ratchet (every run, every policy).
clean:
	$(if $(DATA),@if [ -x $(PY) ] && [ -d .ratchet ]; then $(PY) manage.py down; fi)
	$(if $(DATA),rm -rf .ratchet)
	rm -rf .venv .venv-trl .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache test-results
	find apps gpu_workers platform frontend tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

install:
	@platform/install.sh run

install-dev:
	@platform/install.sh dev
