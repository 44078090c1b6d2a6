"""Maximum likelihood on a few rows in memory: what a design knows of the components to come."""

from __future__ import annotations

import numpy as np

from dask_sketch.errors import InputError
from dask_sketch.features.lloyd import lloyd
from dask_sketch.models.density import RowDensity
from dask_sketch.models.mixture import Array, GaussianMixture
from dask_sketch.models.rows import row_blocks

_N_ITERATIONS = 50
_TOLERANCE = 1e-4  # smallest gain of one iteration, in nats per row
_FLOOR = 1e-8  # smallest variance, as a fraction of that of the rows


def fit_rows(rows: Array, n_components: int, seed: int = 0) -> GaussianMixture:
    """Fit a mixture to rows in memory by expectation-maximisation, starting from k-means.

    This is for the few thousand pilot rows of a design, where a rough fit is all that is needed.
    It sees every row in every iteration; for data of any other size, sketch and decode.

    Parameters
    ----------
    rows
        Shape (n, n_features), finite; every feature must vary.
    n_components
        Number ``K`` of components, from 1 to n.
    seed
        Seed of the start.

    Returns
    -------
    mixture
        With diagonal covariances.

    Raises
    ------
    InputError
        If there are fewer rows than components, or a feature does not vary.

    Examples
    --------
    >>> truth = GaussianMixture([0.5, 0.5], [[-3.0], [3.0]], [[1.0], [0.25]])
    >>> mixture = fit_rows(truth.sample(2000, seed=0), n_components=2)
    >>> sorted(mixture.covariances.ravel().round(1).tolist())
    [0.2, 1.0]
    """
    center, deviation = rows.mean(axis=0), rows.std(axis=0)
    if not (deviation > 0.0).all():
        still = np.flatnonzero(~(deviation > 0.0)).tolist()
        raise InputError(f"features {still} do not vary: a mixture has no width there.")
    x = (rows - center) / deviation
    clusters = lloyd(x, n_components, n_starts=1, seed=seed)
    nearest = ((x[:, None, :] - clusters.centers) ** 2).sum(axis=2).argmin(axis=1)
    share = np.eye(n_components)[nearest]
    previous = -np.inf
    for _ in range(_N_ITERATIONS):
        weights, means, variances = _maximise(x, share)
        density = RowDensity(weights, means, variances)
        blocks = list(row_blocks(x, x.shape[1], n_components))
        share = np.concatenate([density.posterior(block) for block in blocks])
        score = np.concatenate([density.log_total(block) for block in blocks]).mean()
        if score < previous + _TOLERANCE:
            break
        previous = score
    return GaussianMixture(weights, center + deviation * means, deviation**2 * variances)


def _maximise(x: Array, share: Array) -> tuple[Array, Array, Array]:
    """Weights, means and variances from the probabilities (n, K) of the components."""
    # a component that lost all rows goes back to being like the rows as a whole
    total = share.sum(axis=0) + 1e-6
    means = (share.T @ x) / total[:, None]
    squares = (share.T @ x**2 + 1e-6) / total[:, None]
    return total / total.sum(), means, np.maximum(squares - means**2, _FLOOR)
