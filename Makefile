# Everything runs in .venv, made on first use from the exact versions in constraints.txt.
# Override the interpreter with `make test PYTHON=/path/to/python3.11`.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PINNED := pyproject.toml constraints.txt
INSTALL := $(PIP) install --constraint constraints.txt
# The package is built by the pinned hatchling of the environment, not by the newest one.
INSTALL_SELF := $(INSTALL) --no-build-isolation --editable
CHECKED := src tests benchmarks docs examples

DEMO_OUTPUT ?= demo-output
WORKERS ?= 2
PYTEST_ARGS ?=
BENCH_ARGS ?=
BASELINE_ARGS ?=
GRID_ARGS ?=
REAL_ARGS ?=
VIDEO_ARGS ?=
LARGE_ARGS ?=
GPU_ARGS ?=
# The torch of .venv is the CPU build. To measure a GPU, use a Python with a CUDA build of torch.
GPU_PYTHON ?= python3
ARENA_ARGS ?=
EXPERIMENTS ?= convergence iteration-time total-time recovery models training-time generalisation numbers
EXPERIMENT_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv demo test baseline bench bench-gpu arena grid ablation experiments real video large lint docs clean distclean
.DELETE_ON_ERROR:

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.made: $(PINNED)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer not found; install it or give PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lrpca needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0])'
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(INSTALL) hatchling editables
	@touch $@

$(VENV)/.demo: $(VENV)/.made
	$(INSTALL_SELF) ".[cli,plot]"
	@touch $@

# PCP, another method on the grid.
$(VENV)/.grid: $(VENV)/.demo
	$(INSTALL) pyrpca
	@touch $@

# The other packages in the arena.
$(VENV)/.arena: $(VENV)/.grid
	$(INSTALL) tensorly scikit-learn
	@touch $@

# PyAV, which reads the videos.
$(VENV)/.real: $(VENV)/.grid
	$(INSTALL) av
	@touch $@

# OpenCV, for comparison of the masks of moving objects.
$(VENV)/.video: $(VENV)/.real
	$(INSTALL) opencv-python-headless
	@touch $@

# PyTorch, for training. The version must be spelled as pinned: other spellings fetch the GPU builds, which take gigabytes.
$(VENV)/.learn: $(VENV)/.demo
	$(INSTALL) torch==2.13.0
	@touch $@

$(VENV)/.dev: $(VENV)/.arena $(VENV)/.learn
	$(INSTALL_SELF) ".[cli,plot,video,dask,dev]"
	@touch $@

$(VENV)/.docs: $(VENV)/.demo $(VENV)/.learn
	$(INSTALL_SELF) ".[docs]"
	@touch $@

venv: $(VENV)/.dev ## Make .venv with everything for development

demo: $(VENV)/.demo ## Separate a rendered street scene; writes pictures and a page to demo-output/
	$(BIN)/lrpca demo -o $(DEMO_OUTPUT) --force

# Two test processes on two cores: more threads of BLAS and PyTorch would only wait for each other. Each file runs in one
# process, so that its kernels are compiled once, and files run in the order of tests/conftest.py.
test: export OPENBLAS_NUM_THREADS ?= 1
test: export OMP_NUM_THREADS ?= 1
test: $(VENV)/.dev ## Run all tests and doctests (PYTEST_ARGS="-k word" to choose)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

baseline: $(VENV)/.real ## Measure accuracy and speed of this commit, 25 minutes; writes benchmarks/results/baseline.json (BASELINE_ARGS="--output FILE", "--compare BEFORE AFTER")
	$(BIN)/python benchmarks/baseline.py $(BASELINE_ARGS)

bench: $(VENV)/.learn $(VENV)/.video ## Measure speed and memory; writes benchmarks/results/*.json (BENCH_ARGS="--n 2000" for less)
	set -e; for script in $(sort $(wildcard benchmarks/bench_*.py)); do $(BIN)/python $$script $(BENCH_ARGS); done

bench-gpu: ## Measure this machine's GPU, two minutes; writes benchmarks/results/gpu.json (GPU_PYTHON=/path/to/python with CUDA torch, GPU_ARGS="--quick" for less)
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu.py $(GPU_ARGS)

arena: $(VENV)/.arena ## Compare all methods on ten kinds of problems; writes benchmarks/results/arena.json (ARENA_ARGS="--quick" for less)
	$(BIN)/python benchmarks/arena.py $(ARENA_ARGS)

grid: $(VENV)/.grid ## Run solvers on the grid of planted problems; writes benchmarks/results/grid.json (GRID_ARGS="--cases noise" to choose)
	$(BIN)/python benchmarks/grid.py $(GRID_ARGS)

ablation: $(VENV)/.demo ## Run the grid with one rule of the default left out at a time; writes benchmarks/results/ablation.json
	$(BIN)/python benchmarks/grid.py --ablation $(GRID_ARGS)

experiments: export LRPCA_DATA ?= ../shared/data
experiments: $(VENV)/.demo $(VENV)/.learn ## Repeat the experiments of the paper; writes experiments/results/*.json (EXPERIMENTS=recovery to choose)
	set -e; for name in $(EXPERIMENTS); do $(BIN)/lrpca reproduce $$name -o experiments/results --force $(EXPERIMENT_ARGS); done

real: $(VENV)/.real ## Run on videos and traffic counts from LRPCA_DATA; writes benchmarks/results/real_data.json (REAL_ARGS="--others none" for less)
	$(BIN)/python benchmarks/real_data.py $(REAL_ARGS)

video: $(VENV)/.video ## Compare masks of moving objects with OpenCV's; writes benchmarks/results/video_quality.json (VIDEO_ARGS="--scene DIR" for others)
	$(BIN)/python benchmarks/video_quality.py $(VIDEO_ARGS)

large: $(VENV)/.dev ## Time data larger than memory; needs 15 GB of disk (LARGE_ARGS="--side 12000" for less)
	$(BIN)/python benchmarks/large.py $(LARGE_ARGS)

lint: $(VENV)/.dev ## Check lint, formatting, types, layers and spelling
	$(BIN)/ruff check $(wildcard $(CHECKED))
	$(BIN)/ruff format --check $(wildcard $(CHECKED))
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell $(wildcard $(CHECKED) *.md)

docs: $(VENV)/.docs ## Build the documentation in docs/_build/html; runs the examples
	rm -rf docs/api/generated
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

clean: ## Remove what was built, keep .venv
	rm -rf build dist demo-output docs/_build docs/gallery docs/api/generated docs/benchmarks.md docs/choose_tables.md docs/grid_tables.md docs/experiments_tables.md docs/gpu_results.md docs/experiments_figures docs/learning_tables.md docs/sg_execution_times.rst \
	    benchmarks/scratch \
	    .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find src tests benchmarks examples docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## Remove .venv too
	rm -rf $(VENV)
