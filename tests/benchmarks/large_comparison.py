"""Compare two stores of any size, beside two-sample tests of other packages.

Command: ``make distributions N=100000000``. The second store differs from the first one by the
width of one of 64 components. Both are sketched in one pass each, with their chunks as units.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import dask.array as da

import dask_sketch as ds
from dask_sketch.display.text import text_table
from dask_sketch.distributions import compare
from tests.benchmarks.scale.contest import absent, last_line
from tests.benchmarks.scale.measuring import measured_pass, ready, small_cluster
from tests.benchmarks.scale.store import CHUNK_ROWS, write_store
from tests.benchmarks.two_sample_rivals import RIVALS

SCRIPT = Path(__file__).with_name("two_sample_rivals.py")
PYTHON = Path(".bench/rivals/bin/python")  # of the environment of the rivals
N_FREQUENCIES = 128
WIDENED = 1.02
FIRST_ROWS = 1000  # of a rival, then twice as many again and again
MEMORY = 2**33  # bytes of a rival
MIN_UNITS = 20  # of a side


def ours(first: Path, second: Path, n_rows: int, n_frequencies: int) -> Iterator[dict[str, Any]]:
    """Results and cost of the comparison, and of that of two halves of the first store.

    Parameters
    ----------
    first, second
        Zarr stores.
    n_rows
        Rows of a unit.
    n_frequencies
        Number of frequencies.
    """
    with small_cluster() as client:
        cpu, wall = time.process_time(), time.perf_counter()
        rows = da.concatenate([da.from_zarr(str(path)) for path in (first, second)])
        feature_map = ds.design(rows, task="comparison", n_frequencies=n_frequencies)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        ready(client, feature_map)
        units = da.arange(len(rows) // 2, chunks=n_rows) // n_rows
        groups, costs = zip(
            *(measured_pass(client, path, feature_map, groups=units) for path in (first, second)),
            strict=True,
        )
    passes = sum(cost.cpu for cost in costs), sum(cost.wall for cost in costs)
    half = groups[0].labels < len(groups[0]) // 2
    halves = groups[0].select(half), groups[0].select(~half)
    for name, sides in (("both stores", groups), ("halves of the first", halves)):
        before, start = time.process_time(), time.perf_counter()
        found = compare(*sides)
        own = time.process_time() - before, time.perf_counter() - start
        yield {
            "name": f"dask-sketch, {name}",
            "n": int(sum(side.count.sum() for side in sides)) // 2,
            "p_value": found.p_value,
            "interval": found.interval,
            "cpu": cpu + passes[0] + own[0],
            "wall": wall + passes[1] + own[1],
            "peak": max(cost.peak for cost in costs),
        }


def rival(python: Path, name: str, stores: tuple[Path, Path], n: int, cap: float) -> dict[str, Any]:
    """Result and cost of a rival on the first rows, or why there is none.

    Parameters
    ----------
    python
        Interpreter of the environment of the rivals.
    name
        Name of the rival.
    stores
        Both stores.
    n
        Number of rows of each store.
    cap
        CPU seconds after which the system ends it.
    """
    given = ["stores", name, *stores, n, cap, MEMORY]
    # -P: the folder of the script is no place to import from
    command = [str(word) for word in (python, "-P", SCRIPT, *given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = "time" if done.returncode < 0 else last_line(done.stderr)
        return {"name": name, "n": n, "note": f"stopped: {reason}"}
    return {"name": name, "n": n, **json.loads(done.stdout.splitlines()[-1])}


def rivals(python: Path, stores: tuple[Path, Path], n: int, cap: float) -> Iterator[dict[str, Any]]:
    """Each rival at the largest number of rows that it manages, doubled from the least."""
    for name in RIVALS:
        package = name.split()[0].replace("-", "_")
        reason = absent(python, package)
        if reason:
            yield {"name": name, "n": 0, "note": f"skipped: {reason}"}
            continue
        rows, best = min(FIRST_ROWS, n), None
        while True:
            entry = rival(python, name, stores, rows, cap)
            if "p_value" not in entry:
                note = f"{rows:,}: {entry['note']}"
                break
            best, note = entry, "all rows"
            if rows == n:
                break
            rows = min(2 * rows, n)
        yield (best or {"name": name, "n": 0}) | {"note": note}


def _line(entry: dict[str, Any]) -> tuple[str, ...]:
    shown = [
        format(entry[key] / unit, form) if key in entry else "-"
        for key, form, unit in (
            ("p_value", ".3g", 1), ("cpu", ".1f", 1), ("wall", ".1f", 1), ("peak", ".0f", 1e6),
        )
    ]  # fmt: skip
    note = entry.get("note", "")
    if "interval" in entry:
        note = "discrepancy {:.2g} to {:.2g}".format(*entry["interval"])
    return (entry["name"], f"{entry['n']:,}", *shown, note)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("n", type=float, help="rows of each store")
    parser.add_argument("--at", type=Path, default=Path(".bench"), help="folder of the stores")
    parser.add_argument("--rivals", type=Path, default=PYTHON, help="interpreter of the rivals")
    parser.add_argument("--cap", type=float, help="CPU seconds of a rival; those of ours if more")
    chosen = parser.parse_args()
    n = int(chosen.n)
    with small_cluster() as client:
        first, _ = write_store(chosen.at, n, 0, client)
        second, _ = write_store(chosen.at, n, 0, client, widened=WIDENED)
    entries = []
    for entry in ours(first, second, min(CHUNK_ROWS, n // MIN_UNITS), N_FREQUENCIES):
        entries.append(entry)
        click.echo(", ".join(_line(entry)), err=True)
    cap = max(entries[0]["cpu"], chosen.cap or 0.0)
    for entry in rivals(chosen.rivals, (first, second), n, cap):
        entries.append(entry)
        click.echo(", ".join(_line(entry)), err=True)
    click.echo(f"{N_FREQUENCIES} frequencies; rivals have {cap:.0f} CPU seconds")
    header = ("test", "rows a side", "p-value", "CPU s", "s", "peak MB", "")
    click.echo(text_table([_line(entry) for entry in entries], header=header))


if __name__ == "__main__":
    main()
