"""Algorithm 2 of "Sketch and shift: a robust decoder for compressive clustering"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dask_sketch.decoders.families import Array
from dask_sketch.decoders.local_covariance import kernel_bandwidth, local_covariance
from dask_sketch.decoders.maxima import climb
from dask_sketch.decoders.non_negative import non_negative_weights
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.threads import SERIAL, Threads
from dask_sketch.errors import DecodeError
from dask_sketch.features.arguments import whole_number
from dask_sketch.sketching.sketch import Sketch


@dataclass(frozen=True)
class Candidates:
    """What Algorithm 2 returns, in the units of the data.

    Attributes
    ----------
    weights
        Of the fit of all candidates, neither fitted again after pruning nor normalised, shape
        (n_components,), decreasing.
    centers
        Shape (n_components, n_features).
    covariances
        Of the atoms that were fitted, shape (n_components, n_features, n_features); all zero for
        points.
    cost
        ``||z - sum_i alpha_i a_i||**2`` with all candidates.
    n_evaluations
        Evaluations of correlation.
    converged, message
        How it ended, which is always the same.
    """

    weights: Array
    centers: Array
    covariances: Array
    cost: float
    n_evaluations: int
    converged: bool = True
    message: str = "all candidates found"


def sketch_and_shift(
    sketch: Sketch,
    n_components: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
    *,
    model: str = "dirac",
    box: Array | None = None,
    maxima: str = "shift",
    n_starts: int = 100,
    n_candidates: int | None = None,
    threads: Threads = SERIAL,
) -> Candidates:
    """Collect local maxima of the residual's correlation, weigh them, keep the heaviest.

    Every candidate is the best of ``n_starts`` climbs from points drawn evenly in the box; all
    weights are then fitted anew, and the residual follows. Only when all candidates are found is
    the support reduced, by weight. Nothing is moved afterwards and no weight fitted again: that is
    the paper's algorithm. Its centres are biased where clusters have width and the bandwidth is
    large; :func:`dask_sketch.decoders.density.divide_density` is not.

    Errata of the paper: the branches of the Gaussian model are swapped in print, and its residual
    forgets that atoms may have gone back to points.

    Parameters
    ----------
    sketch
        Of at least one sample.
    n_components
        Number of centroids ``k``.
    rng
        Source of the starting points.
    report
        Called with the cost after each candidate.
    model
        ``"dirac"``, or ``"gaussian"``: atoms with the covariance of :func:`local_covariance`, and
        points where there is none; for maps whose kernel is Gaussian.
    box
        The paper's domain ``Theta``: lowest and highest value of each feature, shape
        (2, n_features), in data units; the data's own when not given.
    maxima
        How local maxima are found: see :func:`dask_sketch.decoders.maxima.climb`.
    n_starts
        Number ``L`` of starting points of each candidate.
    n_candidates
        Number ``T >= k`` of candidates; ``2 k``, the paper's, when not given.
    threads
        What works on the blocks of frequencies.

    Returns
    -------
    candidates

    Raises
    ------
    DecodeError
        If an argument is out of range, or the model is Gaussian and the map's kernel is not.
    """
    if n_candidates is None:
        n_candidates = 2 * n_components
    if model not in ("dirac", "gaussian"):
        raise DecodeError(f"model={model!r}: sketch-and-shift fits 'dirac' or 'gaussian'.")
    whole_number("n_starts", n_starts, 1, DecodeError)
    if n_candidates < n_components:
        raise DecodeError(
            f"n_candidates={n_candidates!r}: give at least n_components={n_components}."
        )
    box = np.stack([sketch.minimum, sketch.maximum]) if box is None else box
    objective = Objective(sketch, "dirac", box=box, threads=threads)
    unit = np.outer(objective.scale, objective.scale)
    bandwidth = kernel_bandwidth(sketch.feature_map) / unit if model == "gaussian" else None
    d, target = objective.n_features, np.concatenate(objective.target)
    points, covariances = np.empty((0, d)), np.empty((0, d, d))
    rows = np.empty((0, len(target)))
    residual = target
    for _ in range(n_candidates):
        starts = rng.uniform(objective.lower, objective.upper, (n_starts, d))
        parts = residual.reshape(2, -1)
        ends, values = climb(objective, (parts[0], parts[1]), starts, maxima)
        point = ends[values.argmax()]
        covariance = np.zeros((d, d))
        if bandwidth is not None:
            covariance = local_covariance(objective, point, bandwidth)
        points = np.concatenate([points, point[None]])
        covariances = np.concatenate([covariances, covariance[None]])
        rows = np.concatenate([rows, _atom(objective, point, covariance)[None]])
        weights = non_negative_weights(rows, target)
        residual = target - weights @ rows
        report(float(residual @ residual))
    heaviest = np.argsort(-weights, kind="stable")[:n_components]
    return Candidates(
        weights=weights[heaviest],
        centers=objective.to_data_units(points[heaviest])[0],
        covariances=covariances[heaviest] * unit,
        cost=float(residual @ residual),
        n_evaluations=objective.n_evaluations,
    )


def _atom(objective: Objective, point: Array, covariance: Array) -> Array:
    """Sketch of a Gaussian of any covariance, as real numbers (2m,)."""
    omega = objective.omega
    damping = np.exp(-0.5 * np.einsum("ij,ij->j", omega, covariance @ omega))
    return np.asarray(objective.atoms(point[None])[0] * np.tile(damping, 2))
