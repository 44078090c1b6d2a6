"""Mixtures that are no Gaussians: directions beside EM on all rows, and heavy tails."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import numpy as np
from scipy import special

from dask_sketch import decode, design, sketch
from dask_sketch.models import AlphaStableMixture, VonMisesFisherMixture
from dask_sketch.models.clusters import spherical_kmeans
from tests.benchmarks.paper.cluster_cases import leading_components
from tests.benchmarks.paper.likelihood_cases import FORMS
from tests.benchmarks.paper.records import Job, Run, timed

OURS, WITH_ROWS = "sketch", "sketch with rows"
RATIO = "sketch, over EM from the truth"  # ratio of the losses in one draw
ALPHA = "largest error of alpha"
_GAIN = 1e-9  # nats of a step below which EM ends
_STEPS = 500


def directions(form: str, d: int, n_components: int, widest: float) -> list[Job]:
    """Nats per sample that von Mises-Fisher mixtures lose to the truth."""
    n_draws, divisor = FORMS[form]
    sizes = (d, n_components, widest) if form != "toy" else (3, 2, widest)
    return [partial(_directions, *sizes, 200_000 // divisor, seed) for seed in range(n_draws)]


def _directions(d: int, k: int, widest: float, n: int, seed: int) -> list[Run]:
    rng = np.random.default_rng((d, k, seed))
    means = rng.standard_normal((k, d))
    means /= np.linalg.norm(means, axis=1)[:, None]
    concentrations = widest * np.exp(rng.uniform(0.0, np.log(10.0), k))
    truth = VonMisesFisherMixture(rng.dirichlet(np.full(k, 3.0)), means, concentrations)
    x, heldout = truth.sample(n, seed=seed + 1000), truth.sample(n, seed=seed + 2000)
    feature_map = design(x[:20_000], n_components=k, normalize=True, seed=seed)
    alone = sketch(x, feature_map, sample=False)
    rows = sketch(x, feature_map)
    fits = {
        OURS: partial(decode, alone, k, model="von-mises-fisher", seed=seed),
        WITH_ROWS: partial(decode, rows, k, model="von-mises-fisher", seed=seed),
        "EM": partial(em, x, k, seed),
        "EM from the truth": partial(em_from, x, truth),
    }
    setting = {"d": d, "K": k, "m": feature_map.n_frequencies}
    runs, lost = [], {}
    for name, fit in fits.items():
        model, seconds = timed(fit)
        lost[name] = truth.score(heldout) - model.score(heldout)
        bound = truth.n_parameters / (2 * n)
        runs.append(Run(setting, name, seed, lost[name], seconds, None, bound))
    return [*runs, Run(setting, RATIO, seed, lost[OURS] / lost["EM from the truth"])]


def images(form: str, path: Path) -> list[Job]:
    """Log-likelihood of the directions of images, with random rows beside the sketch."""
    n_draws, _ = FORMS[form]
    size = (10, 20, 70_000) if form != "toy" else (3, 5, 2_000)
    return [partial(_images, path, *size, seed) for seed in range(n_draws)]


def _images(path: Path, k: int, d: int, n: int, seed: int) -> list[Run]:
    x = _shuffled(path, d, n, seed)
    train, test = x[len(x) // 5 :], x[: len(x) // 5]
    summary = sketch(train, design(train, n_components=k, normalize=True, seed=seed))
    fits = {
        WITH_ROWS: partial(decode, summary, k, model="von-mises-fisher", seed=seed),
        "EM": partial(em, train, k, seed),
    }
    runs = []
    for name, fit in fits.items():
        model, seconds = timed(fit)
        runs.append(Run({"K": k, "d": d}, name, seed, float(model.score(test)), seconds))
    return runs


@cache
def _shuffled(path: Path, d: int, n: int, seed: int) -> np.ndarray:
    """Leading components of images, divided by their lengths, in random order."""
    x = leading_components(path, d, n)
    x = x / np.linalg.norm(x, axis=1)[:, None]
    return x[np.random.default_rng(seed).permutation(len(x))]


def stable(form: str) -> list[Job]:
    """Largest error of the indices of stability, d=2, K=3."""
    n_draws, divisor = FORMS[form]
    return [partial(_stable, 1_000_000 // divisor, seed) for seed in range(n_draws)]


def _stable(n: int, seed: int) -> list[Run]:
    rng = np.random.default_rng((77, seed))
    locations, scales = 5.0 * rng.standard_normal((3, 2)), rng.uniform(0.5, 1.5, (3, 2))
    alphas = rng.uniform(1.2, 1.8, 3)
    truth = AlphaStableMixture(rng.dirichlet(np.full(3, 4.0)), locations, scales, alphas)
    x, heldout = truth.sample(n, seed=seed + 1000), truth.sample(100_000, seed=seed + 2000)
    pilot = x[:5000]
    inside = np.clip(pilot, *np.quantile(pilot, [0.02, 0.98], axis=0))
    feature_map = design(inside, n_components=3, n_frequencies=150, seed=seed)
    alone = sketch(x, feature_map, sample=False)
    model, seconds = timed(partial(decode, alone, 3, model="alpha-stable", seed=seed))
    nearest = [np.square(model.locations - each).sum(axis=1).argmin() for each in locations]
    error = float(np.abs(model.alphas[nearest] - alphas).max())
    setting = {"d": 2, "K": 3, "m": 150}
    lost = truth.score(heldout) - model.score(heldout)
    return [Run(setting, ALPHA, seed, error, seconds), Run(setting, OURS, seed, lost, seconds)]


def em(x: np.ndarray, n_components: int, seed: int) -> VonMisesFisherMixture:
    """EM on all rows from the best of five starts of spherical k-means."""
    rng = np.random.default_rng(seed)
    starts = [x[rng.choice(len(x), n_components, replace=False)] for _ in range(5)]
    found = spherical_kmeans(x, starts=starts)
    d = x.shape[1]
    cosine = 1.0 - 0.5 * found.inertia
    start = np.full(n_components, cosine * (d - cosine**2) / (1.0 - cosine**2))
    return _climb(x, found.weights, found.centers, start)


def em_from(x: np.ndarray, truth: VonMisesFisherMixture) -> VonMisesFisherMixture:
    """EM on all rows that starts at the truth."""
    return _climb(x, truth.weights, truth.directions, truth.concentrations)


def _climb(x: np.ndarray, weights: np.ndarray, means: np.ndarray, k: np.ndarray) -> (
    VonMisesFisherMixture
):  # fmt: skip
    """Steps of expectation-maximisation (Banerjee et al. 2005; Sra 2012)."""
    d, before = x.shape[1], -np.inf
    order = 0.5 * d - 1.0
    for _ in range(_STEPS):
        constants = np.log(weights) + order * np.log(k) - np.log(special.ive(order, k)) - k
        joint = x @ (k[:, None] * means).T + constants
        logs = special.logsumexp(joint, axis=1)
        if logs.mean() - before < _GAIN:
            break
        before = logs.mean()
        shares = np.exp(joint - logs[:, None])
        mass, sums = shares.sum(axis=0), shares.T @ x
        lengths = np.linalg.norm(sums, axis=1)
        weights, means, r = mass / mass.sum(), sums / lengths[:, None], lengths / mass
        k = r * (d - r**2) / (1.0 - r**2)
        for _ in range(3):
            a = special.ive(order + 1.0, k) / special.ive(order, k)
            k = k - (a - r) / (1.0 - a**2 - (d - 1.0) * a / k)
    return VonMisesFisherMixture(weights, means, k)
