"""One torch thread per process: on shared cores several threads spin on each other, ten times slower."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

# How long an example takes says nothing about right or wrong, and much about what else the machine does.
settings.register_profile("reverie", deadline=None)
settings.load_profile("reverie")
