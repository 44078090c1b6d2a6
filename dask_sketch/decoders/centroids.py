"""Decoding of centroids by the methods that are more than a search for atoms."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dask_sketch.decoders.arguments import require_enough
from dask_sketch.decoders.density import Division, default_n_candidates, divide_density
from dask_sketch.decoders.families import Array
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.replicates import fit_all
from dask_sketch.decoders.reporter import Progress, Reporter, watched
from dask_sketch.decoders.shift import Candidates, sketch_and_shift
from dask_sketch.decoders.threads import Threads
from dask_sketch.errors import DecodeError
from dask_sketch.models import Centroids, Decoding
from dask_sketch.sketching.sketch import Sketch

CENTROID_METHODS = ("sketch-shift", "density")


@dataclass(frozen=True)
class CentroidSearch:
    """A search for centroids; replicates differ in their starting points.

    Attributes
    ----------
    sketch, n_components, method, model, box, maxima, seed
        As of :func:`decode_centroids`.
    """

    sketch: Sketch
    n_components: int
    method: str
    model: str
    box: Array | None
    maxima: str
    seed: int

    def __call__(
        self, replicate: int, report: Callable[[float], None], threads: Threads
    ) -> Division | Candidates:
        """What one replicate finds."""
        rng = np.random.default_rng((self.seed, replicate))
        given: dict[str, Any] = {"box": self.box, "maxima": self.maxima, "threads": threads}
        if self.method == "density":
            return divide_density(self.sketch, self.n_components, rng, report, **given)
        return sketch_and_shift(
            self.sketch, self.n_components, rng, report, model=self.model, **given
        )


def decode_centroids(
    sketch: Sketch,
    n_components: int | None,
    method: str,
    model: str,
    box: Array | None,
    maxima: str,
    seed: int,
    replicates: int,
    progress: Progress | bool | None,
    n_threads: int,
    executor: Executor | None,
) -> Centroids:
    """Find centroids by sketch-and-shift or by way of a density.

    Parameters
    ----------
    sketch, n_components, method, model, maxima, seed, replicates, progress, executor
        As of :func:`dask_sketch.decode`.
    n_threads
        Number of threads.
    box
        Bounds on centroids, shape (2, n_features), in data units; the data's when not given.

    Returns
    -------
    centroids
        By decreasing weight; the replicate of lowest cost.

    Raises
    ------
    DecodeError
        If the model does not suit the method, or the sketch is too short.
    """
    begun = time.perf_counter()
    if model not in (("dirac", "gaussian") if method == "sketch-shift" else ("dirac",)):
        other = " or 'gaussian'" if method == "density" else ""
        raise DecodeError(f"method={method!r} finds centroids: give model='dirac'{other}.")
    assert n_components is not None  # only cl-omp does without
    features = sketch.feature_map
    d, m = features.n_features, features.n_frequencies
    require_enough(sketch, n_components, 1 + d)
    n_iterations = 2 * n_components
    if method == "density":
        n_iterations = default_n_candidates(n_components, d, m) + 1
    search = CentroidSearch(sketch, n_components, method, model, box, maxima, seed)
    with (
        threadpool_limits(1, user_api="blas"),
        Threads(n_threads) as threads,
        watched(progress) as show,
    ):
        reporter = Reporter(show, replicates * n_iterations)
        found = fit_all(search, replicates, executor, threads, reporter)
    best, trace = min(found, key=lambda each: each[0].cost)
    if not best.weights.sum() > 0:
        raise DecodeError(
            "no component explains the sketch: all weights are zero. The frequencies do not see "
            "the data; design the feature map on a sample of it."
        )
    record = Decoding(
        method=method,
        model=model,
        cost=best.cost,
        noise_level=Objective(sketch, "dirac").noise_level,
        trace=tuple(trace),
        seconds=time.perf_counter() - begun,
        seed=seed,
        replicates=replicates,
        n_evaluations=sum(each.n_evaluations for each, _ in found),
        converged=best.converged,
        message=best.message,
        feature_names=sketch.feature_map.feature_names,
    )
    return Centroids(best.weights / best.weights.sum(), best.centers, decoding=record)
