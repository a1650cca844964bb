# `make run` starts the hub, `make test` runs every test; both set everything up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Most tests wait for processes, so three run on each core.
WORKERS ?= $(shell n=$$(( 3 * $$(nproc) )); echo $$(( n < 8 ? n : 8 )))
# A process of pytest-xdist that ends is a failure; one that took its place once kept a run from ending.
PYTEST := pytest -q --dist loadscope -n $(WORKERS) --max-worker-restart 0
# The interpreters of other versions that are there, for `make nightly`.
MATRIX ?= $(wildcard /usr/bin/python3.1[2-9] /usr/local/bin/python3.1[2-9] $(HOME)/.pyenv/versions/3.1[2-9].*/bin/python3.1[2-9])

# Without compiled files every process that a test starts compiles the whole package again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run-setup setup run test nightly soak check coverage format bench demo demo-live demo-site console-shots generate docs lock clean

help: ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-13s %s\n", $$1, $$2}'

run-setup:
	@$(PYTHON) tools/setup.py run $(VENV)

setup: ## build .venv with everything for development
	@$(PYTHON) tools/setup.py dev $(VENV)

run: run-setup ## start the hub on its embedded default
	@exec $(BIN)/messagehub serve

test: setup ## run all tests, in minutes
	@$(BIN)/python -m $(PYTEST)

nightly: setup ## thorough property tests, storms of a minute, a million frames, other versions of Python
	@MESSAGEHUB_TEST_LEVEL=thorough $(BIN)/python -m $(PYTEST)
	@for python in $(MATRIX); do \
		echo "nightly: $$python" && $(MAKE) test PYTHON=$$python VENV=build/$$(basename $$python) || exit 1; done

soak: setup ## storms and fuzzing for hours (MESSAGEHUB_STORM_SECONDS each, 1800 by default)
	@MESSAGEHUB_TEST_LEVEL=soak $(BIN)/python -m pytest -q -m soak -s

check: setup ## the one gate: format, lint, types, tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m $(PYTEST)

coverage: setup ## measure which lines and branches the tests run, in all their processes (build/coverage/)
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(BIN)/coverage run -m $(PYTEST) --timeout 600
	@$(BIN)/coverage combine -q && $(BIN)/coverage html -q
	@$(BIN)/coverage report --skip-covered --sort cover

format: setup ## format and sort imports
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: setup ## print the benchmarks as ratios against floors and peers (build/bench/)
	@$(BIN)/python -m benchmarks $(ARGS)

demo: setup ## sensor data through a ring into Spark and out again, with a plot (build/demo/)
	@$(BIN)/python examples/spark_demo.py

demo-live: setup ## a hub with producers, consumers, a service and Spark to look at in a browser, until Ctrl-C
	@exec $(BIN)/python examples/live_demo.py $(ARGS)

demo-site: setup ## three hosts (namespaces; takes root) that share a registry, data, topics and services, and what fails is seen
	@$(BIN)/python examples/site_demo.py $(ARGS)

console-shots: setup ## take the pictures of docs/howto/console.md anew, in Chromium (docs/images/console/)
	@$(BIN)/python -m tools.console_shots

generate: setup ## write anew what is made from the code: schemas/, pages of docs/reference
	@$(BIN)/python -m tools.generate

docs: setup ## build the site of the documentation (build/docs/index.html)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lock: ## pin versions anew (needs uv)
	uv pip compile -q pyproject.toml --extra admin --extra top --extra build --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade -o requirements/run.txt
	uv pip compile -q pyproject.toml --extra dev -c requirements/run.txt --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade -o requirements/dev.txt

clean: ## remove what make built
	rm -rf $(VENV) build *.egg-info .hypothesis .mypy_cache .ruff_cache
