"""`python -m tests.benchmarks [--quick] [NAME ...]`: one table, and a file of the same rows."""

from __future__ import annotations

import os

# one thread for BLAS, before NumPy loads it: the rates are for one core
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse  # noqa: E402
import importlib  # noqa: E402
import importlib.util  # noqa: E402
import sys  # noqa: E402

from tests.benchmarks import table  # noqa: E402

MODULES = tuple(
    name
    for name in ("kernel", "memory", "graphs", "decoding", "gpu")
    if importlib.util.find_spec(f"tests.benchmarks.{name}")
)


def main() -> None:
    """Run the modules named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODULES)}")
    parser.add_argument("--quick", action="store_true", help="a tiny form of each")
    given = parser.parse_args()
    if unknown := set(given.names) - set(MODULES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(MODULES)}")
    rows = []
    for name in given.names or MODULES:
        print(f"{name} ...", file=sys.stderr, flush=True)  # noqa: T201
        rows += importlib.import_module(f"tests.benchmarks.{name}").rows(quick=given.quick)
    found = table.machine()
    print(f"{found['cpu']}, {found['cores']} cores, {found['commit']}, {found['date']}")  # noqa: T201
    print(table.table(rows), flush=True)  # noqa: T201
    print(f"written to {table.write(rows, found)}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
