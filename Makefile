# `make quickstart` on a new Debian machine needs git and make, nothing else: each target installs what it lacks.
# CI calls the same targets (.ci/run). docs/server.md explains the server ones.

PYTHON := .venv/bin/python
# A pytest process per core, each with databases of its own; the server bears four.
WORKERS := --numprocesses auto --maxprocesses 4
# Tests run on the server of this checkout, or on TRECHO_TEST_DSN; never on TRECHO_DSN.
TEST_SERVER := $(if $(TRECHO_TEST_DSN),,server)

.DEFAULT_GOAL := help
.PHONY: help venv server server-stop server-clean server-clean-all install server-install quickstart test test-slow test-all test-next lint bench bench-quick bench-large schema lock

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | awk -F'\t' '{ printf "%-18s %s\n", $$1, $$2 }'

venv: ## .venv as requirements.lock says, this checkout installed in it
	@scripts/venv.sh

server: venv ## bring up the private PostgreSQL; the last line is its DSN
	@scripts/server.sh start

server-stop: ## stop it, keep its data
	@scripts/server.sh stop

server-clean: ## stop it and wipe the data of this checkout
	@scripts/server.sh clean

server-clean-all: ## the same, and remove what all checkouts share
	@scripts/server.sh clean-all

PG_CONFIG ?= pg_config
install: venv ## the extension into the PostgreSQL that PG_CONFIG names (DESTDIR is put in front)
	@share=$$($(PG_CONFIG) --sharedir) && $(PYTHON) -m trecho bundle "$(DESTDIR)$$share/extension"

server-install: server ## the extension into the private PostgreSQL: CREATE EXTENSION trecho CASCADE
	$(PYTHON) -m trecho bundle .server/extension
	@scripts/server.sh install .server/extension

quickstart: server ## index the example handbook and ask it three questions
	@scripts/quickstart.sh

test: venv $(TEST_SERVER) ## the fast tests
	$(PYTHON) -m pytest $(WORKERS) -m "not slow"

test-slow: venv $(TEST_SERVER) ## crash, race, container and large-input tests
	$(PYTHON) -m pytest -m slow

test-all: test test-slow ## everything

test-next: venv ## the fast tests on PostgreSQL 18, from Debian unstable (made the first time)
	@TRECHO_SERVER=next SERVER=sid scripts/server.sh start >/dev/null
	TRECHO_TEST_DSN="$$(TRECHO_SERVER=next scripts/server.sh dsn)" $(PYTHON) -m pytest $(WORKERS) -m "not slow"

lint: venv ## ruff and mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: venv server ## measure; results go to bench/results
	$(PYTHON) -m bench

bench-quick: venv server ## the same on small inputs
	$(PYTHON) -m bench --quick

bench-large: venv server ## words over 500,000 chunks; takes about an hour
	$(PYTHON) -m bench --large

schema: venv $(TEST_SERVER) ## write tests/data/schema.sql anew from the migrations
	$(PYTHON) tests/migration/dump_schema.py

lock: ## resolve pyproject.toml into the two lock files
	@scripts/lock.sh
