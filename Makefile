# make demo   a finished study on this machine's CPU      make test       lint, types, tests
# make test-slow   minutes of real training               make test-gpu   kernels and training on an accelerator
# make test-slurm  sweeps on a SLURM that the tests start (root, Debian's slurm-wlm slurmdbd mariadb-server munge)
# make soak        half an hour of random kills and preemptions of a sweep on that SLURM
# make bench-fitting   fits a second, against scipy
PYTHON ?= python3
VENV   ?= .venv
PY      = $(VENV)/bin/python

.PHONY: demo test test-slow test-slurm test-gpu soak bench-fitting lint clean

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"isoloss needs Python 3.11 or newer, {sys.executable} is {sys.version.split()[0]}: make PYTHON=python3.11 ...")'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PY) -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/installed
	@$(PY) -m sweeps run sweeps/studies/demo.yaml
	@$(PY) -m fitting.iso_loss runs/demo
	@$(PY) -m reports runs/demo --out report/demo

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test: lint
	$(PY) -m pytest -m "not slow and not gpu and not slurm" --durations=15

test-slow: $(VENV)/installed-dev
	$(PY) -m pytest -m "slow and not slurm" --durations=15

test-slurm: $(VENV)/installed-dev
	$(PY) -m pytest -m slurm --durations=15

soak: $(VENV)/installed-dev
	$(PY) -m tests.slurm.soak $(SOAK)

test-gpu: $(VENV)/installed-dev
	$(PY) -m pytest -m gpu

bench-fitting: $(VENV)/installed
	@$(PY) -m fitting.bench.joint
	@$(PY) -m fitting.bench.surface --peer

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
