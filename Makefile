# make run: train the tiny recipe here. make check: the quick loop. make test: every test, slow ones with one case each,
# and a job of each kind of cluster that is set up here. make test-all: all of it, which CI begins with make test and
# continues with make test-rest. All set up .venv first.
.DELETE_ON_ERROR:
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROCESSES ?= 3
PYTEST = $(BIN)/python -m pytest --numprocesses=$(PROCESSES) --dist=loadscope --no-loadscope-reorder
unexport PYTHONDONTWRITEBYTECODE  # tests start many processes: compiled modules are kept
AGENT := hyperpod-elastic-agent==1.1.3  # its metadata pins an older torch, hence --no-deps
TIERS := amzn-sagemaker-checkpointing==1.1.3  # of its dependencies, only unused S3 classes are missing

WHEELS ?=  # folder of wheels, for a GPU machine without a package index: make bench-gpu WHEELS=.wheels PYTHON=python3
GPU_WHEELS := $(or $(strip $(WHEELS)),.wheels)
GPU_SITE := $(CURDIR)/.gpu-site
GPU_STAGE ?= all
GPU_OUT ?= results/gpu
GPU_FLAGS ?=

.PHONY: run check quick test test-all test-rest test-failed engine engines test-kubernetes lint types imports generated bench bench-gpu bench-gpu-wheels bench-verl mutants coverage clean
run: $(VENV)/ready
	$(BIN)/python main.py

test: $(VENV)/ready
	$(PYTEST) -m 'sample or not (long)'

# test-rest: what make test leaves out; MINUTES=<number> begins no test after them.
test-rest: CHOICE = -m 'long and not sample' $(if $(MINUTES),--minutes=$(MINUTES))
test-all test-rest: $(VENV)/ready
	tests/engines/build_kube_apiserver.sh
	$(PYTEST) --hypothesis-profile=long $(CHOICE)

test-failed: $(VENV)/ready  # those of the last run, one at a time
	$(BIN)/python -m pytest --hypothesis-profile=long --last-failed --last-failed-no-failures=none

check: $(VENV)/ready
	$(MAKE) --no-print-directory --jobs=2 quick lint types imports

# Each half collects its own tests alone; one run that deals them out to two processes takes a quarter more of both.
quick: ONE = $(BIN)/python -m pytest -p no:xdist -m 'not whole_job and not slow'
quick: HALF = tests/test_[a-rt-z]*.py
quick: $(VENV)/ready
	@out=$$(mktemp); trap 'rm -f $$out' EXIT; \
	$(ONE) $(HALF) > $$out 2>&1 & other=$$!; \
	$(ONE) --ignore=tests/kubernetes --ignore-glob='$(HALF)'; status=$$?; \
	wait $$other || status=$$?; cat $$out; exit $$status

engines: $(VENV)/ready  # what tests start beside Python, Debian 12 as root; CACHE=<empty folder> builds it anew there
	$(if $(CACHE),XDG_CACHE_HOME=$(abspath $(CACHE))) tests/engines/set_up.sh

engine: $(VENV)/ready  # NAME=slurm: start it, say how it is used, and stop it at Ctrl-C
	$(BIN)/python tests/engines/engine.py $(NAME)

test-kubernetes: $(VENV)/ready
	tests/engines/build_kube_apiserver.sh
	$(BIN)/python -m pytest tests/kubernetes

lint: $(VENV)/ready
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/ready
	$(BIN)/mypy

imports: $(VENV)/ready
	$(BIN)/lint-imports

generated: $(VENV)/ready
	$(BIN)/recipes docs --check && $(BIN)/recipes scripts --check

bench: $(VENV)/ready
	$(BIN)/python -m pytest benchmarks --benchmark-columns=median,min,max,rounds

# On a machine with a GPU: docs/gpu-kit.md. GPU_STAGE=part-1 takes nine minutes at most.
bench-gpu: $(if $(strip $(WHEELS)),$(GPU_SITE)/ready,$(VENV)/ready)
	$(if $(strip $(WHEELS)),PYTHONPATH=$(GPU_SITE):$(CURDIR) $(PYTHON),$(BIN)/python) \
		-m benchmarks.gpu $(GPU_STAGE) --out $(GPU_OUT) $(GPU_FLAGS)

$(GPU_SITE)/ready: $(wildcard $(GPU_WHEELS)/*.whl)
	rm -rf $(GPU_SITE)
	$(PYTHON) -m pip install --quiet --no-index --no-deps --no-compile --target $(GPU_SITE) $(GPU_WHEELS)/*.whl
	touch $@

bench-gpu-wheels:  # on a machine with a package index, for Python 3.12 on x86-64
	rm -rf $(GPU_WHEELS)
	$(PYTHON) -m pip download --quiet --no-deps --dest $(GPU_WHEELS) --only-binary=:all: --python-version 3.12 \
		--implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
		--platform manylinux2014_x86_64 --constraint constraints.txt --requirement benchmarks/gpu/wheels.txt
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir $(GPU_WHEELS) --constraint constraints.txt \
		antlr4-python3-runtime $(AGENT)
	du -sh $(GPU_WHEELS)

bench-verl: $(VENV)/ready  # SFT by verl's own trainer, with a tiny model; its packages go into the cache folder
	$(BIN)/python -m benchmarks.verl

mutants: $(VENV)/ready  # takes hours; MUTANTS='--every 8' estimates; benchmarks/mutation/targets.toml has the modules
	$(BIN)/python -m benchmarks.mutation $(MUTANTS)

coverage: $(VENV)/ready
	rm -rf .coverage && mkdir .coverage
	$(BIN)/python -m coverage run -m pytest --numprocesses=2 --dist=loadscope --ignore=tests/kubernetes
	$(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage report --skip-covered

$(VENV)/ready: pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[local,trainer,k8s,sagemaker,ray,notify,sweep,ui,test]'
	$(BIN)/python -m pip install --quiet --no-compile --no-deps $(AGENT) $(TIERS)
	$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || :  # on all cores; some are for newer Pythons
	$(BIN)/python -m compileall -qq launcher
	$(BIN)/python -c 'from launcher.common.templating import compile_templates; compile_templates()'
	$(BIN)/mypy >/dev/null || :  # fills its cache: without it, make types takes 20 s
	touch $@

clean:
	rm -rf $(VENV) $(GPU_SITE) .wheels results
