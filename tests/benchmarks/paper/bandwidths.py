"""Sketch-and-shift, Figures 1, 5, 6, 7 and 8: at which bandwidths do decoders equal Lloyd's?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from dask_sketch import FeatureMap, Sketch, decode, sketch
from dask_sketch.decoders.sketch_and_shift import sketch_and_shift
from tests.benchmarks.paper.clusters import N_SAMPLES, Clusters, drawn, spectral
from tests.benchmarks.paper.records import Job, Run, timed

Decoder = Callable[[Sketch, Clusters, int], np.ndarray]  # sketch, data's box, seed: centres


def by_decode(summary: Sketch, data: Clusters, seed: int, **options: Any) -> np.ndarray:
    """Centres by the library's one door; by its default method, if none is given."""
    found = decode(summary, data.n_clusters, model="dirac", bounds=data.box, seed=seed, **options)
    return np.asarray(found.centers)


def by_shifting(
    summary: Sketch, data: Clusters, seed: int, n_starts: int, **options: Any
) -> np.ndarray:
    """Centres by Algorithm 2 with ``L = n_starts``, which ``decode`` keeps at 100."""
    found = sketch_and_shift(
        summary,
        data.n_clusters,
        np.random.default_rng(seed),
        lambda cost: None,
        box=data.box,
        n_starts=n_starts,
        **options,
    )
    return found.means


OURS = "density (ours)"
# T = 2k atoms in the paper's three, as in section 5.1
DECODERS: dict[str, Decoder] = {
    "CL-OMPR": partial(by_decode, method="cl-ompr"),
    "Algorithm 2, L=10": partial(by_shifting, n_starts=10),
    "Algorithm 2, L=100": partial(by_shifting, n_starts=100),
    "Algorithm 2, L=1000": partial(by_shifting, n_starts=1000),
    "Algorithm 2, Gaussians": partial(by_shifting, n_starts=1000, model="gaussian"),
    "discretised, L=1000": partial(by_shifting, n_starts=1000, maxima="discrete"),
    OURS: by_decode,
}
BY_STARTS = ("CL-OMPR", "Algorithm 2, L=10", "Algorithm 2, L=100", "Algorithm 2, L=1000", OURS)

# The text gives m of Figures 1 and 5; the other grids are ours.
WIDE = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
COARSE = (0.03, 0.1, 0.3, 0.5)
GRIDS = {
    "full": {
        "n_draws": 10,
        "n_samples": N_SAMPLES,
        "sigmas": WIDE,
        "sizes": (30, 100, 300, 1000, 3000),
        "spectral sigmas": (0.2, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0),
        "spectral sizes": (100, 200, 500, 1000, 2000, 5000),
    },
    "quick": {
        "n_draws": 2,
        "n_samples": 20_000,
        "sigmas": COARSE,
        "sizes": (30, 300, 1000),
        "spectral sigmas": (0.5, 1.0, 2.0),
        "spectral sizes": (200, 500),
    },
    "toy": {
        "n_draws": 1,
        "n_samples": 2_000,
        "sigmas": (0.1,),
        "sizes": (100,),
        "spectral sigmas": (1.0,),
        "spectral sizes": (100,),
    },
}


def figure_1(form: str) -> list[Job]:
    """Mean squared error in two dimensions, at two sizes of sketch."""
    names = ("CL-OMPR", "Algorithm 2, L=1000", OURS)
    return _sweep(form, "separated", names, (30, 1000), measure="MSE")


def figure_5(form: str) -> list[Job]:
    """RSE in six dimensions: discretised or shifted, and the number of starts."""
    return _sweep(form, "six", (*BY_STARTS, "discretised, L=1000"), (200, 1000))


def figure_6(form: str) -> list[Job]:
    """RSE in six dimensions over the plane of bandwidth and size."""
    return _sweep(form, "six", BY_STARTS, GRIDS[form]["sizes"])


def figure_7(form: str) -> list[Job]:
    """RSE in two dimensions, clusters well separated or not, fitted by points or Gaussians."""
    names = ("Algorithm 2, L=1000", "Algorithm 2, Gaussians", OURS)
    sizes = GRIDS[form]["sizes"]
    return _sweep(form, "separated", names, sizes) + _sweep(form, "close", names, sizes)


def figure_8(form: str, path: Path) -> list[Job]:
    """RSE on spectral features of MNIST."""
    grid = GRIDS[form]
    load = partial(spectral, path)
    cells = product(grid["spectral sizes"], grid["spectral sigmas"], range(grid["n_draws"]))
    return [
        partial(one_draw, load, {"data": "MNIST"}, BY_STARTS, m, sigma, seed)
        for m, sigma, seed in cells
    ]


def _sweep(
    form: str, data: str, names: Sequence[str], sizes: Sequence[int], measure: str = "RSE"
) -> list[Job]:
    grid = GRIDS[form]
    load = partial(drawn, data, grid["n_samples"])
    cells = product(sizes, grid["sigmas"], range(grid["n_draws"]))
    return [
        partial(one_draw, load, {"data": data}, names, m, sigma, seed, measure=measure)
        for m, sigma, seed in cells
    ]


def one_draw(
    load: Callable[[], Clusters],
    case: dict[str, Any],
    names: Sequence[str],
    n_frequencies: int,
    sigma: float,
    seed: int,
    measure: str = "RSE",
) -> list[Run]:
    """Decode one sketch with Gaussian frequencies by each of the decoders."""
    data = load()
    feature_map = FeatureMap(
        data.x.shape[1], n_frequencies, scale=sigma, distribution="gaussian", seed=seed
    )
    summary = sketch(data.x, feature_map)
    unit = data.lloyd_error if measure == "MSE" else 1.0
    runs = []
    for name in names:
        centers, seconds = timed(partial(DECODERS[name], summary, data, seed))
        value = unit * data.relative_error(centers)
        runs.append(Run(case | {"m": n_frequencies, "sigma": sigma}, name, seed, value, seconds))
    return [*runs, Run(case, "Lloyd", seed, unit, data.lloyd_seconds)]
