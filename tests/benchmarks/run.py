"""All benchmarks, or those named, in one table and one file."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence

from tests.benchmarks import table

MODULES = tuple(
    name
    for name in (
        "kernel",
        "memory",
        "graphs",
        "groups",
        "random_rows",
        "decoding",
        "polishing",
        "components",
        "gpu",
    )
    if importlib.util.find_spec(f"tests.benchmarks.{name}")
)


def main(arguments: Sequence[str]) -> None:
    """One table of ours, rivals and floors; the rows go to a file of .bench as well."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODULES)}")
    parser.add_argument("--quick", action="store_true", help="a tiny form of each")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(MODULES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(MODULES)}")
    rows = []
    for name in given.names or MODULES:
        print(f"{name} ...", file=sys.stderr, flush=True)  # noqa: T201
        rows += importlib.import_module(f"tests.benchmarks.{name}").rows(quick=given.quick)
    found = table.machine()
    print(f"{found['cpu']}, {found['cores']} cores, {found['commit']}, {found['date']}")  # noqa: T201
    print(table.table(rows), flush=True)  # noqa: T201
    print("ratio: times better than the rival; floor: what the machine would allow")  # noqa: T201
    print(f"written to {table.write(rows, found)}", file=sys.stderr)  # noqa: T201
