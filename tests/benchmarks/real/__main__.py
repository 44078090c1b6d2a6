"""`python -m tests.benchmarks.real`: real data, far clusters and coverage."""

from __future__ import annotations

import os

# one thread for BLAS and OpenMP, before NumPy loads them: CPU seconds are those of one core
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from tests.benchmarks.real.cells import Cell, Record, perform
from tests.benchmarks.real.coverage import coverage_cells
from tests.benchmarks.real.far import far_cells
from tests.benchmarks.real.methods import METHODS, REFERENCES
from tests.benchmarks.real.sets import SETS
from tests.benchmarks.real.splits import real_cells
from tests.benchmarks.real.summary import by_method, by_set, losses, targets

OTHERS = ("far", "coverage")
GROUPS = {"development": False, "judged": True}  # names of many sets


@click.command()
@click.argument("names", nargs=-1)
@click.option("--quick", is_flag=True, help="One split of at most 5,000 rows, K=10; few clusters.")
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="Folder with mnist.npz, mnist_spectral.npz and fsdd.")  # fmt: skip
@click.option("--components", "-k", "sizes", multiple=True, type=click.IntRange(min=1),
              help="Numbers of components; 3, 10, 30 and 64 by default.")  # fmt: skip
@click.option("--splits", "n_splits", type=click.IntRange(min=1), help="Number of splits; 3.")
@click.option("--rows", "max_rows", type=click.IntRange(min=100), help="Rows of a split at most.")
@click.option("--method", "methods", multiple=True, type=click.Choice(list(METHODS)),
              help="Methods, besides the references; all by default.")  # fmt: skip
@click.option("--stale", is_flag=True, help="Use fits of earlier source as well.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(".bench/real.jsonl"),
              show_default=True, help="File of fits; those in it are not repeated.")  # fmt: skip
def main(
    names: tuple[str, ...],
    quick: bool,
    data: Path | None,
    sizes: tuple[int, ...],
    n_splits: int | None,
    max_rows: int | None,
    methods: tuple[str, ...],
    stale: bool,
    out: Path,
) -> None:
    """Measure NAMES: data sets, "far", "coverage", "judged" or "development"; all by default."""
    chosen = []
    for name in names or (*SETS, *OTHERS):
        if name in GROUPS:
            chosen += [each for each in SETS if SETS[each].judged == GROUPS[name]]
        elif name in SETS or name in OTHERS:
            chosen.append(name)
        else:
            known = ", ".join((*SETS, *OTHERS, *GROUPS))
            raise click.UsageError(f"{name!r} is unknown; choose from {known}.")
    say = partial(click.echo, err=True)
    cells = experiments(
        chosen,
        data,
        sizes or ((10,) if quick else (3, 10, 30, 64)),
        n_splits or (1 if quick else 3),
        (*REFERENCES, *(each for each in methods or METHODS if each not in REFERENCES)),
        max_rows or (5_000 if quick else None),
        quick,
        say,
    )
    click.echo(report(list(perform(cells, out, stale=stale, say=say))))


def experiments(
    chosen: list[str],
    data: Path | None,
    sizes: tuple[int, ...],
    n_splits: int,
    methods: tuple[str, ...],
    max_rows: int | None,
    quick: bool,
    say: partial[None],
) -> Iterator[Cell]:
    """All cells of the chosen names, in this order."""
    sets = [name for name in chosen if name in SETS]
    yield from real_cells(sets, data, sizes, n_splits, methods, max_rows, say)
    if "far" in chosen:
        yield from far_cells(n_splits, 10_000 if quick else 100_000, quick=quick)
    if "coverage" in chosen:
        yield from coverage_cells(40 if quick else 100)


def report(records: list[Record]) -> str:
    """The text that is printed."""
    found = losses(records)
    parts = []
    for name, title in (("real", "Real data"), ("far", "Clusters far apart")):
        here = [each for each in found if each.experiment == name]
        if here:
            parts += [f"{title}: nats lost, or ratio of squared errors; ! is a poor fit without a "
                      f"warning\n\n{by_set(here)}", by_method(here)]  # fmt: skip
    return "\n\n".join((*parts, targets(records)))


if __name__ == "__main__":
    main(prog_name="python -m tests.benchmarks.real")
