# Everything a user needs: `make help`. The build itself is CMake's (CMakePresets.json).
PRESET ?= release
JOBS ?= $(shell nproc)
export JOBS

.DEFAULT_GOAL := help
.PHONY: help build test demo format lint install-deps clean

help:
	@echo "make demo          train a small GPT-2 on this project's own text, then compare kernels (about 5 minutes)"
	@echo "make test          build and run all tests"
	@echo "make build         the library and the tool: build/$(PRESET)/fovea"
	@echo "make lint          formatting, layers and clang-tidy"
	@echo "make format        format all sources"
	@echo "make install-deps  install what is needed (Debian, Ubuntu); the others do it themselves"
	@echo "make clean         remove build/"
	@echo
	@echo "PRESET=$(PRESET)    one of release, dev, cuda, asan-ubsan, tsan"
	@echo "JOBS=$(JOBS)            parallel jobs"

build: install-deps
	@bash scripts/build.sh $(PRESET)

test: build
	@bash scripts/test.sh $(PRESET)

demo: build
	@bash scripts/demo.sh build/$(PRESET)/fovea

format:
	@bash scripts/install_dependencies.sh --lint
	@bash scripts/check_format.sh --fix
	@echo "fovea: formatted"

lint:
	@bash scripts/install_dependencies.sh --lint
	@bash scripts/check_format.sh
	@python3 scripts/check_layers.py
	@cmake --preset dev >/dev/null
	@bash scripts/check_tidy.sh build/dev
	@echo "fovea: lint is clean"

install-deps:
	@bash scripts/install_dependencies.sh

clean:
	@rm -rf build
	@echo "fovea: removed build/"
