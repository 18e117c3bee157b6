# Every target does its own set-up; `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Named outright: Ansible ignores the one of a world-writable folder, and Ansible needs a UTF-8 locale.
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export LC_ALL := C.UTF-8

PYTEST := python -m pytest

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: venv
venv: ## Python environment from the lock that fits this machine's Python (.venv)
	@scripts/venv.sh

.PHONY: demo
demo: ## Two virtual Sparks from factory state to a model served by real vLLM, and its answer
	@scripts/demo.sh serve

.PHONY: demo-fabric
demo-fabric: ## Two virtual machines with soft-RoCE: the fabric set up and its bandwidth measured
	@scripts/demo.sh fabric

.PHONY: demo-down
demo-down: ## Remove both pairs: nothing running, nothing mounted
	@scripts/demo.sh down

.PHONY: test-fast
test-fast: venv ## Lint and unit tests, under two minutes
	@$(PYTEST) tests/lint tests/unit -m "not long"

.PHONY: test
test: venv controller ## Lint, unit, role and end-to-end tests
	@$(PYTEST) -m "not long"

.PHONY: test-full
test-full: venv controller ## Everything, the long tests too
	@$(PYTEST)

.PHONY: lint
lint: venv ## Style, types and consistency of the sources
	@$(PYTEST) tests/lint

.PHONY: molecule
molecule: venv controller ## Each role on systemd containers: create, converge, idempotence, verify, destroy
	@$(PYTEST) tests/roles

.PHONY: controller
controller: venv
	@scripts/apt.sh controller

.PHONY: bench-sync
bench-sync: venv ## Verified copies beside rsync, and images beside docker save and load, on this machine
	@scripts/apt.sh bench
	@python bench/sync.py $(BENCH)

.PHONY: models
models: venv ## Every recipe against your machines, or others: make models ON=2x64
	@python scripts/models.py $(if $(ON),--on $(ON))

.PHONY: docs
docs: venv ## Regenerate docs/findings.md, docs/variables.md and the sample's variables
	@python scripts/docs.py

.PHONY: lock
lock: ## Renew requirements/py311.txt and py312.txt
	@scripts/lock.sh
