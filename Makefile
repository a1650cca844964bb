# `make run` starts the hub, `make test` runs every test; both set everything up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup run test check format bench demo soak schemas lock clean

help: ## show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-8s %s\n", $$1, $$2}'

$(VENV)/.run: requirements/run.txt pyproject.toml
	@$(PYTHON) tools/setup.py run

$(VENV)/.dev: requirements/dev.txt pyproject.toml
	@$(PYTHON) tools/setup.py dev

setup: $(VENV)/.dev ## build .venv with everything for development

run: $(VENV)/.run ## start the hub on its embedded default
	@exec $(BIN)/messagehub serve

test: $(VENV)/.dev ## run all tests
	@MESSAGEHUB_KILL_SECONDS=$${MESSAGEHUB_KILL_SECONDS:-60} $(BIN)/python -m pytest -q -m 'not slow'

check: $(VENV)/.dev ## the one gate: format, lint, types, tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q -m 'not slow'

format: $(VENV)/.dev ## format and sort imports
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.dev ## print the benchmarks as ratios against floors and peers (build/bench/)
	@$(BIN)/python -m benchmarks $(ARGS)

demo: $(VENV)/.dev ## sensor data through a ring into Spark and out again, with a plot (build/demo/)
	@$(BIN)/python examples/spark_demo.py

soak: $(VENV)/.dev ## the long fault and fuzz runs
	@MESSAGEHUB_SOAK_SECONDS=$${MESSAGEHUB_SOAK_SECONDS:-1800} $(BIN)/python -m pytest -q -m slow --timeout 7200

schemas: $(VENV)/.dev ## write schemas/ anew from registry/commands.py and replies.py
	@$(BIN)/python -m messagehub.schema_files

lock: ## pin versions anew (needs uv)
	uv pip compile -q pyproject.toml --extra admin --extra build --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade -o requirements/run.txt
	uv pip compile -q pyproject.toml --extra dev -c requirements/run.txt --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade -o requirements/dev.txt

clean: ## remove what make built
	rm -rf $(VENV) build *.egg-info .hypothesis .mypy_cache .ruff_cache
