# Everything goes into .venv/ (what is installed) and build/ (what is made); `make clean` takes both away. Downloaded
# jars are kept in the user's cache, under offsetstore/.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The first of these that works and is at least 3.11; `make setup PYTHON=/path/to/python` chooses another. 3.13 comes
# last: all but the tests on PostgreSQL 16 runs on it, whose wheel (pgserver) is not published for it.
PYTHON ?=
CANDIDATES := python3.12 python3.11 python3 python3.13

# What depends on PostgreSQL's version, in about a minute: the contract, locks, grants, schema and migrations.
ON_16 := tests/contract/test_postgres.py tests/migration \
  $(addprefix tests/integration/store/test_transaction_,locks.py new_row_lost.py plans.py statements.py) \
  $(addprefix tests/integration/postgres/test_,grants.py schema_check.py connect.py history_ids.py)

# How every test is run, and the minutes that it takes on two quiet cores.
WHOLE := --minutes=13 -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

.PHONY: help setup demo test test-16 durations check lint mutants chaos soak faults matrix compatibility bench bench-handlers bench-consumer bench-peers \
  bench-scale fmt migrate docs behaviours commands types board lock clean

help: ## this list
	@echo "make <target>, of these:"
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

setup: $(STAMP) ## make .venv with everything pinned, and offsetstore in it; quick when nothing changed

demo: setup ## flights from Kafka to PostgreSQL, exactly once, while the job is being killed (needs Java 17)
	@$(BIN)/offsetstore demo --dashboard

test: setup ## every test, on real PostgreSQL 18, Kafka and Spark; 13 minutes on two quiet cores
	@$(BIN)/python -m pytest $(WHOLE)

test-16: setup ## what depends on PostgreSQL's version, on 16; a minute
	@if $(BIN)/python -c 'import pgserver' 2>/dev/null; \
	then $(BIN)/python -m pytest -n 2 --max-worker-restart 0 --offsetstore-postgres=pgserver $(ON_16); \
	else echo "The wheel with PostgreSQL 16 is not published for this Python: the store is tested on 18 alone."; fi

durations: setup ## every test, and a table of what each file waits for; as long as `make test` (BY=folder or test)
	@rm -f build/durations.jsonl
	@$(BIN)/python -m pytest $(WHOLE) --durations-to=build/durations.jsonl || true
	@$(BIN)/python -m tests.durations build/durations.jsonl $(if $(BY),--by $(BY))

check: lint ## lint, unit and property tests; a minute
	@$(BIN)/python -m pytest tests/unit tests/property

lint: setup ## format, lint, types, import contracts, one definition for each type name; a minute
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/basedpyright --pythonpath $(BIN)/python
	@$(BIN)/lint-imports --cache-dir build/.import_linter_cache
	@$(BIN)/python -m tests.support.type_names

mutants: setup ## take out each guard of exactly-once in turn, and show which test notices; an hour
	@$(BIN)/python -m tests.mutants

chaos: setup ## break the job in every way of docs/faults.md, for hours; goes on where it was stopped (ONLY= WAY= SEED= SEEDS= HOURS= MINUTES= COMMIT=)
	@$(BIN)/python -m tests.faults.chaos.harness $(if $(SEEDS),--seeds $(SEEDS)) $(if $(HOURS),--hours $(HOURS)) \
	  $(if $(MINUTES),--minutes $(MINUTES)) $(if $(COMMIT),--chosen-by "$(COMMIT)") \
	  $(if $(SEED),--first $(SEED) --seeds 1 --again) $(if $(ONLY),--only "$(ONLY)") $(if $(WAY),--way $(WAY))

soak: setup ## two jobs under random faults, and what they use of memory and connections; 40 minutes (MINUTES=)
	@$(BIN)/python -m tests.faults.chaos.harness.soak $(if $(MINUTES),--minutes $(MINUTES))

faults: setup ## write docs/faults.md anew from the runs of `make chaos` and `make soak`
	@$(BIN)/python -m tests.faults.chaos.harness.table

matrix: setup ## tests on other versions of PostgreSQL, PySpark and Kafka; goes on where it was stopped (ONLY=)
	@$(BIN)/python -m tests.matrix $(if $(ONLY),--only "$(ONLY)")

compatibility: setup ## write docs/compatibility.md anew from the runs of `make matrix`
	@$(BIN)/python -m tests.matrix.page

bench: setup ## measure the sink and Spark's own writers, into build/bench; half an hour on a quiet machine (ROUNDS= ONLY= JOBS=)
	@$(BIN)/python -m benchmarks.run $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ONLY),--only "$(ONLY)") $(if $(JOBS),--jobs "$(JOBS)")

bench-handlers: setup ## measure calls of a handler, and write them into docs/performance.md; a quarter of an hour (ROUNDS= ONLY=)
	@$(BIN)/python -m benchmarks.handlers $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ONLY),--only "$(ONLY)")

bench-consumer: setup ## measure the consumer beside one by hand, its calls and its memory, for docs/performance.md; half an hour (ROUNDS= ONLY=)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check orjson==3.13.0
	@$(BIN)/python -m benchmarks.consumer $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ONLY),--only "$(ONLY)")

bench-peers: setup ## measure and kill Flink, Debezium and others, and write docs/comparison.md; an hour (KILLS=; needs a JDK)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check orjson==3.13.0
	@$(BIN)/python -m benchmarks.peers $(if $(KILLS),--kills $(KILLS))

bench-scale: setup ## measure how the store scales, and write the figures into docs/scale.md; ten minutes (ONLY=)
	@$(BIN)/python -m benchmarks.scale $(ONLY)

fmt: setup ## format the code, and fix what the linter can fix
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

migrate: setup ## bring the tables of the database at OFFSETSTORE_URL to head
	@$(BIN)/offsetstore migrate

docs: setup ## build the documentation site into build/docs; half a minute
	@rm -rf build/docs
	@$(BIN)/python -m sphinx -q -E -W --keep-going -n -b html -d build/doctrees docs build/docs
	@echo "Open build/docs/index.html."

behaviours: setup ## write docs/behaviours.md anew from the tests' marks
	@$(BIN)/python -m pytest --collect-only -qq --behaviours=docs/behaviours.md

commands: setup ## write docs/cli.md anew from the commands
	@$(BIN)/python -m tests.support.cli_page

types: setup ## write docs/types.md anew from tests/support/type_pairs.py
	@$(BIN)/python -m tests.support.type_pairs

board: setup ## write Grafana's board anew from tests/support/grafana_board.py
	@$(BIN)/python -m tests.support.grafana_board

lock: ## pin the requirements anew, with hashes (takes uv into build/)
	@$(call find-python); "$$python" -m venv build/lock
	@build/lock/bin/pip install --quiet uv
	@lock() { build/lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	    --no-header --no-annotate --no-emit-index-url --no-emit-find-links pyproject.toml "$$@"; }; \
	lock --all-extras --group dev -c requirements/constraints.in -o requirements/dev.txt; \
	lock -c requirements/dev.txt -o requirements/core.txt; \
	lock --extra binary --extra cli -c requirements/dev.txt -o requirements/cli.txt; \
	lock --extra local --extra demo -c requirements/dev.txt -o requirements/job.txt

clean: ## take away .venv, build and whatever Python and Spark left in the tree
	@rm -rf $(VENV) build dist ./*.egg-info .hypothesis spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Sets $python, or says what is missing. The candidates are asked themselves: a name can be there and not work (pyenv).
define find-python
	python="$(PYTHON)"; \
	for candidate in $${python:-$(CANDIDATES)}; do \
	  if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	  then python="$$candidate"; break; else python=""; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "offsetstore needs Python 3.11 or newer, with the venv module. Tried: $(or $(PYTHON),$(CANDIDATES))." >&2; \
	  echo "Install one, or name it: make setup PYTHON=/path/to/python3" >&2; exit 1; \
	fi
endef

# setuptools, pinned like the rest, builds offsetstore without isolation, so that nothing unpinned builds it. It leaves
# an egg-info in the tree that nobody reads; it goes again.
$(STAMP): requirements/dev.txt pyproject.toml
	@$(call find-python); \
	[ -x $(BIN)/python ] || { echo "Making $(VENV) with $$("$$python" -V)."; "$$python" -m venv $(VENV); }
	@echo "Installing the pinned requirements; the first time takes some minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@rm -rf offsetstore.egg-info
	@touch $@
