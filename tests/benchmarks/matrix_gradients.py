"""Gradients with covariance matrices beside those with variances, of the same sketch."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from dask_sketch import design, partial_sketch
from dask_sketch.decoders.objectives.matrix_objective import MatrixObjective
from dask_sketch.decoders.objectives.objective import Objective
from tests.benchmarks.paper.matrix_cases import tilted_mixture
from tests.benchmarks.table import Row, row, table

SIZES = tuple((d, k) for d in (8, 20, 64) for k in (5, 20))
DENSE = ((8, 5), (12, 5))  # sizes with frequencies of all features
_REPEATS, _SECONDS = 7, 0.1


def rows(
    sizes: tuple[tuple[int, int], ...] = SIZES,
    seconds: float = _SECONDS,
    dense: tuple[tuple[int, int], ...] = DENSE,
) -> list[Row]:
    """Milliseconds of CPU time of one cost and gradient, with the map that ``design`` chooses."""
    found = []
    for d, k, kind in [(*size, None) for size in sizes] + [(*size, "full") for size in dense]:
        mixture = tilted_mixture(k, d, seed=0)
        x = mixture.sample(5000, seed=1)
        sketch = partial_sketch(x, design(x, n_components=k, covariance_type=kind, seed=0))
        times = []
        for objective in (MatrixObjective(sketch, "full"), Objective(sketch)):
            theta = objective.space.from_data_units(mixture.means, mixture.covariances)
            times.append(_milliseconds(_gradient(objective, mixture.weights, theta), seconds))
        m = sketch.feature_map.n_frequencies
        title = f"gradient, full matrices, {sketch.feature_map.distribution}, d={d} K={k} m={m}"
        found.append(row(title, times[0], "ms", against="variances", rival=times[1]))
    return found


def _gradient(objective: Objective, weights: np.ndarray, theta: np.ndarray) -> Callable[[], object]:
    return lambda: objective.cost_gradient(weights, theta)


def _milliseconds(call: Callable[[], object], seconds: float) -> float:
    """Median over repeated runs of the given CPU time."""
    call()
    medians = []
    for _ in range(_REPEATS):
        begun, n = time.process_time(), 0
        while time.process_time() - begun < seconds:
            call()
            n += 1
        medians.append((time.process_time() - begun) / n)
    return 1e3 * float(np.median(medians))


if __name__ == "__main__":
    print(table(rows()))  # noqa: T201
