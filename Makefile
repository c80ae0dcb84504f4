# The virtual environment comes first on PATH, so that recipes find its commands and `accelerate launch` its Python.
VENV := .venv
STAMP := $(VENV)/.installed
PYTHON ?= $(shell command -v python3.11 || command -v python3)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-all bench golden clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

setup: $(STAMP) ## virtual environment with pinned dependencies

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed")'
	$(PYTHON) -m venv $(VENV)
	pip install --constraint constraints.txt setuptools
	pip install --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

