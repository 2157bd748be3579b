# `make demo` and `make test` are all you need on a fresh machine: each makes .venv and installs what it uses.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
TORCH := 2.13.0
AUDIT := pip-audit@2.10.1 --strict --disable-pip --progress-spinner off
TRACKERS := wandb==0.31.0 trackio==0.43.0 mlflow==3.17.2
CYCLONEDX := cyclonedx-python-lib[json-validation]==11.12.0

# pip may be configured with a folder of local wheels; uv ignores that setting and would fetch the CUDA build instead.
# Elsewhere uv picks the torch build that fits this machine; set UV_TORCH_BACKEND (cpu, cu130, …) to choose another.
LINKS := $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null)
ifneq ($(wildcard $(LINKS)/torch-$(TORCH)*),)
export UV_FIND_LINKS := $(LINKS)
else
export UV_TORCH_BACKEND ?= auto
endif
UV = $(BIN)/uv pip install --quiet -p $(VENV) -c constraints.txt

.PHONY: help demo sites-demo test test-slow test-trackers check docs format hooks lock audit dist build-twice sbom try-wheel try-offline bench clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt uv

$(VENV)/.run: $(BIN)/uv pyproject.toml constraints.txt
	$(UV) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(UV) -e '.[dev]' -e examples/own_method
	@touch $@

$(VENV)/.docs: $(VENV)/.run
	$(UV) -e '.[docs]'
	@touch $@

demo: $(VENV)/.run  ## train Local, FedAvg and pFedPT on the embedded data set, compare them and write a report
	@$(BIN)/promptfed demo

sites-demo: $(VENV)/.run  ## run a coordinator and four sites on this machine, with mutual TLS
	$(UV) -e '.[flare]'
	@$(BIN)/python examples/sites/demo.py

test: $(VENV)/.dev  ## run all tests except the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow"

test-slow: $(VENV)/.dev  ## run the slow tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m slow

test-trackers: $(BIN)/uv  ## test tracking with the real wandb, Trackio and MLflow, in an environment of their own
	$(BIN)/uv venv --quiet --allow-existing $(VENV)-trackers
	$(BIN)/uv pip install --quiet -p $(VENV)-trackers -e . $(TRACKERS) pytest pytest-timeout
	$(VENV)-trackers/bin/python -m pytest -q tests/results/tracking/test_real_trackers.py

check: $(VENV)/.dev  ## check lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs  ## build the documentation in site/; a broken link is an error
	$(BIN)/python tools/stage_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet warnings would not count

format: $(VENV)/.dev  ## fix what ruff can fix by itself
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

hooks: $(VENV)/.dev  ## install the pre-commit hooks into this clone
	$(UV) pre-commit
	$(BIN)/pre-commit install

lock: $(BIN)/uv  ## write requirements/: the versions and hashes of everything a release needs
	$(BIN)/python tools/lock.py --uv $(BIN)/uv

audit: $(BIN)/uv  ## ask for known vulnerabilities of all locked versions, and of those used for development
	$(BIN)/uv tool run $(AUDIT) --require-hashes $(addprefix -r ,$(wildcard requirements/*.lock))
	$(BIN)/uv tool run $(AUDIT) --no-deps -r constraints.txt

dist: $(BIN)/uv  ## build the source archive, and the wheel from it, into dist/
	rm -rf dist
	$(BIN)/uv build --quiet

build-twice: dist  ## build once more from a copy and compare, byte for byte
	UV=$(abspath $(BIN)/uv) .ci/build-twice dist

sbom: dist  ## write the bill of materials of dist/ as build/promptfed.cdx.json, and validate it
	$(BIN)/uv run --quiet --no-project --with $(CYCLONEDX) tools/sbom.py --check build/promptfed.cdx.json dist/*

try-wheel: dist  ## install the wheel in a clean environment and run the demo from it, outside this checkout
	UV=$(abspath $(BIN)/uv) PYTHON=$(PYTHON) .ci/try-wheel dist/promptfed-*.whl

try-offline: dist  ## install the wheel and its extras from a folder of wheels, without a network, and use them
	$(PYTHON) tools/try_offline.py dist/promptfed-*.whl

bench: $(VENV)/.dev  ## measure the speed and memory tables of benchmarks/ on this machine
	$(BIN)/python benchmarks/round_speed.py --clients 4 --images 200 --epochs 1
	$(BIN)/python benchmarks/prompt_speed.py --clients 4 --batch 16 --rounds 2
	$(BIN)/python benchmarks/text_prompts.py
	$(BIN)/python benchmarks/field_steps.py
	$(BIN)/python benchmarks/diffusion_speed.py
	$(BIN)/python benchmarks/many_clients.py --rounds 20

clean:  ## remove the virtual environment, builds and caches
	rm -rf $(VENV) $(VENV)-trackers build dist site federation .mypy_cache .ruff_cache .pytest_cache .hypothesis
