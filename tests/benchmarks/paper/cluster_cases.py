"""The clusterings of the project's targets: our decoder for centroids, Lloyd's on all the data."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import kmeans_plusplus
from sklearn.decomposition import TruncatedSVD

from dask_sketch import FeatureMap, decode, design, sketch
from dask_sketch.models.clusters import spherical_kmeans
from tests.benchmarks.paper.bandwidths import OURS, by_decode
from tests.benchmarks.paper.clusters import N_SAMPLES, Clusters, drawn, prepared, spectral, spread
from tests.benchmarks.paper.records import Job, Run, timed

IMAGES = "mnist.npz"  # 70,000 images of 28 by 28 pixels
DESIGNED = "design"  # in place of a bandwidth: the one that design finds

# number of draws, of samples
FORMS = {"full": (10, N_SAMPLES), "quick": (3, N_SAMPLES), "toy": (1, 2_000)}


def ten_clusters(form: str) -> list[Job]:
    """RSE of ten Gaussian clusters in dimension 10."""
    n_draws, n_samples = FORMS[form]
    return [
        partial(_draw, partial(ten, n_samples, seed), {}, m, DESIGNED, seed)
        for m in (500, 1000)
        for seed in range(n_draws)
    ]


@cache
def ten(n_samples: int, seed: int) -> Clusters:
    """A draw of clusters for each seed, within the range of the samples."""
    return prepared(spread(10, 10, seed).sample(n_samples, seed=seed + 1000), None, 10)


def plane(form: str) -> list[Job]:
    """RSE of three clusters in dimension 2, at two distances, over the bandwidths."""
    sigmas = (0.03, 0.05, 0.1, 0.2, 0.3)
    return [job for name in ("separated", "near") for job in _sweep(form, name, (30, 1000), sigmas)]


def space(form: str) -> list[Job]:
    """RSE of three clusters in dimension 6, over the bandwidths."""
    return _sweep(form, "six", (200,), (0.1, 0.2, 0.3, 0.4, 0.5))


def digits(form: str, path: Path) -> list[Job]:
    """RSE on spectral features of MNIST, at the scale of ``design`` and at fixed ones."""
    n_draws, _ = FORMS[form]
    cells = [(500, DESIGNED), (2000, DESIGNED), *((500, sigma) for sigma in (1.0, 1.5, 2.0, 3.0))]
    if form == "toy":
        cells = [(100, DESIGNED), (100, 1.5)]
    load = partial(spectral, path)
    return [
        partial(_draw, load, {"data": "MNIST"}, m, sigma, seed)
        for m, sigma in cells
        for seed in range(n_draws)
    ]


def directions(form: str, path: Path) -> list[Job]:
    """Spherical k-means of images, with the feature map that divides rows by their lengths."""
    n_draws, _ = FORMS[form]
    size = (30, 50, 70_000) if form != "toy" else (3, 5, 2_000)
    return [partial(_directions, path, *size, seed) for seed in range(n_draws)]


def _directions(path: Path, k: int, n_features: int, n: int, seed: int) -> list[Run]:
    x = leading_components(path, n_features, n)
    lloyd_error, lloyd_seconds = _spherical_lloyd(path, k, n_features, n)
    feature_map = design(x, n_components=k, task="clustering", normalize=True, seed=seed)
    summary = sketch(x, feature_map)
    found, seconds = timed(partial(decode, summary, k, model="dirac", seed=seed))
    case = {"data": "MNIST", "K": k, "d": n_features, "m": feature_map.n_frequencies}
    ratio = found.inertia(x) / lloyd_error
    reference = Run(case, "Lloyd", seed, 1.0, lloyd_seconds)
    return [Run(case, OURS, seed, ratio, seconds), reference]


@cache
def leading_components(path: Path, n_features: int, n: int) -> np.ndarray:
    """Coordinates of images in their first singular vectors."""
    with np.load(path) as archive:
        pixels = archive["images"][:n].reshape(n, -1).astype(np.float32) / 255.0
    found = TruncatedSVD(n_features, random_state=0).fit_transform(pixels)
    return np.asarray(found, dtype=np.float64)


@cache
def _spherical_lloyd(path: Path, k: int, n_features: int, n: int) -> tuple[float, float]:
    """Error of spherical Lloyd's best start of ten, and its seconds."""
    x = leading_components(path, n_features, n)
    unit = x / np.linalg.norm(x, axis=1)[:, None]
    starts = [kmeans_plusplus(unit, k, random_state=start)[0] for start in range(10)]
    found, seconds = timed(partial(spherical_kmeans, unit, starts=starts))
    return found.inertia, seconds


def _sweep(form: str, name: str, sizes: tuple[int, ...], sigmas: tuple[float, ...]) -> list[Job]:
    n_draws, n_samples = FORMS[form]
    load = partial(drawn, name, n_samples)
    return [
        partial(_draw, load, {"data": name}, m, sigma, seed)
        for m in sizes
        for sigma in sigmas
        for seed in range(n_draws)
    ]


def _draw(
    load: Callable[[], Clusters], case: dict[str, Any], m: int, sigma: float | str, seed: int
) -> list[Run]:
    data = load()
    k = data.n_clusters
    feature_map = (
        design(data.x, n_frequencies=m, n_components=k, task="clustering", seed=seed)
        if isinstance(sigma, str)
        else FeatureMap(data.x.shape[1], m, scale=sigma, distribution="gaussian", seed=seed)
    )
    summary = sketch(data.x, feature_map)
    centers, seconds = timed(partial(by_decode, summary, data, seed))
    rse = data.relative_error(centers)
    return [
        Run(case | {"m": m, "sigma": sigma}, OURS, seed, rse, seconds),
        Run(case, "Lloyd", seed, 1.0, data.lloyd_seconds),
    ]
