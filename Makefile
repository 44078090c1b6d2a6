# Every target makes its own environment in .venv; only Python 3.11 or newer with venv is needed.
# With LATEST=1 the environment is another one, with the newest releases instead of the pinned ones.
PYTHON ?= python3
VENV := .venv$(if $(LATEST),-latest-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
BIN := $(VENV)/bin
READY := $(VENV)/.ready
INSTALL := -m pip --quiet --disable-pip-version-check --no-input install
RIVALS := .scale/rivals

.DEFAULT_GOAL := help
.PHONY: help env demo test test-slow lint types pytest speech speaker bench bench-gpu bench-compare bench-graphs bench-append estimates accuracy structured paper scale pictures wheel clean

help:  ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 15

env: $(READY)  ## the environment, from the pinned versions; from the newest with LATEST=1

$(READY): $(if $(LATEST),,.ci/requirements.lock) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is too old: set PYTHON to a Python of 3.11 or newer" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifdef LATEST
	$(BIN)/python $(INSTALL) --upgrade pip  # dependency groups need pip 25.1
	$(BIN)/python $(INSTALL) --no-compile --upgrade --upgrade-strategy eager --group dev --editable .
else
	$(BIN)/python $(INSTALL) --no-compile --requirement .ci/requirements.lock
endif
	-$(BIN)/python -m compileall -q -j 0 -x '/tests?/|/kubernetes' $(VENV)/lib  # pip has one process
	$(if $(LATEST),,$(BIN)/python $(INSTALL) --no-deps --no-build-isolation --editable .)
	touch $@

demo: $(READY)  ## 2 million frames to a mixture, with a table and a report
	$(BIN)/dask-sketch demo

speech: $(READY)  ## real recordings to a mixture: make speech DATA=folder
	@test -n "$(DATA)" || { echo "say where the recordings are: make speech DATA=folder" >&2; exit 2; }
	$(BIN)/python -m tests.benchmarks.speech.recordings "$(DATA)"

speaker: $(READY)  ## speakers verified, by sketches and by EM: make speaker DATA=folder [VOICES=folder]
	@test -n "$(DATA)" || { echo "say where the recordings are: make speaker DATA=folder" >&2; exit 2; }
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m tests.benchmarks.speech.speakers "$(DATA)" $(if $(VOICES),--voices "$(VOICES)")

# the type checker has one process only, and the tests wait at times
test:  ## linter, types, tests and doctests: make test [PYTHON=python3.13] [LATEST=1]
	@$(MAKE) --no-print-directory --jobs 3 lint types pytest

lint: $(READY)  ## linter and formatter, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## type checker
	$(BIN)/mypy

# two processes of one thread, each with whole files: some measure memory, or share a cluster; the
# bytecode of ours is kept, or else every process that a test starts would make it again
pytest: $(READY)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder

test-slow: $(READY)  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

bench: $(READY)  ## ours beside rivals, in .bench too: make bench [QUICK=1] [ONLY="kernel memory"]
	$(BIN)/python -m tests.benchmarks $(if $(QUICK),--quick) $(ONLY)

bench-gpu: $(READY)  ## the GPU beside the processor; needs one, and the extra `gpu`
	$(BIN)/python -m tests.benchmarks.gpu $(if $(QUICK),--quick)

bench-decode: $(READY)  ## the decoders beside plain NumPy: make bench-decode [M="2100 10000"]
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.decoding $(M)

bench-compare: $(READY)  ## what moved between two runs: make bench-compare A=file B=file
	@$(BIN)/python -m tests.benchmarks.compare $(A) $(B)

bench-graphs: $(READY)  ## tiny chunks by the hundred thousand: make bench-graphs [N=1000000] [KINDS=files,shards,array]
	$(BIN)/python -m tests.benchmarks.million $(or $(N),100000) $(KINDS)

bench-append: $(READY)  ## one partition more, a night later: make bench-append [N=1000] [ROWS=62500] [M=1000] [K=8]
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.append $(or $(N),1000) $(or $(ROWS),62500) $(or $(M),1000) $(or $(K),8)

estimates: $(READY)  ## time for 10^8 to 10^12 samples on 2 to 2000 cores, by rates measured here
	$(BIN)/python -m tests.benchmarks.estimates

structured: $(READY)  ## frequencies that share work, at equal CPU time: make structured [QUICK=1]
	$(BIN)/python -m tests.benchmarks.structured $(if $(QUICK),--quick)

paper: $(READY)  ## the papers' tables and figures again: make paper [QUICK=1] [DATA=folder]
	$(BIN)/python -m tests.benchmarks.paper $(if $(QUICK),--quick) $(if $(DATA),--data "$(DATA)")

accuracy: $(READY)  ## the decoders beside EM and k-means: make accuracy [ROWS="..."] [DATA=folder]
	$(BIN)/python -m tests.benchmarks.paper acceptance $(ROWS) $(if $(DATA),--data "$(DATA)")

scale: $(READY) $(if $(and $(PARTS),$(if $(findstring rivals,$(PARTS)),,x)),,$(RIVALS)/.ready)  ## a store of any size, ours beside rivals: make scale [N=100000000] [AT=folder] [PARTS="..."]
	$(BIN)/python -m tests.benchmarks.scale $(or $(N),100000000) $(PARTS) $(if $(AT),--at "$(AT)")

# an environment of their own: their requirements contradict ours
$(RIVALS)/.ready: .ci/rivals.lock
	test -x $(RIVALS)/bin/python || $(PYTHON) -m venv $(RIVALS)
	grep -v ^bico $< | $(RIVALS)/bin/python $(INSTALL) --requirement /dev/stdin
	$(RIVALS)/bin/python $(INSTALL) --requirement $< \
	  || echo "no C++ compiler to build the coreset with: it will be left out" >&2
	touch $@

pictures: $(READY)  ## the pictures of the README; those of pages need Chromium
	$(BIN)/python -m tests.pictures

wheel: $(READY)  ## sdist and wheel, in dist
	$(BIN)/python -m build --no-isolation

clean:  ## remove all that was made
	rm -rf .venv .venv-latest-* build dist .bench .demo .paper .scale .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find dask_sketch tests -name __pycache__ -type d -prune -exec rm -rf {} +
