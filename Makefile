# One command each: `make demo`, `make test`, `make check`, `make docs`; each makes the environment that it needs.

# The first Python that is there and supported.
PYTHON ?= $(shell for each in python3.11 python3.12 python3.13 python3; do \
	$$each -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2> /dev/null \
	&& echo $$each && break; done)
# The oldest and the newest that pyproject.toml names; `make check` types the code for both.
PYTHONS := 3.11 3.13
TYPES := $(PYTHONS:%=types-%)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
INSTALL := $(PIP) install -qq -c .ci/constraints.txt
EXTRAS := rlinf rlinf-wheel metaworld report
# What tests, checks, documents and benchmarks need beside that.
EXTRAS_DEV := rlinf-scripts bench docs test dev

# Where to take torch from when the build for this machine is not the right one; see docs/install.md.
TORCH_INDEX_URL ?=
export TORCH_INDEX_URL

# Arguments for pytest: make test ARGS="tests/core -x"
ARGS ?=

# What starts clusters, browsers or simulators, and what does not.
HEAVY := (ray or browser or render or libero or maniskill) and not nightly
LIGHT := not (ray or browser or render or libero or maniskill or nightly)
# Files with heavy tests name a mark. To import all others takes half a minute, and they have none (tests/conftest.py).
HEAVY_FILES = $(shell grep -rlE "mark\.(ray|browser|render|libero|maniskill)\b" --include="test_*.py" $(1))

# Names of mutants, all of them by default; see `make mutants`.
MUTANTS ?=

SETUP := $(VENV)/.setup
SETUP_DEV := $(VENV)/.setup-dev
SETUP_LIBERO := $(VENV)/.setup-libero
SETUP_MANISKILL := $(VENV)/.setup-maniskill
SETUP_SCRIPTS := $(VENV)/.setup-scripts
SETUP_MUTANTS := $(VENV)/.setup-mutants

# veRL's environment: it and RLinf want different versions of transformers; see docs/verl.md. TESTS_VERL are the
# tests of what depends on it. The others test code of RLinf's host, or code under which both environments have the
# same packages (tests/test_ci.py), such as `wire`, `ray_runtime` and `hosts/workers`: these run in the main
# environment alone.
VENV_VERL := .venv-verl
BIN_VERL := $(VENV_VERL)/bin
PIP_VERL := $(BIN_VERL)/python -m pip
INSTALL_VERL := $(PIP_VERL) install -qq -c .ci/constraints-verl.txt
EXTRAS_VERL := verl metaworld report
EXTRAS_VERL_DEV := test
SETUP_VERL := $(VENV_VERL)/.setup
SETUP_VERL_DEV := $(VENV_VERL)/.setup-dev
TESTS_VERL := tests/hosts/verl tests/runs_verl tests/lab/demo/policies/test_smol_vla.py \
	tests/lab/demo/test_warm_start_block.py tests/test_patches_verl.py tests/lab/bench/test_sides.py \
	tests/lab/sweep/test_hosts.py tests/benchmarks/test_hosts.py tests/test_lab_apart.py \
	tests/hosts/test_any_key.py tests/hosts/test_any_overrides.py tests/hosts/test_same_answer.py

# verl-vla's packages, a folder that goes before veRL's environment; see CONTRIBUTING.md.
VERL_VLA := .venv-verl-vla
SETUP_VERL_VLA := $(VERL_VLA)/.setup
VERL_VLA_PATH := $(CURDIR)/tests/verl_vla/site:$(CURDIR):$(CURDIR)/$(VERL_VLA)

# The supported Pythons beside that of the main environment, in an environment each: `make test-pythons`, or
# `make test-pythons OTHER_PYTHONS=3.12`.
OTHER_PYTHONS := 3.12 3.13
TEST_PYTHONS := $(OTHER_PYTHONS:%=test-python-%)
EXTRAS_PYTHON := rlinf rlinf-wheel rlinf-scripts metaworld test
TESTS_PYTHON := tests/core tests/loops tests/config tests/test_configs.py tests/hosts/test_local*.py tests/runs

# Packages of real VLA models, three folders that go before the main environment; see CONTRIBUTING.md.
VLA := .venv-vla
VLA_FOLDERS := openpi openvla-oft gr00t
TESTS_VLA := $(VLA_FOLDERS:%=test-vla-%)
SETUP_VLA := $(VLA)/.setup
# Source trees of models, and of verl-vla, which no package index has: folders or git directories.
VLA_SOURCES ?=
VLA_DEMO_PATH := $(CURDIR)/tests/vla/openpi_site:$(CURDIR)/$(VLA)/openpi:$(CURDIR):$(CURDIR)/rlinf_async/_hydra

# RLinf's trees beside the wheel, folders or git directories, and the tests that take them.
TREES ?= $(RLINF_TREES)
TESTS_TREES := tests/test_docs_rlinf_configs.py tests/hosts/rlinf/test_checkout.py tests/hosts/rlinf/test_compat.py \
	tests/hosts/rlinf/test_keys.py tests/hosts/rlinf/test_models.py tests/hosts/rlinf/test_tree.py tests/hosts/rlinf/test_values.py \
	tests/runs/test_checkouts.py tests/runs/test_distillation.py tests/runs/test_maniskill.py tests/test_sources.py

.PHONY: setup setup-dev setup-libero setup-maniskill setup-simulators setup-all setup-scripts setup-vla setup-verl setup-verl-dev setup-verl-vla demo demo-vla demo-verl \
	test test-light test-light-verl test-heavy test-heavy-runs test-heavy-nodes test-heavy-shared test-heavy-verl test-heavy-others \
	clean-room test-trees test-vla test-verl test-verl-vla test-pythons nightly runs-verl mutants check sizes lint $(TYPES) docs format release-check constraints constraints-verl clean openpi-transformers $(TESTS_VLA) $(TEST_PYTHONS)

setup: $(SETUP)
setup-dev: $(SETUP_DEV)

$(SETUP): pyproject.toml .ci/constraints.txt .ci/requirements.py .ci/install_torch.py
	$(if $(PYTHON),,$(error This needs Python 3.11, 3.12 or 3.13; PYTHON=/path/of/python names one))
	$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python .ci/install_torch.py .ci/constraints.txt torch
	# Files in between, so that a failing script stops make.
	$(BIN)/python .ci/requirements.py --no-deps $(EXTRAS) > $(VENV)/no-deps.txt
	$(BIN)/python .ci/requirements.py $(EXTRAS) > $(VENV)/requirements.txt
	$(INSTALL) -r $(VENV)/requirements.txt
	# Last, as pip warns of what these lack whenever it installs something beside them.
	$(PIP) install -qq --no-deps -r $(VENV)/no-deps.txt
	$(PIP) install -qq --no-deps -e .
	touch $@

$(SETUP_DEV): $(SETUP)
	$(BIN)/python .ci/requirements.py $(EXTRAS_DEV) > $(VENV)/requirements-dev.txt
	$(INSTALL) -r $(VENV)/requirements-dev.txt
	touch $@

setup-libero: $(SETUP_LIBERO)
setup-maniskill: $(SETUP_MANISKILL)

# What goes into the same environment, one after the other whatever --jobs says.
setup-all:
	$(MAKE) setup-dev
	$(MAKE) setup-simulators

# Both, one after the other whatever --jobs says: they are put into the same environment.
setup-simulators: setup
	$(MAKE) setup-libero
	$(MAKE) setup-maniskill

$(SETUP_LIBERO) $(SETUP_MANISKILL): $(VENV)/.setup-%: $(SETUP)
	$(BIN)/python .ci/requirements.py --no-deps $* > $(VENV)/no-deps-$*.txt
	$(BIN)/python .ci/requirements.py $* > $(VENV)/requirements-$*.txt
	$(PIP) install -qq --no-deps -r $(VENV)/no-deps-$*.txt
	$(INSTALL) -r $(VENV)/requirements-$*.txt
	touch $@

setup-verl: $(SETUP_VERL)
setup-verl-dev: $(SETUP_VERL_DEV)

$(SETUP_VERL): pyproject.toml .ci/constraints-verl.txt .ci/requirements.py .ci/install_torch.py
	$(BIN_VERL)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV_VERL)
	$(BIN_VERL)/python .ci/install_torch.py .ci/constraints-verl.txt torch
	$(BIN_VERL)/python .ci/requirements.py $(EXTRAS_VERL) > $(VENV_VERL)/requirements.txt
	$(INSTALL_VERL) -r $(VENV_VERL)/requirements.txt
	$(PIP_VERL) install -qq --no-deps -e .
	touch $@

$(SETUP_VERL_DEV): $(SETUP_VERL)
	$(BIN_VERL)/python .ci/requirements.py $(EXTRAS_VERL_DEV) > $(VENV_VERL)/requirements-dev.txt
	$(INSTALL_VERL) -r $(VENV_VERL)/requirements-dev.txt
	touch $@

setup-verl-vla: $(SETUP_VERL_VLA)

$(SETUP_VERL_VLA): $(SETUP_VERL_DEV) .ci/verl-vla.txt
	rm -rf $(VERL_VLA)
	$(PIP_VERL) install -qq --no-deps --target $(VERL_VLA) -r .ci/verl-vla.txt
	rm -rf $(VERL_VLA)/tests # of a package; ours are meant
	touch $@

# What simulates, draws and starts Ray as well: some minutes.
test-verl-vla: setup-verl-vla
	RAY_ADDRESS=local OMP_NUM_THREADS=1 VERL_PLATFORM=cpu VLA_SOURCES=$(VLA_SOURCES) PYTHONPATH=$(VERL_VLA_PATH) \
		$(BIN_VERL)/python -m pytest tests/verl_vla $(ARGS)

setup-vla: $(SETUP_VLA)

$(SETUP_VLA): $(SETUP_DEV) .ci/vla-openpi.txt .ci/vla-openvla-oft.txt .ci/vla-gr00t.txt
	rm -rf $(VLA)
	$(PIP) install -qq --no-deps --target $(VLA)/openpi -r .ci/vla-openpi.txt
	$(PIP) install -qq --no-deps --target $(VLA)/openvla-oft -r .ci/vla-openvla-oft.txt
	$(PIP) install -qq --no-deps --target $(VLA)/gr00t -r .ci/vla-gr00t.txt
	touch $@

# What an environment lacks the packages of is skipped there, and runs in another.
test-vla: $(TESTS_VLA)

# What openpi's own installation does to transformers; it says so where openpi is not named.
openpi-transformers: setup-vla
	VLA_SOURCES=$(VLA_SOURCES) $(BIN)/python -m tests.vla.sources $(VLA)/openpi

$(TESTS_VLA): test-vla-%: openpi-transformers
	OMP_NUM_THREADS=1 VLA_SOURCES=$(VLA_SOURCES) PYTHONPATH=$(VLA)/$* $(BIN)/python -m pytest tests/vla -m "$(LIGHT)" $(ARGS)

setup-scripts: $(SETUP_SCRIPTS)

TORCHVISION := 0.28.0

# For tests of RLinf's own scripts. Beside the environment: this torchvision is built for CUDA, and packages
# that use it where it is installed would fail beside torch for CPU.
$(SETUP_SCRIPTS): $(SETUP_DEV)
	$(PIP) install -qq --no-deps --upgrade --target $(VENV)/scripts torchvision==$(TORCHVISION)
	touch $@

demo: setup
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN)/rlinf-async train --config-name metaworld_ppo_mlp

# In the folder of `make setup-vla` where it is there; else openpi has to be installed as RLinf's docs say.
demo-vla: export PYTHONPATH := $(if $(wildcard $(VLA)/openpi),$(VLA_DEMO_PATH):)$(PYTHONPATH)
demo-vla: export VLA_SOURCES := $(VLA_SOURCES)
demo-vla: setup $(if $(wildcard $(VLA)/openpi),openpi-transformers)
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN)/rlinf-async train --config-name metaworld_ppo_pi0

demo-verl: setup-verl
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN_VERL)/rlinf-async train --config-name verl_metaworld_ppo_mlp

test: setup-dev
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not nightly" $(ARGS)

test-verl: setup-verl-dev
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN_VERL)/python -m pytest $(TESTS_VERL) -m "not nightly" $(ARGS)

# By hand, as no package index has RLinf's branches: make test-trees TREES=/git/of/RLinf.
test-trees: setup-dev
	$(if $(TREES),,$(error name RLinf's trees: make test-trees TREES=..., as CONTRIBUTING.md says))
	RAY_ADDRESS=local OMP_NUM_THREADS=1 RLINF_TREES=$(TREES) $(BIN)/python -m pytest $(TESTS_TREES) \
		-m "not nightly" $(ARGS)

test-light: setup-dev
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "$(LIGHT)" $(ARGS)

test-light-verl: setup-verl-dev
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN_VERL)/python -m pytest $(TESTS_VERL) -m "$(LIGHT)" $(ARGS)

# Parts that run beside each other with --jobs, the longest first: a run that starts or ends mostly waits. Of
# `shared`, all runs are made in one cluster; see tests/runs/conftest.py.
test-heavy: test-heavy-runs test-heavy-others test-heavy-verl test-heavy-nodes test-heavy-shared

NODES := tests/runs/test_nodes.py

test-heavy-runs: setup-dev
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/runs --ignore $(NODES) \
		-m "$(HEAVY) and not shared_run" $(ARGS)

test-heavy-nodes: setup-dev
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(NODES) -m "$(HEAVY) and not shared_run" $(ARGS)

test-heavy-others: setup-dev
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN)/python -m pytest \
		$(filter-out tests/runs/%,$(call HEAVY_FILES,tests)) -m "$(HEAVY) and not shared_run" $(ARGS)

test-heavy-shared: setup-dev
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/runs -m "$(HEAVY) and shared_run" $(ARGS)

test-heavy-verl: setup-verl-dev
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN_VERL)/python -m pytest $(call HEAVY_FILES,$(TESTS_VERL)) -m "$(HEAVY)" $(ARGS)

# README's main job as it is printed there, in a fresh clone with an empty environment and the system's Python.
clean-room:
	$(PYTHON) -m benchmarks.newcomer --try --output build/newcomer.json \
		|| { echo "=== 1 error in 0.00s ==="; exit 1; }

# What is light of their tests, a run of our command, and the runs marked `every_python`.
test-pythons: $(TEST_PYTHONS)

# Under pyenv, python3.12 is found only when its version is named.
test-python-%: export PYENV_VERSION = $*
test-python-%: export RAY_ADDRESS = local
test-python-%: export OMP_NUM_THREADS = 1
$(TEST_PYTHONS): test-python-%:
	$(MAKE) setup VENV=.venv-$* PYTHON=python$* EXTRAS="$(EXTRAS_PYTHON)"
	.venv-$*/bin/python .ci/install_torch.py .ci/constraints.txt torchvision==$(TORCHVISION)
	.venv-$*/bin/rlinf-async train metaworld_ppo_mlp runner.max_epochs=3 runner.logger.log_path=runs/python-$*
	.venv-$*/bin/python -m pytest $(TESTS_PYTHON) $(ARGS) \
		-m "every_python or $(LIGHT)"

# What takes too long for every change: hours on two cores. Searches are wider, too (tests/conftest.py).
nightly: export HYPOTHESIS_PROFILE := nightly
nightly: setup-dev setup-verl-dev setup-simulators setup-scripts
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m nightly --timeout 3600 $(ARGS)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.wire.simulation --seconds 2700 --from $$(date +%y%m%d)0000
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.wire.simulation --seconds 900 --from $$(date +%y%m%d)0000 --disk
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN_VERL)/python -m pytest $(TESTS_VERL) -m nightly --timeout 3600 $(ARGS)
	$(if $(VLA_SOURCES),$(MAKE) test-vla ARGS="-m nightly --timeout 3600",@echo "left out: make test-vla, as VLA_SOURCES names no sources of models")
	for each in $(OTHER_PYTHONS); do \
		if PYENV_VERSION=$$each python$$each --version; then $(MAKE) test-python-$$each ARGS= || exit 1; \
		else echo "no tests on Python $$each: there is no python$$each"; fi; done

# Every setting of the levels, on real clusters; what has been run in runs/every_setting is not run again.
runs-verl: setup-verl-dev
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN_VERL)/python -m tests.runs_verl.every_setting

$(SETUP_MUTANTS): $(SETUP_DEV)
	$(INSTALL) mutmut==3.8.1
	touch $@

# Wrong lines that no test notices; see tests/mutants.md. It goes on where it was stopped, in mutants/.
mutants: $(SETUP_MUTANTS)
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN)/mutmut run $(MUTANTS)
	$(BIN)/mutmut results

check: lint sizes $(TYPES)

# What a process loads and what judges a config may not grow unseen; see tests/hosts/test_loads.py.
sizes: setup-dev
	$(BIN)/python -m pytest -q tests/hosts/test_loads.py tests/hosts/test_judge_size.py

lint: setup-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

$(TYPES): types-%: setup-dev
	$(BIN)/mypy --python-version $*

# The site, in site/; a broken link or anchor fails.
docs: setup-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: setup-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python docs/generate_config.py
	$(BIN)/python docs/generate_keys.py
	$(BIN)/python docs/generate_messages.py
	$(BIN)/python docs/generate_models.py
	$(BIN)/python docs/generate_performance.py
	$(BIN)/python docs/generate_readme.py

# Pins what the virtual environment holds now. A local label such as +cpu names a build, not a version.
constraints: setup-dev
	{ sed -n '/^#/p' .ci/constraints.txt; \
	  $(PIP) freeze --exclude-editable | sed 's/+.*//' | tr '[:upper:]' '[:lower:]' | sort; } > .ci/constraints.new
	mv .ci/constraints.new .ci/constraints.txt

constraints-verl: setup-verl-dev
	{ sed -n '/^#/p' .ci/constraints-verl.txt; \
	  $(PIP_VERL) freeze --exclude-editable | sed 's/+.*//' | tr '[:upper:]' '[:lower:]' | sort \
	  | sed 's/^verl==.*/&; python_version < "3.13"/'; } > .ci/constraints.new
	mv .ci/constraints.new .ci/constraints-verl.txt

# What is to be released, built and installed where nothing of this checkout is: see CONTRIBUTING.md.
RELEASE := build/release
release-check:
	rm -rf dist $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)/tools
	$(RELEASE)/tools/bin/pip install -qq build twine
	$(RELEASE)/tools/bin/python -m build --outdir dist > $(RELEASE)/build.log
	$(RELEASE)/tools/bin/twine check --strict dist/*
	$(PYTHON) -m venv $(RELEASE)/clean
	$(RELEASE)/clean/bin/python .ci/install_torch.py .ci/constraints.txt torch
	$(RELEASE)/clean/bin/pip install -qq -c .ci/constraints.txt "$$(ls dist/*.whl)[rlinf,metaworld,report]"
	$(RELEASE)/clean/bin/pip install -qq --no-deps -c .ci/constraints.txt rlinf
	cd $(RELEASE)/clean && bin/rlinf-async --version && bin/rlinf-async doctor \
		&& bin/rlinf-async explain metaworld_ppo_mlp && bin/rlinf-async configs

clean:
	rm -rf $(VENV) $(VENV_VERL) $(VLA) $(VERL_VLA) $(OTHER_PYTHONS:%=.venv-%) build dist site mutants .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
