# The virtual environment's commands come first on PATH, also for the processes that `accelerate launch` starts.
VENV := .venv
STAMP := $(VENV)/.installed
BY_FILE := --dist loadfile --no-loadscope-reorder
CHECKED := tests/architecture/test_configs.py tests/docs
# The tests of every function whose signature says a shape of arrays.
SHAPED := $(addprefix tests/,batches evaluation) \
	$(patsubst %,tests/data/test_%.py,duplicates fast_encoding packing pair_rows segmenter sentences signatures slices \
		vocabulary words) \
	$(patsubst %,tests/model/test_%.py,fitted isolation local_layers mlm packed_attention pairs position_table \
		window_attention) \
	$(patsubst %,tests/downstream/test_%.py,folds models scores) tests/experiments/test_intervals.py \
	tests/inspect/test_reading.py tests/predict/test_predictions.py tests/training/test_golden.py
PYTHON ?= $(shell command -v python3.11 || command -v python3)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-types test-processes test-all docs bench golden clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

setup: $(STAMP) ## create a virtual environment with the pinned dependencies

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "error: Python 3.11 or later is needed")'
	@echo 'installing the pinned dependencies into $(VENV): a minute or two'
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --constraint constraints.txt setuptools
	@$(VENV)/bin/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@
	@echo 'installed; for the command longmlm in this shell: source $(VENV)/bin/activate'

demo: $(STAMP) ## run the whole pipeline on the bundled model and corpus, and compare it with a control
	rm -rf out/demo out/control
	HF_HUB_OFFLINE=1 longmlm run demo
	@echo 'control: the bundled model, trained on as many tokens at its own 128 positions'
	HF_HUB_OFFLINE=1 longmlm run docs/experiments/control.toml
	@echo 'the long model against the control, which is the base model in this table'
	HF_HUB_OFFLINE=1 longmlm evaluate --base out/control/run --rows out/demo/rows --long-after out/demo/run \
		--output out/control/evaluation --recipe.held-out.max-rows 450

check: $(STAMP) ## check style, imports, types and shipped settings: seconds
	ruff check
	ruff format --check
	lint-imports --no-logo
	pyrefly check
	hadolint docker/Dockerfile
	check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
	kubernetes-validate --quiet --strict deploy/kubernetes.yaml deploy/prepare.yaml
	check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	check-jsonschema --default-filetype yaml --builtin-schema vendor.citation-file-format CITATION.cff
	shellcheck .ci/run deploy/slurm.sbatch deploy/prepare.sbatch benchmarks/gpu.sh
	mkdocs build --strict --quiet
	pytest -q $(CHECKED)

test: $(STAMP) ## run the fast tests: minutes; with REST=1, without those that check and test-types run
	pytest -m 'not slow' $(addprefix --ignore=,tests/processes $(if $(REST),$(CHECKED) $(SHAPED))) \
		--numprocesses auto --maxprocesses 4 $(BY_FILE)

test-types: $(STAMP) ## run some of the fast tests with each call checked against its types and shapes: minutes
	TYPES=1 pytest -m 'not slow' $(SHAPED) --numprocesses auto --maxprocesses 4 $(BY_FILE)

test-processes: $(STAMP) ## run the tests that start processes: minutes
	pytest -m 'not slow' tests/processes --numprocesses auto --maxprocesses 2 $(BY_FILE)

test-all: $(STAMP) ## run the slow tests
	pytest -m slow

docs: $(STAMP) ## build the documentation site: out/site/index.html
	mkdocs build --strict --quiet
	@echo out/site/index.html

bench: $(STAMP) ## run every benchmark: hours; with QUICK=1, smaller ones: minutes
	python benchmarks/report.py $(if $(QUICK),--quick)

golden: $(STAMP) ## with BASE=<revision>: compare its losses with the working tree's, bit for bit
	@test -n '$(BASE)' || { echo 'error: name a revision, as in make golden BASE=main' >&2; exit 2; }
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"; git worktree prune' EXIT; \
	git worktree add --quiet --detach "$$folder/base" '$(BASE)'; \
	python tests/golden.py "$$folder/base" > "$$folder/before.json"; \
	python tests/golden.py . > "$$folder/now.json"; \
	diff "$$folder/before.json" "$$folder/now.json"; \
	echo 'all losses are equal, bit for bit'

clean: ## remove everything generated except the virtual environment
	rm -rf out .pytest_cache .ruff_cache .import_linter_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
