"""Keriven et al., Tables 2 and 3: the frequency distribution, and the cost of its scale."""

from __future__ import annotations

from functools import partial

import numpy as np

from dask_sketch import FeatureMap, sketch
from dask_sketch.features.scale import estimate_scale
from dask_sketch.models import random_mixture
from tests.benchmarks.paper.mixtures import (
    EFFICIENT,
    N_PILOT,
    decoded,
    efficient_limit,
    learned_map,
    ln_kl,
    measure_kl,
    oracle_map,
    references,
)
from tests.benchmarks.paper.records import Job, Run, timed

DISTRIBUTIONS = ("gaussian", "folded-gaussian", "adapted-radius")

# Table 2: (d, K), then the distribution's covariances: (G), (FGr), (Ar)
TABLE_2 = {
    (2, 3): {"oracle": (-9.30, -8.90, -9.38), "estimated": (-8.93, -8.67, -9.20)},
    (20, 5): {"oracle": (3.15, -6.17, -6.48), "estimated": (3.41, -5.80, -6.32)},
}
# Table 3: (d, K), then ln KL and seconds. (For d = 2 the adapted radius is given the oracle's
# figure of Table 2.)
TABLE_3 = {
    (2, 3): {"adapted radius": (-9.38, 1.02), "Gaussian kernel": (-9.14, 23.10)},
    (20, 5): {"adapted radius": (-6.32, 0.98), "Gaussian kernel": (-5.18, 74.10)},
}

# number of samples, of draws, of bandwidths tried
SIZES = {"full": (300_000, 10, 15), "quick": (300_000, 2, 5), "toy": (5_000, 1, 2)}


def table_2(form: str) -> list[Job]:
    """Three distributions, adapted to the true covariances or to one estimated scale."""
    n_samples, n_draws, _ = SIZES[form]
    cases = TABLE_2 if form != "toy" else [(2, 3)]
    return [
        partial(one_draw_of_laws, d, k, n_samples, seed)
        for d, k in cases
        for seed in range(n_draws)
    ]


def one_draw_of_laws(d: int, n_components: int, n_samples: int, seed: int) -> list[Run]:
    truth = random_mixture(n_components, d, seed=seed)
    x = truth.sample(n_samples, seed=seed + 1000)
    m = 10 * n_components * (2 * d + 1)
    runs = []
    for scale in ("oracle", "estimated"):
        for distribution, printed in zip(
            DISTRIBUTIONS, TABLE_2[d, n_components][scale], strict=True
        ):
            setting = {"d": d, "K": n_components, "m": m, "covariances": scale, "law": distribution}
            if scale == "oracle":
                feature_map = oracle_map(truth, m, seed, distribution)
            else:
                feature_map = learned_map(x, m, seed, distribution)
            fits = decoded(sketch(x, feature_map), n_components, seed, "CL-OMPR", EFFICIENT)
            runs += measure_kl(fits, truth, setting, n_samples, seed, {"CL-OMPR": printed})
    setting = {"d": d, "K": n_components}
    return runs + measure_kl(references(truth, x, seed), truth, setting, n_samples, seed)


def table_3(form: str) -> list[Job]:
    """The adapted radius at its estimated scale against the best of many Gaussian kernels."""
    n_samples, n_draws, n_bandwidths = SIZES[form]
    cases = TABLE_3 if form != "toy" else [(2, 3)]
    return [
        partial(one_draw_of_scales, d, k, n_samples, n_bandwidths, seed)
        for d, k in cases
        for seed in range(n_draws)
    ]


def one_draw_of_scales(
    d: int, n_components: int, n_samples: int, n_bandwidths: int, seed: int
) -> list[Run]:
    truth = random_mixture(n_components, d, seed=seed)
    x = truth.sample(n_samples, seed=seed + 1000)
    m = 10 * n_components * (2 * d + 1)

    def reached(feature_map: FeatureMap) -> float:
        fit = decoded(sketch(x, feature_map), n_components, seed, "CL-OMPR")["CL-OMPR"]
        return ln_kl(truth, fit(), seed)

    estimate, estimating = timed(lambda: estimate_scale(x[:N_PILOT], seed=seed).scale)
    # squared bandwidths, as printed; judged by the truth, which favours this method
    bandwidths = np.sqrt(np.logspace(-1, 2, n_bandwidths))
    tried, trying = timed(
        lambda: [
            reached(FeatureMap(d, m, scale=s, distribution="gaussian", seed=seed))
            for s in bandwidths
        ]
    )
    found = {
        "adapted radius": (reached(FeatureMap(d, m, scale=estimate, seed=seed)), estimating),
        "Gaussian kernel": (min(tried), trying),
    }
    bound = efficient_limit(truth, n_samples)
    runs = []
    for distribution, (value, seconds) in found.items():
        setting = {"d": d, "K": n_components, "m": m, "law": distribution}
        printed, printed_seconds = TABLE_3[d, n_components][distribution]
        runs += [
            Run(setting | {"measure": "ln KL"}, "CL-OMPR", seed, value, None, printed, bound),
            Run(setting | {"measure": "s to find the scale"}, "CL-OMPR", seed, seconds, None,
                printed_seconds),
        ]  # fmt: skip
    return runs
