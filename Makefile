# make setup   environment in .venv with everything that tests need
# make test    setup, lint, types, tests: what CI runs
# make train   setup, then the quick start: demonstrations, pretraining, training in both worlds

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := test
.PHONY: setup system test train docs

SUPPORTED := import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))
PYTHON ?= $(shell for name in python3.11 python3.12 python3.10 python3; do \
	if $$name -c '$(SUPPORTED)' 2>/dev/null; then echo $$name; break; fi; done)
BIN := .venv/bin
RUN := outputs/quickstart/$(shell date +%Y-%m-%d_%H-%M-%S)

setup: system .venv/.stamp

.venv/.stamp: pyproject.toml platform/reverie_platform.pth
	@test -n "$(PYTHON)" || { echo "no Python 3.10, 3.11 or 3.12 found: install one, or set PYTHON" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,libero]'
	touch $@

# MuJoCo draws without a display through OSMesa.
system:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! ldconfig -p | grep -q libOSMesa; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends libosmesa6; fi

test: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} MUJOCO_GL=$${MUJOCO_GL:-osmesa} $(BIN)/python -m pytest \
		--numprocesses 2 --dist loadfile

train: setup
	$(BIN)/python -m platform.demos env=tabletop_reach out=$(RUN)/demos
	$(BIN)/python -m platform.pretrain all env=tabletop_reach algorithm.gamma=0.95 data=$(RUN)/demos out=$(RUN)/pretrained
	$(BIN)/python -m platform.train real+imagined env=tabletop_reach preset=quickstart data=$(RUN)/demos \
		policy.path=$(RUN)/pretrained/policy world_model.path=$(RUN)/pretrained run.dir=$(RUN)/train

docs: setup
	$(BIN)/python -m configs.document
