"""`python -m tests.benchmarks [--quick] [NAME ...]`."""

from __future__ import annotations

import os
import sys

# one thread for BLAS, before NumPy loads it: the rates are for one core
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

from tests.benchmarks.run import main

if __name__ == "__main__":
    main(sys.argv[1:])
