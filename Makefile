# The one list of commands: people and .ci/run call these targets by the same names.
PYTHON ?= python3
PROMPTS ?=
BIN    := .venv/bin
LIGHT  := .venv/.codespec-light
READY  := .venv/.codespec-ready
export PYTHON
# Hundreds of processes that tests start read the bytecode that the first one has written.
unexport PYTHONDONTWRITEBYTECODE

# A venv that was made in another folder (the checkout was moved or copied) is made again.
ifneq ($(shell cat $(READY) 2>/dev/null),$(shell pwd -P))
$(READY): remake
endif
ifneq ($(shell cat $(LIGHT) 2>/dev/null),$(shell pwd -P))
$(LIGHT): remake
endif

.PHONY: help demo serve test test-torch test-lab test-native test-full fuzz e2e gpu dist lint clean check-python remake
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

demo: $(LIGHT) ## complete real code, show who wrote what and the speed-up (pulls a model once, 491 MB or 1.1 GB; CODESPEC_MODEL=starter: none)
	@$(BIN)/python -m codespec_lab.commands.demo

serve: $(LIGHT) ## the daemon in the foreground, on 127.0.0.1:8765
	@$(BIN)/codespec serve

# Two processes at a time take these parts, the longest first; `rest` has every folder that no other part names. Each
# part is one process with its own caches, and its order stays.
PARTS       = part-lsp part-rest part-server part-cli lint
part_server = tests/server plugins/scale/tests plugins/upstream/tests
part_lsp    = tests/lsp tests/client tests/grammars tests/backends tests/startup
part_cli    = tests/cli tests/store
NAMED       = $(part_server) $(part_lsp) $(part_cli)
part_rest   = $(filter-out $(NAMED) tests/tools %__pycache__,$(patsubst %/,%,$(wildcard tests/*/ plugins/*/tests/)))
# What only models in torch need: architectures, heads, adapters, GPU kernels. The rest of tests/backends is native.
TORCH = $(wildcard tests/backends/cuda tests/backends/recurrent tests/engine/test_architectures.py tests/engine/test_caches.py \
          tests/engine/test_device_steps.py tests/engine/test_heads.py tests/startup/test_call*.py tests/startup/test_tuning.py tests/store/test_adapters.py) \
          $(filter-out tests/backends/test_seam.py,$(wildcard tests/backends/test_*.py))
# Triton's interpreter checks the GPU kernels on a CPU; nothing else here needs its 200 MB.
TRITON = "triton; platform_system == 'Linux'"

test: $(READY) ## lint and all tests but those that the next three targets take; lists every skip
	@$(MAKE) --no-print-directory -k -j 2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) $(PARTS)

part-%: $(READY)
	@$(BIN)/python -m pytest -q -m "not full" $(part_$*) $(TORCH:%=--ignore=%)

test-torch: $(READY) ## the tests of models that torch computes: architectures, heads, adapters, GPU kernels in Triton's interpreter
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-input -c constraints.txt $(TRITON)
	@$(BIN)/python -m pytest -q -m "not full" $(TORCH)

test-lab: $(READY) ## the tests of the laboratory (benchmarks, training, distillation, the demo) and of tools/
	@$(BIN)/python -m pytest -q -m "not full" lab/tests tests/tools

test-native: $(READY) ## the kernels on every path: emulated, for arm64 under qemu, with sanitizers (installs what that needs where it may)
	@tests/e2e/install.sh kernels
	@$(BIN)/python -m pytest -q native/tests

test-full: $(READY) ## the large runs, property tests with many examples: make test-full [PROMPTS=FILE.jsonl[.gz]]; JSON under docs/
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-input -c constraints.txt $(TRITON)
	@RANDOM_EXAMPLES=1 CODESPEC_PROMPTS="$(PROMPTS)" $(BIN)/python -m pytest -q -m "full or hypothesis"

fuzz: $(READY) ## random names, messages, model folders and GGUF headers for the real processes, an hour each: make fuzz [ARGS="--minutes 10 rpc"]
	@$(BIN)/python -m tools.fuzz $(ARGS)

e2e: check-python ## the pages' commands in a fresh clone of HEAD, the page in Chromium, other clients, Neovim, VS Code (installs what they need where it may)
	@tests/e2e/run.sh

gpu: check-python ## the tests and tables that need a GPU, with PYTHON as it is (no .venv): make gpu [PYTHON=…] [ARGS=--list]
	@$(PYTHON) -m tools.gpu $(ARGS)

dist: check-python ## HEAD as packages in dist/: wheel, sdist, VS Code extension, Neovim plugin (needs npm); the same bytes each time
	@$(PYTHON) -m tools.make_dist

lint: $(READY) ## ruff, mypy, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "format: run $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

clean: ## remove .venv and all caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# `make demo` and `make serve` need no torch; everything else has the whole environment.
SETUP = pyproject.toml constraints.txt tools/make_venv.py $(wildcard native/codespec_native/*.py native/codespec_native/src/*)

$(LIGHT): $(SETUP) | check-python
	@$(PYTHON) -m tools.make_venv light

$(READY): $(SETUP) | check-python
	@$(PYTHON) -m tools.make_venv

check-python:
	@command -v $(PYTHON) >/dev/null 2>&1 || \
	  { echo "codespec needs Python 3.11 or newer, and there is no '$(PYTHON)' here: install one, or say make PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "codespec needs Python 3.11 or newer, and '$(PYTHON)' is older: install one, or say make PYTHON=/path/to/python3.11." >&2; exit 1; }

remake:
