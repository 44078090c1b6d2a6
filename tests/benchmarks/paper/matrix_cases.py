"""Mixtures with full and low-rank covariances: nats lost to the truth, by the sketch and by EM."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import numpy as np

from dask_sketch import FeatureMap, GaussianMixture, decode, design, sketch
from dask_sketch.models.weighted_em import fit_mixture
from tests.benchmarks.paper import rivals
from tests.benchmarks.paper.likelihood_cases import FORMS
from tests.benchmarks.paper.records import Job, Run, timed
from tests.benchmarks.real.sets import SETS, loaded, split

N_SAMPLES = 200_000
OURS = "full"
WARNED = "warned"
RATIO = "full, over EM from the truth"  # ratio of the losses in one draw
LOW_RANK = "low rank, random rows"
LOW_RANK_ALONE = "low rank, sketch alone"


def tilted_mixture(
    n_components: int,
    n_features: int,
    seed: int,
    separation: float = 1.0,
    smallest: float = 0.1,
    uneven: bool = False,
) -> GaussianMixture:
    """Random mixture whose covariances have random directions.

    Parameters
    ----------
    n_components, n_features
        Sizes.
    seed
        Seed.
    separation
        Multiple of the distances between the means of
        :func:`~dask_sketch.models.random_mixture`.
    smallest
        Smallest eigenvalue; logarithms of eigenvalues are uniform up to that of 2.5.
    uneven
        Whether weights are of a Dirichlet distribution instead of equal.

    Examples
    --------
    >>> tilted_mixture(3, 2, seed=0).covariances.shape
    (3, 2, 2)
    """
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((n_components, n_features))
    means *= n_components ** (1.0 / n_features) * separation
    matrices = np.empty((n_components, n_features, n_features))
    for k in range(n_components):
        axes, _ = np.linalg.qr(rng.standard_normal((n_features, n_features)))
        values = np.exp(rng.uniform(np.log(smallest), np.log(2.5), n_features))
        matrices[k] = axes * values @ axes.T
    weights = np.full(n_components, 1.0 / n_components)
    if uneven:
        weights = rng.dirichlet(np.full(n_components, 3.0))
    matrices = 0.5 * (matrices + matrices.transpose(0, 2, 1))
    return GaussianMixture(weights, means, matrices, covariance_type="full")


def full_covariances(
    form: str,
    d: int,
    n_components: int,
    m: int,
    separation: float = 1.0,
    smallest: float = 0.1,
    uneven: bool = False,
) -> list[Job]:
    """Nats per sample that mixtures with full covariances lose to the truth."""
    n_draws, divisor = FORMS[form]
    sizes = (d, n_components, m) if form != "toy" else (2, 2, 60)
    shape = (separation, smallest, uneven)
    return [
        partial(_full_covariances, *sizes, N_SAMPLES // divisor, shape, seed)
        for seed in range(n_draws)
    ]


def _full_covariances(
    d: int, n_components: int, m: int, n_samples: int, shape: tuple[float, float, bool], seed: int
) -> list[Run]:
    truth = tilted_mixture(n_components, d, seed, *shape)
    x = truth.sample(n_samples, seed=seed + 1000)
    heldout = truth.sample(n_samples, seed=seed + 2000)
    feature_map = design(
        x[:20_000], n_components=n_components, n_frequencies=m, covariance_type="full", seed=seed
    )
    alone = sketch(x, feature_map, sample=False)
    fits = {
        OURS: partial(decode, alone, n_components, covariance_type="full", seed=seed),
        "EM": partial(rivals.em, x, n_components, seed, "full"),
        "EM from the truth": partial(rivals.em_from, truth, x),
    }
    best, bound = truth.score(heldout), truth.n_parameters / (2 * n_samples)
    setting = {"d": d, "K": n_components, "m": m, "apart": shape[0], "smallest": shape[1]}
    runs = []
    for name, fit in fits.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            model, seconds = timed(fit)
        lost = best - model.score(heldout)
        runs.append(Run(setting, name, seed, lost, seconds, None, bound))
        if name == OURS:
            warned = any("overidentification" in str(each.message) for each in caught)
            runs.append(Run(setting, WARNED, seed, float(warned)))
    lost = {run.method: run.value for run in runs}
    return [*runs, Run(setting, RATIO, seed, lost[OURS] / lost["EM from the truth"])]


def factor_mixture(n_components: int, n_features: int, rank: int, seed: int) -> GaussianMixture:
    """Random mixture of factor analysers.

    Parameters
    ----------
    n_components, n_features, rank
        Sizes.
    seed
        Seed.

    Examples
    --------
    >>> factor_mixture(3, 4, 2, seed=0).covariances.shape
    (3, 4, 3)
    """
    rng = np.random.default_rng(seed)
    size = (n_components, n_features)
    weights = rng.dirichlet(np.full(n_components, 5.0))
    means = rng.standard_normal(size) * max(8.0 / np.sqrt(n_features), 1.0)
    noise = rng.uniform(0.3, 1.0, (*size, 1))
    loadings = 0.7 * rng.standard_normal((*size, rank))
    shapes = np.concatenate([noise, loadings], axis=2)
    return GaussianMixture(weights, means, shapes, covariance_type=("low-rank", rank))


def low_rank(form: str, d: int, n_components: int, rank: int) -> list[Job]:
    """Nats per sample that mixtures of factor analysers lose to the truth."""
    n_draws, divisor = FORMS[form]
    sizes = (d, n_components, rank) if form != "toy" else (4, 2, 1)
    n_samples = N_SAMPLES // divisor
    return [partial(_low_rank, *sizes, n_samples, seed) for seed in range(n_draws)]


def _low_rank(d: int, n_components: int, rank: int, n_samples: int, seed: int) -> list[Run]:
    truth = factor_mixture(n_components, d, rank, seed)
    x = truth.sample(n_samples, seed=seed + 1000)
    heldout = truth.sample(20_000, seed=seed + 2000)
    kind = ("low-rank", rank)
    feature_map = design(x[:20_000], n_components=n_components, covariance_type=kind, seed=seed)
    fits = {
        LOW_RANK: partial(_decoded, x, feature_map, n_components, kind, seed),
        LOW_RANK_ALONE: partial(_decoded, x, feature_map, n_components, kind, seed, sample=False),
        "EM of factor analysers": partial(
            _factor_analysers, x[:20_000], n_components, f"low-rank:{rank}", seed
        ),
        "EM": partial(rivals.em, x, n_components, seed, "full"),
    }
    best, bound = truth.score(heldout), truth.n_parameters / (2 * n_samples)
    setting = {"d": d, "K": n_components, "m": feature_map.n_frequencies, "rank": rank}
    runs = []
    for name, fit in fits.items():
        model, seconds = timed(fit)
        runs.append(Run(setting, name, seed, best - model.score(heldout), seconds, None, bound))
    return runs


def _decoded(
    x: np.ndarray,
    feature_map: FeatureMap,
    n_components: int,
    kind: str | tuple[str, int],
    seed: int,
    sample: bool = True,
) -> GaussianMixture:
    found = sketch(x, feature_map, sample=sample)
    return decode(found, n_components, covariance_type=kind, seed=seed)


def _factor_analysers(x: np.ndarray, n_components: int, kind: str, seed: int) -> GaussianMixture:
    found = fit_mixture(x, None, n_components, covariance_type=kind, seed=seed)
    return GaussianMixture(found.weights, found.means, found.covariances, covariance_type=kind)


def speech(form: str, path: Path) -> list[Job]:
    """Held-out log-likelihood of cepstra of recordings, with random rows beside the sketch."""
    n_components, n_draws, max_rows = {
        "full": (10, 10, None), "quick": (10, 3, None), "toy": (2, 1, 2000)
    }[form]  # fmt: skip
    return [partial(_speech, path.parent, n_components, seed, max_rows) for seed in range(n_draws)]


def _speech(folder: Path, n_components: int, seed: int, max_rows: int | None) -> list[Run]:
    train, test = split(loaded(SETS["speech"], folder), seed, max_rows)
    feature_map = design(train, n_components=n_components, seed=seed)
    found = sketch(train, feature_map)
    fits = {
        OURS: partial(decode, found, n_components, covariance_type="full", seed=seed),
        "EM": partial(rivals.em, train, n_components, seed, "full"),
    }
    runs = []
    for name, fit in fits.items():
        model, seconds = timed(fit)
        runs.append(Run({"K": n_components}, name, seed, float(model.score(test)), seconds))
    return runs
