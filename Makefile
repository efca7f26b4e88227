# The two commands are `make demo` and `make test`; the rest is for developers.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Files of tests side by side, for most of their time is waiting.
SIDE_BY_SIDE := -m pytest -p tests.side_by_side --processes
# Else every interpreter that a test starts would compile all of dray.
unexport PYTHONDONTWRITEBYTECODE
# Pure tests: no engine, no framework. The others are in *_integration.py.
UNIT := --ignore-glob='*_integration.py' --ignore=tests/cluster -m "not ray and not gpu"

# coverage.py, with the data of all processes in one place, wherever they run.
MEASURED := COVERAGE_FILE=$(CURDIR)/build/coverage/data $(BIN)/coverage

# Where its tests are: other files import what is not in its environment.
OF_TENSORFLOW := tests/train/tensorflow tests/data/test_tensorflow_sets.py $(wildcard tests/docs/test_frameworks*.py tests/docs/test_examples*.py tests/docs/test_snippets*.py tests/docs/test_reference.py)

# Frameworks of others beside PyTorch and JAX: extras of dray, which take seconds to import.
OF_FRAMEWORKS := $(addprefix tests/train/, huggingface lightning lightgbm xgboost test_accelerate_integration.py test_keras_integration.py jax/test_orbax_integration.py)

.PHONY: demo unit test test-frameworks test-docs test-tensorflow test-ray test-cluster test-hdfs test-gpu coverage check bench bench-before diagrams docs release-check stress clean

demo: $(VENV)/demo-installed  ## Train a ResNet-18 on handwritten digits with two worker processes.
	$(BIN)/python examples/image_classification.py --num-workers 2

unit: $(VENV)-unit/installed  ## Run the tests that start no engine, where no extra is installed.
	$(VENV)-unit/bin/python $(SIDE_BY_SIDE) 2 $(UNIT)

test: $(VENV)/dev-installed  ## Run the tests, on the process engine and the inline engine.
	$(BIN)/python $(SIDE_BY_SIDE) 4 $(addprefix --ignore=, tests/docs $(OF_FRAMEWORKS)) -m "not ray and not cluster"

test-frameworks: $(VENV)/dev-installed  ## Run the tests of Lightning, Transformers, Accelerate, Keras, Orbax, XGBoost and LightGBM.
	$(BIN)/python $(SIDE_BY_SIDE) 3 $(OF_FRAMEWORKS) -m "not ray and not cluster"

test-docs: $(VENV)/dev-installed  ## Run every program of the README, the pages and examples/, as a reader would.
	$(BIN)/python $(SIDE_BY_SIDE) 3 tests/docs -m "not ray and not cluster"

test-tensorflow: $(VENV)-tensorflow/installed  ## Run the tests of TensorFlow, in an environment of its own.
	$(VENV)-tensorflow/bin/python $(SIDE_BY_SIDE) 2 -m "not ray" -k tensorflow $(OF_TENSORFLOW)

test-ray: $(VENV)/dev-installed  ## Run the same tests on a Ray cluster.
	$(BIN)/python $(SIDE_BY_SIDE) 2 -m "ray and not cluster"

test-cluster: $(VENV)/dev-installed  ## Run the tests that need a Ray cluster of their own each.
	$(BIN)/python $(SIDE_BY_SIDE) 2 -m cluster

test-hdfs: $(VENV)/dev-installed build/hadoop/installed  ## Run the tests of hdfs:// on a NameNode and a DataNode of this machine (Java, and a download of 220 MB).
	$(BIN)/python -m pytest -m hdfs tests/train/storage

test-gpu: $(VENV)/dev-installed  ## Run the tests that use NVIDIA GPUs (with a torch that has CUDA).
	$(BIN)/python -m pytest -m gpu

coverage: $(VENV)/dev-installed  ## Run the tests that need no Ray cluster, or FILES, and print which lines ran, in workers too.
	rm -rf build/coverage
	mkdir -p build/coverage
	$(MEASURED) run $(SIDE_BY_SIDE) 3 -m "not ray and not cluster" $(FILES); status=$$?; \
	$(MEASURED) combine --quiet && $(MEASURED) report && exit $$status

check: $(VENV)/dev-installed  ## Format, lint, types, import loops, public API.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/python tools/layers.py
	$(BIN)/python tools/docstrings.py
	$(BIN)/python tools/state_diagram.py --check
	$(BIN)/python -m pytest --quiet tests/api/test_public_api.py

bench: $(VENV)/dev-installed $(VENV)-ray/installed  ## Measure against Ray Train and torchrun (takes long).
	$(BIN)/python -m benchmarks --ray-python $(VENV)-ray/bin/python $(BENCH_OPTIONS)

bench-before: $(VENV)/dev-installed  ## Measure against an earlier dray: make bench-before REVISION=v0.1
	$(BIN)/python tools/earlier.py $(VENV)-before $(REVISION)
	$(BIN)/python -m benchmarks --before-python $(VENV)-before/bin/python $(BENCH_OPTIONS)

diagrams: $(VENV)/dev-installed  ## Draw the diagrams in docs/ again.
	$(BIN)/python tools/state_diagram.py

docs: $(VENV)-docs/installed  ## Build the documentation as a site, build/site/index.html.
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --quiet

release-check: $(VENV)-docs/installed  ## Build the package, and install it where nothing else is.
	rm -rf build/lib dist $(VENV)-release
	$(VENV)-docs/bin/python -m build --outdir dist
	$(VENV)-docs/bin/twine check --strict dist/*
	$(PYTHON) -m venv $(VENV)-release
	$(VENV)-release/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd $(VENV)-release && bin/python ../tools/installed.py

stress: $(VENV)/dev-installed  ## Tasks, actors and objects in numbers; then the process tests under load.
	$(BIN)/python tools/core_stress.py
	PYTHONPATH=. $(BIN)/python tools/data_stress.py
	$(BIN)/python tools/data_limits.py
	$(BIN)/python -m tools.campaign ranks drivers flips
	HYPOTHESIS_PROFILE=explore $(BIN)/python tools/stress.py

# Of Spark 2.4's package for Python, which has all of Hadoop 2.7; it is not built, only taken apart.
build/hadoop/installed: tools/hadoop_jars.py
	$(PYTHON) tools/hadoop_jars.py build/hadoop
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-ray $(VENV)-before $(VENV)-unit $(VENV)-tensorflow $(VENV)-docs $(VENV)-release build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache

$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo-installed: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	$(INSTALL) -e '.[examples]'
	touch $@

$(VENV)/dev-installed: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	touch $@ $(VENV)/demo-installed

$(VENV)-unit/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-unit
	$(VENV)-unit/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[unit]'
	$(VENV)-unit/bin/python tools/installed.py
	touch $@

# tf-keras asks for tensorflow, which tensorflow-cpu is in all but name.
$(VENV)-tensorflow/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-tensorflow
	$(VENV)-tensorflow/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[unit,arrow]' tensorflow-cpu scikit-learn
	$(VENV)-tensorflow/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps tf-keras
	touch $@

$(VENV)-docs/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt '.[docs,release]'
	touch $@

$(VENV)-ray/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-ray
	$(VENV)-ray/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'ray[train]==2.60.0' -e '.[torch,ray,lightning,transformers,accelerate,xgboost,lightgbm]'
	touch $@
