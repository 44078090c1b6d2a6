"""Keriven et al., Figure 3: features of unlike size, and frequencies that do not know of it."""

from __future__ import annotations

from functools import partial

import numpy as np

from dask_sketch import FeatureMap, GaussianMixture, design, sketch
from dask_sketch.models import random_mixture
from tests.benchmarks.paper.mixtures import (
    EFFICIENT,
    MMD_FREQUENCIES,
    decoded,
    efficient_limit,
    learned_map,
    ln_kl,
    mmd,
    oracle_map,
    references,
)
from tests.benchmarks.paper.records import Job, Run, timed

D, K = 10, 10  # section 5.4, as n = 2e5 and m = 2000 below
FACTORS = (1.0, 2.0, 4.0, 6.0, 8.0, 10.0)  # the figure's own are not in the text

# number of samples, of draws, of frequencies, of frequencies of the MMD, factors
SIZES = {
    "full": (200_000, 10, 2000, MMD_FREQUENCIES, FACTORS),
    "quick": (200_000, 1, 2000, 50_000, (1.0, 4.0, 10.0)),
    "toy": (10_000, 1, 300, 2_000, (4.0,)),
}


def stretched(factor: float, seed: int) -> GaussianMixture:
    """Components of covariance one, the first half of their features divided by ``factor``."""
    means = random_mixture(K, D, seed=seed).means
    divisors = np.where(np.arange(D) < D // 2, factor, 1.0)
    variances = np.broadcast_to(divisors**-2.0, means.shape)
    return GaussianMixture(np.full(K, 1.0 / K), means / divisors, variances)


def figure_3(form: str) -> list[Job]:
    """KL and MMD against the factor: one scale, the oracle's distribution, our design, EM."""
    n_samples, n_draws, m, n_mmd, factors = SIZES[form]
    return [
        partial(one_draw, factor, n_samples, m, n_mmd, seed)
        for factor in factors
        for seed in range(n_draws)
    ]


def one_draw(factor: float, n_samples: int, m: int, n_mmd: int, seed: int) -> list[Run]:
    truth = stretched(factor, seed)
    x = truth.sample(n_samples, seed=seed + 1000)
    maps = {
        "one scale": learned_map(x, m, seed),
        "oracle": oracle_map(truth, m, seed),
        "design": design(x, n_frequencies=m, n_components=K, seed=seed),
    }
    runs = []

    def record(
        name: str, frequencies: dict[str, str], model: GaussianMixture, seconds: float,
        metric: FeatureMap,
    ) -> None:  # fmt: skip
        setting = {"A": factor, **frequencies}
        kl = ln_kl(truth, model, seed)
        bound = efficient_limit(truth, n_samples)
        gap = float(np.log(mmd(truth, model, metric, seed, n_mmd)))
        runs.append(Run({"measure": "ln KL"} | setting, name, seed, kl, seconds, None, bound))
        runs.append(Run({"measure": "ln MMD"} | setting, name, seed, gap, seconds))

    for frequencies, feature_map in maps.items():
        summary = sketch(x, feature_map)
        for name, fit in decoded(summary, K, seed, "CL-OMPR", EFFICIENT).items():
            # the metric that this fit minimises, as in the paper
            record(name, {"frequencies": frequencies}, *timed(fit), feature_map)
    for name, fit in references(truth, x, seed).items():
        record(name, {}, *timed(fit), maps["oracle"])
    return runs
