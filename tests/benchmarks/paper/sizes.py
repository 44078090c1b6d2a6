"""Keriven et al., Figures 4, 5 and 8: how many frequencies, how many samples."""

from __future__ import annotations

from functools import partial
from math import ceil

import numpy as np

from dask_sketch import FeatureMap, GaussianMixture, Sketch, sketch
from dask_sketch.features import default_n_frequencies
from dask_sketch.models import random_mixture
from tests.benchmarks.paper.mixtures import (
    DECODERS,
    EFFICIENT,
    MMD_FREQUENCIES,
    decoded,
    learned_map,
    measure_kl,
    mmd,
    references,
)
from tests.benchmarks.paper.records import Job, Run, timed

# The texts give what varies, not its values: all grids are ours.
RATIOS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0)  # m / ((2 d + 1) K)
COUNT = 1e12  # number of samples of a sketch that stands for the distribution itself

# (d, K) of the left and the right half, ratios, number of samples, of draws
FIGURE_4 = {
    "full": (((2, 10), (5, 10), (20, 10), (10, 10), (10, 5), (10, 20)), RATIOS, 300_000, 10),
    "quick": (((5, 10), (10, 10), (10, 5)), (0.5, 1.0, 2.0, 3.0, 5.0), 100_000, 2),
    "toy": (((2, 3),), (2.0, 5.0), 5_000, 1),
}
# K, numbers of samples, number of draws
FIGURE_5 = {
    "full": ((5, 20), (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000), 10),
    "quick": ((5, 20), (1_000, 10_000, 100_000), 1),
    "toy": ((2,), (2_000,), 1),
}
# ratios of the left half, numbers of samples of the right half, draws, frequencies of the MMD
FIGURE_8 = {
    "full": (RATIOS, (1_000, 10_000, 100_000, 1_000_000), 10, MMD_FREQUENCIES),
    "quick": ((0.5, 1.0, 2.0, 5.0), (1_000, 10_000, 100_000), 3, 50_000),
    "toy": ((5.0,), (2_000,), 1, 2_000),
}


def figure_4(form: str) -> list[Job]:
    """ln KL of CL-OMPR against the number of frequencies for each parameter."""
    cases, ratios, n_samples, n_draws = FIGURE_4[form]
    return [
        partial(one_draw_of_frequencies, d, k, ratios, n_samples, seed)
        for d, k in cases
        for seed in range(n_draws)
    ]


def one_draw_of_frequencies(
    d: int, n_components: int, ratios: tuple[float, ...], n_samples: int, seed: int
) -> list[Run]:
    truth = random_mixture(n_components, d, seed=seed)
    x = truth.sample(n_samples, seed=seed + 1000)
    case = {"d": d, "K": n_components}
    runs = []
    for ratio in ratios:
        m = ceil(ratio * (2 * d + 1) * n_components)
        fits = decoded(sketch(x, learned_map(x, m, seed)), n_components, seed, "CL-OMPR")
        setting = case | {"m / ((2d+1)K)": ratio, "m": m}
        runs += measure_kl(fits, truth, setting, n_samples, seed)
    return runs + measure_kl(references(truth, x, seed), truth, case, n_samples, seed)


def figure_5(form: str) -> list[Job]:
    """ln KL against the number of samples, of every decoder and EM."""
    cases, sizes, n_draws = FIGURE_5[form]
    return [
        partial(one_draw_of_samples, k, n, seed)
        for k in cases
        for n in sizes
        for seed in range(n_draws)
    ]


def one_draw_of_samples(n_components: int, n_samples: int, seed: int) -> list[Run]:
    truth = random_mixture(n_components, 10, seed=seed)
    x = truth.sample(n_samples, seed=seed + 1000)
    feature_map = learned_map(x, default_n_frequencies(10, n_components), seed)
    fits = decoded(sketch(x, feature_map), n_components, seed, *DECODERS)
    setting = {"K": n_components, "n": n_samples}
    fits |= references(truth, x, seed)
    return measure_kl(fits, truth, setting, n_samples, seed)


def figure_8(form: str) -> list[Job]:
    """MMD of CL-OMPR against the number of frequencies, for exact moments, and of samples."""
    ratios, sizes, n_draws, n_mmd = FIGURE_8[form]
    return [partial(exact_moments, ratios, n_mmd, seed) for seed in range(n_draws)] + [
        partial(sampled_moments, n, n_mmd, seed) for n in sizes for seed in range(n_draws)
    ]


def exact_moments(ratios: tuple[float, ...], n_mmd: int, seed: int) -> list[Run]:
    truth = random_mixture(5, 10, seed=seed)
    x = truth.sample(5_000, seed=seed + 1000)  # for the scale only
    runs = []
    for ratio in ratios:
        m = ceil(ratio * 21 * 5)
        feature_map = learned_map(x, m, seed)
        setting = {"half": "left", "n": np.inf, "m / ((2d+1)K)": ratio, "m": m}
        fits = decoded(exact_sketch(truth, feature_map), 5, seed, "CL-OMPR")
        for name, fit in fits.items():
            model, seconds = timed(fit)
            gap = float(np.log(mmd(truth, model, feature_map, seed, n_mmd)))
            runs.append(Run(setting, name, seed, gap, seconds))
    return runs


def sampled_moments(n_samples: int, n_mmd: int, seed: int) -> list[Run]:
    truth = random_mixture(5, 10, seed=seed)
    x = truth.sample(n_samples, seed=seed + 1000)
    feature_map = learned_map(x, 525, seed)
    summary = sketch(x, feature_map)
    setting = {"half": "right", "n": n_samples, "m / ((2d+1)K)": 5.0, "m": 525}
    fits = decoded(summary, 5, seed, "CL-OMPR", EFFICIENT)
    fits |= references(truth, x, seed)
    runs = []
    for name, fit in fits.items():
        model, seconds = timed(fit)
        gap = float(np.log(mmd(truth, model, feature_map, seed, n_mmd)))
        runs.append(Run(setting, name, seed, gap, seconds))
    return runs


def exact_sketch(truth: GaussianMixture, feature_map: FeatureMap) -> Sketch:
    """The sketch of the distribution itself: its moments, and so many samples that none is left."""
    mean = truth.mean - feature_map.center
    reach = 6.0 * np.sqrt(truth.variance)
    phase = feature_map.center @ feature_map.frequencies
    psi = truth.characteristic(feature_map.frequencies)
    return Sketch.from_sums(
        feature_map,
        moment_sum=COUNT * np.exp(1j * phase) * psi,
        total_weight=COUNT,
        squared_weight=COUNT,
        count=int(COUNT),
        minimum=truth.mean - reach,
        maximum=truth.mean + reach,
        first_moment=COUNT * mean,
        second_moment=COUNT * (truth.variance + mean**2),
    )
