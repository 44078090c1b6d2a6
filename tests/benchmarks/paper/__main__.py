"""`python -m tests.benchmarks.paper`: the papers' tables and figures, or our own targets."""

from __future__ import annotations

import os

# one thread for BLAS and OpenMP, before NumPy loads them: CPU seconds are those of one core
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import time
from collections.abc import Sequence
from pathlib import Path

import click

from tests.benchmarks.paper.acceptance import ROWS, Row, verdicts
from tests.benchmarks.paper.catalogue import EXPERIMENTS, Experiment
from tests.benchmarks.paper.records import Run, perform
from tests.benchmarks.paper.tables import table


@click.command()
@click.argument("names", nargs=-1)
@click.option("--quick", is_flag=True, help="Fewer draws and cells: under 10 minutes.")
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="Folder with mnist_spectral.npz and fsdd, for what needs them.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path(".paper"),
              show_default=True, help="Folder for the pictures.")  # fmt: skip
@click.option("--workers", type=click.IntRange(min=0), default=os.cpu_count(),
              show_default=True, help="Processes; 0 for this one.")  # fmt: skip
def main(names: tuple[str, ...], quick: bool, data: Path | None, out: Path, workers: int) -> None:
    """Run the experiments NAMES, all of the papers' by default.

    "acceptance" and rows after it measure the project's targets instead, all rows by default.
    """
    known: dict[str, Experiment | Row] = {**EXPERIMENTS}
    chosen = names or tuple(known)
    if chosen[0] == "acceptance":
        known = {**ROWS}
        chosen = chosen[1:] or tuple(known)
    for name in chosen:
        if name not in known:
            raise click.UsageError(f"{name!r} is unknown; choose from {', '.join(known)}.")
    form = "quick" if quick else "full"
    began = time.perf_counter()
    for name in chosen:
        entry = known[name]
        start = time.perf_counter()
        runs = measured(entry, form, data, workers)
        if runs is None:
            click.echo(f"{name}: skipped, since --data names no folder with {entry.needs}.\n")
            continue
        click.echo(f"{name}: {report(entry, runs)}")
        if isinstance(entry, Experiment) and entry.draw is not None:
            out.mkdir(parents=True, exist_ok=True)
            entry.draw(runs).savefig(out / f"{name}.png")
            click.echo(f"picture: {out / name}.png")
        click.echo(f"{time.perf_counter() - start:.0f} s\n")
    click.echo(f"all: {time.perf_counter() - began:.0f} s on {max(workers, 1)} processes")


def measured(
    entry: Experiment | Row, form: str, data: Path | None, workers: int
) -> list[Run] | None:
    """All records of an experiment or row; None where its data is missing."""
    if entry.needs is None:
        jobs = entry.jobs(form)
    elif data is not None and (data / entry.needs).exists():
        jobs = entry.jobs(form, data / entry.needs)
    else:
        return None
    return [run for runs in perform(jobs, workers) for run in runs]


def report(entry: Experiment | Row, runs: Sequence[Run]) -> str:
    """The text that is printed."""
    return verdicts(entry, runs) if isinstance(entry, Row) else table(entry.title, runs)


if __name__ == "__main__":
    main(prog_name="python -m tests.benchmarks.paper")
