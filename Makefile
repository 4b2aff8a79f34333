VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ON_DEVICE := fedwright/protocol fedwright/device_runtime fedwright/cli/main.py fedwright/cli/device.py fedwright/api/graphs.py fedwright/api/data.py fedwright/api/device.py

# A folder of full-size data sets beside the clone is used when there is one.
ifndef FEDWRIGHT_DATA
ifneq ($(wildcard ../shared/data),)
export FEDWRIGHT_DATA := $(abspath ../shared/data)
endif
endif

# Another copy of the sources on the caller's path would be taken for the one that is tested or installed.
unexport PYTHONPATH PYTHONHOME

.PHONY: help setup demo test check docs release fuzz bench-train-step clean

help:
	@echo "make demo    a broker, a server and eight emulated devices on this machine: about a minute"
	@echo "make test    everything: check, then unit, contract and end-to-end tests"
	@echo "make check   ruff, formatting, types"
	@echo "make docs    the documentation site in build/site, without dead links or warnings"
	@echo "make release   wheel, source, bill of materials and hashes in dist/, tried in fresh environments; publishes nothing"
	@echo "make fuzz    hours of hostile bytes against every decoder; not part of make test"
	@echo "make bench-train-step   CPU time and memory of a training step, beside torch's"
	@echo "make setup   only the virtual environment .venv (demo and test make it when it is missing)"
	@echo "make clean   remove what the above made"

$(READY): pyproject.toml constraints.txt scripts/setup
	@scripts/setup $(VENV)
	@touch $@

setup: $(READY)

demo: $(READY)
	@$(BIN)/fedwright demo $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@# Boards come with Python 3.10 still; only the emulation of devices needs more.
	$(BIN)/mypy --python-version 3.10 --exclude emulate --follow-imports silent $(ON_DEVICE)

test: check
	@scripts/test $(ARGS)

docs: $(READY)
	@PYTHONPATH=scripts NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict $(ARGS)
	@echo "open build/site/index.html"

release: $(READY)
	@PYTHONPATH=scripts $(BIN)/python scripts/release.py $(ARGS)

fuzz: $(READY)
	$(BIN)/fedwright bench fuzz --strict $(ARGS)
	$(BIN)/python -m pytest tests/protocol --hypothesis-profile=long --timeout=0

bench-train-step: $(READY)
	@$(BIN)/fedwright bench train-step $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
