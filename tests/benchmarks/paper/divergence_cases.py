"""Divergences of known mixtures: from decoded sketches, nearest neighbours and kernel densities."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.neighbors import KernelDensity

from dask_sketch import GaussianMixture, decode, design, sketch
from dask_sketch.distributions import DensityNodes, Divergence, divergence, node_divergence
from dask_sketch.distributions.divergences import Kind
from dask_sketch.models import random_mixture
from tests.benchmarks.paper.records import Job, Run, timed

Array = NDArray[np.float64]
CASES = ((2, 3), (5, 5))  # d, K
KINDS = ("kl", "js", "squared-hellinger")
# rows a side, draws, and the first draws of these for kernel densities
SIZES = {
    "full": ((1000, 40, 20), (10_000, 40, 10), (100_000, 10, 0), (1_000_000, 2, 0)),
    "quick": ((1000, 8, 4), (10_000, 8, 4)),
    "toy": ((1000, 1, 1),),
}
MOST_FEATURES = 3  # of densities on nodes
N_NODES = 64  # along each feature
MOST_NEIGHBORS = 100_000  # rows of nearest neighbours
_CHUNK = 5  # draws in one job


def divergences(form: str) -> list[Job]:
    """Errors of divergences, and the share of intervals that cover them."""
    return [
        partial(one_case, d, k, n, range(start, min(start + _CHUNK, n_draws)), n_densities)
        for d, k in CASES
        for n, n_draws, n_densities in SIZES[form]
        for start in range(0, n_draws, _CHUNK)
    ]


@cache
def case(d: int, n_components: int) -> tuple[list[GaussianMixture], dict[str, float]]:
    """Two mixtures, and their divergences within a thousandth."""
    truths = [random_mixture(n_components, d, seed=seed) for seed in (1, 2)]
    draws = {"n_draws": 2_000_000, "seed": 1}
    return truths, {kind: divergence(*truths, kind, **draws).value for kind in KINDS}  # type: ignore[arg-type]


def one_case(d: int, n_components: int, n: int, seeds: range, n_densities: int) -> list[Run]:
    truths, exact = case(d, n_components)
    runs = []
    for seed in seeds:
        rows = [truth.sample(n, seed=2 * seed + i + 1000) for i, truth in enumerate(truths)]
        models, decoding = timed(partial(decoded, rows, n_components, seed))
        methods: dict[str, Callable[[str], Divergence | float]] = {
            "sketches": lambda kind, models=models: divergence(*models, kind)
        }
        shared = {"sketches": decoding}
        if n <= MOST_NEIGHBORS:
            methods["5 neighbours"] = lambda kind, rows=rows: divergence(*rows, kind)
        if d <= MOST_FEATURES:
            methods["nodes"] = partial(of_nodes, rows)
        if seed < n_densities:
            logs, shared["kernel density, Scott"] = timed(partial(log_densities, *rows))
            methods["kernel density, Scott"] = partial(plug_in, logs)
        for kind in KINDS:
            setting = {"d": d, "K": n_components, "n": n, "kind": kind}
            for name, method in methods.items():
                found, seconds = timed(partial(method, kind))
                seconds += shared.get(name, 0.0)
                value = found if isinstance(found, float) else found.value
                error = abs(value - exact[kind]) / exact[kind]
                runs.append(
                    Run(setting | {"measure": "relative error"}, name, seed, error, seconds)
                )
                if isinstance(found, Divergence):
                    low, high = found.interval
                    inside = float(low <= exact[kind] <= high)
                    runs.append(Run(setting | {"measure": "coverage"}, name, seed, inside))
    return runs


def decoded(rows: list[Array], n_components: int, seed: int) -> list[GaussianMixture]:
    """A mixture for each side, from one sketch of each with a common feature map."""
    pilot = np.concatenate([side[:5000] for side in rows])
    feature_map = design(pilot, n_components=n_components, seed=seed)
    return [
        decode(sketch(side, feature_map), n_components, refine="efficient", seed=seed)
        for side in rows
    ]


def of_nodes(rows: list[Array], kind: Kind) -> Divergence:
    """Divergence of densities on nodes, with a third of Scott's bandwidth."""
    both = np.concatenate(rows)
    n, d = rows[0].shape
    bandwidth = both.std(axis=0) * n ** (-1.0 / (d + 4)) / 3.0
    reach = 3.0 * bandwidth
    nodes = DensityNodes(both.min(axis=0) - reach, both.max(axis=0) + reach, N_NODES, bandwidth)
    first, second = (nodes.kernel_sums(side) for side in rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the smoothing, which is measured here
        return node_divergence(nodes, first, second, (n, n), kind)


def log_densities(x: Array, y: Array) -> list[list[Array]]:
    """Kernel densities of one half of the rows of each side, at the other half of each side."""
    halves = [(side[: len(side) // 2], side[len(side) // 2 :]) for side in (x, y)]
    fits = [KernelDensity(bandwidth="scott").fit(old / old.std(axis=0)) for old, _ in halves]
    scales = [old.std(axis=0) for old, _ in halves]
    return [
        [fit.score_samples(new / s) - np.log(s).sum() for fit, s in zip(fits, scales, strict=True)]
        for _, new in halves
    ]


def plug_in(logs: list[list[Array]], kind: str) -> float:
    """Divergence of the densities of :func:`log_densities`."""
    if kind == "kl":
        return float(np.mean(logs[0][0] - logs[0][1]))
    if kind == "squared-hellinger":
        ratios = [np.exp(0.5 * (logs[side][1 - side] - logs[side][side])) for side in (0, 1)]
        return 1.0 - 0.5 * float(np.mean(ratios[0]) + np.mean(ratios[1]))
    terms = [
        np.mean(own[side] - logsumexp(own, axis=0) + np.log(2.0)) for side, own in enumerate(logs)
    ]
    return 0.5 * float(terms[0] + terms[1])
