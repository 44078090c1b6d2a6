"""The decoders against plain NumPy, side by side in one run: time, cost and held-out score."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dask_sketch import GaussianMixture, Sketch, decode, design, partial_sketch
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.models import random_mixture
from tests.benchmarks.plain import PlainSplitting
from tests.benchmarks.table import Row, row, table


@dataclass(frozen=True)
class Case:
    """A mixture to be decoded from ``m`` frequencies.

    Those of sec. 5.1 of Keriven et al. (2018); or ``uneven`` ones, with Dirichlet(1) weights and
    standard deviations of 0.3 to 3 for each component and feature.
    """

    d: int
    k: int
    m: int
    methods: tuple[str, ...]
    n: int = 300_000
    limit: float = 90.0  # seconds of CPU time for plain NumPy
    uneven: bool = False
    refine: str | None = None

    def __str__(self) -> str:
        kind = " uneven" * self.uneven + " refined" * (self.refine is not None)
        return f"d={self.d} K={self.k} m={self.m}{kind}"

    def truth(self) -> GaussianMixture:
        """The mixture."""
        if not self.uneven:
            return random_mixture(self.k, self.d, seed=100)
        even = random_mixture(self.k, self.d, seed=100, weights="dirichlet")
        rng = np.random.default_rng(100)
        deviations = np.exp(rng.uniform(np.log(0.3), np.log(3.0), even.means.shape))
        return GaussianMixture(even.weights, even.means, deviations**2)


CASES = (
    # the main case: real data is as uneven
    Case(12, 64, 8000, ("likelihood", "splitting"), uneven=True, refine="efficient"),
    Case(12, 256, 8000, ("splitting",), uneven=True),
    Case(10, 20, 2100, ("splitting", "cl-ompr")),
    Case(12, 64, 10_000, ("splitting", "cl-ompr")),
    Case(12, 64, 100_000, ("splitting",)),
)
QUICK = (Case(2, 3, 80, ("splitting", "cl-ompr"), n=5000, limit=2.0),)


def timed(call: Callable[[], GaussianMixture]) -> tuple[GaussianMixture, float, float]:
    """The result, seconds, and seconds of CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = call()
    return found, time.perf_counter() - wall, time.process_time() - cpu


def problem(case: Case) -> tuple[GaussianMixture, Sketch]:
    """The mixture, and a sketch of its samples."""
    truth = case.truth()
    x = truth.sample(case.n, seed=0).astype(np.float32)
    feature_map = design(x[:50_000], n_components=case.k, n_frequencies=case.m, seed=0)
    return truth, partial_sketch(x, feature_map)


def one_gradient(plain: PlainSplitting, model: GaussianMixture, repeats: int = 5) -> float:
    """Milliseconds of CPU time of one cost and gradient of plain NumPy at a model."""
    means = (model.means - plain.sketch.mean) / plain.scale
    x = np.concatenate([model.weights, means.ravel(), (model.covariances / plain.scale**2).ravel()])
    plain.deadline, plain.best = float("inf"), (float("inf"), np.empty(0))
    begun = time.process_time()
    for _ in range(repeats):
        plain.cost_gradient(x, model.n_components)
    return 1e3 * (time.process_time() - begun) / repeats


def rows(quick: bool = False, cases: tuple[Case, ...] | None = None) -> list[Row]:
    """Seconds with all cores and of CPU time, cost, and nats lost to the truth on other samples."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    found: list[Row] = []
    for case in cases or (QUICK if quick else CASES):
        truth, sketch = problem(case)
        heldout = truth.sample(20_000 if quick else 100_000, seed=1)
        best = truth.score(heldout)
        plain = PlainSplitting(sketch, case.k, case.limit)
        _, plain_wall, plain_cpu = timed(lambda plain=plain: plain.run())  # type: ignore[misc]
        rival = GaussianMixture(plain.weights, plain.means, plain.variances)
        name = "NumPy, splitting"
        if not plain.ended:
            name += f", stopped at {rival.n_components} components"
        for method in case.methods:
            title = f"decode {case} {method}"
            model, wall, cpu = timed(
                lambda sketch=sketch, case=case, method=method: decode(  # type: ignore[misc]
                    sketch, case.k, method=method, refine=case.refine, threads=cores
                )
            )
            how = model.decoding
            cost = how.cost / how.noise_level
            found += [
                row(f"{title}, {cores} threads", wall, "s", against=name, rival=plain_wall),
                row(f"{title}, CPU time", cpu, "s", against=name, rival=plain_cpu),
                row(f"{title}, cost", cost, "noise levels", against=name, rival=plain.cost),
                row(
                    f"{title}, lost to the truth",
                    best - model.score(heldout),
                    "nats",
                    against=name,
                    rival=best - rival.score(heldout),
                ),
            ]
        found.append(gradients(case, sketch, plain, truth))
    return found


def gradients(case: Case, sketch: Sketch, plain: PlainSplitting, model: GaussianMixture) -> Row:
    """One cost with its gradient, all frequencies, one thread."""
    objective = Objective(sketch)
    theta = objective.space.from_data_units(model.means, model.covariances)
    in_all = plain.n_evaluations
    objective.cost_gradient(model.weights, theta)
    begun, repeats = time.process_time(), 5
    for _ in range(repeats):
        objective.cost_gradient(model.weights, theta)
    ours = 1e3 * (time.process_time() - begun) / repeats
    return row(
        f"one gradient {case}, {in_all} of NumPy in all",
        ours,
        "ms",
        against="NumPy complex128",
        rival=one_gradient(plain, model),
    )


if __name__ == "__main__":
    chosen = tuple(case for case in CASES if not sys.argv[1:] or str(case.m) in sys.argv[1:])
    print(table(rows(cases=chosen)))  # noqa: T201
