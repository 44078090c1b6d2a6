"""`python -m tests.benchmarks.scale N`: the whole walk on a store of N samples."""

from __future__ import annotations

import os

# one thread for BLAS and OpenMP, before NumPy loads them: CPU seconds are those of one core
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

from pathlib import Path

import click

from tests.benchmarks.scale.walk import PARTS, Walk


@click.command()
@click.argument("n_samples", type=float)
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)))
@click.option("--at", type=click.Path(path_type=Path), default=Path(".scale"), show_default=True,
              help="Folder for stores, sketches and results.")  # fmt: skip
@click.option("--rivals", type=click.Path(path_type=Path), default=Path(".scale/rivals"),
              show_default=True, help="Environment of the rivals.")  # fmt: skip
@click.option("--cap", type=float, default=240.0, show_default=True,
              help="CPU seconds after which a rival stops.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the samples.")
def main(
    n_samples: float, parts: tuple[str, ...], at: Path, rivals: Path, cap: float, seed: int
) -> None:
    """Write N_SAMPLES, sketch, decode and compare; or only some PARTS of it.

    Parts that were done before are shown as they were, from the folder.
    """
    walk = Walk(at, int(n_samples), seed=seed, rivals=rivals / "bin" / "python", cap=cap)
    for part in parts or tuple(PARTS):
        click.echo(f"{part} ...", err=True)
        walk.do(part)
    click.echo(walk.report())


if __name__ == "__main__":
    main(prog_name="python -m tests.benchmarks.scale")
