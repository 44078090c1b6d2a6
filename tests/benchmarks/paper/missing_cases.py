"""Mixtures from rows with missing values, and numbers of components of overlapping mixtures."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np

from dask_sketch import GaussianMixture, decode, design, select_model, sketch
from dask_sketch.models import random_mixture
from dask_sketch.models.missing_values import fit_observed
from tests.benchmarks.paper.likelihood_cases import FORMS
from tests.benchmarks.paper.mixtures import EFFICIENT
from tests.benchmarks.paper.records import Job, Run, timed

RATIO = "efficient, over EM from the truth"  # ratio of the losses in one draw
OMITTED = "complete rows only, efficient"
EM = "EM from the truth"  # on the observed values
FOUND, BIC = "number found by the sketch", "number found by BIC"
_EM_ITERATIONS = 60
_AROUND = 2  # numbers of components below and above the true one that BIC chooses from


def missing_values(form: str, fraction: float, *, together: bool = False) -> list[Job]:
    """Nats per sample that mixtures of incomplete rows lose to the truth."""
    n_draws, divisor = FORMS[form]
    d, k, m = (8, 5, 672) if form != "toy" else (4, 2, 72)
    return [
        partial(_missing_values, d, k, m, 100_000 // divisor, fraction, together, seed)
        for seed in range(n_draws)
    ]


def _missing_values(
    d: int, n_components: int, m: int, n: int, fraction: float, together: bool, seed: int
) -> list[Run]:
    truth = random_mixture(n_components, d, seed=seed)
    x, heldout = truth.sample(n, seed=seed + 1000), truth.sample(n, seed=seed + 2000)
    rng = np.random.default_rng(seed)
    if together:
        missing = np.repeat(rng.random((n, 2)) < fraction, d // 2, axis=1)
    else:
        missing = rng.random((n, d)) < fraction
    x[missing] = np.nan
    feature_map = design(
        x, n_components=n_components, n_frequencies=m, seed=seed, nan_policy="available"
    )
    sketches = {
        EFFICIENT: sketch(x, feature_map, nan_policy="available", sample=False),
        OMITTED: sketch(x, feature_map, nan_policy="omit", sample=False),
    }
    fits = {
        name: partial(decode, found, n_components, refine="efficient", seed=seed)
        for name, found in sketches.items()
    }
    fits[EM] = partial(_em, truth, x)
    best, bound = truth.score(heldout), truth.n_parameters / (2 * n)
    setting = {"d": d, "K": n_components, "m": m, "missing": fraction, "together": together}
    runs = []
    for name, fit in fits.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of few complete rows
            model, seconds = timed(fit)
        runs.append(Run(setting, name, seed, best - model.score(heldout), seconds, None, bound))
    lost = {run.method: run.value for run in runs}
    return [*runs, Run(setting, RATIO, seed, lost[EFFICIENT] / lost[EM])]


def _em(truth: GaussianMixture, x: np.ndarray) -> GaussianMixture:
    start = truth.weights, truth.means, truth.covariances
    weights, means, variances = fit_observed(x, *start, _EM_ITERATIONS)
    return GaussianMixture(weights / weights.sum(), means, variances)


def overlapping_mixture(
    n_components: int, n_features: int, separation: float, seed: int
) -> GaussianMixture:
    """Random mixture whose nearest components are ``separation`` standard deviations apart.

    That is the median over the components.
    """
    found = random_mixture(n_components, n_features, seed=seed)
    means, variances = found.means, found.covariances
    squares = (means[:, None] - means) ** 2 / (0.5 * (variances[:, None] + variances))
    apart = np.sqrt(squares.sum(axis=2))
    np.fill_diagonal(apart, np.inf)
    factor = separation / np.median(apart.min(axis=1))
    return GaussianMixture(found.weights, means * factor, variances)


def numbers_of_components(form: str, n_components: int, separation: float, n: int) -> list[Job]:
    """Whether the true number of components is found, from the sketch and by BIC on all rows."""
    n_draws, divisor = FORMS[form]
    sizes = (6, n_components, separation) if form != "toy" else (2, 2, 4.0)
    return [partial(_number_of_components, *sizes, n // divisor, seed) for seed in range(n_draws)]


def _number_of_components(
    d: int, n_components: int, separation: float, n: int, seed: int
) -> list[Run]:
    from sklearn.mixture import GaussianMixture as Estimator

    truth = overlapping_mixture(n_components, d, separation, seed)
    x = truth.sample(n, seed=seed + 100)
    found = sketch(x, design(x[:5000], n_components=n_components + 5), sample=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        selection, seconds = timed(partial(select_model, found, threads=1))
    numbers = range(max(n_components - _AROUND, 1), n_components + _AROUND + 1)
    fitted, em_seconds = timed(lambda: [
        Estimator(k, covariance_type="diag", tol=1e-4, max_iter=300, random_state=0).fit(x)
        for k in numbers
    ])  # fmt: skip
    by_bic = min(fitted, key=lambda each: float(each.bic(x))).n_components
    setting = {"d": d, "K": n_components, "separation": separation}
    right = float(selection.model.n_components == n_components)
    return [
        Run(setting, FOUND, seed, right, seconds),
        Run(setting, BIC, seed, float(by_bic == n_components), em_seconds),
    ]
