# The front door. `make demo` and `make test` install what they need, build, and run.
SHELL := /bin/bash
JOBS ?= $(shell scripts/jobs)

.PHONY: help deps build demo test test-exact soak sanitize bench gpu-build gpu-test format format-check clean
help:
	@echo "make build     build/distca and the tests"
	@echo "make demo      build, then train a small model on this machine's C headers: five minutes"
	@echo "make test      build, then run every test"
	@echo "make test-exact  every way to split a run, against the dense model: ten minutes"
	@echo "make soak      200 ranks and servers killed, stopped or hung at random, in every mode: fifteen minutes"
	@echo "make sanitize  tests under the address, undefined-behaviour and thread sanitizers"
	@echo "make bench     the benchmarks of bench/"
	@echo "make gpu-build  the same program for GPUs, in build-gpu/, and its tests that need none: downloads a PyTorch of 5.4 GB"
	@echo "make gpu-test  on a machine with a GPU: its tests and benchmarks there, as a table"
	@echo "make format    clang-format 14 over src/ and bench/"

deps:
	@scripts/install-deps

build: deps
	cmake --preset release
	cmake --build build -j $(JOBS)

demo: deps
	cmake --preset release
	cmake --build build -j $(JOBS) --target distca
	@scripts/demo

test: build
	ctest --test-dir build -j 2 --output-on-failure

test-exact: build
	OMP_NUM_THREADS=1 build/tests/exactness

soak: build
	scripts/soak

sanitize: deps
	scripts/sanitize $(JOBS)

bench: build
	scripts/bench

gpu-build:
	@scripts/gpu-build $(JOBS)

gpu-test:
	@scripts/gpu-test $(JOBS)

format:
	@git ls-files '*.h' '*.cc' | xargs clang-format-14 -i

format-check:
	@git ls-files '*.h' '*.cc' | xargs clang-format-14 --dry-run --Werror

clean:
	rm -rf build build-gpu build-minimal build-debug build-asan build-tsan build-fuzz
