"""The scale for clustering, from what k-means finds in a pilot sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dask_sketch.errors import InputError
from dask_sketch.features.lloyd import lloyd

# Squared bandwidths per mean squared distance of a sample to its centroid. With half as much,
# clusters of ten and more features are lost in the noise of 500 frequencies; with twice as much,
# clusters that touch are told apart less well.
_RATIO = 2.0


def clustering_scale(pilot: ArrayLike, n_components: int, *, seed: int = 0) -> float:
    """Scale of the law ``"gaussian"`` at which clusters are best decoded.

    Twice the risk of k-means on the pilot samples, ``scale = sqrt(2 W)``, where ``W`` is the mean
    squared distance to the nearest centroid. In the sketch, a cluster of total variance ``W`` is
    then damped by about ``exp(-W / (2 scale**2)) = 0.78`` whatever the number of features, while
    centroids that are further apart than ``scale`` are told apart. The pilot serves for this
    number alone; centroids of 5000 rows are no substitute for those of all.

    Parameters
    ----------
    pilot
        A random subset of the data, shape (n_samples, n_features), finite.
    n_components
        Number of centroids that will be decoded.
    seed
        Seed of the starts of k-means.

    Returns
    -------
    scale
        Positive, in the units of the samples.

    Raises
    ------
    InputError
        If there are not more samples than centroids, or no more distinct ones.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> pilot = rng.choice([-5.0, 5.0], (2000, 1)) + 0.1 * rng.standard_normal((2000, 1))
    >>> round(clustering_scale(pilot, 2), 2)
    0.14
    """
    try:
        x = np.asarray(pilot, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"pilot is not an array of numbers: {error}") from error
    if x.ndim != 2 or len(x) <= n_components or not x.shape[1]:
        raise InputError(
            f"pilot has shape {x.shape}: for n_components={n_components} more than {n_components} "
            "rows are needed."
        )
    if not np.isfinite(x).all():
        raise InputError("pilot holds NaN or infinite values; the scale needs finite ones.")
    risk = lloyd(x, n_components, seed=seed).inertia
    spread = float(np.square(x - x.mean(axis=0)).sum(axis=1).mean())
    if not risk > 1e-12 * spread:
        raise InputError(
            f"pilot has no more than n_components={n_components} distinct rows, so that clusters "
            "have no width: give the scale."
        )
    return float(np.sqrt(_RATIO * risk))
