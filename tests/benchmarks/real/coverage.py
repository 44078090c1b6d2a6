"""Coverage of the 95 % intervals of a refined mixture at a small number of samples."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.benchmarks.paper.likelihood_cases import coverage_of
from tests.benchmarks.real.cells import Cell
from tests.benchmarks.real.methods import Fit

D, N_COMPONENTS, N_SAMPLES = 5, 5, 10_000
PARAMETERS = ("weights", "means", "covariances")


def coverage_cells(n_draws: int) -> Iterator[Cell]:
    """One cell for each draw and kind of parameter: fraction inside the nominal interval."""
    for seed in range(n_draws):
        found: dict[str, Fit] = {}
        for name in PARAMETERS:
            yield Cell(
                "coverage", f"d={D}, overlapping", N_COMPONENTS, seed, name,
                partial(_inside, found, seed, name), N_SAMPLES,
            )  # fmt: skip


def _inside(found: dict[str, Fit], seed: int, name: str) -> Fit:
    if not found:
        runs = coverage_of(D, N_COMPONENTS, None, N_SAMPLES, seed)
        for run in runs:
            parameters = run.setting["parameters"]
            found[parameters] = Fit(run.value, run.seconds or 0.0, False, ())
    return found[name]
