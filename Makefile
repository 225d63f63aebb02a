# Every target installs what it needs into .venv first; that happens again only when
# pyproject.toml or the files in requirements/ change.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/pip --quiet --disable-pip-version-check install --no-deps

.PHONY: demo docs example-three-companies test bench soak mutants clean

demo: $(STAMP)
	@$(BIN)/dpzv train flights-scorecard --beside frozen=1,frozen=48,alone --max-seconds 120

example-three-companies: $(STAMP)
	@$(BIN)/python -u examples/three_companies/run.py

# the site in build/site; its tools have an environment of their own, and a link that leads nowhere is an error
docs: build/docs/.installed
	@NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict

build/docs/.installed: requirements/docs.txt
	$(PYTHON) -m venv build/docs
	build/docs/bin/pip --quiet --disable-pip-version-check install --no-deps --require-hashes --requirement requirements/docs.txt
	@touch $@

test: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
# many tests wait for processes and sockets, so three share two cores; files that take longest come first
	@OMP_NUM_THREADS=1 $(BIN)/pytest -m "not soak" --numprocesses 3 --dist loadfile --no-loadscope-reorder

bench: $(STAMP)
	@$(BIN)/python -m benchmarks

soak: $(STAMP)
	@$(BIN)/pytest -m soak
	@$(BIN)/python -m tests.rules.mutants

# another sample: make mutants MUTANTS='--seed 7 --number 200'
mutants: $(STAMP)
	@$(BIN)/python -m tests.rules.mutants $(MUTANTS)

$(STAMP): pyproject.toml $(wildcard requirements/*.txt)
	@$(PYTHON) -c 'import sys; sys.exit("dpzv needs Python 3.11 or newer, found " + sys.version.split()[0] + "; set PYTHON=python3.x" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(PIP) --require-hashes --requirement requirements/build.txt
# pip prefers a file whose hash the index tells; fetched first, a build without CUDA from elsewhere is taken where there is one
	$(BIN)/pip --quiet --disable-pip-version-check download --no-deps --dest .venv/torch $$(sed -n '1s/ .*//p' requirements/torch.txt)
	$(PIP) --require-hashes --no-index --find-links .venv/torch --requirement requirements/torch.txt
	@rm -r .venv/torch
	$(PIP) --require-hashes --no-build-isolation --requirement requirements/dev.txt
	$(PIP) --no-build-isolation --editable .
# where the build has CUDA, the libraries for that, in the versions that the build names
	$(BIN)/pip --quiet --disable-pip-version-check install torch
	@touch $(STAMP)

clean:
	rm -rf .venv build dist runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
