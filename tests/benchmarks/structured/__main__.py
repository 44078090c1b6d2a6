"""`python -m tests.benchmarks.structured [--quick]`: speed and accuracy of structured sketches."""

from __future__ import annotations

import os

# one thread for BLAS, before NumPy loads it: the rates are for one core
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse

from tests.benchmarks.structured.comparison import CASES, compare

NOTES = """\
G pairs/s: moment sums alone, one core, CPU time. ln KL: symmetric divergence to the truth after
decode, by least squares (LS) and with refine="efficient"; mean over the draws. At equal CPU: as
many frequencies as sparse-radius's kernel would take the same time for, at their own size."""


def main() -> None:
    """Print a table for each case."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.structured", description=main.__doc__
    )
    parser.add_argument("--quick", action="store_true", help="one case, one draw")
    quick = parser.parse_args().quick
    for case in CASES[:1] if quick else CASES:
        print(compare(case, n_draws=1 if quick else 5), end="\n\n", flush=True)  # noqa: T201
    print(NOTES)  # noqa: T201


if __name__ == "__main__":
    main()
