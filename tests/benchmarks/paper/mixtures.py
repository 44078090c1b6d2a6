"""Feature maps, decoders and distances for the experiments of Keriven et al."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dask_sketch import FeatureMap, GaussianMixture, Sketch, decode
from dask_sketch.features.scale import estimate_scale
from dask_sketch.models import symmetric_kl
from tests.benchmarks.paper import rivals
from tests.benchmarks.paper.records import Run, Setting, timed

N_PILOT = 5000  # samples that the scale is estimated from (section 5.3)
KL_SAMPLES = 500_000  # section 5.2
MMD_FREQUENCIES = 500_000  # caption of Figure 8
_BLOCK = 50_000

EFFICIENT = "CL-OMPR, efficient"  # ours; in none of the papers
DECODERS: dict[str, dict[str, Any]] = {
    "CL-OMP": {"method": "cl-omp"},
    "CL-OMPR": {"method": "cl-ompr"},
    "splitting": {"method": "splitting"},
    "IHT": {"method": "iht"},
    EFFICIENT: {"method": "cl-ompr", "refine": "efficient"},
    "splitting, efficient": {"method": "splitting", "refine": "efficient"},
}

Fit = Callable[[], GaussianMixture]


def learned_map(
    x: np.ndarray, n_frequencies: int, seed: int, distribution: str = "adapted-radius"
) -> FeatureMap:
    """Algorithm 3 as the paper has it: one scale for all features, from the first samples."""
    scale = estimate_scale(x[:N_PILOT], seed=seed).scale
    return FeatureMap(x.shape[1], n_frequencies, scale=scale, distribution=distribution, seed=seed)


def oracle_map(
    truth: GaussianMixture, n_frequencies: int, seed: int, distribution: str = "adapted-radius"
) -> FeatureMap:
    """Frequencies adapted to the true covariances and weights (eq. 18)."""
    return FeatureMap(
        truth.n_features,
        n_frequencies,
        covariances=truth.covariances,
        covariance_weights=truth.weights,
        distribution=distribution,
        seed=seed,
    )


def decoded(sketch: Sketch, n_components: int, seed: int, *names: str) -> dict[str, Fit]:
    """Fits of one sketch by the decoders named."""
    return {
        name: partial(decode, sketch, n_components, seed=seed, **DECODERS[name]) for name in names
    }


def references(truth: GaussianMixture, x: np.ndarray, seed: int) -> dict[str, Fit]:
    """Fits of EM to all samples."""
    return {
        "EM": partial(rivals.em, x, truth.n_components, seed),
        "EM from the truth": partial(rivals.em_from, truth, x),
    }


def efficient_limit(truth: GaussianMixture, n_samples: int) -> float:
    """``ln(p / n)``: symmetric KL of an efficient estimator of ``p`` parameters, large ``n``."""
    n_parameters = (2 * truth.n_features + 1) * truth.n_components - 1
    return float(np.log(n_parameters / n_samples))


def ln_kl(truth: GaussianMixture, model: GaussianMixture, seed: int) -> float:
    """Natural logarithm of eq. (24), as in Table 2."""
    return float(np.log(symmetric_kl(truth, model, KL_SAMPLES, seed=seed)))


def measure_kl(
    fits: Mapping[str, Fit],
    truth: GaussianMixture,
    setting: Setting,
    n_samples: int,
    seed: int,
    paper: Mapping[str, float] | None = None,
) -> list[Run]:
    """``ln`` of the symmetric KL divergence of each fit, timed."""
    bound = efficient_limit(truth, n_samples)
    runs = []
    for name, fit in fits.items():
        model, seconds = timed(fit)
        value = ln_kl(truth, model, seed)
        known = None if paper is None else paper.get(name)
        runs.append(Run(setting, name, seed, value, seconds, known, bound))
    return runs


def mmd(
    p: GaussianMixture,
    q: GaussianMixture,
    feature_map: FeatureMap,
    seed: int,
    n_frequencies: int = MMD_FREQUENCIES,
) -> float:
    """Distance of eq. (22) under the distribution of ``feature_map``, at frequencies of its own.

    The root of the mean of ``|psi_p - psi_q|**2``, from the characteristic functions themselves.
    """
    seeds = np.random.SeedSequence((seed, 1)).generate_state(-(-n_frequencies // _BLOCK))
    total = 0.0
    for index, block_seed in enumerate(seeds):
        size = min(_BLOCK, n_frequencies - index * _BLOCK)
        omega = replace(feature_map, n_frequencies=size, seed=int(block_seed)).frequencies
        gap = p.characteristic(omega) - q.characteristic(omega)
        total += float(np.vdot(gap, gap).real)
    return float(np.sqrt(total / n_frequencies))
