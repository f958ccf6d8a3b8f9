# One command each: `make setup`, `make demo`, `make test`, `make check`, `make docs`.

PYTHON ?= python3.11
# Those that pyproject.toml names; `make check` types the code for each.
PYTHONS := 3.11 3.12 3.13
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
INSTALL := $(PIP) install -c .ci/constraints.txt
EXTRAS := rlinf rlinf-wheel rlinf-scripts metaworld bench report docs dev

# Where to take torch from when pip's default build does not suit this machine; see docs/install.md.
TORCH_INDEX_URL ?=

# Arguments for pytest: make test ARGS="tests/core -x"
ARGS ?=

# Names of mutants, all of them by default; see `make mutants`.
MUTANTS ?=

SETUP := $(VENV)/.setup
SETUP_LIBERO := $(VENV)/.setup-libero
SETUP_MANISKILL := $(VENV)/.setup-maniskill
SETUP_SCRIPTS := $(VENV)/.setup-scripts
SETUP_MUTANTS := $(VENV)/.setup-mutants

# Packages of real VLA models, two folders that go before the main environment; see docs/models.md.
VLA := .venv-vla
SETUP_VLA := $(VLA)/.setup
VLA_SOURCES ?= $(abspath ../shared/vla-sources)

.PHONY: setup setup-libero setup-maniskill setup-scripts setup-vla demo test test-vla mutants check docs format constraints clean

setup: $(SETUP)

$(SETUP): pyproject.toml .ci/constraints.txt .ci/requirements.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) torch
	# Files in between, so that a failing script stops make.
	$(BIN)/python .ci/requirements.py --no-deps $(EXTRAS) > $(VENV)/no-deps.txt
	$(BIN)/python .ci/requirements.py $(EXTRAS) > $(VENV)/requirements.txt
	$(PIP) install --no-deps -r $(VENV)/no-deps.txt
	$(INSTALL) -r $(VENV)/requirements.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	touch $@

setup-libero: $(SETUP_LIBERO)
setup-maniskill: $(SETUP_MANISKILL)

$(SETUP_LIBERO) $(SETUP_MANISKILL): $(VENV)/.setup-%: $(SETUP)
	$(BIN)/python .ci/requirements.py --no-deps $* > $(VENV)/no-deps-$*.txt
	$(BIN)/python .ci/requirements.py $* > $(VENV)/requirements-$*.txt
	$(PIP) install --no-deps -r $(VENV)/no-deps-$*.txt
	$(INSTALL) -r $(VENV)/requirements-$*.txt
	touch $@

setup-vla test-vla: export VLA_SOURCES := $(VLA_SOURCES)

setup-vla: $(SETUP_VLA)

$(SETUP_VLA): $(SETUP) .ci/vla-openpi.txt .ci/vla-openvla-oft.txt
	rm -rf $(VLA)
	$(PIP) install --no-deps --target $(VLA)/openpi -r .ci/vla-openpi.txt
	$(PIP) install --no-deps --target $(VLA)/openvla-oft -r .ci/vla-openvla-oft.txt
	$(BIN)/python -m tests.vla.sources $(VLA)/openpi
	touch $@

# OpenVLA-OFT's tests skip in the first environment, all others in the second.
test-vla: setup-vla
	OMP_NUM_THREADS=1 PYTHONPATH=$(VLA)/openpi $(BIN)/python -m pytest tests/vla $(ARGS)
	OMP_NUM_THREADS=1 PYTHONPATH=$(VLA)/openvla-oft $(BIN)/python -m pytest tests/vla $(ARGS)

setup-scripts: $(SETUP_SCRIPTS)

# For tests of RLinf's own scripts. Beside the environment: this torchvision is built for CUDA, and packages
# that use it where it is installed would fail beside torch for CPU.
$(SETUP_SCRIPTS): $(SETUP)
	$(PIP) install --no-deps --upgrade --target $(VENV)/scripts torchvision==0.28.0
	touch $@

demo: setup
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN)/rlinf-async train --config-name metaworld_ppo_mlp

test: setup
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(ARGS)

$(SETUP_MUTANTS): $(SETUP)
	$(INSTALL) mutmut==3.8.1
	touch $@

# Wrong lines that no test notices; see tests/mutants.md. It goes on where it was stopped, in mutants/.
mutants: $(SETUP_MUTANTS)
	RAY_ADDRESS=local OMP_NUM_THREADS=1 $(BIN)/mutmut run $(MUTANTS)
	$(BIN)/mutmut results

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	for version in $(PYTHONS); do $(BIN)/mypy --python-version $$version || exit 1; done

# The site, in site/; a broken link or anchor fails.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python docs/generate_config.py
	$(BIN)/python docs/generate_performance.py

# Pins what the virtual environment holds now. A local label such as +cpu names a build, not a version.
constraints: setup
	{ sed -n '/^#/p' .ci/constraints.txt; \
	  $(PIP) freeze --exclude-editable | sed 's/+.*//' | tr '[:upper:]' '[:lower:]' | sort; } > .ci/constraints.new
	mv .ci/constraints.new .ci/constraints.txt

clean:
	rm -rf $(VENV) $(VLA) build dist site mutants .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
