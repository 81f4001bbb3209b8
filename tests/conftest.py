"""One torch thread per process: on shared cores several threads spin on each other, ten times slower."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
