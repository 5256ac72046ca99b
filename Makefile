# Every target creates the environment first, unless it exists.
FITS := import ensurepip, sys, sysconfig, venv; \
    print((3, 11) <= sys.version_info < (3, 15) and not sysconfig.get_config_var("Py_GIL_DISABLED") or "")
fits = $(shell $(1) -c '$(FITS)' 2>/dev/null)
PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3.14 python3,$(if $(call fits,$(p)),$(p))))
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV_READY := $(VENV)/.dev-ready

# By a path, not by setuptools' finder: Python prefers a folder to that one, and a script beside the clone would find
# the clone itself under the name of the package.
EDITABLE := --config-settings editable_mode=compat --editable

# Tests wait more than they compute, so there are more workers than most machines have cores.
WORKERS ?= 4
SIDE_BY_SIDE := --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder

.PHONY: install demo test test-all lint docs bench faults clean

# The demo needs dsindex alone; tests, lint and benchmarks need the tools of the extra `dev` beside it.
define install
	@test -n "$(call fits,$(PYTHON))" || { \
	    echo "dsindex needs Python 3.11, 3.12, 3.13 or 3.14, not free-threaded, with its venv module (on Debian:" \
	        "python3-venv), got $(or $(PYTHON),none); name one: make PYTHON=/path/to/python"; exit 1; }
	@echo "first use: installing dsindex$(2) into $(VENV); this takes minutes"
	@[ -e $(VENV) ] || new=yes; \
	$(PYTHON) -m venv $(VENV) \
	    && $(BIN)/python -m pip install --quiet --disable-pip-version-check $(EDITABLE) '.$(1)' \
	    || { [ -z "$$new" ] || rm -rf $(VENV); echo "$(VENV) could not be made, see above"; exit 1; }
	@touch $@
endef

$(READY): pyproject.toml
	$(call install,,)

$(DEV_READY): pyproject.toml
	$(call install,[dev], and the tools of its tests)
	@touch $(READY)

# EXTRAS=cluster,objects adds the packages of these extras.
install: $(READY)
	$(if $(EXTRAS),$(BIN)/python -m pip install --quiet --disable-pip-version-check $(EDITABLE) '.[$(EXTRAS)]')
	@echo "dsindex is installed; put it on the path with: source $(VENV)/bin/activate"

demo: $(READY)
	@[ -e demo-output ] || { mkdir demo-output && touch demo-output/dsindex-demo.txt; }
	$(BIN)/python workflows/pretraining.py demo-output

# Without sweeps and other cases marked `exhaustive`, which test-all runs too.
test: $(DEV_READY)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not exhaustive" $(ARGS)

test-all: $(DEV_READY)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

lint: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python .ci/words

# The site's packages are installed only for the first build of the site.
DOCS_READY := $(VENV)/.docs-ready

$(DOCS_READY): $(DEV_READY)
	@echo "first use: installing the packages of the site into $(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(EDITABLE) '.[docs]'
	@touch $@

# MkDocs empties the folder that it writes to.
docs: $(DOCS_READY)
	@test -e site/.dsindex-site -o ! -e site || { echo "site: not created by make docs; move it away"; exit 1; }
	@mkdir -p site && touch site/.dsindex-site
	NO_MKDOCS_2_WARNING=true $(BIN)/python -m mkdocs build --strict
	@echo "the documentation is in site/index.html; search needs a server: $(BIN)/python -m http.server -d site"

bench: $(DEV_READY)
	$(BIN)/python -m tests.benchmarks $(ARGS)

faults: $(DEV_READY)
	$(BIN)/python -m pytest tests/faults --long-faults
	$(BIN)/python -m tests.faults.drawn 0 $(or $(SEEDS),2000) --long

# `clean` removes only folders with a marker file that these targets wrote.
MADE := $(VENV)/.ready demo-output/dsindex-demo.txt bench-output/results.json site/.dsindex-site

clean:
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	@for marker in $(MADE); do \
	    folder=$$(dirname "$$marker"); \
	    if [ -f "$$marker" ] && [ ! -L "$$folder" ]; then \
	        echo "rm -rf $$folder"; rm -rf "$$folder"; \
	    elif [ -e "$$folder" ] || [ -L "$$folder" ]; then \
	        echo "$$folder is kept: there is no $$marker, so make did not create it"; \
	    fi; \
	done
